"""Runs of which statistics are all there is: what is proven, what is suspected, and what is only noise.

The first operator that stands out of the noise before it (noise.py) is suspected, unless it is a root already. What is
proven before it is taken back: statistics bound an error from below alone, and of what an operator read they prove
nothing. What is proven behind it passes on what it got.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional, Sequence

from npucmp.localise.evidence import argument_reasons, is_fed, measured, reason
from npucmp.localise.movement import FIGURES
from npucmp.localise.nodes import OperatorFindings, is_parameter
from npucmp.localise.noise import Noise, Standing
from npucmp.model import Cause, Finding, Root, Verdict

Told = tuple["list[Finding]", "list[tuple[int, Root]]"]  # of one rank: its findings, its roots with their clocks
InOrder = tuple[int, int, OperatorFindings]  # rank, clock, what was found of an operator


def concluded(order: "Sequence[InOrder]", told: "Sequence[Told]", noise: Noise) -> "list[Told]":
    """What the walks found, as the noise tells: all operators in order of execution."""
    rooted = {(rank, root.pair.order): root for rank, (_, roots) in enumerate(told) for _, root in roots}
    first = None
    for at, (rank, clock, node) in enumerate(order):
        root = rooted.get((rank, node.pair.order))
        if root is not None and root.cause is Cause.PROPAGATED:
            root = None
        if (root is not None and noise.is_beyond(node, root)) or id(node) in noise.standing:
            first = at, clock, rank, node, root
            break
    if first is None:
        return [([*map(_excused, findings)], []) for findings, _ in told]
    at, clock, rank, node, root = first
    is_alone = root is None or _is_input(root)
    alike = {number: (when, one) for number, when, one in order[at:] if root is None and id(one) in noise.standing}
    places = {(rank, node.pair.order), *((number, one.pair.order) for number, (_, one) in alike.items())}
    before = {(rank, node.pair.order) for rank, _, node in order[:at]}
    found: list[Told] = []
    for number, (findings, roots) in enumerate(told):
        kept = [(when, one) for when, one in roots if (number, one.pair.order) not in before]
        if is_alone:
            kept = [(when, _behind(one, node, root)) for when, one in kept if (number, one.pair.order) not in places]
        if root is not None and is_alone and number == rank:
            kept.append((clock, _given(root)))
        elif number in alike:
            when, one = alike[number]
            kept.append((when, _suspect(one, noise.standing[id(one)], len(alike) - 1, len(told) - 1)))
        found.append(([_excused(one) if (number, one.pair.order) in before else one for one in findings], kept))
    return found


def _excused(finding: Finding) -> Finding:
    """A difference that statistics prove, and that is no more than the noise before it explains; of a sum that is zero
    on one side, and of rows that a choice before it made another number of, likewise."""
    figures = [one for side in finding.measurement.statistics if side is not None for one in side if one is not None]
    apart = finding.verdict is Verdict.DIVERGED and finding.measurement.bound is not None and finding.metric == "rel_l2"
    zero = finding.verdict is Verdict.NONFINITE and bool(figures) and all(map(math.isfinite, figures))
    if not (apart or zero or finding.verdict is Verdict.SHAPE):
        return finding
    because = f"{finding.because}; no more than the noise before it"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, explained_by="suspected")


def _is_input(root: Root) -> bool:
    """Whether the two runs were given different inputs: what statistics prove behind that are no further roots."""
    is_tensor = is_fed(root.cause, root.evidence) and "because" in root.evidence[0].facts  # numbers tell their values
    return is_tensor and not is_parameter(root.pair._replace(slot=root.slot))


def _given(root: Root) -> Root:
    words = "the two runs were given different inputs: nothing behind it is held against each other"
    return replace(root, evidence=(*root.evidence, reason("different inputs", words)))


def _behind(root: Root, first: OperatorFindings, given: Optional[Root]) -> Root:
    """What is proven behind a suspect, or where the runs were given different inputs."""
    if root.cause is Cause.PROPAGATED:
        return root
    words = "behind {name}, which was given another input" if given else "behind {name}, which is suspected"
    found = reason("behind", words, name=first.operator.name)
    return replace(root, cause=Cause.PROPAGATED, evidence=(found, *root.evidence))


def _suspect(node: OperatorFindings, one: Standing, alike: int, ranks: int) -> Root:
    """The operator that stands out: what moved, by how much, the noise before it, and how many others moved as much.
    It does so on as many of the other ranks."""
    finding, figure = one.finding, FIGURES[one.figure]
    x, y = (None if some is None else some[one.figure] for some in finding.measurement.statistics)
    size = measured(one.moved.each[one.figure], finding)
    words = "{figure} of {slot} moved from {golden:.9g} to {target:.9g}, "
    words += "{size:.3g} times what rounding of {count} elements explains"
    facts = {"figure": figure, "slot": finding.pair.slot, "golden": y, "target": x, "count": one.moved.elements}
    reasons = (
        reason("moved", words, size=size, **facts),
        reason("noise before", "the noise before it explains {noise:.3g} times that", noise=one.noise),
        reason("others", "{count} of {all} operators before it moved as much", count=one.as_much, all=one.before),
        *([reason("ranks", "it does so on {alike} of {ranks} other ranks", alike=alike, ranks=ranks)] if ranks else ()),
        *argument_reasons(node.pair),
    )
    bound = finding.measurement.bound
    told = bound, finding.limit, None, None, reasons
    return Root(0, node.pair, Cause.SUSPECT, finding.pair.slot, "rel_l2", *told, rule="suspected")
