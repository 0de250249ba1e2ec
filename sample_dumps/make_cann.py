"""Makes the CANN samples: a small residual network as TensorFlow's debugger and as an Ascend device would dump it.

The reference runs in float32 and NHWC, one file per output. The device runs the network as its graph compiler fused
it: float16 between operators, float32 inside them, NC1HWC0 and FRACTAL_Z in memory, TransData and Cast put in. With
fusion switched off every operator of the network runs by itself, and fusion_result.json tells which passes took
effect. Files are written with struct alone, from the public description of the format. No device was at hand.

    python make_cann.py FOLDER [FAULT]          writes FOLDER/golden and FOLDER/target
    python make_cann.py -f FOLDER [FAULT]       the same with the run without fusion as golden
"""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np

FLOAT, FLOAT16 = 1, 2
NHWC, ND, NC1HWC0, FRACTAL_Z = 1, 2, 3, 4
LAYOUT = {NHWC: "NHWC", ND: "ND", NC1HWC0: "NC1HWC0", FRACTAL_Z: "FRACTAL_Z"}
START = 1_763_700_000_000_000  # microseconds
MODEL = "ge_default_20261121093000_1"
UNFUSED = "ge_default_20261121094500_1"  # the model of the run without fusion
UB_PASSES = {"TbeConvReluFusionPass", "AddReluFusionPass"}  # passes over the unified buffer; the others are over graphs


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
    inputs: tuple[Value, ...]
    output: Value
    originals: Optional[tuple[str, ...]]
    passes: tuple[str, ...] = ()
    multiop: bool = False  # one of several that compute the same originals
    group: str = ""  # L1 fusion


class Step(NamedTuple):
    """One operator of the network: computes from what the step before made and from other values."""

    kind: str
    name: str
    compute: Callable
    others: tuple[Value, ...] = ()


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
    """Runs the network in float16 and keeps what every operator read and wrote."""

    def __init__(self, fault="", fused=True):
        self.fault = fault  # name of the operator that goes wrong
        self.fused = fused
        self.ops: list[Op] = []
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

    def chain(self, kind, name, passes, inputs, steps, layout):
        """Operators of the network as one, rounded at its end; without fusion one by one."""
        if not self.fused:
            for number, step in enumerate(steps):
                own = [self.laid_out(value, layout) for value in inputs]
                arrays = [value.array.astype(np.float32) for value in (*own, *step.others)]
                originals = (step.name,) if number == 0 and len(steps) > 1 else None  # GE tells of some
                y = self.run(
                    step.kind, step.name, [*own, *step.others], step.compute(*arrays), layout, f"{step.name}:0",
                    originals,
                )  # fmt: skip
                inputs = [y]
            return y
        arrays = [value.array.astype(np.float32) for value in inputs]
        for step in steps:
            arrays = [step.compute(*arrays, *(value.array.astype(np.float32) for value in step.others))]
        names = tuple(step.name for step in steps)
        read = [*inputs, *(value for step in steps for value in step.others)]
        return self.run(kind, name, read, arrays[0], layout, f"{names[-1]}:0", names, passes)

    def laid_out(self, value, layout):
        """A value of the network in another layout; weights stay as they are."""
        if layout == value.layout or FRACTAL_Z in (layout, value.layout):
            return value
        self.count += 1
        return self.run("TransData", f"trans_TransData_{self.count}", [value], value.array, layout, value.origin, ())

    def prepared(self, value, layout):
        """A float32 value of the network as the device wants it: cast, and laid out anew."""
        self.count += 1
        cast = self.run("Cast", f"trans_Cast_{self.count}", [value], value.array, value.layout, value.origin, ())
        if layout == value.layout:
            return cast
        return self.run("TransData", f"trans_TransData_{self.count}", [cast], cast.array, layout, value.origin, ())


