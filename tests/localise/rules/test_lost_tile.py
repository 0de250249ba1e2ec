"""Single elements that are lost."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X, Y = normal(256, 256), normal(256, 256)
READ = [(noisy(X, 3e-3), X, "float16")]
LOST = noisy(Y, 4e-4)
LOST[100, 200] = 3.0
Y[100, 200] = -3.0
TORN = noisy(X, 4e-4)
TORN[100, 200] += 0.8 * abs(X).max()


class TestLostTile(RuleContract):
    name = "lost_tile"
    fires = {**spelled("linear", lambda op: case(op, READ, (LOST, Y, "float16")))}
    silent = {
        "rounding": case("linear", READ, (noisy(Y, 3e-3), Y, "float16")),
        "a flipped mask": case("relu", READ, (LOST, Y, "float16"), phase="backward"),
        "an error came in that is as large": case("linear", READ, (LOST, Y, "float16"), input_error=0.1),
        "an element came in that is as far off": case("batch_norm", [(TORN, X)], (LOST, Y)),
        "few": case("linear", READ, (LOST[100:101, 200:208], Y[100:101, 200:208], "float16")),
        "rounding of terms": case("sub", [(1e6 * X, 1e6 * X), (1e6 * X, 1e6 * X)], (LOST, Y)),
    }
