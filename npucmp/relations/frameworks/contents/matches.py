"""The matches of two runs by contents, with what a report shows about them."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Run
from npucmp.relations.frameworks.contents.candidates import Candidates
from npucmp.relations.frameworks.contents.content_alignment import align_contents
from npucmp.relations.frameworks.contents.operator_draft import TensorRow
from npucmp.relations.frameworks.contents.operator_pairs import OperatorPairs

LEAST_SHARE = 0.1  # share of contents: chosen: different networks have fewer tensors with equal values
LEAST_WEIGHTS = 0.5  # share of weights: chosen: runs of one checkpoint share more, also where a compiler folds some


class ContentMatches(NamedTuple):
    """The matches of two runs by contents.

    rows        the tensors of each match, by the target's order
    line        the line that a report shows
    open        why operators have no partner, by side and order
    candidates  all candidates of a content, for `--explain`
    """

    matches: Sequence[Match]
    rows: Mapping[int, Sequence[TensorRow]]
    line: str
    open: Mapping[tuple[str, int], str]
    candidates: Candidates


def match_contents(
    target: Run, golden: Run, anchors: Sequence[Match], context: ReadContext
) -> Optional[ContentMatches]:
    """Match two runs by contents; None if they have too few in common to be runs of one network."""
    found = align_contents(target, golden, anchors, context)
    if found.share_by_value < LEAST_SHARE and found.share_of_weights < LEAST_WEIGHTS:
        return None
    operators = OperatorPairs(found, context)
    if not operators.matches:
        return None
    candidates = Candidates(found, operators.matches)
    return ContentMatches(operators.matches, operators.rows, found.words(), candidates.open_words(), candidates)
