"""Add parameter names to the evidence of optimizer calls. The name and slot of such a call contain only numbers
(`Torch._foreach_norm.0 input:0.20`); the forward or backward pass holds the same tensor under the parameter's name."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Mapping, Sequence

from npucmp.align.updates import ENTRY, is_update, parameter_name
from npucmp.flow.contents import content_of
from npucmp.localise.evidence import reason
from npucmp.model import Finding, Root
from npucmp.model.roles import is_output


def with_parameters(findings: Sequence[Finding], roots: Sequence[Root]) -> tuple[Root, ...]:
    """Return the roots in the same order; the evidence of optimizer calls begins with the parameter."""
    calls = {root.pair.order for root in roots if is_update(root.pair.operator)}
    if not calls:
        return tuple(roots)
    names: dict[int, str] = {}  # by content
    rows: dict[int, list[Finding]] = defaultdict(list)  # of optimizer calls, by merged order
    for finding in findings:
        pair = finding.pair
        if pair.order in calls:
            rows[pair.order].append(finding)
        elif name := parameter_name(pair.golden, pair.golden_op):
            names[content_of(finding)] = name
    return tuple(
        _with_parameter(root, rows[root.pair.order], names) if root.pair.order in calls else root for root in roots
    )


def _with_parameter(root: Root, rows: Sequence[Finding], names: Mapping[int, str]) -> Root:
    """The root with the parameter of its slot: of the tensor itself, of the list entries with its number, or, for a
    call without lists, of any input."""
    number = _number(root.slot)
    lists = any("." in finding.pair.slot for finding in rows)
    for finding in sorted(rows, key=lambda finding: finding.pair.slot != root.slot):
        same = number == _number(finding.pair.slot) if lists else not is_output(finding.pair)
        content = content_of(finding) if same or finding.pair.slot == root.slot else 0
        name = names.get(content) if content else None
        if name:
            evidence = reason("parameter", "{slot} belongs to parameter {parameter}", slot=root.slot, parameter=name)
            return replace(root, evidence=(evidence, *root.evidence))
    return root


def _number(slot: str) -> str:
    entry = ENTRY.fullmatch(slot)
    return entry[2] if entry else ""
