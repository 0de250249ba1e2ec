"""Matcher of calls of an optimizer, and of gradient clipping, by the parameter that they update.

Such calls follow each other parameter by parameter, and their names contain only a call index. A parameter that is in
another group, or on one side only, shifts the calls of all later parameters. If the calls of both sides differ in kind
or shape, calls with equal inputs and outputs are partners in any order. So are calls next to them that read no data of
their own (the step counter). The module in the dump or the call stack identifies a call of an optimizer.

If a call takes a list of tensors (`_foreach_norm`), its entries are matched in the same way: see `by_entries`.

Entries of lists keep the slot of the target; `golden_slot` has that of the golden, and entries without a partner come
last. If the dump records statistics, a note names the parameters that have calls in one run only. A vector of the norms
of all parameters still differs if the groups differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Hashable, Iterator, Mapping, Optional, Sequence

from npucmp.align.shape_match import output_shapes, signature
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.model import Match, Operator, Pair, TensorRef, first_of
from npucmp.model.optypes import is_gradient, op_type_of

VIA = "content"
CONFIDENCE = 0.9  # confidence: chosen: of operators that read similar values and leave no choice
LIKE = 0.5  # similarity of two partners: chosen: half of that of equal values
_SHOWN = 3  # parameters in a message: work
_SCOPES = ("optimizer", "clip_grad")  # as construct.json of msprobe names them
ENTRY = re.compile(r"(.+\.|output:)([0-9]{1,9})", re.ASCII)
_SOURCE = re.compile(r"[/\\](?:optim|clip_grad)\w*(?:[/\\]|\.py)")


def match(
    target: Sequence[Operator], golden: Sequence[Operator], _: Sequence[Match], context: ReadContext = ANYWHERE
) -> list[Match]:
    """Match calls of an optimizer; return nothing if both sides have the same kinds and shapes in the same order."""
    left, right = ([one for one in side if is_update(one)] for side in (target, golden))
    if [(one.kind, signature(one)) for one in left] == [(one.kind, signature(one)) for one in right]:
        return []
    found: dict[int, int] = {}
    for kind in {one.kind for one in left}:
        rows = [at for at, one in enumerate(left) if one.kind == kind]
        columns = [at for at, one in enumerate(right) if one.kind == kind]
        if len(rows) == len(columns) and all(any(slot.endswith(".") for slot in _lists(left[at])) for at in rows):
            found.update(zip(rows, columns))  # each call takes all parameters of a group
            continue
        matched = partners([left[at] for at in rows], [right[at] for at in columns], context)
        found.update((rows[i], columns[j]) for i, j in matched.items())
    _extend(found, left, right)
    return [Match(left[i], right[j], VIA, CONFIDENCE) for i, j in sorted(found.items())]


def is_update(operator: Operator) -> bool:
    """Return whether an optimizer, or gradient clipping, called an operator."""
    if operator.phase == "backward" or operator.path:
        return False
    return operator.scope in _SCOPES or _is_of_optimizer(operator.stack)


@lru_cache(maxsize=1 << 12)
def _is_of_optimizer(stack: tuple[str, ...]) -> bool:
    return any(_SOURCE.search(frame) for frame in stack)


def partners(left: Sequence[Operator], right: Sequence[Operator], context: ReadContext) -> dict[int, int]:
    """The operators of both sides that are each other's unique best match by content."""
    if not left or not right:
        return {}
    from npucmp.align.content_match import content

    like = content(left, right, context).like
    found = {}
    for i, row in enumerate(like):
        j = int(row.argmax())
        best = row[j]
        if best >= LIKE and (row == best).sum() == (like[:, j] >= best).sum() == 1:
            found[i] = j
    return found


def _extend(found: dict[int, int], left: Sequence[Operator], right: Sequence[Operator]) -> None:
    """Add calls of one kind and shape next to partners: first the preceding ones, with which the calls of a parameter
    begin, then the following ones."""
    taken = {*found.values()}
    for step in (-1, 1):
        for i, j in sorted(found.items(), reverse=step < 0):
            i, j = i + step, j + step
            while 0 <= i < len(left) and 0 <= j < len(right) and i not in found and j not in taken:
                if (left[i].kind, output_shapes(left[i])) != (right[j].kind, output_shapes(right[j])):
                    break
                found[i] = j
                taken.add(j)
                i, j = i + step, j + step


@dataclass(frozen=True)
class _List:
    """The entries of a list of tensors by their numbers."""

    entries: Mapping[int, TensorRef]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [one.shape for one in self.entries.values()]


