"""Grades, counts, and what the sheet is held to."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.corpus import sheet
from tests.corpus.__main__ import KEPT, main
from tests.corpus.score import Result, grade
from tests.corpus.subject import Answer
from tests.corpus.tape import Address
from tests.corpus.truth import Truth

FAULT = Truth({Address(0, 0, "forward", "softmax", 1): frozenset({"BORN"})}, 100.0)
NAMES = {(0, 0, "softmax.1"): frozenset({"BORN"})}


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        (FAULT, Answer(1, "softmax.1", "BORN"), "right"),
        (FAULT, Answer(1, "softmax.1", "GAP"), "other cause"),
        (FAULT, Answer(1, "softmax.2", "BORN"), "other operator"),
        (FAULT, Answer(1, "softmax.1", "BORN", step=1), "other operator"),
        (FAULT, Answer(1, "softmax.1", "BORN", rank=1), "other operator"),
        (FAULT, Answer(1), "other operator"),
        (FAULT, Answer(2), "undecided"),
        (FAULT, Answer(-1), "other operator"),
        (FAULT, Answer(0), "missed"),
        (Truth(), Answer(0), "silent"),
        (Truth(), Answer(2), "undecided"),
        (Truth(statuses=(0, 2)), Answer(2), "silent"),
        (Truth(statuses=(0, 2)), Answer(1), "alarm"),
        (Truth(statuses=(2,)), Answer(0), "false agreement"),
        (Truth(), Answer(1, "softmax.1", "BORN"), "alarm"),
        (Truth(), Answer(-1), "alarm"),
    ],
)
def test_grades(truth, answer, expected):
    assert grade(answer, truth, {} if truth.is_clean else NAMES) == expected


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)]
)
def test_intervals_are_wilsons(hits, of, low, high):
    """Figures of the textbook's formula (Wilson 1927)."""
    assert sheet.interval(hits, of) == pytest.approx((low, high), abs=5e-4)


def results(*grades, clean=False):
    facts = dict.fromkeys((*sheet.SPLITS.values(), "variation"), "x")
    return [Result("n", "scale", facts, clean, 100.0, None, one, Answer(0), ()) for one in grades]


def test_a_sheet_that_fell_behind():
    before = sheet.as_data(sheet.tables(results("right", "right", "missed") + results("silent", clean=True)))
    assert not sheet.worse(before, before)
    after = sheet.as_data(sheet.tables(results("right", "missed", "missed") + results("alarm", clean=True)))
    told = sheet.worse(after, before)
    assert any("right 2 → 1" in line for line in told)
    assert any("missed 1 → 2" in line for line in told)
    assert any("alarm 0 → 1" in line for line in told)
    assert not sheet.worse(
        sheet.as_data(sheet.tables(results("right", "right", "right") + results("silent", clean=True))), before
    )


def test_another_number_of_pairs_is_no_improvement():
    before = sheet.as_data(sheet.tables(results("right", "right")))
    assert sheet.worse(sheet.as_data(sheet.tables(results("right", "right", "right"))), before)


@pytest.mark.parametrize("arguments", [["--cases"], ["--case", "held/1/clean"]])
def test_nobody_looks_into_held_cases(arguments):
    done = CliRunner().invoke(main, ["--seeds", "held", "--families", "1", *arguments])
    assert done.exit_code == 2
    assert "held" in done.output


def test_a_held_case_is_not_written_either(tmp_path):
    done = CliRunner().invoke(main, ["--case", "held/1/clean", "--keep", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_case_can_be_looked_into(tmp_path):
    done = CliRunner().invoke(main, ["--case", "open/1/clean", "--keep", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "golden").is_dir() and (tmp_path / "target").is_dir()


@pytest.mark.parametrize("names", [("held", "unseen"), ("real",)], ids="-".join)
def test_the_documentation_shows_the_kept_sheets(names):
    kept = {name: json.loads((KEPT.parent / f"{name}.json").read_text()) for name in names}
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    assert sheet.markdown(kept, sheet.SHOWN) in page
