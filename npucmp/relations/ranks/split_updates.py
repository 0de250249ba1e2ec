"""Updates that are split over data-parallel ranks: flat buffers, as in ZeRO-1, and rows, as in FSDP.

FSDP splits each parameter along its first dimension, whatever tensor-parallel part of it the ranks hold. The parts are
joined before the layout of the parameter is looked for.

In ZeRO-1, each rank updates a part of one flat buffer, which holds all parameters one behind the other. A golden
parameter is a part of that buffer, which may cross the borders of ranks. Parameters before their update show where:
they are found by their values, in the order of the golden or in the reverse order. The gradient and all else that the
update makes stand at the same places.
Operators of an update are partners by type along the chain from gradient to parameter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Hashable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers import assembly
from npucmp.model import Payload, TensorRef
from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks.rank_run import RankRun

CLOSE = 0.01  # relative: chosen: a parameter in a 16-bit type and its copy in float32 are nearer
EQUAL = 0.5  # share of elements: chosen: a fault leaves as many, other values do not agree in as many
LONGEST = 16  # operators of an update: work: Adam has 12


class _Buffer(NamedTuple):
    """One flat operator that reads parameters: the operator of each rank of a group, the slot, and all its values."""

    operators: tuple[RankOperator, ...]
    slot: str
    values: Any


class SplitUpdates:
    """The flat updates of one step, group by group of ranks that share a buffer."""

    def __init__(self, ranks: Mapping[int, RankRun], golden: RankRun, groups: Sequence[Sequence[int]]) -> None:
        self._ranks, self._golden = ranks, golden
        self._known: dict[int, dict[tuple[str, Hashable], RankOperator]] = {}
        self._groups = [group for group in groups if len(group) > 1 and {*group} <= ranks.keys()]

    def of_buffers(
        self, parameters: Mapping[str, Mapping[int, HeldTensor]], missing: set[str]
    ) -> dict[str, list[RankOperator]]:
        """Return the partners of the golden's updates in `missing`, with the parts of their tensors. `parameters`: by
        the golden's update operator that reads the parameter, the forward tensor of each rank that holds it."""
        found: dict[str, list[RankOperator]] = defaultdict(list)
        for group in self._groups:
            for buffer in self._buffers(group):
                for name, place in self._places(buffer, parameters, group).items():
                    local = parameters[name][group[0]]
                    for golden, partners in self._chains(self._golden.by_name[name], buffer.operators):
                        if golden.name not in missing:
                            continue
                        if all(one.size > 1 for one in golden.outputs):
                            found[golden.name].append(_part(golden, partners, place, local.shape, group))
                        elif len(buffer.values) == local.size and local.shape[0] % len(group) == 0:
                            found[golden.name] += [_part_rows(one, local.shape, group) for one in partners]
        return {name: parts for name, parts in found.items() if len({one.rank for one in parts}) == len(parts)}

    def of_rows(self, parameters: Mapping[str, Mapping[int, HeldTensor]]) -> dict[str, list[RankOperator]]:
        """Return the partners of the golden's updates whose parameters are split by rows: one operator for each group
        of ranks. `parameters` as for `of_buffers`."""
        found: dict[str, list[RankOperator]] = defaultdict(list)
        for name, local in parameters.items():
            golden = self._golden.by_name[name]
            for group in self._groups:
                held = [self._holder(golden, local.get(rank), rank, group) for rank in group]
                operators = tuple(one for one in held if one is not None)
                if len(operators) == len(group):
                    shape = local[group[0]].shape
                    for one, partners in self._chains(golden, operators):
                        if all(each.size > 1 for each in one.outputs):
                            found[one.name].append(_rows(partners, shape, group))
                        elif shape[0] % len(group) == 0:
                            found[one.name] += [_part_rows(each, shape, group) for each in partners]
        return found

    def _holder(
        self, golden: RankOperator, parameter: Optional[HeldTensor], rank: int, group: Sequence[int]
    ) -> Optional[RankOperator]:
        """The operator that reads the rank's rows of a parameter; None if none does."""
        if parameter is None or parameter.payload is None or not parameter.shape:
            return None
        rows = -(-parameter.shape[0] // len(group))
        first, last = (min(parameter.shape[0], (group.index(rank) + more) * rows) for more in (0, 1))
        if first == last:
            return None
        payload = assembly.sliced(parameter.payload, 0, first, last)
        own = HeldTensor(parameter.operator, parameter.ref._replace(shape=payload.shape, payload=payload, file=""),
                         parameter.operator.values)  # fmt: skip
        return self._readers(rank).get((golden.key, own.content)) if own.content is not None else None

    def _readers(self, rank: int) -> dict[tuple[str, Hashable], RankOperator]:
        """The operators of a rank's update by type and by what they read."""
        if rank not in self._known:
            self._known[rank] = {(one.key, each.content): one for one in self._ranks[rank].update
                                 for each in one.inputs if each.is_float}  # fmt: skip
        return self._known[rank]

    def _buffers(self, group: Sequence[int]) -> list[_Buffer]:
        """The flat inputs that no operator wrote: parameters before their update."""

        found: list[_Buffer] = []
        flat = [[one for one in self._ranks[rank].update if _is_flat(one)] for rank in group]
        for together in zip(*flat):
            for tensors in zip(*(one.inputs for one in together)):
                run = self._ranks[group[0]]
                if run.origin(tensors[0]).how == "operator" or any(one.array is None for one in tensors):
                    continue
                if not is_exchanged(run, tensors[0].size, group):
                    continue
                if all(len(one.shape) == 1 and one.is_float and one.size > 1 for one in tensors):
                    values = np.concatenate([one.array for one in tensors])
                    found.append(_Buffer(together, tensors[0].slot, values))
        return found

    def _places(
        self, buffer: _Buffer, parameters: Mapping[str, Mapping[int, HeldTensor]], group: Sequence[int]
    ) -> dict[str, int]:
        """The first element of each parameter in a buffer, which holds them in the order of the golden or in the
        reverse order, in which their gradients get ready: the order in which more values are found."""
        known = [(name, by_rank[group[0]]) for name, by_rank in parameters.items() if group[0] in by_rank]
        orders = [_places_in_order(buffer.values, some, len(group)) for some in (known, known[::-1])]
        return max(orders, key=lambda found: sum(parameters[name][group[0]].size for name in found))

    def _chains(
        self, golden: RankOperator, operators: Sequence[RankOperator]
    ) -> list[tuple[RankOperator, tuple[RankOperator, ...]]]:
        """The operators of a parameter's update beside those of the ranks', by type in their order."""
        mine = _chain(self._golden, golden)
        chains = [_chain(self._ranks[one.rank], one) for one in operators]
        found: list[tuple[RankOperator, tuple[RankOperator, ...]]] = []
        ends = [len(chain) for chain in chains]
        for one in reversed(mine):
            places = [next((at for at in range(end - 1, -1, -1) if chain[at].key == one.key), -1)
                      for chain, end in zip(chains, ends)]  # fmt: skip
            if -1 not in places:
                found.append((one, tuple(chain[at] for chain, at in zip(chains, places))))
                ends = places
        return found[::-1]


def _places_in_order(values: Any, known: Sequence[tuple[str, HeldTensor]], ranks: int) -> dict[str, int]:
    """The first element of each parameter in a buffer that holds them in this order. A parameter whose values are not
    found stands where the one before it ends, if the next begins behind it."""
    found: dict[str, int] = {}
    start = 0
    for name, one in known:
        place = _find(one.array, values, start)
        if place is not None:
            found[name], start = place, place + one.size
    sizes = sum(one.size for name, one in known if name in found)
    if len(found) < 2 and len(found) < len(known) and len(values) - sizes >= ranks:
        return {}  # a lone match in a buffer that it does not fill may be chance
    end = 0
    for number, (name, one) in enumerate(known):
        if name not in found:
            later = next((found[other] for other, _ in known[number:] if other in found), len(values))
            if end + one.size <= later:
                found[name] = end
        end = found.get(name, end) + one.size
    return found


def is_exchanged(run: RankRun, size: int, group: Sequence[int]) -> bool:
    """Return whether the ranks of a group gather, or scatter, parts of this size: beside the whole, or as a list."""
    collectives = (one for one in run.operators if one.is_collective and tuple(group) in one.groups)
    sizes = ([each.size for each in one.tensors] for one in collectives)
    return any(some.count(size) > len(group) or (size in some and size * len(group) in some) for some in sizes)


def _is_flat(operator: RankOperator) -> bool:
    return any(len(one.shape) == 1 and one.is_float and one.size > 1 for one in operator.outputs)


def _chain(run: RankRun, operator: RankOperator) -> list[RankOperator]:
    """The operators of an update that an operator reads from, itself, those that read from it, and those that read what
    they read, in order. One number, such as the norm of all gradients, belongs to no parameter."""
    found, pending = {operator.name: operator}, [operator]
    readers: dict[Hashable, list[RankOperator]] = defaultdict(list)
    for one in run.update:
        for tensor in one.inputs:
            if _is_own(tensor):
                readers[tensor.content].append(one)
    while pending and len(found) < LONGEST:
        one = pending.pop()
        origins = [run.origin(tensor).operator for tensor in one.inputs if _is_own(tensor)]
        near = [other for other in origins if other is not None and run.is_update(other)]
        near += [other for tensor in one.tensors if _is_own(tensor) for other in readers.get(tensor.content, ())]
        for other in near:
            if other.name not in found and not other.is_collective:
                found[other.name] = other
                pending.append(other)
    return sorted(found.values(), key=lambda one: one.order)


def _is_own(tensor: HeldTensor) -> bool:
    """Whether a tensor may belong to one parameter, and is known by its content."""
    return tensor.is_float and tensor.size > 1 and tensor.content is not None


def _find(values: Any, buffer: Any, start: int) -> Optional[int]:
    """Where a parameter begins in a buffer at or behind `start`; None if it is nowhere."""

    if values is None:
        return None
    flat = values.reshape(-1)
    probe = int(np.argmax(np.abs(flat)))
    near = np.abs(buffer - flat[probe]) <= CLOSE * abs(float(flat[probe]))
    for at in np.flatnonzero(near):
        first = int(at) - probe
        if first < start or first + flat.size > buffer.size:
            continue
        own = buffer[first : first + flat.size]
        if (np.abs(own - flat) <= CLOSE * np.abs(flat)).mean() > EQUAL:
            return first
    return None


def _part(
    golden: RankOperator, operators: Sequence[RankOperator], first: int, shape: tuple[int, ...], group: Sequence[int]
) -> RankOperator:
    """The part of flat operators that belongs to one parameter, as an operator of the group's first rank."""
    tensors = []
    size = math.prod(shape)
    for one in operators[0].tensors:
        held = [tensor_in(other, one.slot) for other in operators]
        payloads = [each.payload if each is not None else None for each in held]
        whole = sum(each.size for each in held if each is not None)
        if one.size == 1 or None in payloads or whole < first + size:
            tensors.append(one.ref)
            continue
        payload = _slice([each for each in payloads if each is not None], first, size, shape)
        tensors.append(one.ref._replace(shape=shape, payload=payload, file="", statistics=None, checksum=""))
    return _operator(operators, tensors, group)


def _rows(operators: Sequence[RankOperator], shape: tuple[int, ...], group: Sequence[int]) -> RankOperator:
    """The operators of a group as one: their tensors are joined along the first dimension, and rows that are flat get
    the shape of the parameter."""
    tensors = []
    for one in operators[0].tensors:
        held = [tensor_in(other, one.slot) for other in operators]
        payloads = [each.payload for each in held if each is not None and each.payload is not None]
        is_flat = len(one.shape) == 1
        length = math.prod(shape) if is_flat else shape[0]
        if len(payloads) < len(operators) or not one.shape or (not is_flat and one.shape[1:] != shape[1:]):
            tensors.append(one.ref)
            continue
        whole = assembly.joined(payloads, 0)
        if whole.shape[0] < length:
            tensors.append(one.ref)
            continue
        payload = assembly.reshaped(assembly.sliced(whole, 0, 0, length), shape)
        tensors.append(one.ref._replace(shape=shape, payload=payload, file="", statistics=None, checksum=""))
    return _operator(operators, tensors, group)


def _part_rows(operator: RankOperator, shape: tuple[int, ...], group: Sequence[int]) -> RankOperator:
    """The operator of a rank with the rows of a parameter in their shape. Its norm is that of its own rows."""
    size = math.prod(shape) // len(group)
    refs = tuple((one.in_rows(shape[1:]) if one.size == size > 1 else one).ref for one in operator.tensors)
    return RankOperator(operator.op._replace(tensors=refs), operator.rank, operator.values)


def _operator(operators: Sequence[RankOperator], tensors: Sequence[TensorRef], group: Sequence[int]) -> RankOperator:
    found = RankOperator(operators[0].op._replace(tensors=tuple(tensors)), operators[0].rank, operators[0].values)
    found.ranks = tuple(group)
    return found


def _slice(payloads: Sequence[Payload], first: int, size: int, shape: tuple[int, ...]) -> Payload:
    flat = assembly.joined(payloads, 0)
    return assembly.reshaped(assembly.sliced(flat, 0, first, first + size), shape)
