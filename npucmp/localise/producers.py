"""Which operator produced a tensor.

A dump with a graph says so itself. Others carry no edges: there, two tensors of one run with the same content are the
same tensor, so the nearest earlier output equal to an input is its producer. The golden run is asked, whose numbers no
fault disturbs; the target only where the golden run did not record what its operators read. Constant and all-zero
tensors are equal to each other by chance and link nothing, nor do numbers that people write: 0, 1, a half.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Generic, Hashable, Iterator, NamedTuple, Optional, Sequence, TypeVar

from npucmp.dump.readers.names import escaped
from npucmp.localise.row_cache import numbered, of_row
from npucmp.model import Finding, Measurement, Pair, TensorRef
from npucmp.model.roles import is_output

Owner = TypeVar("Owner")

TINY = 4  # elements
SUM_ROUNDING = 1e-9  # sums of one tensor in another order (a transpose) agree to this, relative to their scale


NO_SUMS = (0.0, 0.0)  # of what is known by its key alone


class Fingerprint(NamedTuple):
    """key must be equal; sums (of elements, of squares) agree within rounding relative to scale."""

    key: Hashable
    sums: tuple[float, float] = NO_SUMS
    scale: tuple[float, float] = NO_SUMS

    def agrees(self, other: Fingerprint) -> bool:
        """Whether both can be one tensor."""
        if self.sums == other.sums == NO_SUMS:
            return self.key == other.key
        return self.key == other.key and all(
            abs(a - b) <= SUM_ROUNDING * max(s, 1e-300) for a, b, s in zip(self.sums, other.sums, self.scale)
        )


def fingerprint(finding: Finding, of_target: bool = False) -> Optional[Fingerprint]:
    """Of the golden side; None where nothing is known of it or equality would say nothing."""
    return _of_target(finding.measurement) if of_target else _of_golden(finding)


def fingerprint_of(measurement: Measurement) -> Optional[Fingerprint]:
    """Of the golden side of a pair."""
    return _fingerprint(measurement, measurement.pair.golden, of_target=False)


@of_row
def _of_golden(finding: Finding) -> Optional[Fingerprint]:
    return fingerprint_of(finding.measurement)


def _of_target(measurement: Measurement) -> Optional[Fingerprint]:
    return _fingerprint(measurement, measurement.pair.target, of_target=True)


def _fingerprint(measurement: Measurement, tensor: Optional[TensorRef], of_target: bool) -> Optional[Fingerprint]:
    if tensor is None:
        return None
    moments, count = measurement.moments, math.prod(tensor.shape)
    if not count:
        return None
    if moments is not None:
        side = moments.target if of_target else moments.golden
        if side.minimum != side.minimum:
            return None
        if count < TINY:
            few = (side.minimum, side.maximum, side.total)
            return Fingerprint((moments.elements, *few)) if any(map(is_computed, few)) else None
        if side.minimum == side.maximum:  # a constant is known again by its error only
            constant = Fingerprint((moments.elements, side.minimum, moments.sum_dd, moments.max_abs))
            return constant if moments.max_abs else None
        key = (moments.elements, side.minimum, side.maximum, side.nan, side.posinf, side.neginf)
        return Fingerprint(key, (side.total, side.squares), (math.sqrt(side.squares * count), side.squares))
    recorded = tensor.statistics
    if count < TINY and not (recorded is not None and any(map(is_computed, recorded))):
        return None
    if count >= TINY and recorded is not None and recorded.max == recorded.min:
        return None
    if tensor.checksum:
        return Fingerprint((count, tensor.identity)) if tensor.identity else None
    if recorded is not None and None not in recorded:
        return Fingerprint((count, *recorded))
    return None


def is_few(finding: Finding) -> bool:
    """Whether a tensor is a number, or hardly more."""
    return finding.pair.golden is not None and math.prod(finding.pair.golden.shape) < TINY


def is_vector(finding: Finding) -> bool:
    """Whether a tensor has one axis or none, as the sums over all others have."""
    return finding.pair.golden is not None and len(finding.pair.golden.shape) <= 1


def is_computed(value: Optional[float]) -> bool:
    """Whether a number is none that people write or count: more than 4 significant bits."""
    return value is not None and math.isfinite(value) and abs(math.frexp(value)[0] * 16.0) % 1.0 != 0.0


class Producers(Generic[Owner]):
    """Tensors seen so far, the latest with its owner."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[tuple[Fingerprint, Owner]]] = {}

    def add(self, mark: Optional[Fingerprint], owner: Owner) -> None:
        """A tensor that `owner` wrote or was first seen with; later ones hide earlier ones of the same content."""
        if mark is not None:
            self._seen.setdefault(mark.key, []).append((mark, owner))

    def find(self, mark: Optional[Fingerprint]) -> Optional[Owner]:
        """The latest owner of a tensor with this content."""
        if mark is not None:
            for other, owner in reversed(self._seen.get(mark.key, ())):
                if mark.agrees(other):
                    return owner
        return None


