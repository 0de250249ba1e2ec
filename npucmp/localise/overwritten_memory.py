"""An input that differs from what its producer wrote in the same run, though the producer's output agrees with the
golden's: the memory was overwritten between the two, or code that was not dumped changed the tensor.

The golden shows which output the input is, as both hold the same values there. If the values in the differing part are
those of another output of the target, its writer is named. If they follow from the values that were written there, as
those of a factor, a cast or an activation do, they are no other memory's.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.localise.evidence import reason
from npucmp.localise.value_reader import ValueReader
from npucmp.model import Evidence, Finding, Verdict, position
from npucmp.model.roles import is_output

ORDERS = 24  # orders of axes: work: all of four axes, the given one first
RESIDUAL = 0.01  # of the largest value: chosen: a factor that leaves less explains the values, not measured
CANDIDATES = 64  # earlier tensors that are read: work
DENSE = 0.9  # share of a piece of memory: chosen: other elements hold equal numbers by chance, not measured
DISTINCT = 4  # values: chosen: as many equal ones in the same order are not chance, not measured
# correlation: chosen: a factor, a cast, relu and dropout leave more of the values that were written, not measured
FOLLOWS = 0.5
SEVERAL = 16  # elements: chosen: the correlation of fewer shows nothing, not measured
CHANCE = 1e-6  # probability: chosen: elements scattered at random lie in so small a part, not measured


class _Written(NamedTuple):
    """A tensor of the target that another tensor's memory may hold."""

    finding: Finding
    values: Array

    @property
    def name(self) -> str:
        return f"{self.finding.pair.operator.name} {self.finding.pair.slot}"


def memory_reasons(
    findings: Sequence[Finding], read: Finding, reader: ValueReader, ordered: bool
) -> Sequence[Evidence]:
    """Return the evidence of an input that holds other values than its producer wrote; none if its producer is not
    known, or if the values follow from those that it wrote."""

    from npucmp.measure.region import region_of

    both = reader.pair(read)
    written = _producer(findings, read, reader) if both is not None else None
    if both is None or written is None:
        return ()
    found, wrote = both[0], written.values
    changed = ~((found == wrote) | (np.isnan(found) & np.isnan(wrote)) if found.dtype.kind == "f" else found == wrote)
    if not changed.any():
        return ()
    region, span = region_of(changed), _span(changed)
    is_dense = changed.reshape(-1)[span].mean() >= DENSE
    is_span = region is None or (int(changed.sum()) < region.elements and is_dense)
    piece = f"{position(span.start, changed.shape)} to {position(span.stop - 1, changed.shape)}"
    where = "" if changed.all() else piece if region is None or is_span else str(region)
    part = found.reshape(-1)[span] if region is None or is_span else region.of(found)
    facts = {"slot": read.pair.slot, "producer": written.name, "where": where and f" in {where}"}
    writer = _writer(findings, read, reader, changed, part, found)
    if writer is not None:
        if ordered and writer.finding.pair.order > written.finding.pair.order:
            words = "{slot} holds {writer}{where}: it overwrote the memory of {producer} before this operator read it"
        else:
            words = "{slot} holds {writer}{where}, not {producer}: another tensor was read, or memory overwritten"
        return (reason("overwritten", words, **facts, writer=writer.name),)
    is_part = _is_piece(changed, region) if not changed.all() else changed.size >= SEVERAL
    if not is_part or _follows(found[changed], wrote[changed]):
        return ()
    words = (
        "{slot} holds other values than {producer} wrote{where}: the memory was overwritten before it was read, or "
        "code that was not dumped changed it"
    )
    return (reason("overwritten", words, **facts),)


def _earlier(findings: Sequence[Finding], read: Finding) -> Iterator[Finding]:
    """Yield the compared tensors of earlier operators, the latest first, outputs of an operator before its inputs."""
    order = read.pair.order
    for finding in reversed(findings):
        if finding.pair.order < order and finding.pair.target is not None and finding.measurement.moments is not None:
            yield finding


