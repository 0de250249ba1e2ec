"""Conclusions from the figures of one golden tensor: constants, masks, expansions and casts."""

import numpy as np
import pytest

from npucmp.localise.golden_rows import is_mask, rounds_to
from npucmp.model import Finding, Side
from npucmp.model.dtypes import SUM_ROUNDING
from tests.localise.networks import network


def row_of(values: np.ndarray) -> Finding:
    return network("relu t ->", t=np.asarray(values))[0]


def test_a_mask_is_known_within_the_rounding_of_sums():
    row = row_of(np.float32([0.0, -1e4, -1e4]))
    moments = row.measurement.moments
    for away, found in ((0.5 * SUM_ROUNDING, True), (2 * SUM_ROUNDING, False)):
        side = moments.golden._replace(squares=moments.golden.squares * (1 + away))
        measured = row.measurement._replace(moments=moments._replace(golden=side))
        assert is_mask(row._replace(measurement=measured)) is found


SIDE, UNIT = Side(minimum=-4.0, maximum=8.0, total=5.0, squares=100.0), 2.0**-8


@pytest.mark.parametrize("field", ["nan", "posinf", "neginf"])
def test_a_rounded_tensor_has_the_same_numbers_of_nan_and_infinities(field):
    assert rounds_to(SIDE, SIDE, 0.0)
    assert not rounds_to(SIDE, SIDE._replace(**{field: 1}), UNIT)
    assert rounds_to(SIDE._replace(**{field: 1}), SIDE._replace(**{field: 1}), UNIT)
