"""Compare runs with batches of unequal sizes: both sides become runs of the samples that correspond."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional

from npucmp.dump.limits import ReadContext
from npucmp.model import Comparison, Report, Run
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.relations.ranks.batch_rows import BatchRows, batch_rows, with_samples
from npucmp.workflows.options import Options
from npucmp.workflows.pipeline import ComparisonSource, compare_steps
from npucmp.workflows.select_runs import Sides, most_ranks, pair_runs

NO_RECOMPUTATION = "--recompute all has no effect: runs with batches of unequal sizes are not recomputed"


def compared_batches(sides: Sides, options: Options, context: ReadContext) -> Optional[Report]:
    """Compare the runs sample by sample; None if a step has equal batches or other differences."""
    targets, goldens = ([run for run in runs if not run.problem] for runs in (sides.targets, sides.goldens))
    if not targets or not goldens or most_ranks(targets) != 1 or most_ranks(goldens) != 1:
        return None
    together, unpaired = pair_runs(targets, goldens, options.partners())
    found = []
    for target, golden in together:
        rows = batch_rows(target, golden, options.names(), context)
        if rows is None:
            return None
        found.append(rows)
    if not found:
        return None
    runs = [_runs(*both, rows, context) for both, rows in zip(together, found)]
    source = ComparisonSource(sides.target_path, sides.golden_path, runs, unpaired, sides.broken, sides.also)
    report = compare_steps(source, replace(options, recompute="none"))
    comparisons = tuple(map(_with_samples, report.comparisons, found))
    notes = [*dict.fromkeys(rows.words for rows in found), *[NO_RECOMPUTATION] * (options.recompute == "all")]
    return replace(report, comparisons=comparisons, notes=(*report.notes, *notes))


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
