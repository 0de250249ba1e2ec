"""The canonical parts of a checkpoint: q, k, v, gate, up, each expert. Pieces of ranks are joined, fused tensors are
cut.

A part is a payload that is read block by block; nothing is read here. A tensor that both sides fuse alike stays whole.

Codes times their scale: a scale of a tensor, of each row, or of blocks of rows and columns.

The size of a block comes from the configuration, else from the shapes: 128 where it fits (DeepSeek's checkpoints), else
the power of two that fits, else an equal division.
"""

from __future__ import annotations

from typing import Iterator, Mapping, Optional, Sequence

from npucmp.dump.readers.assembly import joined, sliced
from npucmp.dump.readers.strides import c_strides
from npucmp.dump.readers.weight_payloads import ENTRIES, paired_rows, scaled, selected, stack_entries, transposed
from npucmp.errors import NpucmpError, UnsupportedError
from npucmp.model import Payload, TensorRef
from npucmp.relations.weights.expert_order import has_expert_map
from npucmp.relations.weights.free_numbers import NetworkSettings
from npucmp.relations.weights.part import MakePart, Part, Shape, add_part
from npucmp.relations.weights.role import COLUMN, ROW, Role
from npucmp.relations.weights.structure import (
    CODES,
    CheckpointStructure,
    HeldWeight,
    Piece,
    hidden_size,
    holds_turned_experts,
    is_turned,
    query_rows,
)

_POWERS = 16  # powers of two: chosen: blocks are shorter than 65,536 elements
USUAL = 128  # elements of a block: definition: weight_block_size of DeepSeek-V3


def scaled_matrix(codes: Payload, scale: TensorRef, stated: Optional[tuple[int, int]]) -> Payload:
    """Return codes (rows, columns) or (rows,) times a scale. Raises UnsupportedError for a scale of another shape."""
    found = scale.payload
    if found is None or scale.problem:
        raise UnsupportedError(f"a scale that cannot be read: {scale.problem or 'without values'}")
    if len(codes.shape) != 2:
        raise UnsupportedError(f"codes of shape {list(codes.shape)} with a scale")
    rows, columns = codes.shape
    shape = found.shape
    if all(size == 1 for size in shape):
        grid = found._replace(shape=(1, 1), strides=())
    elif shape in ((rows,), (rows, 1)):
        grid = found._replace(shape=(rows, 1), strides=())
    elif len(shape) == 2:
        grid = found
    else:
        raise UnsupportedError(f"a scale of shape {list(shape)} of codes of shape {list(codes.shape)}")
    if found.strides and grid.shape != shape:
        raise UnsupportedError(f"a strided scale of shape {list(shape)}")
    block = tuple(
        block_of(size, count, one) for size, count, one in zip((rows, columns), grid.shape, stated or (None, None))
    )
    grid = grid._replace(strides=grid.strides or c_strides(grid.shape))
    return scaled(codes, grid, (block[0], block[1]))