def device(seed=1, width=20, blocks=1, fault="", fused=True):
    """All operators that the device executed. Without fusion additions run in NHWC, which takes further TransData."""
    convolutions, dense, x = layers(seed, width, blocks)
    run = Device(fault, fused)

    def data(array, layout, name):
        return Value(array, layout, f"{name}:0", f"{name}:0")

    def relu(name):
        return Step("Relu", name, lambda x: np.maximum(x, 0))

    def unit(name, x, activate):
        layer, base = convolutions[name], f"net/{name}"
        weight = run.prepared(data(layer["weight"], NHWC, f"{base}/kernel"), FRACTAL_Z)
        steps = [
            Step("Conv2D", f"{base}/Conv2D", convolve),
            Step("BNInfer", f"{base}/bn/FusedBatchNormV3", lambda y: normalise(y, layer)),
            *([relu(f"{base}/Relu")] if activate else []),
        ]
        passes = ("ConvBatchnormFusionPass", *(("TbeConvReluFusionPass",) if activate else ()))
        fused = f"{base}/Conv2D" + (f"{base}/Relu" if activate else "")  # the second pass puts names together
        return run.chain("Conv2D", fused, passes, [x, weight], steps, NC1HWC0)

    x = unit("conv1", run.prepared(data(x, NHWC, "input"), NC1HWC0), True)
    for block in range(blocks):
        y = unit(f"block_{block}/b", unit(f"block_{block}/a", x, True), False)
        base = f"net/block_{block}"
        steps = [Step("Add", f"{base}/add", lambda x, y: x + y), relu(f"{base}/Relu")]
        layout = NC1HWC0 if fused else NHWC
        x = run.chain("Eltwise", f"{base}/add{base}/Relu", ["AddReluFusionPass"], [x, y], steps, layout)
    if fused:
        x = run.run("TransData", "trans_TransData_out", [x], x.array, NHWC, x.origin, ())
    mean = x.array.astype(np.float32).mean(axis=(1, 2))
    x = run.run("ReduceMeanD", "net/pool/Mean", [x], mean, ND, "net/pool/Mean:0", ("net/pool/Mean",))
    weight = run.prepared(data(dense["weight"], ND, "net/dense/kernel"), ND)
    bias = run.prepared(data(dense["bias"], ND, "net/dense/bias"), ND)
    steps = [
        Step("MatMulV2", "net/dense/MatMul", lambda x, weight: x @ weight),
        Step("BiasAdd", "net/dense/BiasAdd", lambda y, bias: y + bias, (bias,)),
    ]
    name = "net/dense/MatMulnet/dense/BiasAdd"
    y = run.chain("MatMulV2", name, ["MatMulBiasAddFusionPass"], [x, weight], steps, ND)
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


def graph(ops, model=MODEL):
    """The text of ge_proto_…_Build.txt."""
    lines = [f'name: "{model}"']
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
            if words or (key.startswith("_datadump") and op.originals is not None):
                text = f"list {{ {quoted(words)} val_type: VT_LIST_STRING }}"
                lines.append(f'  attr {{ key: "{key}" value {{ {text} }} }}')
        if op.multiop:
            lines.append('  attr { key: "_datadump_is_multiop" value { b: true } }')
        if op.group:
            lines.append(f'  attr {{ key: "_L1_fusion_sub_graph_no" value {{ s: "{op.group}" }} }}')
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


def write_device(folder, fault="", seed=1, width=20, blocks=1, with_graph=True, fused=True):
    """The device's dump with its graph beside it."""
    write_ops(folder, device(seed, width, blocks, fault, fused), with_graph, MODEL if fused else UNFUSED)


def write_ops(folder, ops, with_graph=True, model=MODEL):
    """One file for each executed operator, and the graph."""
    place = folder / model.split("_")[2] / "0" / model / "1" / "0"
    place.mkdir(parents=True, exist_ok=True)
    for number, op in enumerate(ops):
        name = f"{op.kind}.{escaped(op.name)}.{number + 1}.3.{START + 700 * number}"
        (place / name).write_bytes(dump(op))
    if with_graph:
        (folder / "ge_proto_00000012_graph_1_Build.txt").write_text(graph(ops, model))


def fusion_result(ops):
    """What the compiler counted, as recent versions of CANN write it."""
    times = Counter(name for op in ops for name in op.passes)
    found = {"graph_fusion": {}, "ub_fusion": {}}
    for name, count in sorted({"ConstToAttrPass": 1, "TransdataCastFusionPass": 0, **times}.items()):
        section = "ub_fusion" if name in UB_PASSES else "graph_fusion"
        found[section][name] = {"effect_times": str(count), "match_times": str(max(count, 1))}
    return {"session_and_graph_id_0_0": {section: passes for section, passes in found.items() if passes}}


def write_fusion(folder, fault="", width=12, blocks=2):
    """The run with fusion, where an operator goes wrong, and the one without; with graphs and fusion_result.json."""
    for side, fused in (("target", True), ("golden", False)):
        ops = device(width=width, blocks=blocks, fault=fault if fused else "", fused=fused)
        write_ops(folder / side, ops, model=MODEL if fused else UNFUSED)
        (folder / side / "fusion_result.json").write_text(json.dumps(fusion_result(ops), indent=4) + "\n")


def main() -> None:
    given = [word for word in sys.argv[1:] if word != "-f"]
    folder, fault = Path(given[0]), "".join(given[1:2])
    if "-f" in sys.argv:
        write_fusion(folder, fault)
        return
    write_reference(folder / "golden")
    write_device(folder / "target", fault)


if __name__ == "__main__":
    main()
