"""The Answer of `npucmp parity`: the class, its first bad token, and the figures that trainers log.

parity.csv has a row for each step, whose request is empty, and one for each request; candidates.csv has a row for each
candidate of each step.
"""

from __future__ import annotations

import math
from collections import Counter
from shlex import quote
from typing import Optional, Sequence

from npucmp.model import Evidence, Fact
from npucmp.model.parity_result import (
    CandidateFit,
    ParityFigures,
    ParityFinding,
    ParityResult,
    StepParity,
    TokenClass,
    percent,
    state_of,
)
from npucmp.report import tables
from npucmp.report.answer import (
    Answer,
    CellMap,
    Detail,
    DumpSummary,
    Line,
    Listing,
    NextCommand,
    Plot,
    Row,
    Section,
    Suspect,
    Suspects,
)
from npucmp.report.phrases import count_of, known_numbers

COLUMNS = (
    "step", "request", "position", "token", "target", "golden", "difference", "noise", "beyond", "class",
    "tokens", "margin", "mean_abs", "max_abs", "k1", "k3",
)  # fmt: skip
CANDIDATES = ("step", "candidate", "class", "remains", "explains", "state", "because")
MOST_CURVES = 6  # steps in the drawing over positions
SHOWN_STEPS = 6  # steps on the screen
SHOWN_REFUTED = 3  # candidates on the screen that are refuted
MEANING = {
    TokenClass.SUM_MEAN: "one side has the sum over a response, the other the mean",
    TokenClass.NAN: "a log-probability that counts is not finite",
    TokenClass.PADDING: "one side counts tokens behind the end of responses",
    TokenClass.MASK: "one side counts tokens of responses that the other leaves out or never sampled",
    TokenClass.TOKENS: "the sides score other tokens",
    TokenClass.SHIFT: "one side stands beside the other by some positions",
    TokenClass.TOP_P: "one side records log-probabilities behind top-p or top-k",
    TokenClass.ROUTER: "scattered tokens differ, as other experts make them",
    TokenClass.TEMPERATURE: "the sides use another temperature",
    TokenClass.WEIGHTS: "the sides use other weights",
    TokenClass.CONTEXT: "some requests or positions are clean, the others see another context",
    TokenClass.LOGITS: "one side applies another function to the logits",
    TokenClass.RECORD: "one side records the log-probability of another token",
    TokenClass.DIFFERS: "the cause is not decided",
    TokenClass.CLEAN: "the differences are the noise of logits",
    TokenClass.UNDECIDED: "the tokens do not decide",
}
COMPARE = "npucmp compare ROLLOUT_DUMP TRAINER_DUMP"  # the user's dumps, whose paths parity does not know
SETTINGS = "npucmp precheck - - --config ROLLOUT_CONFIG TRAINER_CONFIG"
NEXT = {
    TokenClass.TOKENS: (COMPARE, "the tensors of this request, token by token, name the operator"),
    TokenClass.ROUTER: (COMPARE, "the tensors of this request name the first router that differs"),
    TokenClass.TEMPERATURE: (SETTINGS, "the temperature of both engines"),
    TokenClass.TOP_P: (SETTINGS, "top_p, top_k and the mode of log-probabilities of both engines"),
    TokenClass.LOGITS: (SETTINGS, "the processors of logits and the mode of log-probabilities of both engines"),
    TokenClass.RECORD: (SETTINGS, "which log-probability both engines record"),
    TokenClass.CONTEXT: (COMPARE, "the tensors of this request, the first bad one, token by token, name the operator"),
    TokenClass.DIFFERS: (COMPARE, "the tensors of this request; if the weights differ, that is found first"),
    TokenClass.NAN: ("npucmp overflow DUMP", "a dump of this step shows where NaN or Inf is born"),
    TokenClass.WEIGHTS: (
        "npucmp compare ROLLOUT_WEIGHTS TRAINER_WEIGHTS",
        "the weights of both engines at this step; if they agree, compare the tensors of the request",
    ),
}
OF_SETTINGS = {TokenClass.TEMPERATURE, TokenClass.TOP_P, TokenClass.LOGITS, TokenClass.RECORD}


