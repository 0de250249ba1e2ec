"""The networks of the open suite in their second coding: the weights of networks.py, images (B, H, W, C)."""

from __future__ import annotations

import numpy as np

from tests.corpus.frameworks.coding import Coding, Value

HEADS = 4
CAUSAL = np.tril(np.ones((12, 12), bool))


def resnet(b: Coding, x: Value) -> Value:
    with b.scope("stem"):
        x = b.max_pool(b.conv_norm(x, "stem"), k=2)
    for k, stride in enumerate((1, 2, 1, 2)):
        name = f"blocks.{k}"
        with b.scope(f"block_{k}"):
            short = b.conv_norm(_strided(b, x), f"{name}.short", act="") if stride > 1 else x
            y = b.conv_norm(b.conv_norm(x, f"{name}.a", stride), f"{name}.b", act="")
            x = b.relu(b.add(short, y))
    return b.dense(_pooled(b, x), "head")


def _strided(b: Coding, x: Value) -> Value:
    """Every second row and column, as a 1 × 1 convolution with stride 2 reads them."""
    batch, height, width, depth = x.shape
    y = b.reshape(x, shape=(batch, height // 2, 2, width // 2, 2, depth))
    y = b.slice(b.slice(y, axis=2, start=0, stop=1), axis=4, start=0, stop=1)
    return b.reshape(y, shape=(batch, height // 2, width // 2, depth))  # type: ignore[no-any-return]


def _pooled(b: Coding, x: Value) -> Value:
    return b.reshape(b.mean(x, axes=(1, 2)), shape=(x.shape[0], x.shape[3]))  # type: ignore[no-any-return]


def mobilenet(b: Coding, x: Value) -> Value:
    x = b.conv_norm(x, "stem", 2, act="relu6")
    for k, (stride, width) in enumerate(((1, 24), (1, 36), (2, 36), (1, 48))):
        name = f"blocks.{k}"
        with b.scope(f"inverted_{k}"):
            y = b.conv_norm(x, f"{name}.expand", act="relu6")
            y = b.conv_norm(y, f"{name}.depth", stride, width, "relu6")
            y = b.conv_norm(y, f"{name}.project", act="")
            x = b.add(y, x) if k in (1, 3) else y
    return b.dense(_pooled(b, x), "head")


def bert(b: Coding, ids: Value) -> Value:
    seen = b.weights["seen"][:, None, None, :] > 0
    with b.scope("embeddings"):
        places = b.gather(b.weight("places.weight"), np.arange(ids.shape[1]))
        x = b.layer_norm(b.add(places, b.gather(b.weight("words.weight"), ids)), "norm", 1e-12)
    for k in range(3):
        name = f"layers.{k}"
        with b.scope(f"layer_{k}"):
            x = b.layer_norm(b.add(x, b.attention(x, f"{name}.attn", HEADS, seen)), f"{name}.norm1", 1e-12)
            x = b.layer_norm(b.add(x, _mlp(b, x, f"{name}.mlp")), f"{name}.norm2", 1e-12)
    first = b.reshape(b.slice(x, axis=1, start=0, stop=1), shape=(x.shape[0], x.shape[2]))
    return b.dense(b.tanh(b.dense(first, "pooler")), "head")


def _mlp(b: Coding, x: Value, name: str) -> Value:
    return b.dense(b.gelu(b.dense(x, f"{name}.fc1")), f"{name}.fc2")


def _rotated(b: Coding, x: Value, axis: int) -> Value:
    """Rotary embedding by halves, without a concatenated cos; `axis` is that of the tokens."""
    half = x.shape[-1] // 2
    cos, sin = b.weights["cos"][:, :half], b.weights["sin"][:, :half]
    if axis == 1:
        cos, sin = cos[:, None, :], sin[:, None, :]
    left, right = b.split(x, parts=2, axis=3)
    one = b.sub(b.mul(left, cos), b.mul(right, sin))
    two = b.add(b.mul(right, cos), b.mul(left, sin))
    return b.concat(one, two, axis=3)  # type: ignore[no-any-return]


def _repeated(b: Coding, x: Value, axis: int) -> Value:
    parts = b.split(x, parts=2, axis=axis)
    return b.concat(parts[0], parts[0], parts[1], parts[1], axis=axis)  # type: ignore[no-any-return]


def llama(b: Coding, ids: Value, experts: bool = False) -> Value:
    x = b.gather(b.weight("words.weight"), ids)
    for k in range(3):
        name = f"layers.{k}"
        with b.scope(f"layer_{k}"):
            y = b.rms_norm(x, f"{name}.norm1")
            q, key, v = (
                b.heads(b.dense(y, f"{name}.attn.{part}"), count) for part, count in (("q", 4), ("k", 2), ("v", 2))
            )
            axis = 1 if q.shape[1] == 12 else 2
            q, key = _rotated(b, q, axis), _rotated(b, key, axis)
            key, v = _repeated(b, key, 3 - axis), _repeated(b, v, 3 - axis)
            y = b.dense(b.joined(b.mixed(q, key, v, CAUSAL, None, True)), f"{name}.attn.o")
            x = b.add(y, x)
            y = b.rms_norm(x, f"{name}.norm2")
            x = b.add(_experts(b, y, f"{name}.mlp") if experts else b.gated(y, f"{name}.mlp"), x)
    return b.dense(b.rms_norm(x, "norm"), "head")


def _experts(b: Coding, x: Value, name: str) -> Value:
    shares = b.softmax(b.dense(x, f"{name}.router"))
    second = b.slice(b.topk(shares, k=2), axis=2, start=1, stop=2)
    shares = b.where(b.ge(shares, second), shares, np.zeros(shares.shape, np.float32))
    shares = b.div(shares, b.sum(shares, axes=(-1,)))
    outputs = [b.gated(x, f"{name}.experts.{k}") for k in range(4)]
    weighted = [b.mul(b.slice(shares, axis=2, start=k, stop=k + 1), y) for k, y in enumerate(outputs)]
    return b.add(b.add(weighted[0], weighted[1]), b.add(weighted[2], weighted[3]))  # type: ignore[no-any-return]


def moe(b: Coding, ids: Value) -> Value:
    return llama(b, ids, experts=True)


def lstm(b: Coding, ids: Value) -> Value:
    """[x, h] in one product, gates in the order i, g, f, o, time in front."""
    words = b.gather(b.weight("words.weight"), b.transpose(ids, axes=(1, 0)))
    order = [0, 2, 1, 3]
    parts = {}
    for one in ("x", "h"):
        weight, bias = b.weights[f"{one}.weight"], b.weights[f"{one}.bias"]
        parts[one] = (
            np.concatenate([np.split(weight, 4)[k] for k in order]).T,
            np.concatenate([np.split(bias, 4)[k] for k in order]),
        )
    kernel = b.weight("cell.kernel", np.concatenate([parts["x"][0], parts["h"][0]]))
    bias = b.weight("cell.bias", parts["x"][1] + parts["h"][1])
    h = c = b.constant(np.zeros((ids.shape[0], 32), np.float32))
    states = []
    for t in range(6):
        x = b.reshape(b.slice(words, axis=0, start=t, stop=t + 1), shape=h.shape)
        i, g, f, o = b.split(b.bias(b.op("matmul2", b.concat(x, h, axis=1), kernel), bias), parts=4, axis=1)
        c = b.add(b.mul(b.sigmoid(i), b.tanh(g)), b.mul(c, b.sigmoid(f)))
        h = b.mul(b.tanh(c), b.sigmoid(o))
        states.append(h)
    return b.dense(b.layer_norm(b.stack(*states, axis=0), "norm"), "head")


def unet(b: Coding, x: Value) -> Value:
    one = b.conv_norm(x, "down1")
    two = b.conv_norm(b.max_pool(one, k=2), "down2")
    y = b.conv2d(b.max_pool(two, k=2), "middle")
    y = _group_norm(b, y, "norm", 4)
    y = b.silu(y)
    y = b.conv_norm(b.concat(b.upsample(y), two, axis=3), "up1")
    y = b.conv_norm(b.concat(b.upsample(y), one, axis=3), "up2")
    return b.conv2d(y, "last")


def _group_norm(b: Coding, x: Value, name: str, groups: int) -> Value:
    batch, height, width, depth = x.shape
    y = b.reshape(x, shape=(batch, height, width, groups, depth // groups))
    mean = b.mean(y, axes=(1, 2, 4))
    centred = b.sub(y, mean)
    variance = b.mean(b.square(centred), axes=(1, 2, 4))
    y = b.reshape(b.mul(centred, b.rsqrt(b.add(variance, 1e-5))), shape=x.shape)
    return b.add(b.mul(y, b.weight(f"{name}.weight")), b.weight(f"{name}.bias"))  # type: ignore[no-any-return]


def vit(b: Coding, x: Value) -> Value:
    y = b.conv2d(x, "patch", 4)
    y = b.reshape(y, shape=(y.shape[0], -1, y.shape[3]))
    y = b.concat(np.repeat(b.weights["token"], y.shape[0], 0), y, axis=1)
    y = b.add(y, b.weight("places"))
    for k in range(3):
        with b.scope(f"layer_{k}"):
            y = encoder(b, y, f"layers.{k}")
    y = b.reshape(b.slice(y, axis=1, start=0, stop=1), shape=(y.shape[0], y.shape[2]))
    return b.dense(b.layer_norm(y, "norm"), "head")


def encoder(b: Coding, x: Value, name: str) -> Value:
    """The block of blocks.Encoder with norms before."""
    x = b.add(b.attention(b.layer_norm(x, f"{name}.norm1"), f"{name}.attn", HEADS), x)
    return b.add(_mlp(b, b.layer_norm(x, f"{name}.norm2"), f"{name}.mlp"), x)  # type: ignore[no-any-return]


def convnext(b: Coding, x: Value) -> Value:
    x = b.conv2d(x, "stem", 2)
    for stage, width in (("stage1", 16), ("stage2", 24)):
        for k in range(2):
            name = f"{stage}.{k}"
            with b.scope(f"{stage}_{k}"):
                y = b.layer_norm(b.conv2d(x, f"{name}.depth", 1, width), f"{name}.norm", 1e-6)
                y = b.dense(b.gelu(b.dense(y, f"{name}.fc1")), f"{name}.fc2")
                x = b.add(b.mul(y, b.weight(f"{name}.gamma")), x)
        if stage == "stage1":
            x = b.conv2d(x, "down", 2)
    return b.dense(b.layer_norm(_pooled(b, x), "norm", 1e-6), "head")


def gpt2(b: Coding, ids: Value) -> Value:
    """q, k and v are products of their own, the weights are stored as (in, out)."""
    words = b.weight("words.weight")
    x = b.add(b.gather(words, ids), b.gather(b.weight("places.weight"), np.arange(ids.shape[1])))
    for k in range(3):
        name = f"layers.{k}"
        with b.scope(f"h{k}"):
            y = b.layer_norm(x, f"{name}.norm1")
            kernels, biases = (np.split(b.weights[f"{name}.qkv.{part}"], 3, -1) for part in ("weight", "bias"))
            q, key, v = (
                b.heads(b.bias(b.product(y, b.weight(f"{n}.kernel", w)), b.weight(f"{n}.bias", bias)), HEADS)
                for n, w, bias in zip("qkv", kernels, biases)
            )
            y = b.dense(b.joined(b.mixed(q, key, v, CAUSAL, None, True)), f"{name}.o", kernel=True)
            x = b.add(x, y)
            y = b.dense(b.layer_norm(x, f"{name}.norm2"), f"{name}.fc1", kernel=True)
            x = b.add(x, b.dense(b.gelu_tanh(y), f"{name}.fc2", kernel=True))
    return b.product(b.layer_norm(x, "norm"), b.weight("logits.kernel", b.weights["words.weight"].T))


CODED = {
    "resnet": resnet, "mobilenet": mobilenet, "bert": bert, "llama": llama, "moe": moe, "lstm": lstm, "unet": unet,
    "vit": vit, "convnext": convnext, "gpt2": gpt2,
}  # fmt: skip
OWN = ("bert", "llama", "moe", "lstm", "gpt2")  # networks that a user codes again in torch
