"""Two recordings → steps with their findings: pair, apply the rules, and ask what only all steps together show."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model.cause import first_of_names
from npucmp.model.parity_result import ParityFigures, ParityFinding, StepParity, state_of
from npucmp.model.token_batch import TokenBatch, TokenRecording
from npucmp.token_parity.candidates import temperature, truncation
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.decision import SILENT, StepDecision, decide, first_of_candidate
from npucmp.token_parity.figures import curve_of, figures_of, map_of, rows_of
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.never_sampled import never_sampled
from npucmp.token_parity.request_pairing import pair_requests, pair_steps
from npucmp.token_parity.rules.shift import shifted_tokens
from npucmp.token_parity.token_pair import MOST_CELLS, TokenPair, make_pair, why_open
from npucmp.token_parity.trend import growing_noise, positions_in_words, steps_in_words

ABOVE_ONE = 0.01  # log-probability: chosen, rounding does not reach it
_LISTED = 8  # numbers in a sentence: work


class ParityJudgement(NamedTuple):
    """All steps, the findings in order, figures over all tokens, and sentences on what was not compared and on how."""

    steps: tuple[StepParity, ...]
    findings: tuple[ParityFinding, ...]
    figures: ParityFigures
    open: tuple[str, ...]
    notes: tuple[str, ...]
    trend: str


def judge(rollout: TokenRecording, trainer: TokenRecording, floor: float) -> ParityJudgement:
    """Return the judgement of two recordings; `floor` is the error of a logit that is noise."""
    together, alone_a, alone_b = pair_steps(rollout.batches, trainer.batches)
    is_open: list[str] = []
    notes: dict[str, None] = {}
    for side, alone in (("rollout", alone_a), ("trainer", alone_b)):
        if alone:
            is_open.append(f"only the {side} has {_numbers('step', [one.step for one in alone])}")
    for side, recording in (("rollout", rollout), ("trainer", trainer)):
        is_open += [f"{side}: {path}: {because}" for path, because in recording.problems]
        for count, what in ((recording.skipped, "files"), (recording.lost, "records")):
            notes.update({f"{count} {what} of the {side} hold no log-probabilities": None} if count else {})
    pairs = []
    for one, other in together:
        if None not in (one.step, other.step) and one.step != other.step:
            notes[f"step {one.step} of the rollout is paired with step {other.step} of the trainer"] = None
        pair, by, left = _pair(one, other, floor)
        is_open += left
        notes[f"requests are paired by {by}"] = None
        notes.update(dict.fromkeys(pair.notes))
        for side, values in (("rollout", pair.target), ("trainer", pair.golden)):
            above = int((pair.counted & (values > ABOVE_ONE)).sum())
            if above:
                notes[f"{above} log-probabilities of the {side} are above 0, which no probability has"] = None
        pairs.append((pair, by))
    decisions = [decide(pair) for pair, _ in pairs]
    joint = _joint_finding([pair for pair, _ in pairs], decisions, notes)
    if joint is not None:
        decisions = [
            one._replace(finding=joint) if pair.step == joint.step else one for (pair, _), one in zip(pairs, decisions)
        ]
    steps = tuple(_step(pair, one, by) for (pair, by), one in zip(pairs, decisions))
    findings = tuple(one.finding for one in decisions if one.finding.token_class not in SILENT)
    for cached in (never_sampled, shifted_tokens):  # they hold the arrays of the last steps
        cached.cache_clear()
    means = [one.figures.mean_abs for one in steps if one.figures.tokens]
    trend = steps_in_words(means) or next((one.trend for one in steps), "")
    return ParityJudgement(
        steps, findings, figures_of([pair for pair, _ in pairs]), tuple(is_open), tuple(notes), trend
    )


def _pair(rollout: TokenBatch, trainer: TokenBatch, floor: float) -> tuple[TokenPair, str, list[str]]:
    """Return the arrays of a step, what paired its requests, and sentences on requests that are left out."""
    step = rollout.step if rollout.step is not None else trainer.step
    where = "" if step is None else f"step {step}: "
    found = pair_requests(rollout.requests, trainer.requests)
    is_open = [
        f"{where}only the {side} has {_numbers('request', alone)}"
        for side, alone in (("rollout", found.rollout_alone), ("trainer", found.trainer_alone))
        if alone
    ]
    left: dict[str, list[int]] = {}
    for a, b in found.pairs:
        left.setdefault(why_open(rollout.requests[a], trainer.requests[b]), []).append(a)
    computed = {*left.pop("", [])}
    lengths = [max(len(rollout.requests[a].log_probs), len(trainer.requests[b].log_probs)) for a, b in found.pairs]
    order = sorted((size, a) for size, (a, _) in zip(lengths, found.pairs) if a in computed)
    longest = [a for count, (size, a) in enumerate(order, 1) if count * size > MOST_CELLS]
    if longest:
        left["too long to be compared beside so many requests"] = longest
        computed -= {*longest}
    is_open += [f"{where}{_numbers('request', requests)}: {why}" for why, requests in left.items()]
    both = [(a, b) for a, b in found.pairs if a in computed]
    pair = make_pair(
        step,
        [a for a, _ in both],
        [rollout.requests[a] for a, _ in both],
        [trainer.requests[b] for _, b in both],
        floor,
    )
    lost = int(pair.missing.sum())
    if lost:
        is_open.append(f"{where}{lost} tokens have null in place of a log-probability")
    uncounted = [int(pair.numbers[row]) for row in np.flatnonzero(~pair.counted.any(axis=1))]
    if uncounted:
        is_open.append(f"{where}{_numbers('request', uncounted)}: no token counts on either side")
    return pair, found.by, is_open


def _numbers(word: str, numbers: Sequence[Optional[int]]) -> str:
    shown = first_of_names(["-" if one is None else str(one) for one in numbers], _LISTED)
    return f"{word}{'s' if len(numbers) > 1 else ''} {shown}"


def _step(pair: TokenPair, decision: StepDecision, by: str) -> StepParity:
    finding = decision.finding
    positions, mean_abs = curve_of(pair)
    rows = tuple(rows_of(pair, finding))
    count = len(pair.numbers) + (len(pair.sums.requests) if pair.sums is not None else 0)
    trend = positions_in_words(pair)
    return StepParity(
        pair.step, finding, figures_of([pair]), count, rows, positions, mean_abs, by, trend, decision.fits, map_of(pair)
    )


def _joint_finding(
    pairs: Sequence[TokenPair], decisions: Sequence[StepDecision], notes: dict[str, None]
) -> Optional[ParityFinding]:
    """Return what no single step shows: noise that grows over steps, a nucleus or a temperature within noise."""
    if len(pairs) < 2 or any(one.finding.token_class not in SILENT for one in decisions):
        return None
    grown = growing_noise(pairs)
    if grown is not None:
        return grown
    if sum(len(one.numbers) for one in pairs) * max(one.counted.shape[1] for one in pairs) > MOST_CELLS:
        notes["the steps are too large to be judged together, each is judged alone"] = None
        return None
    joined = _joined(pairs)
    if not joined.counted.any():
        return None
    evidence = StepEvidence(joined)
    found = (fit for candidate in (truncation, temperature) for fit in candidate.fit(evidence) or ())
    fits = [fit for fit in found if fit.shows and state_of(fit) == "accepted"]
    place = first_of_candidate(joined, fits[0]) if fits else None
    if place is None:
        return None
    at, row = 0, place[0]
    while row >= len(pairs[at].numbers):
        row -= len(pairs[at].numbers)
        at += 1
    return finding_at(pairs[at], fits[0].token_class, (row, place[1]), *fits[0].because)


def _joined(pairs: Sequence[TokenPair]) -> TokenPair:
    """Return the requests of all steps as one step, numbered in order."""
    width = max(pair.counted.shape[1] for pair in pairs)

    def every(name: str, fill: float) -> np.ndarray:
        rows = [getattr(pair, name) for pair in pairs]
        wide = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=fill) for one in rows]
        return np.concatenate(wide)

    starts = np.cumsum([0, *(len(pair.numbers) for pair in pairs)])
    tops = tuple((row + int(start), a, b) for pair, start in zip(pairs, starts) for row, a, b in pair.tops)
    return TokenPair(
        None,
        np.arange(int(starts[-1])),
        every("target", 0.0),
        every("golden", 0.0),
        every("target_mask", False),
        every("golden_mask", False),
        every("target_ids", -1),
        every("golden_ids", -1),
        every("missing", False),
        None,
        pairs[0].floor,
        tops,
    )
