"""What Excel opens: CSV with a byte-order mark, and a workbook, read back by openpyxl. Nothing in it is a formula."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as command
from npucmp.errors import MissingExtra, UsageError
from npucmp.report import answer_of, xlsx
from npucmp.report.answer import ReportTable
from npucmp.report.csv_text import csv_of

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
