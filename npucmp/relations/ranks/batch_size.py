"""The relation of runs with batches of unequal sizes: both sides become runs of the samples that correspond."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Comparison, Report, Run
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.relations.ranks.batch_rows import BatchRows, batch_rows, with_samples
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, pair_runs

NO_RECOMPUTATION = "--recompute all has no effect: runs with batches of unequal sizes are not recomputed"


class SampleRelation:
    """The samples of both runs that correspond, by step and rank."""

    def __init__(
        self, found: Sequence[tuple[Run, Run, BatchRows]], alone: Sequence[tuple[str, Run]], context: ReadContext,
        recomputes: bool,
    ) -> None:  # fmt: skip
        self._found, self._alone, self._context, self._recomputes = found, alone, context, recomputes

    def plan(self) -> Sequence[str]:
        """Return which samples correspond."""
        return [*dict.fromkeys(rows.words for *_, rows in self._found)]

    def apply(self, sides: Sides) -> Sides:
        """Return the sides with the samples that both have."""
        runs = [_runs(target, golden, rows, self._context) for target, golden, rows in self._found]
        targets, goldens = ([run for side, run in self._alone if side == name] for name in ("target", "golden"))
        both = [target for target, _ in runs], [golden for _, golden in runs]
        return sides.with_runs([*both[0], *targets], [*both[1], *goldens])._replace(changes={"recompute": "none"})

    def explain(self, report: Report) -> Report:
        """Return the report with what the batches differ in."""
        rows = [rows for *_, rows in self._found]
        notes = [*dict.fromkeys(row.words for row in rows), *[NO_RECOMPUTATION] * self._recomputes]
        comparisons = tuple(map(_with_samples, report.comparisons, rows))
        return replace(report, comparisons=comparisons, notes=(*report.notes, *notes))


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[SampleRelation]:
    """Return how the samples correspond; None if a step has equal batches or other differences."""
    together, alone = pair_runs(*sides.readable, options.partners())
    found = [(*both, rows) for both in together if (rows := batch_rows(*both, options.names(), context)) is not None]
    if not found or len(found) < len(together):
        return None
    return SampleRelation(found, alone, context, options.recompute == "all")


def _runs(target: Run, golden: Run, rows: BatchRows, context: ReadContext) -> tuple[Run, Run]:
    of_target = [rows.rows[sample] for sample in rows.kept]
    (size, other), (tensors, others) = rows.sizes, rows.tensors
    return (
        with_samples(target, size, of_target, tensors, context),
        with_samples(golden, other, rows.kept, others, context),
    )


def _with_samples(comparison: Comparison, rows: BatchRows) -> Comparison:
    """Return the comparison in which the samples of the golden without a row are not covered."""
    lost = [sample for sample, row in enumerate(rows.rows) if row < 0]
    if not lost:
        return comparison
    elements = sum(
        math.prod(finding.pair.golden.shape)
        for finding in comparison.findings
        if finding.pair.golden is not None and finding.pair.golden.shape[:1] == (len(rows.kept),)
    )
    missed = elements * len(lost) // max(1, len(rows.kept))
    because = "the batch of the target has fewer samples"
    more = Coverage(missed=missed, tensors=len(lost), first=(OpenTensor(f"sample {lost[0]}", "", missed, "", because),))
    return replace(comparison, coverage=Coverage.sum([comparison.coverage, more]))
