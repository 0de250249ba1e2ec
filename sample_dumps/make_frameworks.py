"""Makes cross_framework_conv: a small residual network of TensorFlow, and a port of it to PyTorch.

The golden has the names and the layout (NHWC, HWIO) of TensorFlow: the bias apart from the convolution, and batch norm
of primitive operators; outputs only, and the graph. The target is the aten graph of TorchAir: NCHW, OIHW, other
operators, the residual added in the other order. Its second convolution exchanges height and width of its kernel; the
recorded kernel is right. numpy computes both networks; no framework is installed here.

    python make_frameworks.py [FOLDER]      writes FOLDER/target and FOLDER/golden, by default cross_framework_conv
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np

DEPTH, SIZE, CLASSES, BLOCKS = 6, 6, 10, 3
TIME = 1_767_225_600_000_000
EPSILON = 1e-5


def as_float32(values: np.ndarray) -> np.ndarray:
    """Computed in float64 and rounded once: the same bits on every machine."""
    return np.ascontiguousarray(np.asarray(values, np.float64).astype(np.float32))


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """x (B, C, H, W), kernel (O, C, 3, 3), zeros around; float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("bchwij,ocij->bohw", windows, kernel.astype(np.float64))


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(39)
    found = {"x": random.standard_normal((2, DEPTH, SIZE, SIZE))}
    for k in range(BLOCKS):
        found[f"kernel{k}"] = random.standard_normal((DEPTH, DEPTH, 3, 3)) / 7
        found[f"bias{k}"], found[f"mean{k}"], found[f"beta{k}"] = random.standard_normal((3, 12))[:, :DEPTH] / 4
        found[f"variance{k}"], found[f"gamma{k}"] = random.uniform(0.5, 1.5, (2, DEPTH))
    found["head"], found["head_bias"] = random.standard_normal((CLASSES, DEPTH)) / 2, random.standard_normal(CLASSES)
    return {name: as_float32(one) for name, one in found.items()}


