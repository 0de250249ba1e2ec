"""The limit of long sums in float32."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled, without_values

RULE = rule("long_sums")

normal, _ = drawn(__name__)

LONG, WIDE, OUT = normal(4, 4096), normal(4096, 4), normal(4, 4)
PRODUCT = [(LONG, LONG), (WIDE, WIDE)]


class TestLongSums(RuleContract):
    name = "long_sums"
    fires = {
        **spelled("linear", lambda op: case(op, PRODUCT, (OUT, OUT))),
        **spelled("sum", lambda op: case(op, [(LONG, LONG)], (OUT[:1], OUT[:1]))),
    }
    silent = {
        "short": case("linear", [(OUT, OUT), (OUT, OUT)], (OUT, OUT)),
        "16 bits are summed in 32": case("linear", PRODUCT, (OUT, OUT, "bfloat16")),
        "HF32": case("linear", PRODUCT, (OUT, OUT), precision=Precision(2.0**-24, reduced=True)),
        "no sum": case("tanh", [(LONG, LONG)], (LONG, LONG)),
    }


def test_it_grows_with_the_root_of_the_terms(rulebook):
    assert rulebook.limit(TestLongSums.fires["linear"]).value == 8 * 2.0**-24 * 64 / 16


@pytest.mark.parametrize("precision, applies", [
    (Precision(2.0**-24), True), (Precision(2.0**-53), True), (Precision(2.0**-23), False),
    (Precision(0.0), False),
    (Precision(2.0**-24, reduced=True), False), (Precision(2.0**-24, quantised=True), False),
])  # fmt: skip
def test_float32_and_wider_types_accumulate_in_themselves(precision, applies):
    one = case("linear", PRODUCT, (OUT, OUT), precision=precision)
    assert RULE.applies(one) == applies
    assert not RULE.applies(replace(one, finding=without_values(one.finding)))


@pytest.mark.parametrize("terms", [1, 256, 2**24, 2**26])
def test_the_limit_counts_terms_up_to_a_number_that_a_shape_may_claim(terms):
    """Sixteen terms and fewer are rounded as one operator."""
    one = case("sum", [(LONG, LONG)], (OUT[:1, :1], OUT[:1, :1]), precision=Precision(2.0**-24))
    operator = one.pair.golden_op
    tensors = tuple(t if t.is_output else t._replace(shape=(terms,)) for t in operator.tensors)
    pair = one.pair._replace(golden_op=operator._replace(tensors=tensors))
    counted = replace(one, finding=one.finding._replace(measurement=one.finding.measurement._replace(pair=pair)))
    assert RULE.bound(counted) == 8 * 2.0**-24 * sqrt(min(terms, 2**24)) / 16
