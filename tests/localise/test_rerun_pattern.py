"""The words for the places of differing elements, and their frequent causes."""

import math

import numpy as np

from npucmp.measure.bitwise import BitDifferences
from npucmp.model import Device, Measurement, Moments, Operator, Pair, Payload, TensorRef
from npucmp.reruns.pattern import differing_elements, pattern
from tests.relations.weights.craft import Files

FAR = {"sum_dd": 1.0, "yy": 1.0}  # no rounding


def measured(shape, device=None, dtype="float32", **moments):
    payload = Payload("absent", dtype, shape, 0, device=device)
    tensor = TensorRef("output:0", dtype, shape, payload=payload)
    op = Operator("f.0", "f", "f", "forward", 0, (tensor,))
    count = math.prod(shape)
    return Measurement(Pair(0, "output:0", op, op, tensor, tensor), Moments(count, compared=count, **(moments or FAR)))


def words(shape, places, device=None, are_kept=True, **moments):
    """The evidence for these differing elements; their places are not kept if they are too many."""
    places = np.unique(places)
    found = BitDifferences(len(places), int(places[0]), int(places[-1]) + 1, places if are_kept else None)
    return "; ".join(reason.sentence() for reason in pattern(measured(shape, device, **moments), found))


def grid(*shape):
    return np.arange(math.prod(shape)).reshape(shape)


SCATTERED = "the differing elements are scattered"
MEMORY = "; hint: memory overwritten, or copied before it was written"


def test_two_blocks_of_a_device_are_named_in_its_memory():
    shape = 2, 4, 32, 40, 16
    stored = grid(2, 64, 32, 40).reshape(2, 4, 16, 32, 40).transpose(0, 1, 3, 4, 2).ravel()
    places = np.r_[stored[4096:6144], stored[40960:43008]]
    found = words((2, 64, 32, 40), places, Device("NC1HWC0", shape, "NCHW"))
    assert found == "2 blocks of 2,048 elements in memory (NC1HWC0), from 4,096, 40,960 on" + MEMORY
    assert words((2, 64, 32, 40), places, Device("NC1HWC0", shape, "NCHW"), are_kept=False) == SCATTERED


# What has no pattern


def test_without_values_there_is_no_pattern():
    one, found = measured((4, 4)), BitDifferences(16, 0, 16, None)
    lost = one.pair.golden._replace(payload=None, problem="lost")
    for golden in (None, lost, lost._replace(problem="")):
        assert pattern(one._replace(pair=one.pair._replace(golden=golden)), found) == ()
    assert pattern(one._replace(moments=None), found) == ()


def test_the_elements_that_differ(tmp_path):
    files = Files(tmp_path)
    one = measured((4,))
    x, y = files([1.0, 2.0, 3.0, 4.0]), files([1.0, 5.0, 3.0, 5.0])
    pair = one.pair._replace(target=x, golden=y)
    found = differing_elements(one._replace(pair=pair))
    assert (found.number, found.first, found.end, [*found.places]) == (2, 1, 4, [1, 3])
    for change in (
        {"target": None},
        {"golden": None},
        {"golden": x},
        {"golden": x._replace(problem="x", payload=None)},
    ):
        assert differing_elements(one._replace(pair=pair._replace(**change))) is None
    assert differing_elements(one._replace(pair=pair, moments=None)) is None
