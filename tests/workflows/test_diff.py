"""npucmp diff and --baseline: what is new, gone and the same between two reports."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import Limits, diff, write_reports
from npucmp.cli import npucmp
from npucmp.errors import DumpError, UsageError
from npucmp.model.saved_report import Key, SavedReport, SavedRow, SavedSuspect
from npucmp.workflows.diff import compare_reports
from npucmp.workflows.report_reader import read
from tests.health.calls import linear, normal, write
from tests.reports import named, screen
from tests.synthetic import chain, write_run

PARQUET = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
SOFTMAX, STEPS = SAMPLES / "msprobe_softmax", SAMPLES / "msprobe_steps"
INF, NAN = math.inf, math.nan


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


def told(found):
    kinds = ("new", "gone", "same", "open", "worse", "better")
    return {kind: [one.key.op for one in getattr(found, kind)] for kind in kinds if getattr(found, kind)}


@pytest.mark.parametrize(
    ("before", "after", "expected", "status"),
    [
        (written("a", {"a": BAD}), written("a", {"a": BAD}), {"same": ["a"]}, 0),
        (written("", {"a": GOOD}), written("a", {"a": BAD}), {"new": ["a"]}, 1),
        (written("a", {"a": BAD}), written("", {"a": GOOD}, status=0), {"gone": ["a"], "better": ["a"]}, 0),
        (
            written("a", {"a": BAD, "b": GOOD}),
            written("", {"b": GOOD}, status=0),
            {"open": ["a"]},
            2,
        ),  # it was not looked at
        (written("a", {"a": BAD}), written("", {"a": SavedRow("unreadable")}, status=2), {"open": ["a"]}, 2),
        (written("b", {"a": GOOD, "b": BAD}), written("a", {"a": BAD, "b": BAD}), {"new": ["a"], "open": ["b"]}, 1),
        (written("a", {"a": BAD, "b": GOOD}), written("a", {"a": BAD, "b": BAD}), {"same": ["a"], "worse": ["b"]}, 1),
        (written("", {"a": GOOD}), written("", {"a": BAD}), {"new": ["a"]}, 1),  # it differs, and nobody is accused
        (written("", {"a": BAD}), written("", {"a": BAD}), {}, 0),
        (written("", {"a": GOOD}, status=0), written("", {"a": GOOD}, status=0), {}, 0),
        (written("", {"a": GOOD}, status=0), written("", {"a": GOOD}, status=2), {}, 2),  # it could not decide
        (written("", {"a": GOOD}, status=0), written("", {"a": GOOD}, status=130), {}, 2),
    ],
)
def test_what_became_of_it(before, after, expected, status):
    found = compare_reports(before, after)
    assert (told(found), found.exit_status) == (expected, status)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ((1e-3, 100), (2.9e-3, 100), False),  # reruns of a faulty run are nearer than that
        ((1e-3, 100), (3.1e-3, 100), True),
        ((1e-3, 15), (1.0, 15), False),  # errors of few elements may cancel
        ((1e-3, 15), (INF, 15), True),  # NaN or Inf on one side only do not
        ((0.0, 100), (2.9e-6, 100), False),  # three times the limit is rounding still
        ((0.0, 100), (3.1e-6, 100), True),
        ((INF, 100), (INF, 100), False),
        ((NAN, 100), (0.1, 100), False),  # checksums told that it differs, not how far
        ((0.0, 100), (NAN, 100), True),
        ((0.1, 100), (NAN, 100), False),
    ],
)
def test_worse_is_more_than_noise(before, after, worse):
    def seen(error, elements):
        return SavedRow("diverged" if error != 0 else "match", error, 1e-6, elements)

    assert seen(*after).beyond(seen(*before)) == worse


def test_what_could_not_be_compared_is_neither_better_nor_worse():
    assert (
        not BAD.beyond(SavedRow("unknown"))
        and not BAD.beyond(SavedRow("unreadable"))
        and not SavedRow("unknown").beyond(GOOD)
    )


def test_reports_that_have_nothing_to_do_with_each_other():
    with pytest.raises(UsageError, match="one is a report of compare, other of check"):
        compare_reports(written(path="one"), written(path="other", command="check"))
    names = [{f"{letter}{number}": GOOD for number in range(9)} for letter in "ab"]
    with pytest.raises(UsageError, match="different networks: 0 of 9 and 9 operators"):
        compare_reports(written("", names[0]), written("", names[1]))


def test_is_it_fixed(reports):
    for words, status, last in (
        (("faulty", "clean"), 0, "FIXED: 1 place gone, none new."),
        (("clean", "faulty"), 1, "NEW: 1 place new, 71 tensors worse."),
        (("faulty", "faulty"), 0, "SAME: 1 unchanged, none new."),
        (("steps/faulty", "steps/clean"), 0, "FIXED: 2 places gone, none new."),
        (("steps/clean", "steps/faulty"), 1, "NEW: 2 places new, 16 tensors worse."),
        (("steps/faulty", "steps/faulty"), 0, "SAME: 2 unchanged, none new."),
    ):
        got = cli("diff", *(reports / word for word in words))
        assert (got.exit_code, got.output.splitlines()[-1].partition("   ")[0]) == (status, last)


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


def test_files_of_a_diff_with_two_suspects(reports, tmp_path):
    got = cli("diff", reports / "steps" / "clean", reports / "steps" / "faulty", "-o", tmp_path, "--json")
    summary = json.loads(got.stdout)
    op = "Module.model.layers.1.linear.Linear.forward.0"
    assert summary["counts"]["new"] == 2
    assert [(one["step"], one["op"]) for one in summary["changes"]["new"]] == [("2", op), ("3", op)]
    rows = list(csv.DictReader((tmp_path / "diff.csv").open()))
    assert [(row["step"], row["op"], row["before"], row["after"]) for row in rows if row["what"] == "new"] == [
        ("2", op, "match", "BORN"), ("3", op, "match", "WORSENED")
    ]  # fmt: skip
    assert len(rows) == 18


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


@pytest.mark.parametrize(("least", "counts"), [("warning", [True, False]), ("hint", [True, True]), (7, [True, True])])
def test_hints_count_where_a_check_fails_at_them(tmp_path, least, counts):
    summary = {"npucmp": "1", "command": "check", "exit_status": 1, "fail_on": least}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    rows = "severity,rule,parameter,follows", "error,weight.zero,a,", "hint,weight.odd,b,", "error,weight.nan,c,1"
    (tmp_path / "health.csv").write_text("\n".join(rows))
    assert [place.counts for place in read(tmp_path).places.values()] == counts


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


def test_no_link_leads_out_of_a_report(tmp_path):
    (tmp_path / "secret").write_text("op\nsecret\n")
    folder = report(tmp_path / "a")
    (folder / "tensors.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(DumpError, match="a link that leads out"):
        read(folder)


def test_names_are_paired_as_they_are_written(tmp_path):
    """A spreadsheet's formula and a control character read back as they stand in the file; the screen shows them."""
    name = "=op\n\x1b[31m"
    for folder in ("a", "b"):
        write_reports(named(name), tmp_path / folder)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert [one.key.op for one in found.same] == ["'=op\\x0a\\x1b[31m"]
    assert "'=op\\x0a\\x1b[31m output:0  BORN 1.0e-01 → BORN 1.0e-01" in screen(found)


