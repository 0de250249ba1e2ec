"""What Excel opens: CSV with a byte-order mark, and a workbook, read back by openpyxl. Nothing in it is a formula."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp import write_reports
from npucmp.cli import npucmp as command
from npucmp.errors import MissingExtra, UsageError
from npucmp.report import Form, answer_of, render, xlsx
from npucmp.report.answer import ReportTable
from npucmp.report.csv_text import csv_of
from npucmp.report.ticket import page
from npucmp.workflows.ticket import Bundle
from tests.reports import named, table

openpyxl = pytest.importorskip("openpyxl")
pytest.importorskip("xlsxwriter")
SOFTMAX = Path(__file__).parents[2] / "sample_dumps" / "msprobe_softmax"
DUMPS = str(SOFTMAX / "target"), str(SOFTMAX / "golden")
HOSTILE = ("=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", "=HYPERLINK(\"http://x\",\"y\")", "http://example.org",
           "编码器.层_0", "{=1}", "a\x1b[2Jb", "_x0041_", "1e5")  # fmt: skip


def workbook(answer):
    return openpyxl.load_workbook(io.BytesIO(xlsx.render(answer)["report.xlsx"]))


def cells(sheet):
    head, *rows = sheet.iter_rows()
    return [{name.value: cell for name, cell in zip(head, row)} for row in rows]


@pytest.fixture(scope="module")
def report():
    return npucmp.compare(*DUMPS, include=("*softmax*", "*matmul*", "*dropout*"), precheck=False, jobs=1)


def test_a_workbook_has_the_rows_of_all_tables(report):
    answer = answer_of(report)
    book = workbook(answer)
    assert book.sheetnames == ["roots", "tensors", "worst", "notes"]
    for one in answer.tables:
        sheet = book[one.file[: -len(".csv")]]
        known = table(report, one.file)
        assert [cell.value for cell in sheet[1]] == [*one.names]
        assert sheet.freeze_panes == "A2" and sheet.auto_filter.ref.startswith("A1:")
        found = cells(sheet)
        assert len(found) == len(known)
        for row, expected in zip(found, known):
            for name, value in expected.items():
                got = row[name].value
                if isinstance(value, float) and np.isfinite(value):
                    assert got == pytest.approx(value, rel=1e-15)
                else:
                    assert got == (str(value) if isinstance(value, float) else value or (value if value == 0 else None))
    notes = {row["what"].value: row["text"].value for row in cells(book["notes"])}
    assert notes["verdict"] == "DIVERGED" and notes["target"].startswith(DUMPS[0]) and "BORN" in notes


def test_verdicts_and_causes_are_coloured(report):
    rows = cells(workbook(answer_of(report))["tensors"])
    colours = {row["verdict"].value: row["verdict"].fill.fgColor.rgb for row in rows}
    assert colours == {"match": "FFC6EFCE", "diverged": "FFFFC7CE", "unknown": "FFFFEB9C"}
    assert {row["cause"].fill.fgColor.rgb for row in rows if row["cause"].value == "PROPAGATED"} == {"FFE4DFEC"}
    assert {row["op"].fill.fill_type for row in rows} == {None}


def test_no_name_becomes_a_formula_a_link_or_a_number():
    answer = answer_of(named(*HOSTILE))
    book = workbook(answer)
    for sheet in book:
        for row in sheet.iter_rows():
            for cell in row:
                assert cell.data_type in ("s", "inlineStr", "n", "b") and cell.hyperlink is None
                assert cell.value is None or cell.data_type != "n" or isinstance(cell.value, (int, float))
    names = [row["op"].value for row in cells(book["roots"])]
    names = [name.replace("_x005F_", "_") for name in names]  # as Excel reads what would be a character by its number
    assert names == [name.replace("\x1b", "\\x1b").replace("\t", "\\x09") for name in HOSTILE]


@pytest.mark.parametrize("value, seen", [
    (float("nan"), "nan"), (float("-inf"), "-inf"), (2**60, str(2**60)), (3, 3), (0.5, 0.5), (True, True),
    ("x" * 40_000, "x" * (xlsx.LONGEST - 2) + " …"), (1 + 2j, "(1+2j)"), (None, None), ("", None),
])  # fmt: skip
def test_cells(value, seen, report):
    answer = replace(answer_of(report), tables=[ReportTable("t.csv", ("a", "b"), lambda: {"a": [value], "b": [1]})])
    assert workbook(answer)["t"]["A2"].value == seen


def test_more_rows_than_a_sheet_holds_go_on_in_the_next(report, monkeypatch):
    monkeypatch.setattr(xlsx, "ROWS", 300)
    columns = {"n": [*range(750)], "op": [f"op {n}" for n in range(750)]}
    book = workbook(replace(answer_of(report), tables=[ReportTable("tensors.csv", ("n", "op"), lambda: columns)]))
    assert book.sheetnames == ["tensors", "tensors 2", "tensors 3", "notes"]
    found = [row["n"].value for name in book.sheetnames[:3] for row in cells(book[name])]
    assert found == columns["n"] and [book[name].max_row for name in book.sheetnames[:3]] == [301, 301, 151]


def test_rows_that_lie_in_files_are_the_same(report, tmp_path):
    columns = {"op": [*HOSTILE, "007"], "step": [*range(12), None], "rel_l2": [1e-7, 0.5, float("inf"), *[2.0] * 10],
               "allclose": [True, False] * 6 + [True], "because": ["=1", "12", *["a, \"b\""] * 11]}  # fmt: skip
    names = tuple(columns)
    lines = csv_of(names, columns).encode().split(b"\n", 1)[1]
    (tmp_path / "rows").write_bytes(lines)
    answer = answer_of(report)
    here, apart = (
        workbook(replace(answer, tables=[ReportTable("t.csv", names, lambda: columns, rows)]))["t"]
        for rows in (None, lambda: [tmp_path / "rows"])
    )
    assert [*here.values] == [*apart.values]


def test_a_byte_order_mark_is_only_there_if_it_is_asked_for(report):
    plain, marked = render(answer_of(report)), render(answer_of(report), Form(excel=True))
    assert {name for name in plain if plain[name] != marked[name]} == {"tensors.csv", "roots.csv", "worst.csv"}
    for name in ("tensors.csv", "roots.csv", "worst.csv"):
        assert marked[name] == b"\xef\xbb\xbf" + plain[name] and plain[name][:1] != b"\xef"
    json.loads(marked["summary.json"])


def test_a_chinese_name_survives_everywhere(tmp_path):
    name = "Cell.编码器.0.forward"
    report = named(name)
    write_reports(report, tmp_path, excel=True, xlsx=True)
    with open(tmp_path / "roots.csv", encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
        assert (row["op"], row["place"]) == (name, "1")
    assert openpyxl.load_workbook(tmp_path / "report.xlsx")["roots"]["E2"].value == name
    assert name in (tmp_path / "report.html").read_text(encoding="utf-8").replace("\\u7f16\\u7801\\u5668", "编码器")
    assert name in str(report) and name in page(Bundle(tmp_path).ticket())
    write_reports(report, tmp_path, metrics="snr")
    assert not (tmp_path / "report.xlsx").exists(), "of an earlier report"
    first = (tmp_path / "tensors.csv").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("step,") and first.endswith(",snr")


def test_the_command(tmp_path):
    got = CliRunner().invoke(
        command, ["compare", *DUMPS, "-o", str(tmp_path), "--xlsx", "--excel", "-q", "--include", "*softmax*"]
    )
    assert got.exit_code == 1 and (tmp_path / "report.xlsx").exists()
    assert (tmp_path / "tensors.csv").read_bytes()[:3] == b"\xef\xbb\xbf"


@pytest.mark.parametrize("option", ["--xlsx", "--excel"])
def test_without_a_folder_there_is_nothing_to_write(option):
    got = CliRunner().invoke(command, ["compare", *DUMPS, option])
    assert isinstance(got.exception, UsageError) and f"{option} needs -o DIR" in str(got.exception)


def test_a_missing_package_is_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    got = CliRunner().invoke(command, ["compare", "no such dump", "nor this", "-o", str(tmp_path), "--xlsx"])
    assert isinstance(got.exception, MissingExtra) and "pip install XlsxWriter" in str(got.exception)


def test_tables_with_a_mark_are_read_again(tmp_path):
    (tmp_path / "noise.csv").write_bytes(b"\xef\xbb\xbfop,slot,rel_l2,max_abs_err,runs\nx,output:0,1e-3,1e-3,2\n")
    (tmp_path / "limits.csv").write_bytes(b"\xef\xbb\xbfmetric,limit,dtype,op_type,why\nrel_l2,100,,,all\n")
    report = npucmp.compare(
        *DUMPS, include="*softmax*", noise=tmp_path / "noise.csv", tolerances=tmp_path / "limits.csv"
    )
    assert report.verdict == "AGREES"


def test_help_does_not_import_it():
    words = "import sys; from npucmp.commands import compare; assert 'xlsxwriter' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0
