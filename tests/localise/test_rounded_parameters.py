"""Parameters that one run alone keeps in a coarser type, recorded as float32."""

import numpy as np
import pytest

import npucmp
from npucmp.localise.parameter_drift import rounded_parameters
from npucmp.model import Verdict
from tests.localise.step_craft import Op, Tensor, step
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


BFLOAT16, FLOAT16 = 2.0**-8, 2.0**-11  # one round-off
ROUNDED = Tensor("param:weight", error=0.002, bits=(8, 24), max_rel=BFLOAT16)
OTHER = ROUNDED._replace(bits=(24, 24))


def found(*tensors):
    """The places of the tensors that are rounded alike, and the evidence."""
    rows, reasons = rounded_parameters(step(*(Op("linear", (one,)) for one in tensors)))
    return sorted(rows), [one.sentence() for one in reasons]


def words(number, dtype="bfloat16", run="target"):
    return [f"{number} parameters that differ are rounded to {dtype} in the {run} only, which stores them in that type"]


NOTHING = [], []


@pytest.mark.parametrize(
    "tensors, expected",
    [
        ([ROUNDED] * 3, ([0, 1, 2], words("all 3"))),
        ([ROUNDED] * 2, NOTHING),
        ([], NOTHING),
        ([OTHER] + [ROUNDED] * 9, ([*range(1, 10)], words("9 of 10"))),
        ([OTHER] + [ROUNDED] * 8, NOTHING),
        ([ROUNDED._replace(error=0.0)] * 4 + [ROUNDED] * 3, ([4, 5, 6], words("all 3"))),
        ([ROUNDED._replace(verdict=Verdict.NONFINITE)] * 4 + [ROUNDED] * 3, ([4, 5, 6], words("all 3"))),
        ([ROUNDED._replace(slot="input:0")] * 4 + [ROUNDED] * 3, ([4, 5, 6], words("all 3"))),
        ([ROUNDED] * 2 + [ROUNDED._replace(bits=(24, 8))] * 2, NOTHING),
    ],
)
def test_nine_of_ten_parameters_that_differ_must_be_rounded(tensors, expected):
    """And three at least."""
    assert found(*tensors) == expected


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"bits": (24, 8)}, words("all 3", run="golden")),
        ({"bits": (1, 24)}, words("all 3")),
        ({"bits": (0, 24)}, []),
        ({"bits": (8, 9)}, words("all 3")),
        ({"bits": (8, 8)}, []),
        ({"bits": (9, 24)}, []),  # float16, whose rounding is smaller
        ({"bits": (9, 24), "max_rel": FLOAT16}, words("all 3", "float16")),
        ({"bits": (11, 12), "max_rel": FLOAT16}, words("all 3", "float16")),
        ({"bits": (11, 11), "max_rel": FLOAT16}, []),
        ({"bits": (12, 24), "max_rel": FLOAT16}, []),
        ({"bits": (24, 11), "max_rel": FLOAT16 * 1.0009}, words("all 3", "float16", "golden")),
        ({"bits": (24, 11), "max_rel": FLOAT16 * 1.0011}, []),
        ({"max_rel": BFLOAT16 * 1.0009}, words("all 3")),
        ({"max_rel": BFLOAT16 * 1.0011}, []),
        ({"shape": (63,)}, []),
        ({"shape": (64,)}, words("all 3")),
        ({"shape": (65,), "mismatched": 1}, []),
        ({"statistics": (None, None)}, []),
    ],
)
def test_a_parameter_is_rounded_once_to_a_type_of_sixteen_bits(change, expected):
    """The numbers of the other run need more bits; shares of few elements are chance."""
    assert found(*[ROUNDED._replace(**change)] * 3)[1] == expected