class Golden:
    """Outputs as precision_tool names those of TensorFlow's debugger, and the graph: graph.pbtxt."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.nodes: list[str] = []
        self.outputs: list[tuple[np.ndarray, str]] = []

    def run(self, name: str, type: str, inputs: list[np.ndarray], output: np.ndarray) -> np.ndarray:
        """Record one node; its inputs are outputs of other nodes."""
        output = as_float32(output)
        np.save(self.folder / f"{name.replace('/', '_')}.0.{TIME + 100 * len(self.nodes)}.npy", output)
        names = [next(node for made, node in self.outputs if made is one) for one in inputs]
        read = "".join(f'  input: "{node}"\n' for node in names)
        self.nodes.append(f'node {{\n  name: "{name}"\n  op: "{type}"\n{read}}}\n')
        self.outputs.append((output, name))
        return output

    def variable(self, name: str, values: np.ndarray) -> np.ndarray:
        return self.run(f"{name}/ReadVariableOp", "ReadVariableOp", [], values.copy())

    def close(self) -> None:
        self.folder.joinpath("graph.pbtxt").write_text("".join(self.nodes))


def golden(folder: Path) -> None:
    """The TensorFlow network; constants are variables here."""
    w, dump, wide = weights(), Golden(folder), np.float64
    x = dump.run("net/images", "Placeholder", [], w["x"].transpose(0, 2, 3, 1))
    for k in range(BLOCKS):
        scope = f"net/block_{k}"
        kernel = dump.variable(f"{scope}/conv/kernel", w[f"kernel{k}"].transpose(2, 3, 1, 0))
        bias, mean, variance, gamma, beta = (
            dump.variable(f"{scope}/{name}", w[f"{name}{k}"]) for name in ("bias", "mean", "variance", "gamma", "beta")
        )
        y = convolved(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)).transpose(0, 2, 3, 1)
        y = dump.run(f"{scope}/conv/Conv2D", "Conv2D", [x, kernel], y)
        z = dump.run(f"{scope}/conv/BiasAdd", "BiasAdd", [y, bias], y.astype(wide) + bias)
        epsilon = dump.variable(f"{scope}/batchnorm/epsilon", np.float32(EPSILON))
        shifted = dump.run(f"{scope}/batchnorm/add", "AddV2", [variance, epsilon], variance.astype(wide) + epsilon)
        inverse = dump.run(f"{scope}/batchnorm/Rsqrt", "Rsqrt", [shifted], 1 / np.sqrt(shifted.astype(wide)))
        scale = dump.run(f"{scope}/batchnorm/mul", "Mul", [inverse, gamma], inverse.astype(wide) * gamma)
        scaled = dump.run(f"{scope}/batchnorm/mul_1", "Mul", [z, scale], z.astype(wide) * scale)
        centre = dump.run(f"{scope}/batchnorm/mul_2", "Mul", [mean, scale], mean.astype(wide) * scale)
        shift = dump.run(f"{scope}/batchnorm/sub", "Sub", [beta, centre], beta.astype(wide) - centre)
        normed = dump.run(f"{scope}/batchnorm/add_1", "AddV2", [scaled, shift], scaled.astype(wide) + shift)
        active = dump.run(f"{scope}/Relu", "Relu", [normed], np.maximum(normed, 0))
        x = dump.run(f"{scope}/add", "AddV2", [active, x], active.astype(wide) + x)
    pooled = dump.run("net/Mean", "Mean", [x], x.astype(wide).mean((1, 2)))
    head = dump.variable("net/head/kernel", w["head"].T)
    bias = dump.variable("net/head/bias", w["head_bias"])
    product = dump.run("net/head/MatMul", "MatMul", [pooled, head], pooled.astype(wide) @ head.astype(wide))
    dump.run("net/head/BiasAdd", "BiasAdd", [product, bias], product.astype(wide) + bias)
    dump.close()


class Target:
    """TorchAir's folder of the FX graph: {node}-{aten operator}.{INPUT | OUTPUT}.{n}.{time}.npy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "worldsize1_global_rank0" / "graph_1" / "0"
        self.folder.mkdir(parents=True)
        self.seen: Counter[str] = Counter()

    def run(self, type: str, inputs: list[np.ndarray], output: np.ndarray) -> np.ndarray:
        """Record one node."""
        node = type.split(".")[0]
        at, count = sum(self.seen.values()), self.seen[node]
        self.seen[node] += 1
        name, time = f"{node}_{count}" if count else node, f"20251017071211{190258 + at:06d}"
        output = as_float32(output)
        for k, one in enumerate(inputs):
            np.save(self.folder / f"{name}-aten.{type}.INPUT.{k}.{time}.npy", one)
        np.save(self.folder / f"{name}-aten.{type}.OUTPUT.0.{time}.npy", output)
        return output


def target(folder: Path) -> None:
    """The port."""
    w, dump, wide = weights(), Target(folder), np.float64
    column = (1, DEPTH, 1, 1)
    x = w["x"]
    for k in range(BLOCKS):
        kernel, bias, mean, variance, gamma, beta = (
            w[f"{name}{k}"] for name in ("kernel", "bias", "mean", "variance", "gamma", "beta")
        )
        used = kernel.transpose(0, 1, 3, 2) if k == 1 else kernel  # planted: height and width exchanged
        y = dump.run("convolution.default", [x, kernel, bias], convolved(x, used) + bias.reshape(column))
        scale = (gamma.astype(wide) / np.sqrt(variance.astype(wide) + EPSILON)).reshape(column)
        normed = (y - mean.reshape(column).astype(wide)) * scale + beta.reshape(column)
        y = dump.run("native_batch_norm.default", [y, gamma, beta, mean, variance], normed)
        y = dump.run("relu.default", [y], np.maximum(y, 0))
        x = dump.run("add.Tensor", [x, y], x.astype(wide) + y)
    x = dump.run("mean.dim", [x], x.astype(wide).mean((2, 3)))
    head = dump.run("t.default", [w["head"]], w["head"].T)
    dump.run("addmm.default", [w["head_bias"], x, head], x.astype(wide) @ head.astype(wide) + w["head_bias"])


def write(folder: Path) -> None:
    """Both runs."""
    for name, run in (("golden", golden), ("target", target)):
        shutil.rmtree(folder / name, ignore_errors=True)
        run(folder / name)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "cross_framework_conv")
