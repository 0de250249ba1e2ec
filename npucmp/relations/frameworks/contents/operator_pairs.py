"""From contents to pairs of tensors: each operator of the target gets a golden operator with tensors in its own slots.

The partner of an operator is synthetic, as that of a fused operator: for each tensor it has the golden tensor with the
partner of its content, of whatever golden operator. If a direct input has no partner, because the target computes in
several operators what the golden computes in one, the nearest inputs upstream that have partners are added.

Orders of axes are learned again, for tensors: at least two other pairs of these shapes, or of these ranks, must show
an order. A tensor is never compared in an order of its own. A weight is the exception: each operator may want another
layout of it, and if it is the wrong one, what the operator computes differs.

Tensors of two operators that correspond, but are no contents: ids, masks, constants, single numbers.

Equal tensors of this kind do not pair their operators. Once operators are paired, they are compared: with a tensor
of equal values, or with the only one that is left of this size and kind in an operator of one type. If operators of one
type read the same, outputs that are contents are compared too, though their values differ.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Operator, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.finding import UNBOUNDED
from npucmp.model.optypes import op_type, same_type
from npucmp.model.relation import SAME_ORDER, AxisOrder, SliceRelation
from npucmp.relations.frameworks.contents.axis_orders import (
    LEARNED,
    AxisOrders,
    Shape,
    of_other_side,
    possible_orders,
    reaches,
    without_units,
)
from npucmp.relations.frameworks.contents.axis_views import columns_of, in_one_shape
from npucmp.relations.frameworks.contents.content import FEWEST, Recording
from npucmp.relations.frameworks.contents.content_alignment import ContentAlignment
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs
from npucmp.relations.frameworks.contents.operator_draft import OperatorDraft, TensorPartner, TensorRow
from npucmp.relations.frameworks.contents.slices import VIA as PARTS
from npucmp.relations.frameworks.contents.slices import ContentSlice
from npucmp.relations.frameworks.contents.structure_match import CONFIDENCE as OF_COPIES
from npucmp.relations.frameworks.contents.structure_match import COPY, STRUCTURE
from npucmp.relations.frameworks.contents.value_match import TELLING

EQUAL = 1e-6  # relative error: chosen: float32 constants of two frameworks


def pair_leftovers(
    draft: OperatorDraft, target: ContentGraph, golden: ContentGraph, used: set[tuple[int, str]], pairs: ContentPairs
) -> None:
    """Pair the leftover tensors of an operator with those of its partner, and add them to `used`."""
    is_alike = _kind(draft.operator) == _kind(golden.operators[draft.golden])
    for written in (False, True):
        mine = [one for one in draft.operator.tensors if one.is_output == written and one.slot not in draft.partners]
        theirs = [
            one
            for one in golden.operators[draft.golden].tensors
            if one.is_output == written and (draft.golden, one.slot) not in used
        ]
        dull = [one for one in mine if _is_dull(target, draft.place, one)]
        others = [one for one in theirs if _is_dull(golden, draft.golden, one)]
        _pair_equal(draft, dull, others, used, pairs)
        if target.type_at(draft.place) == golden.type_at(draft.golden):
            _pair_last(draft, dull, others, used)
        if is_alike and not written:
            left = [one for one in theirs if golden.content_of.get((draft.golden, one.slot)) not in pairs.to_target]
            _pair_last(draft, [one for one in mine if one.slot not in draft.exact], left, used, dull)
        if is_alike and written and not draft.open_inputs and _read_the_same(draft, golden):
            _pair_outputs(draft, golden, used)


def _kind(operator: Operator) -> str:
    """The type of an operator, one for all products."""
    return "contracts" if op_type(operator.op_type).has("contracts") else same_type(operator.op_type)


def _read_the_same(draft: OperatorDraft, golden: ContentGraph) -> bool:
    """Whether an operator reads the partners of the contents that its partner reads, each as often (x·x is no multiple
    of x)."""
    read = [one.pair.golden for slot, one in draft.partners.items() if slot.startswith("input")]
    tensors = [one for one in golden.operators[draft.golden].tensors if not one.is_output]
    numbers = (golden.content_of.get((draft.golden, one.slot)) for one in tensors)
    return bool(read) and sorted(read) == sorted(one for one in numbers if one is not None)


def _pair_outputs(draft: OperatorDraft, golden: ContentGraph, used: set[tuple[int, str]]) -> None:
    """Pair outputs of one slot and shape of operators that read the same: their values differ, so that they are no
    content of both runs."""
    theirs = {one.slot: one for one in golden.operators[draft.golden].tensors if one.is_output}
    for tensor in draft.operator.tensors:
        other = theirs.get(tensor.slot)
        if other is None or tensor.slot in draft.partners or tensor.slot in draft.exact or tensor.shape != other.shape:
            continue
        if (draft.golden, other.slot) not in used:
            _take(draft, tensor, other, "the same output of operators that read the same", used)


def _is_dull(graph: ContentGraph, place: int, tensor: TensorRef) -> bool:
    return (place, tensor.slot) not in graph.content_of and bool(tensor.slot) and 0 not in tensor.shape


def _pair_equal(
    draft: OperatorDraft,
    mine: list[TensorRef],
    theirs: list[TensorRef],
    used: set[tuple[int, str]],
    pairs: ContentPairs,
) -> None:
    for tensor in [*mine]:
        for other in theirs:
            order = _equal_order(tensor, other, pairs)
            if order is not None:
                _take(draft, tensor, other, "equal values", used, order)
                mine.remove(tensor)
                theirs.remove(other)
                break


def _equal_order(tensor: TensorRef, other: TensorRef, pairs: ContentPairs) -> Optional[AxisOrder]:
    """The order of axes in which two tensors are equal, first the same; None if they differ."""
    if math.prod(tensor.shape) != math.prod(other.shape):
        return None
    shapes = without_units(tensor.shape), without_units(other.shape)
    orders = [SAME_ORDER, *possible_orders(*shapes)] if math.prod(tensor.shape) >= FEWEST else [SAME_ORDER]
    return next((order for order in orders if pairs.are_equal(tensor, other, EQUAL, order)), None)


def _pair_last(
    draft: OperatorDraft,
    mine: Sequence[TensorRef],
    theirs: Sequence[TensorRef],
    used: set[tuple[int, str]],
    dull: Optional[Sequence[TensorRef]] = None,
) -> None:
    for tensor in mine if dull is None else dull:
        fitting = [one for one in theirs if _form(one) == _form(tensor)]
        rivals = [one for one in mine if _form(one) == _form(tensor)]
        if len(fitting) == len(rivals) == 1:
            _take(draft, tensor, fitting[0], "the only tensor left of this size in both operators", used)


def _form(tensor: TensorRef) -> tuple[int, Optional[str]]:
    kind = lookup(tensor.dtype)
    return math.prod(tensor.shape), "i" if kind is not None and kind.kind in "iu" else kind.kind if kind else None


def _take(
    draft: OperatorDraft,
    tensor: TensorRef,
    other: TensorRef,
    reason: str,
    used: set[tuple[int, str]],
    order: AxisOrder = SAME_ORDER,
) -> None:
    draft.exact[tensor.slot] = other, reason, order
    used.add((draft.golden, other.slot))


UPSTREAM = 24  # steps: chosen: more than any decomposed operator has
_CONFIRMING = ("contracts", "normalises")
ALIKE = 4.0  # noise: chosen: errors of pairs by value, whose tensors agree within the noise of the runs


class OperatorPairs:
    """The matches of two runs that were aligned by contents.

    rows  the tensors of each match, by the target's order; those of the partner itself first
    """

    def __init__(self, found: ContentAlignment, context: ReadContext) -> None:
        self._pairs, self._context = found.pairs, context
        self._target, self._golden = found.pairs.target, found.pairs.golden
        self._slices: dict[int, list[ContentSlice]] = defaultdict(list)
        self._parts: dict[int, ContentSlice] = {}
        for one in found.slices:
            if one.of_golden:
                self._parts[one.part] = one
            else:
                self._slices[one.whole].append(one)
        self._used: set[tuple[int, str]] = set()
        self._movers = {
            place
            for place, operator in enumerate(self._golden.operators)
            if not operator.path and self._golden.hands_on(place)
        }
        self._own_orders: dict[tuple[int, tuple[Shape, Shape]], AxisOrder] = {}  # of a content in shapes of both runs
        self._showing: dict[tuple[int, int], dict[AxisOrder, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._orders = self._learned_orders()
        self._first_orders = {ranks: self._first_order(showing) for ranks, showing in self._showing.items()}
        self._partners: dict[tuple[int, int], Operator] = {}
        self.rows: dict[int, list[TensorRow]] = {}
        self.matches: list[Match] = []
        drafts = [*filter(None, map(self._draft, range(len(self._target.operators))))]
        drafts += self._by_reads({one.place for one in drafts})
        drafts += self._inner({one.place for one in drafts})
        drafts.sort(key=lambda one: one.place)
        self._finish(drafts)

    # Golden tensors of the tensors of one operator

    def _partner_pair(self, number: Optional[int]) -> Optional[ContentPair]:
        if number is None:
            return None
        if number in self._pairs.found:
            return self._pairs.found[number]
        golden = self._pairs.copies.get(number)
        if golden is None:
            return None
        reason = "the operator hands on what it reads, but wrote other values"
        return ContentPair(number, golden, COPY, OF_COPIES, reason)

    def _draft(self, place: int) -> Optional[OperatorDraft]:
        """The golden tensors of an operator's tensors; None if none of its outputs has one."""
        operator = self._target.operators[place]
        draft = OperatorDraft(place, operator)
        for tensor in operator.tensors:
            pair = self._partner_pair(self._target.content_of.get((place, tensor.slot)))
            if pair is not None and tensor.is_output:
                recording = self._golden_output(place, tensor, pair)
                if recording is not None:
                    draft.partners[tensor.slot] = TensorPartner(recording, pair)
        sliced = [one for one in self._target.writes[place] if one in self._slices or one in self._parts]
        if not draft.partners and not sliced:
            return None
        if draft.partners:
            first = next(iter(draft.partners.values()))
            draft.golden = first.recording.operator
        else:
            number = sliced[0]
            one = self._parts[number] if number in self._parts else self._slices[number][0]
            other = one.whole if number in self._parts else one.part
            draft.golden = self._golden.contents[other].makers[0]
        self._add_inputs(draft)
        return draft

    def _add_inputs(self, draft: OperatorDraft) -> None:
        for tensor in draft.operator.tensors:
            if tensor.is_output:
                continue
            number = self._target.content_of.get((draft.place, tensor.slot))
            pair = self._partner_pair(number)
            if pair is not None:
                draft.partners[tensor.slot] = TensorPartner(self._golden_input(draft, tensor, pair), pair)
            elif number is not None:
                draft.open_inputs.append(number)

    def _golden_output(self, place: int, tensor: TensorRef, pair: ContentPair) -> Optional[Recording]:
        """The golden output that a target output is compared with: of an operator of its type if there is one, in its
        shape, and one that no other output is compared with."""
        written = [one for one in self._golden.tensors_of(pair.golden) if one.tensor.is_output]
        if not written:
            return self._golden.tensors_of(pair.golden)[0]
        content = self._target.contents[pair.target]
        makers = self._golden.contents[pair.golden].makers
        kind, module = self._target.type_at(place), bool(self._target.operators[place].path)
        computes = place in content.makers
        shape = without_units(tensor.shape)

        def rank(one: Recording) -> tuple[bool, ...]:
            operator = self._golden.operators[one.operator]
            return (
                bool(operator.path) != module,
                (one.operator in makers) != computes,
                without_units(one.tensor.shape) != shape,
                self._golden.type_at(one.operator) != kind,
                (one.operator, one.tensor.slot) in self._used,
            )

        best = min(written, key=rank)
        self._used.add((best.operator, best.tensor.slot))
        return best

    def _golden_input(self, draft: OperatorDraft, tensor: TensorRef, pair: ContentPair) -> Recording:
        """The golden tensor that a target input is compared with: what the golden partner itself reads, else what was
        written."""
        taken = {(one.recording.operator, one.recording.tensor.slot) for one in draft.partners.values()}
        shape = without_units(tensor.shape)

        def rank(one: Recording) -> tuple[bool, ...]:
            own = one.operator == draft.golden and not one.tensor.is_output
            return (
                not own,
                (one.operator, one.tensor.slot) in taken,
                without_units(one.tensor.shape) != shape,
                not one.tensor.is_output,
            )

        return min(self._golden.tensors_of(pair.golden), key=rank)

    # Matches without values: outputs that are no contents

    def _by_reads(self, taken: set[int]) -> list[OperatorDraft]:
        """Operators of which no output is a content (a loss, chosen indices, zeros without a bias): those of one type
        that read the same partners, the only ones on both sides."""
        found = []
        goldens: dict[object, list[int]] = defaultdict(list)
        for place, operator in enumerate(self._golden.operators):
            is_open = not any(one in self._pairs.to_target for one in self._golden.writes[place])
            if is_open and self._golden.reads[place]:
                key = _kind(operator), frozenset(self._golden.reads[place])
                goldens[key].append(place)
        targets: dict[object, list[int]] = defaultdict(list)
        known = self._pairs.with_copies
        for place, operator in enumerate(self._target.operators):
            if place in taken or self._target.writes[place] or not self._target.reads[place]:
                continue
            if all(one in known for one in self._target.reads[place]):
                partners = frozenset(known[one] for one in self._target.reads[place])
                targets[_kind(operator), partners].append(place)
        for reads, places in targets.items():
            if len(places) == len(goldens.get(reads, ())) == 1:
                draft = OperatorDraft(places[0], self._target.operators[places[0]], goldens[reads][0], via=STRUCTURE)
                self._add_inputs(draft)
                found.append(draft)
        return found

    def _inner(self, taken: set[int]) -> list[OperatorDraft]:
        """Operators of the target that compute a part of what a golden operator computes: their inputs are compared
        with the inputs of the golden operator that reads most of them, of one type if there is one."""
        found = []
        for place, operator in enumerate(self._target.operators):
            if place in taken or not any(tensor.is_output for tensor in operator.tensors):
                continue
            pairs = [self._partner_pair(one) for one in self._target.reads[place]]
            readers = Counter(
                reader
                for pair in pairs
                if pair is not None
                for reader in {*self._golden.contents[pair.golden].readers}
                if reader not in self._movers
            )
            if not readers:
                continue
            kind = _kind(operator)
            golden = max(readers, key=lambda one: (readers[one], _kind(self._golden.operators[one]) == kind, -one))
            draft = OperatorDraft(place, operator, golden, via=next(pair.via for pair in pairs if pair is not None))
            self._add_inputs(draft)
            if draft.partners:
                found.append(draft)
        return found

    # Orders of axes

    def _learned_orders(self) -> AxisOrders:
        """The orders of axes that pairs of tensors show: of each two contents with the same values, once for each two
        shapes in which they were recorded."""
        orders = AxisOrders()
        for pair in self._pairs:
            if pair.error is None or self._target.contents[pair.target].size < TELLING:
                continue
            own = self._pairs.shapes(pair.target, pair.golden)
            seen = {own}
            if pair.order is not None:
                count = LEARNED if self._are_weights(pair) else 1  # its gradient has the same order of axes
                count = LEARNED + 1 if pair.order.blocks else count  # weights show it
                orders.learn(*own, pair.order, count)
                self._note_order(pair.target, own, pair.order)
            for one in self._target.tensors_of(pair.target):
                for other in self._golden.tensors_of(pair.golden):
                    shapes = without_units(one.tensor.shape), without_units(other.tensor.shape)
                    if shapes in seen:
                        continue
                    seen.add(shapes)
                    found = self._pairs.tensor_order(one.tensor, other.tensor, shapes)
                    if found is not None:
                        orders.learn(*shapes, found)
                        self._note_order(pair.target, shapes, found)
        return orders

    def _note_order(self, number: int, shapes: tuple[Shape, Shape], order: AxisOrder) -> None:
        self._own_orders[number, shapes] = order
        if not self._target.contents[number].is_weight:
            self._showing[len(shapes[0]), len(shapes[1])][order].add(number)

    def _first_order(self, showing: Mapping[AxisOrder, set[int]]) -> Optional[AxisOrder]:
        """The order that several contents show, and one before all contents that show others: behind exchanged axes
        most contents may show that order."""
        golden = self._golden.run.ordered

        def place(number: int) -> int:
            pair = self._pairs.found[number]
            return self._golden.contents[pair.golden].first if golden else self._target.contents[number].first

        several = [order for order, numbers in showing.items() if len(numbers) >= LEARNED]
        return min(several, key=lambda order: min(map(place, showing[order])), default=None)

    def _shown_orders(self, number: int, shapes: tuple[Shape, Shape]) -> list[AxisOrder]:
        """The orders that other contents show for a content, the most frequent first."""
        learned = self._orders.learned(*shapes, self._own_orders.get((number, shapes)))
        ranks = len(shapes[0]), len(shapes[1])
        found = [one for one in learned if self._is_shown_apart(ranks, one)]
        first = self._first_orders.get(ranks)
        return found or [one for one in (first, SAME_ORDER) if one is not None and reaches(one, *shapes)][:1]

    def _is_shown_apart(self, ranks: tuple[int, int], order: AxisOrder) -> bool:
        """Whether an order is the first one of tensors with so many axes, or contents show it that are computed from no
        other content that shows it: behind exchanged axes all are computed from one."""
        numbers = self._showing[ranks].get(order, set()) if ranks in self._showing else set()
        if not numbers or order.blocks or self._first_orders[ranks] in (None, order):
            return True
        return sum(self._target.near_upstream(one).isdisjoint(numbers) for one in numbers) >= LEARNED

    def _order_of(self, tensor: TensorRef, partner: TensorPartner) -> Optional[AxisOrder]:
        """The order of axes in which two tensors are compared; None if none is learned."""
        other = partner.recording.tensor
        shapes = without_units(tensor.shape), without_units(other.shape)
        pair = partner.pair
        if pair.error is None and pair.via == "content":
            return SAME_ORDER
        learned = self._orders_of_view(tensor, partner) or self._shown_orders(pair.target, shapes)
        if self._are_weights(pair) and pair.error is not None:
            learned += [one for one in possible_orders(*shapes) if one not in learned]
        if len(learned) < 2:
            return learned[0] if learned else None
        return self._pairs.tensor_order(tensor, other, shapes, learned, strict=False)

    def _orders_of_view(self, tensor: TensorRef, partner: TensorPartner) -> list[AxisOrder]:
        """The orders of two contents, for tensors that have the elements of the contents in other shapes; none if the
        order of one differs."""
        pair, other = partner.pair, partner.recording.tensor
        contents = self._target.contents[pair.target], self._golden.contents[pair.golden]
        own = self._pairs.shapes(pair.target, pair.golden)
        shapes = without_units(tensor.shape), without_units(other.shape)
        if shapes == own or self._are_weights(pair) or contents[0].size < TELLING:
            return []
        if not (contents[0].is_in_order(tensor) and contents[1].is_in_order(other)):
            return []
        orders = (one for order in self._shown_orders(pair.target, own) for one in (order, of_other_side(order)))
        return [one for one in orders if reaches(one, *shapes)][:1]

    def _are_weights(self, pair: ContentPair) -> bool:
        return self._target.contents[pair.target].is_weight and self._golden.contents[pair.golden].is_weight

    # Matches and links

    def _finish(self, drafts: Sequence[OperatorDraft]) -> None:
        owners: dict[int, OperatorDraft] = {}
        for draft in drafts:
            owners.setdefault(draft.golden, draft)
        used = {
            (one.recording.operator, one.recording.tensor.slot) for draft in drafts for one in draft.partners.values()
        }
        for draft in drafts:
            pair_leftovers(draft, self._target, self._golden, used, self._pairs)
        rows = [
            [row for tensor in draft.operator.tensors for row in self._rows_of(draft, tensor, used)]
            + self._upstream_rows(draft, used)
            for draft in drafts
        ]
        for draft, some in zip(drafts, rows):
            leftover = []
            if owners[draft.golden] is draft:
                operator = self._golden.operators[draft.golden]
                leftover = [one for one in operator.tensors if (draft.golden, one.slot) not in used]
            self._add_match(draft, some, leftover)

    def _upstream_rows(self, draft: OperatorDraft, used: set[tuple[int, str]]) -> list[TensorRow]:
        """The rows of the inputs upstream, whose golden tensors are added to `used`."""
        rows = []
        for tensor, slot, pair in self._upstream_inputs(draft):
            recording = self._golden_input(draft, tensor, pair)
            row = self._row(draft, tensor, slot, TensorPartner(recording, pair))
            if row is not None:
                rows.append(row._replace(target=row.target and row.target.in_slot(slot)))
                used.add((recording.operator, recording.tensor.slot))
        return rows

    def _add_match(self, draft: OperatorDraft, rows: list[TensorRow], leftover: Sequence[TensorRef]) -> None:
        own = self._golden_operator(draft, draft.golden)
        slots = {one.slot for one in rows}
        for tensor in leftover:
            slot = f"{tensor.slot} of the golden" if tensor.slot in slots else tensor.slot
            rows.append(TensorRow(slot, own, None, tensor, note="the target computes with other tensors"))
        rows.sort(key=lambda row: row.golden_op is not own)
        self.rows[draft.operator.order] = rows
        self.matches.append(Match(draft.operator, own, draft.via_of, draft.confidence_of, settled=True))

    def _golden_operator(self, draft: OperatorDraft, place: int) -> Operator:
        """The golden operator without arguments of its own, which other frameworks spell otherwise."""
        key = draft.place, place
        if key not in self._partners:
            operator = self._golden.operators[place]
            self._partners[key] = operator._replace(arguments=draft.operator.arguments)
        return self._partners[key]

    def _rows_of(self, draft: OperatorDraft, tensor: TensorRef, used: set[tuple[int, str]]) -> list[TensorRow]:
        """The row of a tensor, or those of its slices, whose golden tensors are added to `used`."""
        own = self._golden_operator(draft, draft.golden)
        partner = draft.partners.get(tensor.slot)
        row = None
        if partner is not None:
            row = self._row(draft, tensor, tensor.slot, partner)
        elif tensor.slot in draft.exact:
            other, reason, order = draft.exact[tensor.slot]
            shaped = in_one_shape(tensor, other, order, self._context)
            if shaped is not None:
                row = TensorRow(tensor.slot, own, *shaped, draft.via_of, draft.confidence_of, reason)
        if row is not None:
            return [row]
        number = self._target.content_of.get((draft.place, tensor.slot))
        found = []
        if number is not None and (tensor.is_output or number in self._slices):
            found = self._sliced(draft, tensor, number, used)
        note = "the golden run has no such tensor"
        read = self._target.content_of.get((draft.place, tensor.slot))
        if not tensor.is_output and read is not None and not self._target.is_bounded(read, self._pairs.with_copies):
            note = UNBOUNDED
        return found or [TensorRow(tensor.slot, own, tensor, None, note=note)]

    def _row(self, draft: OperatorDraft, tensor: TensorRef, slot: str, partner: TensorPartner) -> Optional[TensorRow]:
        order = self._order_of(tensor, partner)
        other, pair = partner.recording, partner.pair
        if order is not None and self._is_rearranged(draft, pair, tensor, other.tensor, order):
            return None
        both = None if order is None else in_one_shape(tensor, other.tensor, order, self._context)
        if both is None:
            return None
        return TensorRow(
            slot, self._golden_operator(draft, other.operator), *both, pair.via, pair.confidence, pair.reason
        )

    def _is_rearranged(
        self, draft: OperatorDraft, pair: ContentPair, tensor: TensorRef, golden: TensorRef, order: AxisOrder
    ) -> bool:
        """Whether a tensor of a pair by value stands in an arrangement that no order of axes expresses, as groups of
        channels do, and what is computed from it is right."""
        if pair.error is None or pair.error > ALIKE * self._pairs.noise:
            return False
        contents = self._target.contents[pair.target], self._golden.contents[pair.golden]
        if pair.order == order and (tensor.shape, golden.shape) == (contents[0].tensor.shape, contents[1].tensor.shape):
            return False
        shapes = without_units(tensor.shape), without_units(golden.shape)
        if self._pairs.tensor_order(tensor, golden, shapes, [order]) is not None:
            return False
        return self._is_confirmed(
            pair.target, draft.place if tensor.is_output else min(contents[0].makers, default=-math.inf)
        )

    def _is_confirmed(self, number: int, place: float) -> bool:
        """Whether a product, a norm or a module made what its partner has, of this content. If the order is
        known, that stands behind the operator at `place`."""
        place = place if self._target.run.ordered else -math.inf
        seen, level = {number}, self._target.children[number]
        for _ in range(UPSTREAM):
            level = {one for one in level - seen if any(maker > place for maker in self._target.contents[one].makers)}
            seen |= level
            if any(map(self._is_made_right, level)):
                return True
            level = {child for one in level if self._may_agree(one) for child in self._target.children[one]}
        return False

    def _may_agree(self, number: int) -> bool:
        """Whether a content has no partner, or one with which it agrees. A pool hides the order of other values."""
        pair = self._pairs.found.get(number)
        return pair is None or (pair.error is not None and pair.error <= ALIKE * self._pairs.noise)

    def _is_made_right(self, number: int) -> bool:
        """Whether a product, a norm or a module made a content that has a partner by value, in an order of axes that
        other pairs have too."""
        pair = self._pairs.found.get(number)
        if pair is None or pair.error is None or pair.error > ALIKE * self._pairs.noise:
            return False
        if pair.order is not None and pair.order not in self._shown_orders(
            number, self._pairs.shapes(number, pair.golden)
        ):
            return False
        makers = [self._target.operators[place] for place in self._target.contents[number].makers]
        return any(one.path or op_type(one.op_type).has(*_CONFIRMING) for one in makers)

    def _sliced(
        self, draft: OperatorDraft, tensor: TensorRef, number: int, used: set[tuple[int, str]]
    ) -> list[TensorRow]:
        if not self._target.contents[number].is_in_order(tensor):
            return []
        if number in self._parts:
            one = self._parts[number]
            whole = self._golden.contents[one.whole]
            view = columns_of(whole.tensor, one.start, one.width, tensor.shape, self._context)
            pair = ContentPair(number, one.whole, PARTS, one.confidence, "", error=None if one.by_weights else 0.0)
            if view is not None and not self._is_rearranged(draft, pair, tensor, view, SAME_ORDER):
                relation = SliceRelation(len(whole.shape) - 1, one.start, one.start + one.width, of_golden=True)
                target = tensor._replace(relation=relation)
                golden_op = self._golden_operator(draft, whole.makers[0])
                used.add((whole.makers[0], whole.tensor.slot))
                return [TensorRow(tensor.slot, golden_op, target, view._replace(relation=None), *_of_slice(one))]
        found = []
        for one in sorted(self._slices.get(number, ()), key=lambda each: each.start):
            part = self._golden.contents[one.part]
            view = columns_of(tensor, one.start, one.width, part.tensor.shape, self._context)
            if view is not None:
                slot = f"{tensor.slot}.{one.start}"
                golden_op = self._golden_operator(draft, part.makers[0])
                used.add((part.makers[0], part.tensor.slot))
                found.append(TensorRow(slot, golden_op, view, part.tensor, *_of_slice(one)))
        return found

    def _upstream_inputs(self, draft: OperatorDraft) -> list[tuple[TensorRef, str, ContentPair]]:
        """The nearest tensors with partners from which inputs without partners are computed, each with a slot."""
        known = self._pairs.with_copies
        direct = {one.pair.target for one in draft.partners.values()}
        found: dict[int, tuple[TensorRef, str, ContentPair]] = {}
        for number in draft.open_inputs:
            if number in self._slices:
                continue  # compared in parts
            for ancestor in sorted(self._target.ancestors(number, known, UPSTREAM)):
                pair = self._partner_pair(ancestor)
                if ancestor in direct or ancestor in found or pair is None:
                    continue
                readers = [place for place in self._target.contents[ancestor].readers if place < draft.place]
                reader = readers[-1] if readers else self._target.contents[ancestor].first
                recordings = self._target.tensors_of(ancestor)
                one = next((each for each in recordings if each.operator == reader), recordings[0])
                name = self._target.operators[one.operator].name
                place = one.tensor.slot.partition(":")[2] if not one.tensor.is_output else "0"
                found[ancestor] = one.tensor, f"input:{place} of {name}", pair
        return [*found.values()]


def _of_slice(one: ContentSlice) -> tuple[str, float, str]:
    return PARTS, one.confidence, one.reason
