"""What stands on top of report.html, as plain words for the template: the verdict, the first roots, what was compared.

The template escapes; here every word from a dump has its invisible characters shown.
"""

from __future__ import annotations

import math
import platform
import shlex
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Iterator, Optional, Sequence, Union

from npucmp import __version__
from npucmp.model import Cause, Comparison, Operator, Overflow, Report, Rerun, Root, Run, Verdict, brief
from npucmp.model.stack import source_line
from npucmp.report import coverage, fused, fusion, island, overflow_terminal, rerun_terminal, spots, terminal
from npucmp.report.rerun import odd_words
from npucmp.report.sanitise import visible

FIRST = 5  # roots
MOST = 40  # fused operators, operators that differ between runs, lines of one kind
Words = dict[str, Any]
MEANING = {
    "BORN": "inputs agree, output does not",
    "GAP": "an input differs although everything dumped upstream agrees",
    "WORSENED": "differs far more than its inputs explain",
    "UNKNOWN": "its inputs are not known",
    "PROPAGATED": "passes on what it got",
}


def of_report(report: Report) -> Words:
    """The words for compare, fusion-diff and rerun-diff."""
    presenter = rerun_terminal if report.command == "rerun-diff" else terminal
    roots = [(root, one) for one in report.comparisons for root in one.roots]
    roots.sort(key=lambda row: row[0].place)
    suspects = [row for row in roots if row[0].cause is not Cause.PROPAGATED] or roots
    told = [] if report.command == "rerun-diff" else [_root(root, one, report) for root, one in suspects[:FIRST]]
    return {
        **_verdict(presenter.last(report, _plain)),
        "command": report.command,
        "sides": _sides(report),
        "aligned": _aligned(report),
        "title": _title(*suspects[0]) if suspects and told else "",
        "nothing": [] if roots else [*_without_roots(report)],
        "roots": told,
        "more": max(0, len(suspects) - FIRST) if told else 0,
        "passed": _passed([root for root, _ in roots if root.cause is Cause.PROPAGATED]) if told else "",
        "counts": _counts(report),
        "left_out": [*_left_out(report)],
        "notes": [visible(note) for note in coverage.notes(report)],
        "rules": [_rule(row.__dict__) for row in report.rules],
        "fused": [*fused.shown(report, _flow)][:MOST] if report.command == "fusion-diff" else [],
        "fusion_words": [visible(line) for line in fusion.words(report, ".")]
        if report.command == "fusion-diff"
        else [],
        "switch": _switch(report),
        "reruns": [_rerun(one, report) for one in report.reruns[:MOST]],
        "reruns_more": max(0, len(report.reruns) - MOST),
        "runs": [visible(path) for path in report.runs],
        "first": _first(report),
        "made": _made(report),
        "meaning": MEANING,
    }


def of_overflow(report: Overflow) -> Words:
    """The words for overflow."""
    roots = [(root, scan.run) for scan in report.scans for root in scan.roots]
    roots.sort(key=lambda row: row[0].place)
    births = [row for row in roots if row[0].cause is not Cause.PROPAGATED] or roots
    sides = [("dump", report.path, scan.run) for scan in report.scans]
    sides += [("golden", report.golden_path, scan.golden) for scan in report.scans if scan.golden is not None]
    scanned = sum(scan.tensors for scan in report.scans)
    notes = [*report.notes, *(note for scan in report.scans for note in scan.notes)]
    unread = [words for scan in report.scans for words in scan.unreadable]
    unread += [f"{run.path}: {run.problem}" for run in report.broken]
    return {
        **_verdict(overflow_terminal.last(report, _plain)),
        "command": report.command,
        "sides": [_side(*side) for side in sides[:MOST]],
        "aligned": f"{terminal.count_of(scanned, 'tensor')} scanned",
        "title": "Where it is born" if births else "",
        "nothing": [] if births else ["Nothing happened at the limits of any type."],
        "roots": [_birth(root, run) for root, run in births[:FIRST]],
        "more": max(0, len(births) - FIRST),
        "passed": "",
        "counts": _event_counts(report),
        "left_out": _shortened([f"unreadable: {visible(words)}" for words in unread]),
        "notes": [visible(note) for note in dict.fromkeys(notes)],
        "rules": [],
        "fused": [],
        "fusion_words": [],
        "switch": "",
        "reruns": [],
        "reruns_more": 0,
        "runs": [],
        "first": 0,
        "made": _made(report),
        "meaning": {},
    }


def _plain(text: str, what: str) -> str:
    """Text without the colours of a screen."""
    return text


