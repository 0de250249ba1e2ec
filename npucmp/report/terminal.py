"""What the screen shows: what was compared, how it was aligned, the answer, where the files are."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

from npucmp.model import DIFFERS, Cause, Comparison, Pair, Report, Root, Run, Verdict, brief
from npucmp.model.stack import source_line
from npucmp.report import coverage, fusion
from npucmp.report.sanitise import visible
from npucmp.report.status import exit_status

NOTES = 6  # of one kind, before "and n more"
Paint = Callable[[str, str], str]  # (text, what it is) → text, coloured or not


def render(
    report: Report, top: int = 10, files: Sequence[Path] = (), paint: Optional[Paint] = None, verbose: bool = False
) -> str:
    """The whole screen as text; every word from a dump has its invisible characters shown.

    verbose also lists the operators that pass the error on, and every note.
    """
    colour = paint or (lambda text, _: text)
    lines: list[str] = []
    left = top  # suspects that may still be shown
    told = sorted((one for one in report.comparisons if verbose or _is_told(one)), key=_first_place)
    agreeing = [] if verbose else [one for one in report.comparisons if not _is_told(one)]
    told, agreeing = told or agreeing[:1], agreeing if told else agreeing[1:]
    for comparison in told:
        if comparison is not told[0] and left <= 0:
            lines.append(f"{_where(comparison)}: {count_of(len(comparison.roots), 'row')} more in roots.csv")
            continue
        lines += _heading(report, comparison)
        lines += _answer(comparison, max(1, left), colour, verbose)
        lines.append("")
        left -= sum(root.cause is not Cause.PROPAGATED for root in comparison.roots)
    lines += _agreeing(agreeing, colour)
    lines += _unpaired(report)
    if report.command == "fusion-diff":
        lines += [visible(line) for line in fusion.words(report, str(files[0].parent) if files else "")]
    lines += notes_of(report, len(report.findings) if verbose else NOTES)
    lines += _within_noise(report)
    lines.append(last(report, colour))
    if files:
        lines.append("  ".join(visible(str(file)) for file in files))
    return "\n".join(lines) + "\n"


def _is_told(comparison: Comparison) -> bool:
    """Whether there is more to say of a comparison than that all of it agrees."""
    verdicts = {finding.verdict for finding in comparison.findings}
    return bool(comparison.roots or verdicts & DIFFERS or Verdict.MATCH not in verdicts)


def _first_place(comparison: Comparison) -> int:
    return min((root.place for root in comparison.roots), default=sys.maxsize)


def _where(comparison: Comparison) -> str:
    run = comparison.target
    return " ".join(f"{name} {at}" for name, at in (("step", run.step), ("rank", run.rank)) if at is not None)


def _agreeing(comparisons: "Sequence[Comparison]", paint: Paint) -> Iterator[str]:
    """Of several runs, those of which nothing else is to be said."""
    if comparisons:
        places = ", ".join(map(_where, comparisons[:NOTES])) + (" …" if len(comparisons) > NOTES else "")
        matching = sum(coverage.count(one.findings, Verdict.MATCH) for one in comparisons)
        yield paint("No operator diverged", "MATCH") + f" in {places}: {count_of(matching, 'tensor')} agree"
        yield ""


def _heading(report: Report, comparison: Comparison) -> Iterator[str]:
    for name, path, run in (
        ("target", report.target_path, comparison.target),
        ("golden", report.golden_path, comparison.golden),
    ):
        yield f"{name}  {visible(path)}  {describe(run)}"
    matched = sum(comparison.matched.values())
    by = ", ".join(f"{count} by {via}" for via, count in comparison.matched.items())
    shares = coverage.aligned(_only(report, comparison))
    only_target, only_golden = comparison.alone
    yield (
        f"aligned {count_of(matched, 'operator')}: {by or 'none'} · {only_target} only in target, "
        f"{only_golden} only in golden · {_percent(shares['elements_compared'])} of elements compared"
    )
    yield ""


def _only(report: Report, comparison: Comparison) -> Report:
    return Report(report.command, report.target_path, report.golden_path, (comparison,))


def describe(run: Run) -> str:
    """One line: format, detail, step, rank, size."""
    where = [f"{name} {value}" for name, value in (("step", run.step), ("rank", run.rank)) if value is not None]
    size = coverage.bytes_of([run])
    content = f"{count_of(len(run.operators), 'operator')}, {count_of(run.tensors, 'tensor')}"
    return " · ".join(
        visible(word)
        for word in (run.format, run.detail, *where, content + (f", {_bytes(size)}" if size else ""))
        if word
    )


def _answer(comparison: Comparison, top: int, paint: Paint, verbose: bool) -> Iterator[str]:
    suspects = [root for root in comparison.roots if root.cause is not Cause.PROPAGATED]
    passed = [root for root in comparison.roots if root.cause is Cause.PROPAGATED]
    if not comparison.roots:
        yield from without_roots(comparison, paint)
        return
    yield paint(_title(comparison, (suspects or passed)[0]), "title")
    for root in (suspects or passed)[:top]:
        yield from _root(root, paint)
    if len(suspects) > top:
        yield f"     … and {len(suspects) - top} more in roots.csv"
    if suspects and verbose:
        for root in passed:
            yield from _root(root, paint)
    elif suspects and passed:
        worst = max(passed, key=lambda root: root.value or 0.0)
        size = f", largest rel_l2 {brief(worst.value)} at {_name(worst.pair)}" if worst.value else ""
        yield f"     PROPAGATED  {count_of(len(passed), 'operator')} downstream{size}"


def _title(comparison: Comparison, first: Root) -> str:
    """The word "first" is kept for when everything before was compared, in an order that is known."""
    unseen = coverage.upstream_unseen(comparison, first.pair.order)
    if not (comparison.target.ordered and comparison.golden.ordered):
        return "Diverging operators (the dumps do not tell the order of execution, so none is called the first)"
    if unseen:
        return f"Earliest diverging operator found ({count_of(unseen, 'tensor')} before it could not be compared)"
    return "First diverging operator"


def _root(root: Root, paint: Paint) -> Iterator[str]:
    cause = paint(f"{root.cause.value:10}", root.cause.value)
    yield f"{root.place:3}  {cause}  {_name(root.pair)}  {visible(root.slot)}"
    if root.pair.target_op and root.pair.golden_op and root.pair.target_op.name != root.pair.golden_op.name:
        yield f"                 golden: {visible(root.pair.golden_op.name)}"
    for sentence in (one.sentence() for one in root.evidence):
        yield f"                 {visible(sentence)}"
    line = source_line(root.pair.operator) or (source_line(root.pair.golden_op) if root.pair.golden_op else "")
    if line:
        yield f"                 {visible(line)}"


def _name(pair: Pair) -> str:
    return visible(pair.operator.name)


def without_roots(comparison: Comparison, paint: Paint) -> Iterator[str]:
    verdicts = Counter(finding.verdict for finding in comparison.findings)
    differing = [f for f in comparison.findings if f.verdict in DIFFERS]
    if differing:
        yield paint(f"{count_of(len(differing), 'tensor')} diverged, in no operator that could be judged:", "title")
        for finding in differing[:NOTES]:
            yield f"     {_name(finding.pair)}  {visible(finding.pair.slot)}  {visible(finding.because)}"
    elif verdicts[Verdict.MATCH]:
        largest = max((f.error or 0.0 for f in comparison.findings), default=0.0)
        trusted = any(f.verdict is Verdict.MATCH and f.measurement.bound is not None for f in comparison.findings)
        how = "every tensor that was compared is bit for bit the same"
        if largest or trusted:
            how = "as far as statistics tell" if trusted else f"largest rel_l2 {brief(largest)}"
        yield paint("No operator diverged", "MATCH") + f": {count_of(verdicts[Verdict.MATCH], 'tensor')} agree, {how}"
    else:
        yield paint("Nothing could be decided", "UNKNOWN")


def _within_noise(report: Report) -> Iterator[str]:
    """What --noise excused."""
    excused = [finding for finding in report.findings if finding.metric == "noise"]
    if excused:
        worst = max(excused, key=lambda finding: finding.error or 0.0)
        where = f"rel_l2 {brief(worst.error)} at {_name(worst.pair)} {visible(worst.pair.slot)}"
        yield f"noise: {count_of(len(excused), 'tensor')} above the limit, within measured noise; largest {where}"


def _unpaired(report: Report) -> Iterator[str]:
    for side, run in report.broken:
        yield f"unreadable {side}: {visible(run.problem)}"
    for side, run in report.unpaired:
        yield f"only in {side}: step {run.step} rank {run.rank} ({visible(run.path)})"


def notes_of(report: Report, most: int) -> Iterator[str]:
    """What a reader should know besides, and what could not be read; at most so many lines of a kind."""
    words = coverage.notes(report)
    yield from (f"note: {visible(word)}" for word in words[:most])
    if len(words) > most:
        yield f"note: and {len(words) - most} more in summary.json"
    broken = [finding for finding in report.findings if finding.verdict is Verdict.UNREADABLE]
    for finding in broken[:most]:
        sides = {"target": finding.pair.target, "golden": finding.pair.golden}
        tensor = sides.get(finding.because.partition(":")[0])
        where = f" ({visible(tensor.file)})" if tensor is not None and tensor.file else ""
        slot = f" {visible(finding.pair.slot)}" if finding.pair.slot else ""
        yield f"unreadable: {_name(finding.pair)}{slot}: {visible(finding.because)}{where}"
    if len(broken) > most:
        yield f"unreadable: and {len(broken) - most} more in tensors.csv"


def last(report: Report, paint: Paint) -> str:
    causes = Counter(root.cause for root in report.roots)
    status = exit_status(report)
    verdicts = Counter(finding.verdict for finding in report.findings)
    rate = rate_of(report.seconds, report.bytes_read)
    if status == 130:
        word, text = "PARTIAL", f"interrupted after {count_of(len(report.findings), 'tensor')}"
    elif status == 1:
        word, text = "DIVERGED", _diverged_words(causes, verdicts, report)
    elif status == 0:
        word, text = "AGREES", _agrees_words(verdicts)
    elif report.broken:
        word, text = "UNDECIDED", f"{count_of(len(report.broken), 'run')} could not be read, the others agree"
    elif verdicts[Verdict.UNREADABLE]:
        word, text = (
            "UNDECIDED",
            f"{count_of(verdicts[Verdict.UNREADABLE], 'tensor')} could not be read, none of the others diverged",
        )
    else:
        word = "UNDECIDED"
        text = "nothing could be compared: partners are missing, or of types that have nothing in common"
        if verdicts[Verdict.UNKNOWN]:
            text = "statistics alone prove no agreement; dump with task tensor or md5, or pass --trust-statistics"
    return f"{paint(word, word)}: {text}.   {rate}"


def _agrees_words(verdicts: "Counter[Verdict]") -> str:
    words = [f"{count_of(verdicts[Verdict.MATCH], 'tensor')} compared, none diverged"]
    words += [
        f"{verdicts[verdict]} {what}"
        for verdict, what in (
            (Verdict.UNKNOWN, "undecided"),
            (Verdict.MISSING, "without a partner"),
            (Verdict.DTYPE, "of types that cannot be compared"),
        )
        if verdicts[verdict]
    ]
    return ", ".join(words)


def _diverged_words(causes: "Counter[Cause]", verdicts: "Counter[Verdict]", report: Report) -> str:
    words = []
    born = causes[Cause.BORN] + causes[Cause.GAP]
    if born:
        words.append(f"error is born in {count_of(born, 'place')}")
    if causes[Cause.WORSENED]:
        words.append(f"worsened in {causes[Cause.WORSENED]}")
    if causes[Cause.UNKNOWN]:
        words.append(f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause")
    if causes[Cause.PROPAGATED]:
        words.append(f"{causes[Cause.PROPAGATED]} pass it on")
    if not words:
        differing = sum(verdicts[v] for v in DIFFERS)
        words.append(f"{count_of(differing, 'tensor')} differ" if differing else _strict_words(verdicts, report))
    if verdicts[Verdict.UNREADABLE]:
        words.append(f"{verdicts[Verdict.UNREADABLE]} unreadable")
    return ", ".join(words)


def _strict_words(verdicts: "Counter[Verdict]", report: Report) -> str:
    missing, runs = count_of(verdicts[Verdict.MISSING], "tensor"), count_of(len(report.unpaired), "run")
    return f"--strict: {missing} and {runs} without a partner"


def rate_of(seconds: float, size: int) -> str:
    """How long it took to read how much."""
    rate = f"{seconds:.1f} s, {_bytes(size)}"
    return rate + (f", {size / seconds / 1e9:.2f} GB/s" if seconds > 0.5 and size > 1e8 else "")


def count_of(number: int, word: str) -> str:
    """ "1 operator", "1,200 operators"."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _percent(share: float) -> str:
    return "100 %" if share == 1.0 else f"{min(share, 0.999) * 100:.1f} %"


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} TB"


def colours(enabled: bool) -> Paint:
    """A painter for terminals that show colour; NO_COLOR is respected (no-color.org)."""
    if not enabled or os.environ.get("NO_COLOR"):
        return lambda text, _: text
    codes = {
        "BORN": "1;31",
        "GAP": "1;31",
        "WORSENED": "1;33",
        "UNKNOWN": "33",
        "DIVERGED": "1;31",
        "OVERFLOW": "1;31",
        "DIFFERS": "1;31",
        "UNDECIDED": "1;33",
    }
    codes.update({"AGREES": "1;32", "CLEAN": "1;32", "SAME": "1;32", "MATCH": "1;32", "title": "1"})
    return lambda text, what: f"\x1b[{codes[what]}m{text}\x1b[0m" if what in codes else text
