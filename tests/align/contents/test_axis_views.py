"""Two tensors in one shape: the values that are read in the other's order of axes, and the relation in reports."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.axis_views import columns_of, in_one_shape
from npucmp.align.rank_run import Values
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers import header
from npucmp.model import Statistics, TensorRef
from npucmp.model.dump import Device
from npucmp.model.relation import SAME_ORDER, AxisOrder, SliceRelation

RECORDED = Statistics(3.0, -1.0, 0.5, 8.0)
NHWC, NCHW = (2, 4, 5, 3), (2, 3, 4, 5)
TO_NCHW = AxisOrder((0, 3, 1, 2))


@pytest.fixture
def saved(tmp_path):
    """A function that writes values, in C order or in that of Fortran, and returns the tensor."""

    def save(values, order="C", slot="output:0"):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(file, np.asarray(values, order=order))
        return TensorRef(slot, values.dtype.name, values.shape, str(file), "npy", RECORDED, checksum="ab")

    return save


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def read(tensor):
    found = Values(ANYWHERE).array(tensor)
    assert found.shape == tensor.shape
    return found


def on_a_device(tensor):
    return tensor._replace(payload=header("npy", tensor.file, ANYWHERE)._replace(device=Device("NC1HWC0", (1, 48))))


def in_parts(tensor):
    """The tensor as two halves along the first axis."""
    whole = header("npy", tensor.file, ANYWHERE)
    half = whole._replace(shape=(whole.shape[0] // 2, *whole.shape[1:]))
    other = half._replace(offset=whole.offset + 4 * int(np.prod(half.shape)))
    return tensor._replace(payload=whole._replace(parts=(half, other), axis=0))


# The same order of axes


@pytest.mark.parametrize("order", "CF")
def test_a_target_of_another_shape_is_read_in_the_golden_shape(saved, order):
    values, golden = numbers(4, 6), saved(numbers(2, 2, 6))
    target, other = in_one_shape(saved(values, order), golden, SAME_ORDER, ANYWHERE)
    assert other is golden and target.relation is None
    np.testing.assert_array_equal(read(target), values.reshape(2, 2, 6))


def test_a_tensor_of_several_parts_is_read_in_another_shape(saved):
    values = numbers(4, 6)
    target, _ = in_one_shape(in_parts(saved(values)), saved(numbers(3, 8)), SAME_ORDER, ANYWHERE)
    np.testing.assert_array_equal(read(target), values.reshape(3, 8))


def test_a_target_of_the_golden_shape_stays(saved):
    tensors = on_a_device(saved(numbers(4, 6))), saved(numbers(4, 6))
    assert in_one_shape(*tensors, SAME_ORDER, ANYWHERE) == tensors


def test_recorded_statistics_know_no_shape():
    target, golden = (TensorRef("output:0", "float32", shape, statistics=RECORDED) for shape in ((4, 6), (24,)))
    assert in_one_shape(target, golden, SAME_ORDER, ANYWHERE) == (target._replace(shape=(24,)), golden)


# Another order of axes


@pytest.mark.parametrize("order", "CF")
def test_a_target_is_read_in_the_golden_order_of_axes(saved, order):
    values, golden = numbers(*NHWC), saved(numbers(*NCHW))
    target, other = in_one_shape(saved(values, order), golden, TO_NCHW, ANYWHERE)
    assert other is golden and target.relation.words == "permute(0,3,1,2)"
    np.testing.assert_array_equal(read(target), values.transpose(0, 3, 1, 2))
    assert not target.checksum and target.statistics == RECORDED  # no order changes the statistics
    assert not target.payload.parts  # a view of the file


def test_axes_may_also_be_merged(saved):
    values = numbers(*NHWC)
    target, _ = in_one_shape(saved(values), saved(numbers(2, 3, 20)), TO_NCHW, ANYWHERE)
    np.testing.assert_array_equal(read(target), values.transpose(0, 3, 1, 2).reshape(2, 3, 20))
    assert target.relation == TO_NCHW._replace(full=(0, 3, 1, 2))


def test_a_golden_of_more_axes_is_read_in_the_order_of_the_target(saved):
    values, target = numbers(*NCHW), saved(numbers(2, 20, 3))
    order = AxisOrder((0, 2, 3, 1), of_golden=True)
    own, golden = in_one_shape(target, saved(values), order, ANYWHERE)
    assert own == target._replace(relation=order._replace(full=(0, 2, 3, 1)))
    np.testing.assert_array_equal(read(golden), values.transpose(0, 2, 3, 1).reshape(2, 20, 3))
    assert golden.relation is None and not golden.checksum


@pytest.mark.parametrize("turned, other, axes, full", [
    ((1, 4, 1, 3), (1, 1, 3, 4), (1, 0), (0, 2, 3, 1)),  # axes of length one keep their order
    ((1, 4, 3), (3, 1, 4), (1, 0), (2, 0, 1)),
    ((4, 1, 3), (3, 4), (1, 0), (2, 0)),  # another number of axes: those of length one are left out
    ((2, 4, 3), (3, 8, 1), (2, 0, 1), (2, 0, 1)),  # a merged axis leaves room for one of length one
])  # fmt: skip
def test_a_relation_numbers_the_axes_of_the_recorded_shape(saved, turned, other, axes, full):
    values = numbers(*turned)
    target, _ = in_one_shape(saved(values), saved(numbers(*other)), AxisOrder(axes), ANYWHERE)
    assert target.relation == AxisOrder(axes, full=full)
    np.testing.assert_array_equal(read(target), np.squeeze(values).transpose(axes).reshape(other))


def test_recorded_statistics_know_no_order(saved):
    target = TensorRef("output:0", "float32", NHWC, statistics=RECORDED, checksum="ab")
    found, _ = in_one_shape(target, saved(numbers(*NCHW)), TO_NCHW, ANYWHERE)
    relation = TO_NCHW._replace(full=(0, 3, 1, 2))
    assert found == target._replace(shape=NCHW, checksum="", relation=relation)


@pytest.mark.parametrize("order, golden", [(SAME_ORDER, (24,)), (AxisOrder((1, 0)), (6, 4))])
@pytest.mark.parametrize("how", ["missing", "on a device"])
def test_tensors_that_cannot_be_read_in_another_order_have_no_view(saved, order, golden, how):
    tensor = saved(numbers(4, 6))
    tensor = on_a_device(tensor) if how == "on a device" else tensor._replace(file="/none.npy")
    assert in_one_shape(tensor, saved(numbers(*golden)), order, ANYWHERE) is None
    assert columns_of(tensor, 0, 2, (4, 2), ANYWHERE) is None


@pytest.mark.parametrize("change", ["parts", "dataset"])
def test_a_tensor_that_is_not_in_one_piece_is_turned_by_no_view(saved, change):
    tensor = in_parts(saved(numbers(4, 6)))
    if change == "dataset":
        tensor = tensor._replace(payload=tensor.payload._replace(parts=(), dataset="weights"))
    assert in_one_shape(tensor, saved(numbers(6, 4)), AxisOrder((1, 0)), ANYWHERE) is None
    assert columns_of(tensor, 0, 2, (4, 2), ANYWHERE) is None


# Slices


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("start, width, shape", [(0, 2, (2, 3, 2)), (3, 5, (2, 3, 5)), (7, 1, (6,)), (2, 3, (6, 3))])
def test_columns_of_the_last_axis(saved, order, dtype, start, width, shape):
    values = numbers(2, 3, 8, dtype=dtype)
    found = columns_of(saved(values, order), start, width, shape, ANYWHERE)
    np.testing.assert_array_equal(read(found), values[..., start : start + width].reshape(shape))
    assert found.relation == SliceRelation(2, start, start + width)
    assert found.statistics is None and not found.checksum  # those are of the whole


def test_tensors_without_axes_or_values_have_no_columns(saved):
    assert columns_of(saved(np.array(3.0)), 0, 1, (1,), ANYWHERE) is None
    recorded = TensorRef("output:0", "float32", (4, 6), statistics=RECORDED)
    assert columns_of(recorded, 0, 2, (4, 2), ANYWHERE) is None