def test_a_table_may_only_be_so_large(tmp_path):
    folder = report(tmp_path / "a", "0,,op,output:0,BORN,1,why,")
    with pytest.raises(DumpError, match="report_bytes"):
        diff(folder, folder, limits=Limits().changed(["report_bytes=20"]))


@pytest.fixture(scope="module")
def parted(tmp_path_factory, reports):
    """The same two reports with --parts, with --parquet, and with both, by name."""
    folder = tmp_path_factory.mktemp("parted")
    for words in (["--parts"], *([["--parquet"], ["--parts", "--parquet"]] if find_spec("pyarrow") else [])):
        for name, dump in (("faulty", "target"), ("clean", "golden")):
            dumps = [str(SOFTMAX / one) for one in (dump, "golden")]
            CliRunner().invoke(npucmp, ["compare", *dumps, *words, "-q", "-o", str(folder / "".join(words) / name)])
    return folder


FORMS = ["--parts", pytest.param("--parquet", marks=PARQUET), pytest.param("--parts--parquet", marks=PARQUET)]


def cut_last(folder):
    """The end of the last line."""
    (file,) = folder.glob("tensors*.csv")
    file.write_text(file.read_text().rstrip("\n").rpartition(",")[0].rpartition(",")[0])


@pytest.mark.parametrize("form", FORMS)
def test_tensors_in_parts_and_as_parquet_are_read_too(reports, parted, tmp_path, form):
    assert not [*(parted / form).glob("*/tensors.csv")]
    for name in ("faulty", "clean"):
        assert read(parted / form / name).seen == read(reports / name).seen != {}
    assert (
        cli("diff", parted / form / "clean", reports / "faulty")
        .output.splitlines()[-1]
        .startswith("NEW: 1 place new, 71 tensors worse.")
    )
    got = cli("compare", SOFTMAX / "target", SOFTMAX / "golden", "-q", "--baseline", parted / form / "faulty")
    assert got.exit_code == 0
    got = cli("ticket", parted / form / "faulty", "-o", tmp_path / "t.zip")
    with zipfile.ZipFile(tmp_path / "t.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert got.exit_code == 0 and told(diff(tmp_path / "unpacked", reports / "faulty")).keys() == {"same"}


def cut(folder, keep):
    (file,) = folder.glob("tensors*.csv")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:keep]))


