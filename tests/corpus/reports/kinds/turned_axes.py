"""Operators of equal names whose tensors have other axes: a convention of the run, or the fault of one operator.

The target keeps its images as NHWC or NWCH, kernels as HWIO, flattens in its own order, and its dense weights follow.
Clean, or with one operator that is wrong. Controls: one operator alone turns the axes, or writes its channels in
another order, with or without the same number of axes; the order is said. Or the image alone is in other axes, as
`tf2onnx --inputs-as-nchw` makes it (onnx/tensorflow-onnx#938, #1986): read in its order, or fed in the wrong one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.reports.kinds import _onnx_networks as dumps

ORDER = "another order|permut|exchang|reversed"
AXES = (0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 3, 1), (0, 3, 2, 1), (0, 3, 1, 2)


def draw(random: np.random.Generator, folder: Path) -> dict:
    batch = int(random.choice([1, 1, 2, 3]))
    x = random.normal(size=(batch, 3, *random.integers(4, 11, 2))).astype(random.choice([np.float32, np.float16]))
    seed, layers = int(random.integers(2**31)), int(random.integers(2, 5))
    has_flatten = bool(random.random() < 0.5)
    golden = dumps.network(random, x, layers, has_flatten, seed=seed)
    if random.random() < 0.35:
        return _one_operator(random, folder, golden)
    if random.random() < 0.4:
        return _image_alone(random, folder, x, layers, has_flatten, seed)
    wrong = int(random.integers(len(golden))) if random.random() < 0.5 else -1
    factor = float(random.choice([1.1, 0.9, 1.5, 2.0, -1.0]))
    target = dumps.network(random, x, layers, has_flatten, wrong, factor, seed)
    target = dumps.turned(target, AXES[int(random.integers(len(AXES)))])
    style, images = str(random.choice(["inputs", "outputs", "npz", "msprobe"])), bool(random.random() < 0.5)
    for side, nodes in (("target", target), ("golden", golden)):
        if style == "npz":
            dumps.write_npz(folder / f"{side}.npz", nodes, images)
        elif style == "msprobe":
            dumps.write_msprobe(folder / side, nodes)
        else:
            dumps.write_npy(folder / side, nodes, style == "inputs", images=images and style == "outputs")
    names = [f"{side}.npz" if style == "npz" else side for side in ("target", "golden")]
    run = {"do": ["compare", *names], "exit": [0], "first": ""}
    if wrong >= 0:
        kind, number = golden[wrong].kind, sum(node.kind == golden[wrong].kind for node in golden[:wrong])
        name = rf"^{golden[wrong].name}$" if style != "msprobe" else rf"{dumps.MSPROBE[kind]}\.{number}\."
        run.update(exit=[1], first=name)
        if style == "npz":  # no order is recorded: sorted by name
            del run["first"]
            run["says"] = [golden[wrong].name]
    return {"kind": "turned axes", "runs": [run]}


def _one_operator(random: np.random.Generator, folder: Path, golden: list) -> dict:
    """Both runs keep one convention; the output of one operator has its numbers in another order."""
    images = [at for at, node in enumerate(golden[:-2]) if node.output.ndim == 4]
    style = str(random.choice(["inputs", "outputs", "msprobe"]))
    at = int(random.choice(images[style == "outputs" :]))  # outputs alone do not show what the first operator read
    y = golden[at].output
    how = str(random.choice(["axes", "interleaved", "reversed", "exchanged", "last two"]))
    channels = np.arange(y.shape[1])
    if how == "axes":
        z = y.transpose(0, 2, 3, 1)
    elif how == "last two":
        z = y.transpose(0, 1, 3, 2)
    else:
        order = channels[::-1] if how == "reversed" else np.concatenate([channels[::2], channels[1::2]])
        if how == "exchanged":
            order = channels.copy()
            order[[0, -1]] = order[[-1, 0]]
        z = y[:, order]
    z = np.ascontiguousarray(z)
    target = [*golden[:at], golden[at]._replace(output=z)]
    readers = golden[at + 1 : at + 2]
    target += [node._replace(kind="Tanh", reads=[z, *node.reads[1:]], output=np.tanh(z)) for node in readers]
    behind = [node._replace(kind="Tanh", reads=[y], output=np.tanh(y)) for node in readers]
    for side, nodes in (("target", target), ("golden", [*golden[: at + 1], *behind])):
        if style == "msprobe":
            dumps.write_msprobe(folder / side, nodes)
        else:
            dumps.write_npy(folder / side, nodes, style == "inputs")
    kind, number = golden[at].kind, sum(node.kind == golden[at].kind for node in golden[:at])
    name = rf"^{golden[at].name}$" if style != "msprobe" else rf"{dumps.MSPROBE[kind]}\.{number}\."
    run = {"do": ["compare", "target", "golden"], "exit": [1], "first": name, "says": [ORDER]}
    return {"kind": "turned axes: control", "runs": [run]}


def _image_alone(
    random: np.random.Generator, folder: Path, x: np.ndarray, layers: int, has_flatten: bool, seed: int
) -> dict:
    """The image is NCHW in one run and NHWC in the other, both of which keep NHWC behind it."""
    order = (0, 2, 3, 1)
    case = str(random.choice(["clean", "clean", "fault", "fault", "fed"]))
    style = str(random.choice(["inputs", "inputs with image", "transpose", "outputs", "npz", "msprobe", "statistics"]))
    golden = dumps.network(random, x, layers, has_flatten, seed=seed)
    wrong, factor = -1, float(random.choice([1.1, 0.9, 1.5, -1.0]))
    if case == "fault":  # behind the first operator: what reads a wrong order is wrong as well
        wrong = int(random.integers(1, len(golden) - 1))
    fed = x
    if case == "fed":
        fed = np.ascontiguousarray(x.reshape(x.transpose(order).shape).transpose(0, 3, 1, 2))
    target = dumps.turned(dumps.network(random, fed, layers, has_flatten, wrong, factor, seed), order)
    golden = dumps.turned(golden, order)
    image = np.ascontiguousarray(x)
    if style == "transpose":
        turn = dumps.Node("Transpose", "Transpose_in", [image], ["images"], target[0].reads[0])
        target = [turn, *target]
    else:
        target = [target[0]._replace(reads=[image, *target[0].reads[1:]]), *target[1:]]
    if random.random() < 0.3 and style != "transpose":  # the golden's image is the NCHW one
        target[0], golden[0] = (
            node._replace(reads=[other.reads[0], *node.reads[1:]])
            for node, other in ((target[0], golden[0]), (golden[0], target[0]))
        )
    for side, nodes in (("target", target), ("golden", golden)):
        if style == "npz":
            dumps.write_npz(folder / f"{side}.npz", nodes, True)
        elif style in ("msprobe", "statistics"):
            dumps.write_msprobe(folder / side, nodes, "tensor" if style == "msprobe" else "statistics")
        else:
            images = style in ("inputs with image", "transpose", "outputs")
            dumps.write_npy(folder / side, nodes, style != "outputs", images=images)
    names = [f"{side}.npz" if style == "npz" else side for side in ("target", "golden")]
    run: dict = {"do": ["compare", *names]}
    if case == "clean":
        run.update(
            exit=[0, 2] if style == "statistics" else [0], first="", says=[r"permute\(0, ?(2, ?3, ?1|3, ?1, ?2)\)"]
        )
    elif case == "fed":
        run["exit"] = [1]
        if style != "npz":  # no order is recorded: sorted by name, and the image may be the last one
            run["says"] = [r"permut"]
    else:
        kind, number = golden[wrong].kind, sum(node.kind == golden[wrong].kind for node in golden[:wrong])
        name = rf"^{golden[wrong].name}$"
        if style in ("msprobe", "statistics"):
            name = rf"{dumps.MSPROBE[kind]}\.{number}\."
        run.update(exit=[1], first=name)
        if style == "npz":
            del run["first"]
            run["says"] = [golden[wrong].name]
    return {"kind": f"turned axes: image alone{', control' if case == 'fed' else ''}", "runs": [run]}
