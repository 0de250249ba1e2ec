"""How errors cross ranks, and the places of all roots of a report.

A collective that reads only agreeing tensors on its own rank may still hand on what another rank put in: it bears
the error only if its inputs agree on every rank of the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Optional, Sequence

from npucmp.localise.case import Case
from npucmp.localise.evidence import reason
from npucmp.localise.nodes import is_output
from npucmp.localise.rules import Rulebook
from npucmp.model import DIFFERS, Cause, Comparison, Finding, Root

GRAVITY = {Cause.BORN: 0, Cause.GAP: 0, Cause.WORSENED: 1, Cause.UNKNOWN: 2, Cause.PROPAGATED: 3}


def settle(comparisons: Sequence[Comparison], rules: "Optional[Rulebook]" = None) -> tuple[Comparison, ...]:
    """The comparisons with collectives judged across ranks, and places counted over all of them."""
    rules = rules or Rulebook()
    judged = [[_received(root, one, comparisons, rules) for root in one.roots] for one in comparisons]
    ranking = sorted(
        ((i, root) for i, roots in enumerate(judged) for root in roots),
        key=lambda found: (_step(comparisons[found[0]]), GRAVITY[found[1].cause], found[1].pair.order, found[0]),
    )
    placed: list[list[Root]] = [[] for _ in comparisons]
    for place, (i, root) in enumerate(ranking, 1):
        placed[i].append(replace(root, place=place))
    return tuple(replace(one, roots=tuple(roots)) for one, roots in zip(comparisons, placed))


def _step(comparison: Comparison) -> int:
    return comparison.target.step or comparison.golden.step or 0


def _received(root: Root, own: Comparison, comparisons: Iterable[Comparison], rules: Rulebook) -> Root:
    """A collective's root, passed on if another rank of its step put the error in."""
    finding = next((one for one in own.findings if one.pair.order == root.pair.order), None)
    if root.cause is Cause.PROPAGATED or finding is None or not rules.holds("collective", Case(finding)):
        return root
    sender = next(
        (one for one in comparisons if one is not own and _step(one) == _step(own) and _sends(one, root)), None
    )
    if sender is None:
        return root
    rank = sender.rank
    words = "arrived from another rank, where its inputs differ"
    if rank is not None:
        words = "arrived from rank {rank}, where its inputs differ"
    return replace(
        root, cause=Cause.PROPAGATED, evidence=(reason("another rank", words, rank=rank), *root.evidence),
        rule="collective",
    )  # fmt: skip


def _sends(comparison: Comparison, root: Root) -> bool:
    """Whether the same operator reads something on that rank that differs; two that come in from nowhere are no
    offspring of each other."""
    name = root.pair.operator.name
    if root.cause is Cause.GAP and any(r.cause is Cause.GAP and r.pair.operator.name == name for r in comparison.roots):
        return False
    return any(_differs(finding) and finding.pair.operator.name == name for finding in comparison.findings)


def _differs(finding: Finding) -> bool:
    return finding.verdict in DIFFERS and not is_output(finding.pair)
