"""The Answer of `npucmp check`: findings to fix, findings that follow from them, and rules that could not be decided.

health.csv has one row per finding, checks.csv one per rule, parameters.csv one per parameter and step.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Sequence

from npucmp.model import Evidence, Fact
from npucmp.model.check_finding import CheckResult, ParameterRow, RuleDecision, Symptom
from npucmp.model.stack import source_line, source_path
from npucmp.report import tables
from npucmp.report.answer import (
    Answer,
    Detail,
    DumpSummary,
    Line,
    Listing,
    Lookup,
    PathStep,
    Plot,
    Row,
    Section,
    Suspect,
    Suspects,
)
from npucmp.report.next_commands import of_check
from npucmp.report.phrases import bytes_of, count_of, in_bytes, known_numbers, of_operator, of_runs, problem_of
from npucmp.report.run_views import graph_data, rms_plot, run_series

HEALTH = tuple(
    (
        "place severity rule step rank order op op_type phase slot parameter count value limit unit because remedy "
        "follows stack also"
    ).split(" ")
)
CHECKS = tuple("rule group severity decided why_not looked_at found limit limit_from source".split(" "))
PARAMETERS = tuple(
    (
        "parameter shape dtype trainable rms max_abs gain zeros grad_rms grad_over_weight update_ratio update_cosine "
        "same_bits_as step rank"
    ).split(" ")
)
FIRST = 20  # findings in summary.json
PANELS = (  # column, title, limit: the panels drawn along the network
    ("grad_over_weight", "gradient over weight (rms), parameter by parameter", None),
    ("update_ratio", "update ratio, mean |w' - w| over mean |w|", 1.0),
    ("output_rms", "rms of the outputs of operators", None),
)
MEANING = {
    "error": "the run cannot be correct",
    "warning": "probably wrong, unless there is a reason for it",
    "hint": "no fault if it is intended",
    "FOLLOWS": "disappears when the finding above it is fixed",
}


def answer(report: CheckResult, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a check; metrics are ignored."""
    roots = [one for one in report.symptoms if not one.follows]
    suspects = Suspects.of([_suspect(one, report) for one in roots])
    word, sentence = _verdict(report)
    notes = [*dict.fromkeys(report.notes)]
    unreadable = [*report.unreadable, *(problem_of(run) for _, run in report.broken)]
    undecided = undecided_rules(report.decisions)
    decided = sum(one.decided != "no" for one in report.decisions)
    aligned = f"{decided} of {count_of(len(report.decisions), 'rule')} decided"
    lines = [] if roots or not decided else [Line("No fault found", "good", _decided_words(report.decisions))]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=[
            Section(
                "", [DumpSummary("dump", report.path, _dump_words(report))], aligned, suspects=suspects, lines=lines
            )
        ],
        suspects=suspects,
        places="health.csv",
        title="Findings to fix" if roots else "",
        compared="Checked run",
        aligned=aligned,
        nothing=[] if roots else ["No rule found a fault."],
        counts=Counter(one.severity for one in report.symptoms),
        notes=[
            Listing("not decided", undecided_words(undecided), "checks.csv", rules=[*map(len, undecided.values())]),
            Listing("note", notes, "summary.json"),
        ],
        unreadable=Listing("unreadable", unreadable, "summary.json"),
        undecided=[f"unreadable: {words}" for words in unreadable],
        tables=[
            tables.table("health.csv", HEALTH, lambda: map(symptom_row, report.symptoms)),
            tables.table("checks.csv", CHECKS, lambda: map(_check, report.decisions)),
            tables.table("parameters.csv", PARAMETERS, lambda: map(_parameter, report.parameters)),
        ],
        plots=[Plot(f"Curve of {one.name}", "", [(one.name, one.steps, one.values)]) for one in report.curves],
        detail=lambda: _detail(report),
        commands=of_check,
        facts=lambda: {**_facts(report), "notes": notes},
        cases=lambda: [Lookup(one.rule, one.why_not or _behind(one)) for one in report.decisions],
        meaning=MEANING,
        alike={"cause": "rule"},
        along=lambda: rms_plot(report),
        series=lambda: run_series(report),
    )


def _behind(one: RuleDecision) -> str:
    return "its finding follows from another finding" if one.found else ""


