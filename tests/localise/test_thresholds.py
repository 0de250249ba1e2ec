"""The limits of tensors of which only statistics or checksums were recorded."""

from types import SimpleNamespace

import pytest

from npucmp import RULES, Tolerances
from npucmp.judge.precision import Precision
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import OTHER_NODE, make_findings, undecided_nodes
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Statistics, TensorRef, Verdict


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


def calls(*, forward=Verdict.MATCH, path="", alone=False, kinds=("add", "add"), error=0.5, first=Verdict.DIVERGED,
          second=Verdict.MATCH, slot="output:0"):  # fmt: skip
    """Findings of two calls, each with a forward and a backward. The backward of the first call wrote another shape;
    `first` and `second` are the outputs of the second backward, with the error of the first output."""
    made = []
    for order, (number, phase) in enumerate((n, phase) for phase in ("forward", "backward") for n in (0, 1)):
        op = Operator(f"{kinds[number]}.{number}.{phase}", kinds[number], kinds[number], phase, order, (),
                      call=f"{kinds[number]}.{number}", path=path)  # fmt: skip
        verdicts = ((slot, Verdict.SHAPE),) if not number else (("output:0", first), ("output:1", second))
        verdicts = (("output:0", forward),) if phase == "forward" else verdicts
        for name, verdict in verdicts:
            tensor = TensorRef(name, "float32", (4,))
            pair = Pair(order, name, None if alone and phase == "backward" else op, op, tensor, tensor)
            made.append(Finding(Measurement(pair), verdict, "words", error if name == "output:0" else 1.0))
    return made


@pytest.mark.parametrize(
    "change, verdicts",
    [
        ({}, "UNKNOWN UNKNOWN MATCH"),
        ({"error": 0.49}, "UNKNOWN DIVERGED MATCH"),
        ({"error": None}, "UNKNOWN DIVERGED MATCH"),
        ({"error": 0.9, "first": Verdict.NONFINITE}, "UNKNOWN NONFINITE MATCH"),
        ({"error": 0.9, "first": Verdict.MATCH}, "UNKNOWN MATCH MATCH"),
        ({"first": Verdict.MATCH, "second": Verdict.MISSING}, "UNKNOWN MATCH MISSING"),
        ({"error": 0.1, "second": Verdict.MISSING}, "UNKNOWN UNKNOWN MISSING"),
        ({"error": 0.1, "second": Verdict.SHAPE}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"second": Verdict.NONFINITE}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"second": Verdict.DIVERGED}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"kinds": ("add", "mul")}, "UNKNOWN DIVERGED MATCH"),  # no call of this kind is proven to have two
        ({"slot": "input:0"}, "SHAPE DIVERGED MATCH"),
        ({"forward": Verdict.SHAPE}, "SHAPE DIVERGED MATCH"),
        ({"alone": True}, "SHAPE DIVERGED MATCH"),
        ({"path": "layer"}, "SHAPE DIVERGED MATCH"),
    ],
)
def test_outputs_of_another_autograd_node_of_a_call_are_undecided(change, verdicts):
    """The forwards agree in shape, and an output of a backward does not: the two runs recorded two nodes of the call.
    So do other calls of the kind whose first output is unrelated, or that have an output of another shape."""
    findings = calls(**change)
    found = undecided_nodes(findings)
    assert [one.verdict.name for one in found[2:]] == verdicts.split() and found[:2] == findings[:2]
    for one, before in zip(found, findings):
        assert one == before or (one.rule, one.error, before.because in one.because) == (OTHER_NODE, None, True)
