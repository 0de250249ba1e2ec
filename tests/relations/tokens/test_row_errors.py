"""The errors of rows and of columns, against sums over Python's own numbers."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure.pairs import payload_of
from npucmp.model import Pair, TensorRef
from npucmp.relations.tokens.row_errors import column_errors, row_errors


def pair(folder, target, golden):
    """A pair of .npy files; None is a side without a tensor."""
    refs = []
    for name, values in (("target", target), ("golden", golden)):
        if values is not None:
            np.save(folder / f"{name}.npy", values)
            one = TensorRef("output:0", str(values.dtype), values.shape, str(folder / f"{name}.npy"), "npy")
            refs.append(one._replace(payload=payload_of(one)))
        else:
            refs.append(None)
    return Pair(0, "output:0", None, None, *refs)


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (None, np.ones((2, 3))),
        (np.ones((2, 3)), None),
        (np.ones((2, 3)), np.ones((2, 4))),
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones(()), np.ones(())),
        (np.ones((0, 3)), np.ones((0, 3))),
        (np.ones((3, 0)), np.ones((3, 0))),
    ],
)
def test_sides_without_rows_of_one_shape_have_no_errors(tmp_path, target, golden):
    own = pair(tmp_path, target, golden)
    assert row_errors(own, ANYWHERE) is None and column_errors(own, np.array([True] * 3), ANYWHERE) is None
