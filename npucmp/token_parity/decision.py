"""The judgement of one step: a fact of its records, else the candidate that its data accept.

A step is clean if nearly no token is beyond noise, the median token is well within it, no part of the difference is a
function of the log-probability, and the rollout lacks no probability. A few tokens far beyond noise make no class, and
are not silent either: the step is undecided.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.cause import first_of_names
from npucmp.model.parity_result import CandidateFit, ParityFinding, TokenClass, percent, state_of
from npucmp.token_parity.candidates import fits_of
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.candidates.experts import CLEAR, LEAST_SHARE, LEAST_TOKENS, MOST
from npucmp.token_parity.candidates.truncation import first_of_nucleus, may_be_cut
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.noise import DEFAULT_FLOOR, noise_of
from npucmp.token_parity.outliers import FEW, WITHIN, median_margin_of
from npucmp.token_parity.rules import first_fact, sum_mean
from npucmp.token_parity.token_pair import TokenPair, first_place

LEAST_REST = 20  # tokens of a rest: chosen, fewer show no class
OUTLIER = 12.0  # margin of a token that is no outlier of rounding: chosen
SEVERAL = 6.0  # margin of several such tokens: chosen
LEAST_SEVERAL = 2  # tokens, if they are more than the share of outliers: chosen
MANY = 0.1  # share of tokens that are beyond noise by no outliers, however near it: chosen
HALF = 0.5  # share of the tokens beyond noise that one of two causes explains: chosen
_LISTED = 6  # names in a sentence: work
SILENT = (TokenClass.CLEAN, TokenClass.UNDECIDED)


class StepDecision(NamedTuple):
    """The finding of a step, and the fits of all candidates."""

    finding: ParityFinding
    fits: tuple[CandidateFit, ...] = ()


def decide(pair: TokenPair) -> StepDecision:
    """Return the decision on a step. A fact takes away the tokens that it explains, the rest is judged by itself."""
    fact = first_fact(pair)
    if fact is None:
        return _decide_by_candidates(pair)
    finding, rule = fact
    if not hasattr(rule, "without"):
        return StepDecision(finding)
    rest, words = rule.without(pair, finding)
    if int(rest.counted.sum()) < LEAST_REST:
        return StepDecision(finding)
    other = decide(rest)
    said = other.finding
    words += f" the tokens are {said.token_class.value}" if words == "beside it" else f" are {said.token_class.value}"
    if said.request is not None and said.token_class not in SILENT:
        words += f": request {said.request}, position {said.position}, {said.because[0]}"
    return StepDecision(finding._replace(because=(*finding.because, words)), other.fits)


def _decide_by_candidates(pair: TokenPair) -> StepDecision:
    if not pair.counted.any():
        return StepDecision(_without_tokens(pair))
    unsure = sum_mean.unsure_mean(pair)
    median = median_margin_of(pair, pair.counted)
    if not pair.far.any() and median == 0:
        words = "most log-probabilities are equal, the others within noise"
        return StepDecision(unsure or finding_at(pair, TokenClass.CLEAN, None, words))
    evidence = StepEvidence(pair)
    fits = fits_of(evidence)
    accepted = [fit for fit in fits if state_of(fit) == "accepted" and (fit.shows or not evidence.is_quiet)]
    if not accepted and evidence.is_quiet:
        return StepDecision(unsure or _quiet(evidence), fits)
    return StepDecision(_finding(evidence, fits, accepted), fits)


def _without_tokens(pair: TokenPair) -> ParityFinding:
    if pair.sums is None:
        return finding_at(pair, TokenClass.UNDECIDED, None, "no token counts on both sides")
    words = "the sums over responses agree; single tokens are not recorded"
    return sum_mean.unsure_mean(pair) or finding_at(pair, TokenClass.CLEAN, None, words)


def _quiet(evidence: StepEvidence) -> ParityFinding:
    """Return "clean", or "undecided" for a few tokens that are far from noise."""
    pair = evidence.pair
    if may_be_cut(evidence):
        because = "the rollout seems to lack probability (top-p), by too little for a class"
        return finding_at(pair, TokenClass.UNDECIDED, None, because)
    count = int(pair.counted.sum())
    noise = noise_of(pair.lower, max(pair.floor, DEFAULT_FLOOR))  # a lower floor makes no outliers of rounding errors
    for limit, least in ((OUTLIER, 1), (SEVERAL, max(LEAST_SEVERAL, FEW * count))):
        outliers = pair.counted & (np.abs(pair.difference) > limit * noise)
        if outliers.sum() >= least:
            many = f"{int(outliers.sum())} of {count} tokens"
            because = f"{many} are beyond {limit:g} times the noise: too few for a class"
            return finding_at(pair, TokenClass.UNDECIDED, first_place(outliers), because)
    return finding_at(pair, TokenClass.CLEAN, None, "the differences are within the noise of logits")


def _finding(evidence: StepEvidence, fits: tuple[CandidateFit, ...], accepted: list[CandidateFit]) -> ParityFinding:
    """Return the accepted candidate, else what is known."""
    pair, parts = evidence.pair, evidence.parts
    place = first_place(pair.far & evidence.tokens)
    if parts is not None and parts.may_be_settings:  # a model that fits the others speaks against another context
        spared = set(evidence.refuted_by_parts)
        others = (
            fit._replace(refuted=tuple(reason for reason in fit.refuted if reason not in spared))
            for fit in fits
            if fit.refuted
        )
        accepted += [fit for fit in others if state_of(fit) == "accepted" or _may_be(fit)]
    proven = [fit for fit in accepted if fit.proven]
    accepted = proven or accepted + [fit for fit in fits if accepted and _may_be(fit) and fit not in accepted]
    if len(accepted) == 1:
        fit = accepted[0]
        at = first_of_candidate(pair, fit) if parts is None else place
        where = () if parts is None or fit.token_class is TokenClass.CONTEXT else (parts.words,)
        return finding_at(pair, fit.token_class, at, *fit.because, *where)
    share = percent(pair.share_far)
    if accepted:
        known = "" if parts is None else f"{parts.words}: "
        names = _names(accepted, " or ")
        return finding_at(
            pair, TokenClass.DIFFERS, place or _largest(pair), f"{known}not decided: {names}", _known(evidence)
        )
    if place is None:
        return finding_at(pair, TokenClass.UNDECIDED, None, _known(evidence), "no single token is beyond noise")
    is_scattered = pair.share_far < MOST and median_margin_of(pair, pair.counted) < WITHIN
    if is_scattered and parts is None:
        margin = float(np.median(np.abs(evidence.margin[evidence.far])))
        is_near = margin < CLEAR and pair.share_far < MANY
        if int(evidence.far.sum()) < LEAST_TOKENS or pair.share_far < LEAST_SHARE or is_near:
            words = f"{int(evidence.far.sum())} tokens ({share}) are beyond noise, {margin:.1f} times in the median"
            return finding_at(pair, TokenClass.UNDECIDED, place, words, "too few, or too near the noise, for a class")
    left = [fit for fit in fits if state_of(fit) == "open"]
    names = f"{_names(left, ' or ')}; these are not refuted" if left else "no single candidate explains it"
    beside = [fit for fit in fits if state_of(fit) == "leaves more" and fit.explains >= HALF]
    shares = ", ".join(f"{fit.name} explains {percent(fit.explains)}" for fit in beside)
    because = (_known(evidence), *([f"beside a second cause, {shares} of the tokens beyond noise"] if beside else []))
    requests = int(pair.far.any(axis=1).sum())
    of_all = f"all {requests}" if requests == int(pair.counted.any(axis=1).sum()) else f"{requests}"
    what = "scattered tokens" if is_scattered else "tokens"
    known = f"{what} of {of_all} requests differ" if parts is None else parts.words
    return finding_at(pair, TokenClass.DIFFERS, place, f"{known}: {names}", *because)


def first_of_candidate(pair: TokenPair, fit: CandidateFit) -> Optional[tuple[int, int]]:
    """Return the first token of an accepted candidate: beyond noise, else the one with the largest margin."""
    return first_of_nucleus(pair) if fit.token_class is TokenClass.TOP_P else first_place(pair.far) or _largest(pair)


def _may_be(fit: CandidateFit) -> bool:
    """Return whether a candidate that is not proven explains the difference as well."""
    return fit.remains is not None and state_of(fit) == "open"


def _names(fits: list[CandidateFit], last: str) -> str:
    names = [fit.name for fit in fits]
    return (
        last.join(filter(None, (", ".join(names[:-1]), names[-1])))
        if len(names) <= _LISTED
        else first_of_names(names, _LISTED)
    )


def _known(evidence: StepEvidence) -> str:
    pair = evidence.pair
    median = median_margin_of(pair, pair.counted)
    share = percent(pair.share_far)
    return f"{share} of tokens are beyond noise, the median unsure token is {median:.1f} times the noise"


def _largest(pair: TokenPair) -> Optional[tuple[int, int]]:
    row, at = np.unravel_index(int(np.argmax(np.where(pair.counted, pair.margin, -1))), pair.margin.shape)
    return int(row), int(at)