def answer(result: ParityResult, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer; metrics are ignored."""
    sides = [
        DumpSummary(name, path, what)
        for name, path, what in zip(("rollout", "trainer"), (result.paths[0], result.paths[-1]), result.batches)
    ]
    places = [_suspect(place, one) for place, one in enumerate(result.findings, 1)]
    suspects = Suspects.of(places)
    return Answer(
        result=result,
        word=result.token_class.value.upper(),
        sentence=_sentence(result),
        sections=[Section("", sides, title="Log-probabilities", lines=_lines(result), after=_after(result))],
        suspects=suspects,
        places="parity.csv",
        title="Classes of the differences",
        compared="Compared recordings",
        aligned=f"{count_of(len(result.steps), 'step')}, {count_of(_requests(result), 'request')}",
        nothing=[] if result.findings else ["No class of a difference holds."],
        counts=Counter(one.finding.token_class.value for one in result.steps),
        notes=[Listing("note", result.notes, "summary.json")],
        unreadable=Listing("open", result.open, "summary.json"),
        undecided=list(result.open),
        commands=lambda answer: [NextCommand(*one) for one in _next(result)],
        remarks=lambda folder: [f"next: {command} ({because})" for command, because in _next(result)],
        remarks_title="Next",
        tables=[
            tables.table("parity.csv", COLUMNS, lambda: (_row(row) for one in result.steps for row in one.rows)),
            tables.table(
                "candidates.csv",
                CANDIDATES,
                lambda: (_candidate_row(one, fit) for one in result.steps for fit in one.fits),
            ),
        ],
        plots=_plots(result),
        maps=_maps(result),
        detail=lambda: _detail(result),
        facts=lambda: _facts(result),
        meaning={one.value: words for one, words in MEANING.items()},
        alike={"cause": "class"},
    )


def _suspect(place: int, finding: ParityFinding) -> Suspect:
    """Return a finding as a suspect, for a page."""
    evidence = tuple(Evidence("parity", "{words}", {"words": Fact(words)}) for words in finding.because)
    word = finding.token_class.value.upper()
    at = known_numbers(step=finding.step, request=finding.request, position=finding.position)
    return Suspect(place, word, _place_words(finding) or "all requests", "", "", evidence, word, at=at)


def _place_words(finding: Optional[ParityFinding]) -> str:
    """Return "step 0, request 2, position 17"; without a number, its word is left out."""
    if finding is None:
        return ""
    found = (("step", finding.step), ("request", finding.request), ("position", finding.position))
    return ", ".join(f"{name} {at}" for name, at in found if at is not None)


def _lines(result: ParityResult) -> list[Line]:
    lines = []
    for one in result.findings[:SHOWN_STEPS]:
        place = _place_words(one)
        margin = "" if one.margin is None else f", {one.margin:.3g} times the noise"
        rest = f"  first bad token: {place}{margin}" if place and one.request is not None else f"  {place}"
        lines.append(Line(f"  {one.token_class.value.upper():11}", "bad", rest))
        reasons = one.because if _says_itself(one) else (MEANING[one.token_class], *one.because)
        lines += [Line("", "title", f"{'':15}{words}") for words in reasons]
    more = len(result.findings) - SHOWN_STEPS
    if more > 0:
        lines.append(Line("", "title", f"  … and {more} more steps in parity.csv"))
    if not result.findings:
        for step in [one for one in result.steps if one.finding.token_class is TokenClass.UNDECIDED][:SHOWN_STEPS]:
            words = "; ".join((_place_words(step.finding), *step.finding.because)).strip("; ")
            lines.append(Line("  UNDECIDED  ", "open", f"  {words}"))
    shown = next((one for one in result.steps if one.fits and one.finding.token_class not in _SILENT), None)
    if shown is not None:
        lines.append(Line("", "title", f"  candidates of {_step_name(shown)}, and what remains in units of the noise:"))
        kept, others = _by_state(shown.fits)
        lines += [Line("", "title", _candidate_words(fit)) for fit in (*kept, *others[:SHOWN_REFUTED])]
        if len(others) > SHOWN_REFUTED:
            lines.append(Line("", "title", f"    … and {len(others) - SHOWN_REFUTED} others in candidates.csv"))
    return lines


def _by_state(fits: Sequence[CandidateFit]) -> tuple[list[CandidateFit], list[CandidateFit]]:
    """Return the candidates that are accepted or open, and the others, those that explain and leave most first."""
    kept = sorted((fit for fit in fits if state_of(fit) in ("accepted", "open")), key=state_of)
    others = [fit for fit in fits if fit not in kept]
    return kept, sorted(others, key=lambda fit: (-fit.explains, math.inf if fit.remains is None else fit.remains))


def _says_itself(finding: ParityFinding) -> bool:
    """Return whether the first reason of a finding says more than its class."""
    return finding.token_class in (TokenClass.CONTEXT, TokenClass.DIFFERS) and bool(finding.because)


def _candidate_words(fit: CandidateFit) -> str:
    remains = "-" if fit.remains is None else f"{fit.remains:.3g}"
    because = (*fit.refuted, fit.lacks)[0]
    return f"    {fit.name:57} {remains:>6}  {state_of(fit)}{f': {because}' if because else ''}"


def _candidate_row(step: StepParity, fit: CandidateFit) -> Row:
    because = "; ".join(filter(None, (*fit.refuted, fit.lacks))) or "; ".join(fit.because)
    figures = {"remains": fit.remains, "explains": fit.explains, "state": state_of(fit)}
    return {"step": step.step, "candidate": fit.name, "class": fit.token_class.value, **figures, "because": because}


def _after(result: ParityResult) -> list[Line]:
    """Return the figures over all tokens, those of steps, and the trend."""
    figures = result.figures
    if figures is None or not figures.tokens:
        return []
    lines = [Line("", "title", _figure_words(figures))]
    if len(result.steps) > 1:
        for one in result.steps[:SHOWN_STEPS]:
            found = f"mean |d| {one.figures.mean_abs:.3g}, beyond noise {_share(one.figures)}"
            number = "-" if one.step is None else one.step
            lines.append(Line("", "title", f"step {number}: {one.finding.token_class.value}, {found}"))
        if len(result.steps) > SHOWN_STEPS:
            lines.append(Line("", "title", f"… and {len(result.steps) - SHOWN_STEPS} more steps in parity.csv"))
    if result.trend:
        lines.append(Line("", "title", result.trend + _trend_words(result)))
    noise = figures.floor
    if math.isfinite(noise):
        lines.append(Line("", "title", f"noise of a logit: {noise:.2g} in the median token, floor {result.floor:g}"))
    return lines


def _figure_words(figures: ParityFigures) -> str:
    pearson = "" if math.isnan(figures.pearson) else f", Pearson {figures.pearson:.4f}"
    return (
        f"{figures.tokens:,} tokens: mean |d| {figures.mean_abs:.3g}, max {figures.max_abs:.3g}, "
        f"KL {figures.k1:.2g} (k1) {figures.k3:.2g} (k3), mean |p-p'| {figures.prob_diff:.3g}{pearson}, "
        f"beyond noise {_share(figures)}"
    )


def _trend_words(result: ParityResult) -> str:
    """Return what the trend over steps says of other weights, "" for another class."""
    if result.token_class is not TokenClass.WEIGHTS or "over steps" not in result.trend:
        return ""
    return ": a stale or corrupted synchronisation" if "grows" in result.trend else ": other weights from the start"


def _requests(result: ParityResult) -> int:
    return sum(one.requests for one in result.steps)


def _share(figures: ParityFigures) -> str:
    if math.isnan(figures.share_beyond):
        return "-"
    return percent(figures.share_beyond)


def _sentence(result: ParityResult) -> str:
    figures = result.figures
    tokens = figures.tokens if figures is not None else 0
    compared = f"{tokens:,} tokens of {count_of(_requests(result), 'request')} compared"
    if result.findings:
        first = result.findings[0]
        place = _place_words(first)
        where = f", first bad token: {place}" if first.request is not None else f", {place}" if place else ""
        words = f"{first.because[0] if _says_itself(first) else MEANING[first.token_class]}{where}"
        if len(result.findings) > 1:
            words += f", {count_of(len(result.findings), 'step')} differ"
        return f"{words}; {len(result.open)} open" if result.open else words
    if result.open:
        return f"{compared}; {result.open[0]}" + (f" and {len(result.open) - 1} more" if len(result.open) > 1 else "")
    if not result.is_decided:
        return f"{compared}; they do not decide"
    return f"{compared}, all within noise"


def _next(result: ParityResult) -> list[tuple[str, str]]:
    """Return the commands that go on, with the reason."""
    if not result.findings:
        is_quiet = result.figures is not None and 0 < result.figures.floor < result.floor / 4
        undecided = any(one.finding.token_class is TokenClass.UNDECIDED for one in result.steps)
        if undecided and is_quiet and result.figures is not None:
            words = " ".join(map(quote, result.paths))
            return [
                (f"npucmp parity {words} --floor {4 * result.figures.floor:.1g}", "the pair is quieter than the floor")
            ]
        return []
    first = result.findings[0]
    place = _place_words(first)
    if first.token_class in NEXT:
        command, because = NEXT[first.token_class]
        fits = next((one.fits for one in result.steps if one.finding is first), ())
        left = {fit.token_class for fit in _by_state(fits)[0]}
        if first.token_class is TokenClass.DIFFERS and left and left <= OF_SETTINGS:
            command, because = NEXT[TokenClass.LOGITS]
        return [(command, f"{place}: {because}" if place else because)]
    step = "" if first.step is None else f" --step {first.step}"
    again = f"npucmp parity {' '.join(map(quote, result.paths))}{step}"
    return [(again, "after the repair, the same step shows what is left of the difference")]


def _row(row: object) -> Row:
    found = dict(row._asdict())  # type: ignore[attr-defined]
    return {"class": found.pop("token_class"), **found}


def _plots(result: ParityResult) -> list[Plot]:
    """Return mean |d| over steps, and over the positions of the first steps with a finding."""
    plots = []
    steps = [one for one in result.steps if one.figures.tokens]
    numbered = [at if one.step is None else one.step for at, one in enumerate(steps)]
    if len(steps) > 1:
        bad = [(at, at) for at, one in zip(numbered, steps) if one.finding.token_class not in _SILENT]
        curves = [
            ("mean |d|", numbered, [one.figures.mean_abs for one in steps]),
            ("mean |p-p'|", numbered, [one.figures.prob_diff for one in steps]),
        ]
        plots.append(Plot("Difference over steps", "steps with a class", curves, bad))
    first = sorted(steps, key=lambda one: one.finding.token_class in _SILENT)[:MOST_CURVES]
    named = [(_step_name(one), one.positions.tolist(), one.mean_abs.tolist()) for one in first if len(one.positions)]
    if named:
        plots.append(Plot("Mean |d| over positions", "", named))
    return plots


def _maps(result: ParityResult) -> list[CellMap]:
    """Return the map of requests and positions of the first steps with a finding."""
    found = []
    for step in sorted(result.steps, key=lambda one: one.finding.token_class in _SILENT)[:MOST_CURVES]:
        if step.map is not None:
            sizes = step.map.requests, step.map.positions
            counts = step.map.tokens.tolist(), step.map.beyond.tolist()
            title = "Requests and positions" + ("" if step.step is None else f": step {step.step}")
            found.append(CellMap(title, ("requests", "positions"), sizes, *counts))
    return found


_SILENT = (TokenClass.CLEAN, TokenClass.UNDECIDED)


def _step_name(one: StepParity) -> str:
    return "all requests" if one.step is None else f"step {one.step}"


def _detail(result: ParityResult) -> Detail:
    """Return the rows of requests, by step."""
    rows = [
        {**_row(row), "verdict": row.token_class or "clean", "slot": "step" if row.request is None else "request"}
        for one in result.steps
        for row in one.rows
    ]
    operators = [{"run": 0, "op": _step_name(one), "rows": len(one.rows)} for one in result.steps]
    return Detail(
        kind="pairs",
        title="All requests",
        chart="",
        runs=["both sides"],
        operators=tables.by_column(operators),
        rows=tables.by_column(rows),
        columns=["op", "verdict", *COLUMNS[1:]],
        shown=[
            "op",
            "verdict",
            "request",
            "position",
            "target",
            "golden",
            "difference",
            "margin",
            "mean_abs",
            "beyond",
        ],
        facets=["verdict"],
    )


def _facts(result: ParityResult) -> Row:
    """Return the values of summary.json."""
    first = result.findings[0] if result.findings else None
    return {
        "class": result.token_class.value,
        "step": "" if first is None or first.step is None else first.step,
        "request": "" if first is None or first.request is None else first.request,
        "position": "" if first is None or first.position is None else first.position,
        "margin": None if first is None else first.margin,
        "because": list(first.because) if first is not None else [],
        "rollout": {"path": result.paths[0], "names": result.names[0]},
        "trainer": {"path": result.paths[-1], "names": result.names[1]},
        "floor": result.floor,
        "figures": {} if result.figures is None else result.figures._asdict(),
        "steps": [
            {
                "step": one.step, "class": one.finding.token_class.value, "request": one.finding.request,
                "position": one.finding.position, "margin": one.finding.margin, "because": list(one.finding.because),
                "requests": one.requests, "paired_by": one.pairing, "trend": one.trend, **one.figures._asdict(),
            }
            for one in result.steps[: tables.SUMMARISED]
        ],
        "trend": result.trend,
        "open": list(result.open),
        "notes": [*result.notes],
        "roots": [],
    }  # fmt: skip
