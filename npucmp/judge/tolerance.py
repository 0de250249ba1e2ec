"""Make a Finding of a Measurement and its limit: a verdict on one tensor pair by itself, with the reason in words.

By default rel_l2 is compared with a limit that the rules of localise/rules/ make of the precision of the runs. One
tensor does not show whether an error above the limit is the operator's own: localise/search.py decides that, and
reverts `diverged` if the inputs explain the error.

NaN or infinity on one side only is an infinite error, and no rule accepts it. A tensor that is all zero on one side
only is `diverged`. Tolerances of a user (--rtol, --atol, --tolerances) replace the limits; errors of inputs then
explain nothing. With --noise, an output or input above its limit is a match if rel_l2 is at most 4 times the largest
distance of the repeated runs; its error still counts as an input error of later operators. NaN or infinity in one run
only and an output of zeros on one side are no noise, and operators whose arguments differ are judged as without
--noise.

The files of these settings are read here: tolerance tables and the noise of repeated runs. The size of each file is
bounded.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Tuple

from npucmp.dump.readers.text import load_toml, read_text
from npucmp.errors import UsageError, nearest
from npucmp.judge.precision import is_mixed, is_quantised, linear_fit, narrower_dtype, round_off_of
from npucmp.measure import metrics
from npucmp.measure.recorded_stats import SUMS_SLACK, has_equal_xor
from npucmp.model import Finding, Measurement, Moments, Pair, Tolerance, Verdict
from npucmp.model.dtypes import DTYPES, canonical, lookup
from npucmp.model.dtypes import FACTOR as FACTOR

LARGEST_TABLE = 2**20  # bytes of a tolerance file: work
LARGEST_NOISE = 2**28  # bytes of a noise.csv: work: one row per tensor
COLUMNS = ("metric", "limit", "dtype", "op_type", "why")
OF_ERRORS = {"verdict", "cause"}  # columns of tables of errors, which --noise must not read
CODE = re.compile(r"\\x([0-9a-f]{2})|\\u(e00[0-7][0-9a-f]|[0-9a-f]{4})")  # how reports show invisible characters


@dataclass(frozen=True)
class Tolerances:
    """The settings that decide a verdict. `table` replaces the default limits of the tensors to which a row applies;
    `closeness` (a user's rtol or atol) replaces all default limits."""

    table: tuple[Tolerance, ...] = ()
    closeness: bool = False
    trust_statistics: bool = False
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (operator, slot) → rel_l2 between reruns

    @property
    def by_round_off(self) -> bool:
        """Whether the default limits are in force; only these compare errors with the errors of the inputs."""
        return not self.table and not self.closeness


def load_tolerances(path: Path) -> tuple[Tolerance, ...]:
    """Read the rows of a tolerance file; the first row that applies to a tensor decides.

    CSV with the columns metric, limit, dtype, op_type, why; or TOML with [[tolerance]] tables of these keys. Raises
    DumpError if the file cannot be read, UsageError for a row that cannot be used.
    """
    text = read_text(path, LARGEST_TABLE)
    if path.suffix.lower() == ".toml":
        found = load_toml(path, text).get("tolerance")
        rows = found if isinstance(found, list) else []
    else:
        try:
            rows = list(csv.DictReader(text.splitlines()))
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}") from None
    if not rows:
        raise UsageError(f"{path}: contains no tolerance; pass a CSV with the columns {','.join(COLUMNS)}")
    if path.suffix.lower() != ".toml" and "limit" not in rows[0]:
        raise UsageError(
            f"{path}: not a table of tolerances: it has no column limit; pass a CSV with the columns "
            f'{",".join(COLUMNS)}, for example "rel_l2,1e-3,float16,softmax,measured"'
        )
    return tuple(_tolerances_tolerance(path, number, row) for number, row in enumerate(rows, 1))


