"""Decide how the ranks hold one golden tensor.

Shapes propose placements, and agreement of the values decides. The same operator in other layers decides where several
agree or none: a tensor that agrees under no legal placement keeps that of its mates, and diverges there.

Tokens that a router sends to experts, of which each rank has its own: the orders of rows, and running sums.

A golden operator of an expert has partners on the ranks that hold the expert. Its tokens may come from other ranks, and
stand there in another order. If each rank adds up what its own experts make, the running sum of the golden is on no
rank: it is local, and what reads the reduced sum is compared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import AbstractSet, Any, Callable, Hashable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.relations.held_values import WHOLE, HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks import partial_sums as legal
from npucmp.relations.ranks.placement import (
    Allowed,
    Fit,
    Get,
    Placements,
    candidates,
    fit,
    fit_blocks,
    fit_figures,
    norm_of_terms,
)
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.rank_partners import RankPartners
from npucmp.relations.ranks.rank_run import Origin
from npucmp.relations.ranks.row_order import (
    RowOrder,
    find_order,
    lengths_of,
    order_of_indices,
    ordered_placements,
    row_axes,
)


class RoutedTokens:
    """The orders of rows by golden operator, and the operators whose sums run over the experts of one rank."""

    def __init__(self, partners: RankPartners) -> None:
        self._partners = partners
        self.orders: dict[str, RowOrder] = {}
        self.running: set[str] = set()
        self._recent: dict[object, RowOrder] = {}
        for rows in partners.flat_orders:
            self._recent[rows.lengths] = rows
        experts, golden = partners.experts, partners.golden.operators
        self._behind_experts = {one.name for before, one in zip(golden, golden[1:])
                                if experts.is_of_some_ranks(before) and not experts.is_of_some_ranks(one)}  # fmt: skip

    def add(self, golden: RankOperator, rows: RowOrder) -> None:
        self.orders[golden.name] = self._recent[rows.lengths] = rows

    def known(self, mesh: Mesh, get: Get, golden: HeldTensor, names: Iterable[str]) -> Optional[RowOrder]:
        """The order of the rows of one of these operators, or of the last one with as many rows on each rank."""
        lengths = lengths_of(mesh, get)
        rows = next((found for name in names for found in [self.orders.get(name)]
                     if found is not None and found.lengths == lengths), None)  # fmt: skip
        rows = rows or self._recent.get(lengths)
        return rows if rows is not None and len(rows.order) == golden.shape[0] else None

    def receives(self, golden: RankOperator, one: HeldTensor, origins: Mapping[Any, Origin], is_hidden: bool) -> bool:
        """Whether an input may be tokens of experts, which no operator wrote that the golden has: those that an expert
        gets, or those that come back. `is_hidden`: the golden does not record which operator wrote its own."""
        if golden.is_backward or one is not golden.inputs[0]:
            return False
        known, experts = self._partners.golden_of, self._partners.experts
        partners = [
            None if o.operator is None else known.get((o.operator.rank, o.operator.name)) for o in origins.values()
        ]
        if any(partners):
            return False
        if golden.type.has("contracts") and (experts.is_of_some_ranks(golden) or (is_hidden and bool(self.orders))):
            return True
        return is_hidden and golden.name in self._behind_experts

    def fresh(self, mesh: Mesh, get: Get, golden: HeldTensor) -> list[RowOrder]:
        """The orders that the values of a tensor show."""
        some = (find_order(mesh, get, golden, axes) for axes in row_axes(mesh, get, golden.shape[0]))
        return [one for one in some if one is not None and (len(mesh.cells) > 1 or not one.is_identity)]

    def picked(self, mesh: Mesh, golden: RankOperator, rows: int, source: Optional[HeldTensor],
               placements: Optional[Placements]) -> list[RowOrder]:  # fmt: skip
        """The orders in which so many rows of a tensor are picked by number."""
        numbers = next((one for one in golden.inputs if not one.is_float and one.shape == (rows,)), None)
        if numbers is None or source is None or placements is None or any(one.is_partial for one in placements):
            return []
        parts = {id(op): (tensor_in(op, numbers.slot), tensor_in(op, source.slot)) for op in mesh.cells.values()}
        if any(None in pair for pair in parts.values()) or any(one.is_split and one.dim for one in placements):
            return []

        def index(op: RankOperator) -> HeldTensor:
            return parts[id(op)][0]  # type: ignore[return-value]

        def table(op: RankOperator) -> HeldTensor:
            return parts[id(op)][1]  # type: ignore[return-value]

        some = (order_of_indices(mesh, index, numbers, table, placements, axes) for axes in row_axes(mesh, index, rows))
        return [one for one in some if one is not None]

    def is_running_sum(self, golden: RankOperator, origin: Origin, origins: Mapping[Any, Origin], mesh: Mesh) -> bool:
        """Whether an addend is the golden's sum over the experts before, of which the ranks of this expert have their
        own or none. `origin`: of the golden's addend."""
        producer, experts = origin.operator, self._partners.experts
        if producer is None or not golden.type.has("sums", "picks") or not experts.is_of_some_ranks(golden):
            return False
        if not experts.is_of_some_ranks(producer) or any(one.how == "collective" for one in origins.values()):
            return False
        elsewhere = experts.holders(producer)
        return producer.name in self.running or not elsewhere & {one.rank for one in mesh.cells.values()}


