"""The relation of runs of unequal parallel layouts: the ranks of one side are put together into runs in the names of
the other's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.localise.evidence import reason
from npucmp.model import Cause, Comparison, Report, Root, Run
from npucmp.model.relation import LayoutFacts, ranks_in_words
from npucmp.relations.held_values import Values
from npucmp.relations.layout_sizes import LayoutSizes, stated_layout, subset
from npucmp.relations.ranks.assembled_run import assembled_run, collectives, golden_run, layout_words, placed
from npucmp.relations.ranks.layer_mates import follow_layers
from npucmp.relations.ranks.part_errors import odd_rank
from npucmp.relations.ranks.placement_choice import Fits
from npucmp.relations.ranks.placement_search import PlacementSearch
from npucmp.relations.ranks.rank_mesh import stages_of
from npucmp.relations.ranks.rank_origin import (
    with_first_moved,
    with_gaps_first,
    with_missing_reduction,
    with_odd_block,
    with_odd_part,
    with_odd_type,
    with_other_operators,
    with_ranks,
)
from npucmp.relations.ranks.rank_partners import RankPartners, groups_of, missing_ranks
from npucmp.relations.ranks.rank_run import RankRun
from npucmp.relations.ranks.rank_shares import hold_shares
from npucmp.relations.ranks.report import layout_line
from npucmp.relations.ranks.stated_placements import hold_stated
from npucmp.relations.stated_view import View
from npucmp.workflows.layout_detection import is_part
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides

Ranks = Mapping[int, RankRun]
NO_VIEWS: Mapping[str, View] = MappingProxyType({})
ASKED = 3  # roots: work, of which the terms of sums are recomputed
FEWEST = 0.2  # share of operators: chosen, networks that differ line up by chance
UNFIT = 0.2  # share of tensors: chosen, a fault leaves fewer without a placement


class Assembled(NamedTuple):
    """One step and rank: both runs, one of them assembled, and the search that found the placements. `of_target`: the
    target's ranks were put together."""

    target: Run
    golden: Run
    search: PlacementSearch
    of_target: bool = True


class _Layouts(NamedTuple):
    """The layouts that the user stated."""

    target: Optional[LayoutSizes]
    golden: Optional[LayoutSizes]

    @classmethod
    def of(cls, options: Options) -> _Layouts:
        return cls(stated_layout("layout", options.layout), stated_layout("golden-layout", options.golden_layout))


class LayoutRelation:
    """The ranks of one side as runs of the other's layout, by step and rank of the golden."""

    def __init__(
        self, steps: Sequence[Assembled], alone: Sequence[Run], options: Options, context: ReadContext
    ) -> None:
        self._steps, self._alone, self._context = steps, alone, context
        self._recomputes = options.recompute != "none"

    def plan(self) -> Sequence[str]:
        """Return the layouts, the placements with their numbers of tensors, and what decided them."""
        facts = _facts(self._steps)
        by = Counter(one.relation.decided_by for one in facts.placed if one.relation is not None)
        how = ", ".join(f"{count} by {name}" for name, count in by.most_common() if name)
        return [f"{layout_line(facts)}; decided {how}"]

    def apply(self, sides: Sides) -> Sides:
        """Return the sides in the layout of the fewer ranks."""
        parts = {
            (one.target.step, one.target.rank): {rank: own.run for rank, own in one.search.partners.ranks.items()}
            for one in self._steps
            if one.of_target
        }
        related = sides.with_runs(
            [one.target for one in self._steps], [*(one.golden for one in self._steps), *self._alone]
        )
        return related._replace(parts=parts)

    def explain(self, report: Report) -> Report:
        """Return the report with the ranks of its roots."""
        found = {(one.golden.step, one.golden.rank): one for one in self._steps}
        comparisons = [
            _with_ranks(one, found[one.golden.step, one.golden.rank], self._context, self._recomputes)
            for one in report.comparisons
        ]
        return replace(report, comparisons=_in_places(comparisons), layout=_facts(self._steps))


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[LayoutRelation]:
    """Return how the ranks make one another's tensors; None if the layouts are equal."""
    layouts = _Layouts.of(options)
    targets, goldens = sides.readable
    if layouts.target is not None and layouts.target == layouts.golden:
        return None
    if options.rank is not None:
        known = sorted({run.rank or 0 for run in targets})
        raise UsageError(f"--rank {options.rank}: the layouts of the two runs are unequal, and all ranks of a step "
                         f"belong together ({ranks_in_words(known)} selected); see --ranks-apart")  # fmt: skip
    steps, alone = list[Assembled](), list[Run]()
    for golden_step, own in _by_step(goldens).items():
        theirs = [run for run in targets if None in (golden_step, run.step) or run.step == golden_step]
        if theirs:
            steps += _assembled(sides, theirs, own, layouts, context)
        else:
            alone += own
    return LayoutRelation(steps, alone, options, context) if steps else None


