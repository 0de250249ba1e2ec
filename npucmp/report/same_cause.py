"""One cause, one place: calls of one type that differ by the same argument, as all calls of an optimizer with another
beta do, or by the same factor, as all gradients that were not unscaled, are one suspect with its members. roots.csv has
a row for each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Hashable, Iterator, Optional, Sequence

from npucmp.localise.evidence import first_names, reason
from npucmp.model import Cause, Root
from npucmp.model.cause import Evidence

NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")  # of "0.5 (1/2)", not of "1+3.0e-05"


def with_members(roots: Sequence[Root]) -> list[Root]:
    """Return the roots in their order; the first of those that share cause, type and the argument or factor by which
    they differ names the others, which are left out."""
    members: defaultdict[Hashable, list[Root]] = defaultdict(list)
    for root in roots:
        members[_same_cause(root) or id(root)].append(root)
    return [_first_of(found) for found in members.values()]


def _same_cause(root: Root) -> Optional[Hashable]:
    if root.cause is Cause.PROPAGATED:
        return None
    arguments = tuple(one.sentence() for one in root.evidence if one.kind == "argument")
    if arguments:  # whatever they change
        return root.pair.operator.op_type, root.rank, arguments
    factors = tuple(found for one in root.evidence for found in _factor(one))
    return (root.cause, root.pair.operator.op_type, root.rank, factors) if factors else None


def _factor(one: Evidence) -> Iterator[str]:
    if "factor" in one.facts and "share" not in one.facts:
        factor = str(one.facts["factor"].value).partition(" ")[0]
        yield f"{float(factor):.4g}" if NUMBER.fullmatch(factor) else factor


def _first_of(members: Sequence[Root]) -> Root:
    first, *others = members
    if not others:
        return first
    if any(one.kind == "argument" for one in first.evidence):
        words = "the same argument differs in {count} further calls of this type: {names}"
        if len(others) == 1:
            words = "the same argument differs in another call of this type: {names}"
    else:
        words = "{count} further calls of this type differ in the same way: {names}"
        if len(others) == 1:
            words = "another call of this type differs in the same way: {names}"
    names = first_names([root.pair.operator.name for root in others])
    return replace(first, evidence=(*first.evidence, reason("members", words, count=len(others), names=names)))
