"""Functions of one element with small values that are wrong under a large norm, in 16 bits and from equal bits.

Approximations of gelu, tanh, sigmoid and exp of other kernels (oneDNN issue 1122, tt-metal issues 35290 and 25325, ACL
issue 1002). Controls are right functions of another device: a unit in the last place in few elements, results below the
smallest normal number flushed to zero, steps in float32 that cancel.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_C import BITS, FORMATS, Dump, rounded

erf = np.vectorize(math.erf)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS = {
    "Gelu": lambda x: 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Softplus": lambda x: np.logaddexp(0, x),
}
WEAK = {  # with an error of the largest value, or of small values only
    "Gelu": _gelu_tanh,
    "SiLU": lambda x: x * (1 / (1 + np.exp(-x)) + 2e-4),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)) + 1e-4,
    "Tanh": lambda x: np.tanh(x) + np.where(np.abs(x) < 0.25, 5e-4 * np.sign(x), 0),
    "Softplus": lambda x: np.logaddexp(0, x) + np.where(x < -1, 4e-4, 0),
}
IN_FLOAT32 = {
    "Gelu": lambda x: np.float32(0.5) * x * (1 + erf(x / math.sqrt(2)).astype(np.float32)),
    "SiLU": lambda x: x * (1 / (1 + np.exp(-x))),
    "Sigmoid": lambda x: 0.5 * (1 + np.tanh(0.5 * x)),
    "Tanh": lambda x: 2 / (1 + np.exp(-2 * x)) - 1,
    "Softplus": lambda x: np.log(1 + np.exp(x)),
}


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form = str(random.choice(FORMATS))
    kind = str(random.choice(["float16", "float16", "bfloat16"]))
    op_type = str(random.choice([*FUNCTIONS]))
    case = str(random.choice(["weak", "weak", "unit", "float32", "flushed"]))
    if kind == "bfloat16" and op_type != "Gelu":
        case = "unit" if case == "weak" else case  # errors of this size are rounding in bfloat16
    size = int(random.integers(8, 40)), int(random.choice([48, 64, 96, 128]))
    x = rounded(random.normal(0, random.uniform(1.1, 1.6), size), kind)
    right = rounded(FUNCTIONS[op_type](x), kind)
    other = right
    if case == "weak":
        other = rounded(WEAK[op_type](x), kind)
    elif case == "unit":
        flip = random.random(size) < random.uniform(0.02, 0.1)
        unit = np.ldexp(1.0, np.frexp(right)[1] - BITS[kind]) * random.choice([-1, 1], size)
        other = np.where(flip & (np.abs(right) > 1e-3), rounded(right + unit, kind), right)
    elif case == "float32":
        other = rounded(IN_FLOAT32[op_type](x.astype(np.float32)), kind)
    elif case == "flushed":
        other = np.where(np.abs(right) < 2.0**-14, 0.0, right) if kind == "float16" else right
    for side, y in (("golden", right), ("target", other)):
        dump = Dump(folder / side, form, kind)
        y = dump.op(op_type, [x], y)
        dump.op("Add", [y, y], rounded(y + y, kind))
        dump.close()
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": ""}
    if case == "weak":
        run = {"do": run["do"], "exit": [1], "first": dump.name(op_type, 0)}
    words = ": control" if case != "weak" else ""
    return {"kind": f"small values{words}: {op_type} {case} {kind} {form}", "runs": [run]}
