"""Tensors of root causes that one side rounded to a coarser type."""

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run

X = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)


def told(folder, target, golden):
    """What the first root says on a constant that both runs add."""
    runs = [
        write_run(folder / side, {"Tensor.__add__.0.forward": {"in": [X, one], "out": [X + one]}})
        for side, one in (("t", target), ("g", golden))
    ]
    return npucmp.compare(*runs, recompute="none").roots[0].because


@pytest.mark.parametrize(
    "golden, to_type, says",
    [
        (np.linspace(0.1, 0.9, 8, dtype=np.float32), np.float16, "is the golden's rounded to float16"),
        (np.full(8, 1e-5, np.float32), None, ""),  # 0: every type that ends before makes it
        (np.float32([1e-5, 1, 2, 4, 8, 0.5, 0, 1]), None, ""),  # nothing but the small value changed
    ],
)
def test_a_type_is_named_if_a_number_other_than_0_was_rounded(tmp_path, golden, to_type, says):
    target = golden.astype(to_type).astype(np.float32) if to_type else np.where(golden == np.float32(1e-5), 0, golden)
    found = told(tmp_path, target.astype(np.float32), golden)
    assert says in found and ("rounded to" in found) == bool(says)
