"""What a scan tells of each tensor: of values, of statistics, of what cannot be read; shared values are read once."""

import json
import math

import numpy as np
import pytest

from npucmp import open_runs
from npucmp.measure.range_scan import recorded_extremes, scan, scan_tensor
from npucmp.model import Extremes, Operator, Statistics, TensorRef
from tests.synthetic import write_run

OPERATOR = Operator("op", "op", "op", "", 0, ())


def of(**figures):
    """What is known of a float16 tensor of four elements with these recorded figures."""
    return scan_tensor(OPERATOR, TensorRef("output:0", "float16", (4,), statistics=Statistics(**figures)))


def scanned(folder, jobs=1):
    return list(scan(open_runs(folder)[0].operators, jobs))


def test_values_are_counted(tmp_path):
    x = np.array([[1, np.nan], [-np.inf, 65504]], np.float16)
    row = scanned(write_run(tmp_path, {"Torch.exp.0.forward": {"in": [], "out": [x]}}))[0]
    assert row.counted and row.bytes_read == 8
    assert row.extremes == Extremes(4, 1, 0, 1, 1, 0, 0, 1, 2, 3, 1.0, 65504.0)


@pytest.mark.parametrize("jobs", [1, 3])
def test_rows_come_in_the_order_of_the_run(tmp_path, jobs):
    x = np.ones(3, np.float32)
    run = {f"Torch.add.{i}.forward": {"in": [x * i, x], "out": [x * (i + 1)]} for i in range(5)}
    rows = scanned(write_run(tmp_path, run), jobs)
    assert [(row.operator.order, row.tensor.slot) for row in rows] == [
        (i, slot) for i in range(5) for slot in ("input:0", "input:1", "output:0")
    ]
    assert [row.extremes.maximum for row in rows if row.tensor.is_output] == [1, 2, 3, 4, 5]


def test_a_file_that_two_records_name_is_read_once(tmp_path):
    write_run(tmp_path, {"Torch.add.0.forward": {"in": [np.ones(4, np.float32)], "out": [np.ones(4, np.float32)]}})
    file = tmp_path / "step0" / "proc1" / "dump.json"
    file.write_text(file.read_text().replace("forward.output.0.npy", "forward.input.0.npy"))
    assert [row.bytes_read for row in scanned(tmp_path)] == [16, 0]
    assert len({row.extremes for row in scanned(tmp_path)}) == 1


@pytest.mark.parametrize(
    "figures, told",
    [
        ({"max": 2.0, "min": -1.0}, {}),
        ({"max": math.nan, "min": math.nan}, {"nan": 1}),
        ({"max": math.inf, "min": -1.0}, {"posinf": 1}),
        ({"max": 1.0, "min": -math.inf}, {"neginf": 1}),
        ({"max": 65504.0, "min": -65504.0}, {"high": 1, "low": 1}),
        ({"max": 2.0, "min": 1.0, "mean": math.nan}, {"nan": 1}),  # a producer that leaves NaN out of the maximum
        ({"max": math.inf, "min": -math.inf, "mean": math.nan}, {"posinf": 1, "neginf": 1}),  # Inf-Inf
        ({"max": 2.0, "min": 1.0, "norm": math.inf}, {}),  # squares overflow first
    ],
)
def test_statistics_tell_that_there_is_an_event_but_not_how_many(figures, told):
    row = of(**figures)
    assert not row.counted
    names = ("nan", "posinf", "neginf", "high", "low")
    assert {name: getattr(row.extremes, name) for name in names if getattr(row.extremes, name)} == told


def test_nothing_is_known_of_a_checksum():
    row = scan_tensor(OPERATOR, TensorRef("output:0", "float16", (4,), checksum="abcd"))
    assert (row.extremes, row.problem) == (None, "")


