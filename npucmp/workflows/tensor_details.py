"""Select the diverging tensors that are read a second time (measure/error_map.py): tensors of suspects by place, then
others in order of execution; at most MOST tensors, with at most BYTES in total on both sides.

For the first suspects, the ticket data that their rows lack is collected too: the call, and the vendor's metrics of
their outputs. Values are read again, unless both sides were already read for the selected tensors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.ascend_criteria import vendor_of
from npucmp.measure.error_map import tensor_detail
from npucmp.measure.executor import default_jobs, workers
from npucmp.measure.pairs import payload_bytes
from npucmp.model import (
    Cause,
    Comparison,
    Finding,
    Operator,
    Pair,
    Report,
    Root,
    StoredComparisons,
    TensorDetail,
    Verdict,
    first_of,
    map_comparisons,
)
from npucmp.model.arguments import named_arguments
from npucmp.model.comparison import tallies_of
from npucmp.model.roles import is_output, is_parameter
from npucmp.model.table import bare_pairs, with_field
from npucmp.model.tensor_detail import ArgumentDifference, AscendCriteria, TicketFacts, image_axes
from npucmp.workflows.select_runs import RunSelection

AnyReport = TypeVar("AnyReport", bound=Report)
MOST = 64
FEWEST = 4  # candidates of each step and rank, if there are many; further ones are rarely selected
BYTES = 256 << 20


class _Candidate(NamedTuple):
    """A tensor that diverged; candidates are sorted by `first`."""

    first: tuple[bool, int, bool, int, int, str]
    step: Optional[int]
    rank: Optional[int]
    place: int
    cause: str
    run: int
    finding: Finding


def with_looks(report: AnyReport, choice: RunSelection, context: ReadContext, vendor: bool = False) -> AnyReport:
    """Return a report with as many looks as fit; if a tensor is too large, smaller ones after it may still be read. If
    the user interrupts the reading (Ctrl-C), the report has no looks. vendor: also compare outputs of suspects by the
    vendor's rules."""
    if report.partial:
        return report
    chosen, left = [], BYTES
    lost: list[str] = []
    try:
        for one in nsmallest(MOST, _candidates(report, lost)):
            size = payload_bytes(one.finding.pair)
            if size <= left:
                chosen.append(one)
                left -= size
        if not chosen and not lost:
            return report
        pool = workers(choice.jobs or default_jobs())
        found = [*pool.map(partial(_tensor_detail, context=context, vendor=vendor), chosen, _failed_detail, _weight)]
    except KeyboardInterrupt:
        return report
    failed = [one for one in found if isinstance(one, str)]
    notes = [f"no worst elements of {len(failed)} tensors: {first_of(failed)}"] if failed else []
    notes += [f"no worst elements of a step and rank: {because}" for because in lost]
    looks = tuple(one for one in found if isinstance(one, TensorDetail))
    return replace(report, looks=looks, notes=(*report.notes, *notes))


