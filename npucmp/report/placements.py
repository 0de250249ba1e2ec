"""The placements of tensors on ranks: placements.csv, one line on the screen, and values of summary.json."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

from npucmp.model.relation import LayoutFacts, PlacedTensor, ranks_in_words
from npucmp.report.answer import ReportTable, Row
from npucmp.report.phrases import count_of
from npucmp.report.tables import table

PLACEMENTS = tuple("step golden_op slot target_ops ranks placement decided_by error rank_errors".split(" "))
_SHOWN = 4  # placements on the screen


def placements(facts: LayoutFacts) -> ReportTable:
    """Return the table of the placements of all golden tensors."""
    return table("placements.csv", PLACEMENTS, lambda: map(_row, facts.placed))


def _row(one: PlacedTensor) -> Row:
    held = one.relation
    return {
        "step": one.step,
        "golden_op": one.operator,
        "slot": one.slot,
        "target_ops": "" if held is None else ";".join(f"rank{rank}/{name}" for rank, name in held.operators),
        "ranks": "" if held is None else ranks_in_words(held.ranks),
        "placement": one.state if held is None else held.placement,
        "decided_by": "" if held is None else held.decided_by,
        "error": None if held is None else held.error,
        "rank_errors": "" if held is None else ";".join(f"rank{rank}/{error!r}" for rank, error in held.rank_errors),
    }


def layout_line(facts: LayoutFacts) -> str:
    """Return the layout of both sides, and how many tensors have each placement."""
    joined = sum(one.state in ("agrees", "differs") for one in facts.placed)
    kinds = ", ".join(_counts(facts))
    alone = Counter(one.state for one in facts.placed)
    rest = [f"{alone['local']} of single ranks"] if alone["local"] else []
    rest += [f"{alone[state]} {state}" for state in ("shape", "unknown", "without a partner") if alone[state]]
    words = f"target {facts.target} · golden {facts.golden}"
    words += f" · {joined} of {count_of(len(facts.placed), 'tensor')} put together"
    return f"layout {words} ({kinds})" + "".join(f", {one}" for one in rest)


def _counts(facts: LayoutFacts) -> Iterator[str]:
    found = Counter(_kind(one) for one in facts.placed if one.relation is not None and one.state != "local")
    for kind, count in found.most_common(_SHOWN):
        yield f"{count} {kind}"
    if len(found) > _SHOWN:
        yield f"{sum(count for _, count in found.most_common()[_SHOWN:])} others"


def _kind(one: PlacedTensor) -> str:
    assert one.relation is not None
    if one.relation.is_partial:
        return "partial sums"
    kinds = [each.words for each in one.relation.placements if each.kind != "whole"]
    return " · ".join(kinds) or "whole"


def layout_facts(facts: LayoutFacts) -> Row:
    """Return the values of a layout for summary.json."""
    return {
        "target": facts.target,
        "golden": facts.golden,
        "ranks": list(facts.ranks),
        "missing": list(facts.missing),
        "stages": facts.stages,
        "micro_batches": facts.micro_batches,
        "tensors": len(facts.placed),
        "states": dict(Counter(one.state for one in facts.placed)),
        "placements": dict(Counter(_kind(one) for one in facts.placed if one.relation is not None)),
    }
