"""Statistics that a device kept of a padded layout, against values in plain order."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp

SHAPE, CHANNELS, BLOCK = (2, 6, 6, 24), 24, 16  # NHWC; NC1HWC0 pads 24 channels to 2 blocks of 16
HEADER = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value ,Min Value ,Avg Value ,Nan Count ,"
    "Negative Inf Count ,Positive Inf Count ,l2norm"
)


def stored(values):
    """NHWC values as NC1HWC0."""
    padded = np.zeros((*values.shape[:3], -(-CHANNELS // BLOCK) * BLOCK), np.float32)
    padded[..., :CHANNELS] = values
    return padded.reshape(*values.shape[:3], -1, BLOCK).transpose(0, 3, 1, 2, 4)


def write(folder, names, values, factor=1.0):
    """One statistics file for each operator, as CANN names them; the golden as .npy."""
    (folder / "golden").mkdir(parents=True)
    (folder / "target").mkdir()
    for place, (name, one) in enumerate(zip(names, values)):
        np.save(folder / "golden" / f"{name}.0.{1763700000000000 + place}.npy", one)
        x = stored(one * (factor if place == len(names) - 1 else 1.0)).astype(np.float64)
        cells = (x.max(), x.min(), x.mean(), 0, 0, 0, np.sqrt((x * x).sum()))
        row = ["Output", 0, x.size * 4, "DT_FLOAT", "NC1HWC0", "x".join(map(str, x.shape)), x.size, *cells]
        file = folder / "target" / f"Relu.{name}.{place}.3.{1763700000000000 + place}.csv"
        file.write_text(f"{HEADER}\n{','.join(map(str, row))}\n")
    return folder / "target", folder / "golden"


@pytest.mark.parametrize("sign", ["both signs", "positive"])
def test_figures_of_a_padded_layout_are_compared_with_plain_values(tmp_path, sign):
    random = np.random.default_rng(3)
    values = [random.standard_normal(SHAPE).astype(np.float32) for _ in range(3)]
    values = [np.abs(one) for one in values] if sign == "positive" else values
    names = ["net_a_Relu", "net_b_Relu", "net_c_Relu"]
    report = npucmp.compare(*write(tmp_path / "clean", names, values))
    assert [one.verdict.value for one in report.findings] == ["unknown"] * 3
    assert (report.exit_status, report.roots) == (2, ())
    wrong = npucmp.compare(*write(tmp_path / "wrong", names, values, factor=1.5))
    assert wrong.exit_status == 1
    assert wrong.roots[0].pair.operator.name == "net_c_Relu" and wrong.roots[0].cause.value != "GAP"
