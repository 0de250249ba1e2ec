"""The parts of a detail: the worst elements over blocks, histograms, grids and masks, of crafted values."""

from __future__ import annotations

import numpy as np

from npucmp.measure.error_map import tensor_detail
from tests.measure.test_error_map import finding


def test_a_detail_needs_both_sides_and_values(tmp_path):
    one = finding(tmp_path, np.ones(4, np.float32), np.zeros(4, np.float32))
    for side in ("target", "golden"):
        for tensor in (None, getattr(one.pair, side)._replace(file="")):
            pair = one.pair._replace(**{side: tensor})
            assert tensor_detail(one._replace(measurement=one.measurement._replace(pair=pair))) is None
    assert tensor_detail(one).vendor is None and tensor_detail(one, vendor=True).vendor is not None
