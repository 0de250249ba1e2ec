"""What npucmp says of the pairs, and how often it is right."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Optional

import npucmp
from npucmp.errors import NpucmpError
from tests.corpus.parallel.cases import Case, Written, make
from tests.corpus.parallel.faults import Fault


class Graded(NamedTuple):
    """grade: right (place 1), near (within 3), wrong, missed (nothing named), no effect (a fault that changes no dumped
    value), silent, alarm, trouble."""

    case: Case
    grade: str
    status: int
    said: str
    rank: Optional[bool]
    seconds: float


def graded(case: Case, folder: Optional[Path] = None, write: Callable[[Case, Path], Written] = make) -> Graded:
    """What npucmp says of a case; `folder` keeps the dumps, `write` makes them."""
    place = folder or Path(tempfile.mkdtemp())
    try:
        written = write(case, place)
        started = time.monotonic()
        try:
            report = npucmp.compare(written.target, written.golden, jobs=1)
        except NpucmpError as error:
            return Graded(case, "trouble", 2, str(error)[:200], None, 0.0)
        seconds = time.monotonic() - started
        roots = [root for root in report.roots if root.cause.value != "PROPAGATED"]
        named = [root.pair.golden_op.name if root.pair.golden_op else root.pair.operator.name for root in roots]
        said = " | ".join(
            f"{root.cause.value} {name} {root.slot} {root.because[:110]} … {root.because[-90:]}"
            for root, name in zip(roots[:2], named)
        )
        if not case.fault.kind:
            status = report.exit_status
            quiet = status == 0 or (status == 2 and case.style == "statistics" and not named)  # figures prove nothing
            grade = "silent" if quiet else "alarm"
            if status == 2:
                said = str(report.coverage)[:300]
            return Graded(case, grade, status, said, None, seconds)
        rank = None
        if case.ranks is not None and roots:
            rank = getattr(roots[0], "rank", None) == case.ranks[0]
        grade = "missed"
        if not named and not _has_effect(case, Path(written.target), write):
            return Graded(case, "no effect", report.exit_status, "", None, seconds)
        if named:
            grade = "right" if named[0] in written.right else "near" if written.right & {*named[:3]} else "wrong"
        return Graded(case, grade, report.exit_status, said, rank, seconds)
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def _has_effect(case: Case, target: Path, write: Callable[[Case, Path], Written]) -> bool:
    """Whether the dump of the target differs from that of the same run without the fault."""
    with tempfile.TemporaryDirectory() as folder:
        clean = write(case._replace(fault=Fault("")), Path(folder)).target
        names = {one.relative_to(target) for one in target.rglob("*") if one.suffix in (".npy", ".pt")}
        names |= {one.relative_to(target) for one in target.rglob("dump.json")} if not names else set()
        return any(
            not (clean / one).exists() or (clean / one).read_bytes() != (target / one).read_bytes() for one in names
        )


def printed(one: Graded) -> None:
    """Prints a case that is wrong."""
    rank = "" if one.rank is None else " rank ok" if one.rank else " RANK"
    if one.grade not in ("right", "silent", "no effect") or rank == " RANK":
        print(f"{one.grade:8} {one.status} {one.seconds:5.1f}s{rank} {one.case.name}: {one.said}", flush=True)


def table(found: Iterable[Graded]) -> str:
    rows: dict[str, Counter[str]] = {}
    for one in found:
        kind = "clean" if not one.case.fault.kind else "faults"
        key = f"{kind}, {one.case.style}, {one.case.base}, {one.case.level}"
        count = rows.setdefault(key, Counter())
        count[one.grade] += 1
        count["pairs"] += one.grade != "no effect"
        if one.case.fault.kind and one.status == 0 and one.grade != "no effect":
            count["exit 0"] += 1
        if one.rank is not None:
            count["rank right" if one.rank else "rank wrong"] += 1
    return "\n".join(f"{key:36} {dict(count)}" for key, count in sorted(rows.items()))
