"""Small convolution networks in numpy, dumped as files of nodes or tensors, and as ONNX graphs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.corpus.reports.kinds._dumps_G import Call, write

Array = np.ndarray
CLOCK = 1789000000000000
MSPROBE = {"Conv": "Functional.conv2d", "Relu": "Functional.relu", "Tanh": "Mint.tanh", "Add": "Mint.add",
           "MaxPool": "Functional.max_pool2d", "ReduceMean": "Mint.mean", "Flatten": "Mint.flatten",
           "MatMul": "Mint.matmul", "Sigmoid": "Mint.sigmoid"}  # fmt: skip


class Node(NamedTuple):
    """An operator: type, name, the arrays and the names of the tensors that it reads, and its output."""

    kind: str
    name: str
    reads: Sequence[Array]
    sources: Sequence[str]
    output: Array


def conv(x: Array, w: Array) -> Array:
    pad = w.shape[2] // 2
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), w.shape[2:], axis=(2, 3)
    )
    return np.einsum("nchwij,ocij->nohw", windows, w).astype(x.dtype)


def network(
    random: np.random.Generator, x: Array, layers: int, has_flatten: bool = True, faulty: int = -1, factor: float = 1.0,
    seed: int = 0, prefix: str = "",
) -> list[Node]:  # fmt: skip
    """Return the operators of a network of `layers` convolutions; the output of number `faulty` is `factor` times too
    large."""
    own = np.random.default_rng(seed)
    nodes: list[Node] = []

    def add(kind: str, reads: Sequence[Array], sources: Sequence[str], output: Array) -> tuple[Array, str]:
        if len(nodes) == faulty:
            output = (output * x.dtype.type(factor)).astype(output.dtype)
        name = f"{prefix}{kind}_{len(nodes)}"
        nodes.append(Node(kind, name, reads, sources, np.ascontiguousarray(output)))
        return nodes[-1].output, f"t{len(nodes) - 1}"

    h, source = x, "images"
    for layer in range(layers):
        width = int(own.integers(3, 8))
        size = int(own.choice([1, 3]))
        w = (own.normal(size=(width, h.shape[1], size, size)) / np.sqrt(h.shape[1] * size * size)).astype(x.dtype)
        before, was = h, source
        h, source = add("Conv", [h, w], [source, f"w{layer}"], conv(h, w))
        kind = str(own.choice(["Relu", "Tanh", "Sigmoid"]))
        body = {"Relu": lambda v: np.maximum(v, 0), "Tanh": np.tanh, "Sigmoid": lambda v: 1 / (1 + np.exp(-v))}[kind]
        h, source = add(kind, [h], [source], body(h).astype(x.dtype))
        if before.shape == h.shape:
            h, source = add("Add", [h, before], [source, was], h + before)
        if layer == 0 and min(h.shape[2:]) > 3:
            a, b = h.shape[2] // 2 * 2, h.shape[3] // 2 * 2
            pooled = h[:, :, :a, :b].reshape(*h.shape[:2], a // 2, 2, b // 2, 2).max((3, 5))
            h, source = add("MaxPool", [h], [source], pooled)
    if has_flatten:
        h, source = add("Flatten", [h], [source], h.reshape(len(h), -1))
    else:
        h, source = add("ReduceMean", [h], [source], h.mean((2, 3)).astype(x.dtype))
    w = (own.normal(size=(h.shape[1], 5)) / np.sqrt(h.shape[1])).astype(x.dtype)
    add("MatMul", [h, w], [source, "fc"], h @ w)
    return nodes


def turned(nodes: Sequence[Node], axes: Sequence[int]) -> list[Node]:
    """Return the operators of a runtime that keeps images in other axes, and kernels as HWIO."""
    found, flat = [], None
    back = np.argsort(axes)
    for node in nodes:
        if node.kind == "Flatten":
            shape = node.reads[0].shape
            flat = np.arange(np.prod(shape[1:])).reshape(1, *shape[1:]).transpose(axes).reshape(-1)
        reads = [value.transpose((2, 3, 1, 0)) if node.kind == "Conv" and at == 1 else _turn(value, axes)
                 for at, value in enumerate(node.reads)]  # fmt: skip
        output = _turn(node.output, axes)
        if flat is not None and node.kind == "Flatten":
            output = node.output[:, flat]
        if flat is not None and node.kind == "MatMul":
            reads = [reads[0][:, flat], reads[1][flat]]
            flat = None
        found.append(node._replace(reads=reads, output=output))
    assert len(back) == 4
    return found


def _turn(value: Array, axes: Sequence[int]) -> Array:
    return np.ascontiguousarray(value.transpose(axes)) if value.ndim == 4 else value


def write_npy(folder: Path, nodes: Sequence[Node], inputs: bool, timed: bool = True, images: bool = False) -> None:
    """Write a file for each output, and for each input, as the tools for ONNX name them."""
    folder.mkdir()
    at = 0

    def save(name: str, index: int, value: Array) -> None:
        nonlocal at
        at += 7
        end = f".{index}.{CLOCK + at}" if timed else ""
        np.save(folder / f"{name.replace('/', '_')}{end}.npy", np.ascontiguousarray(value))

    if images:
        save("images", 0, nodes[0].reads[0])
    for node in nodes:
        for index, value in enumerate(node.reads if inputs else ()):
            save(f"input_{node.name}", index, value)
        save(node.name, 0, node.output)


def write_npz(path: Path, nodes: Sequence[Node], images: bool = False) -> None:
    named = {"images": nodes[0].reads[0]} if images else {}
    named.update({node.name: node.output for node in nodes})
    np.savez(path, **named)


def write_msprobe(folder: Path, nodes: Sequence[Node], task: str = "tensor") -> None:
    seen: dict[str, int] = {}
    calls = []
    for node in nodes:
        kind = MSPROBE[node.kind]
        number = seen[kind] = seen.get(kind, -1) + 1
        calls.append(Call(f"{kind}.{number}.forward", [*node.reads], [node.output]))
    write(folder, calls, task)


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def _field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def onnx(nodes: Sequence[Node], names: bool = True, outputs: Sequence[str] = ()) -> bytes:
    """Return a ModelProto in wire format; `outputs` are the names of the nodes' output tensors."""
    written = [*outputs] or [f"t{at}" for at in range(len(nodes))]
    of = {f"t{at}": name for at, name in enumerate(written)}
    graph, weights = b"", {}
    for node, name in zip(nodes, written):
        reads = b"".join(_field(1, of.get(source, source)) for source in node.sources)
        more = _field(5, _field(1, "pads") + b"".join(_number(8, 1) for _ in range(4)) + _number(20, 7))
        own = _field(3, node.name) if names else b""
        graph += _field(1, reads + _field(2, name) + own + _field(4, node.kind) + more)
        weights.update({source: value for source, value in zip(node.sources, node.reads) if source[:1] in "wf"})
    graph += _field(2, "net")
    for name, value in weights.items():
        dims = b"".join(_number(1, size) for size in value.shape)
        graph += _field(5, dims + _number(2, 1) + _field(8, name) + _field(9, value.astype("<f4").tobytes()))
    graph += _field(11, _field(1, "images")) + _field(12, _field(1, written[-1]))
    opset = _field(8, _field(1, "") + _number(2, 17))
    return _number(1, 8) + _field(2, "pytorch") + _field(7, graph) + opset + struct.pack("")
