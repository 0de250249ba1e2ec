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


@pytest.mark.parametrize("kind", ["zeros and ones", "float16 constants"])
def test_recorded_figures_decide_where_the_xor_is_equal(tmp_path, kind):
    one, other = (with_xor(run(tmp_path / str(i), x), figures=True) for i, x in enumerate(SAME_XOR[kind]))
    assert {one.verdict.value for one in npucmp.compare(one, other).findings} == {"diverged"}
    for words in (("compare", one, other), ("rerun-diff", one, other)):
        assert said(*words)[0] == 1
    trusting = ("compare", one, one, "--trust-statistics")
    assert said(*trusting)[0] == 0 and said("compare", one, one)[0] == 2


@pytest.mark.parametrize("figures", [False, True])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_different_xor_proves_a_difference_and_names_the_operator(tmp_path, at, figures):
    golden = with_xor(write_run(tmp_path / "golden", chain()), figures)
    target = with_xor(write_run(tmp_path / "target", chain({at: 1.01})), figures)
    for report in (npucmp.compare(target, golden), npucmp.rerun_diff([golden, target])):
        assert report.exit_status == 1
        first = report.roots[0]
        assert (first.pair.operator.name, first.slot) == (f"Functional.linear.{at}.forward", "output:0")
        assert {root.cause.value for root in report.roots[1:]} <= {"PROPAGATED"}


def test_a_tensor_that_changes_between_two_operators_is_a_gap(tmp_path):
    """The target read another XOR than it had written."""
    golden, target = chain(), chain()
    names = list(golden)
    x = target[names[3]]["in"][0] * np.float32(1.02)
    for name in names[3:]:
        weight = target[name]["in"][1]
        target[name] = {"in": [x, weight, 1e-5], "out": [np.tanh(x @ weight)]}
        x = target[name]["out"][0]
    one, other = with_xor(write_run(tmp_path / "t", target)), with_xor(write_run(tmp_path / "g", golden))
    for report in (npucmp.compare(one, other), npucmp.rerun_diff([other, one])):
        first = report.roots[0]
        assert (first.cause.value, first.pair.operator.name, first.slot) == ("GAP", names[3], "input:0")
        assert "all tensors dumped" not in first.because
        assert f"last matching tensor: {names[2]} output:0" in first.because


@pytest.mark.parametrize("swapped", [False, True])
def test_values_against_an_xor(tmp_path, swapped):
    kept, told = write_run(tmp_path / "kept", chain()), with_xor(write_run(tmp_path / "told", chain()))
    report = npucmp.compare(*((told, kept) if swapped else (kept, told)))
    assert report.exit_status == 2 and {one for one, _ in rows(report)} == {"unknown"}
    other = with_xor(write_run(tmp_path / "other", chain({3: 1.01})))
    report = npucmp.compare(*((other, kept) if swapped else (kept, other)))
    assert report.exit_status == 1 and report.roots[0].pair.operator.name == "Functional.linear.3.forward"


def test_hashes_stay_a_proof(tmp_path):
    one, other = (with_checksums(write_run(tmp_path / name, chain())) for name in "ab")
    assert said("compare", one, other)[0] == said("rerun-diff", one, other)[0] == 0


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


@pytest.mark.parametrize("checksum", ["N/A", "None", "=cmd()", "?"])
def test_what_is_no_checksum_proves_nothing(tmp_path, checksum):
    one, other = (with_checksums(write_run(tmp_path / name, chain())) for name in "ab")
    for folder in (one, other):
        edited(folder, lambda leaf: leaf.update(md5=checksum))
    assert said("compare", one, other)[0] == said("rerun-diff", one, other)[0] == 2


def test_spelling_is_no_difference(tmp_path):
    one, other = (with_checksums(write_run(tmp_path / name, chain())) for name in "ab")
    edited(one, lambda leaf: leaf.update(md5=leaf["md5"].upper()))
    assert said("compare", one, other)[0] == 0


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


def test_a_constant_is_not_the_tensor_of_another_operator(tmp_path):
    """Zeros that one operator writes and ones that another reads have one XOR, and are no edge between the two."""
    golden = {
        "Torch.zeros.0.forward": {"in": [ROWS], "out": [np.zeros((6, 8), np.float32)]},
        "Torch.add.0.forward": {"in": [np.ones((6, 8), np.float32)], "out": [ROWS]},
    }
    target = {**golden, "Torch.add.0.forward": {"in": [golden["Torch.add.0.forward"]["in"][0]], "out": [ROWS * 3]}}
    one, other = with_xor(write_run(tmp_path / "t", target)), with_xor(write_run(tmp_path / "g", golden))
    report = npucmp.compare(one, other, precheck=False)
    assert [root.pair.operator.name for root in report.roots] == ["Torch.add.0.forward"]
    assert "Torch.zeros" not in report.roots[0].because


def test_what_a_dump_of_xor_lacks(tmp_path):
    folder = with_xor(write_run(tmp_path / "a", chain()))
    status, words = said("show", folder, "--fit", "rerun-diff")
    assert status == 1 and "prove" in words and '"summary_mode": "md5"' in words
    assert "no values, only XOR checksums" in said("show", folder, "--fit", "compare")[1]
