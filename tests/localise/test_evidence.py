"""The sentences that say why an operator is suspected."""

from __future__ import annotations

import pytest

from npucmp.localise.evidence import argument_words, pattern_words
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict

X, Y = TensorRef("input:0", "float32", (4,)), TensorRef("output:0", "float32", (4,))


def operator(*tensors, reads_recorded=True, **arguments) -> Operator:
    return Operator("norm", "norm", "norm", "", 0, tensors, arguments=arguments, reads_recorded=reads_recorded)


GIVEN = operator(X, Y, eps=1e-5)


@pytest.mark.parametrize(
    "target, says",
    [
        (operator(X, Y, eps=1e-3), "argument eps is 0.001 in the target, 1e-05 in the golden"),
        (operator(X, Y), "argument eps is 'absent' in the target, 1e-05 in the golden"),
        (operator(Y, dim=1), "argument eps is 'absent' in the target, 1e-05 in the golden"),
        (operator(X, Y, reads_recorded=False), ""),
        (operator(Y), ""),
        (operator(), ""),
    ],
    ids=["differs", "left out", "another", "reads not recorded", "outputs alone", "nothing"],
)
def test_an_argument_is_absent_only_where_arguments_would_stand(target, says):
    words = [one.sentence() for one in argument_words(Pair(0, "output:0", target, GIVEN, Y, Y))]
    assert says in words if says else words == []
    back = argument_words(Pair(0, "output:0", GIVEN, target, Y, Y))
    assert bool(back) == bool(says)


@pytest.mark.parametrize(
    "scale, says",
    [(0.01, "1.01"), (-0.5, "0.5"), (1.27e-4, "1.00013"), (1e-7, "1+1.0e-07"), (-3e-6, "1-3.0e-06")],
)
def test_a_factor_next_to_one_is_told_apart_from_it(scale, says):
    moments = Moments(4, compared=4, yy=1.0, xy=1.0 + scale, sum_dd=scale**2, max_abs=abs(scale))
    found = Finding(Measurement(Pair(0, "output:0", GIVEN, GIVEN, Y, Y), moments), Verdict.DIVERGED, "")
    assert [one.sentence() for one in pattern_words(found)] == [f"the target is {says} times the golden as a whole"]
