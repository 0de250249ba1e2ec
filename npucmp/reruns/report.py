"""The Answer of `npucmp rerun-diff`: the runs, the operators that differ between them, and where the difference begins.

rerun.csv has one row per operator that is not bit-equal in all runs, noise.csv one per tensor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Iterator, Sequence

from npucmp.model import Cause, Rerun, RerunResult, Run, Verdict
from npucmp.model.stack import source_line, source_path
from npucmp.report import compare, tables
from npucmp.report.answer import Answer, Detail, DumpSummary, Row, Section, Suspect, Suspects
from npucmp.report.comparison_parts import Parts, facts, several
from npucmp.report.coverage import AlignedShare, open_words
from npucmp.report.next_commands import of_reruns
from npucmp.report.phrases import count_of, known_numbers, percent
from npucmp.report.rank_summary import RunInfo

COLUMNS = tuple(
    (
        "place step rank order op op_type slot cause differing_elements max_abs_err rel_l2 max_ulp runs because stack"
    ).split(" ")
)
NOISE_COLUMNS = ("op", "slot", "rel_l2", "max_abs_err", "runs")
FIGURES = ("exact_ratio", "max_ulp", "max_abs_err", "rel_l2")
NEXT = {  # docs/workflow.md explains each in more words
    "BORN": "this operator is not deterministic, or another operator writes to its memory: run it alone, many times",
    "GAP": "read the source between the two operators: code that was not dumped, or memory that changed in between",
    "UNKNOWN": "dump inputs too",
}
MEANING_OF_WEIGHTS = {"GAP": "the parameter has other bits in another run"}
NEXT_OF_WEIGHTS = {"GAP": "synchronise this tensor again; npucmp compare compares it with the trainer's checkpoint"}


def answer(report: RerunResult, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of several runs of the same network."""
    parts = Parts(report, metrics)
    found = compare.compare_answer(parts, FIGURES)
    suspects = Suspects.of([_suspect(one, len(report.paths)) for one in report.reruns if not one.alike])
    begins = any(one.cause is not Cause.PROPAGATED for one in report.reruns)
    title = "First differences between the runs" if begins else "Differences between the runs"
    share = percent(parts.coverage.share)
    section = _section(report, parts.coverage, suspects)
    word, sentence = _verdict(report)
    return replace(
        found,
        word=word,
        sentence=sentence,
        sections=[section],
        sides=(),
        suspects=suspects,
        places="rerun.csv",
        advice=NEXT if report.weights is None else NEXT_OF_WEIGHTS,
        meaning=found.meaning if report.weights is None else MEANING_OF_WEIGHTS,
        title=title if report.reruns else "",
        aligned=f"{section.aligned} · {share} of elements compared",
        tables=[
            *(one for one in found.tables if one.file != "worst.csv"),  # maps of differing elements replace it
            tables.table("rerun.csv", COLUMNS, lambda: (_row(one, len(report.paths)) for one in report.reruns)),
            tables.table("noise.csv", NOISE_COLUMNS, lambda: (one._asdict() for one in report.noise)),
        ],
        detail=lambda: _detail(report, found.detail()),
        facts=lambda: {
            **facts(parts),
            "runs": list(report.paths),
            "notes": [*report.warnings, *parts.notes],
        },
        remarks=lambda folder: [],
        commands=of_reruns,
        texts=tuple,
        nothing=[],
        marked=report.paths if report.reruns else (),
        rest="Downstream differences",
    )


def _section(report: RerunResult, coverage: AlignedShare, suspects: Suspects) -> Section:
    runs: dict[str, dict[str, RunInfo]] = {path: {} for path in report.paths}
    for run in (run for one in report.comparisons for run in (one.golden, one.target)):
        number = _number(report.paths, run)
        runs.setdefault(report.paths[number - 1] if number else run.path, {})[run.path] = RunInfo.of(run)
    matched = count_of(coverage.operators, "operator" if report.weights is None else "parameter")
    of = f" of {len(report.paths) - 1} runs" if len(report.paths) > 2 else ""
    return Section(
        where="",
        sides=[
            DumpSummary("run", path, several([*side_runs.values()])) for path, side_runs in runs.items() if side_runs
        ],
        aligned=f"aligned {matched}{of} with those of the first run · {sum(coverage.alone)} in one run only",
        warnings=report.warnings,
        suspects=suspects,
        passed_words=f"{count_of(len(suspects.passed), 'operator')} downstream",
    )


def _suspect(one: Rerun, runs: int) -> Suspect:
    operator = one.pair.golden_op or one.pair.operator
    figures = {
        "elements differ": one.differing,
        "max ulp": one.max_ulp,
        "max abs err": one.max_abs,
        "rel_l2": one.rel_l2,
    }
    aside = "no two runs agree" if len(one.odd) == runs else f"run {_odd_words(one, runs)}"
    return Suspect.of(
        one,
        operator,
        line=source_line(operator),
        path=source_path(operator),
        at=known_numbers(step=one.step, rank=one.rank),
        aside=aside if runs > 2 and one.odd else "",
        figures=tuple(
            (name, f"{value:,}" if isinstance(value, int) else f"{value:.2e}")
            for name, value in figures.items()
            if value is not None
        ),
        marks=tuple(number in one.odd for number in range(1, runs + 1)),
        picture=one.picture,
        pictured=one.pictured,
        excused=one.excused,
    )


