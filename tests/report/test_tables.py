"""CSV files, held against the csv module, and the columns that every presenter starts from."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.report.csv_text import csv_of
from npucmp.report.sanitise import escape_formula, visible
from npucmp.report.tables import TENSOR_COLUMNS
from npucmp.report.tensor_rows import tensor_columns
from tests.reports import large, named

ODD = st.sampled_from(['a,"b"', "=1+1", "a\r\nb", "'"])
CELLS = st.none() | st.floats() | st.integers() | st.booleans() | st.text() | ODD
ALIKE = st.one_of(*(st.lists(kind, min_size=3, max_size=3) for kind in (st.floats(), st.text(), st.integers(), CELLS)))


def plainly(value):
    return "" if value is None else escape_formula(value) if isinstance(value, str) else repr(value)


@given(st.lists(ALIKE, min_size=2, max_size=5))
def test_every_cell_is_written_as_the_csv_module_would(columns):
    names = [f"c{number}" for number in range(len(columns))]
    expected = io.StringIO()
    writer = csv.writer(expected, lineterminator="\n")
    writer.writerows([names, *([plainly(cell) for cell in row] for row in zip(*columns))])
    assert csv_of(names, dict(zip(names, columns))) == expected.getvalue()


@given(st.text())
def test_ordinary_text_is_left_alone_and_nothing_else(text):
    ordinary = all(" " <= letter <= "~" for letter in text)
    assert (visible(text) == text) >= ordinary
    assert visible(text).isprintable() or not text.isascii()


@pytest.mark.parametrize("report", [large(50), named("a", "b")], ids=["large", "named"])
def test_every_column_has_a_cell_for_every_finding(report):
    columns = tensor_columns(report, ["snr"])
    assert {*columns} == {*TENSOR_COLUMNS, "snr"}
    assert {len(column) for column in columns.values()} == {len(report.findings)}
