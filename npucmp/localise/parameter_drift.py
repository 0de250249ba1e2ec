"""The drift of parameters over earlier steps, as an optimizer propagates the noise of gradients to the parameters; and
parameters that one run keeps in a 16-bit type.

Adam's first updates use the sign of a gradient. For an element whose gradient is no larger than its error e, such an
update is completely wrong: a share e of the elements, which rel_l2 shows as √e. A gradient that is pure noise (of a
key's bias, of a bias before a normalisation) moves its parameter at random, as far as any other: no farther than a step
of the optimizer, which the golden shows, and not by one common factor. A single element may have such a sign in any
tensor in which that is likely. Running statistics have no gradient: they average the inputs of their operator.

Calls that share a parameter, as the steps of a recurrent layer do, have one gradient together: the sum of theirs.

A faulty optimizer moves all parameters: if several parameters of a step exceed these bounds, no other parameter of that
step is explained. Two more signs show a fault in parameters that are each within their bounds. First, flipped signs are
few: rel_l2 shows a share e of the elements as √e, the mean of |x - y| shows it as e. The mean of an update proportional
to its gradient is e too. An error whose mean exceeds e of a step is not noise, in a single parameter too. Evidence: at
most 0.37 of the bound in 1,546 parameters of clean pairs of the corpus, 1.8 to 2e5 in the first parameters of 12 wrong
optimizers. Second, noise does not scale parameters: a factor g of K elements with the error e is g √K / e standard
deviations away from zero, and factors of one sign in all parameters are evidence together.

Three parameters of a step, and a tenth of those that differ, must exceed their bounds to show a wrong update. The mean
of |x - y| of as many parameters must exceed 16 e_g of a step of the optimizer, twice the error before, and one
round-off. In tensors that are likely to have a flipped sign, three elements must also be off by a step.

Some parameters hold numbers of a 16-bit type in one run only, although both runs record them as float32. Loading a
bfloat16 checkpoint into float32 has this effect, if operators cast up: each of them reads weights that differ
from the golden's by one rounding. The parameters differ, but the precision of the run does not, because its results are
rounded to float32. So the first parameter is a GAP, and the others follow from the same difference.

Nine of ten parameters that differ must be rounded so. The evidence of the GAP has their number. Parameters recorded in
a 16-bit type have the limit of that type.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Callable, Hashable, Mapping, NamedTuple, Optional, Sequence, cast

import numpy as np

from npucmp.flow.contents import contents_at, is_vector
from npucmp.flow.operators import OperatorRows, numbered, rows_of_operators
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.effective_precision import float_types, usual_precision
from npucmp.localise.evidence import reason
from npucmp.localise.rule_context import (
    AVERAGED_ELEMENTS,
    COMMON_SHARE,
    FACTOR_DEVIATIONS,
    FLIP_COUNT,
    FLIP_SHARE,
    MIN_ELEMENTS,
    QUANTILE,
    deviations_of,
    gain_of,
    proven_size,
)
from npucmp.model import Evidence, Finding, Pair, Statistics, Verdict
from npucmp.model.dtypes import MOST, lookup
from npucmp.model.moments import SHORT_BITS
from npucmp.model.network import Floats, SearchRows, are_all_recorded, by_network
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output, is_parameter, running_statistics
from npucmp.model.table import ChangedRows, has_error, has_figures, has_own_figures, made_once, rows_of_verdicts

_Errors = list[Optional[float]]
_Key = tuple[str, str]  # the name of an operator, and a slot
UPDATE = 0.5  # of a parameter's size: chosen: no step of a training network changes a parameter by more, not measured
ERROR_GROWTH = 2.0  # times the error of the previous step: chosen: not measured
PARAMETER_COUNT = 3  # parameters of a step: chosen: a wrong optimizer moves as many beyond their bounds, not measured
# probability: chosen: that an error of independent elements lies along the values, cos² ≥ 1 - p^(2/(n-1)) of n elements
CHANCE = 1e-3
SHARE = 0.1  # share of the parameters that differ: chosen: the same, not measured
# times the golden's step: chosen: a wrong update is off by two, and a figure may show a quarter, not measured
UPDATE_FACTOR = 8.0


class Updates:
    """The parameters of one rank at one step, and their gradients there.

    faulty: a root exists in this step or before, so all later differences of parameters descend from it.
    """

    def __init__(self, findings: Sequence[Finding] = (), faulty: bool = False) -> None:
        self.faulty = faulty
        self.are_first = not findings
        self._is_wrong = False
        self.factor = 0.0  # common factor of all parameters of the step itself, minus 1
        self._usual_step = 0.0  # of an element, the median over the golden's parameters
        self._untied: dict[_Key, str] = {}
        self._gradients: dict[_Key, float] = {}
        self._statistic_error: dict[_Key, float] = {}  # running statistics: error added per step, as rms
        self._one_sided: dict[_Key, Pair] = {}  # the call of one run alone that updated a parameter
        rows = numbered(findings)
        errors, sizes, known = _errors_of(rows)
        pairs, reads = rows.network.pairs, _reads_of(rows)
        self._usual = _usual_of(known)
        self._contents = _contents(rows)
        # Operators that were not recorded round as well, to the coarsest type that a good part of the run has.
        self._unrecorded = max(self._usual, usual_precision(rows).round_off) if self._usual else 0.0
        alone = {mark: pairs[row] for row in _updated_alone(rows)
                 if (mark := _mark_of(rows[row], int(pairs[row].target_op is None))) is not None}  # fmt: skip
        # A gradient that was not recorded is assumed to be noise if any error or no gradient at all is known.
        unseen = 1.0 if known and (known[-1] or not reads.gradients) else 0.0
        by_shape: dict[tuple[int, ...], float] = {}
        for row, shape in reads.gradients:
            by_shape[shape] = max(by_shape.get(shape, 0.0), sizes[row] or 0.0)
        for key, averaged in reads.averages:  # the mean itself may be much smaller than the inputs that it averages
            added = (FACTOR * (errors[row] or 0.0) * scale_of(rows[row]).rms for row in averaged)
            self._statistic_error[key] = max(added, default=0.0)
        for key, row in reads.each if alone else ():
            for side in (0, 1):
                if found := alone.get(_mark_of(rows[row], side)):
                    self._one_sided[key] = found
        for key, shape in reads.others:  # a graph does not always mark parameters
            self._gradients[key] = min(1.0, by_shape.get(shape, 0.0))
        read_as: list[tuple[int, _Key]] = []  # parameters with a gradient
        for key, row, shape, fitting, is_bias in reads.parameters:
            error = max((size for at in fitting if (size := sizes[at]) is not None), default=None)
            if error is None and is_bias:
                error = unseen  # the gradient of a bias may be pure noise
            error = by_shape.get(shape) if error is None else error
            if error is not None:
                self._gradients[key] = max(error, self._gradients.get(key, 0.0))
                read_as.append((row, key))
        shared: dict[int, list[_Key]] = defaultdict(list)  # by content
        for content, (_, key) in zip(contents_at(rows, [row for row, _ in read_as]), read_as):
            if content:
                shared[content].append(key)
        for keys in shared.values():  # an optimizer adds up the gradients of all calls that read one parameter
            self._gradients.update(dict.fromkeys(keys, max(self._gradients[key] for key in keys)))
        self._rows, self._earlier = reads.rows, np.full((len(rows) + 1, len(_Figures._fields)), math.nan)
        self._earlier[[*reads.rows.values()]] = _figures(rows, [*reads.rows.values()])
        self._errors = {key: errors[row] or 0.0 for key, row in reads.rows.items()}

    def decide(self, findings: Sequence[Finding]) -> None:
        """Add the parameters of the step itself, and decide whether the update differed on this side."""
        self._is_wrong = False  # bound() must not depend on an earlier call
        rows = [] if self.are_first and are_all_recorded(findings) else _parameters(findings)
        keys, now = [*map(_key, map(_pairs(findings).__getitem__, rows))], _figures(findings, rows)
        before = self._earlier[[self._rows.get(key, -1) for key in keys]]
        apart = np.abs(now - before)[:, 1:3].max(axis=1, initial=0.0)  # of extremes
        moved = np.sort(apart[~np.isnan(apart)])
        self._usual_step = float(moved[len(moved) // 2]) if len(moved) else 0.0
        self._untied = _broken_ties(self._contents, _contents(findings) if rows else {})
        measured = np.flatnonzero(_rows(findings).columns.rows["moments"][rows] >= 0).tolist()
        self.factor = _common_factor([findings[rows[at]] for at in measured if keys[at] not in self._statistic_error])
        diverged = rows_of_verdicts(findings, (Verdict.DIVERGED,)) if rows else ()
        differing = [*map(findings.__getitem__, sorted({*rows}.intersection(diverged)))]
        beyond = sum(0.0 < self.bound(one) < proven_size(one) for one in differing)
        spread = sum(self._is_spread(one, FLIP_COUNT if self._may_flip(one) else 0.0) for one in differing)
        self._is_wrong = max(beyond, spread) >= max(PARAMETER_COUNT, SHARE * len(differing))

    def one_sided(self, finding: Finding) -> Optional[Pair]:
        """The in-place call of one run alone that updated a parameter in the step before, by its recorded figures."""
        return self._one_sided.get(_key(finding.pair))

    def untied(self, finding: Finding) -> str:
        """The operator that shares a parameter in the golden, and in the target did in the step before; "" for none."""
        return self._untied.get(_key(finding.pair), "")

    def _is_spread(self, finding: Finding, flips: float = 0.0) -> bool:
        """Whether the elements of a parameter are farther off on average than the error e of its gradient moves them:
        by a share e of a step. A changed sign moves an element by more, but only a share e of the signs change; in
        addition `flips` elements are off by a step. The gradient of a vector is a sum that cancels in some elements, as
        in the bias of keys: noise alone decides the step there."""
        key, moments = _key(finding.pair), finding.measurement.moments
        gradient, rms, step = self._gradient_of(key), scale_of(finding).rms, self._step(finding)
        if key not in self._errors or key in self._statistic_error or gradient >= 1.0 or not step:
            return False
        if moments is None or moments.mismatched or not moments.compared or is_vector(finding):
            return False
        moved = (FLIP_SHARE * gradient + flips / moments.compared) * step
        return (
            moments.sum_abs / moments.compared
            > (moved + ERROR_GROWTH * self._errors[key] + round_off_of(finding.pair)) * rms
        )

    def _may_flip(self, finding: Finding) -> bool:
        """Whether a sign of the gradient of a parameter is likely to change."""
        return FLIP_SHARE * self._gradient_of(_key(finding.pair)) * scale_of(finding).elements >= SHARE

    def _gradient_of(self, key: _Key) -> float:
        """The known error of the gradient of a parameter; a default if unknown."""
        return self._gradients.get(key, self._unrecorded)

    def bound(self, finding: Finding) -> float:
        """The largest error that earlier steps may have made in a parameter; 0 for a tensor that is not in the earlier
        step."""
        key = _key(finding.pair)
        if key not in self._errors or self._is_wrong or self.factor:
            return 0.0
        if key in self._statistic_error:
            rms = scale_of(finding).rms
            averaged = self._statistic_error[key] / rms if rms else math.inf if self._statistic_error[key] else 0.0
            return ERROR_GROWTH * self._errors[key] + averaged
        gradient = self._gradient_of(key)
        update = math.inf if gradient > 1.0 else max(UPDATE * math.sqrt(gradient), self._one_sign(finding))
        if gradient >= 1.0:  # noise, or unknown
            update = min(update, UPDATE_FACTOR * self._step(finding))
        if gradient >= 1.0 and _is_scaled(finding):
            update = min(update, UPDATE * math.sqrt(self._usual))
        if self._is_spread(finding, FLIP_COUNT):
            update = 0.0
        return ERROR_GROWTH * self._errors[key] + max(update, self._rounding(finding))

    def _before(self, key: _Key) -> Optional[_Figures]:
        """The figures of a parameter in the earlier step, if they were known."""
        found = _Figures(*self._earlier[self._rows.get(key, -1)].tolist())
        return None if math.isnan(found.norm) else found

    @property
    def unproven(self) -> float:
        """The largest error from parameters that statistics do not prove."""
        return UPDATE * math.sqrt(self._usual)

    def _one_sign(self, finding: Finding) -> float:
        """The error of one element whose gradient has the opposite sign: two steps, if one in ten such parameters is
        expected to have such an element."""
        elements = scale_of(finding).elements
        if not elements or not self._may_flip(finding):
            return 0.0
        return min(UPDATE, 2.0 * self._step(finding)) / math.sqrt(elements)

    def _rounding(self, finding: Finding) -> float:
        """One round-off of a parameter that the golden updated: the update rounds what it writes."""
        before, now = self._before(_key(finding.pair)), _figures_of(finding)
        return round_off_of(finding.pair) if before is not None and now is not None and before != now else 0.0

    def _step(self, finding: Finding) -> float:
        """The relative length of one optimizer step of a parameter: as far as the golden's statistics show that it
        moved, or as most parameters moved, whose gradients are not noise; infinity if unknown."""
        before, now = self._before(_key(finding.pair)), _figures_of(finding)
        if before is None or now is None or before.elements != now.elements or not now.norm:
            return math.inf
        apart = (
            now.minimum - before.minimum,
            now.maximum - before.maximum,
            now.norm - before.norm,
            (now.total - before.total) / math.sqrt(now.elements),
        )
        return max(self._usual_step, *map(abs, apart)) * math.sqrt(now.elements) / now.norm


class _Figures(NamedTuple):
    """The golden's statistics of a parameter."""

    elements: int
    minimum: float
    maximum: float
    total: float
    norm: float


