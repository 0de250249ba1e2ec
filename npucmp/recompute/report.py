"""The Answer of `npucmp replay`: guilty operators, explanations that excuse others, and outputs that could not be
replayed.

replay.csv has one row per output; replay_tables.py makes edges.csv and gaps.csv.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Callable, Iterator, Sequence

from npucmp.model import (
    GUILTY_ABOVE,
    REPLAYED,
    Edge,
    EdgeVerdict,
    Evidence,
    Fact,
    Operator,
    Replay,
    ReplayedOutput,
    ReplayResult,
    ReplayVerdict,
    TensorRef,
)
from npucmp.model.stack import frames, source_line, source_path
from npucmp.recompute import report_tables as replay_tables
from npucmp.report import tables
from npucmp.report.answer import Answer, Detail, DumpSummary, Line, Listing, Row, Section, Suspect, Suspects
from npucmp.report.next_commands import of_replay
from npucmp.report.phrases import count_of, describe, known_numbers, of_operator, of_runs, problem_of, where_words

COLUMNS = tuple(
    (
        "step rank order op op_type phase slot dtype elements status verdict rms_ratio max_ratio bias rel_l2 rel_l2_u "
        "mere mare rmse max_abs_err max_abs_index nonfinite vendor_mixed vendor_mere_mare same_dtype_ratio "
        "golden_mare_ratio golden_mere_ratio golden_rmse_ratio vendor_level budget sampled treated explanation where "
        "seconds stack"
    ).split(" ")
)
OF_OPERATORS = ("step", "rank", "order", "op", "op_type", "phase", "stack")
MEANING = {
    "CLEAN": "matches float64 of the operator's own inputs within the expected rounding",
    "GUILTY": "exceeds the expected rounding: the operator computes something else",
    "AMPLIFIER": "exceeds the expected rounding, but so does a CPU in the same types, or every operator of this kind",
    "BROKEN": "a gradient differs from the sum that its consumers return: it was changed between operators",
    "UNKNOWN": "could not be replayed; the status gives the reason",
}
NOTHING = "No operator could be replayed"


def answer(report: ReplayResult, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a replay; metrics are ignored."""
    places = iter(range(1, len(report.rows) + 1))
    sections = [_section(one, report, places) for one in report.replays]
    suspects = Suspects.of([suspect for one in sections for suspect in one.suspects.first])
    word, sentence = _verdict(report)
    unreadable = [problem_of(run) for _, run in report.broken]
    notes = [*dict.fromkeys([*report.notes, *(note for one in report.replays for note in one.notes)])]
    undone = [words for one in report.replays for words in not_replayed(one)]
    done = any(row.status == REPLAYED for row in report.rows)
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=sections,
        suspects=suspects,
        places="replay.csv",
        title="Operators that do not match float64 of their own inputs" if suspects.first else "",
        compared="Replayed run",
        aligned=" · ".join(one.aligned for one in sections),
        nothing=[] if suspects.first else ["No operator exceeds the expected rounding." if done else NOTHING],
        counts={name.value: count for name, count in sorted(report.verdicts.items())},
        notes=[Listing("not replayed", undone, "replay.csv"), Listing("note", notes, "summary.json")],
        unreadable=Listing("unreadable", unreadable, "summary.json"),
        undecided=unreadable,
        tables=[
            tables.table("replay.csv", COLUMNS, lambda: (row for one in report.replays for row in _rows(one))),
            tables.table("edges.csv", replay_tables.EDGES, lambda: _all(report, replay_tables.edge_rows)),
            tables.table("gaps.csv", replay_tables.GAPS, lambda: _all(report, replay_tables.gap_rows)),
        ],
        detail=lambda: _detail(report),
        commands=of_replay,
        facts=lambda: {**_facts(report), "notes": notes},
        meaning=MEANING,
        alike={"cause": "verdict", "limit": "budget"},
    )