def _verdict(line: str) -> Words:
    """Of the last line of the screen: "WORD: sentence.   seconds, bytes"."""
    word, _, rest = line.partition(": ")
    sentence, _, rate = rest.rpartition(".   ")
    tone = {"AGREES": "good", "CLEAN": "good", "SAME": "good", "UNDECIDED": "open", "PARTIAL": "open"}.get(word, "bad")
    return {"word": word, "sentence": sentence, "rate": rate, "tone": tone}


def _sides(report: Report) -> list[Words]:
    found: dict[tuple[str, str], Words] = {}
    for comparison in report.comparisons:
        named = (("target", report.target_path, comparison.target), ("golden", report.golden_path, comparison.golden))
        if report.command == "rerun-diff":
            named = (
                ("run", comparison.golden.path, comparison.golden),
                ("run", comparison.target.path, comparison.target),
            )
        for name, path, run in named:
            found.setdefault((name, run.path), _side(name, path, run))
    some = [*found.values()]
    return some[:MOST] + (
        [{"name": "", "path": f"and {len(some) - MOST} more", "what": ""}] if len(some) > MOST else []
    )


def _side(name: str, path: str, run: Run) -> Words:
    return {"name": name, "path": visible(path), "what": terminal.describe(run)}


def _aligned(report: Report) -> str:
    found = coverage.aligned(report)
    by_matcher: Counter[str] = Counter()
    for comparison in report.comparisons:
        by_matcher.update(comparison.matched)
    by = ", ".join(f"{count:,} by {via}" for via, count in by_matcher.items())
    share = found["elements_compared"]
    percent = "100 %" if share == 1.0 else f"{min(share, 0.999) * 100:.1f} %"
    sides = ("a later run", "run 1") if report.command == "rerun-diff" else ("the target", "the golden")
    return (
        f"{terminal.count_of(found['operators'], 'operator')} aligned ({by or 'none'}), {found['only_target']:,} only "
        f"in {sides[0]}, {found['only_golden']:,} only in {sides[1]}; {percent} of all elements were compared"
    )


def _title(root: Root, comparison: Comparison) -> str:
    """ "First" is only said when everything before was compared, in an order that is known."""
    unseen = coverage.upstream_unseen(comparison, root.pair.order)
    if not (comparison.target.ordered and comparison.golden.ordered):
        return "Diverging operators (the dumps do not tell the order of execution, so none is called the first)"
    if unseen:
        count = terminal.count_of(unseen, "tensor")
        return f"Earliest diverging operator found ({count} before it could not be compared)"
    return "First diverging operator"


def _without_roots(report: Report) -> "Iterator[str]":
    """What the screen says of comparisons in which no operator is to be looked at."""
    for comparison in report.comparisons[:MOST] if report.command != "rerun-diff" else ():
        yield from (line.strip() for line in terminal.without_roots(comparison, _plain))


def _root(root: Root, comparison: Comparison, report: Report) -> Words:
    pair = root.pair
    golden = pair.golden_op.name if pair.golden_op and pair.golden_op.name != pair.operator.name else ""
    return {
        **_place(root, pair.operator),
        "golden": visible(golden),
        "where": " · ".join(island.run_words(comparison.target.step, comparison.target.rank))
        if len(report.comparisons) > 1
        else "",
        "line": visible(source_line(pair.operator) or (source_line(pair.golden_op) if pair.golden_op else "")),
        "flow": _flow(root),
    }


def _birth(root: Root, run: Run) -> Words:
    words = _place(root, root.pair.operator)
    return {
        **words,
        "word": "CAME IN" if root.cause is Cause.GAP else words["word"],
        "golden": "",
        "where": " · ".join(island.run_words(run.step, run.rank)),
        "line": visible(source_line(root.pair.operator)),
        "flow": None,
    }


def _place(root: Root, operator: Operator) -> Words:
    return {
        "place": root.place,
        "word": root.cause.value,
        "cause": root.cause.value,
        "op": visible(operator.name),
        "op_type": visible(operator.op_type),
        "slot": visible(root.slot),
        "sentences": [one.sentence(visible) for one in root.evidence],
    }


def _flow(root: Root) -> Optional[Words]:
    """Error in and out of an operator, against its limit, on one logarithmic scale of 10^-10 to 10^2: 0 to 100."""
    if root.output_error is None and root.input_error is None:
        return None
    return {
        "input": _at(root.input_error),
        "output": _at(root.output_error),
        "limit": _at(root.limit),
        "input_words": _brief(root.input_error),
        "output_words": _brief(root.output_error),
        "limit_words": brief(root.limit),
    }


def _brief(error: Optional[float]) -> str:
    return "not known" if error is None else "equal" if error == 0 else brief(error)


