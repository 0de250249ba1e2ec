"""Slots of experts beyond the experts of a layer: copies that an engine holds to balance the load of its ranks.

A side has such slots if it holds more experts than the other side, and than its router has rows. A recorded
map states the expert of each slot and is trusted, also if no slot lies beyond the experts. Without a map the values
decide. Then the first slots are the experts in their order; only if most of them are not, and each expert is in
some slot, the experts are looked for in all slots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.model import first_of
from npucmp.relations.weights.expert_map import ExpertMap
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import Array, agrees, row_numbers, rows_of

SHOWN = 16  # slots in a line: work
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
        known = first_of(["none" if plan[slot] is None else str(plan[slot]) for slot in rest], SHOWN)
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
        return x is not None and y is not None and agrees(x, y, limit.rtol, limit.is_quantised, limit.atol)

    def _sample(self, side: int, role: Role, part: Part) -> Optional[Array]:
        """Return some rows of a part; None if they cannot be read."""
        if (side, role) not in self._samples:
            try:
                rows = row_numbers(part.shape[0], ROWS) if part.payload is not None and part.shape else []
                found = rows_of(part.payload, rows, self._context) if part.payload is not None and rows else None
            except SystemFailure:
                raise
            except NpucmpError:
                found = None
            self._samples[side, role] = found
        return self._samples[side, role]


def experts_of(parts: Mapping[Role, Part]) -> dict[Optional[int], set[int]]:
    """Return the numbers of the experts of each layer."""
    found: dict[Optional[int], set[int]] = defaultdict(set)
    for role in parts:
        if role.expert is not None:
            found[role.layer].add(role.expert)
    return found
