"""What a reader is told besides: slips in the paths, NaN on both sides, types that differ."""

import os
import shutil

import numpy as np
import pytest

import npucmp
from tests.synthetic import chain, write_run

SAME = "target and golden are the same dump"


def notes(*paths, **options):
    report = npucmp.compare(*paths, **options)
    return [*report.notes, *(note for one in report.comparisons for note in one.notes)]


def test_a_dump_against_itself_is_told_by_whatever_path(tmp_path):
    one = write_run(tmp_path / "one", chain())
    assert notes(one, one) == notes(one, tmp_path / "." / "one" / "step0") == [SAME]
    (tmp_path / "link").symlink_to(one)
    assert notes(tmp_path / "link", one) == [SAME]
    shutil.copytree(one, tmp_path / "hard", copy_function=os.link)
    assert notes(tmp_path / "hard", one) == [SAME]
    shutil.copytree(one, tmp_path / "copy")
    assert notes(tmp_path / "copy", one) == []
    assert "run 2 and run 1 are the same dump" in npucmp.rerun_diff([one, one]).notes


def test_another_step_or_rank_than_on_the_other_side_is_told(tmp_path):
    for step, rank in ((0, 0), (1, 1)):
        write_run(tmp_path / f"{step}", chain(), step, rank)
    words = "step 0 rank 0 is compared with step 1 rank 1"
    assert notes(tmp_path / "0", tmp_path / "1") == [words]
    assert (
        words.replace("0", "?").replace("1", "0").replace("?", "1")
        in npucmp.rerun_diff([tmp_path / "0", tmp_path / "1"]).notes
    )
    write_run(tmp_path / "none", chain(), 0)
    assert notes(tmp_path / "0", tmp_path / "none") == []


@pytest.mark.parametrize("count", [1, 2])
def test_nan_in_both_runs_is_told_with_the_first_operator(tmp_path, count):
    x = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    run = {f"Torch.log.{i}.forward": {"in": [np.ones((2, 2), np.float32)], "out": [x]} for i in range(count)}
    hold = "1 tensor holds" if count == 1 else "2 tensors hold"
    found = notes(write_run(tmp_path / "a", run), write_run(tmp_path / "b", run))
    assert found == [
        f"{hold} NaN in both runs, the first at Torch.log.0.forward output:0: npucmp overflow tells where they are born"
    ]


def typed(half, off=0.0):
    """A chain whose first outputs are float16 on one side."""
    run = chain()
    for name in list(run)[:half]:
        y = run[name]["out"][0]
        run[name] = {**run[name], "out": [(y * (1 + off)).astype(np.float16)]}
    return run


@pytest.mark.parametrize("half", [1, 3, 4])
def test_up_to_three_tensors_of_other_types_are_named(tmp_path, half):
    (note,) = notes(write_run(tmp_path / "a", typed(half)), write_run(tmp_path / "b", chain()))
    names = ": " + ", ".join(f"Functional.linear.{i}.forward output:0" for i in range(half)) if half < 4 else ""
    assert note.startswith(
        f"dtypes differ in {half} of 18 float tensors (float16 against float32){names}; the error stays"
    )


def test_an_error_that_does_not_stay_within_the_types_is_not_said_to(tmp_path):
    paths = write_run(tmp_path / "a", typed(1, 0.5)), write_run(tmp_path / "b", chain())
    (note,) = notes(*paths, rtol=2.0, atol=2.0)
    assert "stays within" not in note and "output:0; largest rel_l2 5.0e-01 = 102" in note