def _section(one: Replay, report: ReplayResult, places: Iterator[int]) -> Section:
    where = where_words(one.run)
    done = sum(row.status == REPLAYED for row in one.rows)
    left = Counter(row.status for row in one.rows if row.status != REPLAYED)
    words = [f"replayed {done:,} of {count_of(len(one.rows), 'output')}"]
    words += [f"{count:,} not replayed: {name}" for name, count in left.items()]
    after = [Line("setting" if text in one.settings else "explained", "UNKNOWN", f"  {text}") for text in one.peers]
    after += replay_tables.differing(one)
    after += [Line("golden", "UNKNOWN", f"  {text}") for text in one.golden]
    held = replay_tables.coverage(one)
    words += [held] if held else []
    suspects = [
        replay_tables.gradient_suspect(guilty, one, next(places))
        if isinstance(guilty, Edge)
        else _suspect(guilty, one, next(places))
        for guilty in _guilty_items(one)
    ]
    return Section(
        where=" ".join(where),
        sides=_sides(one, report),
        aligned=" · ".join(words),
        title="Guilty, in order of execution" if suspects else "",
        suspects=Suspects.of(suspects),
        agreeing=0
        if suspects or one.peers or replay_tables.differences(one)
        else sum(row.verdict is ReplayVerdict.CLEAN for row in one.rows),
        lines=[] if suspects else [Line("No operator is guilty", "good") if done else Line(NOTHING, "UNKNOWN")],
        after=after,
    )


def _sides(one: Replay, report: ReplayResult) -> list[DumpSummary]:
    found = [DumpSummary("dump", report.paths[0], describe(one.run))]
    return found + (
        [DumpSummary("golden", report.paths[1], describe(one.golden_run))] if one.golden_run is not None else []
    )


def _guilty(one: Replay) -> list[list[ReplayedOutput]]:
    """Return guilty outputs by operator, in order of execution."""
    found: dict[int, list[ReplayedOutput]] = {}
    for row in one.guilty:
        found.setdefault(row.order, []).append(row)
    return [found[order] for order in sorted(found)]


def _guilty_items(one: Replay) -> list[list[ReplayedOutput] | Edge]:
    """Return guilty operators and broken edges, in order of execution."""
    found: list[tuple[int, list[ReplayedOutput] | Edge]] = [(rows[0].order, rows) for rows in _guilty(one)]
    found += [(edge.order, edge) for edge in one.broken_edges]
    return [rows for _, rows in sorted(found, key=lambda item: item[0])]


def _suspect(rows: Sequence[ReplayedOutput], one: Replay, place: int) -> Suspect:
    """Return an operator as a suspect, described by the worst of its guilty outputs."""
    worst = max(rows, key=lambda row: row.rms_ratio or 0.0)
    operators = one.operators
    operator = operators[worst.order]
    forwards = {operators[row.order].call for row in one.guilty if operators[row.order].phase == "forward"}
    under = operator.phase == "backward" and operator.call in forwards
    return Suspect(
        place,
        ReplayVerdict.GUILTY.value,
        operator.name,
        operator.op_type,
        worst.slot,
        tuple(_evidence(worst)),
        ReplayVerdict.GUILTY.value,
        where=" · ".join(where_words(one.run)),
        line=source_line(operator),
        path=source_path(operator),
        at=known_numbers(step=one.run.step, rank=one.run.rank),
        aside="its forward operator is guilty too" if under else "",
        figures=tuple(_figures(worst, operator)),
        picture=worst.picture,
    )


def _figures(row: ReplayedOutput, operator: Operator) -> Iterator[tuple[str, str]]:
    """Yield the three ratios with their limits, and the error."""
    low = any(one.slot == row.slot and one.dtype in ("float16", "bfloat16") for one in operator.tensors)
    for name, limits in GUILTY_ABOVE.items():
        value = getattr(row, name)
        if value is not None:
            yield name, f"{value:.3g} (limit {limits[low]:g})"
    for name in ("rel_l2", "max_abs_err"):
        if getattr(row, name) is not None:
            yield name, f"{getattr(row, name):.3g}"


