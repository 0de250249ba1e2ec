"""Nodes against tensors: X and X_output_0, X:0, a graph of ONNX that tells both, and outputs that are exchanged.

The golden names nodes, the target their outputs, or both sides name one of them and the graph of the network is given
as a file or lies beside the dumps. Clean, or with one wrong operator. Controls: nodes that are counted at the end
(Mul, Mul_1), and equal names on both sides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.reports.kinds import _onnx_networks as dumps

ORDER = "another order|exchang|holds the values of"


def draw(random: np.random.Generator, folder: Path) -> dict:
    if random.random() < 0.2:
        return _exchanged(random, folder)
    x = random.normal(size=(int(random.integers(1, 4)), 3, *random.integers(4, 9, 2))).astype(np.float32)
    seed, layers = int(random.integers(2**31)), int(random.integers(1, 4))
    prefix = str(random.choice(["/net/", "/model.0/", "backbone/", "m."]))
    golden = dumps.network(random, x, layers, seed=seed, prefix=prefix)
    wrong = int(random.integers(len(golden))) if random.random() < 0.6 else -1
    target = dumps.network(random, x, layers, True, wrong, float(random.choice([1.02, 1.5, -1.0])), seed, prefix)
    spelling = str(random.choice(["{}_output_0", "{}_output_0", "{}:0", "{}"]))
    graph = str(random.choice(["none", "named", "named", "beside", "numbers"]))
    is_control = spelling == "{}" and graph == "none"
    outputs = [spelling.format(node.name) if spelling != "{}" else f"t{at}" for at, node in enumerate(golden)]
    if graph == "numbers":  # tensors have numbers, which the graph alone relates to nodes
        outputs = [str(100 + 7 * at) for at in range(len(golden))]
        spelling = ""
    named = [
        node._replace(name=spelling.format(node.name) if spelling else name) for node, name in zip(target, outputs)
    ]
    style, timed = str(random.choice(["npy", "npz"])), bool(random.random() < 0.4)
    if style == "npz":
        dumps.write_npz(folder / "target.npz", [node._replace(name=node.name.replace("/", "_")) for node in named])
    else:
        dumps.write_npy(folder / "target", named, False, timed)
    dumps.write_npy(folder / "golden", golden, False)
    words = ["compare", "target.npz" if style == "npz" else "target", "golden"]
    if graph != "none":
        place = folder / ("model.onnx" if graph != "beside" else "golden/model.onnx")
        place.write_bytes(
            dumps.onnx(golden, bool(random.random() < 0.8) or graph == "numbers" or spelling == "{}", outputs)
        )
        words += ["--graph", "model.onnx"] if graph != "beside" else []
    run = {"do": words, "exit": [0], "first": "", "never": ["UTF-8"]}
    if wrong >= 0:
        end = golden[wrong].name.replace("/", "_").replace(".", r"\.")
        run.update(exit=[1], first=rf"^{end}(_output_0|:0)?$|^{golden[wrong].name}$")
        if graph == "named" and golden[wrong].kind not in ("Conv", "MatMul") and wrong:
            run["says"] = ["BORN"]
    return {"kind": f"node names{': control' if is_control else ''}", "runs": [run]}


def _exchanged(random: np.random.Generator, folder: Path) -> dict:
    """Outputs of a network that two runtimes number in another order; control: one of them is wrong."""
    count = int(random.integers(2, 6))
    shape = tuple(int(size) for size in random.integers(2, 12, int(random.integers(1, 4))))
    shape = (*shape, 8)
    tensors = [random.normal(size=shape).astype(np.float32) for _ in range(count)]
    order = np.arange(count)
    is_control = bool(random.random() < 0.35)
    a, b = random.choice(count, 2, replace=False)
    near = [(value * (1 + random.normal(0, 2e-8, shape))).astype(np.float32) for value in tensors]
    if is_control:
        near[a] = near[a] * np.float32(0.8)
    else:
        order[[a, b]] = order[[b, a]]
    word = str(random.choice(["output", "out", "result", "head"]))
    values = [near[at] for at in order]
    if random.random() < 0.5:
        np.savez(folder / "target.npz", **{f"{word}_{at}": value for at, value in enumerate(values)})
        np.savez(folder / "golden.npz", **{f"{word}_{at}": value for at, value in enumerate(tensors)})
        names = ["target.npz", "golden.npz"]
    else:
        names = ["target", "golden"]
        for side, own in zip(names, (values, tensors)):
            (folder / side).mkdir()
            for at, value in enumerate(own):
                np.save(folder / side / f"{word}_{at}.npy", value)
    run = {"do": ["compare", *names], "exit": [1] if is_control else [0, 1]}
    if is_control:
        run.update(first=rf"{word}_{a}$", never=["another order", "exchang", "holds the values of"])
    else:
        run["says"] = [ORDER]
    return {"kind": f"exchanged outputs{': control' if is_control else ''}", "runs": [run]}
