"""The limit of long sums in float32."""

from __future__ import annotations

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, spelled

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
