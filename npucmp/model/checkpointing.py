"""The forward that ran again in the backward pass (activation checkpointing), and the backward operators that read it.

A backward keeps the name of the first forward, but it reads the activations of the second one, where a dropout may have
drawn another mask. A stretch of forward operators behind the first backward operator ran again if none of them has a
backward of its own, and if earlier operators of the same types and shapes of inputs have their backward behind the
stretch. Equal statistics choose between several such stretches, then the latest. Torch stops a second forward as soon
as it has the last tensor that a backward reads, so that the output of its last operator may not be recorded.

msprobe 26.2 records only the first of several stretches that run again in one backward pass. If a stretch that ran
again draws random numbers, the other layers of the same operators drew them again too, without a record: what their
backward operators read is unknown from the drawing operator on.
"""

from __future__ import annotations

from itertools import groupby
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.arguments import draws_numbers
from npucmp.model.dump import Operator


class _Stretch(NamedTuple):
    operators: Sequence[Operator]
    end: int  # position behind its last operator


class ForwardsAgain(NamedTuple):
    """Forwards that ran again, by the order of the backward operator that reads them.

    recorded    the forward of the second execution
    unrecorded  the operator of another layer that ran again, if the second execution drew numbers without a record
    """

    recorded: Mapping[int, Operator]
    unrecorded: Mapping[int, Operator]


def forwards_run_again(operators: Sequence[Operator]) -> ForwardsAgain:
    """Return the forwards that ran again. The operators are those of one run, in order of execution."""
    stretches = _stretches_behind_backward(operators)
    if not stretches:
        return ForwardsAgain({}, {})
    backward: dict[str, int] = {}  # call → the last position of its backward
    for at, operator in enumerate(operators):
        if operator.phase == "backward" and operator.call:
            backward[operator.call] = at
    first = [one for one in operators if one.phase == "forward"]
    again: dict[int, Operator] = {}
    lost: dict[int, Operator] = {}
    for stretch in stretches:
        if any(one.call in backward for one in stretch.operators):
            continue
        before = [one for one in first if one.order < stretch.operators[0].order]
        partners = _first_run(stretch, before, backward)
        behind = {one.call: copy for one, copy in zip(partners or (), stretch.operators)}
        alike = _drawn_again(stretch, before, behind) if partners else {}
        for operator in operators[stretch.end :]:
            if operator.phase == "backward" and operator.call in behind:
                again[operator.order] = behind[operator.call]
            elif operator.phase == "backward" and operator.call in alike:
                lost[operator.order] = alike[operator.call]
        repeated = {one.order for one in stretch.operators}
        first = [one for one in first if one.order not in repeated]
    return ForwardsAgain(again, {order: one for order, one in lost.items() if order not in again})


def _stretches_behind_backward(operators: Sequence[Operator]) -> list[_Stretch]:
    found, at, seen = [], 0, False
    for phase, group in groupby(operators, key=lambda one: one.phase):
        stretch = [*group]
        at += len(stretch)
        if seen and phase == "forward":
            found.append(_Stretch(stretch, at))
        seen |= phase == "backward"
    return found


def _first_run(
    stretch: _Stretch, before: Sequence[Operator], backward: Mapping[str, int]
) -> Optional[Sequence[Operator]]:
    """Return the operators that ran first: of the same types and shapes, with a backward behind the stretch."""
    pending = [
        ones
        for ones in _alike_stretches(stretch, before)
        if any(backward.get(one.call, -1) >= stretch.end for one in ones)
    ]
    equal = [sum(map(_reads_the_same, ones, stretch.operators)) for ones in pending]
    return max(zip(equal, range(len(pending)), pending), default=(0, 0, None))[2]


def _alike_stretches(stretch: _Stretch, before: Sequence[Operator]) -> Iterator[Sequence[Operator]]:
    count = len(stretch.operators)
    stretches = (before[at : at + count] for at in range(len(before) - count + 1))
    return (ones for ones in stretches if all(map(_is_alike, ones, stretch.operators)))


def _drawn_again(stretch: _Stretch, before: Sequence[Operator], behind: Mapping[str, Operator]) -> dict[str, Operator]:
    """Return the calls of other layers from the first operator on that draws numbers → the operator that ran again in
    their place in the stretch."""
    draws = next((at for at, one in enumerate(stretch.operators) if draws_numbers(one)), len(stretch.operators))
    return {
        one.call: copy
        for ones in _alike_stretches(stretch, before)
        for one, copy in [*zip(ones, stretch.operators)][draws:]
        if one.call not in behind
    }


def _is_alike(one: Operator, other: Operator) -> bool:
    return one.op_type == other.op_type and [*_shapes_read(one)] == [*_shapes_read(other)]


def _shapes_read(operator: Operator) -> Iterator[tuple[str, tuple[int, ...]]]:
    return ((tensor.slot, tensor.shape) for tensor in operator.tensors if not tensor.is_output)


def _reads_the_same(one: Operator, other: Operator) -> bool:
    return figures_of(one, "input") == figures_of(other, "input")


def figures_of(operator: Operator, role: str = "") -> list[str]:
    """Return the recorded statistics and checksums of its tensors, or of those of a role; NaN equals NaN."""
    tensors = (tensor for tensor in operator.tensors if tensor.slot.startswith(role))
    return [repr((one.slot, one.shape, one.statistics, one.checksum)) for one in tensors]
