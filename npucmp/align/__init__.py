"""Run × Run → Pairs. Sees names, order, shapes, arguments, call stacks; of values samples where these leave a choice.

MATCHERS are tried in turn, each on what the ones before it left. A matcher is a function
    match(target, golden, so_far) -> list[Match]
of the unmatched operators of both sides and the matches made so far. Calls of an optimizer are matched before these
(updates.py), and what they leave is matched by order; these two alone may look at values (content.py). Nothing is
dropped: an operator or tensor without a partner becomes a Pair with one side empty.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, islice, repeat
from typing import Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import fused, name, updates, worlds
from npucmp.align.logical import settle_axes
from npucmp.align.shape import same_but_for_rows, same_shapes
from npucmp.align.worlds.vendor import Names, Vendor
from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.errors import UsageError
from npucmp.model import Match, Operator, Pair, Run, TensorRef

_pair = partial(tuple.__new__, Pair)
Matcher = Callable[[Sequence[Operator], Sequence[Operator], Sequence[Match]], "list[Match]"]
_KNOWN = ("fused", "world", "parts", "weights")  # ways that tell as much as equal names
MATCHERS: tuple[Matcher, ...] = (fused.match, name.match, fused.match_parts)  # and then order.match


class DifferentNetworks(UsageError):
    """Two runs with so little in common that they are not two of one network."""


class Alignment(NamedTuple):
    """Matches in target order, and the operators that only one side has."""

    matches: tuple[Match, ...]
    only_target: tuple[Operator, ...]
    only_golden: tuple[Operator, ...]
    open: Mapping[tuple[str, int], str] = {}  # why others have no partner: by side and order
    by_golden: bool = False  # the golden run alone tells the order

    @property
    def matched(self) -> dict[str, int]:
        """Operators by matcher."""
        return dict(Counter(match.via for match in self.matches))


def align(target: Run, golden: Run, names: Optional[Names] = None, context: ReadContext = ANYWHERE) -> Alignment:
    """Lines up the operators of two runs. `names` maps target names to golden names and goes before all else; it may
    be what a vendor's file says. Two runs of two worlds are lined up by what names mean there (worlds/).

    Raises DifferentNetworks when the runs have so little in common that they are not two runs of one network.
    """
    matches: list[Match] = []
    vendor = Vendor()
    if names:
        from npucmp.align import mapping

        own, vendor = mapping.taken_apart(names, target.operators)
        matches = mapping.match(target.operators, golden.operators, own)
    open_ones: Mapping[tuple[str, int], str] = {}
    apart = worlds.are_apart(target, golden, vendor)
    by_golden = apart and golden.ordered and not target.ordered
    if apart:
        from npucmp.align.worlds.alignment import line_up

        matches, open_ones = line_up(target, golden, matches, vendor, context)
    joined = None if apart or matches else name.join(target.operators, golden.operators)
    if joined is not None:
        return Alignment(tuple(joined), (), ())
    by_content: Matcher = partial(updates.match, context=context)
    in_order: Matcher = partial(_in_order, context=context)
    for matcher in () if apart else (by_content, *MATCHERS, in_order):
        left, right = _unmatched(target, golden, matches)
        if left and right:
            matches += matcher(left, right, matches)
    matches = sorted((updates.by_entries(match, context) for match in matches), key=lambda match: match.target.order)
    only_target, only_golden = _unmatched(target, golden, matches)
    _require_one_network(target, golden, matches)
    return Alignment(tuple(matches), tuple(only_target), tuple(only_golden), open_ones, by_golden)


def _in_order(
    target: Sequence[Operator], golden: Sequence[Operator], so_far: Sequence[Match], context: ReadContext
) -> list[Match]:
    """The matches that the order of what is left tells."""
    from npucmp.align import order

    return order.match(target, golden, so_far, context)


def align_or_part(
    target: Run, golden: Run, names: Optional[Names] = None, context: ReadContext = ANYWHERE
) -> tuple[Alignment, Optional[DifferentNetworks]]:
    """The same for one of several pairs of runs; where two are not of one network nothing of them lines up, and why."""
    try:
        return align(target, golden, names, context), None
    except DifferentNetworks as error:
        return Alignment((), target.operators, golden.operators), error


def _unmatched(target: Run, golden: Run, matches: Sequence[Match]) -> tuple[list[Operator], list[Operator]]:
    """The operators of both sides without a partner; what is inside a fused one gets none of its own."""
    taken = {match.target.order for match in matches}
    used = {order for match in matches for order in (match.golden.order, *match.inside)}
    return [op for op in target.operators if op.order not in taken], [
        op for op in golden.operators if op.order not in used
    ]


def _require_one_network(target: Run, golden: Run, matches: Sequence[Match]) -> None:
    """Names of different networks coincide by chance (linear.0, add.1 …); their shapes then do not.

    What lines up of the smaller side decides: a dump may hold a few layers of a network. Names of their own (graph
    nodes, module paths) coincide less, so that half of the shapes will do; a file that cannot be read contradicts none.
    """
    sizes = [sum(not operator.inserted for operator in run.operators) for run in (target, golden)]
    smaller, larger = min(sizes), max(sizes)
    names_given = any(match.via == "mapping" for match in matches)
    named = sum(match.target.name == match.golden.name or match.via in _KNOWN for match in matches)
    named += sum(len(match.inside) for match in matches)
    alike = sum(_is_alike(match) or _is_unreadable(match) for match in matches)
    own = sum(match.target.unique and match.target.name == match.golden.name for match in matches)
    own_names = own >= 0.8 * smaller and alike >= 0.5 * smaller
    if names_given or own_names or named >= 0.8 * larger or alike >= 0.5 * smaller:
        return
    broken = next((t for run in (target, golden) for op in run.operators for t in op.tensors if not t.slot), None)
    if broken is not None:
        raise DifferentNetworks(
            f"too little lines up, and {broken.file or broken.label} cannot be read: {broken.problem}"
        )
    raise DifferentNetworks(
        f"{target.path} and {golden.path} look like different networks: of {len(target.operators)} and "
        f"{len(golden.operators)} operators {alike} line up with equal shapes; "
        "check the paths, or name the partners with --mapping"
    )


def _is_alike(match: Match) -> bool:
    return same_shapes(match.target, match.golden) or same_but_for_rows(match.target, match.golden)


def _is_unreadable(match: Match) -> bool:
    """Whether two operators of one name cannot be held against each other, because a file of theirs cannot be read."""
    tensors = *match.target.tensors, *match.golden.tensors
    return match.target.name == match.golden.name and any(not tensor.slot or tensor.problem for tensor in tensors)


def pairs(target: Run, golden: Run, alignment: Alignment) -> Iterator[Pair]:
    """The tensor pairs of all operators, matched or not, in merged graph order and in the same logical shapes."""
    joined = _joined_pairs(alignment)
    if joined is not None and _are_alike(joined):
        yield from joined
        return
    found = joined or [*_pairs(alignment)]
    if any(one is not None and one.is_unshaped for pair in found for one in (pair.target, pair.golden)):
        from npucmp.align.unshaped import shaped

        found = [*map(shaped, found)]
    yield from settle_axes(found)


def _joined_pairs(alignment: Alignment) -> Optional[list[Pair]]:
    """The pairs of operators that all have a partner with the same slots; None of others."""
    matches = alignment.matches
    if alignment.only_target or alignment.only_golden or alignment.by_golden or not matches:
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
    """Whether all tensors of pairs have the shapes of their partners, and no known values, which may be in another
    layout."""
    tensors = [one for pair in pairs for one in (pair.target, pair.golden) if one is not None]
    shapes = [tensor.shape for tensor in tensors]
    return shapes[::2] == shapes[1::2] and not any(tensor.payload for tensor in tensors)


def _pairs(alignment: Alignment) -> Iterator[Pair]:
    repeated = {match.target.name for match in alignment.matches}, {match.golden.name for match in alignment.matches}
    for place, (left, right, match) in enumerate(_merged(alignment)):
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
    """What may be the partner of an operator that has none."""
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
        return "inside what the graph compiler made: no tensor of the network is like it"
    if target and golden:
        return "the operator of the other run has no such tensor"
    if alone and alone.unique and alone.name in repeated[0 if target else 1]:
        return "an earlier execution; the other run has fewer, and the newest were paired"
    if alone and alone.inserted:
        return "inserted by the graph compiler: no operator of the network stands behind it"
    return "the golden run has no such operator" if target else "the target run has no such operator"


def _merged(alignment: Alignment) -> list[tuple[Optional[Operator], Optional[Operator], Optional[Match]]]:
    """All operators in one order: the target's, a golden-only operator right after the one it follows in its run; the
    other way round where the golden run alone tells the order."""
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
    """Tensors of two operators by slot; those left over by role and shape in order (a keyword on one side only)."""
    left = list(target.tensors) if target else []
    right = list(golden.tensors) if golden else []
    slots = [tensor.slot for tensor in left]
    if slots == [tensor.slot for tensor in right] and len({*slots}) == len(slots):  # of most
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
    """A file whose header cannot be read has no slot; whatever is left of the same operator is its partner."""
    return not one.slot or not other.slot


def _same_role(one: TensorRef, other: TensorRef) -> bool:
    return one.slot.partition(":")[0] == other.slot.partition(":")[0] and one.shape == other.shape and bool(one.shape)