def _figures(findings: Sequence[Finding], at: Sequence[int]) -> Floats:
    """The figures of rows from values or recorded statistics; NaN if any is unknown or not finite."""
    rows, elements = _rows(findings).columns.rows[at], _elements(findings)[at]
    most, least, mean, norm = rows["figures"][:, 1].T
    found = np.stack((elements, least, most, mean * elements, norm), axis=1)
    found[~has_figures(rows, 1) | (elements <= 0.0) | ~np.isfinite(most + least + mean + norm)] = math.nan
    for place in np.flatnonzero(~has_own_figures(rows) | (rows["moments"] >= 0)).tolist():
        found[place] = _figures_of(findings[at[place]]) or math.nan
    return found


def _figures_of(finding: Finding) -> Optional[_Figures]:
    elements, moments, recorded = finding.pair.elements, finding.measurement.moments, finding.measurement.recorded(1)
    if moments is not None and 0 < elements < MOST:
        side = moments.golden
        found = _Figures(elements, side.minimum, side.maximum, side.total, math.sqrt(side.squares))
        return None if side.nan or side.inf else found
    if recorded is None or None in recorded or not 0 < elements < MOST:
        return None
    most, least, mean, norm = (float(one or 0.0) for one in recorded)
    return _Figures(elements, least, most, mean * elements, norm) if math.isfinite(most + least + mean + norm) else None