class Source(NamedTuple):
    """Where an input comes from: the finding of the same tensor seen earlier, whether it descends from a root, whether
    it is memory that nobody wrote, and whether it is what is left of a sum that cancels."""

    finding: Finding
    tainted: bool
    meaningless: bool = False
    wanders: bool = False


class Trail:
    """The tensors of two runs seen so far, by the names that graphs have for them and by their content."""

    def __init__(self) -> None:
        self._seen: Producers[Source] = Producers()
        self._of_target: Producers[Source] = Producers()  # for inputs that only the target recorded: hardly ever asked
        self._unmarked: list[Source] = []  # written, and not among these yet
        self._named: dict[tuple[str, str], Source] = {}  # by side and by the name that a graph has for a tensor
        self._unnamed: list[tuple[Pair, Source, bool]] = []  # written, and not among these yet: few dumps have a graph
        self._found: dict[int, Optional[Source]] = {}  # by row, until something is added

    def source(self, finding: Finding) -> Optional[Source]:
        """Where a tensor comes from: by the graph, else by its content."""
        key = finding.row
        if key not in self._found:
            self._found[key] = self.by_graph(finding) or self.by_content(finding)
        return self._found[key]

    def by_graph(self, finding: Finding) -> Optional[Source]:
        pair = finding.measurement.pair
        for side, tensor in (("target", pair.target), ("golden", pair.golden)):
            if tensor and tensor.source and (found := self._by_name().get((side, escaped(tensor.source)))):
                return found
        return None

    def _by_name(self) -> dict[tuple[str, str], Source]:
        """What was written, by its names."""
        for pair, source, hidden in self._unnamed:
            index = source.finding.pair.slot.partition(":")[2]
            for side, operator in (("target", pair.target_op), ("golden", None if hidden else pair.golden_op)):
                if operator is not None:
                    self._named[side, escaped(f"{operator.name}:{index}")] = source
        self._unnamed.clear()
        return self._named

    def by_content(self, finding: Finding, of_target: bool = False) -> Optional[Source]:
        mark, golden = None if of_target else fingerprint(finding), finding.pair.golden
        if of_target or golden is None or (mark is None and math.prod(golden.shape) < TINY):
            for source in self._unmarked:
                self._of_target.add(fingerprint(source.finding, of_target=True), source)
            self._unmarked.clear()
            return self._of_target.find(fingerprint(finding, of_target=True))
        return self._seen.find(mark)

    def is_new(self, finding: Finding) -> bool:
        """Whether nothing of its content was seen before; what has no content to be known by is not."""
        mark = fingerprint(finding)
        return mark is not None and self._seen.find(mark) is None

    def read(self, source: Source) -> None:
        """A tensor that was read."""
        self._seen.add(fingerprint(source.finding), source)
        self._found.clear()

    def wrote(self, pair: Pair, source: Source, hidden: bool) -> None:
        """A tensor that an operator wrote; a hidden one, inside what was fused, has no name in the golden run."""
        self._seen.add(fingerprint(source.finding), source)
        self._unmarked.append(source)
        self._unnamed.append((pair, source, hidden))
        self._found.clear()


class Link(NamedTuple):
    """The operator, by its order, that wrote what a finding is about, and how that is known."""

    order: int
    how: str


def links(findings: Sequence[Finding]) -> Iterator[Optional[Link]]:
    """Who wrote what each finding reads, for findings in graph order; None for outputs, and where nothing tells."""
    trail = Trail()
    for _, group in groupby(numbered(findings), key=lambda finding: finding.pair.order):
        own = list(group)
        outputs = [finding for finding in own if is_output(finding.pair)]
        for finding in own:
            if is_output(finding.pair):
                yield None
            elif (source := trail.by_graph(finding)) is not None:
                yield Link(source.finding.pair.order, "by the graph")
            else:
                source = trail.by_content(finding) or trail.by_content(finding, of_target=True)
                yield None if source is None else Link(source.finding.pair.order, "by equal content")
        for finding in outputs:
            trail.wrote(finding.pair, Source(finding, tainted=False), hidden=False)
