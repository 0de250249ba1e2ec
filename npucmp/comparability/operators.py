"""Differences of two networks: their operators, the order of operators, the shapes of outputs.

Differences of shapes and inputs that follow from values are no setup of the run, because the network computes those
values: nonzero finds other rows, topk takes other experts.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import AbstractSet, Iterator, NamedTuple, Optional, Sequence

from npucmp.align.framework_names import differ_in_framework
from npucmp.align.name import longest_increasing
from npucmp.comparability.answers import AlignedRuns, AlignedStep, differs, same, unknown
from npucmp.model import Operator, Pair, Run, TensorRef
from npucmp.model.dtypes import is_short, lookup
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import is_gradient, op_type, op_type_of
from npucmp.model.roles import mark_of

UNPAIRED_SHARE = 0.05  # above this share of operators without a partner the networks differ


AGREE = 1e-4  # relative difference of the figures of agreeing tensors in float32
AGREE_SHORT = 2e-2  # the same for 16 bits


class MissingOperators(NamedTuple):
    """Operators of one side without a partner, and the total. `unlike` are those that the tensors around them show to
    be neither fused differently nor recomputed."""

    side: str
    operators: list[Operator]
    unlike: list[Operator]
    of: int


def operators(both: AlignedRuns) -> ItemResult:
    """Operators without a partner in any step and rank; reports the worst case. It is a note if one side fuses or
    recomputes them and the tensors around them agree."""
    counts = Counter[str]()
    worst: Optional[tuple[float, AlignedStep, list[MissingOperators]]] = None
    for one in both.aligned_steps:
        if one.alignment is None:
            return differs(one.problem)
        counts[one.target.path] = len(one.alignment.matches)
        alone = _alone(both, one)
        share = max((len(side.unlike) / side.of for side in alone if side.of), default=0.0)
        if any(side.operators for side in alone) and (worst is None or share > worst[0]):
            worst = share, one, alone
    if worst is not None:
        return _missing_operators(*worst)
    for one in both.aligned_steps:
        moved = _moved_operators(one)
        if moved:
            words = f"{len(moved)} operators run in another order (first: {moved[0].name})"
            return differs(words, "warning", places=len(moved), first=moved[0].name)
    if not counts:
        return unknown("no step and rank is in both dumps")
    matched = sum(counts.values())
    return same(f"{matched:,} operators", places=matched)


def _missing_operators(share: float, one: AlignedStep, alone: list[MissingOperators]) -> ItemResult:
    sides = [side for side in alone if side.operators]
    words = []
    for side in sides:
        kinds = Counter(op_type(operator.op_type).name or operator.op_type for operator in side.operators)
        most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
        words.append(f"{len(side.operators):,} of {side.of:,} operators only in {side.side} ({most}; "
                     f"first: {side.operators[0].name})")  # fmt: skip
    graphs = one.target.format != one.golden.format or _is_graph(one) or differ_in_framework(one.target, one.golden)
    severity = "error" if share > UNPAIRED_SHARE and not graphs else "warning" if share else "note"
    words += [] if share else ["the tensors around them agree: they are fused differently, or recomputed"]
    count = sum(len(side.operators) for side in sides)
    return differs(
        "; ".join(words), severity, places=count, first=sides[0].operators[0].name, value=share, limit=UNPAIRED_SHARE
    )


def _is_graph(one: AlignedStep) -> bool:
    """Whether a compiler produced the operators of a side; compilers fuse and fold operators."""
    return any(operator.originals or operator.inserted for run in one[:2] for operator in run.operators)


def _alone(both: AlignedRuns, one: AlignedStep) -> list[MissingOperators]:
    """Operators of each side without a partner. Phases and modules that the other side did not dump, and operators that
    compilers insert, are left out."""
    assert one.alignment is not None
    runs = {"target": one.target, "golden": one.golden}
    comparable = set.intersection(*({_family(operator) for operator in run.operators} for run in runs.values()))
    found = []
    for side, alone in (("target", one.alignment.only_target), ("golden", one.alignment.only_golden)):
        counted = [operator for operator in alone if _family(operator) in comparable and _counts(operator)]
        like = {*_ran_again(runs[side], counted), *_enclosed_operators(both, one, side, counted)} if counted else set()
        unlike = [operator for operator in counted if operator.order not in like]
        found.append(MissingOperators(side, counted, unlike, sum(map(_counts, runs[side].operators))))
    return found


def _ran_again(run: Run, alone: Sequence[Operator]) -> Iterator[int]:
    """The positions of operators after the first gradient that repeat an output of an earlier operator of their type.
    With checkpointing the forward is recomputed. The last recomputed operator stops before it writes outputs, and is
    recognised by its inputs."""
    turn = next((one.order for one in run.operators if is_gradient(one)), math.inf)
    if all(one.order < turn for one in alone):
        return
    known = {content for one in run.operators if one.order < turn for content in _contents(one)}
    for one in alone:
        if one.order > turn and not is_gradient(one):
            contents = _contents(one)
            made = [keys for keys in contents if keys.is_output] or contents
            if made and known.issuperset(made):
                yield one.order


class _ContentKey(NamedTuple):
    op_type: str
    is_output: bool
    mark: object


def _contents(operator: Operator) -> list[_ContentKey]:
    """The contents of an operator's tensors, without parameters."""
    own = ("param:", "grad:")
    marks = [(one.is_output, mark_of(one)) for one in operator.tensors if not one.slot.startswith(own)]
    return [_ContentKey(operator.op_type, is_output, mark) for is_output, mark in marks if mark is not None]