def _candidates(report: Report, lost: list[str]) -> Iterator[_Candidate]:
    """Yield the candidates of all steps and ranks with differing values, found by the processes that have the
    comparisons. If such a process dies, `lost` gets the reason."""
    comparisons = report.comparisons
    numbers, most = None, MOST
    if isinstance(comparisons, StoredComparisons):
        numbers = [at for at, tally in enumerate(comparisons.tallies) if tally.shown]
        most = max(FEWEST, MOST // max(1, len(numbers)))
    for found in map_comparisons(comparisons, partial(_of, most), _lost, numbers):
        if isinstance(found, str):
            lost.append(found)
        else:
            yield from found


def _of(most: int, run: int, one: Comparison) -> Union[list[_Candidate], str]:
    roots = {root.pair.order: root for root in one.roots}
    found = []
    for finding in one.findings:
        if finding.can_be_shown:
            order, slot = finding.pair.order, finding.pair.slot
            root = roots.get(order)
            passed = root is None or root.cause is Cause.PROPAGATED
            place, cause = (0, "") if root is None else (root.place, root.cause.value)
            first = passed, 0 if passed else place, root is None or root.slot != slot, run, order, slot
            found.append(_Candidate(first, one.step, one.rank, place, cause, run, finding))
    return nsmallest(most, found)


def _lost(number: int, because: str) -> str:
    return because


def _tensor_detail(one: _Candidate, context: ReadContext, vendor: bool) -> Union[TensorDetail, str, None]:
    """Return the details of a tensor, None without values, or the reason why it cannot be read again."""
    suspected = one.cause not in ("", Cause.PROPAGATED.value) and is_output(one.finding.pair)
    try:
        found = tensor_detail(one.finding, context, vendor and suspected)
    except NpucmpError as error:
        return _failed_detail(one, getattr(error, "because", str(error)))
    if found is None:
        return None
    return found._replace(run=one.run, step=one.step, rank=one.rank, place=one.place, cause=one.cause)


def _failed_detail(one: _Candidate, because: str) -> str:
    return f"{one.finding.pair.operator.name} {one.finding.pair.slot}: {because}"


def _weight(one: _Candidate) -> int:
    return payload_bytes(one.finding.pair)


def with_images(report: AnyReport, context: ReadContext) -> AnyReport:
    """Return the report with pictures of the first input of both runs that looks like a batch of images."""
    if report.partial or not report.comparisons:
        return report
    found = next(map_comparisons(report.comparisons, _image_pair, _no_image, [0]), None)
    if found is None or found.target is None or found.golden is None:
        return report
    from npucmp.measure.images import image_batch

    images = image_batch([found.target, found.golden], ["target", "golden"], context)
    return (
        report if images is None else replace(report, images=images._replace(op=found.operator.name, slot=found.slot))
    )


def _image_pair(number: int, one: Comparison) -> Optional[Pair]:
    """Return the first input of a forward operator whose tensors look like images; three channels come before one."""
    found: Optional[Pair] = None
    for pair in bare_pairs(with_field(one.columns, "file")):
        target, golden = pair.target, pair.golden
        if target is None or golden is None or len(golden.shape) != 4 or pair.operator.phase == "backward":
            continue
        if is_output(pair) or is_parameter(pair) or not (target.file and golden.file):
            continue
        if image_axes(target.dtype, target.shape) and image_axes(golden.dtype, golden.shape):
            if 3 in (golden.shape[1], golden.shape[3]):
                return pair
            found = found or pair
    return found


def _no_image(number: int, because: str) -> Optional[Pair]:
    return None


TICKET_FACTS_MOST = 10  # operators
ELEMENTS = 1 << 26  # elements read for all of them; outputs that do not fit have no metrics
WORDS, FRAMES = 200, 40  # characters of an argument, frames of a stack
LINE = 500  # characters of a frame
Output = tuple[int, int, str]  # an output: the number of its comparison, the order of its operator, its slot


def with_accused(report: Report, context: ReadContext) -> Report:
    """Return the report with the ticket data of its first suspects."""
    known = report.comparisons
    tallies = tallies_of(known)
    firsts = [(one.first[0], number) for number, one in enumerate(tallies)
              if one.first is not None and one.first[1] is not Cause.PROPAGATED]  # fmt: skip
    numbers = sorted(number for _, number in sorted(firsts)[:TICKET_FACTS_MOST])
    share = ELEMENTS // max(1, len(numbers))
    seen = {
        (tensor_detail.run, tensor_detail.pair.order, tensor_detail.pair.slot): tensor_detail.vendor
        for tensor_detail in report.looks
        if tensor_detail.vendor is not None
    }
    try:
        found = [*map_comparisons(known, partial(accused_of, context, share, seen), _lost, numbers)] if numbers else []
    except KeyboardInterrupt:  # the user does not want to wait for the data
        return report
    suspects = (one for facts in found if not isinstance(facts, str) for one in facts)
    every = sorted(suspects, key=lambda one: one.place)[:TICKET_FACTS_MOST]
    notes = [f"no figures by the vendor's rules of {one.op} {words}" for one in every for words in one.unread]
    notes += [f"no facts for a ticket of a step and rank: {one}" for one in found if isinstance(one, str)]
    return replace(report, accused=tuple(every), notes=(*report.notes, *notes))


def accused_of(
    context: ReadContext, elements: int, seen: Mapping[Output, AscendCriteria], number: int, one: Comparison
) -> Union[list[TicketFacts], str]:
    """Return the first suspects of one step and rank. At most `elements` of their outputs are read; `seen` are already
    known."""
    suspects = sorted((root for root in one.roots if root.cause is not Cause.PROPAGATED), key=lambda root: root.place)
    wanted = {root.pair.order for root in suspects[:TICKET_FACTS_MOST]}
    outputs: dict[int, list[Finding]] = {}
    for finding in one.findings if len(one.columns.moments) else ():
        if finding.pair.order in wanted and is_output(finding.pair) and finding.measurement.moments is not None:
            outputs.setdefault(finding.pair.order, []).append(finding)
    found = []
    for root in suspects[:TICKET_FACTS_MOST]:
        figures, unread = [], []
        for finding in outputs.get(root.pair.order, ()):
            pair = finding.pair
            size = pair.elements
            if size > elements:
                unread.append(f"{pair.slot}: {size:,} elements are too many to read again")
                continue
            elements -= size
            try:
                figures.append(seen.get((number, pair.order, pair.slot)) or vendor_of(pair, context))
            except NpucmpError as error:
                if finding.verdict is not Verdict.UNREADABLE:  # then its row has the reason
                    unread.append(f"{pair.slot}: {getattr(error, 'because', error)}")
        found.append(_ticket_facts(root, one, [one for one in figures if one is not None], unread))
    return found


def _ticket_facts(root: Root, one: Comparison, figures: Sequence[AscendCriteria], unread: Sequence[str]) -> TicketFacts:
    pair = root.pair
    stack = pair.operator.stack or (pair.golden_op.stack if pair.golden_op else ())
    return TicketFacts(
        root.place,
        one.step,
        one.rank,
        pair.operator.name,
        tuple(reason.sentence() for reason in root.evidence),
        tuple(_arguments(pair.target_op, pair.golden_op)),
        tuple(frame[:LINE] for frame in stack[:FRAMES]),
        tuple(figures),
        tuple(unread),
    )


def _arguments(target: Operator | None, golden: Operator | None) -> Iterator[ArgumentDifference]:
    """Yield the arguments by name; arguments of graphs are attributes."""
    sides = [_argument_names(side) if side is not None else {} for side in (target, golden)]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        yield ArgumentDifference(name, sides[0].get(name), sides[1].get(name))


def _argument_names(operator: Operator) -> dict[str, str]:
    found = {**named_arguments(operator), **operator.attributes}
    return {str(name)[:WORDS]: f"{value!r}"[:WORDS] for name, value in found.items()}