def _in_places(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons with roots numbered over all, those of earlier steps first and PROPAGATED ones last."""
    ranked = sorted(
        (root.cause is Cause.PROPAGATED, one.step or 0, root.place, number, at)
        for number, one in enumerate(comparisons)
        for at, root in enumerate(one.roots)
    )
    places = {(number, at): place for place, (*_, number, at) in enumerate(ranked, 1)}
    return tuple(
        replace(one, roots=tuple(replace(root, place=places[number, at]) for at, root in enumerate(one.roots)))
        for number, one in enumerate(comparisons)
    )


def _by_step(runs: Sequence[Run]) -> dict[Optional[int], list[Run]]:
    found: dict[Optional[int], list[Run]] = {}
    for run in runs:
        found.setdefault(run.step, []).append(run)
    return found


def _assembled(
    sides: Sides, targets: Sequence[Run], goldens: Sequence[Run], layouts: _Layouts, context: ReadContext
) -> list[Assembled]:
    """The runs of one step; the side with more ranks is put together."""
    values = Values(context)
    own, other = ({run.rank or 0: RankRun(run, run.rank or 0, values) for run in some} for some in (targets, goldens))
    if len(other) == 1:
        search = _search(own, next(iter(other.values())), layouts.target, "layout", sides.stated)
        return [Assembled(_placed_run(search, str(sides.target_path)), golden_run(search), search)]
    if len(own) == 1:
        search = _search(other, next(iter(own.values())), layouts.golden, "golden-layout", sides.stated)
        return [Assembled(golden_run(search), _placed_run(search, str(sides.golden_path)), search, False)]
    return [*_nested(sides, own, other, layouts)]


def _nested(sides: Sides, own: Ranks, other: Ranks, layouts: _Layouts) -> list[Assembled]:
    """Several ranks on both sides: those of the larger layout that make one rank of the smaller are put together."""
    of_target = (
        len(own) > len(other) or (layouts.target or LayoutSizes(())).ranks > (layouts.golden or LayoutSizes(())).ranks
    )
    many, few = (own, other) if of_target else (other, own)
    sizes = (layouts.target, layouts.golden) if of_target else (layouts.golden, layouts.target)
    path = str(sides.target_path if of_target else sides.golden_path)
    found = []
    for rank in sorted(few):
        search = _nested_search(many, few, rank, sizes)
        hold_stated(search, sides.stated)
        whole, one = _placed_run(search, path), golden_run(search)
        whole, one = (replace(run, rank=rank) for run in (whole, one))
        found.append(Assembled(whole, one, search) if of_target else Assembled(one, whole, search, False))
    return found


def _nested_search(
    many: Ranks, few: Ranks, rank: int, sizes: tuple[Optional[LayoutSizes], Optional[LayoutSizes]]
) -> PlacementSearch:
    """The search over the ranks that make one rank of the other layout: those that the user stated, else neighbours,
    else those a stride apart, whichever agrees better."""
    if sizes[0] is not None and sizes[1] is not None:
        stated = subset(sizes[0], sizes[1], rank)
        if stated is None:
            raise UsageError(f"{sizes[0].words} and {sizes[1].words}: an axis of one is no part of the other's; "
                             "compare each of them with a run of one rank")  # fmt: skip
        groups = [[one for one in stated if one in many]]
    else:
        ranks, place, count = sorted(many), sorted(few).index(rank), len(many) // len(few)
        groups = [ranks[place * count : (place + 1) * count], ranks[place :: len(few)]]
    searches = [_search({one: many[one] for one in group}, few[rank], None, "layout", whole=many) for group in groups]
    return max(searches, key=lambda search: sum(one.state == "agrees" for one in search.found.values()))


def _search(
    ranks: Ranks,
    single: RankRun,
    sizes: Optional[LayoutSizes],
    option: str,
    stated: Mapping[str, View] = NO_VIEWS,
    whole: Optional[Ranks] = None,  # the ranks of the dump, if these are some of them
) -> PlacementSearch:
    missing = missing_ranks(whole or ranks) if option == "layout" and not is_part(single.run) else []
    if sizes is not None:
        count = len(ranks) + len(missing)
        if sizes.ranks != count and not {*range(sizes.ranks)} > ranks.keys():
            raise UsageError(
                f"--{option} {sizes.words} has {sizes.ranks} ranks, the dump has {ranks_in_words([*ranks])}"
            )
        missing = sorted({*missing, *({*range(sizes.ranks)} - ranks.keys())})
        why = sizes.contradiction(sorted(groups_of(ranks)), stages_of(ranks))
        if why is not None:
            raise UsageError(f"--{option} {sizes.words} contradicts the dump: {why}")
    has_values = any(tensor.file or tensor.payload for op in single.run.operators for tensor in op.tensors)
    partners = RankPartners(ranks, single, sizes, missing)
    fits: Fits = {}
    search = _placements(partners, has_values, fits)
    if not search.is_clean and search.golden.update:  # the update shows whether gradients were reduced
        scaled = _placements(partners, has_values, fits, reduces_later=True)  # legal if all that is made of it agrees
        search = scaled if _has_right_gradients(scaled) or not _is_wrong_behind(search) else search
    hold_stated(search, stated)
    matched = sum(search.partners.mesh(one) is not None for one in search.golden.operators)
    count = len(search.golden.operators)
    if not missing and matched < FEWEST * count:
        raise UsageError(f"the dumps look like different networks: {matched} of {count} operators of one rank line up "
                         f"with all of ranks {ranks_in_words([*ranks])}; see --ranks-apart")  # fmt: skip
    unfit = sum(one.state == "shape" for one in search.found.values())
    if sizes is not None and unfit > UNFIT * len(search.found):
        raise UsageError(f"--{option} {sizes.words} contradicts the dump: the shapes of {unfit} of {len(search.found)} "
                         "tensors allow no placement on it")  # fmt: skip
    return search


def _has_right_gradients(search: PlacementSearch) -> bool:
    """Whether no gradient and no tensor of the update differs, as all that is made of partial sums is right."""
    some = (search.golden.by_name[name] for name, _ in search.open_tensors())
    return not any(
        one.is_backward or search.golden.is_update(one) or search.golden.is_within_backward(one) for one in some
    )


def _is_wrong_behind(search: PlacementSearch) -> bool:
    """Whether the gradient that the first differing tensor leads to is wrong in the update, and those before it are
    right. If not, a later operator reduces or divides what differs, and an error is elsewhere."""
    wrong = search.open_tensors()
    first = min((search.golden.by_name[name] for name, _ in wrong), key=lambda one: one.order, default=None)
    if first is None or not (first.is_backward or search.golden.is_within_backward(first)):
        return True
    updated: dict[int, bool] = {}  # whether gradients are right, by order of the operator that made them
    is_one_pass = len(search.golden.micro_batches) == 1
    for operator in search.golden.update:
        for one in operator.inputs:
            made = search.golden.origin(one).operator
            if made is not None and (made.is_backward or (is_one_pass and search.golden.is_within_backward(made))):
                updated[made.order] = updated.get(made.order, True) and (operator.name, one.slot) not in wrong
    before = [is_right for order, is_right in updated.items() if order < first.order]
    behind = [is_right for order, is_right in sorted(updated.items()) if order >= first.order]
    return not updated or (all(before) and not all(behind[:1]))


def _placements(partners: RankPartners, has_values: bool, fits: Fits, reduces_later: bool = False) -> PlacementSearch:
    search = PlacementSearch(partners, has_values, reduces_later, fits)
    follow_layers(search)
    hold_shares(search)
    return search


def _placed_run(search: PlacementSearch, path: str) -> Run:
    run = assembled_run(search, path)
    step = search.golden.run.step
    return replace(run, step=step if run.step is None else run.step)


def _with_ranks(one: Comparison, found: Assembled, context: ReadContext, recomputes: bool) -> Comparison:
    """The comparison with the ranks of its roots."""
    if not found.of_target:
        return with_odd_block(one, context) if found.search.values else one
    known = with_odd_part(with_first_moved(one, found.search), found.search)
    known = with_odd_type(known, found.search)
    roots = [with_ranks(root, found.search) for root in known.roots]
    if any(root.cause is not before.cause for root, before in zip(roots, known.roots)):
        roots = with_gaps_first(roots)
    if recomputes and found.search.values:
        roots = [_with_guilty_rank(root, found.search, context) if root.place <= ASKED else root for root in roots]
    for moved in (with_other_operators, with_missing_reduction):
        roots = [moved(root, found.search, known.findings) for root in roots]
    return replace(known, roots=tuple(roots))


def _with_guilty_rank(root: Root, search: PlacementSearch, context: ReadContext) -> Root:
    """The root with the rank whose term of a sum is not what float64 makes of its inputs. A sum does not show which of
    its terms is wrong."""
    golden = search.golden.by_name.get(root.pair.golden_op.name) if root.pair.golden_op is not None else None
    mesh = search.partners.mesh(golden) if golden is not None else None
    decision = search.found.get((golden.name, root.slot)) if golden is not None else None
    is_sum = decision is not None and any(one.is_partial for one in decision.placements or ())
    is_sum = is_sum or (golden is not None and search.is_made_behind(golden.name, root.slot))
    if root.rank is not None or root.cause is not Cause.BORN or mesh is None or not is_sum:
        return root
    from npucmp.recompute.estimator import RecomputedOperators

    errors: dict[int, float] = {}
    for one in mesh.cells.values():
        run = search.partners.ranks[one.rank].run
        rows = RecomputedOperators(lambda run=run: (run, search.golden.run), context).rows(0, one.op)  # type: ignore[misc]
        own = [row.rel_l2 for row in rows if row.slot == root.slot and row.rel_l2 is not None]
        if own:
            errors[one.rank] = max(errors.get(one.rank, 0.0), *own)
    rank = odd_rank(errors)
    if rank is None or len(errors) < len(mesh.ranks):
        return root
    others = max(error for other, error in errors.items() if other != rank)
    words = "recomputed from its own inputs, the term of rank {rank} differs ({error}), the others by at most {others}"
    return replace(
        root, rank=rank, evidence=(*root.evidence, reason("rank", words, rank=rank, error=errors[rank], others=others))
    )


def _facts(steps: Sequence[Assembled]) -> LayoutFacts:
    first = steps[0]
    partners = first.search.partners
    every = tuple(row for one in steps for row in placed(one.search, one.golden.step))
    ranks = tuple(sorted({rank for one in steps for rank in one.search.partners.ranks}))
    whole = layout_words(first.search) if len(steps) == 1 or first.golden.rank is None else f"{len(ranks)} ranks"
    single = max(len({one.golden.rank for one in steps}), 1)
    words = [whole, "1 rank" if single == 1 else f"{single} ranks"]
    target, golden = words if first.of_target else words[::-1]
    stage = {rank: number for one in steps for rank, number in one.search.partners.stages.items()}
    return LayoutFacts(
        target, golden, ranks, max(partners.stages.values()) + 1, partners.micro_batches, every, partners.missing,
        tuple(stage[rank] for rank in ranks),
        tuple(found for one in steps for found in collectives(one.search, one.golden.step)),
    )  # fmt: skip
