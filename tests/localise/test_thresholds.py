"""The limits of tensors of which only statistics or checksums were recorded."""

from types import SimpleNamespace

import pytest

from npucmp import RULES, Tolerances
from npucmp.judge.precision import Precision
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import make_findings
from npucmp.model import Measurement, Moments, Operator, Pair, Statistics, TensorRef


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.kind == "limit"], ids=lambda rule: rule.name)
def test_without_values_a_limit_sees_the_precision_alone(rule):
    """So judged() asks for it once for each precision: whatever else a rule looks at is not there."""
    for precision in (Precision(), Precision(2.0**-24), Precision(2.0**-8, reduced=True), Precision(quantised=True)):
        case = SimpleNamespace(moments=None, precision=precision, pair=SimpleNamespace(target=None))
        assert not rule.applies(case) or rule.bound(case) >= 0.0


def test_values_beside_statistics_keep_limits_of_their_own():
    """A float16 gradient of values far below its smallest normal number has a wider limit than its statistics would."""
    tensor = TensorRef("output:0", "float16", (64,), statistics=Statistics(1.0, -1.0, 0.0, 4.0))
    operator = Operator("f.0.forward", "f", "f.forward", "forward", 0, (tensor,))
    pair = Pair(0, "output:0", operator, operator, tensor, tensor)
    told = Measurement(pair, bound=0.0, statistics=(tensor.statistics, tensor.statistics))
    tiny = Measurement(
        pair, Moments(64, compared=64, yy=64 * 2.0**-40, xx=64 * 2.0**-40, sum_dd=2.0**-60, max_abs=1e-9)
    )
    first, values, again = make_findings([told, tiny, told], Tolerances(), Rulebook())
    assert (first.rule, again.rule) == ("", "") and values.rule == "subnormal"
    assert values.limit == pytest.approx(8 * 2.0**-11 * 2.0**-14 / 2.0**-20)
