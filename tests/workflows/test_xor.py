"""XOR checksums of msprobe's summary_mode xor: a difference is proven by one, equality by none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from tests.reports import screen
from tests.synthetic import chain, with_checksums, with_xor, write_run, xor_of

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.standard_normal((6, 8)).astype(np.float32)
SAME_XOR = {
    "zeros and ones": (np.zeros((4, 4), np.float32), np.ones((4, 4), np.float32)),
    "shuffled rows": (ROWS, ROWS[::-1].copy()),
    "float16 constants": (np.full((4, 16), 2, np.float16), np.full((4, 16), -7, np.float16)),
    "the same values": (ROWS, ROWS.copy()),
}


def run(folder, *arrays):
    """A chain of identities, one for each array."""
    return write_run(folder, {f"Torch.op{i}.{i}.forward": {"in": [x], "out": [x]} for i, x in enumerate(arrays)})


def rows(report):
    return [(one.verdict.value, one.measurement.same) for one in report.findings]


def said(*words):
    got = CliRunner().invoke(group, [str(word) for word in words])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    return got.exit_code, got.stdout


@pytest.mark.parametrize("target, golden", SAME_XOR.values(), ids=SAME_XOR)
def test_an_equal_xor_proves_nothing(tmp_path, target, golden):
    assert xor_of(target) == xor_of(golden)
    one, other = (with_xor(run(tmp_path / name, x)) for name, x in (("a", target), ("b", golden)))
    status, words = said("compare", one, other)
    assert status == 2 and "UNDECIDED: equal XOR checksums cannot prove agreement of 2 tensors" in words
    status, words = said("rerun-diff", one, other)
    assert status == 2 and "UNDECIDED: XOR checksums cannot prove bit equality" in words and "SAME" not in words
    for report in (npucmp.compare(one, other), npucmp.rerun_diff([one, other])):
        assert rows(report) == [("unknown", None)] * 2
        assert all("XOR" in one.because and "prove" in one.because for one in report.findings)


def edited(folder, change):
    """The dump, with every tensor's record changed in place."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in (leaf for record in dump["data"].values() for key in record for leaf in record[key]):
            if "shape" in leaf:
                change(leaf)
        file.write_text(json.dumps(dump))
    return folder


def test_figures_that_differ_contradict_equal_hashes(tmp_path):
    """A run whose max and norm are twice the golden's is no agreement, whatever its checksums say."""
    one, other = (with_checksums(write_run(tmp_path / name, chain())) for name in "ab")
    edited(one, lambda leaf: leaf.update(Max=2.0, Min=-2.0, Mean=0.0, Norm=8.0))
    edited(other, lambda leaf: leaf.update(Max=1.0, Min=-1.0, Mean=0.0, Norm=4.0))
    assert said("compare", one, other)[0] == 1 and said("rerun-diff", one, other)[0] == 1


def test_the_value_of_a_single_number_is_a_figure(tmp_path):
    """mindstudio-probe 26.2 writes the value of a 0-d tensor in the place of its XOR."""
    numbers = [np.array(value, np.float32) for value in (0.1884273737668991, 0.2)]
    one, other = (with_xor(run(tmp_path / str(x), x)) for x in numbers)
    assert '"md5": 0.1884' in next(one.rglob("dump.json")).read_text()
    report = npucmp.compare(one, other)
    assert report.exit_status == 1 and {one for one, _ in rows(report)} == {"diverged"}
    assert npucmp.compare(one, one).exit_status == npucmp.rerun_diff([one, one]).exit_status == 2


def test_which_run_stands_apart(tmp_path):
    runs = [with_xor(write_run(tmp_path / str(i), chain({2: 1.01} if i == 2 else {}))) for i in range(3)]
    assert "run 3 differs from all others" in screen(npucmp.rerun_diff(runs))
