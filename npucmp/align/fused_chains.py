"""The original operators of each fused operator, guessed from names and order if no graph describes the fusion.

The compiler builds the name of a fused operator from the names of its originals ("conv1bn1relu1"), or keeps the name of
the first one. In the second case, the run without fusion executed further operators right after that operator which the
fused run does not have. The chain ends with the last of them whose output has the shape of the fused output. If the
next fused operator has an unknown name, no such operators are added, because it may contain them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Mapping, Sequence

from npucmp.dump.readers.name_rules import escaped
from npucmp.model import Operator, Run


def guessed(fused: Run, plain: Run) -> tuple[Run, list[str], list[str]]:
    """Return (the fused run with originals and origins of its outputs, operators found by name, operators found by
    order)."""
    golden = [operator for operator in plain.operators if not operator.inserted]
    keys = {escaped(operator.name): at for at, operator in enumerate(golden)}
    own = [operator for operator in fused.operators if not operator.inserted]
    parts = {one.order: _parts(escaped(one.name), keys) for one in own}
    claimed = {part for found in parts.values() for part in found}
    operators: list[Operator] = []
    by_name: list[str] = []
    by_order: list[str] = []
    strange = {one.order for one, after in zip(own, own[1:]) if not parts[after.order]}
    for operator in fused.operators:
        places = sorted(keys[part] for part in parts.get(operator.order, ()))
        chain = _with_between(operator, golden, places, claimed)
        tail = (
            _followers(operator, golden[places[-1] + 1 :], claimed) if places and operator.order not in strange else []
        )
        if len(chain) + len(tail) > 1:
            (by_order if tail else by_name).append(operator.name)
            operator = _made_of(operator, [*chain, *tail])
        operators.append(operator)
    return replace(fused, operators=tuple(operators)), by_name, by_order


def _with_between(
    operator: Operator, golden: Sequence[Operator], places: Sequence[int], claimed: set[str]
) -> list[Operator]:
    """The operators at these places, and the unclaimed ones between them whose output has the shape of the fused
    output, for example a batch norm between a convolution and its ReLU."""
    if not places:
        return []
    wrote = _output_shapes(operator)[:1]
    return [
        one
        for at, one in enumerate(golden[places[0] : places[-1] + 1], places[0])
        if at in places or (escaped(one.name) not in claimed and _output_shapes(one)[:1] == wrote)
    ]


def _parts(name: str, keys: Mapping[str, int]) -> list[str]:
    """The names that a name consists of; none if it does not consist of names, or if more than one split exists."""
    if name in keys:
        return [name]
    lengths = {len(key) for key in keys if key}
    ways, ends = {len(name): 1}, {}  # by start: number of splits, end of the first name of one split
    for start in range(len(name) - 1, -1, -1):
        found = [
            start + length for length in lengths if start + length in ways and name[start : start + length] in keys
        ]
        if found:
            ways[start], ends[start] = sum(ways[end] for end in found), found[0]
    if ways.get(0) != 1:
        return []
    starts = [0]
    while ends[starts[-1]] < len(name):
        starts.append(ends[starts[-1]])
    return [name[start : ends[start]] for start in starts]


def _followers(operator: Operator, after: Sequence[Operator], claimed: set[str]) -> list[Operator]:
    """The operators that were executed right after the end of a chain and belong to no other chain."""
    found = list(takewhile(lambda one: escaped(one.name) not in claimed, after))
    while found and _output_shapes(found[-1]) != _output_shapes(operator):
        found.pop()
    return found


def _output_shapes(operator: Operator) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in operator.tensors if tensor.is_output]


def _made_of(operator: Operator, chain: list[Operator]) -> Operator:
    last = chain[-1].name
    tensors = tuple(
        tensor._replace(origin=f"{last}:{tensor.slot.partition(':')[2]}") if tensor.is_output else tensor
        for tensor in operator.tensors
    )
    return operator._replace(tensors=tensors, originals=tuple(one.name for one in chain))