def _evidence(row: ReplayedOutput) -> Iterator[Evidence]:
    if row.nonfinite:
        facts = {"count": Fact(row.nonfinite)}
        yield Evidence("not finite", "{count} elements are NaN or infinite where float64 is not, or the reverse", facts)
    if row.explanation:
        yield Evidence("explanation", "{words}", {"words": Fact(row.explanation)})
    if row.rms_ratio is not None and row.rel_l2 is not None and math.isfinite(row.rms_ratio):
        facts = {name: Fact(getattr(row, name), slot=row.slot) for name in ("rms_ratio", "max_ratio", "rel_l2")}
        units = "" if row.rel_l2_u is None else " = {units:,.2g} u"
        facts["units"] = Fact(row.rel_l2_u)
        words = "error {rms_ratio:,.2g} times the expected rounding, {max_ratio:,.2g} times at the worst element"
        yield Evidence("budget", f"{words}; rel_l2 {{rel_l2}}{units}", facts)
    if row.where:
        yield Evidence("where", "its elements beyond the limit lie in {box}", {"box": Fact(row.where)})
    if row.bias is not None and 0.25 < abs(row.bias) < 2:  # in this range, the other figures show less
        toward = "toward" if row.bias > 0 else "away from"
        yield Evidence("bias", f"on average {{bias:.2f}} u {toward} zero", {"bias": Fact(abs(row.bias))})
    if row.same_dtype_ratio is not None:
        facts = {"ratio": Fact(row.same_dtype_ratio)}
        words = "{ratio:,.2g} times the error of the same call on a CPU in these types"
        exact = math.isinf(row.same_dtype_ratio)
        yield Evidence("same types", "the same call on a CPU in these types has no error" if exact else words, facts)
    if row.golden_rmse_ratio is not None:
        facts = {"ratio": Fact(row.golden_rmse_ratio), "level": Fact(row.vendor_level)}
        words = "{ratio:,.2g} times the error of the golden's own call"
        words = "the golden's own call has no error" if math.isinf(row.golden_rmse_ratio) else words
        words += " (level of the double benchmark: {level})"
        yield Evidence("golden", words, facts)


def not_replayed(one: Replay) -> list[str]:
    """Return a line per status and kind of operator for outputs that were not replayed. In dumps of other tools than
    msprobe, operators are grouped by type, because names of kernels differ."""
    operators = {
        order: operator if one.run.format == "msprobe" else operator._replace(kind=operator.op_type)
        for order, operator in one.operators.items()
    }
    found: Counter[tuple[str, str, str]] = Counter()
    for row in one.rows:
        if row.status != REPLAYED:
            found[row.status, operators[row.order].kind, row.explanation] += 1
    return [f"{status}: {count:,} of {kind}: {because}" for (status, kind, because), count in found.most_common()]


def _verdict(report: ReplayResult) -> tuple[str, str]:
    found, status = report.verdicts, report.exit_status
    clean = f"{count_of(found[ReplayVerdict.CLEAN], 'output')} clean"
    coarse, unknown = found[ReplayVerdict.AMPLIFIER], found[ReplayVerdict.UNKNOWN]
    rest = [f"{count_of(coarse, 'output')} coarse but excused"] if coarse else []
    rest += [f"{count_of(unknown, 'output')} unknown"] if unknown else []
    if status == 130:
        return "PARTIAL", f"interrupted after {count_of(len(report.rows), 'output')}"
    if status == 1:
        orders = sum(len(_guilty(one)) for one in report.replays)
        edges = sum(len(one.broken_edges) for one in report.replays)
        words = [f"{orders:,} operators do not match float64 of their own inputs"] if orders > 1 else []
        words += ["1 operator does not match float64 of its own inputs"] if orders == 1 else []
        words += [f"{count_of(edges, 'gradient')} {'differs' if edges == 1 else 'differ'} from the sum of "
                  f"{'its' if edges == 1 else 'their'} consumers"] if edges else []  # fmt: skip
        if not words:
            settings = sum(len(one.settings) for one in report.replays)
            words = [f"{count_of(settings, 'setting')} of the device, no operator alone"]
            return "SETTING", ", ".join([*words, clean, *rest])
        return "GUILTY", ", ".join([*words, clean, *rest])
    odd = sum(len(replay_tables.differences(one)) for one in report.replays)
    rest += [f"but {count_of(odd, 'input')} computed by another function than in other layers"] if odd else []
    if status == 0:
        return "INNOCENT", ", ".join([f"{clean}, none exceeds the expected rounding", *rest])
    return "UNDECIDED", "no operator could be replayed" if not found[ReplayVerdict.CLEAN] else ", ".join([clean, *rest])