def _dump_words(report: CheckResult) -> str:
    """ "msprobe · pytorch · mix tensor · steps 0-2 · 64 operators, 162 tensors, 25.9 MB a step · training"."""
    if not report.runs:
        return ""
    first = report.runs[0]
    numbers = [[*dict.fromkeys(number for number in run_numbers if number is not None)]
               for run_numbers in ([run.step for run in report.runs], [run.rank for run in report.runs])]  # fmt: skip
    words = [first.format, first.detail]
    words += [_span(name, run_numbers) for name, run_numbers in zip(("step", "rank"), numbers) if run_numbers]
    size = bytes_of([first])
    content = f"{count_of(len(first.operators), 'operator')}, {count_of(first.tensors, 'tensor')}"
    words.append(content + (f", {in_bytes(size)}" if size else "") + (" a step" if len(report.runs) > 1 else ""))
    trained = {"fresh": "training, fresh start", "trained": "training, trained before"}.get(report.starts, "training")
    bare = {"fresh": "no backward pass, fresh start", "trained": "no backward pass, trained before"}
    words.append(trained if report.training else bare.get(report.starts, "no backward pass"))
    return " · ".join(filter(None, words))


def _span(name: str, numbers: Sequence[int]) -> str:
    """ "step 3", "steps 0-2", "steps 0, 4, 8"."""
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    if numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
        return f"{name}s {numbers[0]}-{numbers[-1]}"
    return f"{name}s {', '.join(map(str, numbers[:6]))}{' …' if len(numbers) > 6 else ''}"


def _suspect(one: Symptom, report: CheckResult) -> Suspect:
    def way() -> list[PathStep]:
        return [
            PathStep(1, "FOLLOWS", f"{symptom.rule}  {one_line(symptom)}")
            for symptom in report.symptoms
            if symptom.follows == one.place
        ]

    where = " · ".join(f"{name} {at}" for name, at in (("step", one.step), ("rank", one.rank)) if at is not None)
    evidence = [Evidence("because", "{because}", {"because": Fact(one.because)})]
    evidence += [Evidence("remedy", "{remedy}", {"remedy": Fact(one.remedy)})] if one.remedy else []
    return Suspect(
        one.place,
        one.severity,
        one.where,
        one.operator.op_type if one.operator is not None else "",
        one.slot,
        tuple(evidence),
        one.severity.upper(),
        where=where,
        line=source_line(one.operator) if one.operator is not None else "",
        path=source_path(one.operator) if one.operator is not None else "",
        at=known_numbers(step=one.step, rank=one.rank),
        aside=_more(one).strip(),
        rule=one.rule,
        way=way,
    )


def one_line(one: Symptom) -> str:
    """ "conv1.weight and 2 more: its gradient is 0"."""
    return f"{one.where}{_more(one)}: {one.because}" if one.where else one.because


def _more(one: Symptom) -> str:
    return f" and {one.places - 1} more" if one.places > 1 else ""


def undecided_rules(decisions: Sequence[RuleDecision]) -> dict[str, list[str]]:
    """Return the reasons with the rules that each left undecided, most rules first."""
    reasons: dict[str, list[str]] = {}
    for one in decisions:
        if one.why_not:
            reasons.setdefault(one.why_not, []).append(one.rule)
    return dict(sorted(reasons.items(), key=lambda item: -len(item[1])))


