"""Single elements that differ while all others have the same bits."""

from __future__ import annotations

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X, Y = normal(256, 256), normal(256, 256)
READ = [(X, X)]


def off_by(size, *places):
    """Y with an error at some places."""
    wrong = Y.copy()
    for place in places:
        wrong.reshape(-1)[place] += size
    return wrong


WRONG = off_by(5e-5, 300)


class TestSingleElement(RuleContract):
    name = "single_element"
    fires = {
        **spelled("linear", lambda op: case(op, READ, (WRONG, Y))),
        **spelled("relu", lambda op: case(op, READ, (WRONG, Y))),
        "two": case("linear", READ, (off_by(5e-5, 300, 9), Y)),
        "a float16 value": case("linear", [(X, X, "float16")], (off_by(0.1, 300), Y, "float16")),
        "a parameter": case("linear", wrote=(off_by(1e-6, 300), Y), slot="param:weight", node=False, input_error=1.0),
    }
    silent = {
        "a rounding": case("linear", READ, (off_by(5e-7, 300), Y)),
        "a step of float16": case("linear", [(X, X, "float16")], (off_by(2.0**-11, 300), Y, "float16")),
        "values of bfloat16 in float32": case("linear", READ, (WRONG, Y), round_off=2.0**-8),
        "three": case("linear", READ, (off_by(5e-5, 300, 9, 7), Y)),
        "few elements": case("linear", READ, (WRONG[1:2, 40:50], Y[1:2, 40:50])),
        "an error came in": case("linear", [(noisy(X, 1e-7), X)], (WRONG, Y)),
        "a parameter that was updated": case(
            "linear", wrote=(WRONG, Y), slot="param:weight", node=False, inherited=1e-3, input_error=0.0
        ),
        "HF32 somewhere before": case("linear", READ, (WRONG, Y), round_off=2.0**-11, precision=Precision(2.0**-11)),
    }
