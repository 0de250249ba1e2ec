"""Say how the scales of codes differ: the codes are the golden's, each block is the golden's times a factor of its own.

If both sides have codes, the scales themselves are compared: the bytes of exponents read as numbers, reciprocals, the
golden's scales in another order, others. If one side has none, the factor of each block is estimated from its values.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.computed_weights import SCALED
from npucmp.dump.readers.weight_payloads import steps_of
from npucmp.model import Payload
from npucmp.relations.weights.sample import Array, whole_values
from npucmp.relations.weights.weight_fault import Fact, WeightFault

CODES = 1e-6  # of a code: chosen: one rounding of a product to float32 and of its quotient
BIAS = 127  # of an exponent: definition: of the exponent of float8_e8m0
NEAR = 0.01  # of a scale: chosen: an estimate from the values of a block
WITHIN = 1.1  # limits of single elements: chosen: the factor of a block is an estimate


def other_scales(
    target: Payload, golden: Payload, x: Array, y: Array, slack: Array, context: ReadContext
) -> Optional[WeightFault]:
    """Return a fault if the codes are the golden's and several scales are others. One factor of all is none."""
    steps = [steps_of(payload) for payload in (target, golden)]
    if steps[0] is not None and steps[1] is not None:
        return _of_codes(x, y, whole_values(steps[0], context), whole_values(steps[1], context))
    payload, step = (target, steps[0]) if steps[0] is not None else (golden, steps[1])
    block = _block_of(payload)
    if step is None or block is None:
        return None
    return _of_blocks(x, y, slack, whole_values(step, context), block, payload is target)


def _of_codes(x: Array, y: Array, own: Array, theirs: Array) -> Optional[WeightFault]:
    """The fault of two sides of equal codes."""
    with np.errstate(all="ignore"):
        codes = x / own, y / theirs
        ratio, exponents = own / theirs, np.log2(theirs) + BIAS
    used = (own != 0) & (theirs != 0)
    if not used.any() or not np.allclose(codes[0][used], codes[1][used], rtol=CODES, atol=0.0, equal_nan=True):
        return None
    least, most = float(ratio[used].min()), float(ratio[used].max())
    if most - least <= NEAR * abs(most):
        return None
    facts: dict[str, Fact] = {"least": least, "most": most}
    if np.array_equal(own[used], exponents[used]):
        words = "its codes are the golden's, its scales the exponent bytes of the golden's scales: {byte} for 2^{power}"
        facts = {"byte": int(own.flat[0]), "power": int(own.flat[0]) - BIAS}
        return WeightFault("exponent bytes", words, facts)
    if np.allclose((own * theirs)[used], 1.0, rtol=CODES):
        return WeightFault("reciprocal", "its codes are the golden's, its scales the reciprocals of the golden's")
    if np.array_equal(np.sort(own, None), np.sort(theirs, None)):
        return WeightFault("scales moved", "its codes are the golden's, its scales the golden's in another order")
    facts["share"] = float((np.abs(ratio[used] - 1.0) > CODES).mean())
    words = "its codes are the golden's; {share:.1%} of them have another scale, {least:.4g} to {most:.4g} times it"
    return WeightFault("scales", words, facts)


def _block_of(payload: Payload) -> Optional[tuple[int, int]]:
    """The rows and columns that share a scale; None for codes that are joined or turned."""
    if payload.made_by != SCALED:
        return None
    scale = payload.parts[1]
    first = scale.parts[0] if scale.made_by else scale
    rows = first.shape[0] if first.strides and not first.strides[0] else 1
    return rows, payload.axis if scale.shape[1] > 1 else payload.shape[1]


def _of_blocks(
    x: Array, y: Array, slack: Array, step: Array, block: tuple[int, int], is_target: bool
) -> Optional[WeightFault]:
    """The fault of codes against plain values: blocks that are the golden's times several factors."""
    edges = [np.arange(0, size, length) for size, length in zip(x.shape, block)]

    def sums(values: Array) -> Array:
        return np.add.reduceat(np.add.reduceat(values, edges[0], 0), edges[1], 1)

    with np.errstate(all="ignore"):
        factor = sums(x * y) / sums(y * y)
    if factor.size < 2 or not np.isfinite(factor).all() or (factor <= 0.0).any():
        return None
    wide = np.repeat(np.repeat(factor, block[0], 0)[: len(x)], block[1], 1)[:, : x.shape[1]]
    least, most = float(factor.min()), float(factor.max())
    if most - least <= NEAR * most or (np.abs(x - wide * y) > WITHIN * np.maximum(wide, 1.0) * slack).any():
        return None
    scales = step[np.ix_(*edges)]
    right = scales / factor if is_target else scales * factor
    odd = np.abs(factor - 1.0) > NEAR
    least, most = float(factor[odd].min()), float(factor[odd].max())
    first = int(np.flatnonzero(odd.any(1))[0]) * block[0]
    facts: dict[str, Fact] = {"rows": block[0], "columns": block[1], "least": least, "most": most,
                              "count": int(odd.sum()), "all": odd.size, "first": first}  # fmt: skip
    words = (
        "{count} of {all} blocks of {rows} by {columns}, from row {first} on, are the golden's times {least:.4g} to "
        "{most:.4g}: "
    )
    if is_target and np.array_equal(scales, np.round(np.log2(right)) + BIAS):
        return WeightFault("exponent bytes", words + "its scales are exponent bytes of float8_e8m0", facts)
    if np.allclose(np.sort(scales, None), np.sort(right, None), rtol=NEAR):
        return WeightFault("scales moved", words + "its scales are those of other blocks", facts)
    return WeightFault("scales", words + "its scales are others", facts)
