"""The matrix of steps × ranks: a Cell for each, and its row of matrix.csv.

A Cell is made from one comparison and contains all data that the picture, matrix.csv and the grid of a page need, so
the process that has the comparison makes it.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from npucmp.model import DIFFERS, Cause, Comparison, Report, Root, Verdict
from npucmp.model.table import has_error, with_verdict
from npucmp.report.answer import Columns, ReportTable
from npucmp.report.coverage import AlignedShare
from npucmp.report.rank_cell import ARRIVED, HERE, PASSED, UNKNOWN, Cell, FirstOperator
from npucmp.report.tables import by_column

COLUMNS = tuple(
    (
        "step rank target golden operators compared_ratio verdict first_op first_cause first_order value seconds "
        f"{' '.join(verdict.value for verdict in Verdict)} "
        "first_slot largest origin through from_rank pipeline_stage tensor_rank because page"
    ).split(" ")
)


def cell_of(one: Comparison, verdict: str, covered: AlignedShare) -> Cell:
    """Return the cell of a comparison, given its verdict and its shares."""
    first = min(one.roots, key=lambda root: (root.cause is Cause.PROPAGATED, root.place), default=None)
    verdicts = one.tally.verdicts
    return Cell(
        step=one.step,
        rank=one.rank,
        target=one.target.path,
        golden=one.golden.path,
        verdict=verdict,
        operators=covered.operators,
        compared=covered.share,
        counts=tuple((verdict.value, verdicts[verdict]) for verdict in Verdict if verdicts[verdict]),
        first=_first(first) if first else None,
        largest=_largest(one),
        seconds=one.seconds,
        **_origin(one.roots),
    )


def cells_of_runs(report: Report) -> list[Cell]:
    """Return a cell for each step and rank that could not be compared, because a run is unreadable or has no
    partner."""
    found: dict[tuple[Optional[int], Optional[int]], Cell] = {}
    lost = [(side, run, "UNREADABLE", run.problem) for side, run in report.broken]
    lost += [(side, run, "ALONE", f"only in {side}") for side, run in report.unpaired]
    for side, run, verdict, because in lost:
        one = found.setdefault((run.step, run.rank), Cell(run.step, run.rank, "", "", verdict, because=because))
        of_side = one._replace(target=run.path) if side == "target" else one._replace(golden=run.path)
        found[run.step, run.rank] = of_side
    return [*found.values()]


def _first(root: Root) -> FirstOperator:
    pair = root.pair
    return FirstOperator(root.place, pair.operator.name, root.slot, pair.order, root.cause.value, root.value)


def _largest(one: Comparison) -> Optional[float]:
    columns = one.columns
    errors = columns.rows["error"][with_verdict(columns, DIFFERS) & has_error(columns)]
    errors = errors[~np.isnan(errors)]
    return float(errors.max()) if len(errors) else None


def _origin(roots: Sequence[Root]) -> dict[str, Any]:
    """Return the origin of the error: this rank if an operator of it bears the error; else the first root cause
    decides."""
    if any(root.cause not in (Cause.PROPAGATED, Cause.UNKNOWN) for root in roots):
        return {"origin": HERE}
    first = min(roots, key=lambda root: root.pair.order, default=None)
    if first is None:
        return {}
    for reason in first.evidence:
        if reason.kind == "another rank":
            source = reason.facts["which"].value
            rank = source if isinstance(source, int) else None
            name = first.pair.operator.name
            if first.slot.startswith("input"):  # the input comes from an operator whose outputs were not recorded
                name = str(reason.facts["op"].value)
            return {"origin": ARRIVED, "through": name, "source": rank}
    return {"origin": UNKNOWN if first.cause is Cause.UNKNOWN else PASSED}


def rows(cells: Sequence[Cell], pages: Sequence[str] = ()) -> Columns:
    """Return the cells of matrix.csv; `pages` are the names of steps and ranks that have a page."""
    written = {*pages}
    return by_column([_row(one, written) for one in sorted(cells, key=lambda one: (one.key, one.verdict))], COLUMNS)


def _row(one: Cell, pages: set[str]) -> dict[str, Any]:
    first = one.first
    return {
        "step": one.step,
        "rank": one.rank,
        "target": one.target or None,
        "golden": one.golden or None,
        "operators": one.operators,
        "compared_ratio": one.compared,
        "verdict": one.verdict,
        "seconds": one.seconds,
        **dict.fromkeys((verdict.value for verdict in Verdict), 0),
        **dict(one.counts),
        "largest": one.largest,
        "origin": one.origin or None,
        "through": one.through or None,
        "from_rank": one.source,
        "pipeline_stage": one.stage,
        "tensor_rank": one.tensor_rank,
        "because": one.because or None,
        "page": f"shards/{one.name}.html" if one.name in pages else None,
        **({} if first is None else {
            "first_op": first.op, "first_slot": first.slot, "first_cause": first.cause, "first_order": first.order,
            "value": first.value,
        }),
    }  # fmt: skip


def table(cells: Sequence[Cell], pages: Sequence[str] = ()) -> ReportTable:
    """Return the table matrix.csv."""
    return ReportTable("matrix.csv", COLUMNS, lambda: rows(cells, pages))
