"""Makes weights_megatron: a small Llama by the names of transformers (golden, float32), and the same as a converter to
Megatron writes it on two tensor-parallel ranks in bfloat16 (target), computed with numpy. In the second layer the
converter exchanges gate and up.

Run from the root of the repository: `python -m sample_dumps.make_weights`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tests.corpus.weights.conversions import megatron
from tests.corpus.weights.files import safetensors
from tests.corpus.weights.networks import Network, llama

PLACE = Path(__file__).parent / "weights_megatron"
LAYER = "model.layers.1.mlp."
SEED, RANKS = 290, 2


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    net = llama(np.random.default_rng(SEED), "float32")
    gate, up = (f"{LAYER}{name}_proj.weight" for name in ("gate", "up"))
    tensors = {**net.tensors, gate: net.tensors[up], up: net.tensors[gate]}
    made = megatron(Network(net.kind, net.config, tensors, "bfloat16"), np.random.default_rng(SEED), RANKS, 1)
    for folder, own in made.ranks.items():
        (PLACE / "target" / folder).mkdir(parents=True)
        safetensors(PLACE / "target" / folder / "model.safetensors", own)
    (PLACE / "golden").mkdir()
    safetensors(PLACE / "golden" / "model.safetensors", net.tensors)
    (PLACE / "golden" / "config.json").write_text(json.dumps(net.config, indent=1) + "\n")


if __name__ == "__main__":
    main()
