"""Tensors of two types: what can be compared is compared exactly, and what cannot is never agreement."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import npucmp
from tests.dump.formats.test_safetensors import packed
from tests.synthetic import write_run

random = np.random.default_rng(0)
COUNT = np.arange(64).astype(np.int32)
NORMAL = random.standard_normal((64, 64)).astype(np.float32)


def finding(folder, target, golden):
    """(exit status, the finding on the only output of the run)."""
    for side, values in (("target", target), ("golden", golden)):
        write_run(folder / side, {"Torch.mystery.0.forward": {"out": [values]}})
    report = npucmp.compare(folder / "target", folder / "golden", jobs=1)
    return report.exit_status, report.findings[0]


# Beyond 2^53


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
