"""Results in 16 bits that are rounded to one side: of one operator, of all operators of a kind, of none.

Kernels that cut a float32 off (ROCm/aiter issue 5151): each element is within a unit in the last place, the errors have
one sign and add up with depth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_C import FORMATS, Dump, rounded

SAYS = r"truncat|one[- ]sided|instead of (rounded )?to nearest"
NEVER = r"truncat|one[- ]sided|toward(s)? zero|biased|same direction|coherent|instead of rounded"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    command = random.choice(["compare", "compare", "replay"])
    form = str(random.choice(["mindspore", "msprobe"] if command == "replay" else FORMATS))
    kind = str(random.choice(["float16", "bfloat16"])) if form == "msprobe" else "float16"
    golden = str(random.choice([kind, "float32"]))
    fault = str(random.choice(["one", "kind", "none"]))
    how = str(random.choice(["zero", "zero", "up", "down"]))
    layers = int(random.integers(3, 7))
    op_type = str(random.choice(["Add", "Mul", "MatMul"] if form != "mindspore" else ["Add", "Mul"]))
    at = int(random.integers(0, layers)) if fault == "one" else None
    rows, width = int(random.integers(6, 40)), int(random.choice([16, 24, 32, 64]))
    if fault == "one":
        rows = max(rows, 16)
    x = rounded(random.normal(0, random.uniform(0.3, 3), (rows, width)), kind)
    weights = [rounded(random.normal(0, width**-0.5, (width, width)), kind) for _ in range(layers)]
    scales = [rounded(random.uniform(0.7, 1.3, width), kind) for _ in range(layers)]
    shifts = [rounded(random.normal(0, 0.5, (rows, width)), kind) for _ in range(layers)]
    for side, type_of_side in (("target", kind), ("golden", golden)):
        if side == "golden" and command == "replay":
            continue
        dump, h = Dump(folder / side, form, type_of_side), x
        for layer, operands in enumerate(zip(weights, scales, shifts)):
            for name, operand in zip(("MatMul", "Mul", "Add"), operands):
                if name == "MatMul" and form == "mindspore":
                    continue
                y = {"MatMul": np.matmul, "Mul": np.multiply, "Add": np.add}[name](h, operand).astype(np.float32)
                is_wrong = side == "target" and fault != "none" and name == op_type and at in (None, layer)
                h = dump.op(name, [h, operand], rounded(y, type_of_side, how if is_wrong else "nearest"))
        dump.close()
    do = [command, "target", *(["golden"] if command == "compare" else ["--engine", "numpy"])]
    run: dict[str, Any] = {"do": do, "exit": [0], "never": [NEVER]}
    if fault != "none":
        name = dump.name(op_type, 0 if at is None else at)
        run = {"do": do, "exit": [1], "says": [SAYS, name]}
        if command == "compare":
            run["first"] = name
    elif command == "compare":
        run["first"] = ""
    words = ": control" if fault == "none" else f": {fault} {op_type} {how}, {form}, {kind} against {golden}"
    return {"kind": f"one-sided rounding{words}", "runs": [run]}
