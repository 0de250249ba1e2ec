"""What a reader is told besides: slips in the paths, NaN on both sides, types that differ."""

import json
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
    hold = "1 tensor contains" if count == 1 else "2 tensors contain"
    found = notes(write_run(tmp_path / "a", run), write_run(tmp_path / "b", run))
    assert found == [
        f"{hold} NaN in both runs, the first at Torch.log.0.forward output:0: "
        "npucmp overflow finds the operators that produce them"
    ]


def typed(half, off=0.0):
    """A chain whose first outputs are float16 on one side."""
    run = chain()
    for name in list(run)[:half]:
        y = run[name]["out"][0]
        run[name] = {**run[name], "out": [(y * (1 + off)).astype(np.float16)]}
    return run


@pytest.mark.parametrize("half", [2, 3, 4])
def test_up_to_three_tensors_of_other_types_are_named(tmp_path, half):
    (note,) = notes(write_run(tmp_path / "a", typed(half)), write_run(tmp_path / "b", chain()))
    first, *others = (f"Functional.linear.{i}.forward output:0" for i in range(half))
    names = ": " + ", ".join([first, *others]) if half < 4 else f", the first is {first}"
    assert note.startswith(
        f"dtypes differ in {half} of 18 float tensors (float16 against float32){names}; the error is within rounding"
    )


def test_other_types_of_whole_numbers_are_named_too(tmp_path):
    run = {"Torch.argmax.0.forward": {"in": [np.eye(3, dtype=np.float32)], "out": [np.arange(3, dtype=np.int32)]}}
    wide = {"Torch.argmax.0.forward": {**run["Torch.argmax.0.forward"], "out": [np.arange(3, dtype=np.int64)]}}
    found = notes(write_run(tmp_path / "a", run), write_run(tmp_path / "b", wide))
    assert found == ["dtypes differ in 1 of 1 other tensors (int32 against int64): Torch.argmax.0.forward output:0"]


def test_types_are_told_of_statistics_too(tmp_path):
    for name, dtype in (("a", "bfloat16"), ("b", "float32")):
        leaf = {"type": "torch.Tensor", "shape": [4], "Max": 2.0, "Min": -1.0, "Mean": 0.5, "Norm": 3.0}
        leaves = [{**leaf, "dtype": "torch.float32"}, {**leaf, "dtype": f"torch.{dtype}"}]
        data = {"Torch.mul.0.forward": {"input_args": leaves[:1], "input_kwargs": {}, "output": leaves[1:]}}
        (tmp_path / name).mkdir()
        whole = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (tmp_path / name / "dump.json").write_text(json.dumps(whole))
    (note,) = notes(tmp_path / "a", tmp_path / "b")
    assert note == "dtypes differ in 1 of 2 tensors (bfloat16 against float32): Torch.mul.0.forward output:0"


def test_an_error_that_does_not_stay_within_the_types_is_not_said_to(tmp_path):
    paths = write_run(tmp_path / "a", typed(1, 0.5)), write_run(tmp_path / "b", chain())
    (note,) = notes(*paths, rtol=2.0, atol=2.0)
    assert "within rounding" not in note and "output:0; largest rel_l2 5.0e-01 = 102" in note
