"""What npucmp answers to a pair, graded."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Optional

import npucmp
from tests.corpus.composed.cases import KEPT, Case
from tests.corpus.composed.written import Truth, Written

CLEAN = ("silent", "hollow", "undecided", "accused", "refused", "failed")
LEAST_SHARE = 0.5
FAULTS = ("right", "unplaced", "wrong", "agrees", "undecided", "refused", "failed")


class Graded(NamedTuple):
    """The grade of a case.

    clean   silent (status 0), hollow (status 0, with less than half of the golden's elements compared), undecided (2),
            accused (1), refused (2 with an error), failed (another exception)
    faults  right: the first operator is, with rank, request and position where they are defined; unplaced: the operator
            alone; wrong; agrees (status 0); undecided (2); refused; failed
    """

    case: Case
    title: str
    grade: str
    said: str
    seconds: float


def graded(case: Case, folder: Optional[Path] = None) -> Graded:
    """Compare the dumps of a case and grade the answer; `folder` keeps them."""
    if folder is not None:
        own = folder / case.name.replace("/", "-")
        own.mkdir(parents=True)
        return _graded(case, case.make(str(own)))
    with tempfile.TemporaryDirectory() as place:
        return _graded(case, case.make(place))


def _graded(case: Case, written: Written) -> Graded:
    started = time.process_time()
    try:
        report = npucmp.compare(written.target, written.golden, jobs=1, progress=None)
    except npucmp.NpucmpError as error:
        return Graded(case, written.title, "refused", str(error), time.process_time() - started)
    except Exception as error:
        return Graded(case, written.title, "failed", repr(error), time.process_time() - started)
    seconds = time.process_time() - started
    status = report.exit_status
    first = next(iter(report.roots), None)
    said, rank = f"{status} {str(report)[-300:]}", None
    if first is not None:
        # a rank of several that were put together, or the rank that was compared
        rank = first.rank if first.rank is not None else next(c.rank for c in report.comparisons if first in c.roots)
        said = f"{status} {first.pair.operator.name} {first.slot} {first.cause.value}, rank {rank}, "
        said += f"request {first.request}, position {first.position}: {first.because[:200]}"
    if written.truth is None:
        silent = "silent" if _share(report) >= LEAST_SHARE else "hollow"
        return Graded(case, written.title, {0: silent, 1: "accused"}.get(status, "undecided"), said, seconds)
    return Graded(case, written.title, _fault_grade(written.truth, status, first, rank), said, seconds)


def _share(report: Any) -> float:
    """The share of elements that were compared, as the screen says it."""
    percent = re.search(r"([0-9.]+) % of elements compared", str(report))
    return float(percent[1]) / 100 if percent else 1.0


def _fault_grade(truth: Truth, status: int, first: Any, rank: Optional[int]) -> str:
    if status != 1 or first is None:
        return "agrees" if status == 0 else "undecided"
    if first.slot.startswith("input") and not truth.inputs:
        return "wrong"
    operators = (first.pair.operator, first.pair.target_op, first.pair.golden_op)
    if not truth.names & {operator.name for operator in operators if operator is not None}:
        return "wrong"
    places = ((truth.rank, rank), (truth.request, first.request), (truth.position, first.position))
    return "right" if all(right in (None, said) for right, said in places) else "unplaced"


def manifest(case: Case, written: Written) -> dict[str, Any]:
    """A case as plain values."""
    truth = written.truth
    facts = {"target": str(written.target), "golden": str(written.golden), "title": written.title}
    place = None if truth is None else {**truth._asdict(), "names": sorted(truth.names)}
    return {**case._asdict(), **facts, "truth": place}


def table(outcomes: Iterable[Graded]) -> str:
    """Counts of grades by combination and network, open and kept seeds apart."""
    rows: dict[tuple[str, str, str], tuple[Counter[str], Counter[str]]] = {}
    for outcome in outcomes:
        seeds = "kept" if outcome.case.seed in KEPT else "open"
        for key in (outcome.case.combination, outcome.case.network), ("all", ""):
            counts = rows.setdefault((seeds, *key), (Counter(), Counter()))
            counts[bool(outcome.case.kind)][outcome.grade] += 1
    lines = []
    for title in dict.fromkeys(key[0] for key in rows):
        lines += [f"{title} seeds", "| combination | network | clean | faults |", "|---|---|---|---|"]
        own = [key for key in rows if key[0] == title]
        for key in sorted(own, key=lambda key: key[1] == "all"):
            clean, faults = rows[key]
            lines.append(f"| {key[1]} | {key[2]} | {_counts(clean, CLEAN)} | {_counts(faults, FAULTS)} |")
    return "\n".join(lines)


def _counts(counts: Counter[str], grades: Iterable[str]) -> str:
    return ", ".join(f"{counts[grade]} {grade}" for grade in grades if counts[grade])


def as_json(outcomes: Iterable[Graded]) -> str:
    rows = [{**outcome.case._asdict(), **outcome._asdict(), "case": outcome.case.name} for outcome in outcomes]
    return json.dumps(rows)
