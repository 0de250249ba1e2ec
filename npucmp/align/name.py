"""Matcher by exact name, where a name is reliable.

A module path or a node name belongs to one operator; equal names are partners. A name with a call index
("Tensor.__mul__.7.forward") is only a position: one additional early call shifts all later ones. Such names are trusted
kind by kind: both runs must have the same indices with the same shapes, and the pairs must keep the order of all other
trusted names. Casts are trusted last, because a run may have one more here and one less there: one that is out of order
does not shift the operators around it. The matcher by order receives the remaining operators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from functools import partial
from itertools import chain, islice, repeat
from operator import attrgetter, lt
from typing import Callable, Optional, Sequence

from npucmp.align.shape_match import same_shapes
from npucmp.align.updates import is_update
from npucmp.dump.readers.names import file_name_of
from npucmp.model import Match, Operator, TensorRef
from npucmp.model.optypes import op_type_of

VIA = "name"
_FIELDS = ("name", "kind", "unique", "phase", "path", "order", "scope", "stack", "tensors")
_NAME, _KIND, _UNIQUE, _PHASE, _PATH, _ORDER, _SCOPE, _STACK, _TENSORS = map(Operator._fields.index, _FIELDS)
_slot, _shape, _origin = attrgetter("slot"), attrgetter("shape"), attrgetter("origin")
_match = partial(tuple.__new__, Match)


def match(target: Sequence[Operator], golden: Sequence[Operator], so_far: Sequence[Match]) -> list[Match]:
    """Match equal names; of repeated executions the newest with the newest."""
    certain = _own_names(target, golden)
    groups = _call_names(target, golden)
    trusted = _in_order(list(so_far) + certain, groups)
    counted = {operator.kind for operator in (*target, *golden)}
    for kind in [kind for kind in trusted if kind.endswith(".backward")]:
        forward = kind[: -len("backward")] + "forward"
        if forward in counted and forward not in trusted:
            del trusted[kind]  # backward calls share the index of their forward call, and its shift
    return certain + [found for group in trusted.values() for found in group]


def join(target: Sequence[Operator], golden: Sequence[Operator]) -> Optional[list[Match]]:
    """Match all operators by name if both runs have the same operators in the same order, with the same slots and
    shapes. All matchers together give this result for such runs. Return None if the runs differ in any of these, if a
    name occurs twice, or if an operator represents operators of another graph."""
    left, right = ([*zip(*run)] for run in (target, golden))
    if not left or not right or len(target) != len(golden):
        return None
    for field in (_NAME, _KIND, _UNIQUE, _PHASE, _PATH):
        if left[field] != right[field]:
            return None
    if len({*left[_NAME]}) < len(target):
        return None
    if not all(all(map(lt, orders, orders[1:])) for orders in (left[_ORDER], right[_ORDER])):
        return None
    are_called_alike = left[_SCOPE] == right[_SCOPE] and left[_STACK] == right[_STACK]
    if not are_called_alike and [*map(is_update, target)] != [*map(is_update, golden)]:
        return None
    if not _have_same_slots(left[_TENSORS], right[_TENSORS]) or _is_backward_alone(left[_KIND], left[_UNIQUE]):
        return None
    return [*map(_match, zip(target, golden, repeat(VIA), repeat(1.0), repeat(()), repeat(False)))]


def join_assembled(target: Sequence[Operator], golden: Sequence[Operator]) -> list[Match]:
    """Match the operators that were put together from several ranks: they have the names of their partners."""
    by_name = {operator.name: operator for operator in golden}
    pairs = [(one, by_name[one.name]) for one in target if one.name in by_name]
    return [Match(one, other, VIA, 1.0, (), True) for one, other in pairs if one.own_name or other.own_name]


def _have_same_slots(target: Sequence[Sequence[TensorRef]], golden: Sequence[Sequence[TensorRef]]) -> bool:
    """Return whether operators have the same slots and shapes in the same order, and none has tensors of another
    graph."""
    if [*map(len, target)] != [*map(len, golden)]:
        return False
    left, right = [*chain.from_iterable(target)], [*chain.from_iterable(golden)]
    slots = [*map(_slot, left)]
    if slots != [*map(_slot, right)] or [*map(_shape, left)] != [*map(_shape, right)] or any(map(_origin, left)):
        return False
    at = iter(slots)
    return all(len({*islice(at, len(own))}) == len(own) for own in target)


def _is_backward_alone(kinds: Sequence[str], unique: Sequence[bool]) -> bool:
    """Return whether backward calls are numbered and their forward calls are not."""
    numbered = {kind for kind, is_unique in zip(kinds, unique) if not is_unique}
    forward = {f"{kind[: -len('backward')]}forward" for kind in numbered if kind.endswith(".backward")}
    return not (forward & {*kinds}) <= numbered


def _own_names(target: Sequence[Operator], golden: Sequence[Operator]) -> list[Match]:
    """Match equal names, then names that are equal once both are escaped for file names, then modules of equal paths:
    a parallel layer has the path of the layer that it replaces, and another class."""
    found: list[Match] = []
    for key in (lambda operator: operator.name, lambda operator: file_name_of(operator.name), _path_of_call):
        taken = {match.target.order for match in found}, {match.golden.order for match in found}
        left = [operator for operator in target if operator.order not in taken[0]]
        right = [operator for operator in golden if operator.order not in taken[1]]
        found += _equal_names(left, right, key)
    return found


def _path_of_call(operator: Operator) -> str:
    """The path, phase and number of a call of a module, without its class; the name of any other operator."""
    if not operator.path or not operator.name.startswith(f"{operator.path}."):
        return operator.name
    _, _, call = operator.name[len(operator.path) + 1 :].partition(".")
    return f"{operator.path}.{call}"


def _equal_names(target: Sequence[Operator], golden: Sequence[Operator], key: Callable[[Operator], str]) -> list[Match]:
    executions: dict[str, list[Operator]] = defaultdict(list)
    for operator in golden:
        if operator.unique:
            executions[key(operator)].append(operator)
    matches = []
    for operator in reversed(target):
        others = executions.get(key(operator)) if operator.unique else None
        if others and not _pass_other_tensors(operator, others[-1]):
            matches.append(Match(operator, others.pop(), VIA, 1.0))
    return matches


def _pass_other_tensors(one: Operator, other: Operator) -> bool:
    """Return whether graphs show that two inserted operators pass on two tensors of the network: each compiler numbers
    the operators that it inserts."""
    if not (one.inserted and other.inserted):
        return False
    origins = {tensor.slot: file_name_of(tensor.origin) for tensor in other.tensors if tensor.origin}
    known = [tensor for tensor in one.tensors if tensor.origin and tensor.slot in origins]
    return any(file_name_of(tensor.origin) != origins[tensor.slot] for tensor in known)


def _call_names(target: Sequence[Operator], golden: Sequence[Operator]) -> dict[str, list[Match]]:
    """The kinds whose calls have the same indices and shapes on both sides."""
    groups = {}
    right = _by_kind(golden)
    for kind, left in _by_kind(target).items():
        partners = {operator.name: operator for operator in right.get(kind, ())}
        if len(left) != len(partners) or len(right.get(kind, ())) != len(partners):
            continue
        if all(op.name in partners and _are_alike(op, partners[op.name]) for op in left):
            groups[kind] = [Match(op, partners[op.name], VIA, 1.0) for op in left]
    return groups


def _are_alike(one: Operator, other: Operator) -> bool:
    """Return whether two operators have tensors of the same shapes, or of the same sizes in another order of axes."""
    if same_shapes(one, other):
        return True
    sizes = {tensor.slot: sorted(tensor.shape) for tensor in other.tensors}
    return all(sizes.get(tensor.slot) == sorted(tensor.shape) for tensor in one.tensors)


def _by_kind(operators: Sequence[Operator]) -> dict[str, list[Operator]]:
    kinds: dict[str, list[Operator]] = defaultdict(list)
    for operator in operators:
        if not operator.unique:
            kinds[operator.kind].append(operator)
    return kinds


def _in_order(certain: Sequence[Match], groups: dict[str, list[Match]]) -> dict[str, list[Match]]:
    """The groups whose pairs all lie on the longest chain of pairs that keeps both orders, of casts only those that
    keep the order of the others."""
    casts = {kind for kind, group in groups.items() if op_type_of(group[0].target).name == "cast"}
    chain = _chain([*certain, *(found for kind, group in groups.items() if kind not in casts for found in group)])
    on_chain = {id(found) for found in chain}
    kept = set()
    for kind, group in groups.items():
        together = [*chain, *group] if kind in casts else []
        if len(_chain(together)) == len(together) if kind in casts else all(id(found) in on_chain for found in group):
            kept.add(kind)
    return {kind: group for kind, group in groups.items() if kind in kept}


def _chain(matches: Sequence[Match]) -> list[Match]:
    """A longest chain of matches that keeps both orders."""
    ordered = sorted(matches, key=lambda found: found.target.order)
    return [ordered[i] for i in longest_increasing([found.golden.order for found in ordered])]


def longest_increasing(values: Sequence[int]) -> list[int]:
    """The indices of a longest increasing subsequence (patience sorting, O(n log n))."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for i, value in enumerate(values):
        at = bisect_left(tails, value)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [value]
        ends[at : at + 1] = [i]
    chain = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(at)
        at = before[at]
    return chain[::-1]