def _producer(findings: Sequence[Finding], read: Finding, reader: ValueReader) -> Optional[_Written]:
    """Return the latest earlier output with the values of the input in the golden, in the axis order of the input, or
    the latest input if no output has them; None if there is none, or if it does not agree."""
    golden = reader.of(read.pair.golden)
    if golden is None or golden.min() == golden.max():
        return None
    seen = 0
    for finding in sorted(_earlier(findings, read), key=lambda each: not is_output(each.pair)):
        tensor = finding.pair.golden
        if tensor is None or math.prod(tensor.shape) != golden.size:
            continue
        seen += 1
        before = reader.of(tensor) if seen <= CANDIDATES else None
        view = _view(before, golden) if before is not None else None
        if view is None:
            continue
        values = reader.of(finding.pair.target)
        if finding.verdict is not Verdict.MATCH or values is None or before is None or values.shape != before.shape:
            return None
        axes, shape = view
        return _Written(finding, values.transpose(axes).reshape(shape))
    return None


def _view(before: Array, golden: Array) -> Optional[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the order of axes, and the shape, in which one array has the values of another; None if none does."""
    from itertools import islice, permutations

    for axes in islice(permutations(range(before.ndim)), ORDERS):
        if np.array_equal(before.transpose(axes).reshape(-1), golden.reshape(-1)):
            return axes, golden.shape
    return None


def _writer(
    findings: Sequence[Finding], read: Finding, reader: ValueReader, changed: Array, part: Array, found: Array
) -> Optional[_Written]:
    """Return the earlier output of the target whose values the changed part holds in their order: at the same places,
    one after the other, or row by row at one distance."""

    if len(np.unique(part[part != 0])) < DISTINCT:
        return None
    seen = 0
    for finding in _earlier(findings, read):
        tensor = finding.pair.target
        if not is_output(finding.pair) or tensor is None or finding.pair.target == read.pair.target:
            continue
        seen += 1
        values = reader.of(tensor) if seen <= CANDIDATES else None
        if values is None or values.size < part.size or values.dtype.kind != part.dtype.kind:
            continue
        is_there = values.size == changed.size
        at_place = is_there and np.array_equal(values.reshape(-1)[changed.reshape(-1)], found[changed])
        if at_place or _contains(values.reshape(-1), part):
            return _Written(finding, values)
    return None


def _contains(values: Array, part: Array) -> bool:
    """Whether the rows of a part stand in other values one after the other, or at one distance."""

    rows = part.reshape(-1, part.shape[-1]) if part.ndim else part.reshape(1, 1)
    if rows.shape[1] < 2 and rows.shape[0] > 1:
        rows = rows.reshape(1, -1) if values.size == rows.size else rows
    length = rows.shape[1]
    last = len(values) - length
    starts = [at for at in np.flatnonzero(values[: last + 1] == rows[0, 0]).tolist()[:CANDIDATES]
              if np.array_equal(values[at : at + length], rows[0])]  # fmt: skip
    for start in starts:
        if len(rows) == 1:
            return True
        second = [at for at in np.flatnonzero(values[: last + 1] == rows[1, 0]).tolist()[:CANDIDATES] if at > start]
        for step in (at - start for at in second):
            places = start + step * np.arange(len(rows))
            if places[-1] <= last and np.array_equal(values[places[:, None] + np.arange(length)], rows):
                return True
    return False


def _follows(found: Array, wrote: Array) -> bool:
    """Whether values follow from those that were written: the same ones in another order, or correlated ones."""

    with np.errstate(all="ignore"):
        finite = np.isfinite(found) & np.isfinite(wrote)
        x, y = found[finite].astype("float64"), wrote[finite].astype("float64")
        if np.array_equal(np.sort(x), np.sort(y)) or len(np.unique(x)) == 1:
            return True
        if len(x) < SEVERAL:
            return _is_factor(x, y)
        return bool(abs(np.corrcoef(x, y)[0, 1]) >= FOLLOWS) or _is_factor(x, y)


def _is_factor(x: Array, y: Array) -> bool:
    """Whether one factor relates two arrays, with a residual of a percent at most."""

    norm = float(y @ y)
    factor = float(x @ y) / norm if norm else 0.0
    return bool(norm and np.abs(x - factor * y).max() <= RESIDUAL * np.abs(x).max())


def _span(changed: Array) -> slice:
    """Return the shortest piece of memory with all elements that changed."""

    places = np.flatnonzero(changed)
    return slice(int(places[0]), int(places[-1]) + 1)


def _is_piece(changed: Array, region: Any) -> bool:
    """Whether elements lie in a region or a piece of memory that is too small for elements scattered at random."""

    places = np.flatnonzero(changed)
    length = int(places[-1] - places[0]) + 1
    sizes = [length] + ([region.elements] if region is not None else [])
    return any(len(places) * math.log(size / changed.size) < math.log(CHANCE) for size in sizes if size < changed.size)
