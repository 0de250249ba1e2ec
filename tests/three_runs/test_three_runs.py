"""compare --truth: which of two runs is further from a third one of higher precision, and where first."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.errors import UsageError
from npucmp.model import StoredComparisons
from tests.command import npucmp as command
from tests.corpus.three_runs.kernels import Fault
from tests.corpus.three_runs.sample import write_runs
from tests.recompute.craft import pair


def compared(place, *words, truth="truth"):
    known = place / truth if truth != "recompute" else truth
    return command("compare", place / "target", place / "golden", "--truth", known, "-o", place / "report", *words)


def rows(place):
    return [*csv.DictReader((place / "report" / "three_runs.csv").open())]


def summary(place):
    return json.loads((place / "report" / "summary.json").read_text())


def test_a_small_factor_is_found_where_two_runs_agree(tmp_path):
    wrong = write_runs(tmp_path, Fault("factor", 1.004))
    alone = command("compare", tmp_path / "target", tmp_path / "golden", "--recompute", "none")
    assert alone.returncode == 0 and "AGREES" in alone.stdout
    found = compared(tmp_path)
    assert found.returncode == 1 and f"WORSE: first at {wrong} output:0" in found.stdout
    assert [row["op"] for row in rows(tmp_path) if row["verdict"] == "worse"] == [wrong], "followers are not accused"
    (accused,) = summary(tmp_path)["truth"]["worse"]
    assert accused["op"] == wrong and accused["own_low"] > 1.5 and accused["vendor_level"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Error of the target over the golden&#39;s, along the network" in page and "Signed errors of all" in page


def test_another_kernel_is_no_worse(tmp_path):
    write_runs(tmp_path, steps=2)
    found = compared(tmp_path)
    assert found.returncode == 0 and "NO WORSE: no operator adds more error" in found.stdout
    outputs = [row for row in rows(tmp_path) if row["slot"].startswith("output")]
    assert {row["steps"] for row in outputs} == {"2"} and "worse" not in {row["verdict"] for row in outputs}
    assert all(float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"]) for row in outputs)


@pytest.mark.parametrize("recompute", ["auto", "none"])
def test_rounding_toward_zero_in_all_operators_of_a_kind_begins_at_the_first(tmp_path, recompute):
    wrong = write_runs(tmp_path, Fault("zero"), kind="add")
    assert compared(tmp_path, "--recompute", recompute).returncode == 1
    assert summary(tmp_path)["truth"]["worse"][0]["op"] == wrong


def test_lost_bits_of_an_accumulator(tmp_path):
    wrong = write_runs(tmp_path, Fault("bits", 8))
    assert compared(tmp_path).returncode == 1
    assert summary(tmp_path)["truth"]["worse"][0]["op"] == wrong


def test_the_golden_may_be_the_wrong_one(tmp_path):
    wrong = write_runs(tmp_path, Fault("factor", 1.05), side="golden")
    assert command("compare", tmp_path / "target", tmp_path / "golden").returncode == 1
    found = compared(tmp_path)
    assert found.returncode == 0 and f"the golden is worse at {wrong} output:0" in found.stdout
    assert summary(tmp_path)["truth"]["golden_worse"] == [wrong]
    assert summary(tmp_path)["truth"]["cleared"] and "no further from the truth than it" in found.stdout


def test_operators_against_their_own_inputs(tmp_path):
    wrong = write_runs(tmp_path, Fault("factor", 1.004))
    found = compared(tmp_path, truth="recompute")
    assert found.returncode == 1 and "float64 of the inputs that each run recorded" in found.stdout
    assert [row["op"] for row in rows(tmp_path) if row["verdict"] == "worse"] == [wrong]


@pytest.mark.parametrize("truth", ["golden", "target"])
def test_a_truth_of_16_bits_is_refused(tmp_path, truth):
    write_runs(tmp_path)
    found = compared(tmp_path, truth=truth)
    assert found.returncode == 2 and "are bfloat16 numbers, no more precise than the golden's" in found.stderr


def test_a_truth_of_another_run_decides_nothing(tmp_path):
    wrong = write_runs(tmp_path, Fault("factor", 1.5), side="truth")
    found = compared(tmp_path, "--recompute", "none")
    words = f"by the truth undecided: both runs depart from the truth alike at {wrong}"
    assert found.returncode == 0 and f"AGREES: 150 tensors compared, none diverged; {words}" in found.stdout


def test_nan_where_the_truth_is_finite(tmp_path):
    values = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    golden = {"a": values.astype(np.float16), "b": (2 * values).astype(np.float16)}
    target = {"a": golden["a"], "b": np.where(values > 2, np.nan, golden["b"]).astype(np.float16)}
    report = npucmp.compare(target, golden, truth={"a": values, "b": 2 * values})
    assert report.exit_status == 1 and report.verdict == "WORSE"
    assert report.to_dict()["truth"]["worse"][0]["op"] == "b"


def test_the_truth_may_have_other_steps(tmp_path):
    write_runs(tmp_path, steps=3)
    found = compared(tmp_path, "--step", "0,2")
    assert found.returncode == 0 and {row["steps"] for row in rows(tmp_path)} == {"2"}
    with pytest.raises(UsageError, match="it has step 7"):
        moved = tmp_path / "other"
        moved.mkdir()
        for number in (7, 8):
            (tmp_path / "truth" / f"step{number - 7}").rename(moved / f"step{number}")
        npucmp.compare(tmp_path / "target", tmp_path / "golden", truth=moved)


def test_without_a_truth_nothing_changes(tmp_path):
    write_runs(tmp_path)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert report.three_runs is None and "truth" not in report.to_dict()
    assert "three_runs.csv" not in report.files()


@pytest.mark.parametrize("fault", [None, Fault("factor", 1.004)])
def test_steps_in_tasks_of_their_own(tmp_path, monkeypatch, fault):
    """As for dumps with large records: each task opens its own runs, of the truth too."""
    write_runs(tmp_path, fault, steps=3)
    known = npucmp.compare(tmp_path / "target", tmp_path / "golden", truth=tmp_path / "truth")
    monkeypatch.setattr("npucmp.workflows.task_choice.SMALL", 0)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", truth=tmp_path / "truth", jobs=2)
    assert isinstance(report.comparisons, StoredComparisons)
    assert report.three_runs.rows == known.three_runs.rows and report.verdict == known.verdict
    report.close()


def test_an_operator_that_the_baseline_does_not_accuse(tmp_path):
    write_runs(tmp_path, Fault("factor", 1.004))
    command("compare", tmp_path / "target", tmp_path / "golden", "-o", tmp_path / "before")
    assert compared(tmp_path, "--baseline", tmp_path / "before").returncode == 1
    assert compared(tmp_path, "--baseline", tmp_path / "report").returncode == 0


def test_a_run_that_is_still_going_has_no_truth(tmp_path):
    found = command("compare", "--follow", "a", "b", "--truth", "c")
    assert found.returncode == 2 and "--truth needs all steps" in found.stderr


def test_gradients_of_other_autograd_nodes_accuse_nobody():
    """The target recorded the gradient of the cast behind its softmax: that is no larger error of the softmax."""
    folder = Path(__file__).parents[2] / "sample_dumps" / "msprobe_softmax"
    found = npucmp.compare(folder / "target", folder / "golden", truth="recompute").to_dict()["truth"]
    assert [row["op"] for row in found["worse"]] == ["Functional.softmax.1.forward"] and not found["golden_worse"]


def test_errors_far_below_a_rounding_are_alike(tmp_path):
    """Of small elements alone: neither run adds more error than a rounding may."""
    random = np.random.default_rng(21)
    table, ids = random.standard_normal((40, 8)).astype(np.float32), np.arange(32)
    given = random.standard_normal((32, 8)).astype(np.float32)
    given[:, 0] = 1e-6
    exact = np.zeros((40, 8))
    np.add.at(exact, ids, given)
    sides = []
    for units in (1, 300):
        gradient = exact.astype(np.float32)
        gradient[:32, 0] += units * np.spacing(np.float32(1e-6))
        sides.append([
            ("Functional.embedding.0.forward", [ids, table], [table[ids]]),
            ("Functional.embedding.0.backward", [given], [gradient]),
        ])  # fmt: skip
    paths = pair(tmp_path, *([(*record, {}) for record in records] for records in sides))
    found = npucmp.compare(*paths, truth="recompute").to_dict()["truth"]
    assert found["worse"] == [] and found["golden_worse"] == []
