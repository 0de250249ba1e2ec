"""The part of the Answer of a comparison that concerns the truth: lines on the screen, suspects, three_runs.csv, the
pictures of the page."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from npucmp.model import Report
from npucmp.model.cause import Evidence, Fact
from npucmp.model.three_runs import BETTER, CARRIED, GOLDEN, SAME, WORSE, ErrorRatio, ThreeRunRow, ThreeRuns
from npucmp.report.answer import Answer, DumpSummary, Listing, Plot, ReportTable, Row, Section, Suspect, Suspects
from npucmp.report.phrases import count_of
from npucmp.report.tables import table
from npucmp.three_runs.judgement import reading
from npucmp.three_runs.sums import BINS, PER_UNIT, Array, overlap_of

FILE = "three_runs.csv"
COLUMNS = tuple(
    (
        "rank order op op_type phase slot steps elements target_error golden_error ratio ratio_low ratio_high "
        "input_ratio own_target_error own_golden_error own_ratio own_low own_high kind_own_ratio target_gain "
        "golden_gain target_bias golden_bias overlap max_ratio mare_ratio mere_ratio rmse_ratio vendor_level neuron "
        "verdict because stack"
    ).split(" ")
)
SHOWN = tuple(
    ("rank op slot ratio input_ratio own_ratio overlap target_bias golden_bias neuron vendor_level verdict").split(" ")
)
WORDS = {WORSE: "WORSE", SAME: "NO WORSE", BETTER: "BETTER"}
TITLE = "Against the truth"
MOST = 50  # suspects: work: the table has all
LISTED = 12  # lines on the screen: work


def three_run_answer(found: Answer, report: Report, runs: ThreeRuns) -> Answer:
    """Return the answer of a comparison with the part on the truth."""
    decides = runs.is_worse or report.exit_status == 0
    word = WORDS.get(runs.verdict, found.word) if decides and report.exit_status < 2 else found.word
    accused = _accused(found, runs)
    shown = Suspects((), ()) if decides and not runs.is_worse else accused
    sections = [_section(one, runs, at == 0, shown, found) for at, one in enumerate(found.sections)]
    return replace(
        found,
        word=word,
        sentence=runs.because if word in WORDS.values() else f"{found.sentence}; by the truth {_words(runs)}",
        sections=sections,
        suspects=shown,
        sides=[*found.sides, _side(runs)] if found.sides else found.sides,
        title=sections[0].title if sections else found.title,
        nothing=found.nothing if not shown.first else [],
        notes=[*found.notes, Listing("note", runs.notes, "summary.json")],
        tables=[*found.tables, _table(runs)],
        plots=[*found.plots, *_plots(runs)],
        facts=lambda: {**found.facts(), "truth": _facts(runs)},
        meaning={**found.meaning, "WORSE": "it adds more error than the golden's"},
        advice={**found.advice, "WORSE": "compare its kernel, order of accumulation and rounding with the golden's"},
    )


def _words(runs: ThreeRuns) -> str:
    words = {WORSE: "worse than the golden", SAME: "no worse than the golden", BETTER: "better than the golden"}
    return f"{words.get(runs.verdict, runs.verdict)}: {runs.because}"


def _side(runs: ThreeRuns) -> DumpSummary:
    return DumpSummary("truth", runs.truth, runs.what)


def _accused(found: Answer, runs: ThreeRuns) -> Suspects:
    """Return the operators that are worse by the truth, then the suspects of two runs of which it says nothing."""
    rows = _by_output(runs)
    known = {one.op: one for one in found.suspects.first}
    page = "" if found.matrix is None else None
    worse = [runs.rows[place] for place in runs.worse][:MOST]
    first = {row.op: _with_truth(known[row.op], row) if row.op in known else _suspect(row, page) for row in worse}
    others = [one for one in found.suspects.first if one.op not in first and not _is_cleared(one, rows)]
    every = [one._replace(place=place) for place, one in enumerate([*first.values(), *others], 1)]
    return Suspects(every, found.suspects.passed)


def _by_output(runs: ThreeRuns) -> Mapping[tuple[str, str], Sequence[ThreeRunRow]]:
    """Return the rows of each output, of all ranks."""
    rows: dict[tuple[str, str], list[ThreeRunRow]] = defaultdict(list)
    for row in runs.rows:
        rows[row.op, row.slot].append(row)
    return rows


def _is_cleared(one: Suspect, rows: Mapping[tuple[str, str], Sequence[ThreeRunRow]]) -> bool:
    known = rows.get((one.op, one.slot), ())
    return bool(known) and all(row.verdict in (SAME, BETTER, CARRIED, GOLDEN) for row in known)


def _with_truth(one: Suspect, row: ThreeRunRow) -> Suspect:
    return one._replace(evidence=(*one.evidence, _evidence(row)))


def _evidence(row: ThreeRunRow) -> Evidence:
    facts = {"target": Fact(row.target_error), "golden": Fact(row.golden_error), "because": Fact(row.because)}
    words = "errors against the truth: target {target}, golden {golden}; {because}"
    return Evidence("truth", words, facts)


def _suspect(row: ThreeRunRow, page: Optional[str]) -> Suspect:
    at: Mapping[str, Any] = {} if row.rank is None else {"rank": row.rank}
    where = "" if row.rank is None else f"rank {row.rank}"
    known = 0, "WORSENED", row.op, row.op_type, row.slot, (_evidence(row),)
    return Suspect(*known, word="WORSE", line=row.stack, where=where, page=page, at=at)


def _section(one: Section, runs: ThreeRuns, is_first: bool, shown: Suspects, found: Answer) -> Section:
    if not is_first:
        return one
    listings = [*one.listings, Listing(TITLE, [*_lines(runs)], FILE)]
    rows = _by_output(runs)
    cleared = [f"{each.op} {each.slot}: {rows[each.op, each.slot][0].because}" for each in found.suspects.first
               if _is_cleared(each, rows)]  # fmt: skip
    if cleared:
        listings = [
            Listing("These differ from the golden, no further from the truth than it", cleared, FILE),
            *listings,
        ]
    if shown.first and shown.first[0].word == "WORSE":
        one = one._replace(title="First operator that is further from the truth than the golden's", lines=())
    elif not shown.first:
        one = one._replace(title="", passed_words="")
    sides = [*one.sides, _side(runs)] if one.sides else one.sides
    return one._replace(sides=sides, suspects=shown, listings=listings, agreeing=0)


def _lines(runs: ThreeRuns) -> Iterator[str]:
    """Yield lines on all outputs, on each kind, and on operators in which the golden is the worse one."""
    ratios = [row.ratio.value for row in runs.rows if math.isfinite(row.ratio.value)]
    counts = Counter(row.verdict for row in runs.rows)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    recomputed = sum(row.own is not None for row in runs.rows)
    line = f"{count_of(len(runs.rows), 'output')}, {recomputed} recomputed: {words}"
    line += f"; median ratio {median(ratios):.3g}" if ratios else ""
    if runs.whole is not None and math.isfinite(runs.whole.value):
        line += f"; at the end {_interval(runs.whole)}"
    yield line
    for kind in _kinds(runs)[: LISTED - 2]:
        own = f", own {kind['own_ratio']:.3g}" if kind["own_ratio"] is not None else ""
        overlap = f", overlap {kind['overlap']:.3f}" if kind["overlap"] is not None else ""
        bias = f", bias {kind['target_bias']:+.3f} (golden {kind['golden_bias']:+.3f})" if kind["biased"] else ""
        yield f"{kind['op_type']}: {count_of(kind['outputs'], 'output')}, ratio {kind['ratio']:.3g}{own}{overlap}{bias}"
    if runs.golden:
        names = ", ".join(f"{runs.rows[place].op}" for place in runs.golden[:3])
        yield f"the golden adds more error in {count_of(len(runs.golden), 'output')}, the first: {names}"


def _interval(one: ErrorRatio) -> str:
    if not math.isfinite(one.low):
        return f"{one.value:.3g}"
    return f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g})"


def _kinds(runs: ThreeRuns) -> list[Row]:
    """Return the medians of each kind of operator, the largest ratio first."""
    kinds: dict[str, list[ThreeRunRow]] = defaultdict(list)
    for row in runs.rows:
        if math.isfinite(row.ratio.value):
            kinds[row.op_type].append(row)
    found = [_kind(name, rows) for name, rows in kinds.items()]
    return sorted(found, key=lambda kind: -max(kind["ratio"], kind["own_ratio"] or 0.0))


def _kind(name: str, rows: Sequence[ThreeRunRow]) -> Row:
    def middle(values: Sequence[Optional[float]]) -> Optional[float]:
        known = [value for value in values if value is not None and math.isfinite(value)]
        return median(known) if known else None

    target, golden = middle([row.target_bias for row in rows]), middle([row.golden_bias for row in rows])
    ratio = middle([row.ratio.value for row in rows])
    return {
        "op_type": name,
        "outputs": len(rows),
        "ratio": ratio,
        "own_ratio": middle([row.own.value if row.own is not None else None for row in rows]),
        "overlap": middle([row.overlap for row in rows]),
        "target_bias": target,
        "golden_bias": golden,
        "biased": target is not None and golden is not None,
        "neuron": reading(ratio) if ratio is not None else None,
    }


def _facts(runs: ThreeRuns) -> Row:
    """Return the values for summary.json."""
    ratios = [row.ratio.value for row in runs.rows if math.isfinite(row.ratio.value)]
    return {
        "path": runs.truth,
        "what": runs.what,
        "verdict": runs.verdict,
        "because": runs.because,
        "cleared": runs.cleared,
        "outputs": len(runs.rows),
        "verdicts": dict(Counter(row.verdict for row in runs.rows)),
        "ratio": median(ratios) if ratios else None,
        "end": [*runs.whole] if runs.whole is not None else None,
        "kinds": [{key: value for key, value in kind.items() if key != "biased"} for kind in _kinds(runs)],
        "worse": [_cells(runs.rows[place]) for place in runs.worse[:MOST]],
        "golden_worse": [runs.rows[place].op for place in runs.golden[:MOST]],
        "notes": [*runs.notes],
    }


def _table(runs: ThreeRuns) -> ReportTable:
    made = table(FILE, COLUMNS, lambda: map(_cells, runs.rows))
    return made._replace(title=TITLE, words="; ".join(_lines(runs)), shown=SHOWN)


def _cells(row: ThreeRunRow) -> Row:
    def known(value: Optional[float]) -> Optional[float]:
        return None if value is None or math.isnan(value) else value

    own = row.own or ErrorRatio(math.nan, math.nan, math.nan)
    ratio = known(row.ratio.value)
    cells = (
        row.rank, row.order, row.op, row.op_type, row.phase, row.slot, row.steps, row.elements, row.target_error,
        row.golden_error, *map(known, row.ratio), row.input_ratio, row.own_target, row.own_golden, *map(known, own),
        row.kind_own, known(row.target_gain), known(row.golden_gain), row.target_bias, row.golden_bias, row.overlap,
        row.largest, row.mare, row.mere, row.rmse, row.level, None if ratio is None else reading(ratio), row.verdict,
        row.because, row.stack,
    )  # fmt: skip
    return dict(zip(COLUMNS, cells))


def _plots(runs: ThreeRuns) -> Iterator[Plot]:
    """Yield the ratio along the network, and the distributions of the errors of all outputs and of one operator."""
    rows = runs.rows
    ratios = [(at, row.ratio.value) for at, row in enumerate(rows) if 0.0 < row.ratio.value < math.inf]
    own = [(at, row.own.value) for at, row in enumerate(rows) if row.own is not None and 0.0 < row.own.value < math.inf]
    curves = [("ratio of the errors", *_columns(ratios)), ("ratio of what each operator adds", *_columns(own))]
    if ratios:
        bands = [(place, place) for place in runs.worse[:MOST]]
        title = "Error of the target over the golden's, along the network"
        yield Plot(title, "worse than the golden's", [curve for curve in curves if curve[1]], bands)
    drawn = [row for row in rows if row.overlap is not None and row.overlap < 1.0]
    if not drawn:
        return
    yield _histogram("Signed errors of all outputs", np.mean([_shares(row.shares) for row in drawn], axis=0))
    chosen = rows[runs.worse[0]] if runs.worse else max(drawn, key=lambda row: row.ratio.value)
    words = "Signed errors that the operator adds" if chosen.own_shares else "Signed errors"
    yield _histogram(f"{words}: {chosen.op} {chosen.slot}", _shares(chosen.own_shares or chosen.shares))


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [at for at, _ in points], [value for _, value in points]


def _shares(shares: bytes) -> Array:
    return np.frombuffer(shares, np.float32).reshape(2, BINS)


def _histogram(title: str, shares: Array) -> Plot:
    """Return both distributions over the error in percent of the golden's root mean square."""
    places = [round(100.0 * (at - BINS // 2 + 0.5) / PER_UNIT) for at in range(1, BINS - 1)]
    curves = [(name, places, (100.0 * one[1:-1]).tolist()) for name, one in zip(("target", "golden"), shares)]
    overlap = overlap_of(shares)
    words = f"% of the elements over the error in % of the golden's root mean square; overlap {overlap:.3f}"
    return Plot(title, words, curves)
