"""Rows of tensors by token: runs of neighbouring rows, and the payload that joins them."""

import numpy as np
import pytest

from npucmp.align import token_rows
from npucmp.align.rank_run import Values
from npucmp.align.token_axes import TokenShape
from npucmp.align.token_rows import RowRun, all_rows, coalesced, row_blocks, row_values, selected, step_tensor
from npucmp.dump.limits import ANYWHERE
from npucmp.errors import UnsupportedError
from npucmp.model import Device, Payload, TensorRef

VALUES = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)


def tensor_of(folder, values, **more):
    np.save(folder / "x.npy", values)
    return TensorRef("output:0", values.dtype.name, values.shape, str(folder / "x.npy"), "npy", **more)


@pytest.mark.parametrize(
    "tokens, rows",
    [
        (TokenShape((3, 4)), [RowRun(2, 0, 0, 4), RowRun(2, 1, 0, 4), RowRun(2, 2, 0, 4)]),
        (TokenShape((3, 4), True), [RowRun(2, lane, 0, 3) for lane in range(4)]),
        (TokenShape((12,)), [RowRun(2, 0, 0, 12)]),
    ],
)
def test_all_rows_lane_by_lane(tokens, rows):
    assert all_rows(2, tokens) == rows


@pytest.mark.parametrize(
    "runs, found",
    [
        ([(0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 3, 1)], [(0, 0, 0, 4)]),
        ([(0, 0, 0, 1), (0, 0, 2, 1)], [(0, 0, 0, 1), (0, 0, 2, 1)]),  # a row between them
        ([(0, 0, 1, 1), (0, 0, 0, 1)], [(0, 0, 1, 1), (0, 0, 0, 1)]),
        ([(0, 0, 0, 1), (0, 1, 1, 1)], [(0, 0, 0, 1), (0, 1, 1, 1)]),  # another lane
        ([(0, 0, 0, 1), (1, 0, 1, 1)], [(0, 0, 0, 1), (1, 0, 1, 1)]),  # another step
        ([(0, 0, 0, 0), (0, 0, 5, 1)], [(0, 0, 5, 1)]),
        ([], []),
    ],
)
def test_neighbouring_rows_are_one_run(runs, found):
    assert coalesced([RowRun(*one) for one in runs]) == [RowRun(*one) for one in found]


@pytest.mark.parametrize("turned", [False, True])
def test_selected_rows_stand_side_by_side(tmp_path, turned):
    values = VALUES.swapaxes(0, 1).copy() if turned else VALUES
    one = step_tensor(tensor_of(tmp_path, values), TokenShape(values.shape[:2], turned), Values(ANYWHERE))
    runs = [RowRun(5, 2, 1, 2), RowRun(5, 0, 3, 1)]
    expected = np.concatenate([VALUES[2, 1:3], VALUES[0, 3:]])
    found = selected({5: one}, runs, (2,))
    assert found.shape == (3, 2) and np.array_equal(row_values(found, ANYWHERE), expected)
    assert selected({5: one}, runs, (2, 1)).shape == (3, 2, 1)


def test_rows_of_several_steps(tmp_path):
    steps = {}
    for number, values in enumerate((VALUES[0], VALUES[1, :1] + 100)):
        (tmp_path / str(number)).mkdir()
        tensor = tensor_of(tmp_path / str(number), values)
        steps[number] = step_tensor(tensor, TokenShape(values.shape[:1]), Values(ANYWHERE))
    found = selected(steps, [RowRun(1, 0, 0, 1), RowRun(0, 0, 2, 2)], (2,))
    assert row_values(found, ANYWHERE).tolist() == [*(VALUES[1, :1] + 100).tolist(), *VALUES[0, 2:].tolist()]


def test_rows_of_other_sizes_are_refused(tmp_path):
    one = step_tensor(tensor_of(tmp_path, VALUES), TokenShape((3, 4)), Values(ANYWHERE))
    with pytest.raises(UnsupportedError):
        selected({0: one}, [RowRun(0, 0, 0, 1)], (3,))
    byte = one._replace(payload=one.payload._replace(dtype="int8"))
    assert selected({0: byte}, [RowRun(0, 0, 1, 1)], (2,)).shape == (1, 2)


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1", "unknown"])
def test_rows_of_less_than_a_byte_for_each_value_are_refused(tmp_path, dtype):
    """A row of them need not begin at a byte."""
    one = step_tensor(tensor_of(tmp_path, VALUES), TokenShape((3, 4)), Values(ANYWHERE))
    packed = one._replace(payload=one.payload._replace(dtype=dtype))
    with pytest.raises(UnsupportedError):
        selected({0: packed}, [RowRun(0, 0, 1, 1)], (2,))


PLAIN = Payload("x", "float32", (3, 4, 2), 0)


@pytest.mark.parametrize(
    "payload, has_rows",
    [
        (PLAIN, True),
        (PLAIN._replace(shape=(5, 2)), False),
        (PLAIN._replace(device=Device("FRACTAL_NZ", (3, 4, 2))), False),
        (PLAIN._replace(parts=(PLAIN,)), False),
        (PLAIN._replace(dataset="x"), False),
        (PLAIN._replace(made_by="sum"), False),
        (None, False),
    ],
)
def test_only_plain_values_have_rows(payload, has_rows):
    tensor = TensorRef("output:0", "float32", (3, 4, 2), payload=payload)
    assert (step_tensor(tensor, TokenShape((3, 4)), Values(ANYWHERE)) is not None) is has_rows


@pytest.mark.parametrize("limit, lengths", [(1, [1] * 12), (4, [2] * 6), (5, [2] * 6), (6, [3] * 4), (1 << 20, [12])])
def test_blocks_have_whole_rows(tmp_path, monkeypatch, limit, lengths):
    monkeypatch.setattr(token_rows, "BLOCK", limit)
    one = step_tensor(tensor_of(tmp_path, VALUES), TokenShape((3, 4)), Values(ANYWHERE))
    rows = selected({0: one}, all_rows(0, TokenShape((3, 4))), (2,))
    found = [*row_blocks(rows, ANYWHERE)]
    assert [len(block) for block in found] == lengths and all(block.shape[1] == 2 for block in found)
    assert np.array_equal(np.concatenate(found), VALUES.reshape(-1, 2))


def test_rows_without_an_axis_have_one_value(tmp_path):
    one = step_tensor(tensor_of(tmp_path, VALUES[..., 0]), TokenShape((3, 4)), Values(ANYWHERE))
    rows = selected({0: one}, all_rows(0, TokenShape((3, 4))), ())
    assert rows.shape == (12,) and row_values(rows, ANYWHERE).shape == (12, 1)
    assert next(row_blocks(rows, ANYWHERE)).shape == (12, 1)
