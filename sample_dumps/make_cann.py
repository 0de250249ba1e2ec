"""Makes the CANN samples: a small residual network as TensorFlow's debugger and as an Ascend device would dump it.

The reference runs in float32 and NHWC, one file per output. The device runs the network as its graph compiler fused
it: float16 between operators, float32 inside them, NC1HWC0 and FRACTAL_Z in memory, TransData and Cast put in. Files
are written with struct alone, from the public description of the format. No device was at hand.

    python make_cann.py FOLDER [FAULT]      writes FOLDER/golden and FOLDER/target
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

FLOAT, FLOAT16 = 1, 2
NHWC, ND, NC1HWC0, FRACTAL_Z = 1, 2, 3, 4
LAYOUT = {NHWC: "NHWC", ND: "ND", NC1HWC0: "NC1HWC0", FRACTAL_Z: "FRACTAL_Z"}
START = 1_763_700_000_000_000  # microseconds
MODEL = "ge_default_20261121093000_1"


class Value(NamedTuple):
    """One tensor of the device: logical values, how they are stored, and what the reference calls them."""

    array: np.ndarray
    layout: int
    name: str  # "{node}:{output}"
    origin: str  # tensor of the reference, "" for none


class Op(NamedTuple):
    """One executed operator of the device."""

    kind: str
    name: str
    inputs: "tuple[Value, ...]"
    output: Value
    originals: "Optional[tuple[str, ...]]"
    passes: "tuple[str, ...]" = ()


def convolve(x, weight):
    """3x3 convolution, stride 1, SAME, in float32: NHWC and HWCN."""
    h, w = x.shape[1:3]
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    flat = np.concatenate(windows, axis=-1).reshape(-1, 9 * x.shape[-1])
    return (flat @ weight.astype(np.float32).reshape(-1, weight.shape[-1])).reshape(*x.shape[:3], -1)


def normalise(x, layer, eps=1e-3):
    """Batch normalisation with fixed statistics."""
    return (x - layer["mean"]) / np.sqrt(layer["variance"] + np.float32(eps)) * layer["gamma"] + layer["beta"]


def layers(seed, width, blocks):
    """Weights of every convolution, and of the classifier."""
    random = np.random.default_rng(seed)

    def layer(inside, out):
        return {
            "weight": (random.standard_normal((3, 3, inside, out)) / np.sqrt(9 * inside)).astype(np.float32),
            "mean": (0.1 * random.standard_normal(out)).astype(np.float32),
            "variance": random.uniform(0.5, 1.5, out).astype(np.float32),
            "gamma": random.uniform(0.8, 1.2, out).astype(np.float32),
            "beta": (0.1 * random.standard_normal(out)).astype(np.float32),
        }

    found = {"conv1": layer(3, width)}
    for block in range(blocks):
        for half in ("a", "b"):
            found[f"block_{block}/{half}"] = layer(width, width)
    dense = {"weight": random.standard_normal((width, 10)).astype(np.float32) / 4, "bias": np.ones(10, np.float32) / 8}
    x = random.standard_normal((1, 8, 8, 3)).astype(np.float32)
    return found, dense, x


def reference(seed, width, blocks):
    """Every output of the network in float32, in order of execution."""
    convolutions, dense, x = layers(seed, width, blocks)
    found = {"input:0": x}

    def unit(name, x, activate):
        layer = convolutions[name]
        found[f"net/{name}/kernel:0"] = layer["weight"]
        found[f"net/{name}/Conv2D:0"] = y = convolve(x, layer["weight"])
        found[f"net/{name}/bn/FusedBatchNormV3:0"] = y = normalise(y, layer)
        if activate:
            found[f"net/{name}/Relu:0"] = y = np.maximum(y, 0)
        return y

    x = unit("conv1", x, True)
    for block in range(blocks):
        y = unit(f"block_{block}/b", unit(f"block_{block}/a", x, True), False)
        found[f"net/block_{block}/add:0"] = x = x + y
        found[f"net/block_{block}/Relu:0"] = x = np.maximum(x, 0)
    found["net/pool/Mean:0"] = x = x.mean(axis=(1, 2))
    found["net/dense/kernel:0"] = dense["weight"]
    found["net/dense/bias:0"] = dense["bias"]
    found["net/dense/MatMul:0"] = x = x @ dense["weight"]
    found["net/dense/BiasAdd:0"] = x = x + dense["bias"]
    found["net/Softmax:0"] = softmax(x)
    return found


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


class Device:
    """Runs the fused network in float16 and keeps what every operator read and wrote."""

    def __init__(self, fault=""):
        self.fault = fault  # name of the operator that goes wrong
        self.ops: "list[Op]" = []
        self.count = 0

    def run(self, kind, name, inputs, array, layout, origin, originals, passes=(), dtype=np.float16):
        if name == self.fault:
            array = self.wrong(array)
        value = Value(array.astype(dtype), layout, f"{name}:0", origin)
        self.ops.append(Op(kind, name, tuple(inputs), value, originals, tuple(passes)))
        return value

    @staticmethod
    def wrong(array):
        """A tenth of the last axis is 3 % off."""
        array = array.copy()
        array[..., : max(1, array.shape[-1] // 10)] *= 1.03
        return array

    def prepared(self, value, layout):
        """A float32 value of the network as the device wants it: cast, and laid out anew."""
        self.count += 1
        cast = self.run("Cast", f"trans_Cast_{self.count}", [value], value.array, value.layout, value.origin, ())
        if layout == value.layout:
            return cast
        return self.run("TransData", f"trans_TransData_{self.count}", [cast], cast.array, layout, value.origin, ())


def device(seed, width, blocks, fault=""):
    """All operators that the device executed."""
    convolutions, dense, x = layers(seed, width, blocks)
    run = Device(fault)

    def data(array, layout, name):
        return Value(array, layout, f"{name}:0", f"{name}:0")

    def unit(name, x, activate):
        layer, base = convolutions[name], f"net/{name}"
        weight = run.prepared(data(layer["weight"], NHWC, f"{base}/kernel"), FRACTAL_Z)
        y = normalise(convolve(x.array, weight.array), layer)
        names = (f"{base}/Conv2D", f"{base}/bn/FusedBatchNormV3", *((f"{base}/Relu",) if activate else ()))
        passes = ("ConvBatchnormFusionPass", *(("TbeConvReluFusionPass",) if activate else ()))
        y = np.maximum(y, 0) if activate else y
        fused = f"{base}/Conv2D" + (f"{base}/Relu" if activate else "")  # the second pass puts names together
        return run.run("Conv2D", fused, [x, weight], y, NC1HWC0, f"{names[-1]}:0", names, passes)

    x = unit("conv1", run.prepared(data(x, NHWC, "input"), NC1HWC0), True)
    for block in range(blocks):
        y = unit(f"block_{block}/b", unit(f"block_{block}/a", x, True), False)
        base = f"net/block_{block}"
        names = (f"{base}/add", f"{base}/Relu")
        total = np.maximum(x.array.astype(np.float32) + y.array.astype(np.float32), 0)
        x = run.run(
            "Eltwise", f"{base}/add{base}/Relu", [x, y], total, NC1HWC0, f"{base}/Relu:0", names, ["AddReluFusionPass"]
        )
    x = run.run("TransData", "trans_TransData_out", [x], x.array, NHWC, x.origin, ())
    mean = x.array.astype(np.float32).mean(axis=(1, 2))
    x = run.run("ReduceMeanD", "net/pool/Mean", [x], mean, ND, "net/pool/Mean:0", ("net/pool/Mean",))
    weight = run.prepared(data(dense["weight"], ND, "net/dense/kernel"), ND)
    bias = run.prepared(data(dense["bias"], ND, "net/dense/bias"), ND)
    y = x.array.astype(np.float32) @ weight.array.astype(np.float32) + bias.array.astype(np.float32)
    names = ("net/dense/MatMul", "net/dense/BiasAdd")
    y = run.run(
        "MatMulV2", "net/dense/MatMulnet/dense/BiasAdd", [x, weight, bias], y, ND, "net/dense/BiasAdd:0", names,
        ["MatMulBiasAddFusionPass"],
    )  # fmt: skip
    y = run.run("Cast", "trans_Cast_out", [y], y.array, ND, y.origin, (), dtype=np.float32)
    run.run("SoftmaxV2", "net/Softmax", [y], softmax(y.array), ND, "net/Softmax:0", ("net/Softmax",), dtype=np.float32)
    return run.ops


def stored(value):
    """The bytes of a value in its layout, and the shape that they have there; C0 is 16."""
    x = value.array
    if value.layout == NC1HWC0:
        n, h, w, c = x.shape
        c1 = -(-c // 16)
        padded = np.zeros((n, h, w, c1 * 16), x.dtype)
        padded[..., :c] = x
        x = padded.reshape(n, h, w, c1, 16).transpose(0, 3, 1, 2, 4)
    elif value.layout == FRACTAL_Z:
        h, w, c, n = x.shape
        c1, n1 = -(-c // 16), -(-n // 16)
        padded = np.zeros((h, w, c1 * 16, n1 * 16), x.dtype)
        padded[:, :, :c, :n] = x
        x = padded.reshape(h, w, c1, 16, n1, 16).transpose(2, 0, 1, 4, 5, 3).reshape(c1 * h * w, n1, 16, 16)
    return np.ascontiguousarray(x)


def varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number, value):
    """One protobuf field: a number, or bytes; zeros are left out as proto3 does."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def shape(dims):
    return field(1, b"".join(map(varint, dims)))


