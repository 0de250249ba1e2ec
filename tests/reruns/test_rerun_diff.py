"""npucmp rerun-diff on small runs that are nearly the same, and compare with the noise that it found."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp import rerun_diff
from npucmp.cli import npucmp as command
from npucmp.errors import UsageError
from npucmp.model import Cause
from tests.synthetic import chain, write_run

random = np.random.default_rng(11)


def rand(*shape):
    return random.standard_normal(shape).astype(np.float32)


def ulp(x, *places):
    """x with the last bit of some elements turned over."""
    y = x.copy()
    y.reshape(-1).view(np.uint32)[list(places or (0,))] ^= 1
    return y


def rerun(tmp_path, *runs, **options):
    return rerun_diff([write_run(tmp_path / f"run{i}", run) for i, run in enumerate(runs, 1)], **options)


def rows(report):
    """(operator, cause, slot, runs that stand apart) of what passes nothing on, in the order of places."""
    return [
        (one.pair.operator.name, one.cause.value, one.slot, one.odd)
        for one in report.reruns
        if one.cause is not Cause.PROPAGATED
    ]


def passed(report):
    return {one.pair.operator.name for one in report.reruns if one.cause is Cause.PROPAGATED}


def chained(at=None, places=(0,)):
    """A chain of operators; the output of number `at` has other last bits, and the rest is computed from it."""
    run = chain()
    names = list(run)
    for here, before in zip(names, [None, *names]):
        x, weight, _ = run[here]["in"]
        x = x if before is None else run[before]["out"][0]
        y = np.tanh(x.astype(np.float64) @ weight.astype(np.float64)).astype(np.float32)
        run[here] = {"in": [x, weight, 1e-5], "out": [ulp(y, *places) if here == names[at or 0] and at else y]}
    return run


LINEAR = "Functional.linear.{}.forward".format


# What goes in


def test_a_sign_of_zero_that_matters_is_told(tmp_path):
    x, y = rand(4, 8), rand(4, 8)
    x[0, 0], y[0, 0] = 0.0, np.inf
    other, result = x.copy(), y.copy()
    other[0, 0], result[0, 0] = -0.0, -np.inf
    run = lambda a, b: {"Torch.reciprocal.0.forward": {"in": [a], "out": [b]}}  # noqa: E731
    (row,) = rerun(tmp_path, run(x, y), run(other, result)).reruns
    assert (row.cause, row.slot) == (Cause.BORN, "output:0")
    assert "inputs agree (in value)" in row.because
    assert "input:0: the same values in other bits; a zero's sign or a NaN may matter here" in row.because


# Where it comes from: equal tensors are not measured, and yet known again


def branches(fault, changed):
    """Two branches: an operator of the one is at fault, the input of the last one of the other was changed."""
    x, one, two = (np.random.default_rng(4).standard_normal((3, 4, 8))).astype(np.float32)
    left = ulp(np.tanh(x)) if fault else np.tanh(x)
    read = ulp(two, 7) if changed else two
    return {
        "Torch.tanh.0.forward": {"in": [x], "out": [left]},
        "Torch.exp.0.forward": {"in": [one], "out": [two]},
        "Torch.abs.0.forward": {"in": [read], "out": [np.abs(read)]},
        "Torch.add.0.forward": {"in": [left, np.abs(read)], "out": [left + np.abs(read)]},
    }


def test_an_input_changed_behind_another_fault_is_a_gap(tmp_path):
    report = rerun(tmp_path, branches(False, False), branches(True, True))
    assert rows(report) == [
        ("Torch.tanh.0.forward", "BORN", "output:0", (1, 2)),
        ("Torch.abs.0.forward", "GAP", "input:0", (1, 2)),
    ]
    assert "Torch.exp.0.forward wrote the same tensor in both runs" in report.reruns[1].because
    assert passed(report) == {"Torch.add.0.forward"}


# Random and asynchronous operators


EXCUSED = ["all_reduce", "AllReduce", "HcomAllReduce", "all_gather_into_tensor", "reduce_scatter", "alltoall", "irecv"]
EXCUSED += ["broadcast", "Broadcast", "HcomBroadcast", "dropout", "DropOutGenMask", "multinomial", "rand_like"]


# Runs that are not alike


def test_a_tensor_that_cannot_be_read_leaves_it_undecided(tmp_path):
    paths = [write_run(tmp_path / name, chain()) for name in "ab"]
    file = next(paths[1].rglob(f"{LINEAR(5)}.output.0.npy"))
    file.write_bytes(file.read_bytes()[:-1])
    report = rerun_diff(paths)
    assert (report.reruns, report.exit_status) == ((), 2)
    assert sum(finding.verdict.value == "unreadable" for finding in report.findings) == 1


def test_an_interrupted_comparison_keeps_what_is_done(tmp_path):
    def interrupt(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    report = rerun(tmp_path, chained(1), chained(), chained(), progress=interrupt, jobs=1)
    assert (report.exit_status, report.partial, len(report.comparisons)) == (130, True, 1)
    assert rows(report)[0][0] == LINEAR(1)


def test_one_run_is_not_enough(tmp_path):
    with pytest.raises(UsageError, match="at least two runs"):
        rerun_diff([write_run(tmp_path / "a", chain())])


# Noise


def noisy(seed, at=2, size=1e-3):
    """A chain whose operator `at` gives other values in every run, and the rest follows from it."""
    run = chained()
    names = list(run)
    for here, before in list(zip(names, [None, *names]))[at:]:
        x = run[before]["out"][0]
        y = np.tanh(x.astype(float) @ run[here]["in"][1].astype(float))
        if here == names[at]:
            y = y * (1 + size * np.random.default_rng(seed).standard_normal(y.shape))
        run[here] = {"in": [x, *run[here]["in"][1:]], "out": [y.astype(np.float32)]}
    return run


@pytest.fixture
def noise(tmp_path):
    """noise.csv of three runs of one noisy operator."""
    paths = [str(write_run(tmp_path / "reruns" / str(i), noisy(i))) for i in range(3)]
    got = CliRunner().invoke(command, ["rerun-diff", *paths, "-o", str(tmp_path / "report"), "-q"])
    assert (got.exit_code, got.output) == (1, "")
    return tmp_path / "report" / "noise.csv"


def test_noise_is_one_row_per_tensor(noise):
    table = {(row["op"], row["slot"]): row for row in csv.DictReader(noise.read_text().splitlines())}
    assert len(table) == 18  # two inputs and one output of six operators
    assert {row["runs"] for row in table.values()} == {"3"}
    assert float(table[LINEAR(1), "output:0"]["rel_l2"]) == 0.0
    assert 5e-4 < float(table[LINEAR(2), "output:0"]["rel_l2"]) < 3e-3
    assert float(table[LINEAR(2), "output:0"]["max_abs_err"]) > 0


def test_an_operator_within_its_own_noise_is_not_blamed(tmp_path, noise):
    paths = write_run(tmp_path / "target", noisy(7)), write_run(tmp_path / "golden", chained())
    assert npucmp.compare(*paths).roots[0].pair.operator.name == LINEAR(2)
    report = npucmp.compare(*paths, noise=noise)
    assert (report.roots, report.exit_status) == ((), 0)
    out = tmp_path / "out"
    got = CliRunner().invoke(command, ["compare", *map(str, paths), "--noise", str(noise), "-o", str(out)])
    assert "noise: 7 tensors above the limit, within measured noise; largest rel_l2 " in got.stdout
    because = {row["op"] + row["slot"]: row["because"] for row in csv.DictReader((out / "tensors.csv").open())}
    assert "within 4 times its own run-to-run noise of" in because[f"{LINEAR(2)}output:0"]


# The sample

SAMPLE = Path(__file__).parent.parent.parent / "sample_dumps" / "rerun_scatter"


def test_the_sample_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, SAMPLE.parent / "make_reruns.py", tmp_path], check=True)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {path.relative_to(SAMPLE): path.read_bytes() for path in SAMPLE.rglob("*") if path.is_file()}


# Real dumps

DATA = Path(__file__).parent.parent.parent.parent / "shared" / "data"
BERT = DATA / "msprobe" / "bert"
shared = pytest.mark.skipif(not BERT.is_dir(), reason="the shared dumps are not beside this checkout")
