"""Writes raw dumps of an Ascend device, version 2, one file per executed operator, and the graph that GE compiled.

    ge_proto_{k, eight digits}_graph_{k}_Build.txt       ModelDef as text, one per structure of a run
    {time}/{device}/{graph's name}/{k}/{step}/           the device is the rank, 0 where there is one only
        {type}.{name}.{task}.{stream}.{microseconds}     "_" for each of " ./\\" in a name

    a file       0      H, uint64, little endian
                 8      DumpData, H bytes of protobuf
                 8 + H  values without gaps: inputs, outputs
    DumpData     1 version · 2 dump_time, ms · 3 output · 4 input · 6 op_name, unescaped
    OpOutput     1 data_type · 2 format · 3 shape · 6 size · 7 original_shape
    OpInput      1 data_type · 2 format · 3 shape · 5 size · 6 original_shape
    Shape        1 dim, packed; empty for a scalar
    bfloat16     the upper 16 bits of the float32

    GraphDef     name · op
    OpDef        1 name · 2 type · 5 input, "producer:output index" · 21 id, order of execution, left out where 0 ·
                 33 input_desc · 34 output_desc; printed in this order
    descriptor   dtype · shape { dim } · layout

A parameter is a Const node of its own name, any other tensor that no operator of the run wrote a Data node named after
its first reader; neither has a file, as on a device. So has an operator neither of whose sides was recorded. Numbers
among the arguments are left out, and None is no slot: slots count the tensors that are there.
Source: DumpData and ge_ir.proto of the public sources of CANN's runtime, of GE and of msaccucmp; docs/formats.md.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from tests.corpus.spelling import SPELLINGS
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers.naming import Kernel, escaped, kernels

NAME = "cann"

TIME = 1_767_225_600_000_000  # µs; the dump's folder says the same
FOLDER = "20260101000000"
ND = 2
STREAM = 3

Edge = "tuple[str, int]"


class Type(NamedTuple):
    """A dtype as OutputDataType numbers it, as ge.proto.DataType spells it, and numpy's type of the stored values."""

    code: int
    word: str
    stored: str


TYPES = {
    "float32": Type(1, "DT_FLOAT", "<f4"),
    "float16": Type(2, "DT_FLOAT16", "<f2"),
    "int32": Type(7, "DT_INT32", "<i4"),
    "int64": Type(8, "DT_INT64", "<i8"),
    "bool": Type(11, "DT_BOOL", "|b1"),
    "float64": Type(12, "DT_DOUBLE", "<f8"),
    "complex64": Type(16, "DT_COMPLEX64", "<c8"),
    "bfloat16": Type(27, "DT_BF16", "<u2"),
}


def write(folder: Path, runs: Sequence[Run]) -> None:
    """One dump of all runs, and the graphs of their structures."""
    structures: dict[object, str] = {}
    for order, run in enumerate(runs):
        some = kernels(run, _spelled)
        sources, edges = _edges(some)
        structure = tuple((kernel.name, *reads) for kernel, reads in zip(some, edges))
        model = len(structures) + 1
        if structure not in structures:
            structures[structure] = f"ge_default_{FOLDER}_{model}"
            graph = _graph(structures[structure], sources, some, edges)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"ge_proto_{model:08}_graph_{model}_Build.txt").write_text(graph)
        name = structures[structure]
        place = folder / FOLDER / str(run.rank or 0) / name / name.rpartition("_")[2] / str(run.step)
        _write_run(place, some, TIME + order * 10_000_000)


def names(run: Run) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    return {kernel.record: kernel.name for kernel in kernels(run, _spelled)}


def _spelled(record: Record) -> tuple[str, str]:
    spelling = SPELLINGS[record.kind]
    scope = f"{record.scope.replace('.', '/')}/" if record.scope else ""
    backward = record.phase == "backward"
    return (f"Gradients/{scope}", spelling.ge_backward) if backward else (scope, spelling.ge)


