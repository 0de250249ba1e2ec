"""Which runs a dump has is told without reading them, and says what reading all of them says."""

from pathlib import Path

import numpy as np
import pytest

from npucmp import open_runs
from npucmp.dump.formats import heads, msprobe, open_head
from npucmp.dump.limits import ANYWHERE
from npucmp.errors import DumpError
from npucmp.workflows.select_runs import RunSelection
from tests.synthetic import write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
FOLDERS = sorted(one for one in SAMPLES.glob("*/*") if one.is_dir())


@pytest.mark.few(15)
@pytest.mark.parametrize("path", FOLDERS, ids=[f"{one.parent.name}-{one.name}" for one in FOLDERS])
def test_heads_are_those_of_the_runs(path):
    runs, found = open_runs(path), heads(path)
    assert [(one.format, one.step, one.rank, one.path) for one in found] == [
        (run.format, run.step, run.rank, run.path) for run in runs
    ]
    assert [open_head(one) for one in found] == runs


@pytest.fixture
def many(tmp_path):
    for step in (10, 9):
        for rank in (1, 0):
            write_run(tmp_path, {"Torch.exp.0.forward": {"in": [np.ones(3)], "out": [np.ones(3)]}}, step, rank)
    return tmp_path


def test_no_record_is_read_for_a_head(many, monkeypatch):
    monkeypatch.setattr(msprobe, "read_bytes", lambda *_: pytest.fail("read"))
    assert [(one.step, one.rank) for one in heads(many)] == [(9, 0), (9, 1), (10, 0), (10, 1)]


def test_runs_that_are_not_meant_are_not_opened(many, monkeypatch):
    whole = {(run.step, run.rank): run for run in open_runs(many)}
    load, read = msprobe.read_bytes, []
    monkeypatch.setattr(msprobe, "read_bytes", lambda path, *more: [read.append(path), load(path, *more)][1])
    found = RunSelection(step="9", rank="1").runs(many, ANYWHERE)
    assert found == [whole[9, 1]]
    assert {path.parent for path in read} == {many / "step9/rank1"}


def test_one_that_is_broken_is_a_run_with_a_problem(many):
    (many / "step9/rank1/dump.json").write_text("{")
    assert [bool(open_head(one).problem) for one in heads(many)] == [False, True, False, False]


def test_several_dumps_of_one_step_and_rank_are_refused(many):
    for folder in ("a", "b"):
        write_run(many / folder, {"Torch.exp.0.forward": {"in": [np.ones(3)], "out": [np.ones(3)]}}, 0, 0)
    with pytest.raises(DumpError, match="several dumps of one step and rank"):
        heads(many)
