"""The networks of the held suite in their second coding."""

from __future__ import annotations

from typing import Optional

import numpy as np

from tests.corpus.frameworks.coded_networks import encoder
from tests.corpus.frameworks.coding import Coding, Value

HEADS = 4
CAUSAL = np.tril(np.ones((12, 12), bool))


def efficientnet(b: Coding, x: Value) -> Value:
    x = b.conv_norm(x, "stem", 2, act="silu")
    for k, (stride, width) in enumerate(((1, 32), (1, 48), (2, 48), (1, 64))):
        name = f"blocks.{k}"
        with b.scope(f"block{k}"):
            y = b.conv_norm(x, f"{name}.expand", act="silu")
            y = b.conv_norm(y, f"{name}.depth", stride, width, "silu")
            with b.scope("se"):
                s = b.conv2d(b.mean(y, axes=(1, 2)), f"{name}.squeeze.fc1")
                y = b.mul(b.sigmoid(b.conv2d(b.silu(s), f"{name}.squeeze.fc2")), y)
            y = b.conv_norm(y, f"{name}.project", act="")
            x = b.add(x, y) if k in (1, 3) else y
    y = b.conv_norm(x, "top", act="silu")
    return b.dense(b.reshape(b.mean(y, axes=(1, 2)), shape=(y.shape[0], y.shape[3])), "head")


def t5(b: Coding, ids: Value) -> Value:
    words = b.weight("words.weight")
    bucket = b.weights["bucket"].astype(np.int32 if b.framework != "torch" else np.int64)
    x = b.gather(words, ids)
    bias = _distances(b, "places_in", bucket)
    for k in range(2):
        with b.scope(f"encoder{k}"):
            x = _t5_layer(b, x, f"encoder.{k}", bias, None, None)
    memory = b.rms_norm(x, "norm_in")
    bias = _distances(b, "places_out", bucket)
    y = b.gather(words, np.ascontiguousarray(ids.array[:, ::-1]))
    for k in range(2):
        with b.scope(f"decoder{k}"):
            y = _t5_layer(b, y, f"decoder.{k}", bias, CAUSAL, memory)
    y = b.mul(b.rms_norm(y, "norm_out"), 32**-0.5)
    return b.product(y, b.weight("logits.kernel", b.weights["words.weight"].T))


def _distances(b: Coding, name: str, bucket: np.ndarray) -> Value:
    found = b.transpose(b.gather(b.weight(f"{name}.weight"), bucket), axes=(2, 0, 1))
    return b.reshape(found, shape=(1, *found.shape))  # type: ignore[no-any-return]


def _t5_layer(
    b: Coding, x: Value, name: str, bias: Value, seen: Optional[np.ndarray], memory: Optional[Value]
) -> Value:
    y = b.attention(b.rms_norm(x, f"{name}.norm1"), f"{name}.attn", HEADS, seen, bias=bias, scaled=False)
    x = b.add(y, x)
    if memory is not None:
        y = b.attention(b.rms_norm(x, f"{name}.norm3"), f"{name}.cross", HEADS, memory=memory, scaled=False)
        x = b.add(y, x)
    y = b.relu(b.dense(b.rms_norm(x, f"{name}.norm2"), f"{name}.wi"))
    return b.add(b.dense(y, f"{name}.wo"), x)  # type: ignore[no-any-return]


def mixer(b: Coding, x: Value) -> Value:
    y = b.conv2d(x, "patch", 4)
    y = b.reshape(y, shape=(y.shape[0], -1, y.shape[3]))
    for k in range(3):
        name = f"blocks.{k}"
        with b.scope(f"mixer{k}"):
            t = b.transpose(b.layer_norm(y, f"{name}.norm1"), axes=(0, 2, 1))
            t = b.dense(b.gelu(b.dense(t, f"{name}.token1")), f"{name}.token2")
            y = b.add(b.transpose(t, axes=(0, 2, 1)), y)
            t = b.dense(b.gelu(b.dense(b.layer_norm(y, f"{name}.norm2"), f"{name}.fc1")), f"{name}.fc2")
            y = b.add(t, y)
    y = b.layer_norm(y, "norm")
    return b.dense(b.reshape(b.mean(y, axes=(1,)), shape=(y.shape[0], y.shape[2])), "head")


