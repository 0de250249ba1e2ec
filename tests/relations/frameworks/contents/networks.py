"""Small networks written twice, as two frameworks compute them: other names, axes, fusions. Dumps are `.npy` files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

Array = Any
Fault = Optional[Callable[[str, Array], Array]]


class Recorder:
    """A dump of one run. Each call records its inputs and its output under a name; a fault changes an output."""

    def __init__(self, folder: Path, fault: Fault = None) -> None:
        self.folder, self.fault, self.count = folder, fault, 0
        folder.mkdir(parents=True)

    def __call__(self, name: str, function: Callable[..., Array], *inputs: Array) -> Array:
        out = np.asarray(function(*inputs), np.float32)
        if self.fault is not None:
            out = np.ascontiguousarray(self.fault(name, out), np.float32)
        self.count += 1
        time = 1_000_000_000_000 + self.count
        for at, one in enumerate(inputs):
            np.save(self.folder / f"input_{name}.{at}.{time}.npy", one)
        np.save(self.folder / f"{name}.0.{time}.npy", out)
        return out


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf)(x).astype(np.float32)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def _norm(x: Array, g: Array, b: Array) -> Array:
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


LAYERS, B, S, H, HEADS = 3, 2, 6, 16, 4
D = H // HEADS


def transformer_weights(seed: int = 0) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    return [
        {
            "g1": 1 + draw(H), "b1": draw(H), "g2": 1 + draw(H), "b2": draw(H),
            **{f"w{name}": draw(H, H) for name in "qkvo"}, **{f"b{name}": draw(H) for name in "qkvo"},
            "w1": draw(4 * H, H), "c1": draw(4 * H), "w2": draw(H, 4 * H), "c2": draw(H),
        }
        for _ in range(LAYERS)
    ]  # fmt: skip


def sentence(seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((B, S, H)).astype(np.float32)


def torch_transformer(folder: Path, fault: Fault = None) -> None:
    """Fused operators: linear, layer_norm, gelu, softmax; (B,S,H)."""
    run, x = Recorder(folder, fault), sentence()
    for at, w in enumerate(transformer_weights()):
        p = f"layers_{at}_"
        linear = lambda a, w, b: a @ w.T + b  # noqa: E731
        h = run(p + "a_LayerNorm", _norm, x, w["g1"], w["b1"])
        q, k, v = (run(p + f"{n}_Linear", linear, h, w["w" + n], w["b" + n]) for n in "qkv")
        q, k, v = (
            run(p + f"{n}_Transpose", lambda a: a.reshape(B, S, HEADS, D).transpose(0, 2, 1, 3), a)
            for n, a in zip("qkv", (q, k, v))
        )
        s = run(p + "qk_MatMul", lambda a, b: a @ b.transpose(0, 1, 3, 2), q, k)
        s = run(p + "qk_Div", lambda a: a / np.sqrt(D), s)
        a = run(p + "qk_Softmax", _softmax, s)
        o = run(p + "av_MatMul", lambda a, b: a @ b, a, v)
        o = run(p + "o_Reshape", lambda a: a.transpose(0, 2, 1, 3).reshape(B, S, H), o)
        o = run(p + "o_Linear", linear, o, w["wo"], w["bo"])
        x = run(p + "a_Add", lambda a, b: a + b, x, o)
        h = run(p + "b_LayerNorm", _norm, x, w["g2"], w["b2"])
        h = run(p + "up_Linear", linear, h, w["w1"], w["c1"])
        h = run(p + "up_Gelu", _gelu, h)
        h = run(p + "down_Linear", linear, h, w["w2"], w["c2"])
        x = run(p + "b_Add", lambda a, b: a + b, x, h)


def _dense(run: Recorder, p: str, name: str, a: Array, weight: Array, bias: Array) -> Array:
    product = run(p + name + "__MatMul", lambda a, b: a @ b, a, np.ascontiguousarray(weight.T))
    return run(p + name + "__BiasAdd", lambda a, b: a + b, product, bias)


def _decomposed_norm(run: Recorder, p: str, name: str, a: Array, g: Array, b: Array) -> Array:
    m = run(p + name + "__Mean", lambda a: a.mean(-1, keepdims=True), a)
    d = run(p + name + "__Sub", lambda a, b: a - b, a, m)
    v = run(p + name + "__Mean_1", lambda a: (a**2).mean(-1, keepdims=True), d)
    r = run(p + name + "__Rsqrt", lambda a: 1 / np.sqrt(a + 1e-5), v)
    n = run(p + name + "__Mul", lambda a, b: a * b, d, r)
    n = run(p + name + "__Mul_1", lambda a, b: a * b, n, g)
    return run(p + name + "__Add", lambda a, b: a + b, n, b)


def tf_transformer(folder: Path, fault: Fault = None) -> None:
    """Decomposed operators: MatMul and BiasAdd, norms in six steps, the scale before the product; (S,B,H)."""
    run, x = Recorder(folder, fault), np.ascontiguousarray(sentence().transpose(1, 0, 2))
    for at, w in enumerate(transformer_weights()):
        p = f"block{at}__"

        dense, norm = partial(_dense, run, p), partial(_decomposed_norm, run, p)
        h = norm("ln_a", x, w["g1"], w["b1"])
        q, k, v = (dense("proj_" + n, h, w["w" + n], w["b" + n]) for n in "qkv")
        q, k, v = (
            run(p + f"t{n}__Transpose", lambda a: a.reshape(S, B, HEADS, D).transpose(1, 2, 0, 3), a)
            for n, a in zip("qkv", (q, k, v))
        )
        q = run(p + "scale__Mul", lambda a: a * np.float32(1 / np.sqrt(D)), q)
        s = run(p + "scores__BatchMatMulV2", lambda a, b: a @ b.transpose(0, 1, 3, 2), q, k)
        a = run(p + "probs__Softmax", _softmax, s)
        o = run(p + "ctx__BatchMatMulV2", lambda a, b: a @ b, a, v)
        o = run(p + "ctx__Transpose", lambda a: a.transpose(2, 0, 1, 3).reshape(S, B, H), o)
        o = dense("proj_o", o, w["wo"], w["bo"])
        x = run(p + "res__AddV2", lambda a, b: a + b, o, x)
        h = norm("ln_b", x, w["g2"], w["b2"])
        h = dense("up", h, w["w1"], w["c1"])
        c = run(p + "gelu__Mul", lambda a: a * np.float32(1 / np.sqrt(2)), h)
        e = run(p + "gelu__Erf", _erf, c)
        e = run(p + "gelu__Add", lambda a: a + 1, e)
        h = run(p + "gelu__Mul_1", lambda a, b: a * b, h, e)
        h = run(p + "gelu__Mul_2", lambda a: a * np.float32(0.5), h)
        h = dense("down", h, w["w2"], w["c2"])
        x = run(p + "res__AddV2_1", lambda a, b: a + b, h, x)


def _conv(x: Array, w: Array) -> Array:
    """3 x 3, padding 1, NCHW and OIHW."""
    n, _, height, width = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((n, w.shape[0], height, width), np.float32)
    for i in range(3):
        for j in range(3):
            out += np.einsum("nchw,oc->nohw", wide[:, :, i : i + height, j : j + width], w[:, :, i, j])
    return out


CHANNELS = (3, 8, 8, 12, 12)


def cnn_weights(seed: int = 3) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": (rng.standard_normal((o, i, 3, 3)) / np.sqrt(9 * i)).astype(np.float32),
            "scale": (1 + 0.3 * rng.standard_normal(o)).astype(np.float32),
            "shift": (0.3 * rng.standard_normal(o)).astype(np.float32),
        }
        for i, o in zip(CHANNELS, CHANNELS[1:])
    ]


def picture(seed: int = 4) -> Array:
    return np.random.default_rng(seed).standard_normal((2, 3, 6, 5)).astype(np.float32)


def torch_cnn(folder: Path, fault: Fault = None) -> None:
    """NCHW; convolution and batch norm apart."""
    run, x = Recorder(folder, fault), picture()
    for at, w in enumerate(cnn_weights()):
        x = run(f"features_{at}_Conv2d", _conv, x, w["w"])
        x = run(
            f"features_{at}_BatchNorm2d",
            lambda a, s, t: a * s[:, None, None] + t[:, None, None],
            x,
            w["scale"],
            w["shift"],
        )
        x = run(f"features_{at}_ReLU", lambda a: np.maximum(a, 0), x)
    x = run("avgpool_Mean", lambda a: a.mean((2, 3)), x)
    head = np.random.default_rng(9).standard_normal((10, 12)).astype(np.float32)
    run("head_Linear", lambda a, w: a @ w.T, x, head)


def tf_cnn(folder: Path, fault: Fault = None, folded: bool = True) -> None:
    """NHWC, HWIO; batch norm folded into the convolution, the bias apart."""
    run, x = Recorder(folder, fault), np.ascontiguousarray(picture().transpose(0, 2, 3, 1))
    for at, w in enumerate(cnn_weights()):
        weight = np.ascontiguousarray((w["w"] * w["scale"][:, None, None, None]).transpose(2, 3, 1, 0))
        conv = lambda a, b: _conv(a.transpose(0, 3, 1, 2), b.transpose(3, 2, 0, 1)).transpose(0, 2, 3, 1)  # noqa: E731
        x = run(f"m__b{at}__Conv2D", conv, x, weight)
        x = run(f"m__b{at}__BiasAdd", lambda a, b: a + b, x, w["shift"])
        x = run(f"m__b{at}__Relu", lambda a: np.maximum(a, 0), x)
    x = run("m__pool__Mean", lambda a: a.mean((1, 2)), x)
    head = np.random.default_rng(9).standard_normal((10, 12)).astype(np.float32)
    run("m__dense__MatMul", lambda a, w: a @ w, x, np.ascontiguousarray(head.T))


GROUPS = 4


def _standard(a: Array) -> Array:
    return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)


def grouped_cnn(folder: Path, nhwc: bool) -> None:
    """Convolutions with group norms, which see the channels of a group as one row: (N, groups, rest) in both layouts,
    but in another order of elements."""
    run, x, h, w = Recorder(folder), picture(), 6, 5
    p = "m__b" if nhwc else "features_"
    last = (0, 2, 3, 1)
    x = np.ascontiguousarray(x.transpose(last)) if nhwc else x
    for at, weights in enumerate(cnn_weights()):
        c = CHANNELS[at + 1]
        if nhwc:
            weight = np.ascontiguousarray(weights["w"].transpose(2, 3, 1, 0))
            conv = lambda a, b: _conv(a.transpose(0, 3, 1, 2), b.transpose(3, 2, 0, 1)).transpose(last)  # noqa: E731
            x = run(f"{p}{at}__Conv2D", conv, x, weight)
            wide = (2, h * w, GROUPS, c // GROUPS)
            x = run(
                f"{p}{at}__Reshape",
                lambda a, s=wide: a.reshape(s).transpose(0, 2, 1, 3).reshape(2, GROUPS, -1),
                x,
            )
            x = run(f"{p}{at}__Normalize", _standard, x)
            back = (2, GROUPS, h * w, c // GROUPS)
            x = run(
                f"{p}{at}__Reshape_1",
                lambda a, s=back, c=c: a.reshape(s).transpose(0, 2, 1, 3).reshape(2, h, w, c),
                x,
            )
        else:
            x = run(f"{p}{at}_Conv2d", _conv, x, weights["w"])
            x = run(f"{p}{at}_View", lambda a: a.reshape(2, GROUPS, -1), x)
            x = run(f"{p}{at}_Standardize", _standard, x)
            x = run(f"{p}{at}_View_1", lambda a, c=c: a.reshape(2, c, h, w), x)
        x = run(f"{p}{at}__Relu" if nhwc else f"{p}{at}_ReLU", lambda a: np.maximum(a, 0), x)
    x = run(f"{p}pool__Mean" if nhwc else f"{p}pool_Mean", lambda a: a.mean((1, 2) if nhwc else (2, 3)), x)
    head = np.random.default_rng(9).standard_normal((10, 12)).astype(np.float32)
    run("m__dense__MatMul" if nhwc else "head_Linear", lambda a, w: a @ w.T, x, head)
