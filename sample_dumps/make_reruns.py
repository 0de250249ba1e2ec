"""Makes rerun_scatter: three runs of a small graph network whose sums over edges add up in another order every time.

That is what atomic additions do on a device: the order is that of arrival, and float32 sums in another order differ in
their last bits here and there. Run 1 adds edge by edge, runs 2 and 3 shuffle the edges; all else is the same. Written
from numpy in the layout that msprobe has for MindSpore. No device was at hand.

    python make_reruns.py [FOLDER]          writes FOLDER/run1 to run3, by default rerun_scatter beside this file
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

NODES, EDGES, WIDTH = 24, 96, 8
LAYERS = 2


def as_float32(values: np.ndarray) -> np.ndarray:
    """Computed in float64 and rounded once: the same bits on every machine."""
    return np.asarray(values, np.float64).astype(np.float32)


def index_add(edges: np.ndarray, target: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Sums of the edges that end in each node, in float32 and in the order given."""
    sums = np.zeros((NODES, WIDTH), np.float32)
    for edge in order:
        sums[target[edge]] += edges[edge]
    return sums


def layer_norm(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    return as_float32(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5))


class Dump:
    """One step in msprobe's layout: dump.json, stack.json, one .npy file per tensor."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "step0" / "proc1"
        self.data = self.place / "dump_tensor_data"
        self.data.mkdir(parents=True)
        self.records: dict[str, object] = {}
        self.lines: dict[str, str] = {}

    def call(self, name: str, line: str, inputs: list, output: np.ndarray) -> np.ndarray:
        """Records one operator; returns its output."""
        self.records[name] = {
            "input_args": [self.leaf(f"{name}.input.{i}", value) for i, value in enumerate(inputs)],
            "input_kwargs": {},
            "output": [self.leaf(f"{name}.output.0", output)],
        }
        self.lines[name] = line
        return output

    def leaf(self, name: str, value: object) -> dict[str, object]:
        if not isinstance(value, np.ndarray):
            return {"type": type(value).__name__, "value": value}
        np.save(self.data / f"{name}.npy", value)
        wide = value.astype(np.float64)
        facts = {"Max": wide.max(), "Min": wide.min(), "Mean": wide.mean(), "Norm": np.sqrt((wide**2).sum())}
        told = {key: float(fact) for key, fact in facts.items()} if value.dtype.kind == "f" else {}
        kind = {"float16": "Float16", "float32": "Float32", "int32": "Int32"}[value.dtype.name]
        shape = list(value.shape)
        return {"type": "mindspore.Tensor", "dtype": kind, "shape": shape, **told, "data_name": f"{name}.npy"}

    def close(self) -> None:
        top = {"task": "tensor", "level": "L1", "framework": "mindspore", "dump_data_dir": "./dump_tensor_data"}
        self.place.joinpath("dump.json").write_text(json.dumps({**top, "data": self.records}, indent=1))
        stacks = {str(i): [[name], [line]] for i, (name, line) in enumerate(self.lines.items())}
        self.place.joinpath("stack.json").write_text(json.dumps(stacks, indent=1))


def run(folder: Path, order: np.random.Generator | None) -> None:
    """One forward pass; `order` shuffles the edges of every sum, None leaves them as they are."""
    random = np.random.default_rng(0)
    x = random.standard_normal((NODES, WIDTH)).astype(np.float32)
    source, target = (random.integers(0, NODES, EDGES).astype(np.int32) for _ in range(2))
    weights = [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(LAYERS)]
    dump = Dump(folder)
    for layer, weight in enumerate(weights):
        name = lambda word: f"{word}.{layer}.forward"  # noqa: B023, E731
        line = "File /home/user/gnn.py, line {}, in construct, \n {}".format
        edges = dump.call(
            name("Mint.index_select"), line(31, "edges = mint.index_select(x, 0, source)"), [x, 0, source], x[source]
        )
        turns = np.arange(EDGES) if order is None else order.permutation(EDGES)
        zeros = np.zeros((NODES, WIDTH), np.float32)
        sums = dump.call(
            name("Mint.index_add"),
            line(32, "sums = mint.index_add(zeros, 0, target, edges)"),
            [zeros, 0, target, edges],
            index_add(edges, target, turns),
        )
        mixed = as_float32(np.einsum("ij,jk->ik", sums.astype(np.float64), weight.astype(np.float64)))
        dump.call(name("Mint.matmul"), line(33, "h = mint.matmul(sums, self.weight)"), [sums, weight], mixed)
        rest = dump.call(
            name("MintFunctional.layer_norm"),
            line(34, "h = F.layer_norm(h, (8,))"),
            [mixed, 1e-5],
            layer_norm(mixed),
        )
        x = dump.call(name("Mint.tanh"), line(35, "x = mint.tanh(h)"), [rest], as_float32(np.tanh(rest.astype(float))))
    dump.close()


def write(folder: Path) -> None:
    """All three runs."""
    for number in (1, 2, 3):
        shutil.rmtree(folder / f"run{number}", ignore_errors=True)
        run(folder / f"run{number}", np.random.default_rng(number) if number > 1 else None)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "rerun_scatter")