def load_noise(path: Path) -> dict[tuple[str, str], float]:
    """Read a noise.csv that rerun-diff wrote: (operator, slot) → rel_l2.

    Raises DumpError if the file cannot be read, UsageError if it is not such a table.
    """
    try:
        rows = list(csv.DictReader(read_text(path, LARGEST_NOISE).splitlines()))
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from None
    if rows and rows[0].keys() & OF_ERRORS:  # a table of errors would excuse every error
        raise UsageError(
            f"{path}: is a table of errors; --noise requires the noise.csv that npucmp rerun-diff -o writes"
        )
    if not rows or not {"op", "slot", "rel_l2"} <= rows[0].keys():
        raise UsageError(f"{path}: not a noise.csv with the columns op, slot, rel_l2; npucmp rerun-diff -o writes one")
    found: dict[tuple[str, str], float] = {}
    try:
        for row in rows:
            noise = float(row["rel_l2"])
            if None in (row["op"], row["slot"]):  # a line that ends before them
                raise ValueError
            if math.isfinite(noise):  # a NaN in one run only is not noise
                found.update({(op, slot): noise for op in _spellings(row["op"]) for slot in _spellings(row["slot"])})
    except (TypeError, ValueError):
        raise UsageError(f"{path}: a row has no name, or its rel_l2 is not a number") from None
    return found


def _spellings(cell: str) -> set[str]:
    r"""Return the possible names behind a cell: a leading `'` may protect a spreadsheet, \xNN may encode a control
    character."""
    names = {cell, cell[1:]} if cell.startswith("'") else {cell}
    return names | {CODE.sub(lambda found: chr(int(found[1] or found[2], 16)), name) for name in names}


def _tolerances_tolerance(path: Path, number: int, row: object) -> Tolerance:
    cells = row if isinstance(row, dict) else {}
    name = str(cells.get("metric") or "rel_l2")
    metrics.require_metric(name, f"{path}: row {number}: no metric {name!r}")
    try:
        limit = float(cells.get("limit", ""))
    except (TypeError, ValueError):
        limit = math.nan
    if math.isnan(limit):
        raise UsageError(f"{path}: row {number}: limit {cells.get('limit')!r:.60} is not a number")
    words = {key: str(cells.get(key) or "") for key in ("op_type", "why")}
    dtype = canonical(str(cells.get("dtype") or ""))
    if dtype and lookup(dtype) is None:
        raise UsageError(f"{path}: row {number}: no dtype {dtype!r:.60}", nearest(dtype, DTYPES))
    return Tolerance(name, limit, dtype, **words)


QUANTISED = frozenset(("int8", "uint8", "int4", "uint4"))  # types of quantised values
HALF = 0.5  # distance of a float from a whole number: definition: rounding to whole numbers moves a float less
NOISE = 4.0  # distances of repeated runs: chosen: a few reruns show only part of the noise, not measured

DEFAULT_RULES = tuple(
    Tolerance(
        "rel_l2", FACTOR * row.round_off, dtype=row.name, why=f"{FACTOR:g} unit round-offs of the working precision"
    )
    for row in (
        lookup(name)
        for name in ("float64", "float32", "float16", "bfloat16", "hifloat8", "float8_e4m3fn", "float8_e5m2")
    )
    if row
)


class Limit(NamedTuple):
    """The largest rel_l2 that rounding alone may produce, and the rule that gives it."""

    value: float
    rule: str = ""


def judge(measurement: Measurement, tolerances: Tolerances, limit: Limit) -> Finding:
    """Return the Finding of one Measurement; `limit` applies if no tolerance of the user does."""
    pair = measurement.pair
    if measurement.problem:
        return Finding(measurement, Verdict.UNREADABLE, measurement.problem)
    if pair.target is None or pair.golden is None:
        return Finding(measurement, Verdict.UNKNOWN if pair.is_inside else Verdict.MISSING, pair.note)
    if measurement.unlike:
        if measurement.shapes_differ:
            return Finding(measurement, Verdict.SHAPE, measurement.unlike, math.inf, rule="shape")
        return Finding(measurement, Verdict.DTYPE, measurement.unlike)
    if measurement.moments is not None:
        return _by_values(measurement, measurement.moments, tolerances, limit)
    return _by_record(measurement, tolerances, limit)


