"""What msprobe saves of MindSpore's graphs: names, folders, order, damage, and a fault that is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp import open_runs
from npucmp.dump.formats import saved
from tests.contracts import FormatContract
from tests.dump.formats.three import second_is_first, three

NAMES = ("product", "bent", "z_grad")


def put(folder, name, values) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / name, values)


def write_saved(folder, wrong=False, steps=(0,)) -> Path:
    """As save and save_grad write it: {dir}/step0/rank0/x_float32_0.npy."""
    for step in steps:
        for number, (name, one) in enumerate(zip(NAMES, three(wrong))):
            put(Path(folder, f"step{step}", "rank0"), f"{name}_float32_{number}.npy", one.outputs[0])
    return Path(folder)


def write_single(folder, wrong=False, micro=("",)) -> Path:
    for tag, one in zip(("a_product", "b_bent", "c_sum"), three(wrong)):
        for part in micro:
            place = Path(folder, "data", tag, "step3", "rank1", part)
            put(place, f"{tag}.npy", one.outputs[0])
            (place / f"{tag}.json").write_text('{"data": {"max": 1, "shape": [6, 8]}}')
    Path(folder, "configurations.json").write_text("{}")
    return Path(folder)


def opened(folder):
    (run,) = open_runs(folder)
    return run


class TestSaved(FormatContract):
    module = saved

    def write(self, folder):
        return write_saved(folder / "d")


class TestSingleSave(FormatContract):
    module = saved

    def write(self, folder):
        return write_single(folder / "d", micro=("micro_step0", "micro_step1"))


def test_the_wrong_variable_comes_first(tmp_path):
    """What reads it is not known, so that no cause but UNKNOWN is told."""
    report = second_is_first(write_saved(tmp_path / "t", wrong=True), write_saved(tmp_path / "g"), "UNKNOWN")
    assert report.roots[0].pair.operator.name == "bent"


def test_single_saves_are_compared_by_tag(tmp_path):
    target, golden = write_single(tmp_path / "t", wrong=True), write_single(tmp_path / "g")
    report = npucmp.compare(target, golden)
    assert [one.verdict.value for one in report.findings] == ["match", "diverged", "diverged"]
    assert npucmp.compare(golden, golden).exit_status == 0


def test_numbers_are_the_order_where_no_two_are_one(tmp_path):
    place = tmp_path / "d" / "step0" / "rank0"
    for name in ("z_float32_0.npy", "a_Float16_1.npy", "z_float32_2.npy"):
        put(place, name, np.zeros(3, np.float32))
    run = opened(tmp_path / "d")
    assert [op.name for op in run.operators] == ["z", "a", "z"] and run.ordered and run.notes == ()
    put(place, "a_grad_float32_1.npy", np.zeros(3, np.float32))
    run = opened(tmp_path / "d")
    assert [(op.name, op.phase) for op in run.operators] == [("a", ""), ("a_grad", "backward"), ("z", ""), ("z", "")]
    assert not run.ordered and "the files do not record it" in run.notes[0]


def test_the_type_in_a_name_is_what_was_computed_in(tmp_path):
    put(tmp_path / "step0" / "rank0", "x_bfloat16_0.npy", np.zeros(3, np.float32))
    assert opened(tmp_path).operators[0].tensors[0].dtype == "bfloat16"


@pytest.mark.parametrize("given", ["", "step1", "step1/rank0", "step1/rank0/bent_float32_1.npy"])
def test_steps_and_any_part_of_the_tree(tmp_path, given):
    runs = open_runs(write_saved(tmp_path / "d", steps=(0, 1, 10)) / given)
    assert [(run.step, run.rank) for run in runs] == ([(0, 0), (1, 0), (10, 0)] if not given else [(1, 0)])
    assert "bent" in {op.name for op in runs[0].operators}


def test_micro_steps_and_parts_of_a_tag(tmp_path):
    write_single(tmp_path / "d", micro=("micro_step10", "micro_step2"))
    put(tmp_path / "d" / "data" / "b_bent" / "step3" / "rank1" / "micro_step2", "b_bent.1.npy", np.zeros(2))
    run = opened(tmp_path / "d")
    assert [op.name for op in run.operators] == [
        f"{tag}.micro_step{k}" for k in (2, 10) for tag in ("a_product", "b_bent", "c_sum")
    ]
    assert [t.slot for t in run.operators[1].tensors] == ["output:0", "output:1"]
    assert (run.step, run.rank, run.ordered) == (3, 1, False)


@pytest.mark.parametrize(
    "folder, name",
    [
        ("step0", "x_float32_0.npy"),
        ("step0/rank0", "x.npy"),
        ("step0/rank0", "x_float_0.npy"),
        ("step0/rank0", "x_float32_0.pt"),
        ("stepx/rank0", "x_float32_0.npy"),
        ("data/tag/step0/rank0", "x_float32_0.npy"),
        ("step0/rank0/more", "x_float32_0.npy"),
        ("step0/rank0", "x_float32_" + "9" * 200 + ".npy"),
    ],
)
def test_other_files_are_none(tmp_path, folder, name):
    place = tmp_path / folder
    place.mkdir(parents=True)
    (place / name).write_bytes(b"1")
    assert saved.sniff(tmp_path) is False


@pytest.mark.parametrize("name", ["=1+1", "\x1b[31m", "a b", "..", "७", "x_float32_0", "-"])
def test_odd_names_are_variables(tmp_path, name):
    place = write_saved(tmp_path / "d") / "step0" / "rank0"
    put(place, f"{name}_float32_7.npy", np.zeros(2))
    assert opened(tmp_path / "d").operators[-1].name == name


def test_every_prefix_is_an_unreadable_tensor_and_others_are_told(tmp_path):
    file = write_saved(tmp_path) / "step0" / "rank0" / "bent_float32_1.npy"
    data = file.read_bytes()
    for size in range(0, len(data), 11):
        file.write_bytes(data[:size])
        assert opened(tmp_path).operators[1].tensors[0].problem
    (file.parent / "more.raw").write_bytes(b"1")
    assert "more.raw" in opened(tmp_path).notes[0]