INCOMPLETE = {
    "no tensors": lambda folder: [file.unlink() for file in folder.glob("tensors*")],
    "no roots": lambda folder: (folder / "roots.csv").unlink(),
    "no head": lambda folder: cut(folder, 0),
    "a cell less": lambda folder: cut_last(folder),
}


@pytest.mark.parametrize("how", INCOMPLETE)
@pytest.mark.parametrize("form", ["", "--parts"])
def test_a_report_that_is_not_whole_is_no_report_without_a_difference(reports, parted, tmp_path, form, how):
    clean = parted / form / "clean" if form else reports / "clean"
    shutil.copytree(clean, tmp_path / "broken")
    INCOMPLETE[how](tmp_path / "broken")
    for pair in ((clean, tmp_path / "broken"), (tmp_path / "broken", clean)):
        with pytest.raises(DumpError, match="broken"):
            npucmp.main(["diff", *map(str, pair)], standalone_mode=False)


def test_of_two_forms_of_a_table_the_one_is_read_that_the_summary_lists(reports, parted, tmp_path):
    """What lies beside it is of another report."""
    shutil.copytree(reports / "faulty", tmp_path / "a")
    (part,) = (parted / "--parts" / "clean").glob("tensors-*.csv")
    shutil.copy(part, tmp_path / "a")
    assert read(tmp_path / "a").seen == read(reports / "faulty").seen
    if find_spec("pyarrow"):
        shutil.copytree(parted / "--parquet" / "faulty", tmp_path / "b")
        shutil.copy(reports / "clean" / "tensors.csv", tmp_path / "b")
        assert read(tmp_path / "b").seen == read(reports / "faulty").seen


def test_rows_that_the_summary_counts_and_the_table_lacks_are_told(reports, tmp_path):
    shutil.copytree(reports / "clean", tmp_path / "cut")
    cut(tmp_path / "cut", 101)
    got = cli("diff", reports / "clean", tmp_path / "cut", "-v")
    assert got.exit_code == 2 and "cut lacks 51 rows that its summary.json counts" in got.output


