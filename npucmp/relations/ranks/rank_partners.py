"""The partners of every golden operator in a run of several ranks, by (rank, micro batch).

The ranks that hold an operator: all of a stage, or those that have its expert.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import accumulate, chain
from typing import Any, Hashable, Iterator, Mapping, Optional, Sequence

import numpy as np

from npucmp.model.roles import peer_of
from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.layout_sizes import LayoutSizes
from npucmp.relations.ranks.lane_match import Matched, match_lane, may_be_part, share_of
from npucmp.relations.ranks.rank_mesh import Mesh, axes_of, lanes_of, mesh_of, primes, stages_of
from npucmp.relations.ranks.rank_run import RankRun
from npucmp.relations.ranks.row_order import RowOrder, flat_orders, is_flat
from npucmp.relations.ranks.split_updates import SplitUpdates, is_exchanged


class ExpertRanks:
    """The ranks of each golden operator. An expert has a parameter that no other rank of its stage reads."""

    def __init__(self, ranks: Mapping[int, RankRun], golden: RankRun, stages: Mapping[int, int],
                 partners: Mapping[str, Mapping[tuple[int, int], RankOperator]],
                 ranks_of: Mapping[int, set[int]]) -> None:  # fmt: skip
        self._stages, self._golden = stages, golden
        self._holders = {name: frozenset(rank for rank, _ in some) for name, some in partners.items()}
        self._batch_ranks = {one.name: ranks_of[at] for at, batch in enumerate(golden.micro_batches)
                             if at in ranks_of for one in batch}  # fmt: skip
        own = {rank: {*_parameters(run)} for rank, run in ranks.items()}
        self._experts: set[frozenset[int]] = set()
        for one in golden.operators:
            others = self.others(one)
            if not others or one.is_backward:
                continue
            for partner in partners[one.name].values():
                read = {*_weights(partner)}
                if read and not any(read & own[rank] for rank in others):
                    self._experts.add(self._holders[one.name])

    def holders(self, golden: RankOperator) -> frozenset[int]:
        return self._holders.get(golden.name, frozenset())

    def is_of_some_ranks(self, golden: RankOperator) -> bool:
        """Whether some ranks of its stage do not have an operator."""
        return bool(self.others(golden))

    def lacks_a_rank(self, golden: RankOperator) -> bool:
        """Whether some ranks of its stage do not have an operator that is of no expert. Updates may be split over
        ranks."""
        if golden.is_backward:
            calls = self._golden.of_call(golden.op.call) if golden.op.call else []
            return any(self.lacks_a_rank(one) for one in calls if not one.is_backward)
        if self._golden.is_update(golden) or not self.others(golden):
            return False
        return self.holders(golden) not in self._experts

    def others(self, golden: RankOperator) -> list[int]:
        """The ranks of its stage that do not have an operator."""
        holders = self.holders(golden)
        stages = {self._stages[rank] for rank in holders}
        batch = self._batch_ranks.get(golden.name, {*self._stages})
        return [rank for rank in batch if self._stages[rank] in stages and rank not in holders]


def _weights(operator: RankOperator) -> list[Hashable]:
    """The contents of the parameters that an operator reads."""
    return [one.content for one in operator.weights if one.content is not None]


def _parameters(run: RankRun) -> list[Any]:
    return [each for one in run.operators if not one.is_backward for each in _weights(one)]


PARTS = 4  # parts of a tensor for each rank: chosen: not measured
LIKELY = 0.8  # share: chosen: a tensor of which more is found in the golden one is a part of it
UNLIKELY = 0.3  # share: chosen: less is found of another parameter
Partners = dict[tuple[int, int], RankOperator]


def groups_of(ranks: Mapping[int, RankRun]) -> set[tuple[int, ...]]:
    """The recorded groups of ranks."""
    return {group for run in ranks.values() for one in run.operators for group in one.groups}


def missing_ranks(ranks: Mapping[int, RankRun]) -> list[int]:
    """Ranks that records name, or that come before others, and that the dump lacks."""
    named = {rank for group in groups_of(ranks) for rank in group}
    named |= {peer for run in ranks.values() for one in run.operators if one.type.has("point to point")
              for peer in [peer_of(one.op)] if peer is not None and peer >= 0}  # fmt: skip
    return sorted(({*range(max(ranks, default=0))} | named) - ranks.keys())


def _is_call_of(one: RankOperator, gradients: RankOperator) -> bool:
    """Whether an operator is a call of the module of a gradient record."""
    return bool(one.op.path) and one.op.call.rpartition(".")[0] == gradients.op.call


def _accumulates(records: Sequence[RankOperator], golden: RankOperator) -> Iterator[bool]:
    """Whether the last record is nearer to the golden's gradient than the sum of all, in direction; for each tensor."""

    for one in golden.outputs if len(records) > 1 else ():
        exact = one.array
        arrays = [each.array for record in records for each in [tensor_in(record, one.slot)] if each is not None]
        known = [each for each in arrays if exact is not None and each is not None and each.shape == exact.shape]
        if exact is None or len(known) < len(records):
            continue
        sums = np.sum(known, axis=0)
        last, whole = (float(np.vdot(each, exact)) / (float(np.linalg.norm(each)) or 1.0) for each in (known[-1], sums))
        yield last >= whole


