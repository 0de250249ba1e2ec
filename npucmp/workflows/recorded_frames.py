"""The comparison of two runs of which statistics alone are known, in columns: measured and judged without an object for
a row.

All that names, shapes and types decide is done once for the ranks and steps of one network (`RecordedNetwork`): pairs,
measurements and verdicts of tensors without figures, limits. A rank then needs its figures. Rows with figures that
follow other rules (NaN, another type with masks) are measured one by one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any, Callable, Hashable, NamedTuple, Optional, Sequence, cast

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.flow.edges import Edges
from npucmp.judge.tolerance import Limit, Tolerances, judge, judge_bound
from npucmp.localise.autograd_nodes import undecided_nodes
from npucmp.localise.effective_precision import have_one_precision, working_precisions
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import limit_of
from npucmp.measure.kernel.mask_values import masks_of
from npucmp.measure.pairs import measure
from npucmp.measure.recorded_stats import SUMS_SLACK, bounds_of
from npucmp.model import Comparison, Finding, Measurement, Pair, Run, Statistics, TensorRef, Verdict
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.dump import FiguresAt, NeedsFigures, Operator
from npucmp.model.network import Network, RankRecords, SearchRows, StructuredOperators, comparison_of, copied
from npucmp.model.table import (
    MOMENTS,
    VERDICT_NUMBERS,
    Records,
    Table,
    columns_of,
    mark_recorded,
    write_bounds,
    write_verdicts,
)
from npucmp.workflows.select_runs import PairedRuns

KEPT = 8  # networks: work: the ranks of a comparison have a few
_FIXED, _ALONE, _PLAIN, _OTHER = range(4)
_TEXTS = "problem", "unlike", "because", "metric", "rule", "explained_by"
_FIELDS = "known", "same", "shapes_differ", "verdict", "bound", "settled", "error", "limit", "working"


class _Limits(NamedTuple):
    """The limits of all rows, the rules that gave them, and the coarsest round-offs that the values went through."""

    values: Any
    rules: list[str]
    working: Any


class RecordedNetwork:
    """The pairs of two structures, with all that is known before the figures of a rank. Raises NeedsFigures if the
    figures decide the pairs or their roles."""

    def __init__(self, paired: PairedRuns, tolerances: Tolerances, rules: Rulebook, context: ReadContext) -> None:
        self.paired, self._tolerances, self._rules, self._context = paired, tolerances, rules, context
        if not (paired.target.ordered and paired.golden.ordered) or paired.alignment.contents is not None:
            raise NeedsFigures  # another order, or partners by their contents
        pairs = paired.todo
        kinds = [*map(_kind_of, pairs)]
        self._bare = [measure(pair, context=context) if kind == _FIXED else Measurement(pair)
                      for pair, kind in zip(pairs, kinds)]  # fmt: skip
        without = (_FIXED, _ALONE)  # no figure decides their verdict
        findings = [judge(one, tolerances, Limit(0.0)) if kind in without else Finding(one, Verdict.UNKNOWN, "")
                    for one, kind in zip(self._bare, kinds)]  # fmt: skip
        decided = [one for one, kind in zip(findings, kinds) if kind == _FIXED
                   and (one.measurement.same is not None or one.measurement.bound is not None)]  # fmt: skip
        if decided or any(one.verdict is Verdict.SHAPE for one in findings) or not all(map(_are_of_one_shape, pairs)):
            raise NeedsFigures  # a verdict depends on other rows
        columns = columns_of(findings)
        self._template, self._words = columns.rows, columns.words
        structures = (tuple(run.operators) for run in (paired.target, paired.golden))
        count = sum(isinstance(one.statistics, FiguresAt) for op in paired.target.operators for one in op.tensors)
        left_out = tuple(paired.left_out)
        self.network = Network((*structures,), tuple(columns.operators), tuple(pairs), left_out, count)  # type: ignore[arg-type]
        fixed = [row for row, kind in enumerate(kinds) if kind == _FIXED and _has_own_statistics(self._bare[row])]
        mark_recorded(self._template, self.network.row_places >= 0, fixed)
        self._plain = np.array([row for row, kind in enumerate(kinds) if kind == _PLAIN], dtype=np.int64)
        self._others = [row for row, kind in enumerate(kinds) if kind == _OTHER]
        sides: list[Any] = [(pairs[row].target, pairs[row].golden) for row in self._plain.tolist()]
        self._elements = np.array([float(min(math.prod(golden.shape), MOST)) for _, golden in sides])
        self._rounding = np.array([target.rounding + golden.rounding for target, golden in sides])
        self._masks = _masks_of_types([(target.dtype, golden.dtype) for target, golden in sides])
        self._has_one_precision = have_one_precision(pairs)
        self.dtypes = paired.dtypes
        self._limits: dict[Optional[bytes], _Limits] = {}

    def comparison(self, target: Run, golden: Run, known: Comparison) -> Comparison:
        """Return the comparison of two runs of this network, judged tensor by tensor."""
        records = RankRecords(np.concatenate([_recorded(run).figures for run in (target, golden)]))
        rows, numbers = self._template.copy(), {word: number for number, word in enumerate(self._words)}
        places = self.network.row_places
        for side in range(2):
            has = places[:, side] >= 0
            rows["figures"][has, side] = records.figures[places[has, side]]

        def made(words: Sequence[str]) -> Comparison:
            return comparison_of(self.network, records, known, rows, np.zeros(0, MOMENTS), words)

        limits = self._limits_of(made(self._words))
        rows["working"] = limits.working
        odd = [*self._others, *self._judge_plain(rows, limits, numbers)]
        if odd:
            found = columns_of([self._judged(row, rows["figures"][row], limits) for row in odd])
            texts = np.array([numbers.setdefault(word, len(numbers)) for word in found.words])
            for name in _FIELDS:
                rows[name][odd] = found.rows[name]
            for name in _TEXTS:
                rows[name][odd] = texts[found.rows[name]]
        judged = made([*numbers])
        table = cast(Table, judged.findings)
        changes = undecided_nodes(SearchRows(table, is_search=False))
        return replace(judged, findings=table.replaced(changes)) if changes else judged

    def _judge_plain(self, rows: Records, limits: _Limits, numbers: dict[str, int]) -> list[int]:
        """Write bounds and verdicts of rows with all figures of tensors of one shape. Return the rows that follow other
        rules."""
        plain = self._plain
        x, y = rows["figures"][plain, 0], rows["figures"][plain, 1]
        is_recorded = np.ones(x.shape, dtype=bool)
        bounds, is_proven = bounds_of(x, y, is_recorded, is_recorded, self._elements, self._rounding)
        is_odd = ~is_proven | np.isinf(bounds) | self._tolerances.trust_statistics
        for at, of_target, of_golden in self._masks:
            is_odd[at] |= np.isin(x[at, 1], of_target) & np.isin(y[at, 1], of_golden) & (x[at, 1] != y[at, 1])
        is_over = ~is_odd & (bounds > limits.values[plain] + SUMS_SLACK)
        write_bounds(rows, plain, bounds)
        agrees = judge_bound(0.0, self._tolerances, Limit(0.0))
        rows["verdict"][plain], rows["because"][plain] = (
            VERDICT_NUMBERS[agrees[0]],
            numbers.setdefault(agrees[1], len(numbers)),
        )
        found = {}
        for row, bound in zip(plain[is_over].tolist(), bounds[is_over].tolist()):
            limit = Limit(float(limits.values[row]), limits.rules[row])
            found[row] = (*judge_bound(bound, self._tolerances, limit), "", 0.0, float(limits.working[row]))
        write_verdicts(rows, found, numbers)
        odd: list[int] = plain[is_odd].tolist()
        return odd

    def _judged(self, row: int, figures: Any, limits: _Limits) -> Finding:
        """The finding of a row that follows other rules."""
        pair, own = self.paired.todo[row], [Statistics(*one) for one in figures.tolist()]
        sides = [one._replace(statistics=known) if one is not None and isinstance(one.statistics, FiguresAt) else one
                 for one, known in zip((pair.target, pair.golden), own)]  # fmt: skip
        measurement = measure(pair._replace(target=sides[0], golden=sides[1]), context=self._context)
        limit = Limit(float(limits.values[row]), limits.rules[row])
        return judge(measurement, self._tolerances, limit)._replace(working=float(limits.working[row]))

    def _limits_of(self, made: Comparison) -> _Limits:
        """The limits of the rows, which depend on the edges of the run if it has several precisions."""
        sources = None
        if not self._has_one_precision:
            sources = Edges(SearchRows(cast(Table, made.findings), is_search=False)).sources
        key = None if sources is None else np.array(sources, dtype=np.int64).tobytes()
        if key not in self._limits:
            precisions = working_precisions(self._bare, sources=sources)
            held = {one.limiting for one in precisions}
            by_held = {one: limit_of(self._bare[0], one, self._rules) for one in held}
            limits = [by_held[one.limiting] for one in precisions]
            working = np.array([one.coarsest.round_off for one in precisions])
            self._limits[key] = _Limits(np.array([one.value for one in limits]), [one.rule for one in limits], working)
        return self._limits[key]


def _recorded(run: Run) -> StructuredOperators:
    return cast(StructuredOperators, run.operators)


def _kind_of(pair: Pair) -> int:
    """The kind of record that decides the measurement of a pair: all figures of two tensors of one shape (_PLAIN),
    those of one side alone (_ALONE), none (_FIXED), or some by other rules (_OTHER)."""
    sides: list[TensorRef] = [one for one in (pair.target, pair.golden) if one is not None]
    recorded = [isinstance(one.statistics, FiguresAt) for one in sides]
    if not any(recorded):
        return _FIXED
    has_problem = any(one.problem for one in sides)
    if len(sides) == 1:
        return _OTHER if has_problem else _ALONE
    is_plain = all(recorded) and sides[0].shape == sides[1].shape and 0 not in sides[0].shape
    return _PLAIN if is_plain and not has_problem else _OTHER


def _has_own_statistics(one: Measurement) -> bool:
    """Whether the statistics of a measurement are those of its tensors."""
    sides = zip((one.pair.target, one.pair.golden), one.statistics)
    return all(known is (None if tensor is None else tensor.statistics) for tensor, known in sides)


def _are_of_one_shape(pair: Pair) -> bool:
    """Whether two tensors have one shape, but for axes of length 1."""
    if pair.target is None or pair.golden is None:
        return True
    x, y = ([size for size in one.shape if size != 1] for one in (pair.target, pair.golden))
    return x == y


def _masks_of_types(types: Sequence[tuple[str, str]]) -> list[tuple[Any, Any, Any]]:
    """The places of pairs of two types whose minima may be masks, with the masks of target and golden."""
    places: dict[tuple[str, str], list[int]] = {}
    for at, both in enumerate(types):
        if both[0] != both[1]:
            places.setdefault(both, []).append(at)
    found = []
    for (target, golden), rows in places.items():
        x, y = lookup(target), lookup(golden)
        if x is not None and y is not None:
            masks = masks_of(x, y)
            found.append((np.array(rows), np.array([*masks.target]), np.array([*masks.golden])))
    return found


_Key = tuple[Hashable, tuple[Operator, ...], tuple[Operator, ...]]
_networks: OrderedDict[tuple[Hashable, int, int], tuple[_Key, Optional[RecordedNetwork]]] = OrderedDict()


def recorded_network(
    target: Run, golden: Run, comparison: Hashable, build: Callable[[Run, Run], RecordedNetwork]
) -> Optional[RecordedNetwork]:
    """Return the network of two runs, built from their structures once in a comparison; None if it needs more than
    these."""
    assert isinstance(target.operators, StructuredOperators) and isinstance(golden.operators, StructuredOperators)
    structures = target.operators.structure, golden.operators.structure
    key = comparison, id(structures[0]), id(structures[1])
    if key in _networks:
        _networks.move_to_end(key)
        return _networks[key][1]
    network: Optional[RecordedNetwork] = None
    try:
        of_golden = structures[1] if structures[0] is not structures[1] else copied(structures[1])
        network = build(replace(target, operators=structures[0]), replace(golden, operators=of_golden))
    except NeedsFigures:
        pass
    _networks[key] = (comparison, *structures), network  # the structures stay, so that no other has their number
    while len(_networks) > KEPT:
        _networks.popitem(last=False)
    return network
