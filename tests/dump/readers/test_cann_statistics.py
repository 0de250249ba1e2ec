"""Statistics of CANN: figures by the names of their columns, NaN and Inf put back, damage told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers import statistics_csv
from npucmp.errors import DumpError
from npucmp.model import Statistics

PLAIN = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,"
    "Nan Count,Negative Inf Count,Positive Inf Count"
)
CHOSEN = (
    "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value ,Min Value ,Avg Value ,"
    "Nan Count ,Negative Inf Count ,Positive Inf Count ,l2norm"
)
FEW = "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value "


def read(folder: Path, *lines: str):
    file = folder / "Add.add.1.2.1700000000000000.csv"
    file.write_text("".join(f"{line}\n" for line in lines))
    return statistics_csv.read_statistics(str(file))


NAN = Statistics(math.nan, math.nan, math.nan, math.nan)
ROWS = [  # header, what stands after the shape, figures
    (PLAIN, "1.5,-1.2,0.01,1024,0,0,0", Statistics(1.5, -1.2, 0.01)),
    (CHOSEN, "1024,1.5,-1.2,0.01,0,0,0,7.5", Statistics(1.5, -1.2, 0.01, 7.5)),
    (FEW, "1024,1.5", Statistics(1.5)),
    (PLAIN, "NA,NA,NA,1024,NA,NA,NA", None),
    (PLAIN, "12,-3,4.5,1024,0,0,0", Statistics(12, -3, 4.5)),
    (PLAIN, "1.5,-1.2,0.01,1024,1,0,0", NAN),
    (PLAIN, "1.5,-1.2,0.01,1024,1,1,1", NAN),
    (CHOSEN, "1024,1.5,-1.2,0.01,0,0,2,7.5", Statistics(math.inf, -1.2)),
    (CHOSEN, "1024,1.5,-1.2,0.01,0,3,0,7.5", Statistics(1.5, -math.inf)),
    (PLAIN, "inf,-1.2,inf,1024,0,0,1", Statistics(math.inf, -1.2)),
]


@pytest.mark.parametrize("header, cells, figures", ROWS)
def test_figures(tmp_path, header, cells, figures):
    (one,) = read(tmp_path, header, f"Input,0,4096,DT_FLOAT,ND,32x32,{cells}")
    assert (one.slot, one.dtype, one.shape, one.layout, one.problem) == ("input:0", "float32", (32, 32), "ND", "")
    assert one.statistics == pytest.approx(figures, nan_ok=True)
    assert one.payload is None and one.file == ""


def test_inf_of_both_signs(tmp_path):
    (one,) = read(tmp_path, PLAIN, "Output,1,8,DT_FLOAT,ND,2,1,1,1,4,0,1,1")
    assert one.statistics == pytest.approx(Statistics(math.inf, -math.inf), nan_ok=True)


@pytest.mark.parametrize(
    "word, dtype",
    [("DT_FLOAT16", "float16"), ("DT_BF16", "bfloat16"), ("DT_DOUBLE", "float64"), ("DT_INT8", "int8"),
     ("DT_BOOL", "bool"), ("DT_QINT8", "int8"), ("float32", "float32"), ("DT_SOMETHING", "something")],
)  # fmt: skip
def test_types(tmp_path, word, dtype):
    assert read(tmp_path, PLAIN, f"Output,0,8,{word},ND,2,1,1,1,2,0,0,0")[0].dtype == dtype


@pytest.mark.parametrize("text, shape", [("2x3", (2, 3)), ("-", ()), ("", ()), ("7", (7,)), ("0x4", (0, 4))])
def test_shapes(tmp_path, text, shape):
    (one,) = read(tmp_path, PLAIN, f"Output,0,8,DT_FLOAT,ND,{text},1,1,1,2,0,0,0")
    assert (one.shape, one.problem) == (shape, "")


def test_all_rows_in_order_with_labels(tmp_path):
    rows = (f"{role},{i},8,DT_FLOAT,ND,2,1,1,1,2,0,0,0" for role in ("Input", "Output") for i in (0, 1))
    found = read(tmp_path, PLAIN, *rows)
    assert [one.slot for one in found] == ["input:0", "input:1", "output:0", "output:1"]
    assert found[3].label == "Add.add.1.2.1700000000000000.csv:output.1"


def test_one_cell_more_than_the_header(tmp_path):
    (one,) = read(tmp_path, PLAIN, "Output,0,8,DT_FLOAT,ND,2,5,1,1,2,0,0,0,")
    assert (one.problem, one.statistics.max) == ("", 5)


# ---- damage ----

ROW = "Input,0,4096,DT_FLOAT,ND,32x32,1.5,-1.2,0.01,1024,0,0,0"


@pytest.mark.parametrize("row", [ROW[:at] for at in range(8, ROW.rindex(",") + 1) if ROW[at - 1] != ","])
def test_a_row_that_was_cut_short_is_told(tmp_path, row):
    assert read(tmp_path, PLAIN, ROW, row)[-1].problem


@pytest.mark.parametrize("shape", ["2xtwo", "[2, 3]", "-1", "2x-3", "9" * 30, "x".join(["9" * 18] * 5)])
def test_a_shape_that_is_none_is_told(tmp_path, shape):
    assert "shape" in read(tmp_path, FEW, f'Output,0,8,DT_FLOAT,ND,"{shape}",6,1')[0].problem


@pytest.mark.parametrize(
    "lines",
    [(), (PLAIN,), ("a,b,c", "1,2,3"), (PLAIN, "Middle,0,8"), (PLAIN, "Input,x,8"), ("\0" * 9,), ("9" * 200_000,)],
)
def test_what_is_no_table_of_statistics_is_told(tmp_path, lines):
    with pytest.raises(DumpError):
        read(tmp_path, *lines)


@given(st.lists(st.text(st.sampled_from("Input/Output,0129.x-NA \"'eE\n\0²"), max_size=40), max_size=4))
def test_any_text_is_told_or_read(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("any")
    try:
        assert read(folder, PLAIN, *lines)
    except DumpError:
        pass