def _is_given(run: RankRun, one: HeldTensor) -> bool:
    """Whether a tensor comes from outside, perhaps by operators that copy or pad it."""
    writer = run.origin(one).operator
    return writer is None or any(
        each.content == one.content and _is_given(run, each) for each in writer.inputs if each.is_float
    )


def _lacks_parts(partners: Partners, golden: RankOperator) -> bool:
    """Whether partners hold fewer parts of a parameter than it has."""
    pairs = [pair for one in partners.values() for pair in zip(one.inputs[:1], golden.inputs[:1])]
    return any(len(b.shape) > 1 and a.size * len(partners) < b.size for a, b in pairs)


def _flat_by_type(run: RankRun) -> dict[str, list[RankOperator]]:
    """The operators of an update that read a flat tensor first, by type."""
    found: dict[str, list[RankOperator]] = defaultdict(list)
    for one in run.update:
        if one.inputs and one.inputs[0].is_float and len(one.inputs[0].shape) == 1 and one.inputs[0].size > 1:
            found[one.key].append(one)
    return found


def _places_of_pieces(sizes: Sequence[int], pieces: Sequence[int]) -> list[int]:
    """The number of the tensor that each piece is of, if tensors and pieces fill one buffer; else none."""
    if sum(sizes) != sum(pieces):
        return []
    ends, found, start = [*accumulate(sizes)], [], 0
    for size in pieces:
        found.append(bisect_right(ends, start))
        start += size
        if start > ends[found[-1]]:
            return []
    return found


