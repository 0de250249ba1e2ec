"""The limits of tensors of which only statistics or checksums were recorded."""

import pytest

from npucmp import Tolerances
from npucmp.localise.autograd_nodes import undecided_nodes
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import make_findings
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import OTHER_NODE


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
    changes = undecided_nodes(findings)
    found = [changes.get(at, one) for at, one in enumerate(findings)]
    assert [one.verdict.name for one in found[2:]] == verdicts.split() and found[:2] == findings[:2]
    for one, before in zip(found, findings):
        assert one == before or (one.rule, one.error, before.because in one.because) == (OTHER_NODE, None, True)


# Findings of one run, in its order


def found(*measurements, reduced=False, **options):
    return make_findings(measurements, Tolerances(**options), Rulebook(), reduced)
