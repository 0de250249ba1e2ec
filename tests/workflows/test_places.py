"""Places of roots over several steps, as roots.csv and the screen have them."""

from __future__ import annotations

import csv
import re

import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.workflows import task_choice
from tests.synthetic import chain, write_run

STEPS = 3


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Three steps of the same chain, each with one wrong operator, another in each, whose error the others pass on."""
    folder = tmp_path_factory.mktemp("places")
    for step in range(STEPS):
        write_run(folder / "golden", chain(), step, 0)
        write_run(folder / "target", chain(faults={step + 1: 1.01}), step, 0)
    return folder


def compared(*words):
    return CliRunner().invoke(npucmp, ["compare", "--no-precheck", *map(str, words)])


@pytest.mark.parametrize("apart", [False, True])
def test_places_of_suspects_are_consecutive_over_steps(dumps, tmp_path, monkeypatch, apart):
    if apart:
        monkeypatch.setattr(task_choice, "SMALL", 0)
    got = compared(dumps / "target", dumps / "golden", "-o", tmp_path / "out", "--jobs", "1")
    assert got.exit_code == 1, got.output
    with open(tmp_path / "out" / "roots.csv", newline="", encoding="utf-8") as stream:
        rows = [*csv.DictReader(stream)]
    assert [row["place"] for row in rows] == [str(place) for place in range(1, len(rows) + 1)]
    suspects = [row for row in rows if row["cause"] != "PROPAGATED"]
    assert [row["step"] for row in suspects] == [str(step) for step in range(STEPS)]
    assert rows[:STEPS] == suspects and len(rows) > STEPS
    shown = re.findall(r"^ *(\d+)  BORN ", got.output, re.MULTILINE)
    assert shown == [row["place"] for row in suspects]
