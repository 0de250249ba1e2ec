"""Makes overflow_exp: a softmax written by hand in float16, without the largest value taken off before exp.

The target computes in float16, as a network does that was moved to it as a whole: exp overflows, the
division makes NaN of it, and nan_to_num hides that from the loss. The golden computes the same in float32, where
nothing overflows. Both computed by numpy, in msprobe's layout for MindSpore. No device was at hand.

    python make_overflow.py [FOLDER]        writes FOLDER/target and FOLDER/golden, by default overflow_exp here
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from make_reruns import Dump

ROWS, WIDTH = 4, 16


def run(folder: Path, kind: type) -> None:
    """One step; every result is computed in float64 and rounded once to `kind`."""
    random = np.random.default_rng(1)
    query = random.integers(-12, 13, (ROWS, WIDTH)).astype(kind) / kind(4)
    key = random.integers(-12, 13, (WIDTH, WIDTH)).astype(kind) / kind(4)
    dump = Dump(folder)

    def call(name: str, number: int, text: str, inputs: list, result: np.ndarray) -> np.ndarray:
        line = f"File /home/user/attention.py, line {number}, in construct, \n {text}"
        return dump.call(name, line, inputs, result.astype(kind))

    def wide(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float64)

    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.einsum("ij,jk->ik", wide(query), wide(key)) * 1.25
        scores = call("Mint.matmul.0.forward", 12, "scores = mint.matmul(query, self.key)", [query, key], scores)
        powers = call("Mint.exp.0.forward", 13, "powers = mint.exp(scores)", [scores], np.exp(wide(scores)))
        total = wide(powers).sum(axis=1, keepdims=True)
        total = call("Mint.sum.0.forward", 14, "total = mint.sum(powers, -1, True)", [powers, -1, True], total)
        shares = wide(powers) / wide(total)
        shares = call("Tensor.__truediv__.0.forward", 15, "shares = powers / total", [powers, total], shares)
        clean = np.nan_to_num(wide(shares))
        clean = call("Mint.nan_to_num.0.forward", 16, "shares = mint.nan_to_num(shares)", [shares], clean)
        energy = wide(scores) ** 2 * 32
        call("Mint.mul.0.forward", 17, "energy = mint.mul(self.scale * scores, scores)", [scores, scores], energy)
    dump.close()


def write(folder: Path) -> None:
    """Both sides."""
    for side, kind in (("target", np.float16), ("golden", np.float32)):
        shutil.rmtree(folder / side, ignore_errors=True)
        run(folder / side, kind)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "overflow_exp")
