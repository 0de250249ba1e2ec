"""Writes MindSpore's own dumps as a graph on CPU or GPU leaves them: a .npy file per tensor of every kernel.

    rank_{r}/{net}/{graph}/{iteration}/      rank 0 where there is one only; the iteration is the step
        {type}.{name}.0.0.{microseconds}.{input|output}.{n}.DefaultFormat.{dtype}.npy
    rank_{r}/execution_order/ms_execution_order_graph_{graph}.csv     a header, then a full name per line

    full name    Default/network-{net}/{part}-{class}/{type}-op{n}, backward
                 Gradients/Default/network-{net}/{part}-{class}/Grad_{forward's type}/{type}-op{n};
                 {name} is this with "_" for "/". {class} is left out where no record of a module tells it
    .npy         version 1.0, header padded to 128 bytes, shape as "(4,32,)"; bfloat16 is stored as float32, only the
                 name tells

A run whose kernels are others than those of its rank's earlier runs is another graph. Numbers among the arguments and
files of parameters (Parameter.{name}…) are left out; slots count the tensors that are there.
Source: a dump of MindSpore 2.10 on CPU; docs/formats.md.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Sequence

from tests.corpus.spelling import SPELLINGS
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers.naming import MODULE, Kernel, escaped, kernels

NAME = "mindspore"

NET = "Net"
TIME = 1_767_225_600_000_000  # µs
DTYPES = {  # word in the name, type in the header
    "float32": ("Float32", "<f4"),
    "bfloat16": ("BFloat16", "<f4"),
    "float16": ("Float16", "<f2"),
    "float64": ("Float64", "<f8"),
    "int64": ("Int64", "<i8"),
    "int32": ("Int32", "<i4"),
    "complex64": ("Complex64", "<c8"),
    "bool": ("Bool", "|b1"),
}


def write(folder: Path, runs: Sequence[Run]) -> None:
    """One dump of all runs, with the order of execution of each graph."""
    orders: dict[Path, list[str]] = defaultdict(list)
    for i, run in enumerate(runs):
        rank = folder / f"rank_{run.rank or 0}"
        some = _kernels(run)
        order = "\n".join(["NodeExecutionOrder-FullNameWithScope", *(kernel.name for kernel in some), ""])
        if order not in orders[rank]:
            orders[rank].append(order)
        _write_run(rank / NET / str(orders[rank].index(order)) / str(run.step), some, TIME + i * 10_000_000)
    for rank, texts in orders.items():
        place = rank / "execution_order"
        place.mkdir(exist_ok=True)
        for graph, text in enumerate(texts):
            (place / f"ms_execution_order_graph_{graph}.csv").write_text(text)


def names(run: Run) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    return {kernel.record: escaped(kernel.name) for kernel in _kernels(run)}


def _kernels(run: Run) -> list[Kernel]:
    classes = {one.scope: one.class_name for one in run.records if one.kind == MODULE and one.class_name}
    cells = {record.scope: _cell(record.scope, classes) for record in run.records}

    def spelled(record: Record) -> tuple[str, str]:
        row = SPELLINGS[record.kind]
        if record.phase != "backward":
            return cells[record.scope], row.mindspore
        return f"Gradients/{cells[record.scope]}Grad_{row.mindspore}/", row.mindspore_backward

    return kernels(run, spelled)


def _cell(scope: str, classes: dict[str, str]) -> str:
    """The scope as MindSpore spells it: each cell with its class."""
    parts = scope.split(".") if scope else []
    paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
    named = [f"{part}-{classes[path]}" if path in classes else part for part, path in zip(parts, paths)]
    return "/".join(["Default", f"network-{NET}", *named, ""])


def _write_run(place: Path, some: Sequence[Kernel], time: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    files: dict[int, tuple[str, bytes]] = {}  # by identity: a key may have other values after in-place work
    for kernel in some:
        stem = f"{place}/{kernel.op_type}.{escaped(kernel.name)}.0.0."
        for role, slots in zip(("input", "output"), kernel.dumped):
            for slot, tensor in enumerate(slots):
                if id(tensor) not in files:
                    files[id(tensor)] = _file(tensor)
                word, content = files[id(tensor)]
                time += 110
                with open(f"{stem}{time}.{role}.{slot}.DefaultFormat.{word}.npy", "wb", buffering=0) as file:
                    file.write(content)


def _file(tensor: Tensor) -> tuple[str, bytes]:
    """The word for its type, and a .npy file of it."""
    word, descr = DTYPES[tensor.dtype]
    shape = "".join(f"{dim}," for dim in tensor.values.shape)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}"
    length = (len(header) + 11 + 127) // 128 * 128 - 10
    start = b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + header.ljust(length - 1).encode() + b"\n"
    return word, start + tensor.values.astype(descr, copy=False).tobytes()
