"""Tables of MindSpore: columns by name, NaN and Inf put back, rows that name no tensor told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import Limits
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import mindspore_files
from npucmp.dump.readers.mindspore_files import StatisticRow
from npucmp.model import DeviceTask, Statistics

OLD = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value,Count,"
    "Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,Positive Inf Count,Zero Count"
)
NEW = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value"
MERGED = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Size,Data Type,Format,Shape,Max Value,"
    "Min Value,Avg Value,L2Norm Value,MD5 Value,NaN Count,Negative Inf Count,Positive Inf Count"
)
ROW = 'Sub,s,0,0,5,input,0,24,float32,"(2,3)",3,-1,4.5'


def read(folder: Path, *lines: str) -> tuple[list[StatisticRow], list[str]]:
    (folder / "statistic.csv").write_text("\n".join(lines) + "\n")
    notes: list[str] = []
    return mindspore_files.rows(folder / "statistic.csv", notes), notes


def only(folder: Path, header: str, row: str):
    ((_, tensor),), notes = read(folder, header, row)
    assert not notes
    return tensor


@pytest.mark.parametrize(
    "header, row, shape, dtype, statistics",
    [
        (NEW, 'Sub,s,0,0,5,input,0,24,float32,"(2,3)",3,-1,4.5,', (2, 3), "float32", (3, -1, None, 4.5)),
        (NEW, 'Sub,s,0,0,5,output,0,4,bool,"()",True,False,null', (), "bool", (1, 0, None, None)),
        (OLD, 'Sub,s,0,0,5,input,0,2,bfloat16,"(7,)",3,-1,0.5,7,1,2,0,0,0,4', (7,), "bfloat16", (3, -1, 0.5, None)),
        (OLD + ",L2 Value", "Sub,s,0,0,5,input,0,2,int8,7,3,-1,1,7,1,2,0,0,0,4,9", (7,), "int8", (3, -1, 1, 9)),
        (MERGED, "Sub,s,0,0,5,Input,0,9,DT_FLOAT16,ND,2x3,1,0,0.5,2,ab,0,0,0", (2, 3), "float16", (1, 0, 0.5, 2)),
        (MERGED, "Sub,s,0,0,5,Output,0,9,FLOAT,ND,-,1,NA,,nan,ab,0,0,0", (), "float32", (1, None, None, math.nan)),
    ],
)
def test_headers(tmp_path, header, row, shape, dtype, statistics):
    tensor = only(tmp_path, header, row)
    assert (tensor.shape, tensor.dtype, tensor.file, tensor.problem) == (shape, dtype, "", "")
    assert repr(tensor.statistics) == repr(Statistics(*(None if x is None else float(x) for x in statistics)))


@pytest.mark.parametrize(
    "nan, below, above, expected",
    [
        (1, 1, 1, Statistics(math.nan, math.nan, math.nan, math.nan)),
        (0, 0, 2, Statistics(math.inf, 0.0)),
        (0, 2, 0, Statistics(1.0, -math.inf)),
        (0, 2, 2, Statistics(math.inf, -math.inf)),
        ("", "null", "x", Statistics(1.0, 0.0, 0.5, 2.0)),
    ],
)
def test_what_is_not_finite_is_put_back(tmp_path, nan, below, above, expected):
    row = f"Sub,s,0,0,5,input,0,9,float32,ND,2x3,1,0,0.5,2,,{nan},{below},{above}"
    assert repr(only(tmp_path, MERGED, row).statistics) == repr(expected)


def test_checksums(tmp_path):
    row = "Sub,s,0,0,5,input,0,9,float32,ND,2x3,1,0,0.5,2,9e107d9d372bb6826bd81d3542a419d6,0,0,0"
    assert only(tmp_path, MERGED, row).checksum == "9e107d9d372bb6826bd81d3542a419d6"
    row = 'Sub,s,0,0,5,input,0,4,float32,"()",1,1,1,abc'
    assert only(tmp_path, NEW + ",MD5", row).checksum == "abc"


def test_columns_are_found_by_name(tmp_path):
    tensor = only(tmp_path, "Shape,Slot,io,Op Name,Min Value,Data Type,Op Type", '"(4,)",2,INPUT,s,-3,int32,Sub')
    assert (tensor.slot, tensor.shape, tensor.statistics) == ("input:2", (4,), Statistics(min=-3.0))


@pytest.mark.parametrize(
    "shape", ["(-1, 2)", "(9" * 70, "(" + "9" * 30 + ")", "two", "(2, 3.5)", "(" + "9" * 18 + ",9" * 5 + ")"]
)
def test_absurd_shapes_are_unreadable_tensors(tmp_path, shape):
    tensor = only(tmp_path, NEW, f'Sub,s,0,0,5,input,0,24,float32,"{shape}",3,-1,4.5')
    assert "shape" in tensor.problem and tensor.shape == ()


@pytest.mark.parametrize(
    "ids, task",
    [
        ("7,3,5", DeviceTask(7, 3)),
        (",,5", DeviceTask(-1)),
        ("x,-3,5", DeviceTask(-1)),
        ("65535,65535,5", DeviceTask(65535, 65535)),
    ],
)
def test_names(tmp_path, ids, task):
    ((name, tensor),), _ = read(tmp_path, NEW, f"Sub,s,{ids},output,2,24,float32,(),3,-1,4.5")
    assert (name.op_type, name.key, name.time, name.task) == ("Sub", ("s", "output", 2), 5, task)
    assert (tensor.slot, tensor.label) == ("output:2", "Sub.s.5.output.2")


@pytest.mark.parametrize(
    "row", ["Sub", ROW.replace("input", "sideways"), ROW.replace("input,0", "input,-1"), ROW.replace("s,0", ",0")]
)
def test_a_row_that_names_no_tensor_is_told(tmp_path, row):
    found, (note,) = read(tmp_path, NEW, row, ROW)
    assert len(found) == 1 and "1 rows" in note


@pytest.mark.parametrize("lines", [(), (NEW,), (NEW, '"' + "x" * 200_000), (NEW, "\0\0,,,,"), ("a,b", "1,2")])
def test_a_table_without_rows_is_told(tmp_path, lines):
    found, notes = read(tmp_path, *lines)
    assert not found and len(notes) == 1


def test_a_table_that_is_too_large_is_told(tmp_path):
    read(tmp_path, NEW, ROW)
    notes = []
    context = ReadContext(Limits(statistics_bytes=100))
    found, (note,) = mindspore_files.rows(tmp_path / "statistic.csv", notes, context), notes
    assert not found and "more than" in note


@given(st.lists(st.text(st.sampled_from("Subinput,0129.x() \"'eE\n\0²"), max_size=40), max_size=4))
def test_any_text_is_told_or_read(tmp_path_factory, lines):
    found, notes = read(tmp_path_factory.mktemp("any"), NEW, *lines)
    assert found or notes
