"""The error that each tensor may have that an operator reads: the ends of its interval, by hand."""

import pytest

from npucmp.localise.intervals import NO_DATA, Interval
from tests.localise.interval_craft import Search, known, unknown
from tests.localise.stat_craft import Op

A, B = known("input:0", 0.1), known("input:1", 0.2, 5.0)


@pytest.mark.parametrize(("op", "slots"), [("mul", ["input:0", "output:0"]), ("add", [])])
def test_a_backward_reads_what_its_forward_saved(op, slots):
    forward = Op(op, (known("input:0", 0.25, 7.0), unknown("output:0", 8.0)), call="one")
    reads = Search(forward, Op(op, (A,), "backward", "one")).reads()
    assert [one.finding.pair.slot for one in reads.saved] == slots
    assert [one.interval for one in reads.saved] == ([Interval(0.25, 0.25), NO_DATA] if slots else [])
    assert reads.error == (0.25 if slots else 0.1)
