"""The command, its files and its page; and the line that compare says."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.errors import UsageError
from npucmp.report.precheck import COLUMNS, CURVES, INPUTS
from tests.comparability.craft import Net, classes, images, start
from tests.health.craft import Writer

BASE = Net()


def called(*words):
    return CliRunner().invoke(npucmp, [str(word) for word in words])


def written(folder, target, golden=BASE):
    return [net.write(folder / name) for name, net in (("target", target), ("golden", golden))]


def rows(path):
    with open(path, newline="", encoding="utf-8") as stream:
        return [*csv.DictReader(stream)]


def test_a_difference_and_its_files(tmp_path):
    sides = written(tmp_path, Net(images=[(one - 0.3) / 0.7 for one in images()]))
    got = called("precheck", *sides, "--skip", "*.health", "-o", tmp_path / "out", "--jobs", 1)
    assert got.exit_code == 1, got.output
    assert "DIFFERS" in got.output and "target = 1.429·golden − 0.4286" in got.output
    assert got.output.splitlines()[-2].startswith("NOT COMPARABLE: 1 row differs; resolve it before npucmp compare.")
    table = rows(tmp_path / "out" / "precheck.csv")
    assert [*table[0]] == [*COLUMNS]
    (found,) = [row for row in table if row["status"] == "DIFFERS"]
    assert (found["row"], found["severity"], found["count"]) == ("input", "error", "2")
    assert found["remedy"] == "use the same mean and deviation on both sides"
    inputs = rows(tmp_path / "out" / "inputs.csv")
    assert [*inputs[0]] == [*INPUTS]
    first = inputs[0]
    assert (first["op"], first["slot"], first["relation"]) == ("Functional.conv2d.0.forward", "input:0", "normalised")
    assert float(first["a"]) == pytest.approx(1 / 0.7, rel=1e-4)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["verdict"] == "not comparable" and summary["exit_status"] == 1
    assert [row["row"] for row in summary["differs"]] == ["input"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "NOT COMPARABLE" in page and "1.429" in page


@pytest.mark.parametrize("words", [("--env", "HERE", "gone"), ("--curve", "gone", "HERE"), ("--repeat", "gone")])
def test_a_file_that_is_not_there_is_no_reservation(tmp_path, words):
    """A mistyped path ended with COMPARABLE and 0, its rows unknown; what is wrong in a file still costs its rows."""
    sides = written(tmp_path, BASE)
    here = tmp_path / "here"
    here.write_text("nothing of either kind")
    got = called("precheck", *sides, "--jobs", 1, *(here if word == "HERE" else word for word in words))
    assert isinstance(got.exception, UsageError) and str(got.exception) == f"{words[0]} gone: no such file or folder"
    got = called("precheck", *sides, "--only", "versions", "--jobs", 1, "--env", here, here)
    assert f"versions            {here}: is neither a zip of config_check nor text" in got.output


def test_exit_statuses(tmp_path):
    sides = written(tmp_path, Net(products="float16"))
    common = "--skip", "*.health", "--jobs", 1
    assert called("precheck", *sides, *common).exit_code == 0
    assert called("precheck", *sides, *common, "--strict").exit_code == 1
    assert called("precheck", *sides, *common, "--strict", "--mixed").exit_code == 0
    assert called("precheck", sides[0], sides[0], *common).exit_code == 0
    assert called("precheck", sides[0], tmp_path / "none").exit_code != 0
    quiet = called("precheck", *sides, *common, "-q")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_two_curves(tmp_path):
    lines = [f"{step},{2 - step / 200}" for step in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["step,loss", *lines]))
    (tmp_path / "b.csv").write_text("\n".join(["step,loss", *(f"{line}9" for line in lines[:30]), *(
        f"{step},{3 - step / 200}" for step in range(30, 60))]))  # fmt: skip
    files = [tmp_path / "b.csv", tmp_path / "a.csv"]
    got = called("precheck", "-", "-", "--curve", *files, "-o", tmp_path / "out")
    assert got.exit_code == 1 and "the curves differ from step 30 on" in got.output, got.output
    windows = rows(tmp_path / "out" / "curves.csv")
    assert [*windows[0]] == [*CURVES]
    assert [row["parts"] for row in windows] == ["False"] * 3 + ["True"] * 3
    assert "<polyline" in (tmp_path / "out" / "report.html").read_text()
    assert called("precheck", "-", "-", "--curve", files[1], files[1]).exit_code == 0


def test_help_has_an_example():
    assert "npucmp precheck npu_dump gpu_dump" in called("precheck", "--help").output


SAID = {  # name: (target, golden, words)
    "inputs": (
        Net(images=[one[:, ::-1].copy() for one in images()]),
        BASE,
        "inputs differ: Functional.conv2d.0.forward",
    ),
    "weights": (Net(weights=start(5)), BASE, "4 of 6 weights differ: another seed or checkpoint"),
    "one weight": (
        Net(weights={**start(), "fc.weight": start(5)["fc.weight"]}),
        BASE,
        "1 of 6 weights differ: fc.weight",
    ),
    "labels": (Net(labels=classes(8)), BASE, "inputs differ: Functional.cross_entropy.0.forward input:1"),
    "operators": (Net(more=3), BASE, "3 of 18 operators only in target"),
    "reduction": (Net(reduction="sum"), BASE, "losses differ: reduction is sum against mean"),
    "batch": (
        Net(images=[one[:3] for one in images()], labels=[one[:3] for one in classes()]),
        BASE,
        "shapes differ",
    ),
}
SILENT = {
    "a repeat": (BASE, BASE),
    "an operator's fault": (Net(spoil=0.5), BASE),
    "precision": (Net(products="float16"), BASE),
    "one epsilon": (Net(eps=1e-3), BASE),
    "the optimizer": (Net(rate=0.2), BASE),
    "inputs stored in float16": (Net(images=[one.astype("f2").astype("f4") for one in images()]), BASE),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", SAID)
def test_compare_says_so_in_one_line(tmp_path, name):
    target, golden, words = SAID[name]
    sides = written(tmp_path, target, golden)
    (line,) = [
        one for one in called("compare", *sides, "--jobs", 1).output.splitlines() if "set up differently:" in one
    ]
    assert words in line and line.endswith("see npucmp precheck")
    assert "set up differently:" not in called("compare", *sides, "--jobs", 1, "--no-precheck").output


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SILENT)
def test_compare_says_nothing_of_comparable_runs(tmp_path, name):
    sides = written(tmp_path, *SILENT[name])
    got = called("compare", *sides, "--jobs", 1, "-o", tmp_path / "out")
    assert "set up differently:" not in got.output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["unlike"] == ""


def inference(folder, error):
    """Two layers, and between them code that was not dumped: what the second reads nobody wrote. No gradients."""
    dump = Writer(folder / "step0" / "rank0", True)
    random = np.random.default_rng(4)
    x, weight, other = (random.normal(0, 1, (8, 8)).astype("f4") for _ in range(3))
    y = (x @ weight.T * (1 + error * random.normal(0, 1, (8, 8)))).astype("f4")
    dump.record("Functional.linear.0.forward", [x, weight, None], [y])
    hidden = np.sin(y)
    dump.record("Functional.linear.1.forward", [hidden, other, None], [hidden @ other.T])
    dump.write("L1")
    return folder


def test_what_code_that_was_not_dumped_made_is_no_input(tmp_path):
    sides = inference(tmp_path / "t", 0.3), inference(tmp_path / "g", 0)
    assert "set up differently:" not in called("compare", *sides, "--jobs", 1).output
    called("precheck", *sides, "-o", tmp_path / "out", "--jobs", 1)
    assert [row["op"] for row in rows(tmp_path / "out" / "inputs.csv")] == ["Functional.linear.0.forward"]
    assert {row["row"]: row["status"] for row in rows(tmp_path / "out" / "precheck.csv")}["input"] == "same"


def test_the_line_reads_little(tmp_path, monkeypatch):
    """Of runs that agree nothing at all is read for it."""
    from npucmp.run_differences import tensors

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(tensors, "values_of", refuse)
    sides = written(tmp_path, Net(spoil=0.5))
    assert called("compare", *sides, "--jobs", 1).exit_code == 1


def test_both_runs_health(tmp_path):
    """A weight of the reference that never moves: its numbers are no measure."""
    from npucmp import precheck
    from tests.health.craft import Training

    ill, well = Training(seed=1), Training(seed=1)
    name = "layers.1.weight"
    ill.weights[name] = [ill.weights[name][0]] * ill.steps
    sides = ill.write(tmp_path / "ill"), well.write(tmp_path / "well")
    for target, golden, row in ((*sides, "target.health"), (*sides[::-1], "golden.health")):
        found = {one.row: one for one in precheck(target, golden, jobs=1).rows}
        assert found[row].status.value == "DIFFERS" and name in found[row].because
        assert "weight.not_changed" in found[row].because
    healthy = {one.row: one.status.value for one in precheck(sides[1], sides[1], jobs=1).rows}
    assert healthy["golden.health"] == healthy["target.health"] == "same"


def test_overflow_on_one_side(tmp_path):
    from npucmp import precheck

    odd = start()
    odd["fc.weight"] = odd["fc.weight"].copy()
    odd["fc.weight"][0, 0] = np.inf
    with np.errstate(all="ignore"):
        sides = written(tmp_path, Net(weights=odd))
    found = {row.row: row for row in precheck(*sides, jobs=1).rows}
    assert found["overflow"].forbids and "only in target" in found["overflow"].because


def test_repeats(tmp_path):
    sides = written(tmp_path, BASE)
    again = Net(spoil=0.5).write(tmp_path / "again")
    for repeat, status in ((sides[1], "same"), (again, "DIFFERS")):
        got = called(
            "precheck", *sides, "--only", "repeatable", "--repeat", repeat, "-o", tmp_path / "out", "--jobs", 1
        )
        assert got.exit_code == 0, got.output
        (row,) = rows(tmp_path / "out" / "precheck.csv")
        assert (row["row"], row["status"]) == ("repeatable", status)
