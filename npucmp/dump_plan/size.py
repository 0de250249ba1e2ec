"""The size of a dump on a disk, estimated from an earlier dump of the same network; and the part that fits."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from npucmp.dump_plan.dump_config import FORMATS, Growing, RunFacts, recorded
from npucmp.dump_plan.questions import DETECTION, VALUES
from npucmp.dump_plan.recorded_ops import Recorded
from npucmp.model import Run

RECORD = 400  # bytes of a tensor's statistics in dump.json or a table: 220 to 580 were measured


class Size(NamedTuple):
    """The bytes of the largest step of a rank, and of the whole dump.

    steps, ranks  the counts
    operators     number of dumped operators, of `known` operators of a rank
    """

    each: int
    steps: int
    ranks: int
    total: int
    operators: int
    known: int


class FittedRequest(NamedTuple):
    """A selection that fits: names ((): all), number of steps (None: unchanged), its size, and warnings on what was
    cut."""

    names: tuple[str, ...]
    steps: Optional[int]
    size: Size
    warnings: tuple[str, ...] = ()


def bytes_of(one: Recorded, kind: str, names: Sequence[str] = ()) -> tuple[int, int]:
    """Return bytes and operator count of a run; the device's detection may dump all operators, or none."""
    orders = {order for name in names for order in one.given(name)}
    chosen = [operator for operator in one.run.operators if not names or operator.order in orders]
    if kind in (VALUES, DETECTION):
        return one.bytes([operator.order for operator in chosen]), len(chosen)
    return RECORD * sum(len(operator.tensors) for operator in chosen), len(chosen)


def sized(runs: Sequence[Run], kind: str, steps: int, ranks: int, names: Sequence[str] = ()) -> Size:
    """Return the size of a dump, with the largest run as the estimate of every run: steps × ranks of it."""
    every = [recorded(run) or Recorded(run) for run in runs]
    each, operators, known = max((*bytes_of(one, kind, names), len(one.run.operators)) for one in every)
    return Size(each, steps, ranks, each * steps * ranks, operators, known)


def fit_to_disk(
    runs: Sequence[Run], kind: str, steps: int, ranks: int, names: Sequence[str], disk: int, least: int
) -> FittedRequest:
    """Return the selection that fits: all; else fewer steps, but `least` of them; else the first operators in time.

    The first operators are selected because their errors come first. Names are returned unchanged if only steps are
    cut.
    """
    size = sized(runs, kind, steps, ranks, names)
    if size.total <= disk:
        return FittedRequest(tuple(names), None, size)
    few = min(steps, max(least, disk // max(1, size.each * ranks)))
    size = size._replace(steps=few, total=size.each * few * ranks)
    words = [f"{few:,} of {steps:,} steps fit"] if few < steps else []
    if size.total <= disk:
        return FittedRequest(tuple(names), few, size, tuple(words))
    if kind != VALUES or not {run.format for run in runs} <= {*FORMATS}:
        return FittedRequest(tuple(names), few, size, (*words, "the dump still exceeds the disk"))
    first = _first(runs, names, disk // max(1, few * ranks))
    if not first:
        return FittedRequest(tuple(names), few, size, (*words, "not even the first operator fits"))
    cut = sized(runs, kind, few, ranks, first)
    share = f"the first {cut.operators:,} of {size.operators:,} operators in execution order fit"
    return FittedRequest(first, few, cut, (*words, f"{share}: examine them first, then select the others with --ops"))


def _first(runs: Sequence[Run], names: Sequence[str], disk: int) -> tuple[str, ...]:
    """Return the names of the first operators of the largest run that fit into a rank's share of the disk."""
    known = [one for run in runs if (one := recorded(run)) is not None]
    largest = max(known, key=lambda one: bytes_of(one, VALUES, names)[0])
    growing = Growing({0: RunFacts.of(largest.run)})
    orders = {order for name in names for order in largest.given(name)}
    for operator in largest.run.operators:
        name = largest.asked(operator)
        if not name or (names and operator.order not in orders):
            continue
        more = growing.more(0, name)
        if growing.size + more.size > disk:
            break
        growing.take(more)
    return tuple(growing.names)
