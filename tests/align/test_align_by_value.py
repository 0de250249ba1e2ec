"""Runs whose operators are aligned by values: where names leave most open, contradict the values, or a user asks."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import align
from tests.align.craft import a_run, run_with_values

RNG = np.random.default_rng(3)
VALUES = [RNG.standard_normal((4, 5 + at)).astype(np.float32) for at in range(7)]


def chain_of(folder, names, values=VALUES, of_each=(0, 1, 2, 3, 4, 5)):
    """Calls that each read the values of the one before."""
    calls = [(f"Torch.{name}.0.forward", [values[at]], [values[at + 1]]) for name, at in zip(names, of_each)]
    return run_with_values(folder, calls)


@pytest.mark.parametrize("named, by_value", [(2, True), (3, False)])
def test_values_decide_if_a_user_names_the_partners_of_less_than_half(tmp_path, named, by_value):
    """Without values the others stay open."""
    target, golden = chain_of(tmp_path / "target", "uvwxyz"), chain_of(tmp_path / "golden", "abcdef")
    golden = a_run([one._replace(op_type="", kind="other") for one in golden.operators], "golden")
    names = {f"Torch.{one}.0.forward": f"Torch.{other}.0.forward" for one, other in [*zip("uvwxyz", "abcdef")][:named]}
    found = align(target, golden, names)
    assert (found.contents is not None) is by_value
    assert len(found.matches) == (6 if by_value else named)
