"""What operators of a kind have in common, and what a run that computes activations again cannot tell."""

from npucmp.model import Operator, ReplayedOutput, ReplayVerdict
from npucmp.recompute.kind_baseline import mark_doubtful


def operators(*names):
    """By order; "a.0.forward" is of the call a.0."""
    found = {}
    for order, name in enumerate(names):
        kind, number, phase = name.split(".")
        found[order] = Operator(name, kind, f"{kind}.{phase}", phase, order, (), call=f"{kind}.{number}")
    return found


def row(order, ratio, rel_l2=1e-5, verdict=ReplayVerdict.GUILTY, unit=2.0**-24):
    figures = {"rms_ratio": ratio, "rel_l2": rel_l2, "rel_l2_u": rel_l2 / unit, "budget": "noise"}
    return ReplayedOutput(order, "output:0", verdict=verdict, **figures)


def test_gradients_after_a_guilty_forward_that_may_have_run_again():
    again = operators("a.0.forward", "b.0.forward", "b.0.backward", "b.1.forward", "b.1.backward", "a.0.backward")
    rows = [row(0, 9.0), row(4, 9.0), row(5, 9.0)]
    assert [one.verdict.value for one in mark_doubtful(rows, again)] == ["GUILTY", "UNKNOWN", "GUILTY"]
    kept = operators("a.0.forward", "b.0.forward", "b.0.backward", "a.0.backward")
    rows = [row(0, 9.0), row(2, 9.0), row(3, 9.0)]
    assert mark_doubtful(rows, kept) == rows
    clean = [row(0, 0.5, verdict=ReplayVerdict.CLEAN), row(4, 9.0)]
    assert mark_doubtful(clean, again) == clean
