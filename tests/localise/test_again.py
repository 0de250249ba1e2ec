"""Forwards that one side ran once more, because it did not keep its activations."""

import numpy as np
import pytest

import npucmp
from tests.synthetic import chain, write_run


def forward(again=False, other=False):
    """Six products in a chain; then all of them once more, the last first, if `again`; `other` than the first time."""
    run = chain()
    for place, record in enumerate([*run.values()][::-1] if again else ()):
        out = [tensor * np.float32(1.25 if other else 1.0) for tensor in record["out"]]
        run[f"Functional.linear.{6 + place}.forward"] = {**record, "out": out}
    return run


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize("other", [False, True])
def test_what_the_golden_ran_again_with_other_values_must_be_compared(tmp_path, side, other):
    status = 2 if other and side == "golden" else 0  # what the target has beyond the golden opens nothing
    runs = [write_run(tmp_path / name, forward(name == side, other)) for name in ("target", "golden")]
    assert npucmp.compare(*runs).exit_status == status
