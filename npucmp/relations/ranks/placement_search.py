"""Find the placement of every golden tensor on the ranks of the target.

The golden's operators are walked in order. Shapes propose placements, partial_sums.py rules out those that no operator
can have made, agreement of the values decides, and the same operator in other layers decides where several agree or
none. The walk is made twice: the second time it knows what agrees in all layers. A tensor that agrees under no legal
placement keeps that of its mates: it diverges there.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from functools import cached_property
from typing import Any, Hashable, Iterator, Mapping, Optional, Sequence

import numpy as np

from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks import partial_sums as legal
from npucmp.relations.ranks.placement import Allowed, Placements
from npucmp.relations.ranks.placement_choice import LOCAL, Decision, Fits, Key, PlacementChoice
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.rank_partners import RankPartners
from npucmp.relations.ranks.rank_run import Origin

NOISE = 1e-6  # of the largest gradient: chosen: some roundings of its terms


class PlacementSearch(PlacementChoice):
    """Placements of one step."""

    def __init__(
        self, partners: RankPartners, values: bool, reduces_later: bool = False, fits: Optional[Fits] = None
    ) -> None:
        super().__init__(partners, values, reduces_later, fits)
        self._zigzag = True
        for _ in range(2):
            learned = self._walk()
            self._zigzag = any(one.kind == "zigzag" for some in learned.values() for each in some for one in each)
            self._learned = learned
        for operator in self.golden.update:
            for one in operator.inputs:
                if self.found.get((operator.name, one.slot), LOCAL).illegal:
                    self._blame_first_reader(one)
        self._fits = {}

    def _walk(self) -> dict[Hashable, Counter[Placements]]:
        self._forget()
        self._reform: set[str] = set()
        for golden in self.golden.operators:
            mesh = self.partners.mesh(golden)
            if mesh is not None:
                self._visit(golden, mesh)
        return self._new

    def _blame_first_reader(self, one: HeldTensor) -> None:
        """Let the operators of an update that hand on a partial sum, which nothing reduces, differ: the reduction is
        missing before the first of them. Norms of parts are combined where they are read."""
        source = self.golden.origin(one).operator
        mesh = self.partners.mesh(source) if source is not None and self.golden.is_update(source) else None
        if source is None or mesh is None or one.size == 1:
            return
        if not any(legal.partial_axes(self.placed(source, each)) for each in source.inputs):
            return
        for each in source.tensors:
            if legal.partial_axes(self.placed(source, each)) and self.state(source, each) == "agrees":
                decision = self._decide(source, each, mesh, Allowed(zigzag=self._zigzag), None)
                if decision.state == "differs":
                    is_read = each in source.inputs
                    self.found[source.name, each.slot] = decision._replace(illegal=is_read, proven=is_read)
                    if is_read:
                        self._blame_first_reader(each)

    # One operator

    def _visit(self, golden: RankOperator, mesh: Mesh) -> None:
        forward = self.forward_of(golden)
        if forward is not None and forward.name in self._reform:
            self._reform.add(golden.name)
        differ = any(one.arguments != golden.arguments for one in mesh.cells.values())
        origins = {one.slot: self.origins(mesh, one.slot) for one in golden.inputs}
        linked = {slot: self._linked(some) for slot, some in origins.items()}
        for one in golden.inputs if self._routed.running else ():
            if linked[one.slot] is None and one.is_float:
                linked[one.slot] = self._sum_of_experts(golden, one, mesh, origins[one.slot])
        floats = {one.slot for one in golden.inputs if one.is_float and not _is_zero(one, mesh)}
        for one in sorted(golden.inputs, key=lambda one: one.is_float):
            others = {slot: linked[slot] for slot in floats - {one.slot}}
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
        is_alone = not mesh.split_axes and not self.partners.experts.is_of_some_ranks(golden)  # it holds no part
        rewritten = not is_alone and any(self._is_rewritten(origin) for origin in origins.values())
        if not one.is_float and rewritten and not golden.is_backward:
            self._reform.add(golden.name)
            self.found[key] = self._source_decision(golden, one, mesh) or LOCAL
            return
        sums = self._sums_of_input(golden, one, mesh, origins, linked, others)
        alike = [
            self.placed(golden, each) for each in golden.inputs if each.is_float and len(each.shape) == len(one.shape)
        ]
        writer = self.golden.origin(one).operator
        is_of_parts = writer is not None and writer.type.name == "norm" and self.partners.mesh(writer) is None
        norms = frozenset(mesh.split_axes) if is_of_parts else legal.norm_axes(linked)
        allowed = Allowed(frozenset(sums), False, self._zigzag, norms=norms)
        decision = self._decide(golden, one, mesh, allowed, linked, alike=alike)
        decision = self._by_rows(golden, one, mesh, decision, sums, origins)
        if linked is not None and legal.partial_axes(linked) and not sums and decision.state == "differs":
            decision = decision._replace(illegal=True)
        elif decision.state == "differs" and one.size == 1 and self.golden.is_update(golden) and not sums:
            if self._sum_of_parts(golden, one, mesh):  # a norm over the parts of gradients that a rank has
                decision = decision._replace(illegal=True, proven=True)
        elif decision.state == "differs" and one.is_float and not golden.is_backward:
            source = self.golden.origin(one)
            if self._routed.is_running_sum(golden, source, origins, mesh) or self._is_sum_of_others(
                golden, source, mesh
            ):
                self._routed.running.add(golden.name)
                decision = LOCAL
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
        own = all(source is not None and _holds_lines(one, source) for source in sources.values())
        if decision.state != "agrees" and not own:  # a rank's own numbers, and no data of another rank
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

    def _sums_of_input(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, origins: Mapping[Any, Origin],
        linked: Optional[Placements], others: Mapping[str, Any],
    ) -> set[int]:  # fmt: skip
        if not one.is_float or golden.op.path:
            return set()
        if golden.is_backward and all(o.operator and o.operator.type.has("exchanges") for o in origins.values()):
            return {*mesh.split_axes} - legal.reduced_axes(mesh, origins)  # an exchange hands on partial sums
        run = self.partners.ranks
        feeds = self.golden.is_update(golden) and all(
            any(run[op.rank].feeds_collective(out) for out in op.outputs) for op in mesh.cells.values()
        )
        sums = golden.type.has("sums") and golden.outputs and golden.outputs[0].size == 1  # norms of gradients
        if feeds or (self.golden.is_update(golden) and sums and linked is None):
            is_reduced = all(o.how == "collective" for o in origins.values())
            return {*mesh.split_axes} - (legal.reduced_axes(mesh, origins) if is_reduced else set())
        is_added = golden.is_backward and linked is None and self.golden.origin(one).how == "none"  # by autograd
        if is_added and (self.reduces_later or one.size == 1):  # of a number that all ranks use on their own parts
            return {*mesh.split_axes}
        if self.golden.is_update(golden) and linked is None:
            return set()
        return legal.sums_of_input(golden, one, linked, others, self.reduces_later)

    def _output(
        self, golden: RankOperator, at: int, one: HeldTensor, mesh: Mesh, inputs: Sequence[Optional[Placements]],
        differ: bool, forward: Optional[RankOperator],
    ) -> None:  # fmt: skip
        key, reform = (golden.name, one.slot), golden.name in self._reform
        sums = self._sums_of_output(golden, at, one, mesh, inputs, forward)
        maxima = golden.type.has("bounds") and bool(sums)
        norms = legal.norms_of_output(golden, inputs)
        allowed = Allowed(frozenset(sums), maxima, self._zigzag, not golden.is_backward, norms)
        if forward is not None and forward.name in self._routed.running:
            self._pass_gradient(golden, one, mesh)
        decision = self._decide(golden, one, mesh, allowed, None, alike=inputs)
        is_loss = one.is_float and one.size == 1 and not golden.is_backward and not self.golden.is_update(golden)
        is_given = differ and not any(op.arguments == golden.arguments for op in mesh.cells.values())  # by the layout
        if decision.state == "differs" and is_loss and is_given:
            self.found[key] = LOCAL
            return
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
            is_place = one.is_float and decision.by == "other layers"  # in other layers it agrees
            floats = [placed for each, placed in zip(golden.inputs, inputs) if each.is_float]
            is_place |= (
                is_loss and bool(floats) and all(map(_is_whole, floats))
            )  # of what all ranks hold: of none alone
            if (reform and not is_place) or (not one.is_float and (differ or split)):
                decision = LOCAL
                self._reform.add(golden.name)
        self.found[key] = decision
        if is_loss and decision.state == "agrees" and decision.placements is not None:
            parts = [size for size, held in zip(mesh.sizes, decision.placements) if held.kind == "mean"]
            has_copies = len(parts) < sum(size > 1 for size in mesh.sizes)
            self._loss_parts = None if golden.op.path and has_copies else math.prod(parts)

    def _divided(self, golden: RankOperator, one: HeldTensor, mesh: Mesh, decision: Decision) -> Decision:
        """The decision of a gradient that each rank has a part of: if it was reduced and divided within the backward
        pass, as FSDP does, the scale of the backward pass does not hold for it."""
        divided = self._decide(golden, one, mesh, Allowed(zigzag=False), None, scales=(1.0,))
        has_parts = {*mesh.split_axes} <= legal.split_axes(divided.placements)
        return divided if divided.state == "agrees" and has_parts else decision

    def _sums_of_output(
        self, golden: RankOperator, at: int, one: HeldTensor, mesh: Mesh, inputs: Sequence[Optional[Placements]],
        forward: Optional[RankOperator],
    ) -> set[int]:  # fmt: skip
        if not one.is_float:
            return set()
        if golden.is_gradient_record or (forward is None and self.golden.feeds_collective(one)):
            return {*mesh.split_axes}  # the golden's ranks hold terms of a sum too
        if forward is None:
            unknown = golden.name in self._reform and any(placed is None for placed in inputs) and not golden.op.path
            return {*mesh.split_axes} if unknown else legal.sums_of_output(golden, one, inputs, mesh)
        source = _forward_input(golden, at, forward)
        own = self.placed(forward, source) if source is not None else None
        if own is not None and len(own) != len(mesh.sizes):
            own = None
        others = [self.placed(forward, each) for each in forward.tensors if each is not source]
        if own is not None and golden.name in self._reform:
            return {axis for axis in mesh.split_axes if own[axis].kind == "whole"}
        return legal.sums_of_gradient(own, others, inputs, mesh)

    def _pass_gradient(self, golden: RankOperator, one: HeldTensor, mesh: Mesh) -> None:
        """Take the gradient that arrives for that of an addend without one: the sum of a rank begins with zeros."""
        same = next((each for each in golden.inputs if each.content is not None and each.content == one.content), None)
        parts = {id(op): tensor_in(op, same.slot) for op in mesh.cells.values()} if same is not None else {}
        found = {op: part for op, part in parts.items() if part is not None}
        if found and len(found) == len(parts) and all(tensor_in(op, one.slot) is None for op in mesh.cells.values()):
            self._sources[golden.name, one.slot] = found

    def _is_sum_of_others(self, golden: RankOperator, source: Origin, mesh: Mesh) -> bool:
        """Whether a gradient is added to the golden's sum over micro batches before, which are those of other ranks, or
        is itself a sum over stages that share a parameter."""
        if golden.name in self.partners.sums_over_stages:
            return True
        producer = source.operator
        if producer is None or not self.golden.is_within_backward(golden):
            return False
        if not golden.type.has("sums") and producer.key != golden.key:  # a product may be added to what another made
            return False
        other = self.partners.mesh(producer)
        is_elsewhere = other is not None and not {*other.ranks} & {*mesh.ranks}
        return self.golden.is_within_backward(producer) and (is_elsewhere or producer.name in self._routed.running)

    def _sum_of_experts(
        self, golden: RankOperator, one: HeldTensor, mesh: Mesh, origins: Mapping[Any, Origin]
    ) -> Optional[Placements]:
        """The placement of the sum of what each rank has added up over its own experts, if it reads that."""
        read = [self._golden_tensor(origin) for origin in origins.values()]
        if not read or any(key is None or key[0] not in self._routed.running for key in read[-1:]):
            return None
        return self._sum_of_parts(golden, one, mesh)

    # Facts

    @property
    def is_clean(self) -> bool:
        """Whether no tensor differs by more than rounding."""
        return not self.open_tensors()

    def open_tensors(self) -> set[Key]:
        """The tensors that differ by more than the rounding of the largest gradient: one that cancels is noise."""
        sizes = {(op.name, one.slot): _rms(one) for op in self.golden.operators for one in op.tensors if one.is_float}
        odd = [(key, one) for key, one in self.found.items() if one.state in ("differs", "shape")]
        return {key for key, one in odd
                if one.fit is None or not one.fit.error * sizes.get(key, math.inf) <= self.noise}  # fmt: skip

    @cached_property
    def noise(self) -> float:
        """The size (rms) of a gradient that is what rounding left of zero."""
        sizes = (_rms(one) for op in self.golden.operators if op.is_backward for one in op.outputs if one.is_float)
        return NOISE * max(filter(math.isfinite, sizes), default=0.0)

    def is_noise(self, one: HeldTensor) -> bool:
        """Return whether a tensor of an update is no larger than that."""
        return self.golden.is_update(one.operator) and _rms(one) <= self.noise

    def forward_of_gradients(self, golden: RankOperator) -> Iterator[tuple[HeldTensor, HeldTensor]]:
        """The gradients that a backward operator reads and writes, with the forward tensor of each, as far as shapes
        show it."""
        forward = self.forward_of(golden)
        if forward is None:
            return
        for at, one in enumerate(golden.outputs):
            source = _forward_input(golden, at, forward)
            if source is not None and source.shape == one.shape:
                yield one, source
        for one in golden.inputs:
            alike = [each for each in forward.outputs if each.is_float and each.shape == one.shape]
            if len(alike) == 1:
                yield one, alike[0]

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


def _rms(one: HeldTensor) -> float:
    return (one.norm or 0.0) / math.sqrt(max(1, one.size))


def _is_whole(placed: Optional[Placements]) -> bool:
    return placed is not None and all(each.kind == "whole" for each in placed)


def _is_zero(golden: HeldTensor, mesh: Mesh) -> bool:
    """Whether an input is zero on all ranks: a sum begins with it."""
    parts = (tensor_in(op, golden.slot) for op in mesh.cells.values()) if golden.norm == 0 else (None,)
    return all(part is not None and part.norm == 0 for part in parts)


def _holds_lines(golden: HeldTensor, part: HeldTensor) -> bool:
    """Whether all rows of a tensor are rows of a golden tensor, or all columns are columns."""
    whole, own = golden.array, part.array
    if whole is None or own is None:
        return False
    lines = [({line.tobytes() for line in array.reshape(-1, array.shape[-1])} if array.ndim else set())
             for array in (own, whole, own.T.copy(), whole.T.copy())]  # fmt: skip
    return any(mine and mine <= theirs for mine, theirs in (lines[:2], lines[2:]))


def _differ(mesh: Mesh, slot: str, axis: int) -> bool:
    """Whether the copies along an axis differ. Masks and indices of which extremes alone are recorded may differ."""

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


def _forward_input(golden: RankOperator, at: int, forward: RankOperator) -> Optional[HeldTensor]:
    """The forward tensor whose gradient is output number `at`."""
    floats = [one for one in forward.inputs if one.is_float]
    if len(floats) == len(golden.outputs) and floats[at].shape == golden.outputs[at].shape:
        return floats[at]
    alike = [one for one in floats if one.shape == golden.outputs[at].shape]
    return alike[0] if len(alike) == 1 else None
