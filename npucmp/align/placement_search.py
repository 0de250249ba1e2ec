"""Find the placement of every golden tensor on the ranks of the target.

The golden's operators are walked in order. Shapes propose placements, partial_sums.py rules out those that no operator
can have made, agreement of the values decides, and the same operator in other layers decides where several agree or
none. The walk is made twice: the second time it knows what agrees in all layers. A tensor that agrees under no legal
placement keeps that of its mates: it diverges there.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, Hashable, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import partial_sums as legal
from npucmp.align.placement import Allowed, Fit, Placements, candidates, fit, fit_blocks, fit_figures, norm_of_terms
from npucmp.align.rank_mesh import Mesh
from npucmp.align.rank_partners import RankPartners
from npucmp.align.rank_run import WHOLE, HeldTensor, Origin, RankOperator, tensor_in
from npucmp.align.routed_tokens import RoutedTokens
from npucmp.align.row_order import RowOrder, ordered_placements
from npucmp.model.relation import Placement

AGREES = 1e-3  # chosen: rounding of deep gradients is below, other placements above 0.1
COARSE = 0.05  # of 16-bit types: chosen likewise
AGREES_FIGURES, COARSE_FIGURES = 2e-3, 0.03  # of statistics
NEAR = 0.3  # chosen: a placement that is so near, and three times nearer than all others, is that of a fault
EXACT = 1e-12


class Decision(NamedTuple):
    """The placement of one golden tensor.

    state   "agrees", "differs", "local" (each rank has its own, which is not compared), "shape" (none fits)
    by      "agreement", "other layers", "flow" or "shape"
    illegal whether it reads a partial sum that may not stand there
    mates   the placement under which it would agree, in words, where other layers have another
    """

    state: str
    fit: Optional[Fit] = None
    by: str = "agreement"
    illegal: bool = False
    mates: str = ""

    @property
    def placements(self) -> Optional[Placements]:
        return self.fit.placements if self.fit is not None else None


LOCAL, NO_SHAPE = Decision("local"), Decision("shape")
UNKNOWN = Decision("unknown")  # it needs a rank that is missing
Key = tuple[str, str]  # operator and slot of the golden


class PlacementSearch:
    """Placements of one step. `found`: by operator and slot of the golden; `scale`: of the target's gradients;
    `part_errors`: errors of ranks with the fit that they belong to, as far as part_errors.py computed them."""

    def __init__(self, partners: RankPartners, values: bool) -> None:
        self.partners, self.values = partners, values
        self.golden = partners.golden
        self.found: dict[Key, Decision] = {}
        self.part_errors: dict[Key, tuple[Optional[Fit], dict[int, float]]] = {}
        self.scale: Optional[float] = None
        self.scaled_from = ""
        self._sources: dict[Key, dict[int, HeldTensor]] = {}
        self._fits: dict[tuple[str, str, Placements, float], Optional[Fit]] = {}  # of both walks
        self._loss_parts: Optional[int] = None
        self._reform: set[str] = set()
        self._learned: dict[Hashable, Counter[Placements]] = {}
        self._zigzag = True
        # float32 tensors of such a run hold the rounding of the 16-bit tensors that they were made of
        self._is_coarse = any(_is_short(one) for operator in self.golden.operators for one in operator.outputs)
        for _ in range(2):
            learned = self._walk()
            self._zigzag = any(one.kind == "zigzag" for some in learned.values() for each in some for one in each)
            self._learned = learned
        self._fits.clear()

    def _walk(self) -> dict[Hashable, Counter[Placements]]:
        self.found, self.scale, self._loss_parts, self._reform, self._sources = {}, None, None, set(), {}
        self._is_whole_batch: Optional[bool] = None  # the first data that is read
        self._routed = RoutedTokens(self.partners)
        self._new: dict[Hashable, Counter[Placements]] = defaultdict(Counter)
        for golden in self.golden.operators:
            mesh = self.partners.mesh(golden)
            if mesh is not None:
                self._visit(golden, mesh)
        return self._new

    # One operator

    def _visit(self, golden: RankOperator, mesh: Mesh) -> None:
        forward = self._forward_of(golden)
        if forward is not None and forward.name in self._reform:
            self._reform.add(golden.name)
        differ = any(one.arguments != golden.arguments for one in mesh.cells.values())
        origins = {one.slot: self.origins(mesh, one.slot) for one in golden.inputs}
        linked = {slot: self._linked(some) for slot, some in origins.items()}
        floats = {one.slot for one in golden.inputs if one.is_float}
        for one in sorted(golden.inputs, key=lambda one: one.is_float):
            others = {slot: self._reads(linked[slot], origins[slot], mesh) for slot in floats - {one.slot}}
            self._input(golden, one, mesh, origins[one.slot], linked[one.slot], others)
        inputs = [self.placed(golden, one) for one in golden.inputs]
        for at, one in enumerate(golden.outputs):
            self._output(golden, at, one, mesh, inputs, differ, forward)
        placed = [self.placed(golden, one) for one in golden.tensors if one.is_float]
        if golden.type.has("picks") and any(legal.splits_rows(held, mesh.split_axes) for held in placed):
            for one in golden.tensors:
                if not one.is_float and self.state(golden, one) in ("differs", "shape"):  # among a rank's own rows
                    self.found[golden.name, one.slot] = LOCAL

    def _input(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, origins: Mapping[Any, Origin],
        linked: Optional[Placements], others: Mapping[str, Any],
    ) -> None:  # fmt: skip
        key = golden.name, one.slot
        rewritten = any(self._is_rewritten(origin) for origin in origins.values())
        if not one.is_float and rewritten and not golden.is_backward:
            self._reform.add(golden.name)
            self.found[key] = self._source_decision(golden, one, mesh) or LOCAL
            return
        sums = self._sums_of_input(golden, one, mesh, origins, linked, others)
        decision = self._decide(golden, one, mesh, Allowed(frozenset(sums), False, self._zigzag), linked)
        decision = self._by_rows(golden, one, mesh, decision, sums, origins)
        if linked is not None and legal.partial_axes(linked) and not sums and decision.state == "differs":
            decision = decision._replace(illegal=True)
        elif decision.state == "differs" and one.is_float and not golden.is_backward:
            if self._routed.is_running_sum(golden, self.golden.origin(one), origins, mesh):
                self._routed.running.add(golden.name)
                decision = LOCAL
            elif self._is_unreduced(golden, one, mesh, origins):
                decision = decision._replace(illegal=True)
        if decision.state == "differs" and golden.is_backward and golden.name in self._reform:
            decision = LOCAL
        elif decision.state == "differs" and not one.is_float and self._may_be_local(golden, one, mesh, decision):
            self._set_local(golden, key)
            return
        elif decision.state == "differs" and rewritten and golden.name in self._reform:
            decision = LOCAL
        self.found[key] = decision

    def _source_decision(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> Optional[Decision]:
        """The placement of the data from which operators of the target alone made an input: numbers of words before
        the mask of a part of the vocabulary. None if the golden computes it too, or it is not found."""
        if self.golden.origin(one).how != "none":
            return None
        sources = {id(op): self._source(op, one.slot) for op in mesh.cells.values()}
        if any(source is None for source in sources.values()):
            return None
        self._sources[golden.name, one.slot] = {op: source for op, source in sources.items() if source is not None}
        decision = self._decide(golden, one, mesh, Allowed(zigzag=self._zigzag), None)
        if decision.fit is None:
            del self._sources[golden.name, one.slot]
            return None
        return decision

    def _source(self, operator: RankOperator, slot: str) -> Optional[HeldTensor]:
        one = tensor_in(operator, slot)
        run = self.partners.ranks[operator.rank]
        while one is not None:
            origin = run.origin(one)
            if origin.operator is None:
                return one
            if (operator.rank, origin.operator.name) in self.partners.golden_of:
                return None
            some = [each for each in origin.operator.inputs if not each.is_float and each.ref.dtype == one.ref.dtype]
            one = next((each for each in some if each.shape == one.shape), None)
        return None

    def part(self, golden: str, operator: RankOperator, slot: str) -> Optional[HeldTensor]:
        """The tensor of a rank that takes part in a golden tensor."""
        return self._sources.get((golden, slot), {}).get(id(operator)) or tensor_in(operator, slot)

    def _sums_of_input(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, origins: Mapping[Any, Origin],
        linked: Optional[Placements], others: Mapping[str, Any],
    ) -> set[int]:  # fmt: skip
        if not one.is_float or golden.op.path:
            return set()
        if golden.is_backward and all(o.operator and o.operator.type.has("exchanges") for o in origins.values()):
            return {*mesh.split_axes} - legal.reduced_axes(mesh, origins)  # an exchange hands on partial sums
        if self.golden.is_update(golden):
            run = self.partners.ranks
            feeds = all(any(run[op.rank].feeds_collective(out) for out in op.outputs) for op in mesh.cells.values())
            if not feeds:
                return set()
            reduced = (
                legal.reduced_axes(mesh, origins) if all(o.how == "collective" for o in origins.values()) else set()
            )
            return {axis for axis in mesh.split_axes if axis not in reduced}
        return legal.sums_of_input(golden, one, linked, others)

    def _reads(self, linked: Optional[Placements], origins: Mapping[Any, Origin], mesh: Mesh) -> Any:
        """The placement that another input reads; a sum that is not yet reduced over all axes counts as one."""
        if linked is None and origins and all(one.how == "collective" for one in origins.values()):
            return None
        return linked

    def _output(
        self, golden: RankOperator, at: int, one: HeldTensor, mesh: Mesh, inputs: Sequence[Optional[Placements]],
        differ: bool, forward: Optional[RankOperator],
    ) -> None:  # fmt: skip
        key, reform = (golden.name, one.slot), golden.name in self._reform
        if one.is_float and one.size == 1 and differ and not golden.is_backward:
            self.found[key] = LOCAL
            return
        sums = self._sums_of_output(golden, at, one, mesh, inputs, forward)
        maxima = golden.type.has("bounds") and bool(sums)
        allowed = Allowed(frozenset(sums), maxima, self._zigzag, not golden.is_backward)
        if forward is not None and forward.name in self._routed.running:
            self._pass_gradient(golden, one, mesh)
        decision = self._decide(golden, one, mesh, allowed, None)
        if decision.state == "differs" and golden.is_gradient_record:
            decision = self._divided(golden, one, mesh, decision)
        decision = self._by_rows(golden, one, mesh, decision, sums, None)
        if golden.name in self._routed.running and decision.state == "differs":
            decision = LOCAL
        if decision.state == "differs" and not one.is_float and one.size > 1:
            counted = self._decide(golden, one, mesh, Allowed(frozenset(mesh.split_axes), False, False), None)
            is_exact = counted.fit is not None and counted.state == "agrees" and not counted.fit.error
            decision = counted if is_exact else decision  # numbers of occurrences among the parts of ranks add up
        if decision.state == "differs":
            split = any(legal.split_axes(placed) for placed in inputs)
            if reform or (not one.is_float and (differ or split)):
                decision = LOCAL
                self._reform.add(golden.name)
        self.found[key] = decision
        is_loss = decision.state == "agrees" and one.is_float and one.size == 1 and not golden.is_backward
        if is_loss and not self.golden.is_update(golden) and decision.placements is not None:
            parts = [size for size, held in zip(mesh.sizes, decision.placements) if held.kind == "mean"]
            has_copies = len(parts) < sum(size > 1 for size in mesh.sizes)
            self._loss_parts = None if golden.op.path and has_copies else math.prod(parts)

    def _divided(self, golden: RankOperator, one: HeldTensor, mesh: Mesh, decision: Decision) -> Decision:
        """The decision of a gradient that each rank has a part of: if it was reduced and divided within the backward
        pass, as FSDP does, the scale of the backward pass does not hold for it."""
        scale, self.scale = self.scale, 1.0
        divided = self._decide(golden, one, mesh, Allowed(zigzag=False), None)
        self.scale = scale
        has_parts = {*mesh.split_axes} <= legal.split_axes(divided.placements)
        return divided if divided.state == "agrees" and has_parts else decision

    def _sums_of_output(
        self, golden: RankOperator, at: int, one: HeldTensor, mesh: Mesh, inputs: Sequence[Optional[Placements]],
        forward: Optional[RankOperator],
    ) -> set[int]:  # fmt: skip
        if not one.is_float:
            return set()
        if golden.is_gradient_record:
            return {*mesh.split_axes}
        if not golden.is_backward:
            unknown = golden.name in self._reform and any(placed is None for placed in inputs) and not golden.op.path
            return {*mesh.split_axes} if unknown else legal.sums_of_output(golden, one, inputs, mesh)
        if forward is None:
            return set() if golden.op.path else {*mesh.split_axes}
        source = _forward_input(golden, at, forward)
        own = self.placed(forward, source) if source is not None else None
        if own is not None and len(own) != len(mesh.sizes):
            own = None
        others = [self.placed(forward, each) for each in forward.tensors if each is not source]
        if own is not None and golden.name in self._reform:
            return {axis for axis in mesh.split_axes if own[axis].kind == "whole"}
        return legal.sums_of_gradient(own, others, inputs, mesh)

    # Tokens of experts

    def _by_rows(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, decision: Decision, sums: set[int],
        origins: Optional[Mapping[Any, Origin]],
    ) -> Decision:  # fmt: skip
        """The placement of a tensor whose rows stand in another order on the ranks; `origins` of an input."""
        parts = {id(op): self.part(golden.name, op, one.slot) for op in mesh.cells.values()}
        shapes = [part.shape if part is not None else () for part in parts.values()]
        rows_differ = decision.state in ("differs", "shape") and self.values and one.is_float
        if not rows_differ or any(len(shape) != len(one.shape) or len(shape) < 2 for shape in shapes):
            return decision

        def get(op: RankOperator) -> HeldTensor:
            found = parts[id(op)]
            assert found is not None
            return found

        routed, forward = self._routed, self._forward_of(golden)
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
        limit = COARSE if any("16" in get(op).ref.dtype for op in mesh.cells.values()) else AGREES
        if is_new and best.error > NEAR:
            return decision
        routed.add(golden, order)
        return Decision("agrees" if best.error <= limit else "differs", best, "agreement" if is_new else "flow")

    def _pass_gradient(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> None:
        """Take the gradient that arrives for that of an addend without one: the sum of a rank begins with zeros."""
        same = next((each for each in golden.inputs if each.content is not None and each.content == one.content), None)
        parts = {id(op): tensor_in(op, same.slot) for op in mesh.cells.values()} if same is not None else {}
        found = {op: part for op, part in parts.items() if part is not None}
        if found and len(found) == len(parts) and all(tensor_in(op, one.slot) is None for op in mesh.cells.values()):
            self._sources[golden.name, one.slot] = found

    def _is_unreduced(self, golden: RankOperator, one: HeldTensor, mesh: Mesh, origins: Mapping[Any, Origin]) -> bool:
        """Whether each rank reads the sum over its own experts, and the sum of those agrees."""
        read = [self._golden_tensor(origin) for origin in origins.values()]
        if not read or any(key is None or key[0] not in self._routed.running for key in read[-1:]):
            return False
        fits = [self._decide(golden, one, mesh, Allowed(frozenset(mesh.split_axes), False, False), None)]
        return any(each.state == "agrees" and legal.partial_axes(each.placements) for each in fits)

    # Facts

    def _forward_of(self, golden: RankOperator) -> Optional[RankOperator]:
        if not golden.is_backward or not golden.op.call:
            return None
        return next((one for one in self.golden.of_call(golden.op.call) if not one.is_backward), None)

    def placed(self, golden: RankOperator, one: HeldTensor) -> Optional[Placements]:
        found = self.found.get((golden.name, one.slot))
        return found.placements if found is not None else None

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
        read = set()
        for origin in origins.values():
            partner = self._golden_tensor(origin)
            if partner is None:
                return None
            read.add(partner)
        if len(read) != 1:
            return None
        decision = self.found.get(read.pop())
        return decision.placements if decision is not None else None

    def _golden_tensor(self, origin: Origin) -> Optional[Key]:
        if origin.how != "operator" or origin.operator is None or origin.tensor is None:
            return None
        golden = self.partners.golden_of.get((origin.operator.rank, origin.operator.name))
        return None if golden is None else (golden.name, origin.tensor.slot)

    def _is_rewritten(self, origin: Origin) -> bool:
        """Whether an operator wrote it that only the target has, or one whose tensors each rank has its own of."""
        if origin.how != "operator" or origin.operator is None:
            return False
        golden = self.partners.golden_of.get((origin.operator.rank, origin.operator.name))
        return golden is None or golden.name in self._reform

    def _set_local(self, golden: RankOperator, key: Key) -> None:
        self._reform.add(golden.name)
        self.found[key] = LOCAL

    def _may_be_local(self, golden: RankOperator, own: HeldTensor, mesh: Mesh, decision: Decision) -> bool:
        """Whether indices or a mask may be local to a rank: along some axis they have one shape and differ, and go with
        a part."""
        held = decision.placements
        if golden.is_backward or held is None:
            return False
        whole = {axis for axis in mesh.split_axes if held[axis].kind == "whole" and _differ(mesh, own.slot, axis)}
        if whole and not any(each.is_float for each in golden.inputs):
            return any(self.state(golden, each) == "local" for each in golden.inputs)
        for each in golden.inputs if whole else ():
            if not each.is_float:
                continue
            origins = self.origins(mesh, each.slot)
            linked = self._linked(origins)
            if whole & (legal.partial_axes(linked) | legal.split_axes(linked)):
                return True
            parts = [tensor_in(op, each.slot) for op in mesh.cells.values()]
            if linked is None and any(part is not None and part.shape != each.shape for part in parts):
                return True
            if any(map(self._is_rewritten, origins.values())):
                return True
        return False

    def class_of(self, golden: RankOperator, one: HeldTensor) -> Hashable:
        """A key that the same tensor of other layers shares: one call stack has the calls of all layers, one line those
        of all linear layers."""
        forward = self._forward_of(golden) or golden
        return golden.key, golden.op.phase, forward.op.stack, one.shape, one.slot

    def scales(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> list[float]:
        """By which factors a tensor of the target may be larger."""
        if not golden.is_backward or not one.is_float:
            return [1.0]
        if one.size == 1:
            return [1.0, *self._ratios(mesh)]
        return [self.scale] if self.scale is not None else [1.0, *self._ratios(mesh)]

    def _ratios(self, mesh: Mesh) -> list[float]:
        """Over how many parts the loss may be averaged, and how many micro batches there are."""
        parts = [self._loss_parts] if self._loss_parts is not None else []
        if not parts or not self.values:  # statistics do not show by which axis labels are split
            parts += [*mesh.sizes, math.prod(mesh.sizes)]
        batches, own = len(self.golden.micro_batches), self.partners.micro_batches
        some = {float(batches), float(own), *(one * batches for one in parts), *(one / own for one in parts)}
        some |= {one * batches / own for one in parts}
        found = {value for one in some if one for value in (float(one), 1.0 / one)} - {1.0}
        return sorted(found, key=lambda one: (abs(math.log(one)), -one))

    # The decision

    def _decide(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, allowed: Allowed, linked: Optional[Placements]
    ) -> Decision:
        parts = {at: self.part(golden.name, op, one.slot) for at, op in mesh.cells.items()}
        if any(part is None for part in parts.values()):
            return NO_SHAPE
        by_op: dict[int, Any] = {id(op): parts[at] for at, op in mesh.cells.items()}

        def get(op: RankOperator) -> HeldTensor:
            found: HeldTensor = by_op[id(op)]
            return found

        fitting = candidates(mesh, get, one, allowed)
        if self.partners.missing and not self.partners.is_replica:
            fitting = [held for held in fitting if all(each.kind == "whole" for each in held)]
        if not fitting:
            self._is_whole_batch = bool(self._is_whole_batch)
            return UNKNOWN if self.partners.missing else NO_SHAPE
        large = max(one.size, *(part.size for part in by_op.values())) > WHOLE
        values = self.values and (one.array is not None or (large and one.payload is not None))
        coarse = self._is_coarse or any(map(_is_short, (one, *by_op.values())))
        limit = (COARSE if coarse else AGREES) if values else (COARSE_FIGURES if coarse else AGREES_FIGURES)
        known = [held for held, _ in self._learned.get(self.class_of(golden, one), Counter()).most_common()]
        order = _in_order(fitting, known, linked)
        scales = self.scales(golden, one, mesh)
        measure = (fit_blocks if large else fit) if values else fit_figures
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
        near = max(least if one.size == 1 else 10 * least, EXACT)
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
        return self._differing(best, tried, known, linked)

    def _is_whole_without_missing(self, golden: RankOperator) -> bool:
        """Whether the ranks that are there make the golden's tensors: they are one replica, which computes the golden's
        batch. A tensor made of exchanged gradients needs all replicas."""
        exchanged = golden.is_gradient_record or self.golden.is_update(golden)
        return self.partners.is_replica and bool(self._is_whole_batch) and not exchanged

    def _learn(self, golden: RankOperator, one: HeldTensor, best: Fit) -> None:
        if golden.is_backward and one.is_float and one.size > 1 and self.scale is None and one.content is not None:
            self.scale = best.scale
            self.scaled_from = golden.name if best.scale != 1.0 else ""
        if one.content is not None:
            self._new[self.class_of(golden, one)][best.placements] += 1

    def _differing(
        self, best: Fit, tried: Sequence[Fit], known: Sequence[Placements], linked: Optional[Placements]
    ) -> Decision:
        """The placement of a tensor that agrees under none."""
        others = [found.error for found in tried if found.placements != best.placements]
        if best.error < NEAR and all(error > 3 * best.error for error in others):
            return Decision("differs", best, "agreement")
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

    def state(self, golden: RankOperator, one: HeldTensor) -> str:
        found = self.found.get((golden.name, one.slot))
        return found.state if found is not None else ""


def _is_short(one: HeldTensor) -> bool:
    """Whether a tensor has floats of 16 bits or fewer."""
    return one.is_float and ("16" in one.ref.dtype or "8" in one.ref.dtype)


def _differ(mesh: Mesh, slot: str, axis: int) -> bool:
    """Whether the copies along an axis differ. Masks and indices of which extremes alone are recorded may differ."""
    import numpy as np

    groups: dict[Any, list[Any]] = defaultdict(list)
    for at, op in mesh.cells.items():
        one = tensor_in(op, slot)
        figures = one.figures if one is not None and one.array is None else None
        if figures is not None and figures[2:] == (None, None) and figures[0] != figures[1]:
            return True
        groups[at[:axis] + at[axis + 1 :]].append(
            None if one is None else one.figures if one.array is None else one.array
        )
    return any(not all(np.array_equal(some[0], other) for other in some[1:]) for some in groups.values())


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


def _forward_input(golden: RankOperator, at: int, forward: RankOperator) -> Optional[HeldTensor]:
    """The forward tensor whose gradient is output number `at`."""
    floats = [one for one in forward.inputs if one.is_float]
    if len(floats) == len(golden.outputs):
        return floats[at]
    alike = [one for one in floats if one.shape == golden.outputs[at].shape]
    return alike[0] if len(alike) == 1 else None


def has_kind(placements: Optional[Placements], kind: str) -> bool:
    return any(isinstance(one, Placement) and one.kind == kind for one in placements or ())
