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
@pytest.mark.parametrize("other, status", [(False, 0), (True, 2)])
def test_what_was_only_run_again_is_no_end_that_is_missing(tmp_path, side, other, status):
    runs = [write_run(tmp_path / name, forward(name == side, other)) for name in ("target", "golden")]
    assert npucmp.compare(*runs).exit_status == status