def _rows(findings: Sequence[Finding]) -> SearchRows:
    """The rows in columns, as they were judged."""
    return cast(SearchRows, findings.rows if isinstance(findings, ChangedRows) else findings)


_pairs: Callable[[Sequence[Finding]], Sequence[Pair]] = by_network(tuple)


@by_network
def _elements(pairs: Sequence[Pair]) -> Floats:
    return np.array([float(pair.elements) if pair.elements < MOST else 0.0 for pair in pairs])


class _Parameter(NamedTuple):
    """A parameter that an operator reads: its row and shape, the rows of fitting gradients that the backward of the
    operator wrote, and whether it is a bias."""

    key: _Key
    row: int
    shape: tuple[int, ...]
    fitting: tuple[int, ...]
    is_bias: bool


class _Reads(NamedTuple):
    """The tensors that operators read.

    each        all of them, with their rows; `rows`: the last row of each
    gradients   the rows of gradients, with their shapes
    averages    running statistics, with the rows of what they average
    others      those that are no parameters, with their shapes
    """

    each: list[tuple[_Key, int]]
    rows: dict[_Key, int]
    gradients: list[tuple[int, tuple[int, ...]]]
    averages: list[tuple[_Key, list[int]]]
    parameters: list[_Parameter]
    others: list[tuple[_Key, tuple[int, ...]]]

    @classmethod
    def of(cls, pairs: Sequence[Pair], nodes: Sequence[OperatorRows]) -> _Reads:
        written = [row for node in nodes if is_gradient(node.operator) for row in node.outputs]
        found = cls([], {}, [(row, pairs[row].golden_shape) for row in written], [], [], [])
        backward = {node.operator.call: node.outputs for node in nodes if node.operator.phase == "backward"}
        for node in nodes:
            statistics, contracts = running_statistics(node.operator), op_type_of(node.operator).has("contracts")
            for row in node.inputs:
                pair, key, shape = pairs[row], _key(pairs[row]), pairs[row].golden_shape
                found.each.append((key, row))
                if pair.slot in statistics:
                    found.averages.append((key, [at for at in node.inputs if not is_parameter(pairs[at])]))
                if is_parameter(pair):
                    # The order of the outputs of a backward differs from that of the forward's inputs.
                    fitting = (at for at in backward.get(node.operator.call, ()) if pairs[at].golden_shape == shape)
                    is_bias = contracts and len(shape) == 1
                    found.parameters.append(_Parameter(key, row, shape, tuple(fitting), is_bias))
                else:
                    found.others.append((key, shape))
        found.rows.update(found.each)
        return found


