"""Pairs of the states of two trainings: tensors by name, and numbers that differ.

A golden state has no partner if the target is a training that lost it. If the target holds no state at all, it is a
file of parameters alone: nothing is lost, and a note says so.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.training_state import Number, TrainingState
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError
from npucmp.model import TensorRef, first_of
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role

EQUAL = 1e-9  # relative difference of two numbers: chosen: text and float64 of one number
_PARAMETER = re.compile(r"(.*?)\.([0-9]{1,9})\.(.+)")  # state.12.exp_avg


class StateNumber(NamedTuple):
    """A number of the state that differs; None on a side that lacks it."""

    name: str
    target: Optional[Number]
    golden: Optional[Number]


class PairedStates(NamedTuple):
    """Tensors of both states and of the golden's alone, numbers that differ, notes, and the number of what was
    compared."""

    pairs: tuple[CheckpointPair, ...] = ()
    numbers: tuple[StateNumber, ...] = ()
    notes: tuple[str, ...] = ()
    compared: int = 0


def paired_states(target: TrainingState, golden: TrainingState, context: ReadContext) -> PairedStates:
    """Pair two states by the names of their tensors and numbers. One-element tensors are numbers if the other side
    holds a number of that name."""
    if bool(target.heads) is not bool(golden.heads):
        where, missing, held = ("golden", "target", golden) if golden.heads else ("target", "golden", target)
        words = f"state of the training ({first_of([*held.heads])}) only in {where}: the {missing} holds none"
        return PairedStates(notes=(words,))
    numbers: list[dict[str, Number]] = [{**state.numbers} for state in (target, golden)]
    tensors: list[dict[str, TensorRef]] = [{**state.tensors} for state in (target, golden)]
    for at, other in ((0, 1), (1, 0)):
        for key in [*tensors[at]]:
            if key in numbers[other]:
                value = only_value(tensors[at].pop(key), context)
                if value is not None:
                    numbers[at][key] = value
    here, there = tensors
    pairs = tuple(_pair(name, here.get(name), ref) for name, ref in there.items())
    alone = [name for name in here if name not in there]
    notes = (f"only in target: {len(alone)} tensors of the training's state, the first: {alone[0]}",) if alone else ()
    odd = [StateNumber(name, numbers[0].get(name), value) for name, value in numbers[1].items()
           if not _is_same(numbers[0].get(name), value)]  # fmt: skip
    return PairedStates(pairs, tuple(odd), notes, len(pairs) + len(numbers[1]))


def _is_same(a: Optional[Number], b: Number) -> bool:
    return a is not None and (a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=EQUAL))


def only_value(ref: TensorRef, context: ReadContext) -> Optional[Number]:
    """Return the value of a tensor of one element; None for others, or if it cannot be read."""
    if ref.payload is None or math.prod(ref.shape) != 1:
        return None
    try:
        return float(next(iter(blocks(ref.payload, 1, context=context)))[0])
    except NpucmpError:
        return None


def _pair(name: str, target: Optional[TensorRef], golden: TensorRef) -> CheckpointPair:
    match = _PARAMETER.fullmatch(name)
    role = Role(int(match[2]), f"={match[1]}.#.{match[3]}", "") if match else Role(None, f"={name}", "")
    sides = [None if ref is None else _part(role, name, ref) for ref in (target, golden)]
    here, there = sides
    assert there is not None
    if here is None:
        return CheckpointPair(role, None, there, is_state=True, note="lost: only in the golden")
    return CheckpointPair(role, here, there, limit_of(here, there), is_state=True)


def _part(role: Role, name: str, ref: TensorRef) -> Part:
    return Part(role, ref.payload, name, ref.file, ref.dtype, problem=ref.problem)
