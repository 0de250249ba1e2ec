"""One side sums in 16 bits, or computes another formula: the golden, the target, or none.

References that add up in bfloat16 (ROCm/rocm-libraries pull request 8469, tt-metal pull request 53386): the report must
name the golden then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_C import Dump, rounded

GOLDEN = r"the golden output:\d+ differs|golden is the inaccurate side"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form = str(random.choice(["onnx", "msprobe", "mindspore"]))
    wrong = str(random.choice(["golden", "target", "none"]))
    kind = str(random.choice(["float16", "bfloat16"])) if form == "msprobe" else "float16"
    fault = str(random.choice(["sums", "factor"])) if form != "mindspore" else "factor"
    rows, terms = int(random.integers(8, 24)), int(random.choice([256, 512, 1024]))
    a, b = (rounded(random.normal(0.3, 1, shape), kind) for shape in ((rows, terms), (terms, 8)))
    bias, scale = rounded(random.normal(0, 1, 8), kind), rounded(random.uniform(0.5, 2, 8), kind)
    for side in ("golden", "target"):
        dump, is_wrong = Dump(folder / side, form, kind), side == wrong
        h = rounded(a[:, :8], kind)
        if form != "mindspore":
            h = rounded(a @ b, kind)
            if is_wrong and fault == "sums":
                h = np.zeros((rows, 8))
                for term in range(terms):
                    h = rounded(h + rounded(a[:, term : term + 1] * b[term], kind), kind)
            dump.op("MatMul", [a, b], h)
        y = dump.op("Mul", [h, scale], rounded(h * scale * (1.05 if is_wrong and fault == "factor" else 1), kind))
        dump.op("Add", [y, bias], rounded(y + bias, kind))
        dump.close()
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": ""}
    name = dump.name("MatMul" if fault == "sums" else "Mul", 0)
    if wrong == "golden":
        run = {"do": run["do"], "exit": [0, 1], "first": name, "says": [GOLDEN]}
        run["never"] = ["target is the inaccurate side"]
    elif wrong == "target":
        run = {"do": run["do"], "exit": [1], "first": name, "never": ["golden is the inaccurate side"]}
    return {"kind": f"golden side: {wrong} {fault} {kind} {form}", "runs": [run]}