def tensor(value, data, numbers):
    """OpInput or OpOutput: `numbers` are the fields of size and original shape."""
    size, original = numbers
    return (
        field(1, FLOAT if data.dtype == np.float32 else FLOAT16)
        + field(2, value.layout)
        + field(3, shape(data.shape))
        + field(size, data.nbytes)
        + field(original, shape(value.array.shape))
    )


def dump(op):
    """One raw dump file."""
    inputs = [(value, stored(value)) for value in op.inputs]
    output = stored(op.output)
    header = field(1, b"2.0") + field(2, START // 1000)
    header += field(3, tensor(op.output, output, (6, 7)))
    header += b"".join(field(4, tensor(value, data, (5, 6))) for value, data in inputs)
    header += field(6, op.name.encode())
    payloads = b"".join(data.tobytes() for _, data in [*inputs, (op.output, output)])
    return struct.pack("<Q", len(header)) + header + payloads


def quoted(words):
    return " ".join(f's: "{word}"' for word in words)


def descriptor(value, origin):
    """input_desc or output_desc of the graph."""
    data = stored(value)
    dims = " ".join(f"dim: {dim}" for dim in data.shape)
    name, _, index = value.origin.partition(":")
    attributes = {
        "origin_format": f's: "{"HWCN" if value.layout == FRACTAL_Z or "kernel" in value.origin else "NHWC"}"',
        "origin_shape": "list { " + " ".join(f"i: {dim}" for dim in value.array.shape) + " val_type: VT_LIST_INT }",
    }
    if origin and name:
        attributes["_datadump_origin_name"] = f's: "{name}"'
        attributes["_datadump_origin_output_index"] = f"i: {index}"
    words = "".join(f' attr {{ key: "{key}" value {{ {text} }} }}' for key, text in attributes.items())
    kind = "DT_FLOAT" if data.dtype == np.float32 else "DT_FLOAT16"
    return f'dtype: {kind} shape {{ {dims} }} layout: "{LAYOUT[value.layout]}"{words}'


def graph(ops):
    """The text of ge_proto_…_Build.txt."""
    lines = [f'name: "{MODEL}"']
    sources = {value.name: value for op in ops for value in op.inputs}
    for op in ops:
        sources.pop(op.output.name, None)
    for number, value in enumerate(sources.values()):
        kind = "Data" if value.name == "input:0" else "Variable"
        name = value.name.partition(":")[0]
        lines.append(
            f'op {{ name: "{name}" type: "{kind}" id: {number} output_desc {{ {descriptor(value, False)} }} }}'
        )
    for number, op in enumerate(ops, len(sources)):
        lines.append(f'op {{ name: "{op.name}" type: "{op.kind}" id: {number}')
        lines += [f'  input: "{value.name}"' for value in op.inputs]
        lists = {"_datadump_original_op_names": op.originals or (), "pass_name": op.passes}
        for key, words in lists.items():
            if words or key.startswith("_datadump"):
                text = f"list {{ {quoted(words)} val_type: VT_LIST_STRING }}"
                lines.append(f'  attr {{ key: "{key}" value {{ {text} }} }}')
        lines += [f"  input_desc {{ {descriptor(value, False)} }}" for value in op.inputs]
        lines.append(f"  output_desc {{ {descriptor(op.output, bool(op.originals))} }}")
        lines.append("}")
    return "graph {\n" + "\n".join(lines) + "\n}\n"


def escaped(name):
    for sign in "./\\ ":
        name = name.replace(sign, "_")
    return name


def write_reference(folder, seed=1, width=20, blocks=1):
    """The reference as precision_tool converts TensorFlow's debugger dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, values) in enumerate(reference(seed, width, blocks).items()):
        node, _, index = name.partition(":")
        np.save(folder / f"{node.replace('/', '_')}.{index}.{START + 1000 * number}.npy", values)


def write_device(folder, fault="", seed=1, width=20, blocks=1, with_graph=True):
    """The device's dump with its graph beside it."""
    ops = device(seed, width, blocks, fault)
    place = folder / "20261121093000" / "0" / MODEL / "1" / "0"
    place.mkdir(parents=True, exist_ok=True)
    for number, op in enumerate(ops):
        name = f"{op.kind}.{escaped(op.name)}.{number + 1}.3.{START + 700 * number}"
        (place / name).write_bytes(dump(op))
    if with_graph:
        (folder / "ge_proto_00000012_graph_1_Build.txt").write_text(graph(ops))


def main() -> None:
    folder, fault = Path(sys.argv[1]), "".join(sys.argv[2:3])
    write_reference(folder / "golden")
    write_device(folder / "target", fault)


if __name__ == "__main__":
    main()
