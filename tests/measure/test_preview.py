"""Values as who looks at them sees them: `npucmp show --values` and `npucmp.load`, against numpy on whole arrays."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as command
from npucmp.errors import DumpError, UnsupportedError, UsageError
from npucmp.measure import preview as peeks
from npucmp.measure.preview import corners_of, preview
from npucmp.model import Side, TensorRef
from tests.synthetic import write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
CHANCE = np.random.default_rng(5)


def tensor(folder, values):
    np.save(Path(folder, "x.npy"), values)
    return TensorRef("output:0", str(values.dtype), values.shape, str(Path(folder, "x.npy")), "npy")


def test_no_corner_of_nothing():
    assert [*corners_of((0, 3))] == []


def show(*words):
    return CliRunner().invoke(command, ["show", *map(str, words)])


SOFTMAX = SAMPLES / "msprobe_softmax" / "target", "Functional.softmax.1.forward"


@pytest.mark.parametrize("words, error", [
    (["--at", "2,0,0"], "has the shape [2, 8, 8]"),
    (["--at", "1,2"], "has the shape [2, 8, 8]"),
    (["--at", "1;2"], "needs an index, as in --at 0,3,12"),
    (["--at", "9" * 40], "needs an index"),
    (["--slot", "outputs"], "no tensor fits --slot outputs; nearest: input:0, output:0"),
])  # fmt: skip
def test_what_is_not_there_is_told(words, error):
    got = show(*SOFTMAX, *words)
    assert isinstance(got.exception, UsageError) and error in str(got.exception)


def test_values_need_a_pattern():
    assert "need a PATTERN" in str(show(SOFTMAX[0], "--values").exception)


def test_steps_are_shown_by_ranges(tmp_path):
    operators = {"Functional.relu.0.forward": {"in": [np.ones(3, np.float32)], "out": [np.ones(3, np.float32)]}}
    for step in range(4):
        write_run(tmp_path, operators, step)
    got = show(tmp_path, "*relu*", "--step", "1-2")
    assert (got.exit_code, got.output.count("step 1 "), got.output.count("step 2 "), got.output.count("step 3 ")) == (
        0,
        1,
        1,
        0,
    )
    assert npucmp.load(tmp_path, "Functional.relu.0.forward", "input:0", step=3).tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match="choose one by step= and rank="):
        npucmp.load(tmp_path, "Functional.relu.0.forward")


def test_load_gives_the_logical_array(tmp_path):
    values = CHANCE.standard_normal((4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    found = npucmp.load(tmp_path / "x.npy")
    assert np.array_equal(found, values) and found.flags.writeable and found.flags.c_contiguous
    fused = npucmp.load(SAMPLES / "msprobe_bfloat16/target", "Functional.softmax.1.forward")
    assert fused.dtype == ml_dtypes.bfloat16
    conv = SAMPLES / "cann_fused_conv/target"  # in device layouts, whose axes the graph tells
    stored = [(op, one) for run in npucmp.open_runs(conv) for op in run.operators for one in op.tensors if one.device]
    assert {one.device.layout for _, one in stored} == {"NC1HWC0", "FRACTAL_Z"}
    assert all(npucmp.load(conv, op.name, one.slot).shape == one.shape for op, one in stored[:4])


def test_load_says_what_is_wrong(tmp_path):
    with pytest.raises(UsageError, match=r"no operator 'softmax.1'; nearest: Functional.softmax.1.forward"):
        npucmp.load(SOFTMAX[0], "softmax.1")
    with pytest.raises(UsageError, match=r"has no output:1; nearest: input:0, output:0"):
        npucmp.load(*SOFTMAX, "output:1")
    with pytest.raises(UsageError, match=r"name one of 54 operators"):
        npucmp.load(SOFTMAX[0])
    with pytest.raises(DumpError, match="no such file"):
        npucmp.load(tmp_path / "none")
    with pytest.raises(UnsupportedError, match=r"no values of .* were dumped; dump with task tensor"):
        peeks.array_of(TensorRef("output:0", "float32", (2,), label="x"))


@pytest.mark.parametrize(
    "label, words", [("x.pt", "no values of x.pt were dumped"), ("", "no values of output:0 were")]
)
def test_a_tensor_without_values_has_no_preview(tmp_path, label, words):
    bare = TensorRef("output:0", "float32", (3,), label=label)
    for read in (lambda: preview(bare, Side()), lambda: peeks.array_of(bare)):
        with pytest.raises(UnsupportedError, match=words):
            read()
