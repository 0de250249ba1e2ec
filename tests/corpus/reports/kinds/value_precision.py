"""Runs of float16, bfloat16 or 8 bits whose files say float32, against float32: clean, faulty, mixed, one operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_b as dumps

TYPES = {"float16": dumps.float16, "bfloat16": dumps.bfloat16, "int8": dumps.int8, "uint8": dumps.uint8}
WORDS = {"float16": "float16", "bfloat16": "bfloat16", "int8": "8 bits", "uint8": "8 bits"}
NETWORKS = dumps.mlp, dumps.convolutions, dumps.attention
FORMS = "npy", "npy", "mindspore", "msprobe", "outputs"
MIXED_KINDS = "MatMul", "Conv"
MOVES = "Relu", "ReduceMean"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    run = NETWORKS[random.integers(len(NETWORKS))](random)
    form = str(random.choice(FORMS))
    dtype = str(random.choice([*TYPES]))
    rounded = TYPES[dtype]
    golden = dumps.Network(lambda at, kind: dumps.float32, dumps.float32, {})
    run(golden)
    what = str(random.choice(["clean", "faulty", "faulty", "mixed", "mixed faulty", "one", "float32"]))
    if dtype in ("int8", "uint8") and what.startswith("mixed"):
        what = what.replace("mixed ", "").replace("mixed", "clean")
    kinds = [step.kind for step in golden.steps]
    computed = [at for at, kind in enumerate(kinds) if kind not in MOVES]
    fault = int(random.choice([at for at in computed if kinds[at] in ("MatMul", "Conv", "Add", "Tanh", "Gelu")]))
    faults = {fault: _fault(random, kinds[fault], dtype)} if "faulty" in what else {}
    one = int(random.choice([at for at in computed if at + 1 < len(kinds) and kinds.count(kinds[at]) > 1]))

    def rounding(at: int, kind: str) -> dumps.Rounding:
        if what == "float32":
            return dumps.float32
        if what == "one":
            return _Last(rounded) if at == one else dumps.float32
        return dumps.float32 if "mixed" in what and kind not in MIXED_KINDS else rounded

    widened = bool(random.integers(3)) and "mixed" not in what and what not in ("one", "float32")
    loads = (_weights_of_8_bits if dtype in ("int8", "uint8") else rounded) if widened else dumps.float32
    target = dumps.Network(rounding, loads, faults)
    run(target)
    dumps.write(form, folder / "golden", golden.steps)
    dumps.write(form, folder / "target", target.steps)
    name = dumps.names(form, golden.steps)
    case: dict[str, Any] = {"do": ["compare", "target", "golden"]}
    if what in ("clean", "mixed", "float32"):
        case.update(exit=[0, 2] if "8" in dtype and what != "float32" else [0], first="")
    else:
        case.update(exit=[1], first=f"^{re.escape(name[fault if faults else one])}$")
    if what not in ("one", "float32"):
        case["says"] = [WORDS[dtype]]
    else:
        case["never"] = ["judged as"]
    ends = ": control" if what in ("one", "float32") else f": {what} {dtype}"
    return {"kind": f"value_precision{ends} {form}", "report": "drawn", "runs": [case]}


class _Last:
    """Rounds float64 results, and leaves float32 inputs as they are."""

    def __init__(self, rounded: dumps.Rounding) -> None:
        self._rounded = rounded

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return self._rounded(values) if values.dtype == np.float64 else values


def _weights_of_8_bits(values: np.ndarray) -> np.ndarray:
    """Weights have a scale for each output channel, as quantising tools give them; small tensors stay as they are."""
    return dumps.int8(values, axis=0 if values.ndim == 4 else 1) if values.ndim > 1 and values.size > 300 else values


def _fault(random: np.random.Generator, kind: str, dtype: str) -> dumps.Rounding:
    if kind == "Add" and random.integers(2):
        return dumps.as_it_is
    if "8" in dtype and dtype != "bfloat16" and random.integers(2):
        return lambda values: dumps.int8(values, 20.0)
    factor = float(random.uniform(1.3, 1.6) if dtype != "float16" else random.uniform(1.05, 1.3))
    return lambda values: (values * np.float32(factor)).astype(np.float32)