def _write_run(place: Path, some: Sequence[Kernel], time: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    parts: dict[int, tuple[bytes, bytes, bytes]] = {}  # by identity: a key may have other values after in-place work
    for task, kernel in enumerate(some, 1):
        reads, writes = kernel.dumped
        if not reads and not writes:
            continue
        for tensor in (*reads, *writes):
            if id(tensor) not in parts:
                parts[id(tensor)] = _parts(tensor)
        at = time + task * 250
        header = b"".join(
            (
                field(1, b"2.0"),
                number(2, at // 1000),
                *(parts[id(tensor)][1] for tensor in writes),
                *(parts[id(tensor)][0] for tensor in reads),
                field(6, kernel.name.encode()),
            )
        )
        values = (parts[id(tensor)][2] for tensor in (*reads, *writes))
        file = place / f"{escaped(kernel.op_type)}.{escaped(kernel.name)}.{task}.{STREAM}.{at}"
        file.write_bytes(b"".join((struct.pack("<Q", len(header)), header, *values)))


def _parts(tensor: Tensor) -> tuple[bytes, bytes, bytes]:
    """The field of DumpData that describes it as an input, the one as an output, and its values."""
    row = TYPES[tensor.dtype]
    stored = _upper(tensor.values) if tensor.dtype == "bfloat16" else tensor.values
    values = stored.astype(row.stored, copy=False).tobytes()
    dims = tensor.values.shape
    shape = field(1, b"".join(map(varint, dims))) if dims else b""
    head = number(1, row.code) + number(2, ND) + field(3, shape)
    as_input = head + number(5, len(values)) + field(6, shape)
    as_output = head + number(6, len(values)) + field(7, shape)
    return field(4, as_input), field(3, as_output), values


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(place: int, value: int) -> bytes:
    """A field that holds a number; left out where 0, as proto3 does."""
    return varint(place << 3) + varint(value) if value else b""


def field(place: int, content: bytes) -> bytes:
    """A field that holds a text, a message or packed numbers."""
    return varint(place << 3 | 2) + varint(len(content)) + content


def _upper(values: np.ndarray) -> np.ndarray:
    """The upper half of each float32."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(16)


class Source(NamedTuple):
    """A node that computes nothing."""

    name: str
    op_type: str
    tensor: Tensor


def _edges(some: Sequence[Kernel]) -> tuple[list[Source], list[list[Edge]]]:
    """Nodes of tensors that no operator wrote, and what each kernel reads, as (node, its output index).

    What a backward kernel reads of its forward is what that read and wrote, be it overwritten since.
    """
    sources: dict[str, Source] = {}
    known: dict[int, Edge] = {}
    found: dict[str, list[Edge]] = {}
    for kernel in some:
        edges = []
        for slot, tensor in enumerate(kernel.reads[: kernel.gradients]):
            if tensor.key not in known:
                source = _source(kernel, slot, tensor, sources)
                sources[source.name] = source
                known[tensor.key] = source.name, 0
            edges.append(known[tensor.key])
        if kernel.forward is not None:
            edges += found[kernel.forward.name]
            edges += [(kernel.forward.name, i) for i in range(len(kernel.forward.writes))]
        known.update((tensor.key, (kernel.name, i)) for i, tensor in enumerate(kernel.writes))
        found[kernel.name] = edges
    return list(sources.values()), list(found.values())


def _source(kernel: Kernel, slot: int, tensor: Tensor, taken: dict[str, Source]) -> Source:
    """Its name says nothing of what else the run reads, so that it stays where something is added."""
    name = tensor.parameter.replace(".", "/")
    if not name or name in taken:
        return Source(f"{kernel.name}/arg{slot}", "Data", tensor)
    return Source(name, "Const", tensor)


def _graph(name: str, sources: Sequence[Source], some: Sequence[Kernel], edges: Sequence[Sequence[Edge]]) -> str:
    described: dict[int, str] = {}
    text = ["graph {", f'  name: "{name}"']
    for place, source in enumerate(sources):
        text += _op(source.name, source.op_type, place, (), _descriptors("output", [source.tensor], described))
    for place, (kernel, reads) in enumerate(zip(some, edges), len(sources)):
        lines = _descriptors("input", kernel.reads, described) + _descriptors("output", kernel.writes, described)
        text += _op(kernel.name, kernel.op_type, place, reads, lines)
    return "\n".join([*text, "}\n"])


def _op(name: str, op_type: str, place: int, reads: Sequence[Edge], descriptors: list[str]) -> list[str]:
    """Lines of an OpDef."""
    text = ["  op {", f'    name: "{name}"', f'    type: "{op_type}"']
    text += [f'    input: "{producer}:{index}"' for producer, index in reads]
    text += [f"    id: {place}"] if place else []
    return [*text, *descriptors, "  }"]


def _descriptors(role: str, some: Sequence[Tensor], described: dict[int, str]) -> list[str]:
    """Lines of input_desc or output_desc; what stands inside is made once for each tensor."""
    text = []
    for tensor in some:
        if id(tensor) not in described:
            dims = "".join(f"        dim: {dim}\n" for dim in tensor.values.shape)
            word = TYPES[tensor.dtype].word
            described[id(tensor)] = f'      dtype: {word}\n      shape {{\n{dims}      }}\n      layout: "ND"\n    }}'
        text.append(f"    {role}_desc {{\n{described[id(tensor)]}")
    return text
