"""`npucmp columns`: every column of a table and every key of a summary has a meaning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import npucmp
from npucmp.comparability import report as precheck
from npucmp.errors import UsageError
from npucmp.fusion import report as fusion_diff
from npucmp.health import report as check
from npucmp.measure.metrics import METRICS
from npucmp.model import STATUSES, EdgeVerdict, ReplayVerdict
from npucmp.overflows import report as overflow
from npucmp.recompute import report as replay
from npucmp.recompute import report_tables as replay_tables
from npucmp.relations.ranks import report as placements
from npucmp.report import answer_of, diff, matrix, worst_elements
from npucmp.report.columns import EVERY
from npucmp.report.json import summary
from npucmp.report.tables import ROOT_COLUMNS, TENSOR_COLUMNS
from npucmp.reruns import report as rerun_diff
from npucmp.three_runs import report as three_runs
from npucmp.token_parity import report as parity
from tests.command import npucmp as run

CLEAN = Path(__file__).parents[2] / "sample_dumps" / "msprobe_clean"
TABLES = {
    "tensors.csv": (*TENSOR_COLUMNS, *(metric.name for metric in METRICS)),
    "roots.csv": ROOT_COLUMNS,
    "matrix.csv": matrix.COLUMNS,
    "fusion.csv": fusion_diff.COLUMNS,
    "rerun.csv": rerun_diff.COLUMNS,
    "noise.csv": rerun_diff.NOISE_COLUMNS,
    "overflow.csv": overflow.COLUMNS,
    "replay.csv": replay.COLUMNS,
    "worst.csv": worst_elements.COLUMNS,
    "edges.csv": replay_tables.EDGES,
    "gaps.csv": replay_tables.GAPS,
    "diff.csv": diff.COLUMNS,
    "placements.csv": placements.PLACEMENTS,
    "health.csv": check.HEALTH,
    "checks.csv": check.CHECKS,
    "parameters.csv": check.PARAMETERS,
    "precheck.csv": precheck.COLUMNS,
    "inputs.csv": precheck.INPUTS,
    "curves.csv": precheck.CURVES,
    "parity.csv": parity.COLUMNS,
    "candidates.csv": parity.CANDIDATES,
    "three_runs.csv": three_runs.COLUMNS,
}


def names_of(table):
    return {name for column in table.columns for name in column.names}


def test_every_column_has_a_meaning():
    tables = {table.name: table for table in npucmp.columns()}
    everywhere = names_of(tables[EVERY])
    lacking = {name: {*TABLES[name]} - names_of(tables[name]) - everywhere for name in TABLES}
    assert {name: found for name, found in lacking.items() if found} == {}
    assert all(column.meaning for table in tables.values() for column in table.columns)


def test_every_key_of_the_summary_has_a_meaning():
    report = npucmp.compare(CLEAN / "target", CLEAN / "golden")
    keys = summary(answer_of(report)).keys() | summary(answer_of(replace(report, comparisons=report.comparisons * 2)))
    (table,) = npucmp.columns("summary.json")
    assert {"begins", "peers"} <= keys and not keys - names_of(table)


def test_every_status_and_verdict_of_a_replay_is_explained():
    (table,) = npucmp.columns("replay")
    (edges,) = npucmp.columns("edges")
    text = " ".join(column.meaning for column in (*table.columns, *edges.columns))
    verdicts = (verdict.value for verdict in (*ReplayVerdict, *EdgeVerdict))
    assert [word for word in (*STATUSES, *verdicts) if f"`{word}`" not in text] == []


def test_a_name_is_a_table_a_column_or_a_glob():
    assert [table.name for table in npucmp.columns(["roots", "max_ul*"])] == ["roots.csv", "tensors.csv", "rerun.csv"]
    assert [table.name for table in npucmp.columns("candidates.csv")] == ["candidates.csv"]
    with pytest.raises(UsageError, match=r"no table or column 'rooots.csv'; nearest: roots.csv"):
        npucmp.columns("rooots.csv")


def test_the_command_prints_and_writes_json():
    got = run("columns", "noise.csv")
    assert got.returncode == 0 and got.stdout.startswith("noise.csv: one row per tensor")
    assert "roots.csv" in run("columns").stdout
    found = json.loads(run("columns", "max_ulp", "--json").stdout)
    assert found["command"] == "columns" and found["tables"][0]["columns"][0]["names"] == ["max_ulp"]
    assert run("columns", "rooots.csv").returncode == 2
