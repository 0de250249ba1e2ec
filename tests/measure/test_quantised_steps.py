"""Elements beyond a share of the step of their code, element by element."""

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.measure import quantised_steps
from npucmp.measure.quantised_steps import StepLimit, elements_beyond
from npucmp.model import Payload

LIMIT = StepLimit(rtol=0.25, atol=0.5, steps=2.0)  # binary fractions: the sums below are exact
CASES = [  # target, golden, step, whether it is beyond
    (0.0, 0.0, 0.0, False),
    (0.5, 0.0, 0.0, False),
    (0.75, 0.0, 0.0, True),
    (5.5, 4.0, 0.0, False),
    (5.75, 4.0, 0.0, True),
    (-5.5, -4.0, 0.0, False),
    (2.5, 4.0, 0.0, False),
    (2.25, 4.0, 0.0, True),
    (7.5, 4.0, 1.0, False),
    (7.75, 4.0, 1.0, True),
    (math.nan, math.nan, 1.0, False),
    (math.nan, 4.0, 1.0, True),
    (4.0, math.nan, 1.0, True),
    (math.inf, 4.0, 1.0, True),
]


def payload(folder, name, values):
    """The elements of a file without a header."""
    (folder / name).write_bytes(np.array(values, "<f4").tobytes())
    return Payload(str(folder / name), "float32", (len(values),), 0)


@pytest.mark.parametrize(("target", "golden", "step", "beyond"), CASES)
def test_an_element_at_its_limit_is_within(tmp_path, target, golden, step, beyond):
    sides = (payload(tmp_path, name, [value]) for name, value in (("x", target), ("y", golden), ("s", step)))
    assert elements_beyond(*sides, LIMIT, ANYWHERE) == int(beyond)


def test_elements_of_all_blocks_count(tmp_path, monkeypatch):
    monkeypatch.setattr(quantised_steps, "READ", 4)
    target, golden, step, beyond = zip(*CASES)
    sides = (payload(tmp_path, name, values) for name, values in (("x", target), ("y", golden), ("s", step)))
    assert elements_beyond(*sides, LIMIT, ANYWHERE) == sum(beyond) == 7
