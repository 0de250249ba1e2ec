"""Small dumps of a list of calls in three formats: .npy of nodes, MindSpore's kernels, msprobe's records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from tests.synthetic import write_run

FORMATS = ("npy", "mindspore", "msprobe")
TIME = 1_789_000_000_000_000
WORDS = {"float32": "Float32", "float16": "Float16", "int64": "Int64", "int32": "Int32", "bool": "Bool"}
PLAIN = {  # a node's type: its name in msprobe
    "MatMul": "Torch.matmul", "Add": "Torch.add", "Mul": "Torch.mul", "Concat": "Torch.cat", "Relu": "Functional.relu",
    "Sigmoid": "Torch.sigmoid", "Tanh": "Torch.tanh", "Gather": "Torch.index_select", "TopK": "Torch.topk",
    "ArgMax": "Torch.argmax", "Sort": "Torch.sort", "Cast": "Tensor.to", "Where": "Torch.where", "Equal": "Torch.eq",
    "Softmax": "Functional.softmax", "ReduceSum": "Torch.sum", "ReduceMean": "Torch.mean", "Abs": "Torch.abs",
}  # fmt: skip


class Call(NamedTuple):
    """One executed operator: its type, what it read and what it wrote."""

    kind: str
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


def names(calls: Sequence[Call], form: str, scope: str = "") -> list[str]:
    """The names of calls in a format."""
    found, seen = [], {}
    for place, call in enumerate(calls):
        number = seen[call.kind] = seen.get(call.kind, -1) + 1
        if form == "npy":
            found.append(f"{scope}{call.kind}_{place}")
        elif form == "mindspore":
            found.append(f"Default_network-{scope or 'Net'}_{call.kind}-op{place}")
        else:
            found.append(f"{PLAIN[call.kind]}.{number}.forward")
    return found


def write(folder: Path, calls: Sequence[Call], form: str, scope: str = "") -> None:
    """Write the calls of one run."""
    spelled = names(calls, form, scope)
    if form == "msprobe":
        write_run(folder, {n: {"in": [*c.inputs], "out": [*c.outputs]} for n, c in zip(spelled, calls)})
        return
    place = folder / "rank_0/net/0/0" if form == "mindspore" else folder
    place.mkdir(parents=True)
    clock = TIME
    for name, call in zip(spelled, calls):
        for role, tensors in (("input", call.inputs), ("output", call.outputs)):
            for slot, values in enumerate(tensors):
                clock += 7
                stem = f"{'input_' if role == 'input' else ''}{name}.{slot}.{clock}"
                if form == "mindspore":
                    kind = WORDS[str(values.dtype)]
                    stem = f"{call.kind}.{name}.0.0.{clock}.{role}.{slot}.DefaultFormat.{kind}"
                np.save(place / f"{stem}.npy", values)
