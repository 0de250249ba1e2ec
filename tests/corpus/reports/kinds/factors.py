"""An output that is a multiple of the golden's, exactly, in large part or not at all; beside Inf; of one element.

"x times the golden" is right only if rounding alone remains after the factor.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_F import FORMATS, Array, Network, weights

SHARES = "exact", "part", "rows", "unrelated", "inf", "inf and factor", "scalar", "lone", "clean"
TIMES = r"times the golden"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    share, style = str(random.choice(SHARES)), str(random.choice(FORMATS))
    half = bool(random.random() < 0.4)
    rows, width, at = int(random.integers(4, 24)), int(random.integers(16, 48)), int(random.integers(0, 3))
    if share == "scalar":
        at = 3
    factor = float(np.round(random.choice([0.5, 2.0, -1.0, 1.1, 0.8, 1.25, 3.0, 0.125, random.uniform(1.2, 4.0)]), 3))
    ratio = Fraction(int(random.integers(2, 20)), int(random.integers(21, 40)))
    sides = {}
    seed = int(random.integers(1 << 30))
    for side in ("golden", "target"):
        own = np.random.default_rng(seed)
        dtype = np.float16 if half and side == "target" else np.float32
        network, x = Network(), own.standard_normal((rows, width)).astype(dtype)
        for number in range(4):
            w = weights(own, width, width).astype(dtype)
            exact = x.astype(np.float64) @ w.astype(np.float64).T
            scale = own.standard_normal((rows, 1))
            other = own.standard_normal(exact.shape)
            if number == 3:
                exact = np.asarray(np.square(exact).mean())
            elif share in ("inf", "inf and factor") and number == at:
                exact[0, 0] = 7e4 if half else 5e38
            if side == "target" and number == at:
                exact = _faulty(share, exact, factor, float(ratio), scale, other)
            with np.errstate(over="ignore"):
                y = np.asarray(exact).astype(dtype)
            if side == "golden" and share in ("inf", "inf and factor") and number == at:
                y[0, 0] = np.float32(7e4)
            network.call("sum" if number == 3 else "linear", [x] if number == 3 else [x, w], y)
            x = np.where(np.isfinite(y), y, 1).astype(dtype) if number == at and "inf" in share else y
        network.write(folder / side, style)
        sides[side] = network
    name = sides["target"].names(style)[at]
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": f"^{name.replace('.', '[.]')}$"}
    near = (
        [factor * (1 + step * 1e-4) for step in range(-3, 4)] if half else [factor]
    )  # what rounding to 16 bits leaves
    digits = f"({'|'.join(sorted({f'{value:.4g}' if half else f'{value:.6g}' for value in near}))})".replace(".", "[.]")
    if share == "exact":
        run["says"] = [f"whole target is {digits}( \\(\\S+\\))? {TIMES}"]
    elif share == "scalar":
        digits = 3 if half else 6  # as many as the type of the target holds
        run["says"] = [f"{float(ratio):.{digits}f}"[: digits + 1].rstrip("0").replace(".", "[.]")]
        run["says"] += [f"{ratio.numerator}/{ratio.denominator}"] if ratio.denominator > 10 and not half else []
    elif share == "inf and factor":
        run["says"] = ["Inf"]
    elif share == "clean":
        run = {"do": run["do"], "exit": [0], "first": "", "never": [TIMES]}
    else:
        run["never"] = [TIMES]
        run["says"] = ["Inf"] if share == "inf" else []
    return {"kind": f"factors: {share}", "runs": [run]}


def _faulty(share: str, exact: Array, factor: float, ratio: float, scale: Array, other: Array) -> Array:
    """The output of the faulty call. part: one factor and a rest of a tenth; rows: a factor a row; lone: the largest
    element alone."""
    if share in ("exact", "inf and factor"):
        return exact * factor
    if share == "part":
        return exact * factor + 0.1 * abs(factor - 1) * other * np.sqrt(np.square(exact).mean())
    if share == "rows":
        return exact * (1 + 0.05 * scale)
    if share == "unrelated":
        return other * np.sqrt(np.square(exact).mean()) * min(abs(factor), 0.9)
    if share == "scalar":
        return exact * ratio
    if share == "lone":
        found = exact.copy()
        found.flat[np.argmax(np.abs(found))] *= 1.5
        return found
    return exact