class RankPartners:
    """Ranks of the target lined up with one golden run."""

    def __init__(self, ranks: Mapping[int, RankRun], golden: RankRun, sizes: Optional[LayoutSizes] = None,
                 missing: Sequence[int] = ()) -> None:  # fmt: skip
        self.ranks, self.golden, self.sizes, self.missing = ranks, golden, sizes, tuple(missing)
        self.stages = stages_of(ranks)
        if sizes is not None and sizes.size("pp") > 1:
            self.stages = {rank: sizes.at(rank)["pp"] for rank in ranks}
        self.lanes = lanes_of(self.stages)
        self._groups = groups_of(ranks)
        self.found: dict[str, Partners] = defaultdict(dict)
        self._updates: dict[int, dict[str, set[tuple[Any, str]]]] = {}
        self._readers: dict[int, dict[Hashable, list[tuple[Any, str]]]] = {}
        self._partners_of_readers: dict[tuple[int, str], set[tuple[Any, str]]] = {}
        self._meshes: dict[str, Optional[Mesh]] = {}  # of all operators, once all are matched
        self._ranks_of: dict[int, set[int]] = defaultdict(set)  # by micro batch of the golden
        self.micro_batches = max(len(run.micro_batches) for run in ranks.values())
        self._match_forward()
        self._match_backward()
        self._drop_other_stages()
        self.experts = ExpertRanks(ranks, golden, self.stages, self.found, self._ranks_of)
        self._match_split_updates()
        self.sums_over_stages = self._sums_over_stages()
        self.golden_of = {(rank, one.name): self.golden.by_name[name]
                          for name, some in self.found.items() for (rank, _), one in some.items()}  # fmt: skip
        self.flat_orders = [*self._flat_orders()]
        self._meshes = {one.name: self._mesh(one) for one in golden.operators}

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The recorded groups of ranks."""
        return sorted(self._groups, key=lambda one: (len(one), one))

    def mesh(self, golden: RankOperator) -> Optional[Mesh]:
        """The mesh of an operator; None if not every rank and micro batch of it has a partner."""
        return self._meshes[golden.name] if golden.name in self._meshes else self._mesh(golden)

    def _mesh(self, golden: RankOperator) -> Optional[Mesh]:
        some = self.found.get(golden.name)
        if not some:
            return None
        found = mesh_of(some, self._axes)
        return found if found.is_full and (self.missing or not self.experts.lacks_a_rank(golden)) else None

    @property
    def is_replica(self) -> bool:
        """Whether ranks are missing, and the others are one data-parallel replica of the stated layout."""
        return self.sizes is not None and bool(self.missing) and self.sizes.is_replica(self.ranks)

    def _axes(self, ranks: Sequence[int]) -> list[int]:
        if self.missing and not self.is_replica:
            return [len(ranks)]
        sizes = self.sizes.within_stage(of_replica=self.is_replica) if self.sizes is not None else []
        if self.sizes is not None and math.prod(sizes) == len(ranks):
            return [prime for size in sizes for prime in primes(size)]
        return axes_of(ranks, sorted(self._groups))

    def _flat_orders(self) -> Iterator[RowOrder]:
        """The orders of flat buffers of parameters, which both sides fill with their own parts, by the values before
        an update."""
        for golden in self.golden.update:
            mesh = self.mesh(golden)
            if mesh is not None and mesh.split_axes:
                for one in golden.inputs:
                    if one.size > 1 and is_flat(one) and self.golden.origin(one).how == "none":
                        yield from flat_orders(mesh, one)

    def _match_forward(self) -> None:
        goldens = self.golden.micro_batches
        most = len(self.ranks) * self.micro_batches
        golden_batches, pieces = self._golden_batches(), self._pieces()
        in_pieces = {golden.name for some in pieces.values() for _, golden in some}
        for number, lane in enumerate(self.lanes):
            for batch in range(self.micro_batches):
                own, at = self._batch(lane, batch), golden_batches[number, batch]
                if at >= len(goldens):  # the golden has several micro batches, but fewer
                    continue
                self._ranks_of[at] |= {*lane}
                pairs = [(one, golden) for one, golden in match_lane(own, goldens[at], most)
                         if not self._joins_other_pieces(one, golden, most)]  # fmt: skip
                for one, golden in self._with_readers(pairs, own, goldens[at]):
                    self.found[golden.name][one.rank, batch if len(goldens) == 1 else 0] = one
            for rank in lane:
                update, known = self.ranks[rank].update, self._same_parameter
                pairs = match_lane(update, self.golden.update, len(self.lanes) / 2, known)
                taken = {one.name for one, _ in pieces[rank]}
                pairs = [(one, golden) for one, golden in pairs
                         if one.name not in taken and golden.name not in in_pieces] + pieces[rank]  # fmt: skip
                for one, golden in self._with_readers(pairs, update, self.golden.update):
                    self.found[golden.name][rank, 0] = one

    def _pieces(self) -> dict[int, Matched]:
        """The operators of an update on pieces of one flat buffer, by rank. The ranks of a group hold the pieces one
        behind the other, and sizes show of which golden tensor each is a piece."""
        found: dict[int, Matched] = defaultdict(list)
        goldens = _flat_by_type(self.golden)
        for group in self._groups:
            flat = {rank: _flat_by_type(self.ranks[rank]) for rank in group if rank in self.ranks}
            for key, some in goldens.items() if len(flat) == len(group) > 1 else ():
                sizes = [one.inputs[0].size for one in some]
                own = [[one for one in flat[rank].get(key, ()) if one.inputs[0].size <= max(sizes)] for rank in group]
                held = [sum(one.inputs[0].size for one in pieces) for pieces in own]
                fullest = group[held.index(max(held))]  # the last part may end with padding
                if not is_exchanged(self.ranks[fullest], max(held), group):
                    continue
                pieces = [*chain.from_iterable(own)]
                places = _places_of_pieces(sizes, [one.inputs[0].size for one in pieces])
                if len({(one.rank, at) for one, at in zip(pieces, places)}) == len(places):
                    for one, at in zip(pieces, places):
                        found[one.rank].append((one, some[at]))
        return found

    def _joins_other_pieces(self, one: RankOperator, golden: RankOperator, most: float) -> bool:
        """Whether the golden joins what operators wrote, and the rank other pieces, which it cut from such tensors:
        tokens that it sends back from its experts."""
        floats = [both for both in zip(one.inputs, golden.inputs) if both[0].is_float and both[1].is_float]
        if len(floats) < 2 or golden.weights:
            return False
        run = self.ranks[one.rank]
        return any(run.origin(a).how == "none" and self.golden.origin(b).how == "operator"
                   for a, b in floats if not may_be_part(a, b, most))  # fmt: skip

    def _with_readers(self, pairs: Matched, lane: Sequence[RankOperator], golden: Sequence[RankOperator]) -> Matched:
        """The pairs, and those of operators without a partner, each the only reader of what partners wrote: an
        activation of an expert has no weight that identifies it."""
        partners = {other.name: one for one, other in pairs}
        taken = {(one.rank, one.name) for one, _ in pairs}
        own: dict[tuple[int, str], list[RankOperator]] = defaultdict(list)
        theirs: dict[str, list[RankOperator]] = defaultdict(list)
        for one in lane:
            producer = self.ranks[one.rank].origin(one.inputs[0]).operator if one.inputs else None
            if producer is not None:
                own[one.rank, producer.name].append(one)
        for other in golden:
            producer = self.golden.origin(other.inputs[0]).operator if other.inputs else None
            if producer is not None:
                theirs[producer.name].append(other)
        found = list(pairs)
        for name, readers in theirs.items():
            partner = partners.get(name)
            some = own.get((partner.rank, partner.name), []) if partner is not None else []
            if len(readers) != 1 or len(some) != 1 or readers[0].name in partners:
                continue
            one, other = some[0], readers[0]
            is_free = (one.rank, one.name) not in taken and one.key == other.key
            if is_free and self._reads_partners(one, other, partners):
                partners[other.name] = one
                found.append((one, other))
        return found

    def _reads_partners(self, one: RankOperator, other: RankOperator, partners: Mapping[str, RankOperator]) -> bool:
        """Whether each input was written by the partner of the operator that wrote the golden's."""
        writers = [self.ranks[one.rank].origin(each).operator for each in one.inputs]
        theirs = [self.golden.origin(each).operator for each in other.inputs]
        return len(writers) == len(theirs) and len(one.tensors) == len(other.tensors) and all(
            writer is (partners.get(written.name) if written is not None else None)
            for writer, written in zip(writers, theirs)
        )  # fmt: skip

    def _same_parameter(self, one: RankOperator, golden: RankOperator) -> Optional[bool]:
        """Whether two operators behind the backward pass read the parameter of forward operators that are partners."""
        own, other = self._updated(self.ranks[one.rank]).get(one.name), self._updated(self.golden).get(golden.name)
        if not own or not other:
            return None
        partners = self._partners_on(one.rank, golden, other)
        if not partners:  # an operator that the ranks compute from others: its parameter shows it, if it is right
            contents = {part.content for name, slot in other
                        for part in [tensor_in(self.golden.by_name[name], slot)] if part is not None}  # fmt: skip
            parts = [tensor_in(operator, slot) for operator, slot in own]
            return True if any(part is not None and part.content in contents for part in parts) else None
        return not own.isdisjoint(partners)

    def _partners_on(self, rank: int, golden: RankOperator, readers: set[tuple[Any, str]]) -> set[tuple[Any, str]]:
        """The partners on one rank of the forward readers of the parameter that a golden operator updates."""
        key = rank, golden.name
        if key not in self._partners_of_readers:
            some = [(partner, slot) for name, slot in readers for (each, _), partner in self.found[name].items()
                    if each == rank and tensor_in(partner, slot) is not None]  # fmt: skip
            self._partners_of_readers[key] = {*some}
        return self._partners_of_readers[key]

    def _updated(self, run: RankRun) -> dict[str, set[tuple[Any, str]]]:
        """The forward readers of the parameter that each operator behind the backward pass reads, or that one reads
        which reads its output or its input, by operator. One number, such as the norm of all gradients, leads to no
        parameter."""
        if id(run) not in self._updates:
            readers, found = self._parameters(run), self._updates.setdefault(id(run), {})
            later: dict[Hashable, set[tuple[Any, str]]] = defaultdict(set)
            for operator in reversed(run.update):
                own = {
                    each for one in operator.inputs if one.content is not None for each in readers.get(one.content, ())
                }
                for some in (operator.outputs, operator.inputs):  # the second of the norm of a gradient
                    own = own or {each for one in some for each in later.get(one.content, ())}
                found[operator.name] = own
                for one in operator.inputs if own else ():
                    if one.size > 1 and one.content is not None and one.content not in readers:
                        later[one.content] |= own
        return self._updates[id(run)]

    def _parameters(self, run: RankRun) -> dict[Hashable, list[tuple[Any, str]]]:
        """The forward operators that read each content from outside: operators, or the names of the
        golden's."""
        if id(run) not in self._readers:
            found: dict[Hashable, list[tuple[Any, str]]] = defaultdict(list)
            for operator in chain.from_iterable(run.micro_batches) if run.update else ():
                for each in operator.inputs:
                    if each.is_float and each.content is not None and _is_given(run, each):
                        found[each.content].append((operator.name if run is self.golden else operator, each.slot))
            self._readers[id(run)] = found
        return self._readers[id(run)]

    def _sums_over_stages(self) -> set[str]:
        """The golden's operators that add up, within the backward pass, the gradient of a parameter that several stages
        read or update: each stage adds up its own."""
        found: set[str] = set()
        for operator in self.golden.update if len(self.lanes[0]) > 1 else ():
            readers = {name for name, _ in self._updated(self.golden)[operator.name]}
            ranks = {rank for name in (readers | {operator.name} if readers else ()) for rank, _ in self.found[name]}
            if len({self.stages[rank] for rank in ranks}) < 2:
                continue
            pending = [one for one in operator.inputs if one.size > 1]
            while pending:
                writer = self.golden.origin(pending.pop()).operator
                if writer is not None and self.golden.is_within_backward(writer) and writer.name not in found:
                    found.add(writer.name)
                    pending += [one for one in writer.inputs if one.size > 1]
        return found

    def _batch(self, lane: Sequence[int], batch: int) -> list[RankOperator]:
        """The forward operators of a micro batch of a lane, and those within its backward pass."""
        runs = [self.ranks[rank] for rank in lane]
        batches = [run.forward_batches for run in runs] + [run.backward_batches for run in reversed(runs)]
        return [one for own in batches if batch < len(own) for one in own[batch]]

    def _golden_batches(self) -> dict[tuple[int, int], int]:
        """The golden's micro batch of each lane's: the one that reads the same data. If the data do not show as many of
        each, those of a lane are neighbours or a stride apart, whichever more data show."""
        places = [(lane, batch) for batch in range(self.micro_batches) for lane in range(len(self.lanes))]
        goldens = [*map(self._data, self.golden.micro_batches)]
        found = {}
        for lane, batch in places if len(goldens) > 1 else ():
            alike = [len(self._data(self._batch(self.lanes[lane], batch)) & data) for data in goldens]
            if alike.count(max(alike)) == 1:
                found[lane, batch] = alike.index(max(alike))
        counts = Counter(found.values())
        if len(found) == len(places) and len({counts[at] for at in range(len(goldens))}) == 1:
            return found
        if len(goldens) < 2:
            return dict.fromkeys(places, 0)
        if len(goldens) != len(places):
            return {place: place[1] for place in places}
        orders = [{place: at for at, place in enumerate(some)} for some in (places, sorted(places))]
        return max(orders, key=lambda order: sum(order[place] == at for place, at in found.items()))

    def _data(self, batch: Sequence[RankOperator]) -> set[Hashable]:
        """The contents that a micro batch reads from outside, but for parameters."""
        some = (one for each in batch for at, one in enumerate(each.inputs) if at not in each.parameter_places)
        return {one.content for one in some if one.size > 1 and one.content is not None}

    def _match_backward(self) -> None:
        """Backward records have the partners of their forward operators; gradients of parameters those of their
        module."""
        for golden in self.golden.operators:
            if not golden.op.call or golden.is_backward:
                continue
            for (rank, batch), one in [*self.found.get(golden.name, {}).items()]:
                theirs = self.ranks[rank].backward_of(one)
                for back in self.golden.backward_of(golden):
                    found = next(
                        (other for other in theirs if other.is_gradient_record == back.is_gradient_record), None
                    )
                    if found is not None:
                        self.found[back.name][rank, batch] = found
        self._match_gradient_records()

    def _gradient_records(self, golden: RankOperator) -> dict[tuple[int, int], list[RankOperator]]:
        """The records of a module's gradients that have no number of a call, by rank and micro batch: those of the
        partners of its first call that the dump has beside each golden record."""
        records = self.golden.of_call(golden.op.call)
        forward = next((one for one in self.golden.operators if not one.is_backward and _is_call_of(one, golden)), None)
        found: dict[tuple[int, int], list[RankOperator]] = {}
        for (rank, batch), one in self.found.get(forward.name, {}).items() if forward is not None else ():
            theirs = self.ranks[rank].of_call(one.op.call.rpartition(".")[0])
            if batch == 0:
                found[rank, batch] = theirs[records.index(golden) :: len(records)]
        return found

    def _match_gradient_records(self) -> None:
        """Match the records of a module's gradients. Each micro batch makes one, and dump tools record either its own
        gradient or the gradient accumulated so far, which the whole run shows."""
        known = {one.name: self._gradient_records(one) for one in self.golden.operators
                 if one.is_gradient_record and not self.found.get(one.name)}  # fmt: skip
        votes = [nearer for name, some in known.items() for theirs in some.values()
                 for nearer in _accumulates(theirs, self.golden.by_name[name])]  # fmt: skip
        is_accumulated = sum(votes) * 2 >= len(votes)
        for name, some in known.items():
            for (rank, batch), theirs in some.items():
                for number, one in enumerate(theirs[-1:] if is_accumulated else theirs):
                    self.found[name][rank, batch + number] = one
        self._join_shared_gradients([*known])

    def _join_shared_gradients(self, names: Sequence[str]) -> None:
        """Join the partners of gradient records that hold one gradient: that of a weight which modules of several
        stages share. Each stage has an addend of it."""
        by_content: dict[Hashable, list[str]] = defaultdict(list)
        for name in names:
            tensors = tuple((one.slot, one.content) for one in self.golden.by_name[name].outputs)
            if tensors and all(content is not None for _, content in tensors):
                by_content[tensors].append(name)
        for same in by_content.values():
            places = [at for name in same for at in self.found[name]]
            if len(same) > 1 and len(places) == len({*places}):  # no rank has several of these modules
                joined = {at: one for name in same for at, one in self.found[name].items()}
                for name in same:
                    self.found[name] = dict(joined)

    def _match_split_updates(self) -> None:
        """Match the updates that data-parallel ranks split: those without a partner with the parts of flat buffers, and
        those of rows."""
        missing = {one.name for one in self.golden.update if self.mesh(one) is None or self._are_flat(one)}
        readers = self._parameters(self.golden)
        parameters: dict[str, dict[int, HeldTensor]] = {}
        for golden in self.golden.update:
            for one in golden.inputs:
                read = readers.get(one.content, ()) if one.content is not None else ()
                held = [self._held(name, slot) for name, slot in read]
                if held:  # the whole parameter, where modules have flat parts and products read what is gathered
                    sizes = [max((each.size for each in some.values()), default=0) for some in held]
                    parameters[golden.name] = held[sizes.index(max(sizes))]
        split = SplitUpdates(self.ranks, self.golden, self.groups)
        found = split.of_rows(parameters)
        found.update(split.of_buffers({name: one for name, one in parameters.items() if name in missing}, missing))
        for name, parts in found.items():
            self.found[name] = {(one.rank, 0): one for one in parts}

    def _held(self, name: str, slot: str) -> dict[int, HeldTensor]:
        """A tensor of a golden operator on each rank, in the first micro batch."""
        some = ((rank, tensor_in(one, slot)) for (rank, batch), one in self.found[name].items() if batch == 0)
        return {rank: each for rank, each in some if each is not None}

    def _are_flat(self, golden: RankOperator) -> bool:
        """Whether the partners of an update hold flat parts of its parameter."""
        pairs = (pair for one in self.found[golden.name].values() for pair in zip(one.tensors, golden.tensors))
        return any(len(a.shape) == 1 < len(b.shape) for a, b in pairs)

    def _drop_other_stages(self) -> None:
        """Keep the updates of the parameter that the golden updates, among those of several stages."""
        lost: set[str] = set()
        for golden in self.golden.update:
            some = self.found.get(golden.name, {})
            stages = [self.stages[rank] for rank, _ in some]
            whole = {stage for stage in stages if stages.count(stage) == len(self.lanes)}
            is_unknown = (len({*stages}) > 1 and not whole) or _lacks_parts(some, golden)
            writers = [self.golden.origin(one).operator for one in golden.inputs if one.size == 1]
            if not self.missing and (is_unknown or any(one is not None and one.name in lost for one in writers)):
                some.clear()  # the lists of some ranks are shorter, and nothing shows which of them it is
                lost.add(golden.name)
                continue
            if whole and len({*stages}) > len(whole):  # a stage of which some ranks lack it has another parameter
                for at in [at for at in some if self.stages[at[0]] not in whole]:
                    del some[at]
            if len({self.stages[rank] for rank, _ in some}) < 2 or not golden.inputs:
                continue
            likely = {}
            for at, one in some.items():
                pairs = [*zip(one.inputs[:1] + one.outputs, golden.inputs[:1] + golden.outputs)]
                shares = [share for pair in pairs if may_be_part(*pair, PARTS * len(self.ranks))
                          for share in [share_of(*pair)] if share is not None]  # fmt: skip
                likely[at] = sum(shares) / len(shares) if shares else None
            if any(share is not None and share > LIKELY for share in likely.values()):
                for at, share in likely.items():
                    if share is not None and share < UNLIKELY:
                        del some[at]
