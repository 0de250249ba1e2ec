"""Two tensors in one shape: the values that are read in the other's order of axes, and the relation in reports."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers import header
from npucmp.model import Statistics, TensorRef
from npucmp.model.dump import Device
from npucmp.model.relation import SAME_ORDER, AxisOrder
from npucmp.relations.frameworks.contents.axis_views import columns_of, in_one_shape

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


def on_a_device(tensor):
    return tensor._replace(payload=header("npy", tensor.file, ANYWHERE)._replace(device=Device("NC1HWC0", (1, 48))))


# The same order of axes


def test_recorded_statistics_know_no_shape():
    target, golden = (TensorRef("output:0", "float32", shape, statistics=RECORDED) for shape in ((4, 6), (24,)))
    assert in_one_shape(target, golden, SAME_ORDER, ANYWHERE) == (target._replace(shape=(24,)), golden)


# Another order of axes


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
