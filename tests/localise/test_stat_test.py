"""Proven roots among statistics, by hand: which rest on more than figures within the noise."""

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.localise.stat_facts import merge_facts
from npucmp.localise.stat_test import NoiseTest
from npucmp.model import Cause, Finding, Measurement, Operator, Pair, Root, Statistics, TensorRef, Verdict

FIGURES = Statistics(4.0, -2.0, 0.1, 10.0)
SLOTS = ("input:0", "input:1", "output:0")  # of a product: the second input is its parameter


def is_beyond(slot, first, **change):
    """Whether a root of a product is beyond the noise; `change` is what is known of all its tensors."""
    refs = [TensorRef(one, "float32", (64, 64), statistics=FIGURES) for one in SLOTS]
    op = Operator("linear.0", "linear", "linear", "forward", 0, tuple(refs), call="linear.0")
    known = {"bound": 0.0, "statistics": (FIGURES, FIGURES), **change}
    measured = [Measurement(Pair(0, one.slot, op, op, one, one), **known) for one in refs]
    (node,) = nodes_of([Finding(one, Verdict.UNKNOWN, "", row=row) for row, one in enumerate(measured)])
    root = Root(1, node.pair, Cause.BORN, slot, "rel_l2", 1.0, 1e-6, 0.0, 1.0, ())
    return NoiseTest(merge_facts([], first)).is_beyond(node, root)


@pytest.mark.parametrize(
    ("slot", "first", "change", "beyond"),
    [
        ("output:0", True, {}, False),
        ("output:0", False, {}, False),
        ("input:0", False, {}, False),
        ("input:1", True, {}, False),
        ("input:1", False, {}, True),  # a parameter of a later step
        ("output:0", True, {"same": True}, False),
        ("output:0", True, {"same": False}, True),  # checksums differ
        ("output:0", True, {"statistics": (None, None)}, True),  # no figures
        ("output:0", True, {"shapes_differ": True}, True),
        ("output:1", True, {"same": False}, False),  # another tensor
    ],
)
def test_a_root_rests_on_more_than_figures(slot, first, change, beyond):
    assert is_beyond(slot, first, **change) == beyond
