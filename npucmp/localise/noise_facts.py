"""What has to be known of all ranks of a step before an operator is held against noise, gathered rank by rank."""

from __future__ import annotations

import math
from collections import Counter
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.flow.row_cache import of_row
from npucmp.judge.precision import REDUCED_ERROR
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.condition import scale_of
from npucmp.localise.history import Level
from npucmp.localise.movement import SINGLE, Movement, movement
from npucmp.localise.working import USUAL, count_types
from npucmp.model import Finding
from npucmp.model.dtypes import lookup
from npucmp.model.finding import OTHER_NODE
from npucmp.model.roles import containers, is_parameter

FEW = 16  # elements below which figures hardly average anything
REDUCED = 2.0**-12  # round-off of 11 bits, to which HF32 and TF32 round the operands of products
SUMS = slice(2, 4)


class RankFacts(NamedTuple):
    """What has to be known of all ranks of a step before any operator is held against noise, of one of them.

    containing  modules that have operators inside; units: how many tensors are of each round-off
    mixed       float tensors, and those of another type on the other side
    given       how far parameters moved, None if there are none
    products    of float32: what came in (None: what came last), the most that was written before, whether the product
                moved as HF32 moves it; most: the most that was written at all
    """

    containing: frozenset[str]
    units: dict[float, int]
    mixed: tuple[int, int]
    given: Optional[float]
    products: tuple[tuple[Optional[float], float, bool], ...]
    most: float


class Facts(NamedTuple):
    """The same of all ranks."""

    containing: frozenset[str]
    coarse: float
    apart: bool
    drift: float
    unproven: float
    reduced: float
    first: bool


def facts_of(nodes: Sequence[OperatorFindings]) -> RankFacts:
    measured = [one.measurement for node in nodes for one in (*node.inputs, *node.outputs)]
    given = [max(level(one)) for one in _parameters(nodes) if movement(one)]
    units = Counter(max(kinds) for node in nodes for one in node.outputs or node.inputs if (kinds := round_offs(one)))
    products, most = _products(nodes)
    modules = frozenset(contained(nodes))
    return RankFacts(modules, dict(units), count_types(measured), max(given, default=None), tuple(products), most)


def joined(ranks: Sequence[RankFacts], first: bool = True, unproven: float = 0.0) -> Facts:
    """unproven: the error that the steps before may have made of parameters, and that statistics do not prove."""
    units: Counter[float] = Counter()
    for one in ranks:
        units.update(one.units)
    least = USUAL * sum(units.values())
    coarse = max((unit for unit, count in units.items() if count >= least), default=0.0)
    mixed, floats = (sum(numbers) for numbers in zip(*(one.mixed for one in ranks))) if ranks else (0, 0)
    given = [] if first else [one.given for one in ranks if one.given is not None]
    return Facts(
        frozenset().union(*(one.containing for one in ranks)),
        coarse,
        mixed > USUAL * floats,
        max(given, default=0.0),
        0.0 if given else unproven,  # what is recorded of parameters tells how far they moved
        REDUCED if _are_reduced(ranks) else 0.0,
        first,
    )


def _products(
    nodes: Sequence[OperatorFindings],
) -> tuple[list[tuple[Optional[float], float, bool]], float]:
    """Products of float32, as RankFacts has them, and the most that was written."""
    low, high = REDUCED_ERROR
    said: list[tuple[Optional[float], float, bool]] = []
    before = 0.0  # what the last outputs moved by stands for operands that were not recorded
    for node in nodes:
        wrote = [(level(one), moved) for one in node.outputs if (moved := movement(one)) is not None]
        single = all(moved.unit == SINGLE for _, moved in wrote)
        if not node.is_gradient and node.op.has("contracts") and wrote and single:
            read = [max(level(one)) for one in node.inputs if movement(one) is not None]
            came = max(read, default=math.inf) if node.inputs else None
            moved_so = all(low / 4 < one.sums < high * 4 * reuse(node, moved) for one, moved in wrote)
            said.append((came, before, moved_so))
        before = max([before, *(max(one) for one, _ in wrote)])
    return said, before


def _are_reduced(ranks: Sequence[RankFacts]) -> bool:
    """Whether all products of float32 whose operands hardly moved, moved themselves as far as HF32 and TF32 round."""
    said, most = [], 0.0
    for one in ranks:
        for came, before, moved_so in one.products:
            if (max(most, before) if came is None else came) <= FACTOR * SINGLE:
                said.append(moved_so)
        most = max(most, one.most)
    return bool(said) and all(said)


def _parameters(nodes: Sequence[OperatorFindings]) -> Iterator[Finding]:
    return (one for node in nodes for one in node.inputs if is_parameter(one.pair))


def reuse(node: OperatorFindings, moved: Movement, last: tuple[int, ...] = ()) -> float:
    """√ of how many elements share one element of the smallest operand; of the last axis, if none was recorded."""
    sizes = [one.elements for one in map(scale_of, (*node.inputs, *node.context)) if one.elements >= FEW]
    return math.sqrt(max(1.0, moved.elements / max(min(sizes or last, default=1), 1)))


@of_row
def round_offs(finding: Finding) -> set[float]:
    sides = finding.pair.target, finding.pair.golden
    return {row.round_off for tensor in sides if tensor and (row := lookup(tensor.dtype)) and row.round_off}


def level(finding: Finding) -> Level:
    """What the movements of one tensor say of the others' it becomes: one element that is off tells little of sums."""
    return Level() if finding.rule == OTHER_NODE else _level(finding)


@of_row
def _level(finding: Finding) -> Level:
    moved, scale = movement(finding), scale_of(finding)
    if moved is None:
        return Level()
    share = min(1.0, (scale.largest / scale.rms) ** 2 / math.sqrt(moved.elements)) if scale.rms else 1.0
    extremes = max(moved.each[:2])
    extremes = extremes if math.isfinite(extremes) else 0.0
    sums = max((one for one in moved.each[SUMS] if math.isfinite(one)), default=0.0)
    return Level(extremes, max(sums, share * extremes)).times(moved.unit)


def contained(nodes: Sequence[OperatorFindings]) -> set[str]:
    """Modules that have operators of the same dump inside."""
    scopes = {node.operator.name: node.operator.scope for node in nodes if node.operator.scope}
    return {name for node in nodes for name in containers(node.operator, scopes)}