COUNTED = [
    ("compare", "tensors", ["op,slot,verdict", "a,output:0,match"], {"verdicts": {"match": 2}}),
    ("compare", "tensors", ["op,slot,verdict"], {}),  # there is none without tensors
    ("compare", "roots", ["op,cause"], {"causes": {"BORN": 1}}),
    ("fusion-diff", "roots", ["op,cause"], {"causes": {"BORN": 1}}),
    ("replay", "replay", ["op,verdict"], {"verdicts": {"CLEAN": 1}}),
    ("replay", "edges", ["op,verdict"], {"edges": {"HELD": 1}}),
    ("check", "health", ["rule,severity"], {"findings": {"severity": {"error": 1}}}),
    ("precheck", "precheck", ["row,status"], {"statuses": {"same": 1}}),
]


@pytest.mark.parametrize(("command", "table", "lines", "counts"), COUNTED)
def test_every_table_has_the_rows_that_its_summary_counts(tmp_path, command, table, lines, counts):
    """One less, and nothing is decided; numbers that cannot be are no counts."""
    tables = {"roots": ["op,cause"], "tensors": ["op,slot,verdict", "a,output:0,match"], "replay": ["op,verdict"]}
    odd = [dict.fromkeys(counts, value) for value in ({"a": -1, "b": 10**30, "c": "2"}, [])]
    for number, told in enumerate([counts, *odd] if counts else [{}]):
        (folder := tmp_path / str(number)).mkdir()
        summary = {"npucmp": "1", "command": command, "exit_status": 0, **told}
        (folder / "summary.json").write_text(json.dumps(summary))
        for name, some in {**tables, table: lines}.items():
            (folder / f"{name}.csv").write_text("\n".join(some) + "\n")
        assert (read(folder).lacking, read(folder).is_decided) == ((1, False) if not number else (0, True))


def test_a_merged_report_is_one_of_compare(tmp_path):
    one, other = (report(tmp_path / name, "0,,op,output:0,BORN,1,why,") for name in "ab")
    (other / "summary.json").write_text('{"npucmp": "1", "command": "merge", "exit_status": 1}')
    assert told(diff(one, other)) == {"same": ["op"]}


@pytest.mark.parametrize(("sample", "place", "count"), [(SOFTMAX, ".", 1), (STEPS, "steps", 2)])
def test_tables_for_excel_are_read_too(reports, tmp_path, sample, place, count):
    reports = reports / place
    got = cli("compare", sample / "target", sample / "golden", "-q", "--excel", "-o", tmp_path)
    assert got.exit_code == 1 and (tmp_path / "roots.csv").read_bytes().startswith(b"\xef\xbb\xbfplace,")
    found = diff(reports / "faulty", tmp_path)
    assert len(found.same) == count and found.exit_status == 0
    assert read(tmp_path).seen == read(reports / "faulty").seen


def test_what_is_gone_and_new_stands_first(tmp_path):
    """One fault went and another came: both are listed before the tensors whose errors changed."""
    write_run(tmp_path / "golden", chain())
    for name, faults in (("before", {1: 1.01}), ("after", {3: 1.01})):
        write_run(tmp_path / f"dump_{name}", chain(faults=faults))
        got = cli("compare", tmp_path / f"dump_{name}", tmp_path / "golden", "-o", tmp_path / name, "--no-precheck")
        assert got.exit_code == 1
    got = cli("diff", tmp_path / "before", tmp_path / "after", "-o", tmp_path / "out")
    kinds = [row["what"] for row in csv.DictReader((tmp_path / "out" / "diff.csv").open())]
    assert [*dict.fromkeys(kinds)][:2] == ["new", "gone"] and "better" in kinds
    lines = got.output.splitlines()
    new, gone, better = (
        next(at for at, line in enumerate(lines) if line.startswith(title)) for title in ("New", "Gone: ", "Better: ")
    )
    assert new < gone < better
