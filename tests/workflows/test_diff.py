"""npucmp diff and --baseline: what is new, gone and the same between two reports."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import Limits, diff
from npucmp.cli import npucmp
from npucmp.errors import DumpError, UsageError
from npucmp.model.saved_report import Key, SavedReport, SavedRow, SavedSuspect
from npucmp.workflows.diff import compare_reports
from npucmp.workflows.report_reader import read
from tests.health.calls import linear, normal, write

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
SOFTMAX, STEPS = SAMPLES / "msprobe_softmax", SAMPLES / "msprobe_steps"


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """The page takes longest, and is read by nobody here."""
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))


def cli(*words):
    got = CliRunner().invoke(npucmp, [str(word) for word in words])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    return got


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of one network: `faulty` with the planted fault, `clean` of the golden against itself; and in `steps`
    those of another network, with two suspects."""
    folder = tmp_path_factory.mktemp("reports")
    for sample, place in ((SOFTMAX, folder), (STEPS, folder / "steps")):
        for name, dump in (("faulty", "target"), ("clean", "golden")):
            CliRunner().invoke(npucmp, ["compare", *(str(sample / one) for one in (dump, "golden")),
                                        "-q", "-o", str(place / name)])  # fmt: skip
    return folder


def key(op, slot="output:0", rule=""):
    return Key("0", "", op, slot, rule)


def written(places=(), seen=(), command="compare", status=1, path="report"):
    """A report that accuses the first, and saw the second: {operator: Seen}."""
    found = {key(op): SavedSuspect(key(op), "BORN", "why", 0.1) for op in places}
    seen = {key(op): one for op, one in dict(seen).items()}
    return SavedReport(path, command, {"exit_status": status}, found, seen, frozenset(one.op for one in seen))


GOOD, BAD = SavedRow("match", 0.0, 1e-6, 100), SavedRow("diverged", 0.1, 1e-6, 100)


def test_reports_that_have_nothing_to_do_with_each_other():
    with pytest.raises(UsageError, match="one is a report of compare, other of check"):
        compare_reports(written(path="one"), written(path="other", command="check"))
    names = [{f"{letter}{number}": GOOD for number in range(9)} for letter in "ab"]
    with pytest.raises(UsageError, match="different networks: 0 of 9 and 9 operators"):
        compare_reports(written("", names[0]), written("", names[1]))


def test_files_of_a_diff(reports, tmp_path):
    got = cli("diff", reports / "clean", reports / "faulty", "-o", tmp_path, "--json")
    summary = json.loads(got.stdout)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["counts"]["new"] == 1 and summary["changes"]["new"][0]["op"] == "Functional.softmax.1.forward"
    rows = list(csv.DictReader((tmp_path / "diff.csv").open()))
    first = rows[0]
    assert (first["what"], first["op"], first["before"], first["after"]) == (
        "new", "Functional.softmax.1.forward", "match", "BORN"
    )  # fmt: skip
    assert float(first["error_after"]) == pytest.approx(1.7248e-3, rel=1e-4) and len(rows) == 72
    tensors = csv.DictReader((reports / "faulty" / "tensors.csv").open())
    (other,) = (row for row in tensors if row["verdict"] == "unknown")  # of another autograd node
    assert other["op"] == "Functional.softmax.1.backward"
    assert (other["op"], other["slot"]) not in {(row["op"], row["slot"]) for row in rows}


@pytest.mark.parametrize(("sample", "place", "count"), [(SOFTMAX, ".", 1), (STEPS, "steps", 2)])
def test_a_baseline_lets_known_suspects_pass(reports, tmp_path, sample, place, count):
    dumps = sample / "target", sample / "golden"
    reports = reports / place
    got = cli("compare", *dumps, "--baseline", reports / "faulty", "-o", tmp_path)
    line = f"baseline: {count} known, 0 new, compared with {reports / 'faulty'}: exit status 0\n"
    assert got.exit_code == 0 and line in got.stdout
    assert got.stdout.splitlines()[-2].startswith("DIVERGED: ")  # it does still
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["exit_status"] == 0 and summary["baseline"]["same"] == count
    got = cli("compare", *dumps, "--baseline", reports / "clean")
    assert got.exit_code == 1 and f"baseline: 0 known, {count} new, " in got.stdout
    # The report that was excused is as good a baseline as the first one.
    assert cli("compare", *dumps, "-q", "--baseline", tmp_path).exit_code == 0


def test_a_baseline_is_read_before_anything_is_measured(reports, tmp_path, monkeypatch):
    monkeypatch.setattr("npucmp.workflows.compare.compare", lambda *_, **__: pytest.fail("measured"))
    for folder, words in ((tmp_path, "no summary.json"), (reports / "nowhere", "no summary.json")):
        with pytest.raises(UsageError, match=words):
            npucmp.main(["compare", "a", "b", "--baseline", str(folder)], standalone_mode=False)
    with pytest.raises(UsageError, match="a report of compare; check needs a report of check"):
        npucmp.main(["check", "a", "--baseline", str(reports / "clean")], standalone_mode=False)


