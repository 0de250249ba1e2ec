"""Makes msprobe_tokens: the forward pass of a small decoder over three requests, computed with numpy and written as
msprobe does. The golden has the requests padded on the right, the target packed one behind the other; the attention of
the target's second layer lost the value of one token of the second request.

Run from the root of the repository: `python -m sample_dumps.make_tokens`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.corpus.tokens import layouts
from tests.corpus.tokens.dumps import Style, write
from tests.corpus.tokens.faults import Fault
from tests.corpus.tokens.network import VOCABULARY, Network, Record

PLACE = Path(__file__).parent / "msprobe_tokens"
LENGTHS = (7, 5, 6)
FAULT = Fault("cache", "model.layers.1.self_attn.core", 1, 3, 1.0)
STYLE = Style("L0", ids=True, extras=True, ending="npy")


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    network = Network(7, "float32")
    generator = np.random.default_rng(7)
    ids = [generator.integers(1, VOCABULARY, length) for length in LENGTHS]
    padding = network.run([np.zeros(4, np.int64)], True)
    order = range(len(LENGTHS))
    sides = {
        "golden": (layouts.padded(LENGTHS, order), network.run(ids, True)),
        "target": (layouts.packed(LENGTHS, order), network.run(ids, False, FAULT.change, FAULT.attend)),
    }
    for side, (steps, records) in sides.items():
        write(PLACE / side, steps, _few(records), _few(padding), STYLE, False)


def _few(records: list[Record]) -> list[Record]:
    """The embedding and two layers, without the inside of their feed-forward networks."""
    names = "model.embed", "model.layers.0", "model.layers.1"
    inside = "gate_proj", "up_proj", "act_fn"
    return [one for one in records if one.path.startswith(names) and not one.path.endswith(inside)]


main()