def block_of(size: int, count: int, stated: Optional[int] = None) -> int:
    """Return the length of a block if `size` places have `count` scales. Raises UnsupportedError if none fits."""
    if count == size:
        return 1
    if count == 1:
        return max(1, size)
    powers = [1 << at for at in range(1, _POWERS)]
    for length in (stated, USUAL, *powers, size // count if count and size % count == 0 else None):
        if length and -(-size // length) == count:
            return length
    raise UnsupportedError(f"{count} scales of {size} places")


MATRICES = frozenset("q k v qkv o fc fc2 gate up gu down".split())  # kinds that Conv1D stores turned
HALVES = {"gu": ("gate", "up"), "shared_gu": ("shared_gate", "shared_up"), "fc1": ("gate", "up"),
          "shared_fc1": ("shared_gate", "shared_up")}  # fmt: skip
_NEEDS = {"qkv": ("q", "k", "v"), "qkv_groups": ("q", "k", "v"), "qkv_a": ("q_a", "kv_a"), **HALVES,
          "gu_stack": ("gate", "up"), "down_stack": ("down",)}  # fmt: skip


class PartBuilder:
    """Builds the parts of one side. `other` is the structure of the other side, `settings` those of the network.
    `cuts_halves`: gate and up are cut even if both sides fuse them; `interleaved`: their rows alternate."""

    def __init__(
        self,
        own: CheckpointStructure,
        other: CheckpointStructure,
        settings: NetworkSettings,
        up_first: bool = False,
        cuts_halves: bool = False,
        interleaved: bool = False,
    ) -> None:
        self._own, self._other, self._settings = own, other, settings
        self._up_first, self._cuts_halves, self._interleaved = up_first, cuts_halves, interleaved
        self.turned = is_turned(own)
        self.open_groups: list[Part] = []  # q, k and v per query group, whose number is not known yet
        self.lines: dict[str, int] = {}  # relations in words, and how many tensors they hold for

    def parts(self) -> dict[Role, Part]:
        """Return the parts by role; those per query group are in `open_groups`."""
        found: dict[Role, Part] = {}
        for role, held in self._own.held.items():
            for part in self._parts_of(role, held):
                add_part(found, part)
        if self.turned and not is_turned(self._other):
            self._count("Conv1D: matrices transposed to (out, in)")
        return found

    def _count(self, words: str) -> None:
        self.lines[words] = self.lines.get(words, 0) + 1

    def _parts_of(self, role: Role, held: HeldWeight) -> Iterator[Part]:
        broken = next((piece for piece in held.pieces if piece.ref.problem or piece.ref.payload is None), None)
        lacking = self._lacking_rank(role, held)
        try:
            if broken is not None:
                yield from self._problems(role, held, broken.ref.problem or "without values")
            elif lacking is not None:
                yield from self._problems(role, held, f"{lacking} has no such tensor")
            elif role.part or not self._is_cut(role):
                yield self._whole(self._final_role(role), held)
            elif role.kind == "qkv_groups":
                self.open_groups.append(self._whole(role, held))
            else:
                yield from self._cut(role, held)
        except (NpucmpError, ValueError) as error:
            yield from self._problems(role, held, str(error))

    def _lacking_rank(self, role: Role, held: HeldWeight) -> Optional[str]:
        """Return the place of a rank that lacks a tensor which all ranks of its stage hold, in words; None if none
        does. Experts are held by one expert-parallel group."""
        if role.part or held.named.convention is None:
            return None
        found = {piece.place for piece in held.pieces}
        sizes = self._own.sizes
        groups = {place.group for place in found} if role.expert is not None else {*range(sizes.group)}
        for stage in sorted({place.stage for place in found}):
            for group in sorted(groups):
                for shard in range(sizes.shard):
                    if (stage, group, shard) not in found:
                        return f"tensor-parallel rank {shard} of stage {stage}"
        return None

    def _problems(self, role: Role, held: HeldWeight, because: str) -> Iterator[Part]:
        """Yield the parts of a tensor that cannot be built, with the reason."""
        first = held.pieces[0]
        whole = Part(role, None, first.name, first.ref.file, first.ref.dtype, problem=because)
        kinds = _NEEDS[role.kind] if not role.part and self._is_cut(role) else ()
        experts: Sequence[Optional[int]] = [role.expert]
        if role.kind in ("gu_stack", "down_stack"):
            experts = range(self._expert_count(role.layer) or next(iter(first.ref.shape), 0))
        if len(experts) > ENTRIES:
            experts = ()
        for expert in experts if kinds else ():
            for kind in kinds:
                slot = kind if expert is None else f"{kind}.{expert}"
                yield whole._replace(role=role._replace(kind=kind, expert=expert), slot=slot)
        if not kinds or not experts:
            yield whole

    def _is_cut(self, role: Role) -> bool:
        """Return whether a fused tensor has to be cut: the other side does not fuse it alike, or on other ranks."""
        if role.kind not in _NEEDS:
            return False
        if role.kind in ("fc1", "shared_fc1") and not self._is_gated(role):
            return False
        alike = self._other.held.get(role)
        if alike is None:
            return role.kind == "fc1" or any(self._has(self._other, role, kind) for kind in _kinds_beside(role))
        if role.kind == "qkv_groups":
            return False
        differ = self._own.sizes != self._other.sizes
        is_stack = role.kind in ("gu_stack", "down_stack")
        if is_stack:
            if has_expert_map(self._own) or has_expert_map(self._other):
                return True
            forms = [(side.held[role].pieces[0].ref.shape, holds_turned_experts(side, role.layer))
                     for side in (self._own, self._other)]  # fmt: skip
            if forms[0] != forms[1]:
                return True  # experts are turned, or a side holds copies of experts
        sharded = max(self._own.shards, self._other.shards) > 1 or is_stack
        return (differ and sharded) or (self._cuts_halves and role.kind in (*HALVES, "gu_stack"))

    @staticmethod
    def _has(side: CheckpointStructure, role: Role, kind: str) -> bool:
        own = role._replace(kind=kind)
        return own in side.held or own._replace(expert=0) in side.held or own._replace(expert=None) in side.held

    def _is_gated(self, role: Role) -> bool:
        """Return whether the first matrix of an MLP holds a gate, by the columns of the second: it has twice as many
        rows."""
        second = {"fc1": "fc2", "shared_fc1": "shared_down"}[role.kind]
        first = self._own.held.get(role._replace(param="weight"))
        last = self._own.held.get(role._replace(kind=second, param="weight"))
        if first is None or last is None:
            return False
        rows, columns = first.pieces[0].ref.shape, last.pieces[0].ref.shape
        return len(columns) == 2 and bool(rows) and rows[0] == 2 * columns[1]

    def _final_role(self, role: Role) -> Role:
        """Return the canonical role: the second matrix of a gated MLP is `down`, the first without a gate `fc`."""
        if role.kind == "fc2" and role._replace(kind="fc1", param="weight") in self._own.held:
            gated = self._is_gated(role._replace(kind="fc1", param="weight"))
            return role._replace(kind="down") if gated else role
        return role._replace(kind="fc") if role.kind == "fc1" and not self._is_gated(role) else role

    # pieces

    def _values(self, piece: Piece) -> Payload:
        """Return the values of a piece: codes times their scale."""
        payload = piece.ref.payload
        assert payload is not None
        if piece.scale is not None:
            payload = scaled_matrix(payload, piece.scale, self._settings.block)
        return payload

    def _matrix(self, role: Role, payload: Payload) -> Payload:
        return transposed(payload) if self.turned and role.kind in MATRICES else payload

    def _whole(self, role: Role, held: HeldWeight) -> Part:
        """Return a tensor of its own: one piece, the pieces of ranks side by side, or one of several copies."""
        return self._join(role, held, [self._matrix(role, self._values(piece)) for piece in held.pieces], "")

    def _join(self, role: Role, held: HeldWeight, values: Sequence[Payload], slot: str) -> Part:
        """Return a part from the values of all pieces, in the order of the pieces."""
        groups: dict[tuple[int, int], list[int]] = {}
        for at, piece in enumerate(held.pieces):
            groups.setdefault(piece.place[:2], []).append(at)
        sets = [*groups.values()]
        if len({piece.ref.dtype for piece in held.pieces}) > 1:
            raise UnsupportedError("ranks hold it in unequal types")
        axis = self._axis(role, values, sets[0])
        first = held.pieces[sets[0][0]]
        no_shards: tuple[Payload, ...] = ()
        if axis is None:
            main, shards = values[0], no_shards
            copies = tuple(values[1:])
        else:
            sets = self._heads_once(role, values, sets)
            if len({(*one.shape[:axis], *one.shape[axis + 1 :]) for one in values}) > 1:
                raise UnsupportedError(f"ranks hold shapes that do not fit side by side along axis {axis}")
            shards = tuple(values[at] for at in sets[0])
            main = joined(shards, axis)
            copies = tuple(joined([values[at] for at in own], axis) for own in sets[1:])
        names = tuple((held.pieces[at].rank, held.pieces[at].name) for at in (sets[0] if axis is not None else [0]))
        bare = any(piece.ref.dtype in CODES and piece.scale is None for piece in held.pieces)
        words = f"concat(ranks {names[0][0]}-{names[-1][0]}, axis {axis})" if axis is not None else ""
        dtype = first.ref.dtype
        part = Part(role, main, first.name, first.ref.file, dtype, slot, names, shards, axis or 0, copies, bare, words)
        return part._replace(scale_dtype=first.scale.dtype if first.scale is not None else "")

    def _heads_once(self, role: Role, values: Sequence[Payload], sets: list[list[int]]) -> list[list[int]]:
        """Return the pieces that make a tensor, and those of its copies. If there are fewer key and value heads than
        ranks, neighbouring ranks hold the same head: the rows are a multiple of the other side's."""
        want = self._other_shape(role)
        rows = sum(values[at].shape[0] for at in sets[0])
        if role.kind not in ("k", "v") or not want or rows == want[0] or rows % want[0]:
            return sets
        times = rows // want[0]
        if len(sets[0]) % times:
            return sets
        self._count(f"heads of k and v on {times} ranks each")
        return [own[at::times] for own in sets for at in range(times)]

    def _axis(self, role: Role, values: Sequence[Payload], own: Sequence[int]) -> Optional[int]:
        """Return the axis along which ranks hold a part, None if each holds all of it."""
        shape = values[own[0]].shape
        if len(own) == 1 or not shape:
            return None
        want = self._other_shape(role)
        if want is not None and want == shape:
            return None
        whole = want[-1] if want is not None else hidden_size(self._own)
        if role.kind in ("embed", "pos") and len(shape) > 1 and whole == len(own) * shape[-1]:
            return 1  # Meta's embedding is cut along its columns
        if role.kind in COLUMN or role.kind in ("shared_gate", "shared_up"):
            return 0
        if role.kind in ROW or role.kind == "shared_down":
            return 1 if len(shape) > 1 else None
        if role.kind in ("gu_stack", "down_stack"):
            return 1 if role.kind == "gu_stack" else 2
        if want is not None and len(want) == len(shape):
            unlike = [axis for axis, (a, b) in enumerate(zip(shape, want)) if a != b]
            if len(unlike) == 1 and want[unlike[0]] == len(own) * shape[unlike[0]]:
                return unlike[0]
        return None

    def _other_shape(self, role: Role) -> Optional[Shape]:
        """Return the shape of the same tensor of the other side, if one rank holds it."""
        found = self._other.held.get(role)
        return found.pieces[0].ref.shape if found is not None and self._other.shards == 1 else None

    # fused tensors

    def _cut(self, role: Role, held: HeldWeight) -> Iterator[Part]:
        if role.kind in ("gu_stack", "down_stack"):
            yield from self._unstacked(role, held)
            return
        kinds = _NEEDS[role.kind]
        if not all(piece.ref.shape for piece in held.pieces):
            raise UnsupportedError("a fused tensor of one number")
        scales = [_scales_of_parts(piece, len(kinds)) for piece in held.pieces]
        values = [
            piece.ref.payload if own and piece.ref.payload else self._matrix(role, self._values(piece))
            for piece, own in zip(held.pieces, scales)
        ]
        cuts: list[tuple[int, ...]]
        if role.kind == "qkv":
            cuts = [self._qkv_rows(role, one.shape[0]) for one in values]
            words = "q, k and v one behind the other"
        elif role.kind == "qkv_a":
            first = self._size_of(role, "q_a", "q_a_norm")
            cuts = [(first, one.shape[0] - first) for one in values]
            words = "low-rank parts of q and of k and v one behind the other"
        else:
            values = [*map(self._halves, values)]
            cuts = [(one.shape[0] // 2, one.shape[0] - one.shape[0] // 2) for one in values]
            words = self._order_words() + (" on each rank" if self._own.shards > 1 else "")
        if self._up_first and role.kind in HALVES:
            kinds = kinds[::-1]
        self._count(words)
        for number, kind in enumerate(kinds):
            own = role._replace(kind=kind)
            pieces = [sliced(one, 0, sum(cut[:number]), sum(cut[: number + 1])) for one, cut in zip(values, cuts)]
            pieces = [scaled_matrix(one, of[number], None) if of else one for one, of in zip(pieces, scales)]
            yield self._join(own, held, pieces, kind)._replace(words=words)

    def _halves(self, payload: Payload) -> Payload:
        """Return a matrix or vector with the rows of gate and up one behind the other."""
        return paired_rows(payload, payload.shape[0]) if self._interleaved and payload.shape else payload

    def _order_words(self) -> str:
        if self._interleaved:
            return "up and gate row by row in turn" if self._up_first else "gate and up row by row in turn"
        return "up and gate one behind the other" if self._up_first else "gate and up one behind the other"

    def _unstacked(self, role: Role, held: HeldWeight) -> Iterator[Part]:
        """Yield the experts of a stack, and gate and up of each."""
        turns = f", {self._order_words()}" if self._interleaved and role.kind == "gu_stack" else ""
        self._count(f"experts stacked along the first axis{turns}")
        groups = len({piece.place.group for piece in held.pieces})
        entries = [self._entries(role, piece) for piece in held.pieces]
        per_group = len(entries[0])
        if any(len(own) != per_group for own in entries):
            raise UnsupportedError("groups of unequal numbers of experts")
        whole = self._expert_count(role.layer)
        is_split = groups > 1 and per_group < whole <= groups * per_group  # more slots than experts hold copies
        for group in range(groups if is_split else 1):
            chosen = [n for n, p in enumerate(held.pieces) if p.place.group == group or not is_split]
            own = held._replace(pieces=tuple(held.pieces[number] for number in chosen))
            for at in range(per_group):
                expert = role._replace(expert=group * per_group + at)
                yield from self._of_expert(expert, own, [entries[number][at] for number in chosen])

    def _of_expert(self, role: Role, held: HeldWeight, values: Sequence[Payload]) -> Iterator[Part]:
        if role.kind == "down_stack":
            yield self._join(role._replace(kind="down"), held, values, f"down.{role.expert}")
            return
        kinds = ("up", "gate") if self._up_first else ("gate", "up")
        values = [*map(self._halves, values)]
        for number, kind in enumerate(kinds):
            halves = [
                sliced(one, 0, number * (one.shape[0] // 2), (number + 1) * (one.shape[0] // 2)) for one in values
            ]
            yield self._join(role._replace(kind=kind), held, halves, f"{kind}.{role.expert}")

    def _entries(self, role: Role, piece: Piece) -> list[Payload]:
        """Return the experts of a stack: codes times their scale."""
        assert piece.ref.payload is not None
        if len(piece.ref.shape) < 2:
            raise UnsupportedError(f"stacked experts of shape {[*piece.ref.shape]}")
        codes = [*stack_entries(piece.ref.payload)]
        if piece.scale is None:
            return [*map(self._expert_matrix(role), codes)]
        scale = piece.scale.payload
        if scale is None or not scale.shape or scale.shape[0] != len(codes):
            raise UnsupportedError(f"a scale of shape {list(piece.scale.shape)} of stacked experts")
        scales = [piece.scale._replace(payload=one, shape=one.shape) for one in stack_entries(scale)]
        found = [scaled_matrix(one, scale, self._settings.block) for one, scale in zip(codes, scales)]
        return [*map(self._expert_matrix(role), found)]

    def _expert_matrix(self, role: Role) -> MakePart:
        """The function that brings an expert of a stack to (out, in)."""
        return transposed if holds_turned_experts(self._own, role.layer) else lambda payload: payload

    def _expert_count(self, layer: Optional[int]) -> int:
        """Return the number of experts of a layer, by its router on either side; 0 if neither holds one."""
        for side in (self._own, self._other):
            router = side.held.get(Role(layer, "router", "weight"))
            if router is not None and router.pieces[0].ref.shape:
                return router.pieces[0].ref.shape[0]
        return 0

    def _size_of(self, role: Role, *kinds: str) -> int:
        """Return the rows of a part by a tensor that shows it, on either side."""
        for side in (self._other, self._own):
            for kind in kinds:
                found = side.held.get(role._replace(kind=kind, param="weight"))
                if found is not None and found.pieces[0].ref.shape:
                    return found.pieces[0].ref.shape[0]
        raise UnsupportedError("nothing shows where the parts of the fused tensor end")

    def _qkv_rows(self, role: Role, rows: int) -> tuple[int, int, int]:
        """Return the rows of q, k and v in a piece of so many rows: q has as many as the next matrix has columns."""
        query = query_rows(self._own, role.layer, self.turned) or query_rows(self._other, role.layer, False)
        query = query // max(1, self._own.shards) if query else rows // 3
        rest = rows - query
        if rest < 2 or rest % 2:
            raise UnsupportedError(f"{rows} rows of q, k and v, of which q has {query}")
        return query, rest // 2, rest // 2


def _scales_of_parts(piece: Piece, parts: int) -> list[TensorRef]:
    """Return the scale of each part of a fused tensor, if each has one number; [] for other scales."""
    scale = piece.scale
    if scale is None or scale.payload is None or scale.shape not in ((parts,), (parts, 1)):
        return []
    if piece.ref.shape[0] == parts:
        return []
    each = [selected(scale.payload, number) for number in range(parts)]
    return [scale._replace(payload=one, shape=one.shape) for one in each]


def _kinds_beside(role: Role) -> tuple[str, ...]:
    """Return the kinds in which another convention holds what a fused tensor holds."""
    groups: Mapping[str, tuple[str, ...]] = {
        "qkv": ("q", "qkv_groups"), "qkv_groups": ("q", "qkv"), "qkv_a": ("q_a",), "gu": ("gate", "gu_stack", "fc1"),
        "shared_gu": ("shared_gate", "shared_fc1"), "shared_fc1": ("shared_gate", "shared_gu"),
        "gu_stack": ("gate", "gu"), "down_stack": ("down",),
    }  # fmt: skip
    return groups.get(role.kind, ())