AGREES = 1e-3  # rel_l2: chosen: rounding of deep gradients is below, other placements above 0.1
COARSE = 0.05  # rel_l2 of 16-bit types: chosen: likewise
AGREES_FIGURES = 2e-3  # error of statistics: chosen: likewise
COARSE_FIGURES = 0.03  # error of statistics of 16-bit types: chosen: likewise
NEAR = 0.3  # rel_l2: chosen: a placement that is so near, and so much nearer than all others, is that of a fault
CLEAR = 3  # times: chosen: all other placements are so much farther than that of a fault
EQUAL = 10  # times the least error: chosen: of placements that are so near, the first that was tried is taken
EXACT = 1e-12  # rel_l2: chosen: rounding of float64 is below
BEFORE = 1  # operators before a product that show its role in a layer: chosen: not measured
# operators behind a product that show its role in a layer: chosen: a split, then an activation; more of them leave the
# last layer without mates
BEHIND = 3


class Decision(NamedTuple):
    """The placement of one golden tensor.

    state   "agrees", "differs", "local" (each rank has its own, which is not compared), "shape" (none fits)
    by      "agreement", "other layers", "flow" or "shape"
    illegal whether it reads a partial sum that may not stand there
    proven  whether the sum of the parts agrees, so that no earlier error explains the difference
    mates   the placement under which it would agree, in words, where other layers have another
    rows    number of rows, if the ranks have another number of them than the golden: a router chose otherwise
    """

    state: str
    fit: Optional[Fit] = None
    by: str = "agreement"
    illegal: bool = False
    mates: str = ""
    proven: bool = False
    rows: Optional[int] = None

    @property
    def placements(self) -> Optional[Placements]:
        return self.fit.placements if self.fit is not None else None


LOCAL, NO_SHAPE = Decision("local"), Decision("shape")
UNKNOWN = Decision("unknown")  # it needs a rank that is missing
Key = tuple[str, str]  # operator and slot of the golden
Fits = dict[tuple[str, str, Placements, float], Optional[Fit]]


