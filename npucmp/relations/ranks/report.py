"""The placements of tensors on ranks: placements.csv, one line on the screen, and values of summary.json."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

from npucmp.model.relation import LayoutFacts, PlacedTensor, ranks_in_words
from npucmp.report.answer import ReportTable, Row
from npucmp.report.phrases import count_of
from npucmp.report.tables import table

PLACEMENTS = tuple("step golden_op slot target_ops ranks placement decided_by error rank_errors".split(" "))
PARTIAL = "partial sums"
_SHOWN = 4  # placements on the screen besides partial sums


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
    rest = [f"{alone['local']} local to each rank"] if alone["local"] else []
    words = {"shape": "of shapes that fit no placement", "unknown": "unknown", "without a partner": "without a partner"}
    rest += [f"{alone[state]} {text}" for state, text in words.items() if alone[state]]
    said = f"layout target {facts.target} · golden {facts.golden}"
    said += f" · {joined} of {count_of(len(facts.placed), 'tensor')} put together"
    return f"{said} ({kinds})" + "".join(f", {one}" for one in rest)


def _counts(facts: LayoutFacts) -> Iterator[str]:
    found = Counter(_kind(one) for one in facts.placed if one.relation is not None and one.state != "local")
    sums = found.pop(PARTIAL, 0)
    for kind, count in found.most_common(_SHOWN):
        yield f"{count} {kind}"
    if len(found) > _SHOWN:
        yield f"{sum(count for _, count in found.most_common()[_SHOWN:])} others"
    if sums:
        yield f"{sums} {PARTIAL}"


def _kind(one: PlacedTensor) -> str:
    assert one.relation is not None
    if one.relation.is_partial:
        return PARTIAL
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