def _odd_words(one: Rerun, runs: int) -> str:
    """Return the runs that differ from the others, numbered from 1 in the given order; "all" if no two runs agree."""
    return "all" if len(one.odd) == runs else " ".join(map(str, one.odd))


def _row(one: Rerun, runs: int) -> Row:
    operator = one.pair.golden_op or one.pair.operator
    return {
        "place": one.place,
        "step": one.step,
        "rank": one.rank,
        "order": operator.order,
        "op": operator.name,
        "op_type": operator.op_type,
        "slot": one.slot,
        "cause": one.cause.value,
        "differing_elements": one.differing,
        "max_abs_err": one.max_abs,
        "rel_l2": one.rel_l2,
        "max_ulp": one.max_ulp,
        "runs": _odd_words(one, runs),
        "because": one.because,
        "stack": source_line(operator),
    }


def _detail(report: RerunResult, found: Detail) -> Detail:
    if len(report.paths) < 3:
        return found
    labels = []
    for one, words in zip(report.comparisons, found.runs):
        number = _number(report.paths, one.target)
        labels.append(" · ".join(filter(None, [f"run {number}" if number else "", words])))
    return found._replace(runs=labels)


def _number(paths: Sequence[str], run: Run) -> int:
    """Return the number, from 1, of the given path that contains a run; the nearest if there are several, 0 if there is
    none."""
    folders = [Path(run.path), *Path(run.path).parents]
    above = [(folders.index(Path(path)), number) for number, path in enumerate(paths, 1) if Path(path) in folders]
    return min(above, default=(0, 0))[1]


def _verdict(report: RerunResult) -> tuple[str, str]:
    counts = Counter(finding.verdict for finding in report.findings)
    status = report.exit_status
    if status == 130:
        return "PARTIAL", f"interrupted after {count_of(len(report.findings), 'tensor')}"
    if status == 1:
        return "DIFFERS", ", ".join(_differs_words(report)) or "the runs differ"
    if status == 0:
        other_bits = _other_bits(report)
        how = "the same values" if other_bits else "bit-identical"
        text = f"{count_of(counts[Verdict.MATCH], 'tensor')} compared, {how} in all runs"
        text += f", {other_bits} with other signs of zeros or other payloads of NaNs" if other_bits else ""
        for verdict, what in ((Verdict.UNKNOWN, "undecided"), (Verdict.MISSING, "without a partner")):
            text += f", {counts[verdict]} {what}" if counts[verdict] else ""
        return "SAME", text
    if report.broken or counts[Verdict.UNREADABLE]:
        return "UNDECIDED", "some tensors could not be read, the others are identical"
    if incomplete := "; ".join(report.tally.incomplete):
        return "UNDECIDED", f"{incomplete}; {count_of(counts[Verdict.MATCH], 'tensor')} compared, all identical"
    uncovered = report.tally.coverage
    if counts[Verdict.MATCH] and uncovered.tensors > report.tally.undecided:
        return "UNDECIDED", open_words(uncovered, counts[Verdict.MATCH])
    if any(finding.is_undecided for finding in report.findings):
        return "UNDECIDED", f"{_undecided_words(report)} cannot prove bit equality; dump with task tensor or md5"
    return "UNDECIDED", "no tensor with elements could be compared"


def _undecided_words(report: RerunResult) -> str:
    """Name the recorded figures of the tensors that could not be decided."""
    pairs = [one.pair for one in report.findings if one.is_undecided]
    tensors = [tensor for pair in pairs for tensor in (pair.target, pair.golden) if tensor is not None and tensor.shape]
    xor = ["XOR checksums"] if any(tensor.has_xor for tensor in tensors) else []
    figures = not xor or any(tensor.statistics is not None for tensor in tensors)
    return " and ".join([*xor, *(["statistics"] if figures else [])])


def _differs_words(report: RerunResult) -> Iterator[str]:
    causes = Counter(one.cause for one in report.reruns if not one.excused)
    excused = sum(one.excused and one.cause is not Cause.PROPAGATED for one in report.reruns)
    passed = sum(one.cause is Cause.PROPAGATED for one in report.reruns)
    if report.weights is not None:
        yield f"{count_of(len(report.reruns), 'parameter')} with other values"
        return
    if causes[Cause.BORN] + causes[Cause.GAP]:
        alike = sum(bool(one.alike) and not one.excused for one in report.reruns)
        more = f" and {count_of(alike, 'operator')} like one of them" if alike else ""
        yield f"difference originates in {count_of(causes[Cause.BORN] + causes[Cause.GAP] - alike, 'place')}{more}"
    if causes[Cause.UNKNOWN]:
        yield f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause"
    if excused:
        yield f"{excused} random or asynchronous on purpose"
    if passed:
        yield f"propagated by {passed}"


def _other_bits(report: RerunResult) -> int:
    """Count the tensors with equal values and different bits."""
    equal = (one.measurement.moments for one in report.findings if one.verdict is Verdict.MATCH)
    return sum(moments is not None and moments.equal < moments.elements for moments in equal)
