"""Two codings of one network: one product for three, two multiplications for one. Whose partner is whose?"""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.content_match import MOST, content
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, TensorRef
from npucmp.model.dump import Statistics
from tests.align.craft import both_phases


def alone(*tags):
    return both_phases(*tags)


# The similarity of two operators


class Saved:
    """Tensors whose values are in files, or that have a record alone."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def tensor(self, one, slot, shape=(4, 4)):
        if isinstance(one, Statistics):
            return TensorRef(slot, "float32", shape, statistics=one)
        if isinstance(one, str):
            return TensorRef(slot, "float32", shape, checksum=one, statistics=Statistics(3.0, -1.0, 0.5, 8.0))
        if one is None:
            return TensorRef(slot, "float32", shape)
        self.count += 1
        np.save(self.folder / f"{self.count}.npy", one)
        return TensorRef(slot, one.dtype.name, one.shape, str(self.folder / f"{self.count}.npy"), "npy")

    def operator(self, kind="exp", phase="forward", **tensors):
        """Tensors by slot, as input_0."""
        refs = tuple(self.tensor(one, slot.replace("_", ":")) for slot, one in tensors.items())
        return Operator(f"{kind}.0", kind, kind, phase, 0, refs)

    def alike(self, one, other, slot="input_0", kind="exp"):
        """The similarity of two operators that have one tensor each."""
        pair = (self.operator(kind, **{slot: each}) for each in (one, other))
        return alike(*pair)


def alike(one, other):
    found = content([one], [other], ANYWHERE)
    return float(found.like[0, 0]), bool(found.other[0, 0]), bool(found.same_weights[0, 0])


@pytest.fixture
def saved(tmp_path):
    return Saved(tmp_path)


def vector(*values, dtype=np.float32):
    return np.array([*values, *[0] * (4 - len(values))], dtype)


SIXTEEN = vector(16)


def test_equal_checksums_are_equal_tensors(saved):
    assert saved.alike("12ab", "12ab") == (1.0, False, False)
    assert saved.alike("12ab", "12ac") == (0.0, True, False)
    assert saved.alike("0x12ab34cd56789012", "0x12ab34cd56789012") == (1.0, False, False)
    assert saved.alike("0x0", "0x0") == (0.0, False, False)  # that of any constant, whatever the statistics are


@pytest.mark.parametrize("more, is_read", [(0, True), (1, False)])
def test_a_stretch_of_too_many_tensors_is_not_read(saved, more, is_read):
    assert MOST == 4096
    read = saved.operator(**{"param:w": SIXTEEN, "input_0": vector(2)})
    many = tuple(TensorRef(f"input:{at}", "float32", (4,)) for at in range(1, 4096 - 3 + more))
    found = content(
        [read], [read._replace(tensors=(*read.tensors[:1], *many)), saved.operator(output_0=SIXTEEN)], ANYWHERE
    )
    assert found.like.shape == found.other.shape == found.same_weights.shape == (1, 2)
    assert bool(found.like.any()) is bool(found.same_weights.any()) is is_read