def _by_values(measurement: Measurement, moments: Moments, tolerances: Tolerances, limit: Limit) -> Finding:
    pair = measurement.pair
    error = metrics.rel_l2(moments)
    if moments.mismatched:
        words = _nonfinite(moments)
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, 0.0, "nonfinite_mismatch", "nonfinite")
    if moments.equal == moments.elements:
        words = "the same bits" if len({t.dtype for t in (pair.target, pair.golden) if t}) == 1 else "equal values"
        return Finding(measurement, Verdict.MATCH, words, 0.0, limit.value, "rel_l2", "equal")
    if tolerances.by_round_off and (words := _vanished(pair, moments)):
        return Finding(measurement, Verdict.MATCH, words, 0.0, limit.value, "rel_l2", "subnormal")
    rule, name = _tolerance(tolerances, pair, limit, moments)
    value = error if rule.metric == "rel_l2" else _value(rule.metric, moments)
    words = f"{rule.metric} {value:.2e}, limit {rule.limit:.2e}"
    dead = (not moments.xx and moments.yy) or (moments.xx and not moments.yy)
    if dead and tolerances.by_round_off and math.isfinite(limit.value):
        side = "target" if not moments.xx else "golden"
        if moments.masked:
            places = f"{moments.compared} of {moments.elements}"
            words = f"the {side} is zero at the {places} positions that are not masked; {words}"
        else:
            words = f"the {side} is all zero; {words}"
        return Finding(measurement, Verdict.DIVERGED, words, error, rule.limit, "rel_l2", "dead")
    if tolerances.by_round_off and is_quantised(measurement):
        both = " against ".join(tensor.dtype for tensor in (pair.target, pair.golden) if tensor)
        return Finding(measurement, Verdict.DTYPE, f"{both}: quantised with a step size that the dump does not contain")
    quantised = (tensor.dtype in QUANTISED for tensor in (pair.target, pair.golden) if tensor is not None)
    if name == "whole_numbers" and not is_mixed(pair) and not any(quantised):  # ids and masks have no size
        words = f"{moments.differing:,} of {moments.elements:,} elements differ"
    over = value < rule.limit if metrics.by_name(rule.metric).better == "more" else value > rule.limit
    wanders = max(tolerances.noise.get((op.name, pair.slot), 0.0) for op in (pair.target_op, pair.golden_op) if op)
    if over and wanders:
        within = error <= NOISE * wanders
        words += f"; {'within' if within else 'beyond'} {NOISE:g} times its own run-to-run noise of {wanders:.2e}"
        if within:
            return Finding(measurement, Verdict.MATCH, words, error, NOISE * wanders, "noise", "noise")
    if math.isnan(value):
        return Finding(measurement, Verdict.UNKNOWN, f"{rule.metric} is undefined here", None, rule.limit, rule.metric)
    if over and name == "whole_numbers" and is_mixed(pair):
        fit = linear_fit(measurement)
        words += f"; correlation {fit.correlation:.2f}, no scale relates the two" if fit and fit.is_far else ""
    verdict = Verdict.DIVERGED if over else Verdict.MATCH
    return Finding(measurement, verdict, words, error, rule.limit, rule.metric, name)


def _vanished(pair: Pair, moments: Moments) -> str:
    """Return the reason in words if one side is all zero because its type rounds each number of the other to zero, as
    float16 does with an epsilon of 1e-12; "" otherwise."""
    sides = ("target", pair.target, moments.xx, moments.golden), ("golden", pair.golden, moments.yy, moments.target)
    for side, tensor, squares, other in sides:
        row = lookup(tensor.dtype) if tensor is not None else None
        largest = max(abs(other.minimum), abs(other.maximum))
        if row is not None and not squares and 0.0 < largest <= row.round_off * row.tiny:  # half the least number
            return f"the {side} is all zero: {row.name} rounds {largest:.1e} and less to zero"
    return ""


