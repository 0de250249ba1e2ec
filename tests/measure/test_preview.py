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
from npucmp.measure.pairs import measure
from npucmp.measure.preview import MOST, PARTS, corners_of, preview
from npucmp.model import Operator, Pair, Side, TensorRef
from tests.synthetic import write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
CHANCE = np.random.default_rng(5)
NAN, INF = float("nan"), float("inf")


def tensor(folder, values):
    np.save(Path(folder, "x.npy"), values)
    return TensorRef("output:0", str(values.dtype), values.shape, str(Path(folder, "x.npy")), "npy")


def seen(folder, values, at=()):
    one = tensor(folder, values)
    operator = Operator("op", "op", "op", "", 0, (one,))
    return preview(one, measure(Pair(0, "output:0", operator, None, one, None)).moments.target, at)


VALUES = {
    "floats": CHANCE.standard_normal((3, 70, 9)).astype(np.float32),
    "several blocks": CHANCE.standard_normal((3, 50_000)),
    "repeated": CHANCE.integers(-2, 3, (40, 30)).astype(np.float16),
    "whole": CHANCE.integers(-(2**40), 2**40, 77),
    "truth": CHANCE.random((4, 5)) < 0.5,
    "few": np.float32([[1.0, -2.0]]),
    "one": np.float32(3.5),
    "constant": np.full(9, 2.0),
}


@pytest.mark.parametrize("name", VALUES)
def test_extremes_spread_and_elements(name, tmp_path, monkeypatch):
    monkeypatch.setattr(peeks, "READ", 1000)
    values = VALUES[name].copy()
    flat = values.ravel()
    found = seen(tmp_path, values, [0, flat.size - 1])
    for some, sign in ((found.largest, -1), (found.smallest, 1)):
        order = np.argsort(sign * flat.astype(np.float64), kind="stable")[:MOST]
        assert some == tuple((int(at), flat[at].item()) for at in order)
    assert found.zeros == np.count_nonzero(flat == 0)
    assert sum(found.values.counts) == flat.size
    if flat.size > 1000:
        edges = np.linspace(float(flat.min()), float(flat.max()), PARTS + 1)
        assert np.abs(np.histogram(flat.astype(np.float64), edges)[0] - found.values.counts).sum() <= 2
    assert found.elements == ((0, flat[0].item()), (flat.size - 1, flat[-1].item()))


def test_what_is_not_finite_is_no_extreme(tmp_path):
    values = np.float32([NAN, 3, INF, -1, -INF, 0])
    found = seen(tmp_path, values, [2])
    assert found.largest == ((1, 3.0), (5, 0.0), (3, -1.0)) and found.smallest == found.largest[::-1]
    assert (sum(found.values.counts), found.zeros, found.elements) == (3, 1, ((2, INF),))
    assert seen(tmp_path, np.full((2, 2), NAN, np.float32)).values.counts == ()
    assert seen(tmp_path, np.empty((0, 3), np.float32)).corners == ()


@pytest.mark.parametrize("shape", [(), (4,), (9,), (2, 30), (5, 6, 7), (2, 3, 9, 11), (1, 1, 8)])
def test_corners(shape, tmp_path):
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found = seen(tmp_path, values).corners
    outer = shape[:-2]
    assert len(found) == (2 if np.prod(outer) > 1 else 1)
    for (title, rows), end in zip(found, (0, -1)):
        lead = [0 if end == 0 or length == 1 else length - 1 for length in outer]
        assert title == "[" + ", ".join([*map(str, lead), *[":"] * min(2, len(shape))]) + "]"
        block = np.atleast_2d(values[tuple(lead)])
        plain = [[one for one in row if one is not None] for row in rows]
        plain = [row for row in plain if row]
        keep = [[*range(n)] if n <= 7 else [0, 1, 2, n - 3, n - 2, n - 1] for n in block.shape]
        assert plain == block[np.ix_(*keep)].tolist()


def test_no_corner_of_nothing():
    assert [*corners_of((0, 3))] == []


def show(*words):
    return CliRunner().invoke(command, ["show", *map(str, words)])


SOFTMAX = SAMPLES / "msprobe_softmax" / "target", "Functional.softmax.1.forward"


def test_show_values():
    whole = npucmp.load(*SOFTMAX)
    assert whole.shape == (2, 8, 8) and whole.dtype == np.float32
    got = show(*SOFTMAX, "--values", "--slot", "output:*", "--at", "1,2,3", "--at", "[-1, 7, 0]", "--at", "9")
    assert got.exit_code == 0 and "input:0" not in got.output
    assert (
        f"[1, 2, 3] = {float(whole[1, 2, 3])!r}" in got.output
        and f"[1, 7, 0] = {float(whole[1, 7, 0])!r}" in got.output
    )
    assert f"[0, 1, 1] = {float(whole[0, 1, 1])!r}" in got.output
    at = [int(one) for one in np.unravel_index(whole.argmax(), whole.shape)]
    assert f"largest   {whole.max():.6g} at {at}" in got.output and got.output.count(" … ") >= PARTS
    alone = show(*SOFTMAX, "--at", "1,2,3").output
    assert "largest" not in alone and "█" not in alone and alone.count("[1, 2, 3] = ") == 2
    assert "largest" not in show(*SOFTMAX).output


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


def test_bars_of_the_histogram_are_linear_and_labelled(tmp_path):
    """A bin of a tenth of the values of the largest has a bar of a tenth of its length."""
    values = np.repeat(np.linspace(0.0, 1.0, PARTS), [600] + [60] * (PARTS - 2) + [1]).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    lines = show(tmp_path, "*", "--values").output.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "histogram: from … to, number of values" in line)
    assert "linear" in lines[at] and "60 values" in lines[at]
    counts = [int(line.split("…")[1].split()[1].replace(",", "")) for line in lines[at + 1 : at + 1 + PARTS]]
    bars = [line.count("█") for line in lines[at + 1 : at + 1 + PARTS]]
    longest = bars[0]
    assert counts == [600] + [60] * (PARTS - 2) + [1] and longest >= 20
    assert bars == [round(longest * count / 600) for count in counts]
    assert lines[at + PARTS].endswith("▏")  # one value is to be seen


@pytest.mark.parametrize(
    "label, words", [("x.pt", "no values of x.pt were dumped"), ("", "no values of output:0 were")]
)
def test_a_tensor_without_values_has_no_preview(tmp_path, label, words):
    bare = TensorRef("output:0", "float32", (3,), label=label)
    for read in (lambda: preview(bare, Side()), lambda: peeks.array_of(bare)):
        with pytest.raises(UnsupportedError, match=words):
            read()


@pytest.mark.parametrize("count", [4, 5, 6, 11])
def test_five_largest_and_smallest_elements_are_shown(tmp_path, count):
    """The first of equal ones."""
    values = np.float32([7.0, *[1.0] * (count - 1)])
    found = seen(tmp_path, values)
    assert [at for at, _ in found.largest] == [*range(min(5, count))]
    assert [at for at, _ in found.smallest] == [*range(1, count), 0][:5]
