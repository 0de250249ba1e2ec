"""Parameters that one run alone keeps in a coarser type, recorded as float32."""

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run


def to_bfloat16(x):
    """Rounded to the nearest number of bfloat16."""
    m, e = np.frexp(x)
    return np.ldexp(np.round(m * 256) / 256, e).astype(np.float32)


def cut_to_bfloat16(x):
    """Without the low bits: up to two round-offs of bfloat16 away."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def layers(rounded=(), wrong=None, to_type=to_bfloat16):
    """Branches that read one input, each by a product with a weight and a bias of its own."""
    draw = np.random.default_rng(5)
    x, operators = draw.standard_normal((16, 64)).astype(np.float32), {}
    for layer in range(6):
        w, b = ((draw.standard_normal(shape) / 8).astype(np.float32) for shape in ((64, 64), (64,)))
        w, b = (to_type(one) if layer in rounded else one for one in (w, b))
        w = w * np.float32(1.1) if layer == wrong else w
        y = (x @ w.T + b).astype(np.float32)
        operators[f"Functional.linear.{layer}.forward"] = {"in": [x, w, b], "out": [y]}
    return operators


@pytest.mark.parametrize(
    "target, golden, found, words",
    [
        (layers(range(6)), layers(), [0], "all 12 parameters that differ are rounded to bfloat16 in the target only"),
        (layers(), layers(range(6)), [0], "all 12 parameters that differ are rounded to bfloat16 in the golden only"),
        (layers([4]), layers(), [4], ""),  # one layer is no habit
        (layers(range(6), wrong=3), layers(), [0, 3], "11 of 12 parameters that differ"),
        (layers(range(6)), layers(range(6)), [], ""),
        (layers(range(6), to_type=cut_to_bfloat16), layers(), [*range(6)], ""),  # cut, not rounded
    ],
)
def test_parameters_that_one_run_rounds_are_one_difference(tmp_path, target, golden, found, words):
    report = npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden), recompute="none")
    gaps = [root for root in report.roots if root.cause.value == "GAP"]
    assert [root.pair.operator.name for root in gaps] == [f"Functional.linear.{at}.forward" for at in found]
    assert not gaps or words in gaps[0].because
    assert {root.cause.value for root in report.roots} <= {"GAP", "PROPAGATED"}
