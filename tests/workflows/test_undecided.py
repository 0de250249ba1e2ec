"""What is too little to say that runs agree, and what a number alone in its tensor proves: dumps without values."""

from __future__ import annotations

import json

import numpy as np
import pytest

import npucmp
from tests.reports import screen
from tests.synthetic import write_run


def of_values(values):
    """What msprobe records of a tensor: of a 0-d one the value for all four figures, with its sign."""
    values = np.asarray(values, np.float64)
    if not values.size:
        figures = (None,) * 4
    elif not values.shape:
        figures = (float(values),) * 4
    else:
        figures = values.max(), values.min(), values.mean(), np.sqrt((values**2).sum())
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape)}
    return {**leaf, **dict(zip(("Max", "Min", "Mean", "Norm"), figures))}


def of_checksum(md5):
    return {**of_values(np.ones(3)), "md5": md5}


def write(folder, *leaves):
    """One operator for each tensor that it writes."""
    data = {
        f"Torch.op{i}.0.forward": {"input_args": [], "input_kwargs": {}, "output": [leaf]}
        for i, leaf in enumerate(leaves)
    }
    folder.mkdir()
    whole = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    folder.joinpath("dump.json").write_text(json.dumps(whole))
    return folder


EMPTY, SOME, CONSTANT = of_values(np.zeros((0,))), of_values([1.0, -2.0, 3.0]), of_values(np.full(4, 2.0))
TOO_LITTLE = {
    "an empty tensor beside statistics": [EMPTY, SOME, SOME],
    "a checksum beside statistics": [of_checksum("ab"), SOME, SOME, SOME],
    "statistics beside many checksums": [*map(of_checksum, "abcdef"), SOME],
    "a constant beside statistics": [CONSTANT, of_values(3.0), SOME],
    "empty tensors alone": [EMPTY, EMPTY],
    "a tensor of which nothing is recorded": [
        of_checksum("ab"),
        {**SOME, **dict.fromkeys(("Max", "Min", "Mean", "Norm"))},
    ],
}


@pytest.mark.parametrize("leaves", TOO_LITTLE.values(), ids=TOO_LITTLE)
def test_too_little_is_no_agreement(tmp_path, leaves):
    one, other = write(tmp_path / "a", *leaves), write(tmp_path / "b", *leaves)
    for report in (npucmp.compare(one, other), npucmp.rerun_diff([one, other])):
        assert report.exit_status == 2
        assert "UNDECIDED" in screen(report) and "AGREES" not in screen(report) and "SAME" not in screen(report)


def flagged(folder, *flags):
    """A dump of nan_check: no figures, a flag for each operator."""
    leaf = {"type": "torch.Tensor", "dtype": "torch.float16", "shape": [2, 3]}
    records = {
        f"Torch.matmul.{n}.forward": {"input_args": [leaf], "input_kwargs": {}, "output": [leaf], "is_nan": flag}
        for n, flag in enumerate(flags)
    }
    folder.mkdir()
    whole = {"task": "nan_check", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": records}
    folder.joinpath("dump.json").write_text(json.dumps(whole))
    return folder


def test_flags_of_nan_check_name_the_first_operator_and_prove_no_agreement(tmp_path):
    clean, faulty = flagged(tmp_path / "a", False, False, False), flagged(tmp_path / "b", False, True, True)
    for report in (npucmp.compare(faulty, clean), npucmp.compare(clean, faulty)):
        first = report.roots[0]
        assert (first.pair.operator.name, first.slot) == ("Torch.matmul.1.forward", "output:is_nan")
        assert {one.verdict.value for one in report.findings} == {"unknown", "nonfinite"}
        assert report.exit_status == 1
    for pair in ((clean, clean), (faulty, faulty)):
        assert (npucmp.compare(*pair).roots, npucmp.compare(*pair).exit_status) == ((), 2)
    event = npucmp.overflow(faulty).events[0]
    assert (event.operator.name, event.slot) == ("Torch.matmul.1.forward", "output:is_nan")
    assert (npucmp.overflow(faulty).exit_status, npucmp.overflow(clean).exit_status) == (1, 0)
    assert npucmp.overflow(flagged(tmp_path / "c", None, None)).exit_status == 2


HELD = np.linspace(1.0, 2.0, 8, dtype=np.float32)
LOW = np.array([-1e4] * 4 + [1.0, 2.0], np.float16), np.array([-1e9] * 4 + [1.0, 2.0], np.float32)
ALIKE = {
    "the same bits": (HELD, HELD, "bit for bit", "are bit-identical"),
    "zeros of another sign": (np.append(HELD, 0.0), np.append(HELD, -0.0), "the same values", "have the same values"),
    "other masks": (*LOW, "the same values except masks", "have the same values except for masks"),
}


@pytest.mark.parametrize("target, golden, how, whole", ALIKE.values(), ids=ALIKE)
def test_how_values_are_alike_is_told_as_it_is(tmp_path, target, golden, how, whole):
    """In what an operator read that bears an error, and of a run that bears none."""
    faulty, right = ({"Torch.op.0.forward": {"in": [x], "out": [HELD * by]}} for x, by in ((target, 2), (golden, 1)))
    good = npucmp.compare(
        write_run(tmp_path / "t", {"Torch.op.0.forward": {"in": [target]}}), write_run(tmp_path / "g", right)
    )
    assert f"all compared tensors {whole}\n" in screen(good)
    (root,) = npucmp.compare(write_run(tmp_path / "f", faulty), tmp_path / "g").roots
    assert (root.cause.value, root.evidence[0].sentence()) == ("BORN", f"inputs agree ({how})")
