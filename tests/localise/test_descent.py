"""What descends from a root stays diverged: its error is no match, however well the errors before it explain it."""

import numpy as np

import npucmp
from tests.synthetic import write_run

random = np.random.default_rng(3)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


def test_what_was_overwritten_on_one_side_alone_is_no_match(tmp_path):
    """The golden holds what an in-place operator wrote, the target what it read: nothing says they are the same."""
    x, step, wrote = normal(8, 8), normal(8, 8), normal(8, 8)
    runs = ({"Tensor.add_.0.forward": {"in": [read, step], "out": [wrote]}} for read in (x, wrote))
    sides = (write_run(tmp_path / side, run) for side, run in zip(("target", "golden"), runs))
    got = npucmp.compare(*sides, jobs=1)
    assert (got.findings[0].verdict.value, got.findings[0].rule) == ("unknown", "overwritten")
    assert got.exit_status == 0 and not got.roots
