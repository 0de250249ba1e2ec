"""Steps and ranks: chosen by lists and ranges, held against others by --pair, recognised in the trees of all tools."""

import numpy as np
import pytest

import npucmp
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure.executor import Serial
from npucmp.workflows.selectors import partners
from tests.synthetic import write_run

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def dump(folder, places, factor=1.0):
    for step, rank in places:
        y = X * np.float32((1 + step + 10 * rank) * factor)
        write_run(folder, {"Functional.relu.0.forward": {"in": [X], "out": [y]}}, step, rank)
    return folder


@pytest.mark.parametrize("text", ["step1", "step1=rank0", "step1=step0=step2", "=", "1=0", "step1/rank0=step0"])
def test_a_pair_names_the_same_on_both_sides(text):
    with pytest.raises(UsageError, match=r"--pair .*as in --pair step1=step0"):
        partners([text])


def test_pairs_that_contradict_each_other_are_refused():
    assert partners(["step1=step0", "step_1=step0"])[0].target.step == 1
    with pytest.raises(UsageError, match="--pair step1=step2: contradicts --pair step1=step0"):
        partners(["step1=step0", "step1=step2"])


def compared(tmp_path, targets, goldens, **options):
    report = npucmp.compare(dump(tmp_path / "t", targets), dump(tmp_path / "g", goldens), **options)
    return [((a.step, a.rank), (b.step, b.rank)) for a, b in ((one.target, one.golden) for one in report.comparisons)]


GRID = [(step, rank) for step in range(3) for rank in range(2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": "7-9"}, r"has no step 7-9; it holds step 0 rank 0, step 0 rank 1"),
        ({"pair": ["step7=step0"]}, r"pair= ?step7=step0: the target has no step 7; it holds step 0 rank 0"),
        ({"pair": ["rank1=rank9"]}, r"pair= ?rank1=rank9: the golden has no rank 9; it holds step 0 rank 0"),
    ],
)
def test_errors_name_what_was_asked_and_what_there_is(tmp_path, options, words):
    with pytest.raises(NpucmpError, match=words):
        compared(tmp_path, GRID, GRID, **options)


def test_numbers_that_no_run_has_are_told(tmp_path):
    """Of a range some are enough; one that one dump has is a run without a partner."""
    left, right = dump(tmp_path / "t", [(0, 0), (0, 1), (0, 5)]), dump(tmp_path / "g", [(0, 0), (0, 1)])
    told = [{one for one in npucmp.compare(left, right, rank=rank, step="0-99", executor=crew).notes if "--" in one}
            for rank in ("0-9", "0,5", "0,8-15,3") for crew in (None, Serial())]  # fmt: skip
    assert told == [set()] * 4 + [{"no run has rank 8-15,3, which --rank names"}] * 2
