"""How errors cross ranks, and the places of all roots of a report.

A collective that reads only agreeing tensors on its own rank may still hand on what another rank put in: it bears
the error only if its inputs agree on every rank of the step.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Iterable, Optional, Sequence

from npucmp.localise.nodes import is_output
from npucmp.model import DIFFERS, Cause, Comparison, Evidence, Fact, Root

COLLECTIVE = re.compile(r"^(Distributed|MintDistributed|MindSpeed)\.")
RANK = {Cause.BORN: 0, Cause.GAP: 0, Cause.WORSENED: 1, Cause.UNKNOWN: 2, Cause.PROPAGATED: 3}


def settle(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons with collectives judged across ranks, and places counted over all of them."""
    judged = [[_received(root, one, comparisons) for root in one.roots] for one in comparisons]
    ranking = sorted(
        ((i, root) for i, roots in enumerate(judged) for root in roots),
        key=lambda found: (_step(comparisons[found[0]]), RANK[found[1].cause], found[1].pair.order, found[0]),
    )
    placed: list[list[Root]] = [[] for _ in comparisons]
    for place, (i, root) in enumerate(ranking, 1):
        placed[i].append(replace(root, place=place))
    return tuple(replace(one, roots=tuple(roots)) for one, roots in zip(comparisons, placed))


def _step(comparison: Comparison) -> int:
    return comparison.target.step or comparison.golden.step or 0


def _received(root: Root, own: Comparison, comparisons: Iterable[Comparison]) -> Root:
    """A collective's root, passed on if another rank of its step put the error in."""
    name = root.pair.operator.name
    if root.cause is Cause.PROPAGATED or not COLLECTIVE.match(name):
        return root
    sender = next(
        (one for one in comparisons if one is not own and _step(one) == _step(own) and _sends(one, name)), None
    )
    if sender is None:
        return root
    rank = _rank(sender)
    who = "another rank" if rank is None else f"rank {rank}"
    arrived = Evidence("arrived", "arrived from {who}, where its inputs differ", {"who": Fact(who)})
    return replace(root, cause=Cause.PROPAGATED, evidence=(arrived, *root.evidence))


def _sends(comparison: Comparison, name: str) -> bool:
    """Whether the operator of that name reads something that differs on that rank."""
    return any(
        finding.verdict in DIFFERS and finding.pair.operator.name == name and not is_output(finding.pair)
        for finding in comparison.findings
    )


def _rank(comparison: Comparison) -> Optional[int]:
    return comparison.golden.rank if comparison.target.rank is None else comparison.target.rank
