"""Parameters of two checkpoints that are related: rounded, cut off, times a factor, plus a constant, transposed, in
another order, a step of training apart, of another seed. The size of a difference is always told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np

from tests.corpus.reports.kinds._dumps_D import rounded
from tests.corpus.weights import files
from tests.corpus.weights.files import Stored

Array = np.ndarray
UNPROVEN = "rounded to|times the golden|plus|transposed|another order"


def _cut(values: Array) -> Array:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _relations(random: np.random.Generator) -> dict[str, tuple[Callable[[Array], Array], list[str], str]]:
    summand, factor = float(random.choice([1.0, -1.0, 0.5, 2.0])), float(random.choice([0.5, 2.0, 1.1, 0.125, -1.0]))
    noise = 10.0 ** random.integers(-5, -2)

    def moved(values: Array) -> Array:
        return values + noise * np.sign(random.standard_normal(values.shape)) * random.uniform(0.5, 1, values.shape)

    return {
        "bfloat16": (lambda x: rounded(x, "bfloat16"), ["rounded to bfloat16"], "times the golden|values differ$"),
        "float16": (lambda x: rounded(x, "float16"), ["rounded to float16"], "times the golden|bfloat16"),
        "cut off": (_cut, ["cut off to bfloat16"], "times the golden"),
        "plus": (lambda x: x + summand, [rf"plus {summand:g}\b"], "rounded to"),
        "times": (lambda x: factor * x, [rf"{factor:g} times"], "rounded to|plus"),
        "step": (moved, [r"rel_l2 \d\.\d+e-0[2-6]"], UNPROVEN),
        "seed": (lambda x: random.standard_normal(x.shape) / np.sqrt(x.shape[-1]), [r"[1-9]\.\d+e[+]00"], UNPROVEN),
        "transposed": (lambda x: x.T if x.ndim == 2 else x, ["transposed"], "times the golden"),
        "rows": (lambda x: x[::-1], ["another order"], "times the golden"),
    }  # fmt: skip


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, layers = int(random.integers(8, 40)), int(random.integers(1, 4))
    wide = width if random.integers(2) else int(random.integers(8, 40))
    prefix = str(
        random.choice(["model.layers.{}.mlp.up_proj", "transformer.h.{}.mlp.c_fc", "blocks.{}.fc", "{}.linear"])
    )
    golden = {
        f"{prefix.format(at)}.weight": random.standard_normal((width, wide)) / np.sqrt(wide) for at in range(layers)
    }
    golden["norm.weight"] = random.uniform(0.5, 1.5, width)
    golden = {name: values.astype(np.float32) for name, values in golden.items()}
    relations = _relations(random)
    kind = str(random.choice([*relations, "equal"]))
    if kind == "transposed" and wide != width:
        kind = "seed"
    relate, says, never = relations.get(kind, (lambda x: x, [], "rel_l2"))
    matrices = kind in ("transposed", "rows") or bool(random.integers(2))
    target = {
        name: np.ascontiguousarray(relate(values) if values.ndim == 2 or not matrices else values, np.float32)
        for name, values in golden.items()
    }
    form = str(random.choice(["safetensors", "npz", "bin"]))
    for side, tensors in (("target", target), ("golden", golden)):
        (folder / side).mkdir()
        stored = {name: Stored(values) for name, values in tensors.items()}
        if form == "safetensors":
            files.safetensors(folder / side / "model.safetensors", stored)
        elif form == "npz":
            files.npz(folder / side / "model.npz", stored)
        else:
            files.torch_save(folder / side / "model.bin", stored)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0] if kind == "equal" else [1]}
    run |= {"says": says if kind == "equal" else [*says, r"rel_l2 \d"], "never": [never, "its values are others"]}
    return {"kind": f"weights: relation: {kind}" + (": control" if kind == "equal" else ""), "runs": [run]}
