"""A layer norm of rows that are constant up to rounding writes rounding there; the error of its other rows counts."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tests.localise.rules.craft import case, ones, rule

RULE = rule("constant_rows")

LIMIT = 8 * 2.0**-24


@pytest.mark.parametrize("settled, came, bound", [
    (None, 0.125, 0.0), (0.0, 0.0, inf), (LIMIT, 0.0, inf), (1.01 * LIMIT, 0.0, 0.0), (0.5, 0.0625, inf),
    (0.51, 0.0625, 0.0),
])  # fmt: skip
def test_the_other_rows_have_the_error_that_rounding_or_growth_explains(settled, came, bound):
    one = case("layer_norm", [ones(9)], ones(64, *[1.0] * 9), input_error=came)
    measurement = one.finding.measurement._replace(settled=settled)
    one = replace(one, finding=one.finding._replace(measurement=measurement))
    assert RULE.bound(one) == bound and RULE.applies(one) == (settled is not None)
    assert not RULE.applies(replace(one, node=None))
