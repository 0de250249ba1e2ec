"""What the screen shows of `npucmp rerun-diff`: the runs, what is not the same in them, and where that begins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Iterator, Optional, Sequence

from npucmp.model import Cause, Comparison, Report, Rerun, Verdict
from npucmp.model.stack import source_line
from npucmp.report.rerun import odd_words
from npucmp.report.sanitise import visible
from npucmp.report.status import exit_status
from npucmp.report.terminal import NOTES, Paint, count_of, describe, notes_of, rate_of


def render(
    report: Report, top: int = 10, files: "Sequence[Path]" = (), paint: Optional[Paint] = None, verbose: bool = False
) -> str:
    """The whole screen as text; every word from a dump has its invisible characters shown."""
    colour = paint or (lambda text, _: text)
    lines = [*_heading(report), ""]
    warnings = [note for note in report.notes if note.startswith("these runs are not repeats")]
    for note in warnings:
        lines += [colour(visible(note[:1].upper() + note[1:]), "title"), ""]
    first = [one for one in report.reruns if one.cause is not Cause.PROPAGATED]
    rest = [one for one in report.reruns if one.cause is Cause.PROPAGATED]
    for one in (first or rest)[:top]:
        lines += _row(one, len(report.runs), colour)
    if len(first) > top:
        lines.append(f"     … and {len(first) - top} more in rerun.csv")
    if first and rest and not verbose:
        lines.append(f"     PROPAGATED  {count_of(len(rest), 'operator')} downstream")
    for one in rest if first and verbose else ():
        lines += _row(one, len(report.runs), colour)
    if report.reruns:
        lines.append("")
    others = replace(report, notes=tuple(note for note in report.notes if note not in warnings))
    lines += notes_of(others, len(report.findings) if verbose else NOTES)
    lines.append(last(report, colour))
    if files:
        lines.append("  ".join(visible(str(file)) for file in files))
    return "\n".join(lines) + "\n"


def _heading(report: Report) -> "Iterator[str]":
    seen: dict[str, Comparison] = {}
    for comparison in report.comparisons:
        for run in (comparison.golden, comparison.target):
            if run.path not in seen:
                seen[run.path] = comparison
                yield f"run     {visible(run.path)}  {describe(run)}"
    matched = sum(sum(one.matched.values()) for one in report.comparisons)
    alone = sum(sum(one.alone) for one in report.comparisons)
    of = f" of {len(report.runs) - 1} runs" if len(report.runs) > 2 else ""
    yield f"aligned {count_of(matched, 'operator')}{of} with those of the first run · {alone} in one run only"


def _row(one: Rerun, runs: int, paint: Paint) -> "Iterator[str]":
    operator = one.pair.golden_op or one.pair.operator
    odd = (
        ""
        if runs == 2 or not one.odd
        else f"   run {odd_words(one, runs)}"
        if len(one.odd) < runs
        else "   no two runs agree"
    )
    cause = paint(f"{one.cause.value:10}", one.cause.value)
    yield f"{one.place:3}  {cause}  {visible(operator.name)}  {visible(one.slot)}{odd}"
    for sentence in one.because.split("; "):
        yield f"                 {visible(sentence)}"
    line = source_line(operator)
    if line:
        yield f"                 {visible(line)}"


def _other_bits(report: Report) -> int:
    """Tensors that hold the same values in other bits."""
    told = ((finding.verdict, finding.measurement.moments) for finding in report.findings)
    return sum(verdict is Verdict.MATCH and m is not None and m.equal < m.elements for verdict, m in told)


def last(report: Report, paint: Paint) -> str:
    status = exit_status(report)
    verdicts = Counter(finding.verdict for finding in report.findings)
    if status == 130:
        word, text = "PARTIAL", f"interrupted after {count_of(len(report.findings), 'tensor')}"
    elif status == 1:
        causes = Counter(one.cause for one in report.reruns if not one.excused)
        excused = sum(one.excused and one.cause is not Cause.PROPAGATED for one in report.reruns)
        born = causes[Cause.BORN] + causes[Cause.GAP]
        words = [f"begins in {count_of(born, 'place')}"] if born else []
        words += [f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause"] if causes[Cause.UNKNOWN] else []
        words += [f"{excused} random or asynchronous on purpose"] if excused else []
        passed = sum(one.cause is Cause.PROPAGATED for one in report.reruns)
        words += [f"{passed} pass it on"] if passed else []
        word, text = "DIFFERS", ", ".join(words) or "the runs are not the same"
    elif status == 0:
        how = "the same values" if (other_bits := _other_bits(report)) else "bit for bit the same"
        word, text = "SAME", f"{count_of(verdicts[Verdict.MATCH], 'tensor')} compared, {how} in all runs"
        text += f", {other_bits} with other signs of zeros or payloads of NaNs" if other_bits else ""
        for verdict, what in ((Verdict.UNKNOWN, "undecided"), (Verdict.MISSING, "without a partner")):
            text += f", {verdicts[verdict]} {what}" if verdicts[verdict] else ""
    else:
        word, text = "UNDECIDED", "statistics prove no equality of bits; dump with task tensor or md5"
        if report.broken or verdicts[Verdict.UNREADABLE]:
            text = "some tensors could not be read, the others are the same"
    return f"{paint(word, word)}: {text}.   {rate_of(report.seconds, report.bytes_read)}"
