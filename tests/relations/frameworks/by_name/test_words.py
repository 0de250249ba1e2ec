"""What names, shapes and slots mean in all worlds: tables."""

from __future__ import annotations

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, TensorRef
from npucmp.relations.frameworks.by_name.slots import partner_of
from tests.align.craft import api


def test_operands_the_other_way_round(tmp_path):
    """The values tell, and only if they do both."""
    x, y = (np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32) for seed in (1, 2))
    for name, values in (("x", x), ("y", y), ("z", x * 0.5 + y * 0.5)):
        np.save(tmp_path / f"{name}.npy", values)

    def add(*names: str) -> Operator:
        tensors = (TensorRef(f"input:{at}", "float32", (4, 8), str(tmp_path / f"{one}.npy"), "npy", label=one)
                   for at, one in enumerate(names))  # fmt: skip
        return api("Torch.add", 0, "forward", 0)._replace(tensors=tuple(tensors))

    def order(target: Operator, golden: Operator) -> str:
        found = {one.slot: one.label for one in partner_of(target, golden, ANYWHERE).tensors}
        return found["input:0"] + found["input:1"]

    assert order(add("x", "y"), add("y", "x")) == "xy"
    assert order(add("x", "y"), add("x", "y")) == "xy"
    assert order(add("x", "z"), add("y", "x")) == "yx"
