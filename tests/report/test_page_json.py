"""The columns of a page hold what each cell says, however they are packed."""

from __future__ import annotations

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from npucmp.report.csv_text import CodedColumn, csv_of, words_of
from npucmp.report.html import _json
from npucmp.report.page_json import json_value, pack_columns

FIGURES = st.floats() | st.floats(0.98, 1.0) | st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-5, 1e16, 999999.5])
TEXTS = st.text(max_size=3) | st.sampled_from(["a", "\u202e", "", "op.0"])
KINDS = FIGURES, TEXTS, st.integers(), st.booleans(), st.tuples(TEXTS), st.integers() | FIGURES | st.booleans()
COLUMNS = st.one_of(*(st.lists(kind | st.none(), min_size=1, max_size=8) for kind in KINDS))


def unpacked(column, length):
    """The cells of a column as a page reads them."""
    if column is None:
        return [None] * length
    if "all" in column:
        return [column["all"]] * length
    if "values" in column:
        return column["values"]
    return [column["words"][code] for code in column["codes"]]


def short(value):
    """A number in the digits that a page shows."""
    if isinstance(value, float) and math.isfinite(value):
        if 0.99 < value < 1.0:
            return round(value, 2 - math.floor(math.log10(1.0 - value)))
        found = float(f"{value:.4g}")
        if math.isinf(found):  # no float has these four digits
            return value
        return int(found) if found.is_integer() and -1e6 < found < 1e6 else found
    return json_value(value)


@given(COLUMNS, st.integers(1, 3))
@example([1.0, -0.0, 0.0], 1)
@example([1.7976931348623157e308, 1.0, None], 1)
@example([0.00123455, 9999.5, 99995.0, 1e-30, 123450000000.0, 1e22, 1e23], 1)
def test_a_packed_column_holds_the_cells(cells, times):
    coded, cells = CodedColumn(cells, [*range(len(cells))] * times), cells * times
    column = pack_columns({"a": cells})["columns"].get("a")
    assert repr(pack_columns({"a": coded})["columns"].get("a")) == repr(column)
    assert csv_of(["a"], {"a": coded}) == csv_of(["a"], {"a": cells})
    assert unpacked(column, len(cells)) == [*map(short, cells)]
    assert _json(column) == json.dumps(column, separators=(",", ":"))


@given(st.lists(st.floats() | st.none() | st.floats(1e-6, 1e-3) | st.floats(1e14, 1e18) | st.integers(0, 9)))
def test_numbers_are_written_as_repr_does(numbers):
    assert [*words_of(numbers)] == ["" if one is None else repr(one) for one in numbers]


@given(st.lists(FIGURES, min_size=1, max_size=4), st.integers(1, 4))
@example([0.0, -0.0], 3)
def test_equal_floats_of_a_column_are_written_alike(figures, times):
    lines = csv_of(["a", "b"], {"a": figures * times, "b": [1] * len(figures) * times}).splitlines()
    assert lines[1:] == [f"{one!r},1" for one in figures * times]
