"""rerun.csv, one row per operator that is not bit-equal in all runs, and noise.csv, one row per tensor."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from npucmp.model import Report, Rerun
from npucmp.model.stack import source_line
from npucmp.report.tables import csv_text

NAME = "rerun"
COLUMNS = tuple(
    (
        "place step rank order op op_type slot cause differing_elements max_abs_err rel_l2 max_ulp runs because stack"
    ).split(" ")
)
NOISE_COLUMNS = ("op", "slot", "rel_l2", "max_abs_err", "runs")


def render(report: Report, extra: Sequence[str] = ()) -> "dict[str, str]":
    """Both files of `npucmp rerun-diff`; nothing of other commands."""
    if report.command != "rerun-diff":
        return {}
    return {
        "rerun.csv": csv_text(COLUMNS, rerun_rows(report)),
        "noise.csv": csv_text(NOISE_COLUMNS, (row._asdict() for row in report.noise)),
    }


def rerun_rows(report: Report) -> "Iterator[dict[str, Any]]":
    """The rows of rerun.csv, the operator to look at first on top."""
    for one in report.reruns:
        operator = one.pair.golden_op or one.pair.operator
        yield {
            "place": one.place,
            "step": one.step,
            "rank": one.rank,
            "order": operator.order,
            "op": operator.name,
            "op_type": operator.op_type,
            "slot": one.slot,
            "cause": one.cause.value,
            "differing_elements": one.differing,
            "max_abs_err": one.max_abs,
            "rel_l2": one.rel_l2,
            "max_ulp": one.max_ulp,
            "runs": odd_words(one, len(report.runs)),
            "because": one.because,
            "stack": source_line(operator),
        }


def odd_words(one: Rerun, runs: int) -> str:
    """Which runs stand apart, numbered from 1 as they were given; "all" where no two agree."""
    return "all" if len(one.odd) == runs else " ".join(map(str, one.odd))
