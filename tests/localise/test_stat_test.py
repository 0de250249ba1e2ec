"""How far an operator with recorded statistics may shift before it exceeds the noise before it: the smallest shift of
each figure that does, counted by hand; and which proven roots rest on more than figures within the noise."""

from typing import Mapping

import pytest

from npucmp.model import Cause, Root
from tests.localise.stat_craft import Op, of, row, visited

MAX, MIN, MEAN, NORM = range(4)
A, B = row("input:0", golden=of(5.0)), row("input:1", golden=of(6.0))


def read(at, size, of_row=A):
    """The same input with a figure that shifted."""
    return of_row._replace(shifts=tuple(size if at == one else 0.0 for one in range(4)))


OUT = row("output:0")
WEIGHT = A._replace(slot="input:1")


def is_beyond(slot, first=True, known: Mapping = {}, metric="rel_l2", shift=0.0, now: Mapping = {}):
    """Whether a root of a product is beyond the noise; `known` is what is known of all its tensors."""
    rows = (A, WEIGHT._replace(golden=of(6.0)), read(MAX, shift, OUT))
    one = Op("linear", tuple(each._replace(known=known) for each in rows))
    noise, node, _ = visited(one, facts={"first": first}, now=now)
    root = Root(1, node.pair, Cause.BORN, slot, metric, 1.0, 1e-6, 0.0, 1.0, ())
    return noise.is_beyond(node, root)


@pytest.mark.parametrize(
    ("slot", "more", "beyond"),
    [
        ("output:0", {}, False),
        ("output:0", {"first": False}, False),
        ("input:0", {"first": False}, False),
        ("input:1", {}, False),
        ("input:1", {"first": False}, True),  # a parameter of a later step
        ("output:0", {"known": {"same": True}}, False),
        ("output:0", {"known": {"same": False}}, True),  # checksums differ
        ("output:0", {"known": {"statistics": (None, None)}}, True),  # no figures
        ("output:0", {"known": {"shapes_differ": True}}, True),
        ("output:0", {"known": {"shapes_differ": True}, "metric": "shape"}, True),
        # noise before it may have changed a choice of rows
        ("output:0", {"known": {"shapes_differ": True}, "metric": "shape", "now": {"moved": True}}, False),
        ("output:0", {"known": {"shapes_differ": True}, "now": {"moved": True}}, True),
        ("output:1", {"known": {"same": False}}, False),  # another tensor
        ("output:1", {"shift": 1000.0}, True),  # an output that exceeds the noise
    ],
)
def test_a_root_rests_on_more_than_figures(slot, more, beyond):
    assert is_beyond(slot, **more) == beyond