def test_an_empty_tensor_is_known_to_hold_nothing(tmp_path):
    assert scan_tensor(OPERATOR, TensorRef("output:0", "float16", (0, 3))).extremes == Extremes()
    run = {"Torch.cat.0.forward": {"in": [np.ones((0, 3), np.float16)], "out": [np.array(np.inf, np.float16)]}}
    empty, scalar = scanned(write_run(tmp_path, run))
    assert (empty.extremes, empty.problem) == (Extremes(), "")
    assert (scalar.extremes.elements, scalar.extremes.posinf) == (1, 1)


def test_a_broken_file_is_a_problem_of_its_own_tensor(tmp_path):
    x = np.ones(3, np.float32)
    write_run(tmp_path, {"Torch.add.0.forward": {"in": [x], "out": [x]}})
    data = tmp_path / "step0" / "proc1" / "dump_tensor_data"
    (data / "Torch.add.0.forward.input.0.npy").write_bytes(b"\x93NUMPY")
    (data / "Torch.add.0.forward.output.0.npy").unlink()
    rows = scanned(tmp_path)
    assert all(row.extremes is None and row.problem for row in rows)


def test_padding_of_a_device_layout_is_no_event(tmp_path):
    from tests.dump.readers.craft_cann import FRACTAL_NZ, tensor, v2

    stored = np.full((1, 1, 16, 16), np.inf, np.float16)
    stored[0, 0, :3, :5] = 1
    file = tmp_path / "MatMul.net_matmul.1.3.1700000000000000"
    file.write_bytes(v2([], [tensor(stored, FRACTAL_NZ, (3, 5))], "net/matmul"))
    (row,) = scanned(tmp_path)
    assert json.dumps(row.extremes[:6]) == "[15, 0, 0, 0, 0, 0]"


LARGEST = {"float16": 65504.0, "int8": 127.0, "odd": 127.0}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("high, low", [(1.0, 0.0), (LARGEST, 0.0), (1.0, LARGEST), (LARGEST, LARGEST)])
def test_recorded_extremes_at_the_limits_of_a_float_type_are_saturation(dtype, high, low):
    top, bottom = (LARGEST[dtype] if one is LARGEST else one for one in (high, low))
    found = recorded_extremes(TensorRef("output:0", dtype, (4,), statistics=Statistics(top, -bottom)))
    limits = (int(high is LARGEST), int(low is LARGEST)) if dtype == "float16" else (0, 0)
    assert (found.high, found.low, found.elements, found.maximum, found.minimum) == (*limits, 4, top, -bottom)


def test_a_scan_keeps_the_operator_and_the_tensor_beside_the_result(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(70_000, dtype=np.float32))
    one = TensorRef("output:0", "float32", (70_000,), str(tmp_path / "x.npy"), "npy")
    found = scan_tensor(OPERATOR, one)
    assert (found.operator, found.tensor, found.bytes_read, found.problem) == (OPERATOR, one, 280_000, "")
    assert (found.extremes.zeros, found.extremes.maximum, found.counted) == (1, 69_999.0, True)  # of two blocks
    for change in ({"file": ""}, {"problem": "damaged"}, {"shape": (9,)}):
        other = one._replace(**change)
        found = scan_tensor(OPERATOR, other)
        assert (found.operator, found.tensor, bool(found.problem)) == (OPERATOR, other, "file" not in change)


@pytest.mark.parametrize("place", [(0, 1), (1, 0)])
def test_the_first_of_several_blocks_counts(tmp_path, place):
    values = np.zeros(200_000, np.float32)
    values[70_000] = values[150_000] = np.nan
    values[[3, 199_999][place[0]]] = np.inf
    np.save(tmp_path / "x.npy", values)
    one = TensorRef("output:0", "float32", values.shape, str(tmp_path / "x.npy"), "npy")
    found = scan_tensor(OPERATOR, one).extremes
    assert (found.first_nan, found.first_inf, found.nan) == (70_000, [3, 199_999][place[0]], 2)