def _reads_of(rows: SearchRows) -> _Reads:
    found: _Reads = made_once(rows.network.columns, (_Reads.of,), rows.network.pairs, rows_of_operators(rows))
    return found


@by_network
def _parameters(pairs: Sequence[Pair]) -> list[int]:
    return [row for row, pair in enumerate(pairs) if is_parameter(pair)]


@by_network
def _updated_alone(pairs: Sequence[Pair]) -> list[int]:
    """The rows of what an in-place operator of one run alone reads where it writes."""
    return [row for row, pair in enumerate(pairs) if (pair.target_op is None) != (pair.golden_op is None)
            and pair.slot == "input:0" and op_type_of(pair.operator).has("in place")]  # fmt: skip


def _is_scaled(finding: Finding) -> bool:
    """Whether one factor makes up the error of a parameter, which noise of a gradient does not cause. The share is at
    least WHOLE, and for few elements exceeds the share that a random direction reaches with probability CHANCE."""
    elements, moments = finding.pair.elements, finding.measurement.moments
    if elements <= 2:
        return False
    if moments is not None:
        gain, by_chance = gain_of(finding), math.sqrt(1.0 - CHANCE ** (2.0 / (elements - 1)))
        return gain > -COMMON_SHARE and abs(gain) >= max(COMMON_SHARE, by_chance) * proven_size(finding) > 0.0
    x, y = (finding.measurement.recorded(side) or Statistics() for side in range(2))
    factors = [a / b - 1.0 for a, b in ((x.norm, y.norm), (x.max, y.max), (x.min, y.min)) if a is not None and b]
    close = len(factors) == 3 and max(factors) - min(factors) <= (1.0 - COMMON_SHARE) * abs(factors[0])
    return close and factors[0] > -COMMON_SHARE


