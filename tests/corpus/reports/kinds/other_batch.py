"""Batches of unequal sizes: an engine of a fixed batch is filled up, or a run has fewer samples.

The samples that both have agree, or a weight, an operator or one sample of the input differs. No token is claimed.
Control: equal batches with the same faults.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.reports.kinds import _onnx_networks as dumps

TOKENS = ["request", "packed"]


def draw(random: np.random.Generator, folder: Path) -> dict:
    size, more = int(random.integers(2, 6)), int(random.integers(1, 4))
    is_control = bool(random.random() < 0.25)
    shape = (3, *random.integers(4, 9, 2))
    x = random.normal(size=(size + more, *shape)).astype(np.float32)
    if random.random() < 0.6:
        x[size:] = random.choice([0.0, 1.0])
    seed, layers, has_flatten = int(random.integers(2**31)), int(random.integers(1, 4)), bool(random.random() < 0.5)
    where = str(random.choice(["first", "first", "last", "mixed"]))
    rows = {"first": np.arange(size), "last": np.arange(size) + more,
            "mixed": random.permutation(size + more)[:size]}[where]  # fmt: skip
    images = x[rows]
    fault = str(random.choice(["none", "weight", "operator", "input", "none"]))
    own = x.copy() if not is_control else images.copy()
    if fault == "input":
        at = int(random.integers(size))
        own[at if is_control else rows[at]] *= np.float32(1.3)
        own[at if is_control else rows[at]] += np.float32(0.2)
    golden = dumps.network(random, images, layers, has_flatten, seed=seed)
    wrong = int(random.integers(len(golden)))
    target = dumps.network(random, own, layers, has_flatten, wrong if fault == "operator" else -1, 1.2, seed)
    first = golden[wrong].name
    if fault == "weight":
        node = target[0]
        kernel = node.reads[1] * np.float32(1.05)
        target = _with_kernel(target, kernel)
        first = golden[0].name
    elif fault == "input":
        first = golden[0].name
    is_smaller = not is_control and bool(random.random() < 0.25)
    sides = {"target": target, "golden": golden}
    if is_smaller:
        sides = {"target": golden, "golden": target}
    style = str(random.choice(["npy", "npy", "msprobe"]))
    for side, nodes in sides.items():
        dumps.write_npy(folder / side, nodes, True) if style == "npy" else dumps.write_msprobe(folder / side, nodes)
    run = {"do": ["compare", "target", "golden"], "never": TOKENS, "exit": [1]}
    if fault == "none":
        run.update(exit=[0, 2] if not is_smaller else [2], first="")
    else:
        kind, number = first.split("_")
        before = sum(node.kind == kind for node in golden[: int(number)])
        run["first"] = rf"^{first}$" if style == "npy" else rf"{dumps.MSPROBE[kind]}\.{before}\."
        if fault == "weight":
            run["says"] = ["input:1"]
    if not is_control:
        run["says"] = [*run.get("says", ()), r"batch"]
    return {"kind": f"other batch{': control' if is_control else ''}", "runs": [run]}


def _with_kernel(nodes: list, kernel: np.ndarray) -> list:
    """The operators with another first kernel; the outputs behind it are recomputed by their own functions."""
    done: dict[str, np.ndarray] = {"images": nodes[0].reads[0]}
    found = []
    for at, node in enumerate(nodes):
        reads = [done.get(source, value) for source, value in zip(node.sources, node.reads)]
        if at == 0:
            reads[1] = kernel
        output = _body(node.kind, reads, node.output)
        done[f"t{at}"] = output
        found.append(node._replace(reads=reads, output=output))
    return found


def _body(kind: str, reads: list, old: np.ndarray) -> np.ndarray:
    x = reads[0]
    if kind == "Conv":
        return dumps.conv(x, reads[1])
    if kind == "MaxPool":
        a, b = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
        return x[:, :, :a, :b].reshape(*x.shape[:2], a // 2, 2, b // 2, 2).max((3, 5))
    simple = {"Relu": lambda v: np.maximum(v, 0), "Tanh": np.tanh, "Sigmoid": lambda v: 1 / (1 + np.exp(-v)),
              "Flatten": lambda v: v.reshape(len(v), -1), "ReduceMean": lambda v: v.mean((2, 3))}  # fmt: skip
    found = simple[kind](x) if kind in simple else x + reads[1] if kind == "Add" else x @ reads[1]
    return np.ascontiguousarray(found, old.dtype)
