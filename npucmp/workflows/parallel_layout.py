"""Compare runs of unequal parallel layouts: the ranks of the target are put together into one run in the golden's
names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence

from npucmp.align.assembled_run import assembled_run, golden_run, layout_words, placed
from npucmp.align.placement_search import PlacementSearch
from npucmp.align.rank_partners import RankPartners
from npucmp.align.rank_run import RankRun, Values
from npucmp.dump.context import ReadContext
from npucmp.localise.rank_origin import with_first_moved, with_ranks
from npucmp.model import Comparison, Report, Run
from npucmp.model.relation import LayoutFacts
from npucmp.workflows.options import Options
from npucmp.workflows.pipeline import ComparisonSource, compared
from npucmp.workflows.select_runs import StrPath


if TYPE_CHECKING:
    from npucmp.workflows.compare import Sides


class Assembled(NamedTuple):
    """One step: the assembled run and the golden's, and the search that found the placements."""

    target: Run
    golden: Run
    search: PlacementSearch


def are_unequal(targets: Sequence[Run], goldens: Sequence[Run]) -> bool:
    """Whether one side has several ranks in a step and the other one, or computes a batch in other parts."""
    if _most(goldens) > 1:
        return False
    return _most(targets) > 1 or any(map(_has_other_batches, targets[:1], goldens[:1]))


def _has_other_batches(target: Run, golden: Run) -> bool:
    """Whether two training runs compute a batch in unequal numbers of micro batches."""
    counts = [*map(_micro_batches, (target, golden))]
    if counts[0] == counts[1] or not all(counts):
        return False
    first = [next((op for op in run.operators if op.phase == "forward" and op.tensors), None) for run in (target, golden)]
    a, b = ([tensor.shape for tensor in op.tensors] if op is not None else [] for op in first)
    return len(a) == len(b) and a != b


def _micro_batches(run: Run) -> int:
    """How often a forward pass precedes a backward pass."""
    phases = [op.phase == "backward" for op in run.operators if op.phase]
    return sum(later and not before for before, later in zip([True, *phases], phases))


def _most(runs: Sequence[Run]) -> int:
    steps: dict[Optional[int], set[Optional[int]]] = {}
    for run in runs:
        steps.setdefault(run.step, set()).add(run.rank)
    return max(map(len, steps.values()), default=0)


def assembled(
    target: StrPath, targets: Sequence[Run], goldens: Sequence[Run], options: Options, context: ReadContext
) -> list[Assembled]:
    """The runs of each step that both sides have."""
    found = []
    for golden in goldens:
        own = [run for run in targets if golden.step is None or run.step is None or run.step == golden.step]
        if own:
            found.append(_assembled(str(target), own, golden, context))
    return found


def _assembled(path: str, targets: Sequence[Run], golden: Run, context: ReadContext) -> Assembled:
    values = Values(context)
    ranks = {run.rank or 0: RankRun(run, run.rank or 0, values) for run in targets}
    single = RankRun(golden, 0, values)
    has_values = any(tensor.file or tensor.payload for op in golden.operators for tensor in op.tensors)
    search = PlacementSearch(RankPartners(ranks, single), has_values)
    run = assembled_run(search, path)
    return Assembled(replace(run, step=golden.step if run.step is None else run.step), golden_run(search), search)


def compared_layouts(sides: Sides, options: Options, context: ReadContext) -> Optional[Report]:
    """Compare the runs of unequal layouts; None if the layouts are equal."""
    targets = [run for run in sides.targets if not run.problem]
    goldens = [run for run in sides.goldens if not run.problem]
    if not are_unequal(targets, goldens):
        return None
    steps = assembled(sides.target_path, targets, goldens, options, context)
    together = [(one.target, one.golden) for one in steps]
    report = compared(ComparisonSource(sides.target_path, sides.golden_path, together), options)
    by_step = {one.golden.step: one.search for one in steps}
    comparisons = tuple(_with_ranks(one, by_step[one.golden.step]) for one in report.comparisons)
    return replace(report, comparisons=comparisons, layout=_facts(steps))


def _with_ranks(one: Comparison, search: PlacementSearch) -> Comparison:
    """The comparison with the ranks of its roots."""
    known = with_first_moved(one, search)
    return replace(known, roots=tuple(with_ranks(root, search) for root in known.roots))


def _facts(steps: Sequence[Assembled]) -> LayoutFacts:
    first = steps[0].search.partners
    every = tuple(row for one in steps for row in placed(one.search, one.golden.step))
    stages = max(first.stages.values()) + 1
    words = layout_words(steps[0].search), "1 rank"
    return LayoutFacts(*words, tuple(sorted(first.ranks)), stages, first.micro_batches, every)
