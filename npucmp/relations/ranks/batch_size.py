"""The relation of runs with batches of unequal sizes: both sides become runs of the samples that correspond."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.localise.evidence import reason
from npucmp.model import Comparison, Pair, Report, Root, Run
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.relations.held_values import Values
from npucmp.relations.ranks.batch_rows import BatchRows, batch_rows, with_samples
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, pair_runs

LEAST = 1e-3  # share: chosen: a sample with so small a share of the largest error does not differ
_TINY = 1e-300  # norm: definition: keeps a quotient finite
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
        rows, values = [rows for *_, rows in self._found], Values(self._context)
        notes = [*dict.fromkeys(row.words for row in rows), *[NO_RECOMPUTATION] * self._recomputes]
        comparisons = tuple(_with_samples(*both, values) for both in zip(report.comparisons, rows))
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


def _with_samples(comparison: Comparison, rows: BatchRows, values: Values) -> Comparison:
    """Return the comparison with the samples of its roots, in which those of the golden without a row are not
    covered."""
    pairs = {(finding.pair.order, finding.pair.slot): finding.pair for finding in comparison.findings}
    roots = [
        _with_sample(root, pairs.get((root.pair.order, root.slot), root.pair), rows, values)
        for root in comparison.roots
    ]
    comparison = replace(comparison, roots=tuple(roots))
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


def _with_sample(root: Root, pair: Pair, rows: BatchRows, values: Values) -> Root:
    """Return a root with the first sample that differs, as the golden counts, and its row in the target."""
    samples = rows.kept
    if pair.target is None or pair.golden is None or pair.golden.shape[:1] != (len(samples),):
        return root
    x, y = values.array(pair.target), values.array(pair.golden)
    if x is None or y is None or x.shape != y.shape:
        return root
    x, y = (np.nan_to_num(side.reshape(len(side), -1).astype(np.float64)) for side in (x, y))
    errors = np.linalg.norm(x - y, axis=1) / np.maximum(np.linalg.norm(y, axis=1), _TINY)
    bad = np.flatnonzero(errors > max(root.limit if root.metric == "rel_l2" else 0.0, LEAST * errors.max()))
    if not len(bad):
        return root
    sample = samples[int(bad[0])]
    words = "{count} of {every} samples differ, the first: sample {sample} of the golden, row {row} of the target"
    own = reason("sample", words, count=len(bad), every=len(samples), sample=sample, row=rows.rows[sample])
    return replace(root, request=sample, evidence=(*root.evidence, own))