def test_a_baseline_excuses_no_tensor_that_lost_its_partner(reports, tmp_path):
    """Of --strict: what it accuses is no operator."""
    dump = SOFTMAX / "golden"
    words = "compare", dump, dump, "-q", "--strict"
    got = cli(*words, "--baseline", reports / "clean")
    assert got.exit_code == 0
    before = read(reports / "clean")
    lost = next(iter(before.seen))
    after = SavedReport("after", "compare", {"exit_status": 1}, {}, {**before.seen, lost: SavedRow("missing")})
    assert [one.key for one in compare_reports(before, after, strict=True).new] == [lost]
    assert not compare_reports(before, after).new


def test_a_baseline_of_a_check(tmp_path):
    """Weights of zeros are known, weights that are too large are not; what is mended is decided by its rule."""
    x, zeros, small = normal(8, 16), np.zeros((4, 16), np.float32), normal(4, 16)
    zero, both, neither = (
        write(tmp_path / name, [[linear(x, normal(8, 4), a), linear(x, normal(8, 4), b)]])
        for name, a, b in (("zero", zeros, small), ("both", zeros, small * np.inf), ("neither", small, small))
    )
    assert cli("check", zero, "-q", "-o", tmp_path / "report").exit_code == 1
    got = cli("check", zero, "--baseline", tmp_path / "report")
    assert got.exit_code == 0 and "known, 0 new" in got.stdout
    got = cli("check", both, "--baseline", tmp_path / "report")
    assert got.exit_code == 1 and "new: " in got.stdout
    cli("check", neither, "-q", "-o", tmp_path / "mended")
    got = cli("diff", tmp_path / "report", tmp_path / "mended")
    assert got.exit_code == 0 and got.stdout.splitlines()[-1].startswith("FIXED: ")


# What comes with a ticket


def test_folders_that_are_no_reports(tmp_path):
    with pytest.raises(UsageError, match=r"holds no summary\.json; give a folder that -o DIR of a command wrote"):
        read(tmp_path)
    for text, why in (
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not one of npucmp"),
        ('{"command": "compare"}', "not one of npucmp"),
        ('{"npucmp": "1", "command": ["compare"]}', "not one of"),
        ('{"npucmp": "1", "command": "formats"}', "whose reports can be read"),
    ):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises((UsageError, DumpError), match=why):
            read(tmp_path)


def report(folder, *rows, header="step,rank,op,slot,cause,value,evidence,stack"):
    folder.mkdir()
    (folder / "summary.json").write_text('{"npucmp": "1", "command": "compare", "exit_status": 1}')
    (folder / "roots.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def test_tables_are_not_believed(tmp_path):
    """Numbers that are none, names with everything in them; missing and further cells, columns that are not there."""
    found = read(report(tmp_path / "a", "0,,<b>|op,output:0,BORN,many,why,x.py:1"))
    assert [(one.key.op, one.cause, one.value) for one in found.places.values()] == [("<b>|op", "BORN", None)]
    with pytest.raises(DumpError, match="longer than any"):
        read(report(tmp_path / "b", "x" * (3 << 20)))
    for number, (row, header, why) in enumerate((
        ("0,,op,output:0", "step,rank,op,slot,cause,value,evidence,stack", "line 2: 4 cells under 8 names"),
        ("0,,op,output:0,BORN,1,why,x.py:1,more", "step,rank,op,slot,cause,value,evidence,stack", "9 cells under 8"),
        ("0,,op", "step,rank,op", "roots.csv: has no column cause"),
        ("", "", "roots.csv: has no column op"),
    )):  # fmt: skip
        with pytest.raises(DumpError, match=why):
            read(report(tmp_path / str(number), row, header=header))
    os.mkfifo(tmp_path / "a" / "tensors.csv")
    with pytest.raises(DumpError, match="a FIFO, not a file"):
        read(tmp_path / "a")


def test_a_table_may_only_be_so_large(tmp_path):
    folder = report(tmp_path / "a", "0,,op,output:0,BORN,1,why,")
    with pytest.raises(DumpError, match="report_bytes"):
        diff(folder, folder, limits=Limits().changed(["report_bytes=20"]))


def cut(folder, keep):
    (file,) = folder.glob("tensors*.csv")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:keep]))


def test_rows_that_the_summary_counts_and_the_table_lacks_are_told(reports, tmp_path):
    shutil.copytree(reports / "clean", tmp_path / "cut")
    cut(tmp_path / "cut", 101)
    got = cli("diff", reports / "clean", tmp_path / "cut", "-v")
    assert got.exit_code == 2 and "cut lacks 51 rows that its summary.json counts" in got.output
