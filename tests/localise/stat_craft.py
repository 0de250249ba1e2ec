"""Craft operators of which statistics alone were recorded, whose figures shifted by a number of roundings."""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple

from npucmp.flow.operators import nodes_of, numbered
from npucmp.localise.search import RootSearch
from npucmp.localise.stat_test import Facts, NoiseBaseline, NoiseTest
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from npucmp.model.dtypes import lookup

SINGLE = 2.0**-24
HALF = 2.0**-8  # round-off of bfloat16, the default type
SHAPE = (64, 64)
FIGURES = Statistics(4.0, -3.0, 0.1, 64.01)  # of SHAPE; neither mean nor norm is a number of bfloat16
NOWHERE = (0.0, 0.0, 0.0, 0.0)
FACTS = Facts(frozenset(), 0.0, False, 0.0, 0.0, 0.0, True)


class Row(NamedTuple):
    """A tensor: `shifts` of max, min, mean and norm are in roundings of the coarser of its types, whose name stands
    alone where both sides have it; `known` are fields of the measurement, `judged` of the finding, and `tensors` of
    both tensors."""

    slot: str
    shifts: tuple[float, ...] = NOWHERE
    golden: Statistics | None = FIGURES
    shape: tuple[int, ...] = SHAPE
    dtype: str | tuple[str, str] = "bfloat16"
    target: Statistics | None = None
    known: Mapping[str, Any] = {}
    judged: Mapping[str, Any] = {}
    tensors: Mapping[str, Any] = {}


class Op(NamedTuple):
    op: str
    rows: tuple[Row, ...]
    phase: str = "forward"
    call: str = ""
    more: Mapping[str, Any] = {}  # fields of the operator
    name: str = ""
    arguments: tuple[Mapping[str, Any], ...] = ({}, {})  # of target and golden


def row(slot, at=None, size=0.0, **more) -> Row:
    """A tensor of which the figure `at` shifted."""
    return Row(slot, tuple(size if at == one else 0.0 for one in range(4)), **more)


def of(size: float, norm: float = 64.01, mean: float = 0.1) -> Statistics:
    """Figures like FIGURES, whose largest value identifies the tensor."""
    return Statistics(size, -0.75 * size, mean, norm)


def shifted(golden: Statistics, shifts, unit: float, count: int) -> Statistics:
    """The figures whose elements are off by that many roundings of `unit`."""
    norm = golden.norm or 0.0
    rms = norm / math.sqrt(count) if math.isfinite(norm) else 0.0
    sizes = (
        unit * max(abs(golden.max or 0.0), rms), unit * max(abs(golden.min or 0.0), rms),
        max(unit / math.sqrt(count), SINGLE) * rms, unit * rms,
    )  # fmt: skip
    return Statistics(*(one + by * size if by else one for one, by, size in zip(golden, shifts, sizes)))


def findings_of(*operators: Op) -> list[Finding]:
    """The rows of operators in order, with numbers."""
    found = []
    for order, one in enumerate(operators):
        made = []
        for each in one.rows:
            dtypes = (each.dtype, each.dtype) if isinstance(each.dtype, str) else each.dtype
            unit = max(SINGLE, *(lookup(name).round_off for name in dtypes))
            target = each.target
            if target is None and each.golden is not None:
                target = shifted(each.golden, each.shifts, unit, max(1, math.prod(each.shape)))
            sides = target, each.golden
            made.append((each, [TensorRef(each.slot, *both) for both in zip(dtypes, [each.shape] * 2)], sides))
        name = one.name or f"{one.op}.{order}"
        fields = {"call": one.call or name, **one.more}
        target_op, golden_op = (
            Operator(name, one.op, one.op, one.phase, order, tuple(refs[side] for _, refs, _ in made),
                     **{"arguments": one.arguments[side], **fields})
            for side in (0, 1)
        )  # fmt: skip
        for each, refs, sides in made:
            refs = [ref._replace(statistics=figures, **each.tensors) for ref, figures in zip(refs, sides)]
            pair = Pair(order, each.slot, target_op, golden_op, *refs, "name", 1.0)
            measured = Measurement(pair, **{"bound": 0.0, "statistics": sides, **each.known})
            found.append(Finding(measured, Verdict.UNKNOWN, "")._replace(**each.judged))
    return numbered(found)


def nodes(*operators: Op):
    return nodes_of(findings_of(*operators))


def visited(*operators: Op, facts: Mapping[str, Any] = {}, now: Mapping[str, Any] = {}):
    """The noise test of operators, its last operator, and the contribution of that; `now` is the noise before each."""
    walk = RootSearch(findings_of(*operators))
    noise, found = NoiseTest(FACTS._replace(**facts)), None
    for node in walk.nodes:
        found = noise.visit(node, walk, NoiseBaseline(**now))
        walk.visit(node)
    return noise, walk.nodes[-1], found


def outlier(*operators: Op, **more):
    """How the last operator exceeds the noise; None if it does not."""
    noise, node, _ = visited(*operators, **more)
    return noise.outliers.get(node.row)