def undecided_words(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason: the rules, then the reason."""
    return [f"{', '.join(rules)} ({why})" for why, rules in reasons.items()]


def _decided_words(decisions: Sequence[RuleDecision]) -> str:
    """ " by the 50 rules that this dump can decide; 48 others are not decided (below)"."""
    decided = sum(one.decided != "no" for one in decisions)
    others = len(decisions) - decided
    rest = f"; {count_of(others, 'other')} {'is' if others == 1 else 'are'} not decided (below)" if others else ""
    return f" by the {count_of(decided, 'rule')} that this dump can decide{rest}"


def _verdict(report: CheckResult) -> tuple[str, str]:
    status = report.exit_status
    roots = Counter(one.severity for one in report.symptoms if not one.follows)
    follow = sum(one.follows > 0 for one in report.symptoms)
    counts = count_of(roots["error"], "error"), count_of(roots["warning"], "warning"), count_of(roots["hint"], "hint")
    words = ", ".join(counts)
    words += f"; {count_of(follow, 'finding')} {'follows' if follow == 1 else 'follow'} from "
    words += "it" if sum(roots.values()) == 1 else "them"
    words = words if follow else words.partition(";")[0]
    if status == 130:
        return (
            "PARTIAL",
            f"interrupted; {words} so far" if report.decisions else "interrupted before a rule was decided",
        )
    if status == 1:
        return "UNHEALTHY", words
    if status == 0:
        return "HEALTHY", words
    failed = [one.rule for one in report.decisions if one.failed]
    if failed:
        return (
            "UNDECIDED",
            f"{count_of(len(failed), 'rule')} failed ({', '.join(failed[:3])}), the others found no fault",
        )
    if report.unreadable or report.broken:
        return "UNDECIDED", "some tensors could not be read, no fault found in the others"
    return "UNDECIDED", "this dump cannot decide any rule"


def symptom_row(one: Symptom) -> Row:
    row: Row = {name: getattr(one, name, None) for name in HEALTH}
    row.update(
        count=one.places,
        follows=one.follows or None,
        also="; ".join(one.also),
        order=one.order if one.order >= 0 else None,
    )
    row.update(of_operator(one.operator) if one.operator is not None else {"op": None})
    return {**row, "stack": source_line(one.operator) if one.operator is not None else None}


def _check(one: RuleDecision) -> Row:
    return {name: getattr(one, name) for name in CHECKS}


def _parameter(one: ParameterRow) -> Row:
    return {**{name: getattr(one, name) for name in PARAMETERS}, "shape": str([*one.shape])}


def _detail(report: CheckResult) -> Detail:
    """Return a row per parameter and step, then one per operator whose output was measured, each with its finding."""
    found = {one.where: one for one in reversed(report.symptoms) if one.where}
    keys = [*dict.fromkeys([*((one.rank, one.step) for one in report.parameters),
                            *((one.rank, one.step) for one in report.spreads)])]  # fmt: skip
    runs = {key: number for number, key in enumerate(keys)}
    operators: list[Row] = []
    rows: list[Row] = []
    for one in report.parameters:
        row = _parameter(one)
        operators.append({"run": runs[one.rank, one.step], "rows": 1, "op": one.parameter, "order": one.order})
        operators[-1].update(op_type="parameter", **_mark(found.get(one.parameter)))
        rows.append({**row, "output": True, **_finding(found.get(one.parameter))})
    for spread in report.spreads:
        operators.append({"run": runs[spread.rank, spread.step], "rows": 1, "order": spread.operator.order})
        operators[-1].update(of_operator(spread.operator), **_mark(found.get(spread.operator.name)))
        rows.append({"output_rms": spread.rms, "output": True, **_finding(found.get(spread.operator.name))})
    columns = ["run", "order", "op", "op_type", "finding", "severity", *PARAMETERS[1:-2], "output_rms"]
    return Detail(
        kind="health",
        title="Parameters and operators",
        chart="Network by depth",
        runs=[" · ".join(f"{name} {at}" for name, at in (("step", step), ("rank", rank)) if at is not None)
              for rank, step in keys],
        operators=tables.by_column(operators),
        rows=tables.by_column(rows),
        columns=columns,
        shown=["run", "order", "op", "op_type", "finding", "shape", "dtype", "rms", "gain", "grad_over_weight",
               "update_ratio", "update_cosine", "output_rms"],
        facets=["run", "severity", "finding", "op_type", "dtype"],
        more={
            "panels": [{"column": name, "title": title, "limit": limit} for name, title, limit in PANELS],
            "graph": graph_data(report),
        },
    )  # fmt: skip


def _mark(one: Symptom | None) -> Row:
    return {} if one is None else {"cause": one.severity, "place": one.place, "evidence": (one.because,)}


def _finding(one: Symptom | None) -> Row:
    return {} if one is None else {"finding": one.rule, "severity": one.severity}


def _facts(report: CheckResult) -> Row:
    """Return the values of a check for summary.json."""
    return {
        "target": of_runs(report.path, report.runs, "format", "step", "rank"),
        "training": report.training,
        "starts": report.starts,
        "fail_on": report.fail_on,
        "findings": {
            "severity": dict(Counter(one.severity for one in report.symptoms)),
            "rule": dict(Counter(one.rule for one in report.symptoms)),
        },
        "decided": [one.rule for one in report.decisions if one.decided != "no"],
        "not_decided": {one.rule: one.why_not for one in report.decisions if one.why_not},
        "first": [symptom_row(one) for one in report.symptoms[:FIRST]],
        "unreadable": list(report.unreadable),
        "roots": [],
    }
