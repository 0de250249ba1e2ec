"""The command, its files and its page; and the line that compare says."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.comparability.report import CURVES
from npucmp.errors import UsageError
from tests.comparability.craft import Net, classes, images, start

BASE = Net()


def called(*words):
    return CliRunner().invoke(npucmp, [str(word) for word in words])


def written(folder, target, golden=BASE):
    return [net.write(folder / name) for name, net in (("target", target), ("golden", golden))]


def rows(path):
    with open(path, newline="", encoding="utf-8") as stream:
        return [*csv.DictReader(stream)]


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
