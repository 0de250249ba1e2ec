"""The Answer of `npucmp compare`, on which those of fusion-diff and rerun-diff are built."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.localise.evidence import has_other_masks, is_bit_equal
from npucmp.model import DIFFERS, Cause, Comparison, Finding, Look, Report, Root, Verdict, brief
from npucmp.report import coverage, looks, next_dump, pairs, tables
from npucmp.report.answer import Answer, Line, Listing, Row, Section, Side, Suspect, Suspects, Text
from npucmp.report.words import count_of, describe, flow_of, line_of, of_runs, partner_of, percent, where_words

MEANING = {
    "BORN": "inputs agree, output does not",
    "GAP": "an input differs although everything dumped upstream agrees",
    "WORSENED": "differs far more than its inputs explain",
    "SUSPECT": "by statistics alone it stands out of the noise before it; not proven",
    "UNKNOWN": "its inputs are not known",
    "PROPAGATED": "passes on what it got",
}
LEFT_OUT = {  # verdicts that decide nothing
    Verdict.UNREADABLE: "unreadable",
    Verdict.UNKNOWN: "undecided",
    Verdict.MISSING: "without a partner",
    Verdict.DTYPE: "of types that cannot be compared",
}
OF_FIRST = ("format", "detail", "step", "rank")  # what summary.json tells of the first run of a side


def answer(report: Report, metrics: Sequence[str] = (), figures: Sequence[str] = pairs.FIGURES) -> Answer:
    """What a comparison says; `metrics` are further columns of tensors.csv, `figures` those a page shows first."""
    cells = cache(lambda: [tables.columns_of(one, metrics) for one in report.comparisons])
    seen = {looks.key_of(look): look for look in report.looks}
    sections = sorted(
        (_section(one, report, run, seen) for run, one in enumerate(report.comparisons)), key=lambda one: one.place
    )
    suspects = Suspects.of([suspect for one in sections for some in one.suspects for suspect in some])
    counts = Counter(finding.verdict for finding in report.findings)
    word, sentence = _verdict(report, counts)
    lines = [line.head + line.rest for one in sections for line in one.lines]
    linked = cache(lambda run: pairs.linked_in(report, run))
    further = cache(lambda: next_dump.next_dump(report, linked))
    listed = [words for one in sections for some in one.listings for words in (some.title, *some.lines)]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=sections,
        suspects=suspects,
        places="roots.csv",
        title=next((one.title for one in sections if one.title), ""),
        compared="What was compared",
        aligned=_aligned(report.comparisons),
        passed_words=passed_words([root for root in report.roots if root.cause is Cause.PROPAGATED]),
        counts={verdict.value: counts[verdict] for verdict in Verdict if counts[verdict]},
        notes=[Listing("note", notes_of(report), "summary.json"), Listing("noise", [*_within_noise(report)], "")],
        unreadable=Listing("unreadable", [*_unreadable(report.findings)], "tensors.csv"),
        tables=[tables.tensors(cells, metrics), tables.roots(_rooted(report)), looks.worst(report)],
        detail=lambda: pairs.detail(report, cells(), metrics, figures, linked),
        facts=lambda: {**facts(report), "next_dump": next_dump.facts(further())},
        nothing=[] if suspects.first else [*lines, *listed],
        left_out=[*_runs_left_out(report)],
        undecided=[*_undecided(report.findings)],
        remarks=lambda folder: next_dump.remarks(report, further(), folder) if folder else [],
        remarks_title="What to do next",
        texts=lambda: [Text(*file) for file in next_dump.files(further()).items()],
        rules=report.rules,
        meaning=MEANING,
        looks=report.looks,
    )


def _section(one: Comparison, report: Report, run: int, seen: "Mapping[looks.Key, Look]") -> Section:
    where = where_words(one.target)
    among = " · ".join(where) if len(report.comparisons) > 1 else ""
    suspects = Suspects.of([_suspect(root, among, seen.get((run, root.pair.order, root.slot))) for root in one.roots])
    agreeing = sum(finding.verdict is Verdict.MATCH and finding.has_elements for finding in one.findings)
    differing = [finding for finding in one.findings if finding.verdict in DIFFERS]
    sides = ("target", report.target_path, one.target), ("golden", report.golden_path, one.golden)
    section = Section(
        where=" ".join(where),
        sides=[Side(name, path, describe(run)) for name, path, run in sides],
        aligned=_aligned([one]),
        suspects=suspects,
        warnings=[report.unlike] if report.unlike and one is report.comparisons[0] else [],
    )
    if suspects.first:
        passed = [root for root in one.roots if root.cause is Cause.PROPAGATED]
        return section._replace(title=_title(one), passed_words=passed_words(passed))
    if differing:
        listed = [f"{finding.pair.operator.name}  {finding.pair.slot}  {finding.because}" for finding in differing]
        title = f"{count_of(len(differing), 'tensor')} diverged, in no operator that could be judged:"
        return section._replace(listings=[Listing(title, listed, "tensors.csv")])
    if agreeing:
        return section._replace(agreeing=agreeing, lines=[_agree_words(one.findings, agreeing)])
    return section._replace(lines=[Line("Nothing could be decided", "UNKNOWN")])


def _aligned(comparisons: Sequence[Comparison]) -> str:
    found = coverage.aligned(comparisons)
    by = ", ".join(f"{count} by {via}" for via, count in coverage.matched(comparisons).items())
    return (
        f"aligned {count_of(found['operators'], 'operator')}: {by or 'none'} · {found['only_target']} only in target, "
        f"{found['only_golden']} only in golden · {percent(found['elements_compared'])} of elements compared"
    )


def _title(one: Comparison) -> str:
    """The word "first" is kept for when everything before was compared, in an order that is known."""
    first = min(one.roots, key=lambda root: (root.cause is Cause.PROPAGATED, root.place))
    unseen = coverage.upstream_unseen(one, first.pair.order)
    if not (one.target.ordered and one.golden.ordered):
        return "Diverging operators (the dumps do not tell the order of execution, so none is called the first)"
    if unseen and first.cause is not Cause.SUSPECT:
        were = "was" if unseen == 1 else "were"
        return f"Earliest diverging operator found ({count_of(unseen, 'tensor')} before it {were} not compared)"
    if first.cause is Cause.SUSPECT:
        return "First operator out of the noise before it (by statistics; not proven)"
    if first.cause is Cause.UNKNOWN:
        return "Earliest diverging operator found (not all that it reads is known)"
    return "First diverging operator"


def _suspect(root: Root, where: str, look: "Optional[Look]") -> Suspect:
    pair = root.pair
    more = {"golden": partner_of(pair), "where": where, "line": line_of(pair), "flow": flow_of(root), "look": look}
    return Suspect.of(root, pair.operator, **more)


def passed_words(roots: Sequence[Root]) -> str:
    """Of operators that pass the error on: how many, and where it is largest."""
    worst = max(roots, key=lambda root: root.value or 0.0, default=None)
    size = f", largest rel_l2 {brief(worst.value)} at {worst.pair.operator.name}" if worst and worst.value else ""
    return f"{count_of(len(roots), 'operator')} downstream{size}"


def _agree_words(findings: Sequence[Finding], agreeing: int) -> Line:
    largest = max((finding.error or 0.0 for finding in findings), default=0.0)
    trusted = any(one.verdict is Verdict.MATCH and one.measurement.bound is not None for one in findings)
    how = "every tensor that was compared "
    in_bits = all(is_bit_equal(one) for one in findings if one.verdict is Verdict.MATCH)
    how += "is bit for bit the same" if in_bits else "holds the same values"
    how += " but for masks" if any(map(has_other_masks, findings)) else ""
    if largest or trusted:
        how = "as far as statistics tell" if trusted else f"largest rel_l2 {brief(largest)}"
    return Line("No operator diverged", "good", f": {count_of(agreeing, 'tensor')} agree, {how}")


def notes_of(report: Report) -> "list[str]":
    """What a reader should know besides, each once."""
    runs = [note for one in report.comparisons for run in (one.target, one.golden) for note in run.notes]
    return [
        *dict.fromkeys(
            [*report.unreplayed, *runs, *(note for one in report.comparisons for note in one.notes), *report.notes]
        )
    ]


def _within_noise(report: Report) -> Iterator[str]:
    """What --noise excused."""
    excused = [finding for finding in report.findings if finding.metric == "noise"]
    if excused:
        worst = max(excused, key=lambda finding: finding.error or 0.0)
        where = f"rel_l2 {brief(worst.error)} at {worst.pair.operator.name} {worst.pair.slot}"
        yield f"{count_of(len(excused), 'tensor')} above the limit, within measured noise; largest {where}"


def _unreadable(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        if finding.verdict is Verdict.UNREADABLE:
            tensor = finding.measurement.unreadable
            file = f" ({tensor.file})" if tensor is not None and tensor.file else ""
            yield f"{f'{finding.pair.operator.name} {finding.pair.slot}'.rstrip()}: {finding.because}{file}"


def _runs_left_out(report: Report) -> Iterator[str]:
    for side, run in report.broken:
        yield f"unreadable {side}: {run.problem}"
    for side, run in report.unpaired:
        yield f"only in {side}: {' '.join(where_words(run))} ({run.path})"


def _undecided(findings: Sequence[Finding]) -> Iterator[str]:
    for verdict, what in LEFT_OUT.items():
        found = [finding for finding in findings if finding.verdict is verdict]
        if found:
            where = f"{found[0].pair.operator.name} {found[0].pair.slot}"
            yield f"{count_of(len(found), 'tensor')} {what}, for example {where}: {found[0].because}"


def _verdict(report: Report, counts: "Counter[Verdict]") -> "tuple[str, str]":
    status = report.exit_status
    if status == 130:
        return "PARTIAL", f"interrupted after {count_of(len(report.findings), 'tensor')}"
    if status == 1 and report.is_suspected:
        return "SUSPECTED", ", ".join(["by statistics; not proven", *_suspected_words(report)])
    if status == 1:
        return "DIVERGED", ", ".join(_diverged_words(report, counts))
    if status == 0:
        words = [f"{count_of(counts[Verdict.MATCH], 'tensor')} compared, none diverged"]
        words += [f"{counts[one]} {what}" for one, what in LEFT_OUT.items() if counts[one]]
        words += [f"{count_of(len(report.unpaired), 'run')} without a partner"] if report.unpaired else []
        return "AGREES", ", ".join(words)
    if report.broken:
        return "UNDECIDED", f"{count_of(len(report.broken), 'run')} could not be read, the others agree"
    if counts[Verdict.UNREADABLE]:
        unreadable = count_of(counts[Verdict.UNREADABLE], "tensor")
        return "UNDECIDED", f"{unreadable} could not be read, none of the others diverged"
    incomplete = lacking_words(report)
    if incomplete and counts[Verdict.MATCH]:
        return "UNDECIDED", f"{incomplete}; {count_of(counts[Verdict.MATCH], 'tensor')} compared, none diverged"
    if undecided := sum(finding.is_undecided for finding in report.findings):
        advice = "dump with task tensor or md5, or pass --trust-statistics"
        return "UNDECIDED", f"statistics prove no agreement of {count_of(undecided, 'tensor')}; {advice}"
    why = "partners are missing, of types that have nothing in common, or empty"
    return "UNDECIDED", f"nothing could be compared: {why}"


def _suspected_words(report: Report) -> "Iterator[str]":
    """What statistics alone make suspect."""
    causes = Counter(root.cause for root in report.roots)
    yield f"{count_of(causes[Cause.SUSPECT], 'operator')} out of the noise before it"
    if causes[Cause.PROPAGATED]:
        yield f"{causes[Cause.PROPAGATED]} behind it proven to differ"


def lacking_words(report: Report) -> str:
    """What of the network one side lacks, so that agreement of the rest is none; "" if nothing."""
    return "; ".join(dict.fromkeys(words for one in report.comparisons for words in one.incomplete))


def _diverged_words(report: Report, counts: "Counter[Verdict]") -> "Iterator[str]":
    causes = Counter(root.cause for root in report.roots)
    differing = sum(counts[verdict] for verdict in DIFFERS)
    if causes[Cause.BORN] + causes[Cause.GAP]:
        yield f"error is born in {count_of(causes[Cause.BORN] + causes[Cause.GAP], 'place')}"
    if causes[Cause.WORSENED]:
        yield f"worsened in {causes[Cause.WORSENED]}"
    if causes[Cause.UNKNOWN]:
        yield f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause"
    if causes[Cause.PROPAGATED]:
        yield f"{causes[Cause.PROPAGATED]} pass it on"
    if not causes and differing:
        yield f"{count_of(differing, 'tensor')} differ"
    elif not causes:
        alone = count_of(counts[Verdict.MISSING], "tensor"), count_of(len(report.unpaired), "run")
        yield f"--strict: {' and '.join(alone)} without a partner"
    if counts[Verdict.UNREADABLE]:
        yield f"{counts[Verdict.UNREADABLE]} unreadable"


def _rooted(report: Report) -> "list[tables.Rooted]":
    return [(one.roots, one.step, one.rank) for one in report.comparisons]


def facts(report: Report) -> Row:
    """What summary.json holds of a comparison."""
    return {
        "target": of_runs(report.target_path, [one.target for one in report.comparisons], *OF_FIRST),
        "golden": of_runs(report.golden_path, [one.golden for one in report.comparisons], *OF_FIRST),
        "also": list(report.also),
        "aligned": coverage.aligned(report.comparisons),
        "verdicts": dict(Counter(finding.verdict.value for finding in report.findings)),
        "causes": dict(Counter(root.cause.value for root in report.roots)),
        "roots": tables.root_rows(_rooted(report), tables.SUMMARISED),
        "rules": [row.__dict__ for row in report.rules],
        "notes": notes_of(report),
        "unlike": report.unlike,
        "passes": [],
        "unpaired": [
            {"side": side, "path": run.path, "step": run.step, "rank": run.rank} for side, run in report.unpaired
        ],
    }
