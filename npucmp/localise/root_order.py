"""Search for root causes over all ranks of a step, and set the priority of all roots.

The ranks are searched side by side, in an order in which each operator comes after the operators it waits for. A
collective or receive gets the inputs of other ranks: if their error descends from a root there, it descends from that
root here too.

A receive that wrote other values than were sent is BORN, and so is a sum whose inputs agree on all ranks. Rounding of a
rank that works in bfloat16 is no error of the float32 rank that receives its data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar

from npucmp.flow.operators import OperatorFindings, OperatorPlace, OperatorRows
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.recomputation import Estimator
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.rules import Rulebook
from npucmp.localise.search import RootSearch
from npucmp.model import Cause, Comparison, Finding, Root
from npucmp.model.optypes import op_type_of
from npucmp.model.table import made_once

if TYPE_CHECKING:
    from npucmp.flow.collectives import Communications
    from npucmp.localise.remote_inputs import RemoteView
    from npucmp.localise.stat_columns import ShiftBars
    from npucmp.localise.stat_test import History, NoiseTest

SEVERITY = {Cause.BORN: 0, Cause.GAP: 0, Cause.WORSENED: 1, Cause.SUSPECT: 2, Cause.UNKNOWN: 3, Cause.PROPAGATED: 4}

Precedence = tuple[bool, int, int]  # whether the root is PROPAGATED, step, gravity
Place = TypeVar("Place")  # a step and rank
Searched = TypeVar("Searched")  # the result of one rank


def precedence(step: int, cause: Cause) -> Precedence:
    """The first part of the order of roots: operators of an earlier step first, and PROPAGATED operators after those of
    all steps, so that the priorities of suspects are consecutive."""
    return cause is Cause.PROPAGATED, step, SEVERITY[cause]


def side_by_side(
    comparisons: Sequence[Comparison],
    updates: Sequence[Updates],
    by_round_off: bool,
    rules: Rulebook,
    estimators: Sequence[Optional[Estimator]] = (),
) -> list[SearchResult]:
    """Search the ranks of one step, all in memory. Return the findings of each rank, and its roots with their clocks.
    `estimators` recompute operators of the ranks."""
    ranks = _Ranks(comparisons, updates, by_round_off, rules, estimators or [None] * len(comparisons))
    ranks.visit()
    return ranks.suspected()


def search_steps(
    places: Iterable[Place],
    search: Callable[[Sequence[list[Place]], bool], Iterable[list[Searched]]],
    causes: Callable[[Searched], Iterable[Cause]],
) -> list[Searched]:
    """Return the results of all ranks of all steps, step by step. `search` yields the results of the ranks of some
    steps, step by step too; `causes` are those of the roots in a result.

    The search of a step depends on whether an error was born in an earlier step. The first step is searched first,
    then all others at once. Steps after the first step in which an error was born are searched again.
    """
    step = attrgetter("step")
    todo = [[*ranks] for _, ranks in groupby(sorted(places, key=step), key=step)]
    found: list[Searched] = []
    faulty = False
    while todo:
        for ranks in search(todo if found else todo[:1], faulty):
            found += ranks
            todo = todo[1:]
            if not faulty and any(cause is not Cause.PROPAGATED for rank in ranks for cause in causes(rank)):
                faulty = True
                break
    return found


def places_of(ranks: Sequence[tuple[int, Sequence[tuple[int, Cause]]]]) -> list[tuple[int, ...]]:
    """Return the places of the roots of each step and rank among all roots, from 1 on. `ranks` are the number of the
    step, and the clock and cause of each root."""
    ranked = sorted(
        (precedence(step, cause), clock, number, at)
        for number, (step, roots) in enumerate(ranks)
        for at, (clock, cause) in enumerate(roots)
    )
    places = [[0] * len(roots) for _, roots in ranks]
    for place, (*_, number, at) in enumerate(ranked, 1):
        places[number][at] = place
    return [*map(tuple, places)]


def _clocks_apart(nodes: Sequence[OperatorRows]) -> dict[int, int]:
    """The clocks of the operators of a rank that waits for no other, by order."""
    return {node.pair.order: at for at, node in enumerate(nodes, 1)}


class _Ranks:
    """The ranks of one step."""

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        updates: Sequence[Updates],
        by_round_off: bool,
        rules: Rulebook,
        estimators: Sequence[Optional[Estimator]],
    ) -> None:
        self._numbers = [one.rank for one in comparisons]
        first_rows = accumulate((len(one.findings) for one in comparisons), initial=0)
        self._walks = [
            RootSearch(
                one.findings,
                by_round_off,
                rules,
                drift,
                one.left_out,
                first_row,
                one.rank,
                estimator,
                one.target.ordered and one.golden.ordered,
            )
            for one, drift, first_row, estimator in zip(comparisons, updates, first_rows, estimators)
        ]
        self._collectives: Optional[Communications] = None  # None for a single rank
        if len(comparisons) > 1:
            self._collectives = self._communications()
        elif any(op_type_of(row.operator).has("collective") for row in self._walks[0].nodes.rows):
            from npucmp.localise.remote_inputs import mark_missing_ranks

            mark_missing_ranks(self._walks[0])
        self._noise: Optional[NoiseTest] = None  # if only statistics exist
        self._history: Optional[History] = None  # the noise so far
        self._bars: list[ShiftBars] = []
        if by_round_off and rules.uses("suspected") and all(walk.columns is not None for walk in self._walks):
            from npucmp.localise.stat_test import History, NoiseTest, facts_of, merge_facts

            columns = [walk.columns for walk in self._walks if walk.columns is not None]
            facts = [*map(facts_of, columns)]
            unproven = max(one.unproven for one in updates)
            self._noise = noise = NoiseTest(merge_facts(facts, all(one.are_first for one in updates), unproven))
            self._history = History()
            self._bars = [noise.bars_of(one, walk.edges.sources) for one, walk in zip(columns, self._walks)]
        self._from: dict[tuple[int, int], RemoteView] = {}  # the tensor that brought an error, by rank and order

    def _communications(self) -> Communications:
        """The communication between the ranks; `_read` gets the tensors of other ranks that each operator reads."""
        from npucmp.flow.collectives import Communications
        from npucmp.localise.remote_inputs import communicating, read_elsewhere, reductions_inside, without_buffers

        for walk, number in zip(self._walks, self._numbers):
            without_buffers(walk, number)
        self._read = read_elsewhere(self._walks)
        sequences = [*map(communicating, self._walks)]
        read = {place: [sent for sent, _ in operators] for place, operators in self._read.items()}
        return Communications(sequences, self._numbers, read, reductions_inside(self._walks))

    def _in_order(self) -> Iterable[list[OperatorPlace]]:
        """Yield all operators; those of one clock together."""
        if self._collectives is None:
            return ([OperatorPlace(0, at)] for at in range(len(self._walks[0].nodes)))
        return self._collectives.in_order()

    def _clock(self, rank: int, at: int) -> int:
        return at + 1 if self._collectives is None else self._collectives.clock(rank, at)

    def visit(self) -> None:
        """Visit the operators of all ranks. In a collective, ranks with the largest input error come first. Only the
        first operator that exceeds the noise, and the same operator on other ranks, are compared with the noise."""
        is_apart = self._collectives is None or self._collectives.is_apart
        for group in self._in_order():
            if not is_apart and len(group) > 1 and any(self._communicates(place) for place in group):
                from npucmp.localise.remote_inputs import mark_inequalities

                mark_inequalities([(self._numbers[place.rank] or 0, self._node(place)) for place in group])
                group = sorted(group, key=self._own_error, reverse=True)
            for place in group:
                walk, is_alone = self._walks[place.rank], is_apart or not self._communicates(place)
                if not is_alone and self._collectives is not None:
                    self._receive(self._collectives, place)
                if self._noise is not None and not (is_alone and self._pass_noise(self._noise, place, walk)):
                    self._test_noise(self._noise, self._node(place), walk)
                if not (is_alone and (walk.pass_by(place.at) or walk.explain(place.at))):
                    walk.visit(self._node(place))

    def _communicates(self, place: OperatorPlace) -> bool:
        """Whether tensors of other ranks may reach an operator directly."""
        assert self._collectives is not None
        return place in self._read or place in self._collectives.joint or place in self._collectives.senders

    def _pass_noise(self, noise: NoiseTest, place: OperatorPlace, walk: RootSearch) -> bool:
        """Add an operator to the noise without a test; False if it may exceed the noise, or if columns do not show
        this."""
        bars, columns, at = self._bars[place.rank], walk.columns, place.at
        assert columns is not None and self._history is not None
        network, rows = columns.network, walk.nodes.rows[at]
        if not noise.is_candidate(network.names[at]):
            return True
        before = self._history.before(network.kinds[at])
        if walk.instead or noise.may_exceed(bars, at, before) or noise.reads_hidden(rows, walk):
            return False
        sources, is_known = walk.edges.sources, columns.is_known
        walk.rows_read.update([sources[row] for row in rows.inputs if is_known[row]])
        noise.follow_updates(network.gradient[at], columns.parameter_shift[at])
        if columns.has_levels[at] and not noise.outliers:
            self._history.add(noise.contribution_of(columns, at, bars.inside[at]), before)
        return True

    def _test_noise(self, noise: NoiseTest, node: OperatorFindings, walk: RootSearch) -> None:
        """Compare an operator with the noise. Operators that exceed it and all operators behind them do not count as
        noise."""
        from npucmp.localise.stat_test import kind_of, with_counts

        if not noise.is_candidate(node.operator.name):
            return
        assert self._history is not None
        before = self._history.before(kind_of(node))
        found = noise.visit(node, walk, before)
        standing = noise.outliers.get(node.row)
        if standing is not None:
            noise.outliers[node.row] = with_counts(standing, sorted(self._history.largest))
        if found is not None and not noise.outliers:
            self._history.add(found, before)

    def results(self) -> Iterator[SearchResult]:
        """Yield the result of each rank."""
        for rank, walk in enumerate(self._walks):
            findings, roots = walk.results()
            clocks = self._clocks_by_order(rank) if roots else {}
            every = [(clocks[root.pair.order], self._explain_root(rank, walk.carriers, root)) for root in roots]
            yield SearchResult(findings, every, walk.explained_result(partial(self._clock, rank)))

    def suspected(self) -> list[SearchResult]:
        """The same; if only statistics exist, with the suspects of the noise test."""
        results = [*self.results()]
        if self._noise is None:
            return results
        from npucmp.localise.stat_test import candidates, first_of, search_result

        rooted = {
            (rank, root.pair.order): root
            for rank, found in enumerate(results)
            for _, root in found.roots
            if root.cause is not Cause.PROPAGATED
        }
        every = self._shown_nodes(rooted, self._noise)
        first = first_of(candidates(every, rooted, self._noise), len(results))
        return [
            self._with_reordering(rank, search_result(found, rank, first, self._clocks_by_order(rank)))
            for rank, found in enumerate(results)
        ]

    def _clocks_by_order(self, rank: int) -> Mapping[int, int]:
        walk = self._walks[rank]
        found: dict[int, int] = made_once(walk.findings.network.columns, (_clocks_apart,), walk.nodes.rows)
        if self._collectives is None or self._collectives.is_apart:
            return found
        return {order: self._clock(rank, clock - 1) for order, clock in found.items()}

    def _shown_nodes(
        self, rooted: Mapping[tuple[int, int], Root], noise: NoiseTest
    ) -> Iterator[tuple[int, int, OperatorFindings]]:
        """Yield rank, clock and operator of all operators that may be the first, or whose figures do not show their
        values."""
        for rank, walk in enumerate(self._walks):
            first = walk.findings[0].row if walk.nodes else 0
            for at, row in enumerate(walk.nodes.rows):
                is_shown = walk.columns is not None and not walk.columns.is_unshown[at]
                if is_shown and (rank, row.pair.order) not in rooted and row.at + first not in noise.outliers:
                    continue
                yield rank, self._clock(rank, at), walk.nodes[at]

    def _with_reordering(self, rank: int, result: SearchResult) -> SearchResult:
        """Add to suspects by noise that an operator of one run may have moved the elements of their inputs."""
        roots, walk = result.roots, self._walks[rank]
        suspects = {root.pair.order for _, root in roots if root.rule == "suspected"}
        if not suspects:
            return result
        places = ((at, row.pair.order) for at, row in enumerate(walk.nodes.rows))
        more = {order: walk.reordered_reasons(walk.nodes[at]) for at, order in places if order in suspects}
        every = [
            (clock, replace(root, evidence=(*root.evidence, *found)) if (found := more.get(root.pair.order)) else root)
            for clock, root in roots
        ]
        return result._replace(roots=every)

    def _explain_root(self, rank: int, carriers: dict[int, int], root: Root) -> Root:
        """Add the origin to a root that propagates an error of another rank."""
        order = carriers.get(root.pair.order, root.pair.order)
        brought = self._from.get((rank, order))
        if brought is None:
            return root
        from npucmp.localise.remote_inputs import explain_remote

        return explain_remote(root, brought)

    def _node(self, place: OperatorPlace) -> OperatorFindings:
        return self._walks[place.rank].nodes[place.at]

    def _own_error(self, place: OperatorPlace) -> float:
        from npucmp.localise.remote_inputs import own_error

        assert self._collectives is not None
        return own_error(self._node(place)) if place in self._collectives.senders else 0.0

    def _receive(self, communications: Communications, place: OperatorPlace) -> None:
        """Add the tensors of other ranks to an operator."""
        from npucmp.localise.remote_inputs import add_remote_inputs, tensor_of

        sent = [(other, tensor_of(self._node(other), index)) for other, index in self._read.get(place, ())]
        contributed = [
            (one, finding) for one in communications.senders.get(place, ()) for finding in self._node(one).inputs
        ]
        read, put_in = ([self._arrival(*one) for one in operators] for operators in (sent, contributed))
        brought = add_remote_inputs(self._walks[place.rank], self._node(place), read, put_in)
        if brought is not None:
            self._from[place.rank, self._node(place).pair.order] = brought

    def _arrival(self, place: OperatorPlace, finding: Finding) -> RemoteView:
        """A tensor as the search of its own rank sees it."""
        from npucmp.localise.remote_inputs import snapshot

        return snapshot(self._walks[place.rank], self._numbers[place.rank], finding)