def _common_factor(parameters: Sequence[Finding]) -> float:
    """The common factor of all parameters, minus 1; 0 if noise would give it or nothing is known.

    Only parameters with one type on both sides count: a coarser type loses small changes of an update. A parameter that
    differs by about its own size, and not by a factor, is another one, such as the weight of another expert.
    """
    found: dict[tuple[float, float], tuple[float, float]] = {}  # each tensor counts once
    for one in parameters:
        moments, kinds = one.measurement.moments, float_types(one.pair)
        if moments is None or moments.mismatched or moments.compared < AVERAGED_ELEMENTS or len(kinds) != 1:
            continue
        size = proven_size(one)
        if size >= COMMON_SHARE and abs(gain_of(one)) < COMMON_SHARE * size:
            continue
        if away := deviations_of(one):
            found[moments.xy, moments.yy] = gain_of(one), away
    if len(found) < PARAMETER_COUNT:
        return 0.0
    factors, deviations = sorted(one for one, _ in found.values()), [one for _, one in found.values()]
    above, middle = sum(one > 0 for one in factors) / len(factors), factors[len(factors) // 2]
    is_noise = (
        abs(sum(deviations)) < FACTOR_DEVIATIONS * math.sqrt(len(deviations)) or max(above, 1.0 - above) < COMMON_SHARE
    )
    return 0.0 if is_noise or abs(middle) <= FACTOR * SINGLE else middle


def _errors_of(findings: Sequence[Finding]) -> tuple[_Errors, _Errors, list[float]]:
    """The proven error of each row (for statistics, whose proof is a lower bound, the likely error if larger), its size
    as that of a gradient, and the known finite errors in order. Statistics may agree by chance: gradients have at least
    the usual error."""
    from npucmp.localise.stat_columns import shifts_of_rows

    columns, likely = _rows(findings).columns, shifts_of_rows(_rows(findings)).likely
    error, bound = np.where(has_error(columns), columns.rows["error"], math.nan), columns.rows["bound"]
    is_open = np.isnan(error)
    error[is_open & has_error(columns)] = math.inf
    known = np.where(~np.isnan(bound) & is_open, np.maximum(bound, likely), error)
    finite = np.sort(known[np.isfinite(known)]).tolist()
    of_gradients = np.where(np.isnan(bound), known, np.maximum(known, _usual_of(finite)))
    every, sizes = ([None if one != one else one for one in side.tolist()] for side in (known, of_gradients))
    return every, sizes, finite


def _usual_of(known: Sequence[float]) -> float:
    return known[int(QUANTILE * (len(known) - 1))] if known else 0.0


def _contents(findings: Sequence[Finding]) -> dict[_Key, tuple[int, int]]:
    """The contents of parameters in the golden and in the target, as far as both are known."""
    pairs = _pairs(findings)
    rows = [row for row in _parameters(findings) if not is_output(pairs[row])]
    both = zip(contents_at(findings, rows), contents_at(findings, rows, 0))
    found = {_key(pairs[row]): contents for row, contents in zip(rows, both)}
    return {key: contents for key, contents in found.items() if all(contents)}


def _broken_ties(before: Mapping[_Key, tuple[int, int]], now: Mapping[_Key, tuple[int, int]]) -> dict[_Key, str]:
    """Another operator that reads the same tensor in the golden, and in the target did before and does not now, by
    parameter."""
    readers: dict[int, list[_Key]] = defaultdict(list)
    for key, (golden, _) in now.items():
        if key in before:
            readers[golden].append(key)
    found = {}
    for keys in readers.values():
        for key in keys:
            others = (one for one in keys if before[one] == before[key] and now[one] != now[key])
            if (other := next(others, None)) is not None:
                found[key] = other[0]
    return found


def _key(pair: Pair) -> _Key:
    return pair.operator.name, pair.slot


def _mark_of(finding: Finding, side: int) -> Hashable:
    """The side, the shape and the recorded figures of a tensor; None if they do not identify it."""
    tensor, recorded = (finding.pair.target, finding.pair.golden)[side], finding.measurement.recorded(side)
    if tensor is None or recorded is None or None in recorded or recorded.max == recorded.min:
        return None
    return side, tensor.shape, recorded


TYPES = dict(zip(SHORT_BITS, ("bfloat16", "float16")))
ROUNDED = 1.001  # times the round-off of the type: definition: one rounding to the nearest, with room for a float32


def rounded_parameters(findings: Sequence[Finding]) -> tuple[frozenset[int], list[Evidence]]:
    """Return the rows of parameters that are rounded alike, and the evidence; empty if they are fewer than nine of ten
    of the differing parameters, or fewer than SEVERAL."""
    differing = [one for one in findings if one.verdict is Verdict.DIVERGED and is_parameter(one.pair)]
    found: dict[tuple[str, str], set[int]] = {}
    for one in differing:
        if (key := _rounding(one)) is not None:
            found.setdefault(key, set()).add(one.row)
    (dtype, run), rows = max(found.items(), key=lambda item: len(item[1]), default=(("", ""), set[int]()))
    if len(rows) < max(PARAMETER_COUNT, COMMON_SHARE * len(differing)):
        return frozenset(), []
    number = f"all {len(rows)}" if len(rows) == len(differing) else f"{len(rows)} of {len(differing)}"
    words = "{number} parameters that differ are rounded to {dtype} in the {run} only, which stores them in that type"
    return frozenset(rows), [reason("rounded parameters", words, number=number, dtype=dtype, run=run)]


def _rounding(finding: Finding) -> Optional[tuple[str, str]]:
    """The 16-bit type to which one side is rounded, and that run; None for other differences."""
    moments = finding.measurement.moments
    if moments is None or moments.mismatched or moments.compared < MIN_ELEMENTS:
        return None
    for run, side, other in (("target", moments.target, moments.golden), ("golden", moments.golden, moments.target)):
        for bits, name in TYPES.items():
            dtype = lookup(name)
            if (
                dtype is not None
                and 0 < side.bits <= bits < other.bits
                and moments.max_rel <= ROUNDED * dtype.round_off
            ):
                return name, run
    return None
