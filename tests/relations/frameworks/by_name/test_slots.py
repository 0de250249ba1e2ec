"""Tensors of a partner from another framework: their shapes, their samples, and which of them belong together."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, Payload, TensorRef
from npucmp.relations.frameworks.by_name.slots import ends_of, reshape_leading
from tests.relations.frameworks.by_name.craft import NZ, Files, drawn


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def place(path, shape=(6, 8), **more):
    return Payload(str(path), "float32", shape, 0)._replace(**more)


# Shapes


@pytest.mark.parametrize("change", [{"problem": "cut"}, {"file": "absent.npy"}, {"payload": place("x", device=NZ)}])
def test_a_tensor_whose_order_is_not_known_keeps_its_shape(files, change):
    one = files.tensor("output:0", drawn(6, 8))._replace(**change)
    assert reshape_leading(one, (2, 3, 8), ANYWHERE) is one


# Samples


@pytest.mark.parametrize("one", [np.arange(20).reshape(4, 5), np.zeros((0, 5), np.float32), np.float32(3.0), (4, 5)])
def test_tensors_without_samples(files, one):
    assert ends_of(files.tensor("output:0", one), ANYWHERE) is None


@pytest.mark.parametrize("change", [{"device": NZ}, {"dataset": "/x"}, {"parts": (place("x"),)}, {"path": "absent"}])
def test_places_without_samples(files, change):
    payload = place(files.folder / "x")._replace(**change)
    drawn(6, 8).tofile(files.folder / "x")
    assert ends_of(TensorRef("output:0", "float32", (6, 8), payload=payload), ANYWHERE) is None


# Operands


def read(files, name, *tensors, op_type="add", path="", **arguments):
    refs = tuple(files.tensor(slot, one, label) for slot, one, label in tensors)
    return Operator(name, op_type, name, "forward", 0, refs, call=name, path=path,
                    arguments={slot.replace("_", ":"): value for slot, value in arguments.items()})  # fmt: skip


# Slots


def refs(files, *tensors):
    return read(files, "one", *((slot, TensorRef("", dtype, shape), label) for slot, dtype, shape, label in tensors))