def _enclosed_operators(both: AlignedRuns, one: AlignedStep, side: str, alone: Sequence[Operator]) -> Iterator[int]:
    """The positions of unmatched operators between partners whose outputs agree, or between the network's inputs and
    such a partner. If forward operators write floats, a later operator must read one of these outputs. Operators
    without float outputs prepare masks and positions."""
    run = one.target if side == "target" else one.golden
    read = {mark_of(tensor): operator.order for operator in run.operators for tensor in operator.tensors
            if not tensor.is_output}  # fmt: skip
    outputs: dict[int, list[bool]] = {}
    for pair in one.pairs:
        operator = pair.target_op if side == "target" else pair.golden_op
        is_told = operator is not None and is_output(pair) and _is_float(pair.target) and _is_float(pair.golden)
        if is_told and operator is not None and (agree := both.agree(pair)) is not None:
            outputs.setdefault(operator.order, []).append(agree)
    waiting: dict[object, list[Operator]] = {}
    agreed: dict[object, bool] = {}
    missing = {operator.order for operator in alone}
    for operator in run.operators:
        family, found = _family(operator), outputs.get(operator.order)
        if operator.order in missing:
            waiting.setdefault(family, []).append(operator)
        elif found:
            members = waiting.pop(family, [])
            written = {
                mark_of(tensor) for each in members for tensor in each.tensors if tensor.is_output and _is_float(tensor)
            }
            leads = is_gradient(operator) or any(read.get(mark, -1) > members[-1].order for mark in written - {None})
            leads = leads or not written
            if all(found) and agreed.get(family, True) and leads:
                yield from (each.order for each in members)
            agreed[family] = all(found)


def _is_float(tensor: Optional[TensorRef]) -> bool:
    row = lookup(tensor.dtype) if tensor is not None else None
    return row is not None and row.kind == "f"


def agreement(pair: Pair) -> float:
    """The largest relative difference of two tensors that agree."""
    return AGREE_SHORT if any(one is not None and is_short(one.dtype) for one in (pair.target, pair.golden)) else AGREE


def _family(operator: Operator) -> tuple[str, bool]:
    return operator.phase, bool(operator.path)


def _counts(operator: Operator) -> bool:
    """Whether it computes a part of the network: not a record of gradients only, no saved mask or positions, and not
    inserted by a compiler."""
    if operator.inserted or op_type_of(operator).has("constant"):
        return False
    if len(operator.tensors) == 1:
        from npucmp.relations.token_records import record_of

        record = record_of(operator, operator.tensors[0])
        if record is not None and record.is_saved:
            return False
    return any(not tensor.slot.startswith("grad:") for tensor in operator.tensors)


def _moved_operators(one: AlignedStep) -> list[Operator]:
    """Forward operators at another position than in the golden run, if both runs are ordered."""
    if not (one.target.ordered and one.golden.ordered) or one.target.format != one.golden.format or _is_graph(one):
        return []
    matches = [match for match in one.matches if match.target.phase == "forward" and match.via == "name"]
    increasing = {*longest_increasing([match.golden.order for match in matches])}
    return [match.target for at, match in enumerate(matches) if at not in increasing]


def shapes(both: AlignedRuns) -> ItemResult:
    """Outputs of matched operators with different shapes. A constant ratio indicates the batch size or the sequence
    length. It is a note if they follow from values that differ."""
    count, odd, following = 0, list[Pair](), list[Pair]()
    for one in both.aligned_steps:
        outputs = [pair for pair in one.pairs if is_output(pair) and not is_gradient(pair.operator)]
        count += len(outputs)
        differing = [pair for pair in outputs if bare_shape(pair.target) != bare_shape(pair.golden)]
        by_value = shapes_by_value(both, one) if differing else ()
        odd += [pair for pair in differing if pair.order not in by_value]
        following += [pair for pair in differing if pair.order in by_value]
    if not count:
        return unknown("no operator has a partner with outputs")
    if following and not odd:
        first = following[0]
        words = f"{len(following):,} of {count:,} outputs have another shape, which follows from values that differ"
        words += f"; first: {first.operator.name}"
        remedy = "compare the runs: npucmp compare names the first operator that differs"
        return differs(words, "note", places=len(following), first=first.operator.name, remedy=remedy)
    if not odd:
        return same(f"{count:,} outputs", places=count)
    first = odd[0]
    target, golden = _shape(first.target), _shape(first.golden)
    words = _ratio(odd) or f"first: {first.operator.name} {list(target)} against {list(golden)}"
    summary = f"{len(odd):,} of {count:,} outputs have another shape: {words}"
    return differs(
        summary, places=len(odd), first=first.operator.name, target=str(list(target)), golden=str(list(golden))
    )