class PlacementChoice:
    """Decisions of one step, and what they have taught so far. `found`: by operator and slot of the golden; `scale`: of
    the target's gradients; `covered`: shares of ranks (rank_shares.py); `part_errors`: errors of ranks with the fit
    that they belong to, as far as part_errors.py computed them."""

    def __init__(
        self, partners: RankPartners, values: bool, reduces_later: bool = False, fits: Optional[Fits] = None
    ) -> None:
        self.reduces_later = (
            reduces_later  # whether gradients may stay sums, of equal ones or partial, that later operators reduce
        )
        self.partners, self.values = partners, values
        self.golden = partners.golden
        self.part_errors: dict[Key, tuple[Optional[Fit], dict[int, float]]] = {}
        self.scaled_from = ""
        self.covered: set[Key] = set()
        self._fits: Fits = {} if fits is None else fits  # of all walks
        self._learned: dict[Hashable, Counter[Placements]] = {}
        # float32 tensors of such a run hold the rounding of the 16-bit tensors that they were made of
        self.is_coarse = any(_is_short(one) for operator in self.golden.operators for one in operator.outputs)
        self._forward = [one for one in self.golden.operators if not one.is_backward and not one.is_collective]
        self._places = {one.name: at for at, one in enumerate(self._forward)}
        self._forget()

    def _forget(self) -> None:
        """Begin without decisions."""
        self.found: dict[Key, Decision] = {}
        self.scale: Optional[float] = None
        self._loss_parts: Optional[int] = None
        self._sources: dict[Key, dict[int, HeldTensor]] = {}
        self._is_whole_batch: Optional[bool] = None  # the first data that is read
        self._routed = RoutedTokens(self.partners)
        self._rows: dict[tuple[str, str, int], HeldTensor] = {}  # flat parts of parameters in their rows
        self._new: dict[Hashable, Counter[Placements]] = defaultdict(Counter)

    # Facts

    def part(self, golden: str, operator: RankOperator, slot: str) -> Optional[HeldTensor]:
        """The tensor of a rank that takes part in a golden tensor."""
        found = self._sources.get((golden, slot), {}).get(id(operator)) or tensor_in(operator, slot)
        if found is None or len(found.shape) != 1 or not slot.startswith(("param:", "grad:")):
            return found
        if (golden, slot, id(operator)) not in self._rows:
            whole = tensor_in(self.golden.by_name[golden], slot)
            self._rows[golden, slot, id(operator)] = found if whole is None else found.in_rows(whole.shape[1:])
        return self._rows[golden, slot, id(operator)]

    def parts_of(self, golden: HeldTensor) -> Get:
        """The tensor of each rank that takes part in a golden tensor, of which all have one."""

        def get(operator: RankOperator) -> HeldTensor:
            found = self.part(golden.operator.name, operator, golden.slot)
            assert found is not None
            return found

        return get

    def take(self, golden: HeldTensor, mesh: Mesh, reader: HeldTensor) -> None:
        """Let what an operator reads in place of a golden tensor take part in it: if it agrees on all ranks, or if the
        ranks make the tensor of fewer inputs: their own output is another tensor then."""
        other = self.partners.mesh(reader.operator)
        decision = self.found.get((reader.operator.name, reader.slot))
        is_made_of_fewer = all(len(op.inputs) < len(golden.operator.inputs) for op in mesh.cells.values())
        if other is None or decision is None or decision.fit is None or [*other.cells] != [*mesh.cells]:
            return
        if decision.state != "agrees" and not is_made_of_fewer:
            return
        parts = {id(op): self.part(reader.operator.name, other.cells[at], reader.slot) for at, op in mesh.cells.items()}
        origins = self.origins(other, reader.slot)
        is_made_behind = any(origins[at].operator is not op for at, op in mesh.cells.items() if at in origins)
        if None not in parts.values() and is_made_behind:
            key = golden.operator.name, golden.slot
            self._sources[key] = {op: part for op, part in parts.items() if part is not None}
            self.found[key] = decision
            self.covered.discard(key)

    def is_made_behind(self, golden: str, slot: str) -> bool:
        """Whether ranks make a golden tensor behind the operator, and hold terms of it there."""
        return (golden, slot) in self._sources

    def forward_of(self, golden: RankOperator) -> Optional[RankOperator]:
        if not golden.is_backward or not golden.op.call:
            return None
        return next((one for one in self.golden.of_call(golden.op.call) if not one.is_backward), None)

    def placed(self, golden: RankOperator, one: HeldTensor) -> Optional[Placements]:
        found = self.found.get((golden.name, one.slot))
        return found.placements if found is not None else None

    def state(self, golden: RankOperator, one: HeldTensor) -> str:
        found = self.found.get((golden.name, one.slot))
        return found.state if found is not None else ""

    def origins(self, mesh: Mesh, slot: str) -> dict[Any, Origin]:
        """The producer of each part of a tensor, by coordinates."""
        found = {}
        for at, op in mesh.cells.items():
            one = tensor_in(op, slot)
            if one is not None:
                found[at] = self.partners.ranks[op.rank].origin(one)
        return found

    def _linked(self, origins: Mapping[Any, Origin]) -> Optional[Placements]:
        """The placement of the golden output that all parts read; None if they do not read one."""
        read = {self._golden_tensor(origin) for origin in origins.values()}
        partner = read.pop() if len(read) == 1 else None
        decision = self.found.get(partner) if partner is not None else None
        return decision.placements if decision is not None else None

    def _golden_tensor(self, origin: Origin) -> Optional[Key]:
        if origin.how != "operator" or origin.operator is None or origin.tensor is None:
            return None
        golden = self.partners.golden_of.get((origin.operator.rank, origin.operator.name))
        return None if golden is None else (golden.name, origin.tensor.slot)

    def class_of(self, golden: RankOperator, one: HeldTensor) -> Hashable:
        """A key that the same tensor of other layers shares: one call stack has the calls of all layers, one line those
        of all linear layers."""
        forward = self.forward_of(golden) or golden
        return golden.key, golden.op.phase, forward.op.stack, one.shape, one.slot

    def role_of(self, golden: RankOperator) -> Hashable:
        """A key that the same operator of other layers shares: the kinds of the forward operators around it. If a
        stack is short or missing, products of one shape in a layer have one class, but roles of their own."""
        at = self._places.get(golden.name)
        return () if at is None else tuple(one.key for one in self._forward[max(0, at - BEFORE) : at + BEHIND + 1])

    def scales(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> list[float]:
        """By which factors a tensor of the target may be larger."""
        if self.golden.is_within_backward(golden) and one.is_float:
            return [1.0] if self.scale is None or one.size == 1 else [self.scale, 1.0]
        if not golden.is_backward or not one.is_float:
            return [1.0]
        if one.size == 1:
            return [1.0, *self._ratios(mesh)]
        if self.scale is None:
            return [1.0, *self._ratios(mesh)]
        return [self.scale, *(self.scale * one for one in self._ratios(mesh))] if self.reduces_later else [self.scale]

    def _ratios(self, mesh: Mesh) -> list[float]:
        """Over how many parts the loss may be averaged, and how many micro batches there are."""
        parts = [self._loss_parts] if self._loss_parts is not None else []
        if not parts or self.reduces_later or not self.values:  # statistics do not show by which axis labels are split
            parts += [*mesh.sizes, math.prod(mesh.sizes)]
        batches, own = len(self.golden.micro_batches), self.partners.micro_batches
        some = {float(batches), float(own), *(one * batches for one in parts), *(one / own for one in parts)}
        some |= {one * batches / own for one in parts}
        found = {value for one in some if one for value in (float(one), 1.0 / one)} - {1.0}
        return sorted(found, key=lambda one: (abs(math.log(one)), -one))

    # The decision

    def _decide(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, allowed: Allowed, linked: Optional[Placements],
        scales: Sequence[float] = (), alike: Sequence[Optional[Placements]] = (),
    ) -> Decision:  # fmt: skip
        """Decide by agreement, with these factors of the target's values or those of the step. Placements in `alike`,
        of the operator's other tensors, are tried first: an axis of ranks splits a dimension one way."""
        parts = {at: self.part(golden.name, op, one.slot) for at, op in mesh.cells.items()}
        if any(part is None for part in parts.values()):
            return NO_SHAPE
        by_op: dict[int, Any] = {id(op): parts[at] for at, op in mesh.cells.items()}

        def get(op: RankOperator) -> HeldTensor:
            found: HeldTensor = by_op[id(op)]
            return found

        fitting = candidates(mesh, get, one.shape, allowed)
        if self.partners.missing and not self.partners.is_replica:
            fitting = [held for held in fitting if all(each.kind == "whole" for each in held)]
        if not fitting:
            self._is_whole_batch = bool(self._is_whole_batch)
            return UNKNOWN if self.partners.missing else _with_other_rows(mesh, get, one, allowed)
        values = self._has_values(one, by_op.values())
        limit = self._limit(one, by_op.values())
        known = [held for held, _ in self._learned.get(self.class_of(golden, one), Counter()).most_common()]
        if any(one.shape[:1] == each.shape[:1] for each in golden.inputs if each.is_float):
            known = [*(held for held in alike if held is not None and legal.split_axes(held)), *known]
        order = _in_order(fitting, known, linked)
        scales = scales or self.scales(golden, one, mesh)
        measure = self._measure(one, by_op.values())
        tried: list[Fit] = []
        trusted = len([*known, *([linked] if linked in order else [])])
        for at, held in enumerate(order):
            for scale in scales:
                key = golden.name, one.slot, held, scale
                if key not in self._fits:
                    self._fits[key] = measure(mesh, get, one, held, scale)
                found = self._fits[key]
                if found is not None:
                    tried.append(found)
                    if found.error <= limit:
                        break
            if tried and tried[-1].error <= (limit if at < trusted and one.size > 1 else EXACT):
                break
        if not tried:
            return NO_SHAPE
        least = min(found.error for found in tried)
        near = max(least if one.size == 1 else EQUAL * least, EXACT)
        near = min(near, limit) if least <= limit else near  # none that disagrees
        best = next(found for found in tried if found.error <= near)
        if self._is_whole_batch is None:
            self._is_whole_batch = best.error <= limit
        if best.error > limit and self.partners.missing and not self._is_whole_without_missing(golden):
            return UNKNOWN
        if best.error <= limit:
            self._learn(golden, one, best)
            return Decision("agrees", best, _reason(best, known, linked, tried, limit))
        if values and legal.partial_axes(best.placements):  # terms that cancel agree within their own rounding
            terms = norm_of_terms(mesh, get, best)
            if terms is not None and best.error * (one.norm or 0.0) <= limit * terms:
                return Decision("agrees", best)
        is_gradient = golden.is_backward and one.ref.is_output and not golden.op.path and bool(self.forward_of(golden))
        return self._differing(best, tried, known, linked, allowed.sums if is_gradient else frozenset())

    def fit_of(self, golden: HeldTensor, mesh: Mesh, placements: Placements) -> Optional[Fit]:
        """The error of a golden tensor in a placement; None if values or figures of a part are not known."""
        parts = [self.parts_of(golden)(op) for op in mesh.cells.values()]
        return self._measure(golden, parts)(mesh, self.parts_of(golden), golden, placements)

    def limit_of(self, golden: HeldTensor, mesh: Mesh) -> float:
        """The error up to which a placement of a golden tensor agrees."""
        return self._limit(golden, [self.parts_of(golden)(op) for op in mesh.cells.values()])

    def _has_values(self, golden: HeldTensor, parts: Iterable[HeldTensor]) -> bool:
        return self.values and (golden.array is not None or (_is_large(golden, parts) and golden.payload is not None))

    def _measure(self, golden: HeldTensor, parts: Iterable[HeldTensor]) -> Callable[..., Optional[Fit]]:
        if not self._has_values(golden, parts):
            return fit_figures
        return fit_blocks if _is_large(golden, parts) else fit

    def _limit(self, golden: HeldTensor, parts: Iterable[HeldTensor]) -> float:
        coarse = self.is_coarse or any(map(_is_short, (golden, *parts)))
        if self._has_values(golden, parts):
            return COARSE if coarse else AGREES
        return COARSE_FIGURES if coarse else AGREES_FIGURES

    def _is_whole_without_missing(self, golden: RankOperator) -> bool:
        """Whether the ranks that are there make the golden's tensors: they are one replica, which computes the golden's
        batch. A tensor made of exchanged gradients needs all replicas."""
        exchanged = golden.is_gradient_record or self.golden.is_update(golden)
        return self.partners.is_replica and bool(self._is_whole_batch) and not exchanged

    def _learn(self, golden: RankOperator, one: HeldTensor, best: Fit) -> None:
        is_gradient = golden.is_backward and one.is_float and one.size > 1 and one.content is not None
        if is_gradient and (self.scale is None or (self.reduces_later and one.norm)):
            self.scale = best.scale
            self.scaled_from = self.scaled_from or (golden.name if best.scale != 1.0 else "")
        if one.content is not None:
            self._new[self.class_of(golden, one)][best.placements] += 1

    def _differing(
        self, best: Fit, tried: Sequence[Fit], known: Sequence[Placements], linked: Optional[Placements],
        sums: AbstractSet[int],
    ) -> Decision:  # fmt: skip
        """The placement of a tensor that agrees under none. `sums`: the axes along which an operator that runs on each
        rank alone makes a partial sum."""
        others = [found.error for found in tried if found.placements != best.placements]
        if best.error < NEAR and all(error > CLEAR * best.error for error in others):
            return Decision("differs", best, "agreement")
        partial = [found for found in tried if sums and legal.partial_axes(found.placements) == sums]
        if partial:
            return Decision("differs", min(partial, key=lambda found: found.error), "flow")
        held = {found.placements for found in tried}
        mate = next((one for one in known if one in held), None)
        if mate is not None:
            chosen, by = mate, "other layers"
        elif linked is not None and linked in held:
            chosen, by = linked, "flow"
        else:
            plain = [found for found in tried if not legal.partial_axes(found.placements)] or [*tried]
            chosen, by = min(plain, key=lambda found: found.error).placements, "shape"
        return Decision("differs", min((f for f in tried if f.placements == chosen), key=lambda f: f.error), by)

    def _sum_of_parts(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> Optional[Placements]:
        """The placement of a tensor that is a sum over ranks; None if it is none."""
        found = self._decide(golden, one, mesh, Allowed(frozenset(mesh.split_axes), False, False), None)
        return found.placements if found.state == "agrees" and legal.partial_axes(found.placements) else None

    def _by_rows(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, decision: Decision, sums: set[int],
        origins: Optional[Mapping[Any, Origin]],
    ) -> Decision:  # fmt: skip
        """The placement of a tensor whose rows stand in another order on the ranks; `origins` of an input."""
        if decision.state not in ("differs", "shape") or not self.values or not one.is_float:
            return decision
        parts = [self.part(golden.name, op, one.slot) for op in mesh.cells.values()]
        shapes = [part.shape if part is not None else () for part in parts]
        least = 1 if self.golden.is_update(golden) else 2
        if any(len(shape) != len(one.shape) or len(shape) < least for shape in shapes):
            return decision

        get, routed, forward = self.parts_of(one), self._routed, self.forward_of(golden)
        producers = [key[0] for o in (origins or {}).values() for key in [self._golden_tensor(o)] if key is not None]
        names = [golden.name, *([forward.name] if forward is not None else []), *producers]
        if origins is None:
            indexed = any(not each.is_float and each.size > 1 for each in golden.inputs)
            is_new = golden.type.has("picks") and indexed and not golden.is_backward
        else:
            is_new = routed.receives(golden, one, origins, self.golden.origin(one).how == "none")
        rows = None if is_new else routed.known(mesh, get, one, names)
        table = next((each for each in golden.inputs if each.is_float and len(each.shape) == len(one.shape)), None)
        held_by = self.placed(golden, table) if table is not None else None
        orders = [rows] if rows is not None else []
        if is_new and origins is None:
            orders = routed.picked(mesh, golden, one.shape[0], table, held_by)
        if is_new and not orders:
            orders = routed.fresh(mesh, get, one)
        large = max(one.size, *(get(op).size for op in mesh.cells.values())) > WHOLE
        found: list[tuple[Fit, RowOrder]] = []
        for order in orders:
            for held in ordered_placements(mesh, get, one, order, sums):
                for scale in self.scales(golden, one, mesh):
                    fitted = (fit_blocks if large else fit)(mesh, get, one, held, scale)
                    found += [(fitted, order)] if fitted is not None else []
        if not found:
            return decision
        best, order = min(found, key=lambda both: both[0].error)
        coarse = self.is_coarse or any(map(_is_short, (one, *map(get, mesh.cells.values()))))
        limit = COARSE if coarse else AGREES
        if is_new and best.error > NEAR:
            return decision
        routed.add(golden, order)
        return Decision("agrees" if best.error <= limit else "differs", best, "agreement" if is_new else "flow")


def _with_other_rows(mesh: Mesh, get: Get, one: HeldTensor, allowed: Allowed) -> Decision:
    """The decision of a tensor of which ranks have another number of rows, and that they split along other axes."""
    rows = {get(op).shape[:1] for op in mesh.cells.values()}
    if len(one.shape) < 2 or len(rows) != 1:
        return NO_SHAPE
    count = rows.pop()
    fitting = candidates(mesh, get, (*count, *one.shape[1:]), allowed)
    plain = [held for held in fitting if all(not each.is_split or each.dim for each in held)]
    return Decision("differs", Fit(math.inf, plain[0]), "shape", rows=count[0]) if plain else NO_SHAPE


def _is_large(golden: HeldTensor, parts: Iterable[HeldTensor]) -> bool:
    return max(golden.size, *(part.size for part in parts)) > WHOLE


def _is_short(one: HeldTensor) -> bool:
    """Whether a tensor has floats of 16 bits or fewer."""
    return one.is_float and ("16" in one.ref.dtype or "8" in one.ref.dtype)


def _in_order(
    fitting: Sequence[Placements], known: Sequence[Placements], linked: Optional[Placements]
) -> list[Placements]:
    first = [linked] if linked is not None and linked in fitting and not legal.partial_axes(linked) else []
    return [*dict.fromkeys([*first, *(one for one in known if one in fitting), *fitting])]


def _reason(
    best: Fit, known: Sequence[Placements], linked: Optional[Placements], tried: Sequence[Fit], limit: float
) -> str:
    several = sum(found.error <= limit for found in tried) > 1
    if several and best.placements in known:
        return "other layers"
    return "flow" if several and best.placements == linked else "agreement"
