"""The structure of a checkpoint by counting: stages, ranks of a stage, numbers of layers and experts. No value is read.

Ranks that hold an embedding are one stage; later ranks are further stages, whose layers are numbered on if they begin
with 0. The rows of the router over the experts of a rank count the expert-parallel groups of a stage; its other ranks
are tensor parallel. Ranks stand in the order of their numbers: tensor parallel fastest, then experts, then stages.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.readers.checkpoint_files import CheckpointFiles, CheckpointRank
from npucmp.errors import UsageError
from npucmp.model import TensorRef
from npucmp.relations.weights.free_numbers import NetworkSettings
from npucmp.relations.weights.role import NamedRole, Role, is_buffer, named_role, named_roles, renumbered

CODES = ("int8", "float8_e4m3fn", "float8_e5m2", "hifloat8")  # types of codes, whose values need a scale


class RankPlace(NamedTuple):
    """The coordinates of a rank: its stage, expert-parallel group and tensor-parallel number."""

    stage: int
    group: int
    shard: int


class Piece(NamedTuple):
    """The tensor of one rank: its name with the number of its layer in the network, and the scale of its codes."""

    place: RankPlace
    rank: int
    name: str
    ref: TensorRef
    scale: Optional[TensorRef] = None


class HeldWeight(NamedTuple):
    """A parameter and its pieces, by place."""

    role: Role
    named: NamedRole
    pieces: tuple[Piece, ...]


class CheckpointStructure(NamedTuple):
    """A checkpoint by roles. `sizes` are tensor parallel, expert parallel, stages; `buffers` the names of tensors that
    are no parameters; `stated` what its configuration states."""

    checkpoint: CheckpointFiles
    held: Mapping[Role, HeldWeight]
    sizes: RankPlace
    buffers: tuple[str, ...]
    stated: NetworkSettings

    @property
    def shards(self) -> int:
        return self.sizes.shard


def structure_of(checkpoint: CheckpointFiles, side: str) -> CheckpointStructure:
    """Return the structure of a checkpoint. Raises UsageError if its ranks are not complete stages."""
    roles = [[named_roles(chunk) for chunk in rank.every] for rank in checkpoint.ranks]
    places = _places(checkpoint.ranks, [[one.role for chunk in rank for one in chunk.values()] for rank in roles], side)
    sizes = RankPlace(*(max(values) + 1 for values in zip(*places)))
    offsets = _layer_offsets(places, roles)
    found: dict[Role, list[Piece]] = defaultdict(list)
    names: dict[Role, NamedRole] = {}
    buffers: dict[str, None] = {}
    order = sorted(range(len(places)), key=places.__getitem__)
    for number in order:
        place, rank = places[number], checkpoint.ranks[number]
        first_expert = _first_expert(place, sizes, [one.role for chunk in roles[number] for one in chunk.values()])
        for at, (chunk, named) in enumerate(zip(rank.every, roles[number])):
            scales = {one.role: chunk[name] for name, one in named.items() if one.role.part == "scale"}
            codes = {one.role for name, one in named.items() if not one.role.part and chunk[name].dtype in CODES}
            used = {role for role in scales if role._replace(part="") in codes}
            for name, one in named.items():
                if is_buffer(name, chunk[name].shape):
                    buffers[name] = None
                if one.role in used:
                    continue
                role = _in_network(one.role, offsets[place.stage, at], first_expert)
                own = name if role.layer is None else renumbered(name, role.layer)
                scale = scales.get(one.role._replace(part="scale"))
                scale = scale if chunk[name].dtype in CODES else None
                found[role].append(Piece(place, number, own, chunk[name], scale))
                names.setdefault(role, one)
    held = {role: HeldWeight(role, names[role], tuple(pieces)) for role, pieces in found.items()}
    return CheckpointStructure(checkpoint, held, sizes, tuple(buffers), NetworkSettings.of(checkpoint.config))


def query_rows(side: CheckpointStructure, layer: Optional[int], turned: bool) -> int:
    """Return the rows of q by the columns of the matrix that reads the heads; 0 if the side does not show it."""
    found = side.held.get(Role(layer, "o", "weight"))
    if found is None or len(found.pieces[0].ref.shape) != 2:
        return 0
    shape = found.pieces[0].ref.shape
    return (shape[0] if turned else shape[1]) * side.shards


def is_turned(side: CheckpointStructure) -> bool:
    """Return whether a side stores matrices as (in, out), by most of those that are not square: the fused q, k, v and
    the first matrix of an MLP read the hidden size, the second writes it. If it is not known, the first two have more
    outputs than inputs, the second has fewer."""
    votes, hidden = 0, hidden_size(side)
    for role, held in side.held.items():
        shape = held.pieces[0].ref.shape
        if held.named.convention is None or not held.named.convention.turned or len(shape) != 2 or role.part:
            continue
        if role.kind in ("qkv", "fc", "fc2") and shape[0] != shape[1]:
            is_second = role.kind == "fc2"
            if hidden in shape:  # ranks hold a part of the other axis
                votes += 1 if (shape[1] == hidden) is is_second else -1
            else:
                votes += 1 if (shape[0] > shape[1]) is is_second else -1
    return votes > 0


def hidden_size(side: CheckpointStructure) -> int:
    """Return the length of the norms of the layers, which all ranks hold whole; 0 without one."""
    norms = (held for role, held in side.held.items() if role.kind in ("n1", "n2", "nf") and role.param == "weight")
    shapes = (held.pieces[0].ref.shape for held in norms if not held.role.part)
    return next((shape[0] for shape in shapes if len(shape) == 1), 0)


def holds_turned_experts(side: CheckpointStructure, layer: Optional[int]) -> bool:
    """Return whether the stacked experts of a layer are stored as (in, out), by the shapes of their matrices."""
    found = [side.held.get(Role(layer, kind, "weight")) for kind in ("gu_stack", "down_stack")]
    shapes = [held.pieces[0].ref.shape for held in found if held is not None]
    if len(shapes) < len(found) or {*map(len, shapes)} != {3}:
        return False
    (_, rows, columns), (_, hidden, size) = shapes
    return (rows, columns) != (2 * size, hidden) and (rows, columns) == (size, 2 * hidden)


def _in_network(role: Role, first_layer: int, first_expert: int) -> Role:
    layer = None if role.layer is None else role.layer + first_layer
    expert = None if role.expert is None else role.expert + first_expert
    return role._replace(layer=layer, expert=expert)


def _places(ranks: Sequence[CheckpointRank], roles: Sequence[Sequence[Role]], side: str) -> list[RankPlace]:
    """Return the place of each rank."""
    if len(ranks) == 1:
        return [RankPlace(0, 0, 0)]
    holds = [any(role.kind == "embed" and not role.part for role in own) for own in roles]
    widths = {len(rank.place) for rank in ranks}
    if widths == {3}:
        return [RankPlace(rank.place[1], rank.place[2], rank.place[0]) for rank in ranks]
    if widths == {2}:
        swap = all(holds)  # every rank holds an embedding: the second number counts groups of experts
        return [RankPlace(0, rank.place[1], rank.place[0]) if swap else RankPlace(rank.place[1], 0, rank.place[0])
                for rank in ranks]  # fmt: skip
    numbers = [rank.place[0] for rank in ranks]
    if numbers != [*range(len(numbers))]:
        raise UsageError(f"the {side} holds ranks {', '.join(map(str, numbers))}: ranks between them are missing")
    stage = sum(holds) or len(ranks)
    if len(ranks) % stage:
        raise UsageError(f"the {side} has {len(ranks)} ranks, of which {stage} hold an embedding: ranks are missing")
    groups = _groups(roles, ranks, stage)
    shards = stage // groups
    return [RankPlace(at // stage, at % stage // shards, at % shards) for at in range(len(ranks))]


def _groups(roles: Sequence[Sequence[Role]], ranks: Sequence[CheckpointRank], stage: int) -> int:
    """Return the number of expert-parallel groups: experts of the router over experts of a rank, 1 without experts."""
    for own, rank in zip(roles, ranks):
        experts = len({role.expert for role in own if role.expert is not None})
        for chunk in rank.every:
            for name, ref in chunk.items():
                role = named_role(name).role
                if role.kind in ("gu_stack", "down_stack") and not role.part and ref.shape:
                    experts = experts or ref.shape[0]
        routers = [ref.shape[0] for chunk in rank.every for name, ref in chunk.items()
                   if named_role(name).role.kind == "router" and ref.shape]  # fmt: skip
        if experts and routers:  # slots beyond the experts make more of both
            return next(
                (count for count in range(1, stage + 1) if stage % count == 0 and count * experts >= routers[0]), 1
            )
    return 1


def _layer_offsets(
    places: Sequence[RankPlace], roles: Sequence[Sequence[Mapping[str, NamedRole]]]
) -> dict[tuple[int, int], int]:
    """Return the number of the first layer of each stage and chunk: 0 if layers keep their number."""
    found: dict[tuple[int, int], int] = {}
    at = 0
    for chunk, stage, own in _stage_layers(places, roles):
        again = bool(own) and min(own) == 0 and bool(found)
        found[stage, chunk] = at if again else 0
        at += len(own)
    return found


def _stage_layers(
    places: Sequence[RankPlace], roles: Sequence[Sequence[Mapping[str, NamedRole]]]
) -> Iterator[tuple[int, int, set[int]]]:
    """Yield (chunk, stage, its layers), in the order of the network: the first chunks of all stages come first."""
    chunks = max(map(len, roles))
    for chunk in range(chunks):
        for stage in sorted({place.stage for place in places}):
            own = {
                one.role.layer
                for place, rank in zip(places, roles)
                if place.stage == stage and chunk < len(rank)
                for one in rank[chunk].values()
                if one.role.layer is not None
            }
            yield chunk, stage, own


def _first_expert(place: RankPlace, sizes: RankPlace, roles: Sequence[Role]) -> int:
    """Return the number of the first expert of a rank: 0 unless each group numbers its experts from 0."""
    experts = {role.expert for role in roles if role.expert is not None}
    is_local = bool(experts) and sizes.group > 1 and max(experts) < len(experts)
    return place.group * len(experts) if is_local else 0
