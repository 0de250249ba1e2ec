"""Float32 matrix products whose units keep 11 bits: HF32 on Ascend, TF32 on GPUs.

The errors that products add to those of their operands identify them (judge/products.py). Source: CANN, "allow_hf32";
NVIDIA, TF32 (10-bit mantissa). Evidence: one product of numbers rounded to 11 bits is off by 2e-4 to 4e-4.

If both runs round to 11 bits (`reduced_alike`), they round equal operands alike. An operand that differs by d crosses a
step δ of the 11 bits with the probability d / δ and then differs by δ: the mean square of the factor's error is d δ
instead of d². An error e of float32 becomes √(2^-10 e), 8e-6 if e is one round-off. If few elements cross, each counts
for itself. The limits stay those of float32, because other operators do not enlarge the error. Evidence: in clean pairs
of the second corpus (open2) with HF32 on both sides, products that read 5e-8 write 6e-6 or 2e-5, and those that read
1e-5 write 4e-5. The values of each side show the precision (measure/own_products.py).

The bound of `reduced_alike` is 8 √(2^-10 e), or three elements that cross a step, at most the limit of `reduced`, and
times √K t / rms if terms of size t cancel. If a product wrote more than its limit, up to 8 products of each step and
rank are read again and compared with the exact product of the operands that the same side recorded. If both sides are
as far from it as 11 bits are, both runs round so, and a note reports it.
"""

from __future__ import annotations

import math

from npucmp.judge.precision import SINGLE
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import FLIP_COUNT, ErrorRule, RuleContext

REDUCED_ROUND_OFF = 2.0**-11  # round-off: literature: 11 significant bits of HF32 (CANN) and TF32 (NVIDIA)
ALIKE_NAME = "reduced_alike"
STEP = 2.0 * REDUCED_ROUND_OFF  # relative: definition: the distance of two numbers of 11 bits, at most

RULE = ErrorRule(
    "limit",
    "reduced",
    f"products by HF32 or TF32 units, which keep {-math.log2(REDUCED_ROUND_OFF):g} bits of each operand: "
    f"limit {FACTOR:g} · "
    "2^-11, if most products of the run have errors of this size",
    applies=lambda case: case.precision.reduced,
    bound=lambda case: FACTOR * REDUCED_ROUND_OFF,
)


def _bound(case: RuleContext) -> float:
    """Bound the error by crossings; one crossing moves the share of an operand's largest element."""
    node, size = case.node, case.scale.rms
    read = [] if node is None else [scale_of(one) for one in (*node.inputs, *node.extra_inputs)]
    peaks = [one.largest / (one.rms * math.sqrt(one.elements)) for one in read if one.rms]
    crossed = max(FACTOR * math.sqrt(STEP * case.input_error), FLIP_COUNT * STEP * max(peaks, default=0.0))
    enlarged = max(1.0, case.terms.spread / size) if size else 1.0
    return enlarged * min(crossed, FACTOR * REDUCED_ROUND_OFF)


def _applies(case: RuleContext) -> bool:
    node = case.node
    is_single = case.own_round_off == SINGLE and not case.is_choice
    return node is not None and node.op.has("contracts") and is_single and case.input_error > 0.0


ALIKE = ErrorRule(
    "explanation",
    ALIKE_NAME,
    "both runs round operands to 11 bits; where operands differ by e, some are rounded to another number, which "
    "enlarges the error to √(2^-10 e)",
    applies=_applies,
    bound=_bound,
)
