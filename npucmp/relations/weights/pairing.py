"""Pairs of parameters of two checkpoints: the relation of each golden tensor to the target's tensors, and its limit.

Slots of experts beyond the experts of a layer: copies that an engine holds to balance the load of its ranks.

A side has such slots if it holds more experts than the other side, and than its router has rows. A recorded
map states the expert of each slot and is trusted, also if no slot lies beyond the experts. Without a map the values
decide. Then the first slots are the experts in their order; only if most of them are not, and each expert is in
some slot, the experts are looked for in all slots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import sliced
from npucmp.model import first_of
from npucmp.relations.weights import free_numbers, low_rank
from npucmp.relations.weights.checkpoint_pair import CheckpointPair, PairedWeights
from npucmp.relations.weights.expert_order import (
    ExpertMap,
    Order,
    expert_maps,
    expert_orders,
    in_order,
    is_alike,
    is_expert_map,
)
from npucmp.relations.weights.free_numbers import LAYERS, DeclaredLayout, FreeNumber
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part, add_part, changed
from npucmp.relations.weights.parts import PartBuilder
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import Array, agrees, row_numbers, sampled_rows
from npucmp.relations.weights.structure import CheckpointStructure, query_rows

SHOWN_SLOTS = 16  # slots in a line: work
ROWS = 4  # rows of an expert by which it is found: work
MOSTLY = 1 / 3  # share of experts: chosen: fewer in their own slots are another plan, not single faults


class SlotCopy(NamedTuple):
    """The role of a slot's parameter, the role of the expert that it is compared with, and whether a tensor of the slot
    is that of the expert."""

    slot: Role
    expert: Role
    is_known: bool


class ExpertSlots:
    """The slots of one side. `parts` are its parameters, each expert in its own place; `copies` the other slots."""

    def __init__(
        self,
        parts: Mapping[Role, Part],
        other: Mapping[Role, Part],
        routers: Mapping[Optional[int], int],
        maps: Mapping[Optional[int], ExpertMap],
        context: ReadContext,
    ) -> None:
        self._own, self._other, self._context = parts, other, context
        self._samples: dict[tuple[int, Role], Optional[Array]] = {}
        self.parts = {**parts}
        self.copies: list[SlotCopy] = []
        self.lines: dict[str, int] = {}
        slots, experts = experts_of(parts), experts_of(other)
        for layer, numbers in slots.items():
            count, stated = len(experts.get(layer, ())), maps.get(layer, ())
            if not count or experts[layer] != {*range(count)}:
                continue
            known = max(stated, default=-1) + 1
            if len(stated) == len(numbers) == max(numbers) + 1 and {*stated} == {*range(known)} <= experts[layer]:
                if stated != tuple(range(known)):
                    self._place(layer, sorted(numbers), known, stated)
            elif numbers >= experts[layer] and count < len(numbers) and 0 < routers.get(layer, 0) <= count:
                self._place(layer, sorted(numbers), count)

    def _place(self, layer: Optional[int], slots: list[int], experts: int, stated: ExpertMap = ()) -> None:
        """Give each slot of a layer its expert, by a recorded map or by values."""
        roles: dict[int, list[Role]] = defaultdict(list)
        for role in self._own:
            if role.layer == layer and role.expert is not None:
                roles[role.expert].append(role)
        plan: dict[int, Optional[int]] = {slot: slot if slot < experts else None for slot in slots}
        if stated:
            plan.update(enumerate(stated))
        else:
            at_home = sum(self._holds(roles[slot], slot) > 0 for slot in range(experts))
            for slot in slots if at_home < MOSTLY * experts else slots[experts:]:
                plan[slot] = self._expert_in(roles[slot], experts)
            if {*plan.values()} < {*range(experts)}:
                plan.update({slot: slot for slot in range(experts)})
        rest = slots if any(plan[slot] != slot for slot in range(experts)) else slots[experts:]
        known = first_of(["none" if plan[slot] is None else str(plan[slot]) for slot in rest], SHOWN_SLOTS)
        where = f"{len(slots)} slots of experts" if rest is slots else f"{len(rest)} slots beyond the {experts} experts"
        words = f"{where} hold the experts {known} ({'by the recorded map' if stated else 'by values'})"
        self.lines[words] = self.lines.get(words, 0) + 1
        for role in [role for slot in slots for role in roles[slot]]:
            self.parts.pop(role)
        for slot, expert in self._fitting_first(plan, roles) if stated else plan.items():
            for role in roles[slot]:
                own = role._replace(expert=slot % experts if expert is None else expert)
                if own not in self.parts and expert is not None:
                    self.parts[own] = self._own[role]
                elif own in self._other:
                    self.copies.append(SlotCopy(role, own, expert is not None))

    def _fitting_first(
        self, plan: Mapping[int, Optional[int]], roles: Mapping[int, list[Role]]
    ) -> list[tuple[int, Optional[int]]]:
        """Return the slots, of which those of several copies that hold their expert come first: others are wrong
        copies."""
        count = Counter(plan.values())
        return sorted(plan.items(), key=lambda item: count[item[1]] > 1 and item[1] is not None
                      and not self._holds(roles[item[0]], item[1]))  # fmt: skip

    def _expert_in(self, roles: list[Role], experts: int) -> Optional[int]:
        """Return the expert whose tensors a slot holds; None if it holds no tensor of any."""
        votes = Counter({expert: self._holds(roles, expert) for expert in range(experts)})
        best, count = max(votes.items(), key=lambda item: (item[1], -item[0]))
        return best if count else None

    def _holds(self, roles: list[Role], expert: int) -> int:
        """Return how many tensors of a slot are those of an expert."""
        return sum(self._is_same(role, role._replace(expert=expert)) for role in roles)

    def _is_same(self, slot: Role, expert: Role) -> bool:
        own, other = self._own[slot], self._other.get(expert)
        if other is None or own.shape != other.shape:
            return False
        x, y = self._sample(0, slot, own), self._sample(1, expert, other)
        limit = limit_of(own, other)
        return x is not None and y is not None and agrees(x, y, limit)

    def _sample(self, side: int, role: Role, part: Part) -> Optional[Array]:
        """Return some rows of a part; None if they cannot be read."""
        if (side, role) not in self._samples:
            numbers = row_numbers(part.shape[0], ROWS) if part.payload is not None and part.shape else []
            found = sampled_rows(part.payload, numbers, self._context) if part.payload is not None and numbers else None
            self._samples[side, role] = found
        return self._samples[side, role]


def experts_of(parts: Mapping[Role, Part]) -> dict[Optional[int], set[int]]:
    """Return the numbers of the experts of each layer."""
    found: dict[Optional[int], set[int]] = defaultdict(set)
    for role in parts:
        if role.expert is not None:
            found[role.layer].add(role.expert)
    return found


FUSED = ("gu", "gu_stack", "fc1", "shared_gu", "shared_fc1")  # kinds that hold gate and up
SAMPLED = 6  # parts of gate and up that show the order of their rows: work
SHOWN = 16  # experts or layers in a line: work
DECLARED, CONFIGURED = "declared", "by the configuration"
_POWERS = 11  # powers of two: chosen: make-vocab-size-divisible-by is one of them, up to 1,024 rows
_PADDING = [1 << at for at in range(_POWERS)]
USUAL_HEADS = 128, 64  # rows of a head: chosen: as most networks have them
Parts = dict[Role, Part]


def paired_weights(
    target: CheckpointStructure, golden: CheckpointStructure, declared: DeclaredLayout, context: ReadContext
) -> PairedWeights:
    """Pair the parameters of two checkpoints. Values are read for free numbers alone."""
    return _Pairing(target, golden, declared, context).paired()


class _Side:
    """One side of a pairing: its structure, the builder of its parts, and the parts."""

    def __init__(self, name: str, own: CheckpointStructure, builder: PartBuilder, convention: Optional[str]) -> None:
        self.name, self.own, self.builder = name, own, builder
        self.parts = self.whole = builder.parts()  # whole: with slots beyond the experts
        self._stated = convention

    def has_pairs(self, role: Role) -> bool:
        """Whether rotary embedding turns neighbouring rows of a parameter, as declared or by the convention of
        names."""
        if self._stated is not None:
            return self._stated.lower() == "meta"
        held = self.own.held.get(role)
        return held is not None and held.named.convention is not None and held.named.convention.pairs_rope


class _Pairing:
    def __init__(
        self, target: CheckpointStructure, golden: CheckpointStructure, declared: DeclaredLayout, context: ReadContext
    ) -> None:
        self._declared, self._context = declared, context
        self._settings = target.stated.over(golden.stated)
        self._own = target, golden
        self._target, self._golden = self._sides()
        self._found = PairedWeights()
        self._copies: tuple[list[SlotCopy], list[SlotCopy]] = ([], [])  # slots of the target, of the golden

    def _sides(self, interleaved: str = "") -> tuple[_Side, _Side]:
        """Return both sides, of which one may hold the rows of gate and up in turn."""
        target, golden = self._own
        up_first = bool(self._declared.up_first)
        cuts = up_first or bool(interleaved)
        builders = (
            PartBuilder(target, golden, self._settings, up_first, cuts, interleaved == "target"),
            PartBuilder(golden, target, self._settings, False, cuts, interleaved == "golden"),
        )
        return (
            _Side("target", target, builders[0], self._declared.target),
            _Side("golden", golden, builders[1], self._declared.golden),
        )

    def _interleaved(self) -> None:
        """Cut gate and up of a side row by row in turn, if they are those of the other side in that order alone."""
        if not any(role.kind in FUSED for side in self._own for role in side.held) or self._fit(
            self._target, self._golden
        ):
            return
        for name in ("target", "golden"):
            sides = self._sides(name)
            if self._fit(*sides):
                self._target, self._golden = sides
                return

    def _fit(self, target: _Side, golden: _Side) -> bool:
        """Whether a third of the parts of gate and up agree, among some of them."""
        roles = [role for role, part in target.parts.items() if role.kind in (*FUSED, "gate", "up", "shared_gate",
                 "shared_up") and not role.part and role in golden.parts and len(part.shape) > 1]  # fmt: skip
        few = roles[:: max(1, len(roles) // SAMPLED)][:SAMPLED]
        same = [is_alike(target.parts[role], golden.parts[role], self._context) for role in few]
        return sum(same) >= free_numbers.SHARE * len(few)

    def paired(self) -> PairedWeights:
        self._interleaved()
        for own, other in ((self._target, self._golden), (self._golden, self._target)):
            self._groups(own, other)
        for own, other in ((self._target, self._golden), (self._golden, self._target)):
            self._rope(own, other)
        for own, other in ((self._golden, self._target), (self._target, self._golden)):
            self._lora(own, other)
        self._slots()
        self._expert_orders()
        self._found.pairs = [*self._pairs()]
        self._found.lines = [*self._structure_lines(), *self._found.lines, *self._counted_lines()]
        return self._found

    # free numbers

    def _groups(self, own: _Side, other: _Side) -> None:
        """Cut tensors that hold q, k and v per query group."""
        fused = []
        for part in own.builder.open_groups:
            query = query_rows(own.own, part.role.layer, own.builder.turned)
            query = query or query_rows(other.own, part.role.layer, other.builder.turned)
            rows = free_numbers.group_rows(part, query)
            if rows is None:
                self._uncut(own, part, f"{[*part.shape]} of q, k and v, of which q has {query} rows")
            else:
                fused.append((part, rows))
        if not fused:
            return
        number, how = self._query_groups(fused, own, other)
        if number is None:
            number = self._likely_groups(fused)
            self._found.lines.append(f"q, k, v per query group: no number of groups fits most layers; cut for {number}")
        else:
            self._found.lines.append(f"{_tensors(len(fused))}: q, k, v interleaved per query group of {number} ({how})")
        for part, rows in fused:
            if any(one % number for one in rows):
                self._uncut(own, part, f"{[*rows]} rows of q, k, v in {number} groups")
                continue
            for kind in "qkv":
                cut = changed(part, partial(free_numbers.cut_of, kind, number, rows), f"query groups ({number})")
                role = part.role._replace(kind=kind)
                add_part(own.parts, cut._replace(role=role, slot=kind))

    @staticmethod
    def _uncut(own: _Side, part: Part, problem: str) -> None:
        """Add q, k and v of a tensor that cannot be cut, with the reason."""
        for kind in "qkv":
            role = part.role._replace(kind=kind)
            add_part(own.parts, part._replace(role=role, payload=None, slot=kind, copies=(), problem=problem))

    def _query_groups(
        self, fused: Sequence[tuple[Part, tuple[int, int, int]]], own: _Side, other: _Side
    ) -> tuple[Optional[int], str]:
        stated = self._settings.kv_heads
        if stated is None and all(rows[0] == rows[1] for _, rows in fused):
            stated = self._settings.heads  # k has as many heads as q
        for value, how in ((self._declared.kv_heads, DECLARED), (stated, CONFIGURED)):
            if value is not None:
                return value, how
        found = free_numbers.query_groups(fused, other.parts, own.own.shards, self._context)
        return None if found.value is None else int(found.value), found.words

    def _likely_groups(self, fused: Sequence[tuple[Part, tuple[int, int, int]]]) -> int:
        """Return a number of groups for a report of tensors that agree under none: heads of the stated size, of 128 or
        64 rows, else as small as they can be."""
        _, rows = fused[0]
        size = self._settings.head_size
        likely = [rows[1] // one for one in (size, *USUAL_HEADS) if one and rows[1] % one == 0 and rows[1] > one]
        legal = [one for one in free_numbers.divisors(rows[1], 2) if rows[0] % one == 0]
        return next((one for one in likely if one in legal), legal[-1] if legal else 1)

    def _rope(self, own: _Side, other: _Side) -> None:
        """Bring q and k of neighbouring pairs into the order of halves, if the other side has that order."""
        roles = [role for role in own.parts if role.kind in ("q", "k") and not role.part]
        chosen = [role for role in roles if own.has_pairs(role) and not other.has_pairs(role)]
        parts = [own.parts[role] for role in chosen if own.parts[role].payload is not None]
        if not parts:
            return
        declared, shapes = self._declared.kv_heads, {part.role.kind: part.shape for part in parts}
        settings = self._settings._replace(kv_heads=declared) if declared else self._settings
        number = FreeNumber(settings.head_size_of(shapes), DECLARED if declared else CONFIGURED)
        if number.value is None:
            number = free_numbers.head_size(parts, other.parts, self._context)
        if number.value is None:
            self._found.lines.append(f"q and k of the {own.name} in Meta's order: no size of heads fits most layers")
            return
        size = int(number.value)
        for part in parts:
            if part.shape[0] % size == 0:
                own.parts[part.role] = free_numbers.with_halves(part, size)._replace(words=f"rotary pairs ({size})")
        self._found.lines.append(
            f"{_tensors(len(parts))}: q and k in Meta's order of rotary embedding, heads of {size} ({number.words})"
        )

    # updates of low rank

    def _lora(self, own: _Side, other: _Side) -> None:
        """Add the updates of low rank to the weights of a side, if the other side has merged them."""
        updates: list[tuple[Part, Part, Part]] = []
        for role in [one for one in own.parts if one.part == "lora_A"]:
            base, second = own.parts.get(role._replace(part="")), own.parts.get(role._replace(part="lora_B"))
            first, merged = own.parts[role], other.parts.get(role._replace(part=""))
            if role in other.parts or base is None or second is None or merged is None:
                continue
            update = low_rank.product_of(second, first)
            if update is not None and base.payload is not None and base.shape == update.shape:
                updates.append((base, merged, update))
        if not updates:
            return
        number = self._lora_number(updates)
        if number.value is None:
            self._found.lines.append("LoRA: no scale fits most layers; declare it with --lora-scale")
            scale = 1.0 if number.likely is None else number.likely
        else:
            scale = number.value
            self._found.lines.append(f"{_tensors(len(updates))}: LoRA merged with the scale {scale:g} ({number.words})")
        for base, _, update in updates:
            own.parts[base.role] = low_rank.merged(base, update, scale)
            for part in ("lora_A", "lora_B"):
                own.parts.pop(base.role._replace(part=part))

    def _lora_number(self, updates: Sequence[tuple[Part, Part, Part]]) -> FreeNumber:
        for value, how in ((self._declared.lora_scale, DECLARED), (self._settings.lora_scale, CONFIGURED)):
            if value is not None:
                return FreeNumber(value, how)
        few = updates if len(updates) <= LAYERS else updates[:: len(updates) // LAYERS]
        return low_rank.lora_scale([low_rank.sample_of(*one, self._context) for one in few])

    # slots of experts

    def _slots(self) -> None:
        """Give the slots beyond the experts of a layer their experts."""
        for at, (own, other) in enumerate(((self._target, self._golden), (self._golden, self._target))):
            routers = {
                role.layer: part.shape[0]
                for role, part in own.parts.items()
                if role.kind == "router" and role.param == "weight" and not role.part and part.shape
            }
            layers = sorted(layer for layer in experts_of(own.parts) if layer is not None)
            maps = expert_maps(own.own, layers, self._context)
            slots = ExpertSlots(own.parts, other.parts, routers, maps, self._context)
            for words, count in slots.lines.items():
                self._found.lines.append(f"{own.name}: {words}" + (f" in {count} layers" if count > 1 else ""))
            own.whole, own.parts = own.parts, slots.parts
            self._copies[at].extend(slots.copies)

    def _expert_orders(self) -> None:
        """Bring experts and router of the target into the golden's order, if both stand in another one."""
        orders: dict[Order, list[str]] = {}
        for layer, order, keeps_groups in expert_orders(
            self._target.parts, self._golden.parts, self._settings.expert_groups, self._context
        ):
            if not keeps_groups:
                groups = self._settings.expert_groups
                self._found.lines.append(f"target: experts and router of layer {layer} stand in another order, across "
                                         f"the {groups} groups of the router")  # fmt: skip
                continue
            self._target.parts = in_order(self._target.parts, layer, order)
            orders.setdefault(order, []).append(str(layer))
        for order, layers in orders.items():
            known = first_of([*map(str, order)], SHOWN)
            where = f"layer {layers[0]}" if len(layers) == 1 else f"the layers {first_of(layers, SHOWN)}"
            self._found.lines.append(f"target: the experts of {where} are the golden's {known}, the router with them")

    def _slot_pairs(self) -> Iterator[CheckpointPair]:
        """Yield the slots beyond the experts, each with the expert that it is compared with."""
        for copies, own, other in zip(self._copies, (self._target, self._golden), (self._golden, self._target)):
            for copy in copies:
                slot, expert = own.whole[copy.slot], other.parts[copy.expert]
                sides = (slot, expert) if own is self._target else (expert, slot)
                number = copy.slot.expert if own is self._target else 0
                for pair in self._of_parts(copy.slot, *sides):
                    yield pair._replace(copy=pair.copy or number or 0, is_slot=True, is_known_copy=copy.is_known)

    # pairs

    def _pairs(self) -> Iterator[CheckpointPair]:
        targets, goldens = self._target.parts, self._golden.parts
        used: set[Role] = set()
        for role in sorted(goldens, key=lambda one: (*one.position, one.kind, one.part)):
            golden, target = goldens[role], targets.get(role)
            used.add(role)
            if target is None and role.kind == "head" and self._settings.tied is not False:
                embed = targets.get(role._replace(kind="embed"))
                if embed is not None and role.param == "weight":
                    self._found.lines.append("the target has no lm_head: its embedding is compared")
                    target = embed
            if golden.name in self._golden.own.buffers and (target is None or is_expert_map(golden.name)):
                continue
            if target is None:
                yield CheckpointPair(role, None, golden, note="the target has no such parameter")
            else:
                yield from self._of_parts(role, target, golden)
        yield from self._tied_heads(used)
        yield from self._slot_pairs()
        others = [part.name for role, part in targets.items() if role not in used]
        self._found.only_target = [*dict.fromkeys(others)]

    def _tied_heads(self, used: set[Role]) -> Iterator[CheckpointPair]:
        """Yield the target's head that the golden does not hold: it must be the golden's embedding."""
        for role, part in self._target.parts.items():
            embed = self._golden.parts.get(role._replace(kind="embed"))
            if role.kind == "head" and role not in used and embed is not None and not role.part:
                used.add(role)
                for pair in self._of_parts(role, part, embed):
                    yield pair._replace(is_tied=True)
                self._found.lines.append("the golden has no lm_head: the target's is compared with its embedding")

    def _of_parts(self, role: Role, target: Part, golden: Part) -> Iterator[CheckpointPair]:
        yield from self._beyond_vocabulary(role, target, golden)
        target, golden, padding = self._without_padding(role, target, golden)
        limit = limit_of(target, golden)
        for one in (target, golden):
            update = one.payload if one.payload is not None and one.payload.made_by == "sum" else None
            if update is not None:
                slack = low_rank.update_rounding(target, update.parts[1], self._context)
                limit = limit._replace(atol=limit.atol + slack)
        words = " · ".join(dict.fromkeys(filter(None, [golden.words, target.words, padding])))
        yield CheckpointPair(role, target, golden, limit, words)
        if target.payload is None or golden.payload is None:
            return
        others = [(copy, golden.payload) for copy in target.copies]
        others += [(target.payload, copy) for copy in golden.copies]
        if len(target.copies) == len(golden.copies):  # rank by rank: ranks may hold parts of a tensor of unknown name
            others = [*zip(target.copies, golden.copies)]
        for number, (x, y) in enumerate(others, 1):
            copy = target._replace(payload=x, shards=()), golden._replace(payload=y, shards=())
            yield CheckpointPair(role, *copy, limit, "replica", copy=number)

    def _beyond_vocabulary(self, role: Role, target: Part, golden: Part) -> Iterator[CheckpointPair]:
        """Yield the golden's rows beyond the target's vocabulary, which have no partner, unless a configuration states
        that the vocabulary ends there."""
        if role.kind not in ("embed", "head") or not target.shape or not golden.shape:
            return
        first, last = target.shape[0], golden.shape[0]
        if first < last and first != self._settings.vocabulary and is_padded(first, last, self._golden.own.shards):
            rest = changed(golden, lambda one: sliced(one, 0, first, last))._replace(slot="padding", copies=())
            yield CheckpointPair(role, None, rest, note=f"the target's vocabulary ends at row {first}")

    def _without_padding(self, role: Role, target: Part, golden: Part) -> tuple[Part, Part, str]:
        """Return the parts without the padding of a vocabulary. Rows of the golden are cut if a configuration states
        the size of the vocabulary."""
        if role.kind not in ("embed", "head") or not target.shape or not golden.shape:
            return target, golden, ""
        rows = target.shape[0], golden.shape[0]
        if rows[0] > rows[1] and is_padded(rows[1], rows[0], self._target.own.shards):
            self._found.lines.append(f"vocabulary {rows[1]} padded to {rows[0]} in the target")
            cut = changed(target, lambda one: sliced(one, 0, 0, rows[1]))
            return cut._replace(shards=target.shards), golden, f"padding({rows[0]})"
        if rows[1] > rows[0] and is_padded(rows[0], rows[1], self._golden.own.shards):
            self._found.lines.append(f"vocabulary {rows[0]} padded to {rows[1]} in the golden")
            return target, changed(golden, lambda one: sliced(one, 0, 0, rows[0])), f"padding({rows[1]})"
        return target, golden, ""

    # words

    def _structure_lines(self) -> Iterator[str]:
        for side in (self._target, self._golden):
            sizes = side.own.sizes
            named = (
                ("pipeline stages", sizes.stage),
                ("expert-parallel groups", sizes.group),
                ("tensor parallel", sizes.shard),
            )
            known = [f"{word} {count}" for word, count in named if count > 1]
            if known:
                yield f"{side.name}: {', '.join(known)}"

    def _counted_lines(self) -> Iterator[str]:
        for side in (self._target, self._golden):
            for words, count in side.builder.lines.items():
                yield f"{_tensors(count)} of the {side.name}: {words}" if count > 1 else f"{side.name}: {words}"
            codes = Counter((part.dtype, _block_words(part)) for part in side.parts.values() if part.scale_dtype)
            for (dtype, block), count in sorted(codes.items()):
                yield f"{_tensors(count)} of the {side.name}: {dtype} times its scale, {block}"
            if side.own.buffers:
                few = first_of(side.own.buffers, 2)
                yield f"{side.name}: {len(side.own.buffers)} masks or frequencies are no parameters: {few}"


def is_padded(rows: int, padded: int, shards: int) -> bool:
    """Return whether a number of rows is a vocabulary padded to a multiple of a power of two on each rank."""
    return any(-(-rows // (one * shards)) * one * shards == padded for one in _PADDING)


def _block_words(part: Part) -> str:
    """Return which elements share a scale: those of a tensor, a row or a block. A shared scale is stored once."""
    whole = part.payload
    while whole is not None and whole.made_by in ("join", "turned") and whole.parts:
        whole = whole.parts[0]
    if whole is None or whole.made_by != "scaled":
        return "per tensor"
    scale = whole.parts[1]
    first = scale.parts[0] if scale.made_by == "join" else scale
    if not first.strides or first.strides[0]:
        return "per channel"
    return (
        "per tensor" if scale.shape[1] == 1 and not scale.made_by else f"per block of {first.shape[0]} by {whole.axis}"
    )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