def _at(error: Optional[float]) -> Optional[float]:
    if error is None or math.isnan(error):
        return None
    return 0.0 if error <= 0 else round(max(0.0, min(100.0, (math.log10(min(error, 1e300)) + 10) / 12 * 100)), 1)


def _passed(roots: "Sequence[Root]") -> str:
    if not roots:
        return ""
    worst = max(roots, key=lambda root: root.value or 0.0)
    size = f", largest rel_l2 {brief(worst.value)} at {visible(worst.pair.operator.name)}" if worst.value else ""
    return f"{terminal.count_of(len(roots), 'operator')} downstream{size}"


def _counts(report: Report) -> list[Words]:
    """The tensors by verdict, as pieces of one bar."""
    counts = Counter(finding.verdict for finding in report.findings)
    return _bar([(verdict.value, counts[verdict]) for verdict in Verdict if counts[verdict]])


def _event_counts(report: Overflow) -> list[Words]:
    counts = Counter(event.kind or "close to the edge" for event in report.events)
    return _bar([*counts.items()])


def _bar(counts: "Sequence[tuple[str, int]]") -> list[Words]:
    widths = [max(0.005, count / sum(count for _, count in counts)) for _, count in counts]  # none is too thin to see
    pieces, at = [], 0.0
    for (name, count), width in zip(counts, widths):
        share = 100 * width / sum(widths)
        pieces.append({"name": name, "count": f"{count:,}", "x": round(at, 2), "width": round(share, 2)})
        at += share
    return pieces


def _left_out(report: Report) -> "Iterator[str]":
    """What was not compared, and why, at most so many lines of a kind."""
    for side, run in report.broken:
        yield f"unreadable {side}: {visible(run.problem)}"
    for side, run in report.unpaired:
        where = " · ".join(island.run_words(run.step, run.rank))
        yield f"only in {side}: {where} ({visible(run.path)})"
    for verdict in (Verdict.UNREADABLE, Verdict.MISSING, Verdict.UNKNOWN, Verdict.DTYPE):
        found = [finding for finding in report.findings if finding.verdict is verdict]
        if found:
            what = {
                Verdict.MISSING: "without a partner",
                Verdict.UNKNOWN: "undecided",
                Verdict.DTYPE: "of types that cannot be compared",
                Verdict.UNREADABLE: "unreadable",
            }[verdict]
            example = found[0]
            yield (
                f"{terminal.count_of(len(found), 'tensor')} {what}, for example "
                f"{visible(example.pair.operator.name)} {visible(example.pair.slot)}: {visible(example.because)}"
            )


def _shortened(lines: "list[str]") -> "list[str]":
    return lines[:MOST] + ([f"and {len(lines) - MOST} more in summary.json"] if len(lines) > MOST else [])


def _rule(row: Words) -> Words:
    return {**row, "limit": f"{row['limit']:.3g}", "why": visible(row["why"])}


def _switch(report: Report) -> str:
    if report.command != "fusion-diff" or not any(fusion.switch(report).values()):
        return ""
    return fusion.render(report)["fusion_switch.cfg"]


def _rerun(one: Rerun, report: Report) -> Words:
    """An operator that is not the same in all runs: which runs stand apart, and what differs in which pattern."""
    operator = one.pair.golden_op or one.pair.operator
    return {
        "place": one.place,
        "cause": one.cause.value,
        "op": visible(operator.name),
        "slot": visible(one.slot),
        "excused": one.excused,
        "odd": odd_words(one, len(report.runs)),
        "marks": [number in one.odd for number in range(1, len(report.runs) + 1)],
        "figures": [
            (name, f"{value:,}" if isinstance(value, int) else f"{value:.2e}")
            for name, value in (
                ("elements differ", one.differing),
                ("max ulp", one.max_ulp),
                ("max abs err", one.max_abs),
                ("rel_l2", one.rel_l2),
            )
            if value is not None
        ],
        "sentences": [visible(sentence) for sentence in one.because.split("; ")],
        "line": visible(source_line(operator)),
        "spots": spots.drawn(one.spots) if one.spots is not None else None,
        "shown": one.shown,
    }


def _first(report: Report) -> int:
    """How many of the operators that differ between runs stand on top: those where it begins, if that is known."""
    begins = sum(one.cause is not Cause.PROPAGATED for one in report.reruns[:FIRST])
    return begins or FIRST


def _made(report: "Union[Report, Overflow]") -> Words:
    return {
        "argv": visible(shlex.join(("npucmp", *report.argv[1:]))) if report.argv else "",
        "npucmp": __version__,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
