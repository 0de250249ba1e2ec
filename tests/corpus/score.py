"""Grades: what npucmp says of a case, held against its truth."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from tests.corpus.planter import Case, Family, family
from tests.corpus.subject import Answer, asked
from tests.corpus.trace import Record, Run
from tests.corpus.truth import Truth, by_address
from tests.corpus.writers import cann, mindspore, msprobe, npy
from tests.corpus.writers.msprobe import Style


class Result(NamedTuple):
    """One case, graded.

    A clean one is silent, undecided, a false agreement or an alarm. A fault is right, of another cause, another
    operator, the alarm that the family's clean pair gives as well, undecided, or missed.
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    clean: bool
    beyond: float
    beyond_rounding: Optional[float]
    grade: str
    answer: Answer
    accepted: tuple[str, ...]


def grade(answer: Answer, truth: Truth, names: Mapping[tuple[int, int, str], frozenset[str]]) -> str:
    """names: (step, rank, operator's name) → accepted causes."""
    if truth.is_clean:
        if answer.status in truth.statuses and not answer.operator:
            return "silent"
        return {0: "false agreement", 2: "undecided"}.get(answer.status, "alarm")
    here = (answer.step, answer.rank, answer.operator)
    if here in names:
        return "right" if answer.cause in names[here] else "other cause"
    return {0: "missed", 2: "undecided"}.get(answer.status, "other operator")


def write(folder: Path, runs: Sequence[Run], style: Mapping[str, str]) -> None:
    format = style["format"]
    if format in ("msprobe", "mint"):
        msprobe.write(folder, runs, Style(style["task"], style["level"], format == "mint"))
    else:
        {"npy": npy, "cann": cann, "mindspore": mindspore}[format].write(folder, runs)


def names_of(runs: Sequence[Run], style: Mapping[str, str]) -> Iterator[tuple[Run, Record, str]]:
    for run in runs:
        if style["format"] in ("msprobe", "mint"):
            found = msprobe.names(run, Style(style["task"], style["level"], style["format"] == "mint"))
        else:
            found = {"npy": npy, "cann": cann, "mindspore": mindspore}[style["format"]].names(run)
        for record, name in found.items():
            yield run, record, name


def accepted_names(
    case: Case, golden: Sequence[Run], style: Mapping[str, str]
) -> dict[tuple[int, int, str], frozenset[str]]:
    """(step, rank, name in the dump) → causes; of calls that the target never made the golden's name."""
    causes = case.truth.operators
    found = {}
    for runs, missing in ((golden, True), (case.target, False)):
        wanted = {
            one: causes[key]
            for key, one in by_address(runs).items()
            if ("MISSING" in causes.get(key, ())) == missing and key in causes
        }
        for run, record, name in names_of(runs, style):
            if record in wanted:
                found[run.step, run.rank or 0, name] = wanted[record]
    return found


def graded(some: Family, place: Path, skip: tuple[str, ...] = ()) -> list[Result]:
    """Writes a family below a folder, asks npucmp about each case (without the rules in `skip`), removes it."""
    results = []
    write(place / "golden", some.golden, some.style)
    alarm = None  # what is said of the clean pair
    for case in some.cases:
        answer = _asked(case, place / "target", place / "golden", some.style, skip)
        names = accepted_names(case, some.golden, some.style)
        if not case.truth.is_clean and not names:
            raise ValueError(f"{case.name}: no operator of the dump would be right")
        said = grade(answer, case.truth, names)
        alarm = answer if alarm is None else alarm
        if said == "other operator" and answer[:5] == alarm[:5]:
            said = "clean alarm"
        told = sorted(
            f"{step}/{rank} {name} {'|'.join(sorted(causes))}" for (step, rank, name), causes in names.items()
        )
        one = Result(
            case.name,
            case.kind,
            {**case.facts, **some.style},
            case.truth.is_clean,
            case.truth.beyond,
            case.truth.beyond_rounding,
            said,
            answer,
            tuple(told),
        )
        results.append(one)
        if some.everywhere:
            results += _elsewhere(some, case, one, place, skip)
    return results


def _asked(case: Case, target: Path, golden: Path, style: Mapping[str, str], skip: tuple[str, ...]) -> Answer:
    write(target, case.target, style)
    try:
        return asked(target, golden, skip)
    finally:
        shutil.rmtree(target)


def _elsewhere(some: Family, case: Case, one: Result, place: Path, skip: tuple[str, ...]) -> list[Result]:
    """The same case in other formats, under other names: the same operator with the same cause is to be named."""
    found = []
    mine = _canonical(one.answer, case, some.style)
    for format in ("mint", "cann", "mindspore"):
        style = {**some.style, "format": format}
        golden = place / f"golden_{format}"
        if not golden.exists():
            write(golden, some.golden, style)
        answer = _asked(case, place / "target", golden, style, skip)
        agrees = _canonical(answer, case, style) == mine
        facts = {**one.facts, "format": f"{format} against msprobe"}
        found.append(one._replace(facts=facts, grade="same" if agrees else "another answer", answer=answer))
    return found


def _canonical(answer: Answer, case: Case, style: Mapping[str, str]) -> tuple[Any, ...]:
    """An answer without the spelling of a format."""
    for run, record, name in names_of(case.target, style):
        if (run.step, run.rank or 0, name) == (answer.step, answer.rank, answer.operator):
            return answer.status, run.step, run.rank, record.phase, record.kind, record.call, answer.cause
    return answer.status, answer.operator, answer.cause


def _job(domain: str, number: int, faults: int, rules: tuple[str, ...]) -> list[Result]:
    warnings.simplefilter("ignore")
    base = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="corpus-", dir=base) as folder:
        try:
            return graded(family(domain, number, faults), Path(folder), rules)
        except Exception as error:
            raise RuntimeError(f"family {domain}/{number}: {error!r}") from error


def run(
    domain: str,
    numbers: Sequence[int],
    jobs: int = 2,
    faults: int = 4,
    rules: tuple[str, ...] = (),
    progress: Any = None,
) -> Iterator[Result]:
    """The results of families in order. rules: those of npucmp that are switched off."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if jobs == 1:
        for number in numbers:
            yield from _job(domain, number, faults, rules)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_job, domain, number, faults, rules) for number in numbers]
        for future in futures:
            yield from future.result()
            if progress:
                progress()
