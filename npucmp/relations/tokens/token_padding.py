"""Padding of the golden: tokens without a row in the target, at one end of a request.

A mask or lengths show padding. Without them, tokens of one id at the ends are a proposal, which the values prove: the
other tokens of the requests agree with those of the target, which has no such rows, so no reader depends on them. A
token alone at an end may be one that the target lost. It stays open, unless all its rows are zero.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from npucmp.relations.tokens.token_axes import TokenShape
from npucmp.relations.tokens.token_evidence import TokenEvidence, counts_of
from npucmp.relations.tokens.token_lengths import Recorded

PAD_ID = 0  # id: definition: the id of padding where nothing else is recorded, as of nn.Embedding and most tokenizers
SURE = 0.9  # share: chosen: a token agrees in as many tensors as those beside it
TWICE = 2  # tokens: chosen: one token at an end, whose id is nowhere else, may be a token that the target lost


class Padding(NamedTuple):
    """The records of both sides on lengths, and the shapes of their tokens."""

    target: Recorded
    golden: Recorded
    rows: TokenShape
    tokens: TokenShape


def padding_of(rows: Any, requests: Any, padding: Padding) -> tuple[Any, str]:
    """Whether each token of the golden is padding, and the sides with the proof in words."""

    if padding.golden.named is not None:
        found = ~padding.golden.named
        return found, _words(found, requests, "attention mask") if found.any() else ""
    ends = _ends(rows < 0, requests)
    if ends.any() and _has_lengths(rows < 0, requests, padding):
        return ends, _words(ends, requests, "lengths")
    return np.zeros(len(rows), bool), ""


def end_class(evidence: TokenEvidence, rows: TokenShape, tokens: TokenShape) -> Any:
    """The tokens of the golden whose id stands only at one end of its requests, of some but not of all, and only at
    ends of the target's: padding on both sides. At most one id is taken."""

    none = np.zeros(len(evidence.classes), bool)
    if not (tokens.has_batch and rows.has_batch):
        return none
    classes = evidence.classes.reshape(tokens.lanes, tokens.places)
    found = []
    for turned in (False, True):
        own = classes[:, ::-1] if turned else classes
        for one in np.unique(own[:, -1]):
            runs = np.cumprod((own == one)[:, ::-1], axis=1)[:, ::-1].astype(bool)
            at_end = runs.sum() == (own == one).sum() and runs[:, -1].any() and not runs[:, -1].all()
            enough = runs.sum() >= TWICE or (evidence.is_ids and one == PAD_ID)
            if at_end and not runs.all(1).any() and enough and _at_ends(evidence, one, rows):
                found.append((int(runs[:, -1].sum()), int(runs.sum()), runs[:, ::-1] if turned else runs))
    found.sort(key=lambda one: one[:2], reverse=True)
    if not found or (len(found) > 1 and found[0][:2] == found[1][:2]):
        return none
    return found[0][2].reshape(-1)


def may_be_padding(rows: Any, requests: Any, evidence: TokenEvidence, shape: TokenShape, ends: Any) -> Any:
    """Tokens at an end of a request, with an id that no other token has, in rows at an end of a lane of the target,
    that agree in fewer tensors than the tokens of the request beside them: perhaps padding, without a proof. `ends`
    are those of `end_class`."""

    found = np.zeros(len(rows), bool)
    if not shape.has_batch:
        return found
    counts = counts_of(evidence, rows, np.arange(len(rows)))
    for own in _spans(requests):
        for line in (own, own[::-1]):
            kind = evidence.classes[line[0]]
            run = int(np.argmax([*(evidence.classes[line] != kind), True]))
            if run == len(line) or not ((evidence.classes == kind).sum() == run or ends[line[:run]].all()):
                continue
            used = np.setdiff1d(rows, rows[line[:run]])
            if all(rows[at] < 0 or _is_at_end(int(rows[at]), used, shape) for at in line[:run]):
                found[line[:run]] = counts[line[:run]] < SURE * counts[line[run]]
    return found


def beside_tokens(free: Any, rows: Any, requests: Any, evidence: TokenEvidence, lanes: Any) -> Any:
    """The tokens with the pad id that stand beside the tokens of their request in the target too, whose rows have the
    numbers `lanes`. They may be tokens that repeat, unless their id is 0."""

    found = np.zeros(len(free), bool)
    if evidence.is_ids and (evidence.classes[free] == PAD_ID).all():
        return found
    for request in np.unique(requests[free]):
        own = np.nonzero(requests == request)[0]
        for line in (own, own[::-1]):
            inside = int(np.argmin(free[line]))
            if inside > 0 and rows[line[inside]] >= 0 and rows[line[inside - 1]] >= 0:
                ends = sorted((int(line[inside - 1]), int(line[inside])))
                before, after = (int(rows[end]) for end in ends)
                found[line[:inside]] = after == before + 1 and lanes[after] == lanes[before]
    return found


def _is_at_end(row: int, used: Any, shape: TokenShape) -> bool:
    """Whether no other row is used before a row in its lane, or none behind it."""
    first = row // shape.places * shape.places
    before = ((used >= first) & (used < row)).any()
    return not before or not ((used > row) & (used < first + shape.places)).any()