def by_entries(found: Match, context: ReadContext = ANYWHERE) -> Match:
    """If the shapes show that two lists of tensors differ, move the golden's entries to the slots of their partners.
    Entries without a partner follow all others."""
    if not any("." in one.slot for one in found.target.tensors):
        return found
    lists = _lists(found.target), _lists(found.golden)
    both = [slot for slot in lists[0] if slot in lists[1]]
    odd = next((one for one in both if one.endswith(".") and lists[0][one].shapes != lists[1][one].shapes), None)
    if odd is None:
        return found
    numbers = _numbers(found, lists[0][odd], lists[1][odd], context)
    of_length = len(lists[0][odd].entries), len(lists[1][odd].entries)
    moved = {}
    for slot in both:
        if (len(lists[0][slot].entries), len(lists[1][slot].entries)) == of_length:
            for number, entry in lists[1][slot].entries.items():
                moved[entry.slot] = entry.in_slot(f"{slot}{numbers[number]}")
    tensors = tuple(moved.get(one.slot, one) for one in found.golden.tensors)
    return found._replace(golden=found.golden._replace(tensors=tensors))


def _lists(operator: Operator) -> dict[str, _List]:
    found: dict[str, dict[int, TensorRef]] = defaultdict(dict)
    for one in operator.tensors:
        entry = ENTRY.fullmatch(one.slot)
        if entry:
            found[entry[1]][int(entry[2])] = one
    return {slot: _List(entries) for slot, entries in found.items() if len(entries) > 1}


def _numbers(found: Match, target: _List, golden: _List, context: ReadContext) -> dict[int, int]:
    """The number in the target's list of each golden entry: by content, then in order by shape."""
    sides = [
        [one._replace(tensors=(entry.in_slot("input:0"),)) for entry in entries.entries.values()]
        for one, entries in ((found.target, target), (found.golden, golden))
    ]
    there, here = [*golden.entries], [*target.entries]
    numbers = {there[j]: here[i] for i, j in partners(sides[0], sides[1], context).items()}
    left = [number for number in here if number not in {*numbers.values()}]
    behind = max(here, default=-1)
    for number in there:
        if number not in numbers:
            shape = golden.entries[number].shape
            other: Optional[int] = next((one for one in left if target.entries[one].shape == shape), None)
            if other is None:
                behind += 1
                other = behind
            else:
                left.remove(other)
            numbers[number] = other
    return numbers


def one_sided_updates(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield in words the parameters for which only one side has calls of the optimizer, or entries of their lists. The
    names come from tensors with the same record."""
    for side in ("target", "golden"):
        own = [(pair.target, pair.target_op) if side == "target" else (pair.golden, pair.golden_op) for pair in pairs]
        alone = [one for one, pair in zip(own, pairs) if one[0] and not (pair.target and pair.golden)]
        marks = {_mark(tensor) for tensor, operator in alone if tensor and operator and is_update(operator)} - {None}
        if marks:
            named = {_mark(tensor): name for tensor, operator in own if (name := parameter_name(tensor, operator))}
            both = [(one[0], one[1]) for one, pair in zip(own, pairs) if pair.target and pair.golden]
            marks -= {_mark(tensor) for tensor, operator in both if tensor and operator and is_update(operator)}
            found = sorted({named[mark] for mark in marks if mark in named})
            if found:
                yield f"only the {side} has calls of the optimizer for {first_of(found, _SHOWN)}"


def _mark(tensor: Optional[TensorRef]) -> Hashable:
    """Return the record of a tensor, if it identifies the tensor."""
    if tensor is None or (tensor.statistics is not None and tensor.statistics.max == tensor.statistics.min):
        return None
    known = tensor.identity or (tensor.statistics if tensor.statistics and None not in tensor.statistics else None)
    return (tensor.shape, known) if known else None


def parameter_name(tensor: Optional[TensorRef], operator: Optional[Operator]) -> str:
    """The name of the parameter whose value or gradient a tensor is; "" for any other tensor."""
    if tensor is None or operator is None:
        return ""
    role, _, key = tensor.slot.partition(":")
    if role in ("param", "grad"):
        return f"{operator.path.partition('.')[2]}.{key}" if operator.path else f"{operator.name} {tensor.slot}"
    read_or_written = "output" if is_gradient(operator) else "input"  # a backward writes gradients in the same order
    places = {f"{read_or_written}:{place}" for place in op_type_of(operator).parameters}
    return f"{operator.name} {tensor.slot}" if tensor.slot in places else ""
