"""Partners by data flow: what two partners read in one slot corresponds, and so do the operators that wrote it.

One framework computes attention, a rotary embedding or a gated activation in a module, the other one in functions. No
name and no count of operators pairs these. If the operators that read their results are partners, the data flow of each
run does: values show the writer within a run, and never which tensors of both runs correspond, so that a faulty tensor
has the partner of a right one.

An operator that computes what several golden operators compute gets a synthetic partner: each output is compared with
that of the golden operator that wrote it, each input with the golden tensor that corresponds to it.
"""

from __future__ import annotations

import heapq
from typing import Hashable, Iterator, NamedTuple, Optional, Sequence

from npucmp.align.shape_match import alike
from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Operator, Run, TensorRef
from npucmp.model.optypes import same_type
from npucmp.relations.frameworks.by_name.slots import partner_of, reshape_leading
from npucmp.relations.held_values import HeldTensor, RankOperator, Values

VIA = "fused"
CONFIDENCE = 0.8  # confidence: chosen: as of pairs by structure
MOST = 1 << 28  # elements: work: so many are read to find the writers of one run


class FlowPair(NamedTuple):
    """Two tensors that correspond."""

    target: HeldTensor
    golden: HeldTensor


class _Flow:
    """The writers of one run's tensors, of the forward pass."""

    def __init__(self, run: Run, taken: set[int], values: Values) -> None:
        self._taken, self._values = taken, values
        operators = [RankOperator(one, 0, values) for one in run.operators if one.phase != "backward"]
        alone = [one for one in operators if one.order not in taken and not (one.op.inserted or one.is_collective)]
        self._sizes = {tensor.size for one in alone for tensor in one.outputs if tensor.is_float and tensor.size > 1}
        asked = sum(tensor.size for one in operators for tensor in one.tensors if tensor.size in self._sizes)
        self.has_alone = bool(alone) and asked <= MOST
        self._operators, self._writers = operators, dict[Hashable, HeldTensor]()

    def held(self, operator: Operator) -> dict[str, HeldTensor]:
        """The float tensors of an operator by slot."""
        return {one.slot: one for one in RankOperator(operator, 0, self._values).tensors if one.is_float}

    def alone_writer(self, tensor: HeldTensor) -> Optional[HeldTensor]:
        """The output that holds a tensor first, if its operator has no partner; None if another one wrote it. Modules
        around an operator and views behind it write the same again."""
        if tensor.size not in self._sizes or tensor.content is None:
            return None
        if not self._writers:
            for operator in self._operators:
                for one in operator.outputs:
                    if one.size in self._sizes and one.is_float and one.content is not None:
                        self._writers.setdefault(one.content, one)
        found = self._writers.get(tensor.content)
        if found is None or found.operator.order >= tensor.operator.order or found.operator.order in self._taken:
            return None
        return None if found.operator.is_collective else found


class _Draft(NamedTuple):
    """An operator of the target without a partner: by slot of its outputs, what the golden wrote, and both tensors as
    partners read them."""

    operator: RankOperator
    written: dict[str, tuple[HeldTensor, FlowPair]]


def match_writers(target: Run, golden: Run, matches: Sequence[Match], context: ReadContext) -> list[Match]:
    """Return the partners of operators without one that wrote what partners read, the last ones first."""
    values = Values(context)
    inside = {order for one in matches for order in one.inside}
    flows = (
        _Flow(target, {one.target.order for one in matches}, values),
        _Flow(golden, {one.golden.order for one in matches} | inside, values),
    )
    if not all(flow.has_alone for flow in flows):
        return []
    drafts: dict[int, _Draft] = {}
    found: list[Match] = []
    todo = [(-one.target.order, at) for at, one in enumerate(matches) if one.target.phase != "backward"]
    heapq.heapify(todo)
    while todo:  # an operator follows all that read what it wrote
        order, at = heapq.heappop(todo)
        match = matches[at] if at >= 0 else _match(drafts[-order], context)
        found += [match] if at < 0 else []
        for pair in _pairs(match, flows):
            mine = flows[0].alone_writer(pair.target) if pair.target.slot.startswith("input") else None
            theirs = flows[1].alone_writer(pair.golden) if mine is not None else None
            if mine is None or theirs is None:
                continue
            if mine.operator.order not in drafts:
                drafts[mine.operator.order] = _Draft(mine.operator, {})
                heapq.heappush(todo, (-mine.operator.order, -1))
            drafts[mine.operator.order].written.setdefault(mine.slot, (theirs, pair))
    return _with_inputs(found, matches, flows, context)


