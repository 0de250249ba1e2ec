"""Norms as single operators in float16 or bfloat16 against float32; float16 cannot hold each epsilon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_b as dumps

BELOW_FLOAT16 = 1e-12, 1e-10, 1e-9, 1e-8
HELD = 1e-2, 1e-3, 1e-4, 1e-5
WHAT = "clean", "clean", "faulty", "faulty", "lost", "lost in bfloat16"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    what = str(random.choice(WHAT))
    in_bfloat16 = what == "lost in bfloat16"
    epsilon = np.float32(random.choice(HELD if what == "lost" else BELOW_FLOAT16))
    x = random.normal(size=(*random.integers(2, 6, int(random.integers(1, 3))), int(random.integers(12, 65)))) + 0.0
    x = (x * random.uniform(0.5, 2.0)).astype(np.float32)
    is_rms = bool(random.integers(2))
    rounded = dumps.bfloat16 if in_bfloat16 else dumps.float16
    golden = dumps.Network(lambda at, kind: dumps.float32, dumps.float32, {})
    _norm(golden, x, epsilon, is_rms)
    kinds = [step.kind for step in golden.steps]
    fault = int(random.choice([at for at, kind in enumerate(kinds) if kind in ("Sqrt", "Div", "ReduceMean") and at]))
    factor = np.float32(1 + random.choice([-1, 1]) * random.uniform(0.03, 0.2))
    faults = {fault: lambda values: (values * factor).astype(np.float32)} if what == "faulty" else {}
    target = dumps.Network(lambda at, kind: rounded, rounded, faults)
    _norm(target, x, np.float32(0 if what.startswith("lost") else epsilon), is_rms)
    steps = target.steps
    if not in_bfloat16 and random.integers(2):  # files of float16
        steps = [step._replace(inputs=[each.astype(np.float16) for each in step.inputs],
                               output=step.output.astype(np.float16)) for step in steps]  # fmt: skip
    form = str(random.choice(["npy", "msprobe"]))
    dumps.write(form, folder / "golden", golden.steps)
    dumps.write(form, folder / "target", steps)
    names = dumps.names(form, golden.steps)
    case: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": ""}
    if what != "clean":
        first = names[fault if what == "faulty" else kinds.index("Add")]
        case.update(exit=[1], first=f"^{re.escape(first)}$")
    return {"kind": f"constants_in_type: {what} {form}", "report": "drawn", "runs": [case]}


def _norm(net: dumps.Network, x: np.ndarray, epsilon: np.ndarray, is_rms: bool) -> None:
    h = net.loads(x)
    if not is_rms:
        h = net("Sub", h, net("ReduceMean", h))
    variance = net("ReduceMean", net("Mul", h, h))
    scale = net("Sqrt", net("Add", variance, net.loads(np.full(1, epsilon))))
    h = net("Div", h, scale)
    net("Tanh", h)
