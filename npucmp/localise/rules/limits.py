"""The largest error that rounding alone may make.

Each function without an underscore is a rule of the table in __init__.py. It returns a bound of rel_l2, 0 if the rule
does not apply; the largest bound is the limit of the tensor.
"""

from __future__ import annotations

import math

from npucmp.judge.precision import STEP_BITS, narrower_dtype, terms_summed
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import SUMMATION_MOST as MOST_TERMS
from npucmp.localise.rule_context import RuleContext
from npucmp.model.dtypes import SHORT_SUM as SHORT
from npucmp.model.dtypes import lookup

# rel_l2: chosen: no rounding reaches it, nor one gradient with an error; a tensor with one half zero is off by 0.71
UNRELATED_ERROR = 0.5
REDUCED_ROUND_OFF = 2.0**-11  # round-off: literature: 11 significant bits of HF32 (CANN) and TF32 (NVIDIA)
# times the rms: chosen: the largest of a thousand values with a normal distribution is 3 to 4 times as large, not
# measured
USUAL_PEAK = 4.0


def round_off(case: RuleContext) -> float:
    """Rounding in the working precision: 8 unit round-offs (model/dtypes.py) of the coarsest type that the values went
    through; bfloat16: 0.031.

    Evidence: in silent clean pairs of the corpus (open seeds), the median error of an output is 2.2 round-offs and nine
    of ten are below 6.7; inputs explain errors above 8. Under bfloat16 autocast, tensors that are nominally float32
    carry bfloat16's error. Types of 8 and 4 bits would have a limit at which unrelated tensors pass: a tensor with one
    half zero is off by 0.71, a reordered tensor by 1.41, and rounding to float4 by 0.14.

    The limit is at most 0.5, because unrelated tensors in types of 8 and 4 bits would otherwise match. A sum over
    ranks has in addition the rounding of its terms (relations/ranks/assembled_run.py).
    """
    return min(UNRELATED_ERROR, FACTOR * case.precision.round_off * (case.terms_rounding or 1.0))


def long_sums(case: RuleContext) -> float:
    """Two orders of adding K terms in the type itself differ by about √K/16 times 8 round-offs.

    Only float32 and wider types accumulate in themselves; sums of 16-bit floats accumulate in float32. Source: Higham,
    Accuracy and Stability of Numerical Algorithms, §4.2 (random walk of rounding errors). Evidence: 9.2 round-offs in a
    weight gradient of a clean run with another number of threads.
    """
    operator = case.pair.golden_op
    terms = terms_summed(operator, case.golden) if operator is not None and case.pair.golden is not None else 1.0
    return FACTOR * case.precision.round_off * math.sqrt(min(terms, MOST_TERMS)) / SHORT


def subnormal(case: RuleContext) -> float:
    """Below the smallest normal number of a type the spacing stays constant, so the relative round-off grows.

    Evidence: float16 gradients lie below 6e-5; 2.8e-2 was seen in a clean float16 run, limit 3.9e-3.

    The limit is multiplied by the smallest normal number over the root mean square of the golden, if that exceeds 1.
    """
    values, row = case.values, lookup(narrower_dtype(case.pair))
    rms, tiny = math.sqrt(values.yy / values.compared), row.tiny if row is not None and row.round_off else 0.0
    times = tiny / rms if rms else math.inf
    # zeros: the other side's values may have been too small for the type
    is_small = bool(values.yy) or (row is not None and values.max_abs <= tiny * row.round_off)
    return FACTOR * case.precision.round_off * times if tiny and times > 1.0 and is_small else 0.0


def reduced(case: RuleContext) -> float:
    """Float32 matrix products whose units keep 11 bits: HF32 on Ascend, TF32 on GPUs.

    The errors that products add to those of their operands identify them (judge/products.py). Source: CANN,
    "allow_hf32"; NVIDIA, TF32 (10-bit mantissa). Evidence: one product of numbers rounded to 11 bits is off by 2e-4 to
    4e-4.
    """
    return FACTOR * REDUCED_ROUND_OFF


def quantised(case: RuleContext) -> float:
    """Behind whole numbers that represent quantised floats, errors are half a step of 8 bits.

    Half a step is 2^-8 of the largest value; for dequantised tensors the limit is 8 half steps, if the largest value of
    the golden is at most 4 times its rms, and more in proportion if it is larger: the largest value sets the step of
    all.

    Whole numbers of at most 32 bits that differ from the floats of the other run by more than 1 may count steps of a
    size that no dump records: their verdict is `dtype`, which is not an agreement. If no scale above 0 and no offset
    relate the two sides, they are `diverged`: the correlation is below 0.3 and more remains than rounding leaves, or
    most elements are equal and the scale is 1. From the first quantised tensor on, the round-off of the run is at least
    2^-8.
    """
    has_peak = case.moments is not None and bool(case.scale.rms)  # a limit without values depends on the precision
    peak = case.scale.largest / case.scale.rms if has_peak else 0.0
    return min(UNRELATED_ERROR, FACTOR * 2.0**-STEP_BITS * max(1.0, peak / USUAL_PEAK))