def _at_ends(evidence: TokenEvidence, one: int, rows: TokenShape) -> bool:
    """Whether the rows of the target that may have this id stand at one end of its lanes, if there are any."""

    own = np.zeros(rows.size, bool)
    may = np.unique(evidence.rows[evidence.classes[evidence.tokens] == one])
    own[may[may < rows.size]] = True
    lanes = own.reshape(rows.lanes, rows.places)
    right = np.cumprod(lanes[:, ::-1], axis=1).sum() == lanes.sum()
    left = np.cumprod(lanes, axis=1).sum() == lanes.sum()
    return bool(own.any() and (right or left) and not lanes.all(1).any())


def _spans(requests: Any) -> Iterator[Any]:
    for request in np.unique(requests):
        yield np.nonzero(requests == request)[0]


def _ends(is_open: Any, requests: Any) -> Any:
    """The open tokens at the ends of requests that have other tokens."""

    found = np.zeros(len(is_open), bool)
    for own in _spans(requests):
        known = np.nonzero(~is_open[own])[0]
        if len(known):
            found[own[: known[0]]] = found[own[known[-1] + 1 :]] = True
    return found


def _has_lengths(is_open: Any, requests: Any, padding: Padding) -> bool:
    """Whether the numbers of tokens that have a row are lengths that the golden recorded. Lengths of the
    target prove nothing: it may have lost tokens."""
    counts = tuple(int((~is_open[own]).sum()) for own in _spans(requests))
    return counts in padding.golden.lengths


def likely_padding(rows: Any, requests: Any, evidence: TokenEvidence) -> Any:
    """The tokens without a row at the ends of requests that have an id of their own, all at the same end, of some
    requests. They decide between orders of axes, and prove no padding: tokens that end requests are alike."""

    ends = _ends(rows < 0, requests)
    kinds, counts = np.unique(evidence.classes[ends], return_counts=True)
    for kind in kinds[np.argsort(-counts, kind="stable")]:
        found = ends & (evidence.classes == kind)
        if (evidence.classes[~ends] == kind).any():
            continue
        if found.sum() < TWICE and not (evidence.is_ids and kind == PAD_ID):
            continue
        sides = {_side(found[own]) for own in _spans(requests)} - {""}
        full = any(not found[own].any() for own in _spans(requests))
        if len(sides) == 1 and not sides & {"both", "middle"} and full:
            return found
    return np.zeros(len(ends), bool)


def proven_padding(rows: Any, requests: Any, evidence: TokenEvidence) -> tuple[Any, str]:
    """Whether each token is padding by its id and by values, and the proof in words; no token without a proof."""

    ends, none = _ends(rows < 0, requests), np.zeros(len(rows), bool)
    kinds = np.unique(evidence.classes[ends])
    if len(kinds) != 1:
        return none, ""
    spans = [*_spans(requests)]
    sides = {_side(ends[own]) for own in spans} - {""}
    runs = [int(ends[own].sum()) for own in spans]
    is_blank = bool(evidence.blank[ends].all())
    if len(sides) != 1 or sides & {"both", "middle"} or not (max(runs) >= TWICE or is_blank):
        return none, ""
    inside = (evidence.classes == kinds[0]) & ~ends
    beside = [_has_beside(ends[own], inside[own]) for own in spans if ends[own].any()]
    if inside.sum() != sum(beside) + _at_the_end(inside, ends, spans, sides == {"left"}) or len({*beside}) > 1:
        return none, ""  # the id is that of other tokens too
    if not is_blank and 0 not in runs and min(runs) < TWICE:
        return none, ""  # the longest request may have lost its last token
    padded = np.isin(requests, requests[ends]) & ~ends
    counts = counts_of(evidence, rows[padded], np.nonzero(padded)[0])
    if (rows[padded] < 0).any() or (counts < SURE * evidence.tensors).any():
        return none, ""  # tokens that read these rows would differ
    return ends, _words(ends, requests, f"{'zero' if is_blank else 'one id, which no token reads'}")


def _has_beside(ends: Any, inside: Any) -> bool:
    """Whether the token beside the padding of a request has its id too, as the end of a text that padding repeats."""

    line = slice(None, None, -1) if ends[0] else slice(None)
    first = int(np.argmax(ends[line]))
    return bool(first > 0 and inside[line][first - 1])


def _at_the_end(inside: Any, ends: Any, spans: Sequence[Any], is_left: bool) -> int:
    """The number of requests without padding that end, or begin, with the id of padding."""
    return sum(bool(inside[own[0 if is_left else -1]]) for own in spans if not ends[own].any())


def _side(ends: Any) -> str:
    if not ends.any():
        return ""
    return "both" if ends[0] and ends[-1] else "left" if ends[0] else "right" if ends[-1] else "middle"


def _words(found: Any, requests: Any, proof: str) -> str:
    sides = {_side(found[own]) for own in _spans(requests)} - {""}
    return f"padded {' and '.join(sorted(sides - {'both'})) or 'left and right'} ({proof})"
