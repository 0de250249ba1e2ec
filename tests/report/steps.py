"""A small training run over several steps, written as dumps, with a fault from one step on."""

from __future__ import annotations

import numpy as np

from tests.synthetic import write_run


def train(folder, steps=6, faulty=None, layers=3, rate=0.1, width=16, image=(), nan_at=None):
    """A chain of linear layers and tanh that is trained by plain gradient descent in float32. From step `faulty` on,
    the weight of the second layer is a tenth too large; nan_at: (step, layer) of an output with one NaN."""
    random = np.random.default_rng(3)
    weights = [random.standard_normal((width, width)).astype(np.float32) / width**0.5 for _ in range(layers)]
    for step in range(steps):
        x = random.standard_normal((8, width)).astype(np.float32)
        operators, read = {}, []
        if step == 0 and image:
            operators["Functional.conv2d.0.forward"] = {
                "in": [image_batch(*image)],
                "out": [image_batch(*image)[:, :1, ::4, ::4] * 2],
            }
        for at in range(layers):
            name = f"Module.model.layers.{at}.linear.Linear.forward.0"
            used = weights[at] * np.float32(1.1) if at == 1 and faulty is not None and step >= faulty else weights[at]
            y = np.tanh(x @ used)
            operators[name] = {"in": [x], "out": [y], "param": {"weight": weights[at]}}
            if nan_at == (step, at):
                y[2, 3] = np.nan
            read.append((x, used, y))
            x = y
        gradient = (x / np.float32(x.size)).astype(np.float32)
        for at in reversed(range(layers)):
            x, used, y = read[at]
            inner = gradient * (1 - y * y)
            gradient, own = (inner @ used.T).astype(np.float32), (x.T @ inner).astype(np.float32)
            operators[f"Module.model.layers.{at}.linear.Linear.backward.0"] = {"in": [inner], "out": [gradient, own]}
            weights[at] = (weights[at] - rate * own).astype(np.float32)
        write_run(folder, operators, step=step, level="L0")
    return folder


def image_batch(height=24, width=32, seed=5):
    """Two images with three channels: a gradient and a disc."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    disc = (rows - height / 2) ** 2 + (columns - width / 2) ** 2 < height**2 / 9
    batch = np.stack([np.stack([rows / height, columns / width, disc]), np.stack([disc, disc, rows / height])])
    return (batch + 0.02 * random.standard_normal(batch.shape)).astype(np.float32)