def _value(metric: str, moments: Moments) -> float:
    value = metrics.by_name(metric).function(moments)
    return math.nan if value is None else float(value)


def _tolerance(tolerances: Tolerances, pair: Pair, limit: Limit, moments: Moments) -> tuple[Tolerance, str]:
    """Return the tolerance that applies to the tensor and the name of its rule."""
    if tolerances.closeness:
        return Tolerance("mismatch_ratio", 0.0, why="--rtol/--atol were given"), "closeness"
    for row in tolerances.table:
        if applies(row, pair):
            return row, "tolerance"
    if not round_off_of(pair) or (is_mixed(pair) and moments.max_abs >= HALF):
        return Tolerance("rel_l2", 0.0, why="whole numbers are compared exactly"), "whole_numbers"
    return Tolerance("rel_l2", limit.value), limit.rule


def applies(row: Tolerance, pair: Pair) -> bool:
    """Whether a row of a user's table applies to this pair."""
    return row.op_type in ("", pair.operator.op_type) and row.dtype in ("", narrower_dtype(pair))


def _nonfinite(moments: Moments) -> str:
    target, golden = moments.target, moments.golden
    return (
        f"{moments.mismatched} of {moments.elements} positions are NaN or Inf on one side only "
        f"(target {target.nan} NaN, {target.inf} Inf, golden {golden.nan} NaN, {golden.inf} Inf)"
    )


def undecided_reason(measurement: Measurement) -> str:
    """Return the reason why no record of a pair decides its verdict."""
    if has_equal_xor(measurement.pair):
        return "equal XOR checksums, which prove nothing: constants and reordered values share them"
    return "the dumps contain neither values nor comparable statistics"


def _by_record(measurement: Measurement, tolerances: Tolerances, limit: Limit) -> Finding:
    """Judge checksums and statistics: both can prove a difference, and only equal hashes prove equality."""
    if measurement.same is not None:
        if measurement.same:
            empty = measurement.pair.target is not None and 0 in measurement.pair.target.shape
            words = "both empty" if empty else "equal checksums"
            return Finding(measurement, Verdict.MATCH, words, 0.0, limit.value, rule="equal")
        words = "checksums differ (the size of the error is unknown)"
        return Finding(measurement, Verdict.DIVERGED, words, math.nan, limit.value, "checksum", "checksum")
    bound: Optional[float] = measurement.bound
    if bound is None:
        return Finding(measurement, Verdict.UNKNOWN, undecided_reason(measurement))
    if math.isinf(bound):
        words = "only one side has NaN or Inf in its statistics"
        if all(map(math.isfinite, filter(None, (one for side in measurement.statistics if side for one in side)))):
            words = "by their statistics, the golden is all zero and the target is not"
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, rule="nonfinite")
    return Finding(measurement, *judge_bound(bound, tolerances, limit))


Judgement = Tuple[
    Verdict, str, Optional[float], float, str, str
]  # the fields of a Finding from its verdict to its rule


def judge_bound(bound: float, tolerances: Tolerances, limit: Limit) -> Judgement:
    """Judge a proven, finite lower bound of rel_l2: statistics can only prove a difference."""
    over = limit.value + SUMS_SLACK
    if bound > over:
        words = f"by the statistics, rel_l2 is at least {bound:.2e}, limit {over:.2e}"
        return Verdict.DIVERGED, words, math.nan, over, "rel_l2", limit.rule
    if tolerances.trust_statistics:
        return Verdict.MATCH, "statistics agree, and are trusted", bound, limit.value, "rel_l2", limit.rule
    return Verdict.UNKNOWN, "statistics agree, which does not prove equal values", None, 0.0, "", ""
