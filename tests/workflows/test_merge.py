"""Reports made on several machines become one, or are refused by name."""

import csv
import json
import os
import shutil
import sys

import pytest

import npucmp
from npucmp import cli, merge
from tests.localise.test_root_order import pipeline
from tests.synthetic import chain, write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two steps of two ranks, wrong from step 1 rank 0 on: compared as a whole, and each step by itself."""
    folder = tmp_path_factory.mktemp("merge")
    for side in ("target", "golden"):
        for step in (0, 1):
            fault = {"first": 1.01} if (side, step) == ("target", 1) else {}
            for rank, operators in enumerate(pipeline(**fault)):
                write_run(folder / side, operators, step, rank)
    for name, more in (("whole", {}), ("s0", {"step": "0"}), ("s1", {"step": "1"}), ("r1", {"step": "1", "rank": "1"})):
        report = npucmp.compare(folder / "target", folder / "golden", **more)
        npucmp.write_reports(report, folder / name)
    return folder


@pytest.fixture
def place(made, tmp_path):
    for name in ("s0", "s1", "r1"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def merged(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["npucmp", "merge", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return (end.value.code, *capsys.readouterr())


def rows(file):
    with open(file) as stream:
        return [*csv.DictReader(stream)]


def test_what_was_written_for_excel_is_read_too(made, place, monkeypatch, capsys):
    for file in place.rglob("*.csv"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")[0] == 1
    assert (place / "out/tensors.csv").read_bytes() == (made / "whole/tensors.csv").read_bytes()
    joined = merge([place / "s0", place / "s1"]).to_pandas()
    whole = npucmp.compare(made / "target", made / "golden").to_pandas()
    assert joined.rel_l2.equals(whole.rel_l2) and joined.op.equals(whole.op)


def changed(**more):
    def change(folder):
        file = folder / "summary.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))

    return change


def rule_of(limit):
    def change(folder):
        file = folder / "summary.json"
        summary = json.loads(file.read_text())
        summary["rules"][0]["limit"] = limit
        file.write_text(json.dumps(summary))

    return change


def told(file, text):
    return lambda folder: (folder / file).write_text(text)


def replaced(file, old, new):
    def change(folder):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


def without_last(file):
    def change(folder):
        lines = (folder / file).read_text().splitlines(keepends=True)
        (folder / file).write_text("".join(lines[:-1]))

    return change


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"": found}
    return found


CELLS = " names, which npucmp does not write; was it changed?"
ROW = "holds a row that npucmp does not write"


def changed_roots(folder):
    head, first, *others = (folder / "roots.csv").read_text().splitlines()
    at = head.split(",").index("value")
    cells = [cell if number != at else "much" for number, cell in enumerate(first.split(","))]
    (folder / "roots.csv").write_text("\n".join([head, ",".join(cells), *others]) + "\n")


def linked(folder):
    (folder / "tensors.csv").rename(folder.parent / "elsewhere.csv")
    (folder / "tensors.csv").symlink_to(folder.parent / "elsewhere.csv")


REFUSED = {
    "another version": (changed(npucmp="9.9"), "was made by npucmp 9.9"),
    "another rule": (rule_of(0.5), "were judged by different rules"),
    "a switch": (changed(argv=["npucmp", "--strict"]), "were judged by different rules"),
    "partial": (changed(partial=True), "the report is partial"),
    "another command": (changed(command="check"), "is not a summary of a report of npucmp compare"),
    "no counts": (changed(verdicts=3), "is not a summary of a report of npucmp compare"),
    "no JSON": (told("summary.json", "{"), "not JSON"),
    "numbers that are none": (
        replaced("summary.json", '"match": ', '"match": NaN, "x": '),
        "is not a summary of a report",
    ),
    "a run that is none": (changed(unpaired=[{"step": []}]), "is not a summary of a report of npucmp compare"),
    "a side that is none": (changed(target=[]), "is not a summary of a report of npucmp compare"),
    "no table": (lambda folder: (folder / "tensors.csv").unlink(), "holds no tensors, which its summary.json lists"),
    "other columns": (replaced("tensors.csv", ",masked", ",mosked"), "the columns of tensors.csv"),
    "a formula": (replaced("tensors.csv", ",forward,", ",=cmd(),"), ROW),
    "a formula behind spaces": (replaced("tensors.csv", ",forward,", ", =cmd(),"), ROW),
    "a formula that begins as a number": (replaced("tensors.csv", ",forward,", ",-1+cmd(),"), ROW),
    "a formula as wide as Chinese": (replaced("tensors.csv", ",forward,", ",\uff1dcmd(),"), ROW),
    "a formula among quoted cells": (replaced("tensors.csv", ",forward,", ',"=cmd(1,2)",'), ROW),
    "a formula for a column": (replaced("tensors.csv", ",masked", ",=masked"), "is not a table of tensors"),
    "text that runs backwards": (replaced("tensors.csv", ",forward,", ",\u202eforward,"), ROW),
    "text in no encoding": (
        lambda folder: (folder / "tensors.csv").write_bytes(
            (folder / "tensors.csv").read_bytes().replace(b",forward,", b",\xfforward,")
        ),
        "is not UTF-8 text",
    ),
    "a row of fewer cells": (replaced("tensors.csv", ",forward,", ","), CELLS),
    "a row of more cells": (replaced("tensors.csv", ",forward,", ",forward,,"), CELLS),
    "a lost row": (without_last("tensors.csv"), "its tables hold 20 tensors, its summary.json counts 21"),
    "a lost root": (without_last("roots.csv"), "a file is missing or was changed"),
    "a table that never ends": (
        lambda folder: ((folder / "tensors.csv").unlink(), os.mkfifo(folder / "tensors.csv")),
        "a FIFO, not a file",
    ),
    "no matrix": (lambda folder: (folder / "matrix.csv").unlink(), "holds no matrix"),
    "a matrix without a rank": (without_last("matrix.csv"), "lacks steps and ranks"),
    "a quote that does not end": (replaced("matrix.csv", ",", ',"\x00'), "matrix.csv: "),
    "a root without a place": (replaced("roots.csv", "place,", "plac,"), ROW),
    "a root of an odd number": (replaced("roots.csv", ",output:0,rel_l2,", ",output:0,rel_l2,x"), ROW),
    "all is well": (changed(exit_status=0), "its exit status does not match its counts"),
    **{
        f"{name} {value!r:.20}": (changed(**{name: value}), "is not a summary of a report of npucmp compare")
        for name, value in (
            ("bytes_read", 10**400),
            ("bytes_read", float("inf")),
            ("bytes_read", float("nan")),
            ("causes", {"BORN": -1}),
            ("aligned", {"operators": "many"}),
            ("exit_status", "0"),
            ("unpaired", [3]),
            ("unpaired", [{"side": "target", "path": "x", "step": []}]),
            ("broken", [None]),
            ("target", "x"),
            ("golden", nested(40)),
            ("rules", nested(900)),
        )
    },
    "a cut row": (replaced("tensors.csv", "\n0,1,", "\nx"), CELLS),
    "a row of no rank": (replaced("tensors.csv", "\n0,1,", "\n0,x,"), ROW),
    "a root that is none": (replaced("roots.csv", "BORN", "TORN"), "holds a row that npucmp does not write"),
    "a figure that is none": (changed_roots, "holds a row that npucmp does not write"),
    "no roots": (lambda folder: (folder / "roots.csv").unlink(), "holds no roots, which its summary.json lists"),
    "a table elsewhere": (linked, "a link that leads out"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_does_not_belong_together_is_refused_by_name(place, monkeypatch, capsys, how):
    spoil, words = REFUSED[how]
    spoiled = "s1" if "root" in how or how == "a figure that is none" or how == "all is well" else "s0"
    spoil(place / spoiled)
    status, shown, error = merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")
    assert (status, shown, error.count("\n")) == (2, "", 1)
    assert words in error and str(place / spoiled) in error
    assert not (place / "out").exists()


def test_a_step_and_rank_is_in_one_report(place, monkeypatch, capsys):
    status, _, error = merged(monkeypatch, capsys, place / "s1", place / "r1")
    assert status == 2 and f"step 1 rank 1 is in {place / 's1'} and again in {place / 'r1'}" in error
    for words in ((place / "s1",), (place / "s1", place / "s1")):
        status, _, error = merged(monkeypatch, capsys, *words)
        assert status == 2 and "the folders of several different reports" in error


def test_reports_of_one_rank_each_say_where_it_begins(made, tmp_path, monkeypatch, capsys):
    """They have no matrix.csv; a run that one had no partner of is alone only where no other report has compared it."""
    one_sided = tmp_path / "golden"
    shutil.copytree(made / "golden/step1/rank1", one_sided / "step1/rank1")
    reports = {"r0": {"rank": 0}, "r1": {"golden": one_sided}, "s0": {"step": 0, "rank": 0}}
    for name, given in reports.items():
        more = {"golden": made / "golden", **({} if name == "s0" else {"step": 1}), **given}
        npucmp.write_reports(npucmp.compare(made / "target", **more), tmp_path / name)
    status, shown, _ = merged(monkeypatch, capsys, *map(tmp_path.joinpath, reports), "-o", tmp_path / "out")
    known = {(row["step"], row["rank"]): row for row in rows(made / "whole/matrix.csv")}
    found = rows(tmp_path / "out/matrix.csv")
    assert status == 1 and [(row["step"], row["rank"]) for row in found] == [("0", "0"), ("1", "0"), ("1", "1")]
    for row in found:
        whole = known[row["step"], row["rank"]]
        assert [row[name] for name in ("verdict", "first_op", "first_slot", "value")] == [
            whole[name] for name in ("verdict", "first_op", "first_slot", "value")
        ]
    begins = json.loads((tmp_path / "out/summary.json").read_text())["begins"]
    assert (begins["step"], begins["rank"]) == (1, 0) and f"The error {begins['sentence']}\n" in shown
    _, shown, _ = merged(monkeypatch, capsys, tmp_path / "s0", tmp_path / "r1")
    assert "in one dump only" in shown and "only in target: " in shown


def test_a_rank_that_another_report_compared_is_no_longer_open(tmp_path, monkeypatch, capsys):
    for rank in (0, 1, 2):
        write_run(tmp_path / "golden", chain(), rank=rank)
    for rank in (0, 1, 2):
        write_run(tmp_path / f"target{rank}", chain(), rank=rank)
        report = npucmp.compare(tmp_path / f"target{rank}", tmp_path / "golden")
        assert report.exit_status == 2
        npucmp.write_reports(report, tmp_path / f"report{rank}")
    reports = [tmp_path / f"report{rank}" for rank in (0, 1, 2)]
    assert merged(monkeypatch, capsys, *reports[:2])[0] == 2
    status, shown, _ = merged(monkeypatch, capsys, *reports)
    assert status == 0 and "AGREES: 54 tensors compared in 3 reports" in shown
