"""Measurements + rules → Findings: a verdict on each tensor pair by itself, with the reason in words.

The default rule holds rel_l2 against 8 u, u being the unit round-off of the working precision: the coarsest
float type that either run used at or before the operator. Whether an error above that limit is the operator's
own is not seen from one tensor; roots.py decides it, and takes `diverged` back where the inputs explain it.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Optional

from npucmp.dump.readers.text import read_text
from npucmp.dump.readers.toml import load_toml
from npucmp.errors import UsageError
from npucmp.judge.precision import accumulation, narrower_dtype, quantised, round_off_of, subnormal, working_round_offs
from npucmp.measure import metrics
from npucmp.model import Finding, Measurement, Moments, Pair, Tolerance, Verdict
from npucmp.model.dtypes import DTYPES, canonical, lookup

LARGEST_TABLE = 2**20  # bytes of a tolerance file
LARGEST_NOISE = 2**28  # bytes of a noise.csv: a row per tensor
CODE = re.compile(r"\\x([0-9a-f]{2})|\\u(e00[0-7][0-9a-f]|[0-9a-f]{4})")  # as reports show what is invisible
NOISE = 4.0  # times the distance of repeated runs: a few reruns see only part of the noise
FACTOR = 8.0  # limit in units of round-off; docs/localisation.md has the evidence
STATISTICS_SLACK = 2.0**-17  # recorded norms were summed in float32 in an order of their own

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
AT_LEAST = {metric.name for metric in metrics.METRICS if metric.better == "more"}


@dataclass(frozen=True)
class Rules:
    """What decides. `table` replaces the default rule where a row applies; `closeness` (a user's rtol or atol)
    replaces it everywhere."""

    table: tuple[Tolerance, ...] = ()
    closeness: bool = False
    trust_statistics: bool = False
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (operator, slot) → rel_l2 between reruns

    @property
    def by_round_off(self) -> bool:
        """Whether the default rule is in force, which alone weighs errors against those of the inputs."""
        return not self.table and not self.closeness


def judge(measurements: Iterable[Measurement], rules: Rules = Rules()) -> Iterator[Finding]:
    """One Finding per Measurement, in the same order, which must be graph order."""
    everything = list(measurements)
    for measurement, round_off in zip(everything, working_round_offs(everything)):
        yield _judge(measurement, rules, round_off)


def _judge(measurement: Measurement, rules: Rules, round_off: float) -> Finding:
    pair = measurement.pair
    if measurement.problem:
        return Finding(measurement, Verdict.UNREADABLE, measurement.problem)
    if pair.target is None or pair.golden is None:
        verdict = Verdict.UNKNOWN if pair.is_inside else Verdict.MISSING
        return Finding(measurement, verdict, pair.note)
    if measurement.unlike:
        if measurement.shapes_differ:
            return Finding(measurement, Verdict.SHAPE, measurement.unlike, math.inf)
        return Finding(measurement, Verdict.DTYPE, measurement.unlike)
    if measurement.moments is not None:
        return _by_values(measurement, measurement.moments, rules, round_off)
    return _by_record(measurement, rules, round_off)


def _by_values(measurement: Measurement, moments: Moments, rules: Rules, round_off: float) -> Finding:
    pair = measurement.pair
    error = metrics.rel_l2(moments)
    if moments.mismatched:
        return Finding(measurement, Verdict.NONFINITE, _nonfinite(moments), math.inf, metric="nonfinite_mismatch")
    if moments.equal == moments.elements:
        words = "the same bits" if len({t.dtype for t in (pair.target, pair.golden) if t}) == 1 else "equal values"
        return Finding(measurement, Verdict.MATCH, words, 0.0, FACTOR * round_off, "rel_l2")
    rule = _rule(rules, pair, moments, round_off)
    value = error if rule.metric == "rel_l2" else _value(rule.metric, moments)
    words = f"{rule.metric} {value:.2e}, limit {rule.limit:.2e}"
    dead = (not moments.xx and moments.yy) or (moments.xx and not moments.yy)
    if dead and rules.by_round_off:
        side = "target" if not moments.xx else "golden"
        return Finding(measurement, Verdict.DIVERGED, f"the {side} is all zero; {words}", error, rule.limit, "rel_l2")
    if rules.by_round_off and quantised(measurement):
        both = " against ".join(tensor.dtype for tensor in (pair.target, pair.golden) if tensor)
        return Finding(measurement, Verdict.DTYPE, f"{both}: quantised, in steps whose size the dump does not tell")
    over = value < rule.limit if rule.metric in AT_LEAST else value > rule.limit
    wanders = max(rules.noise.get((op.name, pair.slot), 0.0) for op in (pair.target_op, pair.golden_op) if op)
    if over and wanders:
        within = error <= NOISE * wanders
        words += f"; {'within' if within else 'beyond'} {NOISE:g} times its own run-to-run noise of {wanders:.2e}"
        if within:
            return Finding(measurement, Verdict.MATCH, words, error, NOISE * wanders, "noise")
    if math.isnan(value):
        return Finding(measurement, Verdict.UNKNOWN, f"{rule.metric} has no value here", None, rule.limit, rule.metric)
    verdict = Verdict.DIVERGED if over else Verdict.MATCH
    return Finding(measurement, verdict, words, error, rule.limit, rule.metric)


def _value(metric: str, moments: Moments) -> float:
    value = metrics.by_name(metric).function(moments)
    return math.nan if value is None else float(value)


def _rule(rules: Rules, pair: Pair, moments: Moments, round_off: float) -> Tolerance:
    if rules.closeness:
        return Tolerance("mismatch_ratio", 0.0, why="--rtol/--atol were given")
    for row in rules.table:
        if row.op_type in ("", pair.operator.op_type) and row.dtype in ("", narrower_dtype(pair)):
            return row
    if not round_off_of(pair):
        return Tolerance("rel_l2", 0.0, why="whole numbers are equal or not")
    return Tolerance("rel_l2", FACTOR * round_off * max(subnormal(pair, moments), accumulation(pair, round_off)))


def _nonfinite(moments: Moments) -> str:
    target, golden = moments.target, moments.golden
    return (
        f"{moments.mismatched} of {moments.elements} positions are NaN or Inf on one side only "
        f"(target {target.nan} NaN, {target.inf} Inf, golden {golden.nan} NaN, {golden.inf} Inf)"
    )


def _by_record(measurement: Measurement, rules: Rules, round_off: float) -> Finding:
    """Checksums and statistics: they can prove a difference, and only equal checksums prove equality."""
    limit = FACTOR * round_off
    if measurement.same is not None:
        if measurement.same:
            empty = measurement.pair.target is not None and 0 in measurement.pair.target.shape
            return Finding(measurement, Verdict.MATCH, "both empty" if empty else "equal checksums", 0.0, limit)
        return Finding(
            measurement, Verdict.DIVERGED, "checksums differ (the distance is not known)", math.nan, limit, "checksum"
        )
    bound: Optional[float] = measurement.bound
    if bound is None:
        return Finding(measurement, Verdict.UNKNOWN, "the dumps kept neither values nor comparable statistics")
    if math.isinf(bound):
        return Finding(measurement, Verdict.NONFINITE, "the statistics of one side only are NaN or Inf", math.inf)
    words = f"by its statistics rel_l2 is at least {bound:.2e}, limit {limit + STATISTICS_SLACK:.2e}"
    if bound > limit + STATISTICS_SLACK:
        return Finding(measurement, Verdict.DIVERGED, words, math.nan, limit + STATISTICS_SLACK, "rel_l2")
    if rules.trust_statistics:
        return Finding(measurement, Verdict.MATCH, "statistics agree, and are trusted", bound, limit, "rel_l2")
    return Finding(measurement, Verdict.UNKNOWN, "statistics agree, which proves nothing about the values")


def load_tolerances(path: Path) -> tuple[Tolerance, ...]:
    """Rows of a tolerance file, the first that fits a tensor deciding it.

    CSV with the columns metric, limit, dtype, op_type, why; or TOML with [[tolerance]] tables of these keys.
    Raises DumpError if the file cannot be read, UsageError for a row that cannot be used.
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
        raise UsageError(f"{path}: holds no tolerance; give a CSV with the columns metric,limit,dtype,op_type,why")
    return tuple(_tolerance(path, number, row) for number, row in enumerate(rows, 1))


def load_noise(path: Path) -> "dict[tuple[str, str], float]":
    """(operator, slot) → rel_l2 of a noise.csv that rerun-diff wrote.

    Raises DumpError if the file cannot be read, UsageError if it is no such table.
    """
    try:
        rows = list(csv.DictReader(read_text(path, LARGEST_NOISE).splitlines()))
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from None
    if not rows or not {"op", "slot", "rel_l2"} <= rows[0].keys():
        raise UsageError(f"{path}: not a noise.csv with the columns op, slot, rel_l2; npucmp rerun-diff -o writes one")
    found: dict[tuple[str, str], float] = {}
    try:
        for row in rows:
            noise = float(row["rel_l2"])
            if math.isfinite(noise):  # a NaN in one run only is no noise
                found.update({(op, slot): noise for op in _spellings(row["op"]) for slot in _spellings(row["slot"])})
    except (TypeError, ValueError):
        raise UsageError(f"{path}: a row without a name, or whose rel_l2 is no number") from None
    return found


def _spellings(cell: str) -> set[str]:
    r"""What may stand behind a cell: `'` may keep a spreadsheet from running it, \xNN be a control character."""
    names = {cell, cell[1:]} if cell.startswith("'") else {cell}
    return names | {CODE.sub(lambda found: chr(int(found[1] or found[2], 16)), name) for name in names}


def _tolerance(path: Path, number: int, row: object) -> Tolerance:
    cells = row if isinstance(row, dict) else {}
    name = str(cells.get("metric") or "rel_l2")
    known = [metric.name for metric in metrics.METRICS]
    if name not in known:
        raise UsageError(f"{path}: row {number}: no metric {name!r}", difflib.get_close_matches(name, known))
    try:
        limit = float(cells.get("limit", ""))
    except (TypeError, ValueError):
        limit = math.nan
    if math.isnan(limit):
        raise UsageError(f"{path}: row {number}: limit {cells.get('limit')!r:.60} is no number")
    words = {key: str(cells.get(key) or "") for key in ("op_type", "why")}
    dtype = canonical(str(cells.get("dtype") or ""))
    if dtype and lookup(dtype) is None:
        raise UsageError(f"{path}: row {number}: no dtype {dtype!r:.60}", difflib.get_close_matches(dtype, DTYPES))
    return Tolerance(name, limit, dtype, **words)
