"""The limit below the smallest normal number."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, rule, without_values

RULE = rule("subnormal")

normal, _ = drawn(__name__)

SMALL = normal(32, 32, size=1e-7)


class TestSubnormal(RuleContract):
    name = "subnormal"
    fires = {"float16 gradients": case("linear", [(SMALL, SMALL)], (SMALL, SMALL, "float16"), phase="backward")}
    silent = {
        "bfloat16 reaches as far as float32": case("tanh", [(SMALL, SMALL)], (SMALL, SMALL, "bfloat16")),
        "of ordinary size": case("tanh", [(SMALL, SMALL)], (1e7 * SMALL, 1e7 * SMALL, "float16")),
    }


TINY, U = 2.0**-14, 2.0**-11  # of float16


def of_size(size, off=0.0, *types):
    return case("tanh", [], (np.full(16, size) + off, np.full(16, size), *(types or ("float16",))), round_off=U)


@pytest.mark.parametrize(
    "size, times", [(TINY / 4, 4.0), (TINY / 1.01, 1.01), (TINY, None), (1.0, None), (-TINY / 2, 2.0)]
)
@pytest.mark.parametrize("types", [("float16",), ("float16", "float32"), ("float32", "float16")])
def test_the_limit_grows_below_the_smallest_normal_number(size, times, types):
    """That of the coarser type, to the root mean square of the golden."""
    one = of_size(size, 0.0, *types)
    assert RULE.applies(one) == (times is not None)
    if times:
        assert RULE.bound(one) == pytest.approx(8 * U * times)


@pytest.mark.parametrize("off, applies", [(TINY * U, True), (TINY * U * 1.01, False), (0.0, True)])
def test_a_golden_of_zeros_may_have_been_rounded_to_zero(off, applies):
    one = of_size(0.0, off)
    assert RULE.applies(one) == applies and (not applies or RULE.bound(one) == inf)


def test_only_values_of_a_float_type_are_small():
    assert not RULE.applies(replace(of_size(1e-9), finding=without_values(of_size(1e-9).finding)))
    assert not RULE.applies(of_size(nan)) and not RULE.applies(of_size(0.0, 0.0, "int32"))
    assert not RULE.applies(of_size(1e-9, 0.0, "strange", "strange"))
    assert RULE.bound(of_size(1e-200)) == inf
