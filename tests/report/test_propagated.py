"""The line on operators that only propagate an error."""

import numpy as np

from npucmp.model import Cause, Operator, Pair, Root
from npucmp.report.rank_summary import PropagatedSummary


def passed(name, metric, value):
    pair = Pair(0, "output:0", Operator(name, "Add", "Add", "", 0, ()), None, None, None)
    return Root(0, pair, Cause.PROPAGATED, "output:0", metric, value, 0.0, None, np.inf, ())


def test_a_count_of_infinite_positions_is_no_rel_l2():
    count = passed("Torch.exp.0.forward", "nonfinite_mismatch", 16.0)
    assert PropagatedSummary.of([count]).words() == "1 operator downstream"
    words = PropagatedSummary.of([count, passed("Torch.add.0.forward", "rel_l2", 0.5)]).words()
    assert words.startswith("2 operators downstream, largest rel_l2 5.0e-01 at Torch.add.0.forward")