def is_output(pair: Pair) -> bool:
    """Whether it is an output that both sides have."""
    both = pair.target is not None and pair.golden is not None
    return both and pair.slot.startswith("output:") and not pair.is_inside


def _shape(tensor: object) -> tuple[int, ...]:
    return getattr(tensor, "shape", ())


def _ratio(odd: Sequence[Pair]) -> str:
    """Words for the common cause of all differences: one axis, or one ratio throughout; "" if there is none."""
    axes, sizes = Counter[int](), Counter[tuple[int, int]]()
    ratios = set[tuple[int, float]]()
    for pair in odd:
        target, golden = _shape(pair.target), _shape(pair.golden)
        differing = [at for at, (a, b) in enumerate(zip(target, golden)) if a != b]
        if len(target) != len(golden) or not differing:
            return ""
        for at in differing:
            if not golden[at]:
                return ""
            axes[at] += 1
            sizes[target[at], golden[at]] += 1
            ratios.add((0, round(target[at] / golden[at], 6)))
    if len({ratio for _, ratio in ratios}) > 1:
        return ""
    a, b = min(sizes, key=lambda pair: (-sizes[pair], pair))
    axis = axes.most_common(1)[0][0]
    names = {0: "batch size", 1: "sequence length"}
    if len(axes) == 1:
        only = ["first", "second", "third"][axis] if axis < 3 else f"axis {axis}"
        return f"only the {only} axis differs, {a} against {b} ({names.get(axis, 'one axis')})"
    return f"one axis has the same ratio everywhere, {a} against {b}, most often {names.get(axis, f'axis {axis}')}"


def own_difference(both: AlignedRuns, one: AlignedStep) -> float:
    """The place, in the order of the pairs, of the first forward operator whose outputs differ although it reads the
    same, or that makes a mask or an index in one run alone; infinite if there is none, or if no inputs were
    recorded."""
    alone = min((pair.order for pair in one.pairs if _chooses_alone(pair)), default=math.inf)
    for order, members in _operators(one):
        read, written = _sides(members)
        differs = any(_sizes(pair) or both.agree(pair) is False for pair in written)
        if order > alone:
            return alone
        if differs and read and all(both.are_equal(pair) for pair in read):
            return order
    return alone


def shapes_by_value(both: AlignedRuns, one: AlignedStep) -> AbstractSet[int]:
    """The places of forward operators whose shapes differ because values do: they read other values in equal shapes,
    follow an operator that differs by itself, or have pairs of sizes that such an operator wrote."""
    start, sizes, found = own_difference(both, one), set[tuple[int, int]](), set[int]()
    for order, members in _operators(one):
        read, written = _sides(members)
        entering = {size for pair in read for size in _sizes(pair)}
        leaving = {size for pair in written for size in _sizes(pair)}
        reads_others = not entering and any(both.agree(pair) is False for pair in read)
        if order > start or reads_others or (entering and entering <= sizes):
            sizes |= entering | leaving
            if leaving:
                found.add(order)
    return found


def _operators(one: AlignedStep) -> Iterator[tuple[int, Sequence[Pair]]]:
    """The forward operators of both runs with the pairs of their tensors, in order."""
    both = (pair for pair in one.pairs if pair.target is not None and pair.golden is not None)
    calls = sorted((pair for pair in both if not is_gradient(pair.operator)), key=lambda pair: pair.order)
    for order, members in groupby(calls, key=lambda pair: pair.order):
        yield order, [*members]


def _chooses_alone(pair: Pair) -> bool:
    """Whether a forward operator of one run alone made a mask or an index from what it reads."""
    operator = pair.operator
    if (pair.target_op is not None and pair.golden_op is not None) or is_gradient(operator):
        return False
    tensor = pair.golden if pair.target is None else pair.target
    row = lookup(tensor.dtype) if tensor is not None else None
    reads = any(not one.is_output for one in operator.tensors)
    return pair.slot.startswith("output:") and reads and row is not None and row.kind in "biu"


def _sides(members: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    written = [pair for pair in members if pair.slot.startswith("output:")]
    return [pair for pair in members if not pair.slot.startswith("output:")], written


def _sizes(pair: Pair) -> set[tuple[int, int]]:
    """The sizes, of both runs, of the axes that differ; the numbers of axes if these differ."""
    target, golden = bare_shape(pair.target), bare_shape(pair.golden)
    if len(target) != len(golden):
        return {(len(target), len(golden))}
    return {(a, b) for a, b in zip(target, golden) if a != b}


def bare_shape(tensor: object) -> tuple[int, ...]:
    """The shape of a tensor without axes of length one; () without a tensor."""
    return tuple(size for size in getattr(tensor, "shape", ()) if size != 1)
