"""Tensors without a partner on both sides, by names of two spellings: the advice must not accept what may be wrong.

The files of one run are numbered, those of the other are not (or in another spelling), so that equal tensors pair by
their values, and the tensors behind a fault stay without a partner. Control: the golden has more
tensors, of other sizes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SPELLINGS = (
    lambda at, name: f"{at:03d}_{name}",
    lambda at, name: f"step_{at}.{name}",
    lambda at, name: name,
    lambda at, name: f"{name}_{at:02d}",
    lambda at, name: f"net-{name}",
)
ACTIVATIONS = {
    "relu": (lambda x: np.maximum(x, 0), lambda x: np.maximum(x, 0.01 * x)),
    "tanh": (np.tanh, lambda x: np.tanh(x) * 1.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "softplus": (lambda x: np.log1p(np.exp(x)), lambda x: np.log1p(np.exp(x)) + 0.1),
}


def draw(random: np.random.Generator, folder: Path) -> dict:
    seed, layers = int(random.integers(2**31)), int(random.integers(2, 6))
    sizes = int(random.integers(3, 9)), int(random.integers(8, 33))
    kind, is_control = str(random.choice([*ACTIVATIONS])), bool(random.random() < 0.35)
    faulty = layers if is_control else int(random.integers(layers))
    dtype = np.dtype(random.choice(["f4", "f8"]))
    target, golden = (_network(seed, layers, sizes, kind, at, dtype) for at in (faulty, layers))
    first, second = random.choice(len(SPELLINGS), 2, replace=False)
    more = {}
    if is_control:
        for at in range(int(random.integers(1, 5))):
            more[f"table_{at}"] = random.standard_normal((2, sizes[0] * sizes[1] + 1 + at)).astype(dtype)
    _write(random, folder / "target", target, SPELLINGS[first])
    _write(random, folder / "golden", {**golden, **more}, SPELLINGS[second])
    run = {"do": ["compare", *(_path(folder, side) for side in ("target", "golden"))], "never": [], "says": []}
    if is_control:
        run.update(exit=[0, 2], first="")
    else:  # the files record no order, so the first that is named may lie behind the fault
        run.update(
            exit=[1, 2], says=[rf"(?:{kind}|norm|dense)_[{faulty}-9]"], never=["accept with --coverage", "exclude with"]
        )
    return {"kind": f"left over names{': control' if is_control else ''}", "runs": [run]}


def _network(seed: int, layers: int, sizes: tuple[int, int], kind: str, faulty: int, dtype: np.dtype) -> dict:
    random = np.random.default_rng(seed)
    batch, width = sizes
    x = random.standard_normal((batch, width)).astype(dtype)
    found = {"input": x}
    for at in range(layers):
        h = (x @ (random.standard_normal((width, width)) / width**0.5)).astype(dtype)
        g = ACTIVATIONS[kind][at == faulty](h).astype(dtype)
        x = ((g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + 1e-5) + x).astype(dtype)
        found.update({f"dense_{at}": h, f"{kind}_{at}": g, f"norm_{at}": x})
    return found


def _write(random: np.random.Generator, place: Path, tensors: dict, spelling) -> None:
    named = {spelling(at, name): value for at, (name, value) in enumerate(tensors.items())}
    if random.random() < 0.5:
        np.savez(place.with_suffix(".npz"), **named)
        return
    place.mkdir()
    for name, value in named.items():
        np.save(place / f"{name}.npy", value)


def _path(folder: Path, side: str) -> str:
    return side if (folder / side).exists() else f"{side}.npz"