def _all(report: ReplayResult, rows: Callable[[Replay], Iterator[Row]]) -> list[Row]:
    return [row for one in report.replays for row in rows(one)]


def _rows(one: Replay) -> Iterator[Row]:
    operators = one.operators
    tensors = {order: {tensor.slot: tensor for tensor in operator.tensors} for order, operator in operators.items()}
    for row in one.rows:
        yield _row(one, row, operators[row.order], tensors[row.order].get(row.slot))


def _row(one: Replay, row: ReplayedOutput, operator: Operator, tensor: TensorRef | None) -> Row:
    found: Row = {name: getattr(row, name, None) for name in COLUMNS}
    found.update(of_operator(operator), step=one.run.step, rank=one.run.rank, stack=source_line(operator))
    found.update(verdict=row.verdict.value, dtype=tensor.dtype if tensor is not None else None)
    found.update(elements=math.prod(tensor.shape) if tensor is not None else None)
    return found


def _detail(report: ReplayResult) -> Detail:
    operators: list[Row] = []
    rows: list[Row] = []
    for run, one in enumerate(report.replays):
        places = {operator_rows[0].order: place for place, operator_rows in enumerate(_guilty(one), 1)}
        for row, cells in zip(one.rows, _rows(one)):
            last = operators[-1] if operators else {}
            if (last.get("run"), last.get("order")) != (run, row.order):
                operators.append({name: cells[name] for name in ("order", "op", "op_type", "phase", "stack")})
                operators[-1].update(run=run, rows=0, frames=frames(one.operators[row.order]))
                if row.order in places:
                    operators[-1].update(cause=ReplayVerdict.GUILTY.value, place=places[row.order])
            operators[-1]["rows"] += 1
            rows.append({name: cell for name, cell in cells.items() if name not in OF_OPERATORS})
            rows[-1]["output"] = True
            due = row.rel_l2 / row.rms_ratio if row.rms_ratio and row.rel_l2 else None
            rows[-1]["limit"] = None if due is None else due * GUILTY_ABOVE["rms_ratio"][0]
    columns = [name for name in COLUMNS if name not in OF_OPERATORS]
    return Detail(
        kind="pairs",
        title="All outputs",
        chart="Own error along the network",
        runs=[" · ".join(where_words(one.run)) for one in report.replays],
        operators=tables.by_column(operators),
        rows=tables.by_column(rows),
        columns=["run", "order", "op", "op_type", "phase", *columns, "limit", "stack"],
        shown=[
            "run",
            "order",
            "op",
            "slot",
            "verdict",
            "status",
            "rms_ratio",
            "max_ratio",
            "rel_l2",
            "dtype",
            "explanation",
        ],
        facets=["run", "verdict", "status", "op_type", "phase"],
    )


def _facts(report: ReplayResult) -> Row:
    """Return the values of a replay for summary.json."""
    goldens = [one.golden_run for one in report.replays if one.golden_run is not None]
    guilty = [row for one in report.replays for row in _rows(one) if row["verdict"] == ReplayVerdict.GUILTY.value]
    return {
        "target": of_runs(report.paths[0], [one.run for one in report.replays], "format", "step", "rank"),
        **({"golden": of_runs(report.paths[1], goldens, "format", "step", "rank")} if goldens else {}),
        "verdicts": {name.value: count for name, count in report.verdicts.items()},
        "statuses": dict(Counter(row.status for row in report.rows)),
        "guilty": guilty[: tables.SUMMARISED],
        "levels": dict(Counter(row.vendor_level for row in report.rows if row.vendor_level)),
        "explained": [text for one in report.replays for text in one.peers],
        "device_settings": [text for one in report.replays for text in one.settings],
        "edges": dict(Counter(edge.verdict.value for one in report.replays for edge in one.edges)),
        "broken_edges": [
            row for row in _all(report, replay_tables.edge_rows) if row["verdict"] == EdgeVerdict.BROKEN.value
        ][: tables.SUMMARISED],
        "differing": [words for one in report.replays for words in replay_tables.differences(one)],
        "roots": [],
    }