def _pairs(match: Match, flows: tuple[_Flow, _Flow]) -> Iterator[FlowPair]:
    """Yield the float tensors of one slot."""
    goldens = flows[1].held(match.golden)
    for slot, tensor in flows[0].held(match.target).items():
        if slot in goldens:
            yield FlowPair(tensor, goldens[slot])


def _match(draft: _Draft, context: ReadContext) -> Match:
    """The match of a writer. If one golden operator of its type wrote all of its outputs, their inputs are partners by
    the signatures. All other tensors of the last golden operator have no partner."""
    operator = draft.operator.op
    writers = {one.operator.order: one.operator.op for one, _ in draft.written.values()}
    last = writers[max(writers)]
    own = {one.slot: one for one in operator.tensors}
    golden: dict[str, TensorRef] = {}
    if len(writers) == 1 and same_type(operator.op_type) == same_type(last.op_type):
        last = partner_of(operator, last, context)
        golden = {one.slot: one for one in last.tensors if one.slot in own and alike(one.shape, own[one.slot].shape)}
    written = {one.slot for one, _ in draft.written.values() if one.operator.order == last.order}
    rest = [one for one in last.tensors if one.slot not in golden and (one.own_slot or one.slot) not in written]
    for slot, (tensor, read) in draft.written.items():
        if alike(own[slot].shape, tensor.shape):
            golden[slot] = _in_slot(tensor.ref, slot, own[slot].shape, context)
        else:  # in the axes in which partners read it
            own[slot], golden[slot] = read.target.ref.in_slot(slot), read.golden.ref.in_slot(slot)
    rest = [one.in_slot(f"{one.slot} of the golden") if one.slot in own else one for one in rest]
    if (tensors := tuple(own.values())) != operator.tensors:
        operator = operator._replace(tensors=tensors)
    return Match(operator, last._replace(tensors=(*golden.values(), *rest)), VIA, CONFIDENCE, settled=True)


def _with_inputs(
    found: Sequence[Match], matches: Sequence[Match], flows: tuple[_Flow, _Flow], context: ReadContext
) -> list[Match]:
    """The matches with the golden tensors of inputs that partners read or wrote too."""
    known: dict[Hashable, FlowPair] = {}
    sizes = {one.size for match in found for one in flows[0].held(match.target).values()}
    for match in (*matches, *found):
        for pair in _pairs(match, flows):
            if pair.target.size in sizes and pair.target.content is not None:
                known.setdefault(pair.target.content, pair)
    complete = []
    for match in found:
        golden = {one.slot: one for one in match.golden.tensors}
        for slot, tensor in flows[0].held(match.target).items():
            read = known.get(tensor.content) if slot not in golden and tensor.content is not None else None
            if read is not None and alike(read.golden.shape, tensor.shape):
                golden[slot] = _in_slot(read.golden.ref, slot, tensor.shape, context)
        complete.append(match._replace(golden=match.golden._replace(tensors=tuple(golden.values()))))
    return complete


def _in_slot(tensor: TensorRef, slot: str, shape: tuple[int, ...], context: ReadContext) -> TensorRef:
    """The tensor in the slot and the shape of its partner."""
    return reshape_leading(tensor if tensor.slot == slot else tensor.in_slot(slot), shape, context)