def gru(b: Coding, ids: Value) -> Value:
    """The gates in the order z, r, n; time in front."""
    words = b.gather(b.weight("words.weight"), b.transpose(ids, axes=(1, 0)))
    states = {}
    for side, times in (("f", (0, 1, 2, 3)), ("b", (3, 2, 1, 0))):
        (xw, xb), (hw, hb) = (_gates(b, f"{one}{side}") for one in "xh")
        h = b.constant(np.zeros((ids.shape[0], 32), np.float32))
        for t in times:
            x = b.reshape(b.slice(words, axis=0, start=t, stop=t + 1), shape=h.shape)
            xz, xr, xn = b.split(b.bias(b.op("matmul2", x, xw), xb), parts=3, axis=1)
            hz, hr, hn = b.split(b.bias(b.op("matmul2", h, hw), hb), parts=3, axis=1)
            z, r = b.sigmoid(b.add(hz, xz)), b.sigmoid(b.add(hr, xr))
            n = b.tanh(b.add(b.mul(hn, r), xn))
            h = b.add(b.mul(h, z), b.mul(b.sub(1.0, z), n))
            states[side, t] = h
    ahead, back = (b.stack(*(states[side, t] for t in range(4)), axis=0) for side in "fb")
    return b.dense(b.concat(ahead, back, axis=2), "head")


def _gates(b: Coding, name: str) -> tuple[Value, Value]:
    weight, bias = (np.split(b.weights[f"{name}.{part}"], 3) for part in ("weight", "bias"))
    order = (1, 0, 2)
    kernel = b.weight(f"{name}.kernel", np.concatenate([weight[k] for k in order]).T)
    return kernel, b.weight(f"{name}.bias", np.concatenate([bias[k] for k in order]))


def whisper(b: Coding, ids: Value) -> Value:
    """Convolutions over time as products of three shifted slices."""
    x = b.gather(b.weight("words.weight"), ids)
    x = b.gelu(_conv1d(b, x, "conv1", 1))
    x = b.add(b.gelu(_conv1d(b, x, "conv2", 2)), b.weight("places"))
    for k in range(3):
        with b.scope(f"layer{k}"):
            x = encoder(b, x, f"layers.{k}")
    return b.layer_norm(x, "norm")


def _conv1d(b: Coding, x: Value, name: str, stride: int) -> Value:
    batch, length, width = x.shape
    zeros = np.zeros((batch, 1, width), np.float32)
    x = b.concat(zeros, x, zeros, axis=1)
    parts = [b.slice(x, axis=1, start=k, stop=k + length) for k in range(3)]
    if stride == 2:
        parts = [_every_second(b, one) for one in parts]
    kernel = b.weights[f"{name}.weight"].transpose(2, 1, 0)
    y = b.product(b.concat(*parts, axis=2), b.weight(f"{name}.kernel", kernel.reshape(-1, kernel.shape[2])))
    return b.bias(y, b.weight(f"{name}.bias"))  # type: ignore[no-any-return]


def _every_second(b: Coding, x: Value) -> Value:
    batch, length, width = x.shape
    pairs = b.reshape(x, shape=(batch, length // 2, 2, width))
    return b.reshape(b.slice(pairs, axis=2, start=0, stop=1), shape=(batch, length // 2, width))  # type: ignore[no-any-return]


CODED = {"efficientnet": efficientnet, "t5": t5, "mixer": mixer, "gru": gru, "whisper": whisper}
OWN = ("t5", "gru", "whisper")
