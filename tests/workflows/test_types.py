"""Tensors of two types: what can be compared is compared exactly, and what cannot is never agreement."""

from __future__ import annotations

import csv
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as command
from tests.dump.formats.test_safetensors import packed
from tests.synthetic import write_run

random = np.random.default_rng(0)
COUNT = np.arange(64).astype(np.int32)
NORMAL = random.standard_normal((64, 64)).astype(np.float32)
STEPS = np.clip(np.round(NORMAL / 0.02), -128, 127).astype(np.int8)


def finding(folder, target, golden):
    """(exit status, the finding on the only output of the run)."""
    for side, values in (("target", target), ("golden", golden)):
        write_run(folder / side, {"Torch.mystery.0.forward": {"out": [values]}})
    report = npucmp.compare(folder / "target", folder / "golden", jobs=1)
    return report.exit_status, report.findings[0]


OTHERS = {  # whole numbers of one run, floats of the other, which are no map of them
    "off by 0.4": (COUNT, COUNT + 0.4),
    "reversed": (COUNT[::-1], COUNT.astype(float)),
    "shuffled": (random.permutation(COUNT), COUNT.astype(float)),
    "of the other sign": (COUNT, -3.7 * COUNT),
    "one off by 1": (np.where(COUNT == 5, 6, COUNT), COUNT.astype(float)),
    "one off by 3": (np.where(COUNT == 5, 8, COUNT), COUNT.astype(float)),
    "whole numbers against a constant": (COUNT, np.full(64, 3.0)),
    "rows of a quantised tensor shuffled": (random.permutation(STEPS), NORMAL),
    "a quantised tensor of the other sign": (-STEPS, NORMAL),
    "a quantised tensor that wrapped around": (STEPS.astype(np.uint8), NORMAL),
    "labels": (random.integers(0, 10, (64, 64)).astype(np.int32), NORMAL),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_whole_numbers_that_are_no_steps_of_the_floats_diverge(tmp_path, name, swapped):
    whole, floats = OTHERS[name]
    pair = np.ascontiguousarray(whole), floats.astype(np.float32)
    status, found = finding(tmp_path, *(pair[::-1] if swapped else pair))
    assert (status, found.verdict.value) == (1, "diverged")


MAPS = {  # some scale above 0 and some offset make the floats of the whole numbers
    "off by 1.4": (COUNT, COUNT + 1.4),
    "scaled": (COUNT, 3.7 * COUNT - 5),
    "symmetric": (STEPS, NORMAL),
    "asymmetric": (np.clip(np.round(NORMAL / 0.03) + 100, 0, 255).astype(np.uint8), NORMAL),
    "of 4 bits": (np.clip(np.round(NORMAL / 0.4), -8, 7).astype(np.int8), NORMAL),
    "a scale for each column": (
        np.clip(np.round(NORMAL / 0.02), -128, 127).astype(np.int8),
        NORMAL * np.exp(random.standard_normal(64) / 2),
    ),
    "clipped": (np.clip(np.round(NORMAL / 0.005), -128, 127).astype(np.int8), NORMAL),
    "sums of products": ((STEPS.astype(np.int32) @ STEPS.astype(np.int32)), NORMAL @ NORMAL),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_steps_of_unknown_size_are_undecided(tmp_path, name, swapped):
    whole, floats = MAPS[name]
    pair = whole, floats.astype(np.float32)
    status, found = finding(tmp_path, *(pair[::-1] if swapped else pair))
    assert (status, found.verdict.value) == (2, "dtype")


@pytest.mark.parametrize("other", [np.float32, np.float64, np.int32, np.bool_])
def test_complex_and_real_numbers_cannot_be_compared(tmp_path, other):
    x = np.arange(1, 9)
    for number, pair in enumerate([(x.astype(np.complex64), x.astype(other)), (x.astype(other), x.astype("c8"))]):
        status, found = finding(tmp_path / str(number), *pair)
        assert (status, found.verdict.value) == (2, "dtype")


def test_booleans_are_the_numbers_0_and_1(tmp_path):
    above = NORMAL > 0
    assert finding(tmp_path / "same", above, above.astype(np.float32))[0] == 0
    assert finding(tmp_path / "other", above, (~above).astype(np.float32))[0] == 1


# Beyond 2^53

BEYOND = 2**53 + np.array([0, 1, 3, 1024, 2**60 + 1, 2**61 + 513])
LONG = ("int64", "uint64")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("floats", ["float32", "float64"])
@pytest.mark.parametrize("whole", LONG)
def test_whole_numbers_beyond_what_a_float_holds_are_no_equal_values(tmp_path, whole, floats, swapped):
    x = BEYOND.astype(whole)
    y = x.astype(floats)
    apart = max(abs(Fraction(int(a)) - Fraction(float(b))) for a, b in zip(x, y))
    same = sum(Fraction(int(a)) == Fraction(float(b)) for a, b in zip(x, y))
    status, found = finding(tmp_path, *((y, x) if swapped else (x, y)))
    assert (status, found.verdict.value, found.measurement.moments.max_abs) == (1, "diverged", float(apart))
    assert found.measurement.moments.equal == same < len(x)


@pytest.mark.parametrize("whole", LONG)
@pytest.mark.parametrize("floats", ["float32", "float64"])
def test_whole_numbers_that_a_float_holds_are_equal_values(tmp_path, whole, floats):
    x = np.array([0, 2**53, 2**60 + 2**40, 2**62], whole)
    status, found = finding(tmp_path, x, x.astype(floats))
    assert (status, found.verdict.value, found.because) == (0, "match", "equal values")


@pytest.mark.parametrize(
    "end", [(2**63 - 1, "int64"), (-(2**63), "int64"), (2**64 - 1, "uint64"), (2**64 - 2048, "uint64")]
)
def test_the_ends_of_the_range(tmp_path, end):
    value, dtype = end
    for number, floats in enumerate((float(value), np.nextafter(float(value), 0.0))):
        apart = abs(Fraction(value) - Fraction(floats))
        found = finding(tmp_path / str(number), np.full(3, value, dtype), np.full(3, floats))[1]
        assert (found.measurement.moments.max_abs, found.verdict.value) == (
            float(apart),
            "diverged" if apart else "match",
        )


@pytest.mark.parametrize("first, second", [("int64", "uint64"), ("int64", "int64"), ("uint64", "uint64")])
def test_neighbours_among_whole_numbers_of_64_bits_differ(tmp_path, first, second):
    x = BEYOND.astype(first)
    y = (BEYOND + (np.arange(6) == 2)).astype(second)
    status, found = finding(tmp_path, x, y)
    assert (status, found.verdict.value, found.measurement.moments.max_abs_exact) == (1, "diverged", 1)


@pytest.mark.parametrize("whole, floats", [("int64", "float64"), ("uint64", "float32")])
def test_rerun_diff_sees_what_a_float_cannot_hold(tmp_path, whole, floats):
    x = BEYOND.astype(whole)
    y = x.astype(floats)
    for side, values in (("a", x), ("b", y)):
        write_run(tmp_path / side, {"Torch.mystery.0.forward": {"in": [NORMAL], "out": [values]}})
    words = ["rerun-diff", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "out")]
    got = CliRunner().invoke(command, words)
    with open(tmp_path / "out" / "rerun.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    differ = [(a, b) for a, b in zip(x, y) if Fraction(int(a)) != Fraction(float(b))]
    assert got.exit_code == 1 and int(row["differing_elements"]) == len(differ)
    assert float(row["max_abs_err"]) == float(max(abs(Fraction(int(a)) - Fraction(float(b))) for a, b in differ))


UNLIKE = {
    "steps": (COUNT, (COUNT + 1.4).astype(np.float32)),
    "complex numbers": (NORMAL.astype(np.complex64), NORMAL),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_inputs_that_agree_do_not_decide_about_an_output_that_cannot_be_compared(tmp_path, name):
    for side, values in zip(("target", "golden"), UNLIKE[name]):
        write_run(tmp_path / side, {"Torch.mystery.0.forward": {"in": [NORMAL], "out": [values]}})
    assert npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1).exit_status == 2


WORDS = {"float8_e4m3fn": b'"F8_E4M3"', "float8_e5m2": b'"F8_E5M2"'}


@pytest.mark.parametrize("name", WORDS)
def test_reordered_values_of_8_bits_do_not_agree(tmp_path, name):
    """One half that is zero is off by 0.71, whatever the type."""
    import ml_dtypes

    values = NORMAL.astype(getattr(ml_dtypes, name)).view(np.uint8)
    half = np.where(np.arange(64) % 2, values, 0).astype(np.uint8)
    statuses = {}
    for number, target in enumerate((values, half, values[::-1])):
        for side, raw in (("target", target), ("golden", values)):
            file = tmp_path / str(number) / side / "model.safetensors"
            file.parent.mkdir(parents=True)
            data = packed({"tensor": np.ascontiguousarray(raw)})
            size, text = int.from_bytes(data[:8], "little"), data[8:]
            header = text[:size].replace(b'"U8"', WORDS[name])
            file.write_bytes(len(header).to_bytes(8, "little") + header + text[size:])
        folder = tmp_path / str(number)
        statuses[number] = npucmp.compare(folder / "target", folder / "golden", jobs=1).exit_status
    assert statuses == {0: 0, 1: 1, 2: 1}
