"""Tables of npucmp are read back cell by cell, whatever an operator is called."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers.csv_table import COLUMNS, LINE, read_blocks, read_rows
from npucmp.errors import DumpError
from npucmp.report.csv_text import csv_of, encode

NAMES = "op", "slot", "rel_l2", "because"
WORDS = st.sampled_from(
    ["nan", "NaN", "NA", "null", "None", "", "inf", "1e5", "007", "True", "a, b", 'say "x"', "-1", "ä€"]
)
CELLS = WORDS | st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=5)


def pieces(data, size):
    return (data[at : at + size] for at in range(0, len(data), size))


@given(st.lists(st.tuples(*[CELLS] * 4), max_size=8), st.integers(1, 60), st.booleans())
def test_cells_are_read_as_they_were_written(rows, size, for_excel):
    columns = dict(zip(NAMES, map(list, zip(*rows)))) if rows else {name: [] for name in NAMES}
    data = encode(csv_of(NAMES, columns))
    written = [*csv.reader(io.StringIO(data.decode()))][1:]  # an independent reader
    data = (b"\xef\xbb\xbf" if for_excel else b"") + data
    found = [*read_rows("t.csv", pieces(data, size), NAMES)]
    assert [tuple(row[name] for name in NAMES) for row in found] == [tuple(row) for row in written]
    blocks = [*read_blocks("t.csv", pieces(data, size))]
    assert b"".join(one.text for one in blocks) == data.partition(b"\n")[2]


@given(st.lists(st.tuples(*[WORDS | st.text('ab,"\n', max_size=6)] * 2), max_size=8), st.integers(1, 30))
def test_a_line_break_in_quotes_is_text(rows, size):
    """A table that was Parquet may hold them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([("op", "slot"), *rows])
    found = read_rows("t.csv", pieces(text.getvalue().encode(), size))
    assert [(row["op"], row["slot"]) for row in found] == rows


def test_numbers_survive():
    numbers = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, float("inf"), float("nan")]
    data = encode(csv_of(("op", "rel_l2"), {"op": ["nan"] * len(numbers), "rel_l2": numbers}))
    found = [float(row["rel_l2"]) for row in read_rows("t.csv", [data])]
    assert [*map(repr, found)] == [*map(repr, numbers)]


HOSTILE = {
    "a cell less": (b"a,b\n1,2\n3\n", "line 3: 1 cells under 2 names"),
    "a cell more": (b"a,b\n1,2\n3,4,5\n", "line 3: 3 cells under 2 names"),
    "cells more in all rows": (b"a,b\n1,2,3\n3,4,5\n", "line 2: 3 cells under 2 names"),
    "a comma in quotes": (b'a,b\n"1,2"\n', "line 2: 1 cells under 2 names"),
    "an open quote": (b'a,b\n1,"2\n3,4\n', "a quote that does not end"),
    "NUL": (b"a,b\n1,\x00\n", "NUL"),
    "many columns": (b"," * 10**6 + b"\n", "1,000,001 columns, more than npucmp writes"),
    "very many columns": (b"," * 10**7 + b"\n", "longer than any"),
    "a line without an end": (b"a,b\n" + b"1" * (LINE + 2), "longer than any"),
    "a column that lacks": (b"b,c\n1,2\n", "has no column a"),
    "no columns": (b"\n", "has no column a"),
}


@pytest.mark.parametrize(("data", "words"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("size", [3 << 20, 1 << 19])
def test_tables_are_not_believed(data, words, size):
    with pytest.raises(DumpError, match=words) as caught:
        [*read_rows("t.csv", pieces(data, size), ("a",))]
    assert str(caught.value).count("\n") == 0 and COLUMNS < 10**5


def test_an_empty_file_has_no_rows():
    assert [*read_rows("t.csv", [])] == [*read_rows("t.csv", [b"a,b\n"])] == []
    assert [*read_rows("t.csv", [b"a,b\n\n1,2\n\n"])] == [{"a": "1", "b": "2"}]
