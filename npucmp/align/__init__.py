"""Align the operators of two runs and yield the pairs of their tensors: Run × Run → Pairs.

The matchers read names, order, shapes, arguments and call stacks. They sample values only where these leave a choice.
Matchers run in turn, each on the operators that the earlier ones left unmatched. A matcher is a function
    match(target, golden, so_far) -> list[Match]
of the unmatched operators of both sides and the matches made so far. updates.py matches the calls of an optimizer
before all of them, and order.py matches the rest after them; only these two may read values (content_match.py). No
operator and no tensor is dropped: without a partner it becomes a Pair with one empty side.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import name, updates
from npucmp.align.framework_names import differ_in_framework
from npucmp.align.shape_match import same_but_for_rows, same_shapes, shape_pair
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import UsageError
from npucmp.model import Match, Operator, Pair, Run, TensorRef
from npucmp.model.finding import FOUND_BY_CONTENT

if TYPE_CHECKING:
    from npucmp.align.msprobe_mapping import MsprobeMapping, Names
    from npucmp.relations.frameworks.contents.matches import ContentMatches
    from npucmp.relations.frameworks.contents.operator_draft import TensorRow

_pair = partial(tuple.__new__, Pair)
Matcher = Callable[[Sequence[Operator], Sequence[Operator], Sequence[Match]], "list[Match]"]
_KNOWN = ("name", "fused", "parts", "weights")  # matchers that are as certain as equal names
SURE = 0.99  # confidence: definition: of a pair by value without a second candidate
DOUBTED = 0.2  # share of operators: chosen: fewer stand behind a fault that changes shapes, or have equal values
OTHER_NAMES = 0.2  # share of partners: chosen: classes and functions of two frameworks have more other names
NAMED = 0.8  # share of operators of the larger side: chosen: so many equal names are those of one network
_ANCHORS = ("mapping", *_KNOWN)  # matchers that anchor an alignment by contents; order is a guess


class DifferentNetworks(UsageError):
    """Two runs that have too little in common to be runs of one network."""


class Alignment(NamedTuple):
    """The matches in target order, and the operators that only one side has."""

    matches: tuple[Match, ...]
    only_target: tuple[Operator, ...]
    only_golden: tuple[Operator, ...]
    open: Mapping[tuple[str, int], str] = {}  # why operators have no partner: by side and order
    by_golden: bool = False  # only the golden run has an order of execution
    contents: Optional[ContentMatches] = None  # if the runs were aligned by contents

    @property
    def matched(self) -> dict[str, int]:
        """The number of matched operators by matcher."""
        return dict(Counter(match.via for match in self.matches))


def align(
    target: Run,
    golden: Run,
    names: Optional[Names] = None,
    context: ReadContext = ANYWHERE,
    method: str = "auto",
) -> Alignment:
    """Align the operators of two runs.

    `names` maps target names to golden names and takes precedence over all matchers. It may also be a mapping file of
    msprobe. Runs of two frameworks are aligned by the meaning of their names (relations/frameworks/by_name). If names
    leave most operators without a partner, the values decide (relations/frameworks/contents): always if `method` is
    "content", never if it is "names".

    Raises DifferentNetworks if the runs have too little in common to be runs of one network.
    """
    matches: list[Match] = []
    vendor: Optional[MsprobeMapping] = None
    if names:
        from npucmp.align import mapping

        own, vendor = mapping.split_mapping(names, target.operators)
        if method == "auto" and not isinstance(names, tuple) and FOUND_BY_CONTENT.items() <= names.items():
            method = "content"
        matches = mapping.match(target.operators, golden.operators, own)
    open_ones: Mapping[tuple[str, int], str] = {}
    apart = any(vendor or ()) or differ_in_framework(target, golden)
    by_golden = golden.ordered and not target.ordered
    if apart:
        from npucmp.align.msprobe_mapping import MsprobeMapping
        from npucmp.relations.frameworks.by_name.alignment import line_up

        matches, open_ones = line_up(target, golden, matches, vendor or MsprobeMapping(), context)
    joined = None if apart or matches or method == "content" else name.join(target.operators, golden.operators)
    if joined is not None:
        contents = _contradicting(target, golden, joined, context) if method == "auto" else None
        found = Alignment(tuple(joined), (), (), by_golden=by_golden)
        return found if contents is None else _of_contents(target, golden, Alignment((), (), ()), contents)
    matches = matches or name.join_assembled(target.operators, golden.operators)
    if not apart:
        matches = _match_in_turn(target, golden, matches, context)
    matches = [_by_residual_sum(updates.by_entries(match, context), context) for match in matches]
    matches.sort(key=lambda match: match.target.order)
    only_target, only_golden = _unmatched(target, golden, matches)
    found = Alignment(tuple(matches), tuple(only_target), tuple(only_golden), open_ones, by_golden)
    if method == "content" or (method == "auto" and _leave_most_open(target, golden, matches, apart)):
        from npucmp.relations.frameworks.contents.matches import match_contents

        anchors = [one for one in matches if one.via in _ANCHORS]
        contents = match_contents(target, golden, anchors, context)
        if contents is not None:
            return _of_contents(target, golden, found, contents)
        if method == "content":
            raise DifferentNetworks(
                f"{target.path} and {golden.path} look like different networks: fewer than 10 % of their tensors have "
                "the same values, and their weights differ; check the paths, or name the partners with --mapping"
            )
    elif method == "auto" and not (apart and _has_gradients(target, golden)):
        contents = _contradicting(target, golden, matches, context)
        if contents is not None:
            return _of_contents(target, golden, Alignment((), (), ()), contents)
    _require_one_network(target, golden, matches)
    return _with_writers(target, golden, found, context) if method == "auto" else found


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _with_writers(target: Run, golden: Run, found: Alignment, context: ReadContext) -> Alignment:
    """The alignment of runs of two frameworks with the partners of operators that wrote what partners read. Within one
    framework, operators without a partner are fused or decomposed, and only what surrounds them corresponds."""
    others = sum(_without_numbers(one.target.name) != _without_numbers(one.golden.name) for one in found.matches)
    if not found.only_target or not found.only_golden or others <= OTHER_NAMES * len(found.matches):
        return found
    from npucmp.relations.frameworks.by_flow import match_writers

    more = match_writers(target, golden, found.matches, context)
    if not more:
        return found
    matches = sorted([*found.matches, *more], key=lambda match: match.target.order)
    only_target, only_golden = _unmatched(target, golden, matches)
    return found._replace(matches=tuple(matches), only_target=tuple(only_target), only_golden=tuple(only_golden))


def _by_residual_sum(match: Match, context: ReadContext) -> Match:
    """The match with the golden in the slots of the target, if one of two norms also adds its input to the residual sum
    and returns both, as those of vLLM do."""
    counts = [sum(tensor.is_output for tensor in operator.tensors) for operator in (match.target, match.golden)]
    if match.via != "name" or not match.target.path or sorted(counts) != [1, 2]:
        return match
    from npucmp.relations.frameworks.by_name.slots import has_residual_sum, partner_of

    if not has_residual_sum(match.target, match.golden):
        return match
    return match._replace(golden=partner_of(match.target, match.golden, context))


def _contradicting(
    target: Run, golden: Run, matches: Sequence[Match], context: ReadContext
) -> Optional[ContentMatches]:
    """The matches by contents, if they contradict those by names and order or match more operators; else None. They are
    asked if half of the operators have no partner of their name, or many partners have other shapes. Names of modules
    and nodes, and those that a user gave, are not doubted, only numbers of calls and guesses by order. Records of
    backward passes may hold another autograd node, which proves nothing."""
    guessed = [one for one in matches if (one.via == "order" or (one.via == "name" and not one.target.unique))
               and one.target.phase != "backward" and "/" not in one.target.name]  # fmt: skip
    if any(one.via == "mapping" for one in matches) or not guessed:
        return None
    unlike = sum(not (_is_alike(one) or _is_unreadable(one)) for one in guessed)
    named = sum(one.via != "order" for one in matches)
    smaller = min(sum(op.phase != "backward" for op in run.operators) for run in (target, golden))
    if unlike <= DOUBTED * len(guessed) and 2 * named >= smaller:
        return None
    from npucmp.relations.frameworks.contents.matches import match_contents

    contents = match_contents(target, golden, (), context, least_paired=math.inf)  # only values contradict
    if contents is None:
        return None
    partners = {one.target.order: one.golden.order for one in guessed}
    known = [one for one in contents.matches if one.via == "content" and one.target.order in partners]
    known = [one for one in known if one.confidence >= SURE] or known  # statistics leave second candidates
    others = sum(partners[one.target.order] != one.golden.order for one in known)
    is_more = len(contents.matches) > len(matches) and not _has_gradients(target, golden)
    return contents if is_more or others > DOUBTED * len(known) else None


def _has_gradients(*runs: Run) -> bool:
    """Whether a run has records of a backward pass, which may hold another autograd node in another framework."""
    return any(operator.phase == "backward" for run in runs for operator in run.operators)


def _leave_most_open(target: Run, golden: Run, matches: Sequence[Match], apart: bool) -> bool:
    """Whether names and order leave the partners of most operators open: the runs would be refused, or their names are
    those of two frameworks, or the user named a few partners, and less than half of the smaller run has one."""
    smaller = min(sum(not operator.inserted for operator in run.operators) for run in (target, golden))
    few = 2 * sum(1 + len(one.inside) for one in matches) < smaller
    is_named = any(one.via == "mapping" for one in matches)
    if few and (apart or is_named):
        return True
    try:
        _require_one_network(target, golden, matches)
    except DifferentNetworks:
        return True
    return False


def _of_contents(target: Run, golden: Run, found: Alignment, contents: ContentMatches) -> Alignment:
    """The alignment by contents, with the matches by names of operators that it leaves open."""
    matches = [*contents.matches]
    left, right = _unmatched(target, golden, matches)
    orders = {one.order for one in left}, {one.order for one in right}
    matches += [
        one
        for one in found.matches
        if one.target.order in orders[0] and one.golden.order in orders[1] and one.via in _ANCHORS
    ]
    matches.sort(key=lambda match: match.target.order)
    only_target, only_golden = _unmatched(target, golden, matches)
    by_golden = golden.ordered and not target.ordered
    return Alignment(tuple(matches), tuple(only_target), tuple(only_golden), contents.open, by_golden, contents)


def _match_in_turn(target: Run, golden: Run, matches: list[Match], context: ReadContext) -> list[Match]:
    """Return the matches and those of each matcher."""
    from npucmp.align import fused, order

    by_content: Matcher = partial(updates.match, context=context)
    in_order: Matcher = partial(order.match, context=context)
    for matcher in (by_content, fused.match, name.match, fused.match_parts, in_order):
        left, right = _unmatched(target, golden, matches)
        if left and right:
            matches = [*matches, *matcher(left, right, matches)]
    return matches


def align_or_part(
    target: Run,
    golden: Run,
    names: Optional[Names] = None,
    context: ReadContext = ANYWHERE,
    method: str = "auto",
) -> tuple[Alignment, Optional[DifferentNetworks]]:
    """Align one of several pairs of runs. If they are different networks, return an alignment without matches and the
    error."""
    try:
        return align(target, golden, names, context, method), None
    except DifferentNetworks as error:
        return Alignment((), target.operators, golden.operators), error


def _unmatched(target: Run, golden: Run, matches: Sequence[Match]) -> tuple[list[Operator], list[Operator]]:
    """The operators of both sides without a partner. Operators inside a fused operator are not included."""
    taken = {match.target.order for match in matches}
    used = {order for match in matches for order in (match.golden.order, *match.inside)}
    return [op for op in target.operators if op.order not in taken], [
        op for op in golden.operators if op.order not in used
    ]


def _require_one_network(target: Run, golden: Run, matches: Sequence[Match]) -> None:
    """Raise DifferentNetworks unless enough operators of the smaller side match with equal shapes.

    Names of different networks may coincide by chance (linear.0, add.1 …), but their shapes then differ. The smaller
    side is decisive because a dump may contain only a few layers of a network, and half of its shapes are sufficient.
    So are equal names of four fifths of the larger side. A file that cannot be read does not count as a difference.
    """
    sizes = [sum(not operator.inserted for operator in run.operators) for run in (target, golden)]
    smaller, larger = min(sizes), max(sizes)
    names_given = any(match.via == "mapping" for match in matches)
    named = sum(match.target.name == match.golden.name or match.via in _KNOWN for match in matches)
    named += sum(len(match.inside) for match in matches)
    alike = sum(_is_alike(match) or _is_unreadable(match) for match in matches)
    if names_given or named >= NAMED * larger or alike >= 0.5 * smaller:
        return
    broken = next((t for run in (target, golden) for op in run.operators for t in op.tensors if not t.slot), None)
    if broken is not None:
        raise DifferentNetworks(
            f"{broken.file or broken.label} cannot be read ({broken.problem}), and too few other operators match: "
            "nothing was compared. Write or copy the file again"
        )
    raise DifferentNetworks(
        f"{target.path} and {golden.path} look like different networks: of {len(target.operators)} and "
        f"{len(golden.operators)} operators, {alike} match with equal shapes; "
        "check the paths, or name the partners with --mapping"
    )


def _is_alike(match: Match) -> bool:
    return same_shapes(match.target, match.golden) or same_but_for_rows(match.target, match.golden)


def _is_unreadable(match: Match) -> bool:
    """Return whether two operators of one name cannot be compared because a file of theirs cannot be read."""
    tensors = *match.target.tensors, *match.golden.tensors
    return match.target.name == match.golden.name and any(not tensor.slot or tensor.problem for tensor in tensors)


def pairs(target: Run, golden: Run, alignment: Alignment) -> Iterator[Pair]:
    """Yield the tensor pairs of all operators, matched or not, in merged graph order. Both sides have one logical
    shape. Each tensor that cannot be read has a pair, in a fused operator too."""
    joined = _joined_pairs(alignment)
    lost = _unreadable(target), _unreadable(golden)
    if joined is not None and _are_alike(joined) and not any(lost):
        yield from joined
        return
    found = joined or [*_pairs(alignment)]
    if any(lost):
        found = _with_unreadable(found, lost, alignment)
    if any(one is not None and one.is_unshaped for pair in found for one in (pair.target, pair.golden)):
        found = [*map(shape_pair, found)]
    if any(one is not None and (one.layout or one.device) for pair in found for one in (pair.target, pair.golden)):
        from npucmp.align.device_layout import settle_axes

        found = settle_axes(found)
    yield from found


def _unreadable(run: Run) -> list[tuple[Operator, TensorRef]]:
    """The tensors whose slot is unknown because they cannot be read."""
    return [(op, one) for op in run.operators for one in op.tensors if one.problem and not one.slot]


def _with_unreadable(
    found: Sequence[Pair], lost: Sequence[Sequence[tuple[Operator, TensorRef]]], alignment: Alignment
) -> list[Pair]:
    """The pairs, and one for each unreadable tensor without a pair, beside those of its operator or of the operator in
    which it is fused. A partner that a graph describes has only tensors of known slots."""
    known = {(one.file, one.label, one.problem) for pair in found for one in (pair.target, pair.golden) if one}
    fused = {order: match.target.order for match in alignment.matches for order in match.inside}
    places: list[dict[int, Pair]] = [{}, {}]
    for pair in found:
        for place, op in zip(places, (pair.target_op, pair.golden_op)):
            if op is not None:
                place.setdefault(op.order, pair)
    more = []
    for side, tensors in enumerate(lost):
        for op, one in tensors:
            if (one.file, one.label, one.problem) in known:
                continue
            beside = places[side].get(op.order) or (places[0].get(fused.get(op.order, -1)) if side else None)
            order = beside.order if beside else max((pair.order for pair in found), default=-1) + 1
            ops = (beside.target_op, beside.golden_op) if beside else (None, op) if side else (op, None)
            target, golden = (None, one) if side else (one, None)
            more.append(Pair(order, "", *ops, target, golden))
    return sorted([*found, *more], key=lambda pair: pair.order) if more else [*found]


def _joined_pairs(alignment: Alignment) -> Optional[list[Pair]]:
    """The pairs, if every operator has a partner with the same slots; else None."""
    matches = alignment.matches
    one_sided = alignment.only_target or alignment.only_golden
    if one_sided or alignment.by_golden or alignment.contents is not None or not matches:
        return None
    lefts, rights = [match.target for match in matches], [match.golden for match in matches]
    counts = [len(operator.tensors) for operator in lefts]
    orders = [operator.order for operator in lefts]
    if counts != [len(operator.tensors) for operator in rights] or orders != sorted(orders):
        return None
    targets = [tensor for operator in lefts for tensor in operator.tensors]
    goldens = [tensor for operator in rights for tensor in operator.tensors]
    slots = [tensor.slot for tensor in targets]
    if slots != [tensor.slot for tensor in goldens]:
        return None
    at = iter(slots)
    if any(len({*islice(at, count)}) < count for count in counts):
        return None
    of_operators = (
        range(len(matches)),
        lefts,
        rights,
        [one.via for one in matches],
        [one.confidence for one in matches],
    )
    places, left, right, via, confidence = (chain.from_iterable(map(repeat, one, counts)) for one in of_operators)
    return [*map(_pair, zip(places, slots, left, right, targets, goldens, via, confidence, repeat("")))]


def _are_alike(pairs: Sequence[Pair]) -> bool:
    """Return whether all tensors have the shapes of their partners and none has a payload, whose layout may differ."""
    tensors = [one for pair in pairs for one in (pair.target, pair.golden) if one is not None]
    shapes = [tensor.shape for tensor in tensors]
    return shapes[::2] == shapes[1::2] and not any(tensor.payload for tensor in tensors)


def _pairs(alignment: Alignment) -> Iterator[Pair]:
    repeated = {match.target.name for match in alignment.matches}, {match.golden.name for match in alignment.matches}
    rows: Mapping[int, Sequence[TensorRow]] = alignment.contents.rows if alignment.contents is not None else {}
    for place, (left, right, match) in enumerate(_merge_orders(alignment)):
        if match is not None and left is not None and left.order in rows:
            for row in rows[left.order]:
                yield Pair(place, row.slot, left, *row[1:])
            continue
        for one, other, slot in _slots(left, right, match is not None and match.settled):
            both = one is not None and other is not None
            yield Pair(
                order=place,
                slot=slot,
                target_op=left,
                golden_op=right,
                target=one,
                golden=other,
                via=match.via if match and both else "",
                confidence=match.confidence if match and both else 0.0,
                note="" if both else _open(alignment, left, right) or _why_missing(left, right, one or other, repeated),
            )


def _open(alignment: Alignment, target: Optional[Operator], golden: Optional[Operator]) -> str:
    """The candidates for the partner of an operator without one, in words."""
    if target and golden:
        return ""
    return alignment.open.get(("target", target.order) if target else ("golden", golden.order if golden else -1), "")


def _why_missing(
    target: Optional[Operator],
    golden: Optional[Operator],
    tensor: Optional[TensorRef],
    repeated: tuple[set[str], set[str]],
) -> str:
    alone = target or golden
    if alone and alone.originals and tensor and not tensor.origin:
        return "inside an operator that the graph compiler made: the network has no such tensor"
    if target and golden and tensor and tensor.relation and tensor.relation.absence:
        return tensor.relation.absence
    if target and golden:
        others = (golden if tensor in target.tensors else target).tensors
        if any(one.problem and not one.slot for one in others):
            return "the tensors of the operator of the other run cannot be read"
        return "the operator of the other run has no such tensor"
    if alone and alone.unique and alone.name in repeated[0 if target else 1]:
        return "an earlier execution; the other run has fewer, and the newest were paired"
    if alone and alone.inserted:
        return "inserted by the graph compiler: no operator of the network corresponds to it"
    return "the golden run has no such operator" if target else "the target run has no such operator"


def _merge_orders(alignment: Alignment) -> list[tuple[Optional[Operator], Optional[Operator], Optional[Match]]]:
    """All operators in one order: the target's. An operator of the golden run alone follows its predecessor in that
    run. If only the golden run has an order of execution, the roles are exchanged."""
    rows: list[tuple[tuple[int, int, int], Optional[Operator], Optional[Operator], Optional[Match]]] = []
    leads, others = alignment.only_target, alignment.only_golden
    orders = [(match.golden.order, match.target.order) for match in alignment.matches]
    if alignment.by_golden:
        leads, others, orders = others, leads, [(there, here) for here, there in orders]
    for (_, place), match in zip(orders, alignment.matches):
        rows.append(((place, 0, 0), match.target, match.golden, match))
    for operator in leads:
        one, other = (None, operator) if alignment.by_golden else (operator, None)
        rows.append(((operator.order, 0, 0), one, other, None))
    partners = sorted(orders)
    follows, at = -1, 0
    for operator in others:
        while at < len(partners) and partners[at][0] < operator.order:
            follows = partners[at][1]
            at += 1
        one, other = (operator, None) if alignment.by_golden else (None, operator)
        rows.append(((follows, 1, operator.order), one, other, None))
    rows.sort(key=lambda row: row[0])
    return [(left, right, match) for _, left, right, match in rows]


def _slots(
    target: Optional[Operator], golden: Optional[Operator], settled: bool
) -> Iterator[tuple[Optional[TensorRef], Optional[TensorRef], str]]:
    """Pair the tensors of two operators by slot, the remaining ones by role and shape in order (a keyword on one side
    only)."""
    left = list(target.tensors) if target else []
    right = list(golden.tensors) if golden else []
    slots = [tensor.slot for tensor in left]
    if slots == [tensor.slot for tensor in right] and len({*slots}) == len(slots):  # the common case
        yield from zip(left, right, slots)
        return
    partner: dict[int, TensorRef] = {}
    free = list(range(len(right)))
    for rule in (_same_slot, _same_file) if settled else (_same_slot, _same_file, _same_role):
        for i, one in enumerate(left):
            if i in partner:
                continue
            found = next((j for j in free if rule(one, right[j])), None)
            if found is not None:
                partner[i] = right[found]
                free.remove(found)
    for i, one in enumerate(left):
        other = partner.get(i)
        yield one, other, "" if "" in (one.slot, other.slot if other else one.slot) else one.slot
    for j in free:
        yield None, right[j], right[j].slot


def _same_slot(one: TensorRef, other: TensorRef) -> bool:
    return one.slot == other.slot


def _same_file(one: TensorRef, other: TensorRef) -> bool:
    """Pair a file whose header cannot be read, which has no slot, with any remaining tensor of the same operator."""
    return not one.slot or not other.slot


def _same_role(one: TensorRef, other: TensorRef) -> bool:
    return one.slot.partition(":")[0] == other.slot.partition(":")[0] and one.shape == other.shape and bool(one.shape)
