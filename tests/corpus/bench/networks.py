"""The networks of the public benchmark on one rank: a function of a Builder returns the loss.

No other corpus has them: a recommender, a radiance field, retention, latent arrays, gated dilated convolutions, an
autoencoder, triangles of pairs, radial bases, a differential equation, spatial gates, latent attention, sets of points.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from tests.corpus.networks import Weights
from tests.corpus.tape import Tape, Var
from tests.corpus.trace import Tensor

WORDS = 29  # of the vocabulary
BATCH, LENGTH, WIDTH, HEADS = 3, 8, 16, 2
DEFAULTS: dict[str, Any] = {
    "linear": "whole",  # or split: a product and an addition
    "axes": "batch",  # or sequence: (sequence, batch, width) for (batch, sequence, width)
    "dropout": 0.0,
    "training": True,  # mode of dropout
    "tied": True,  # the head is the embedding, where a network has both
    "repeat": False,  # the batch of the first step again
    "labels": 0,  # places that labels are rolled by
    "rows": 0,  # places that samples of the batch are rolled by
    "overwritten": -1,  # call of a linear layer whose output something unrecorded overwrites
}


class Builder:
    """A network in the making: the tape, the parameters, and the options in which two equal codings differ."""

    def __init__(self, tape: Tape, weights: Weights, options: Mapping[str, Any], seed: int):
        self.t, self.weights, self.seed = tape, weights, seed
        self.options = {**DEFAULTS, **options}
        self.known: dict[str, Var] = {}
        self._dropouts = self._linears = 0

    def weight(self, name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> Var:
        path = f"{self.t.scope}.{name}" if self.t.scope else name
        if path not in self.known:
            scale = scale or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
            self.known[path] = self.t.weight(path, self.weights.get(path, shape, scale, offset))
        return self.known[path]

    def _draw(self, name: str) -> np.random.RandomState:
        return np.random.RandomState([self.seed, zlib.crc32(name.encode())])

    def normal(self, name: str, *shape: int) -> Var:
        values = self._draw(name).standard_normal(shape).astype(np.float32)
        return self.t.constant(np.roll(values, self.options["rows"], 0))

    def words(self, name: str, *shape: int, most: int = WORDS) -> Var:
        values = self._draw(name).randint(0, most, shape)
        return self.t.constant(np.roll(values, self.options["rows"], 0))

    def fixed(self, values: Any) -> Var:
        return self.t.constant(np.asarray(values, np.float32) if np.asarray(values).dtype.kind == "f" else values)

    def linear(self, name: str, x: Var, n: int, bias: bool = True) -> Var:
        with self.t.inside(name):
            w = self.weight("weight", n, x.shape[-1])
            b = self.weight("bias", n) if bias else None
            if self.options["linear"] == "split":
                y = self.t("matmul", x, self.t.transpose(w, 1, 0))
                return self._passed(y if b is None else self.t("add", y, b))
            return self._passed(self.t("linear", x, w, b))

    def _passed(self, y: Var) -> Var:
        """The output of a layer on its way to the next operator."""
        self._linears += 1
        if self._linears - 1 != self.options["overwritten"]:
            return y

        def overwrite(v: np.ndarray) -> np.ndarray:
            found = v.copy()
            found.reshape(-1)[: max(1, v.size // 5)] = v.reshape(-1)[-max(1, v.size // 5) :]
            return found

        return self.t.view(y, overwrite, lambda g: g)

    def layer_norm(self, name: str, x: Var) -> Var:
        with self.t.inside(name):
            n = x.shape[-1]
            return self.t("layer_norm", x, [n], self.weight("weight", n, offset=1.0), self.weight("bias", n), 1e-5)

    def rms_norm(self, name: str, x: Var) -> Var:
        with self.t.inside(name):
            return self.t("rms_norm", x, [x.shape[-1]], self.weight("weight", x.shape[-1], offset=1.0), 1e-6)

    def dropout(self, x: Var) -> Var:
        if not self.options["dropout"]:
            return x
        self._dropouts += 1
        p, mode = (self.options["dropout"], True) if self.options["training"] else (0.0, False)
        return self.t("dropout", x, p, mode, seed=1000 * self.seed + self._dropouts)

    def embedded(self, name: str = "embedding") -> Var:
        """Words as vectors, in the order of axes of this coding."""
        with self.t.inside(name):
            ids = self.words("words", BATCH, LENGTH)
            if self.options["axes"] == "sequence":
                ids = self.fixed(np.ascontiguousarray(ids.tensor.values.T))
            return self.t("embedding", ids, self.weight("weight", WORDS, WIDTH, scale=1.0))

    def heads(self, x: Var) -> Var:
        """(batch, heads, sequence, width of a head) of either order of axes."""
        x = self.t.reshape(x, *x.shape[:2], HEADS, -1)
        return self.t.transpose(x, *((1, 2, 0, 3) if self.options["axes"] == "sequence" else (0, 2, 1, 3)))

    def joined(self, x: Var) -> Var:
        """The inverse of `heads`."""
        x = self.t.transpose(x, *((2, 0, 1, 3) if self.options["axes"] == "sequence" else (0, 2, 1, 3)))
        return self.t.reshape(x, *x.shape[:2], -1)

    def class_loss(self, x: Var, classes: int) -> Var:
        """Cross entropy of logits (…, classes), rows in the order of (batch, sequence)."""
        if len(x.shape) == 3 and self.options["axes"] == "sequence":
            x = self.t.transpose(x, 1, 0, 2)
        flat = self.t.reshape(x, -1, classes)
        labels = self._draw("labels").randint(0, classes, flat.shape[0])
        with self.t.inside("loss"):
            return self.t("cross_entropy", flat, self.t.constant(np.roll(labels, self.options["labels"])))

    def word_loss(self, x: Var) -> Var:
        """The loss of words, by a head that may be the embedding."""
        if not self.options["tied"]:
            path = "head.weight"
            if path not in self.weights.values:
                self.weights.set(path, self.weights.values["embedding.weight"].copy())
            w = self.known.setdefault(path, self.t.weight(path, self.weights.values[path]))
        else:
            w = self.known["embedding.weight"]
        with self.t.inside("head"):
            logits = self.t("mul", self.t("linear", x, w, None), 1.0 / math.sqrt(WIDTH))
        return self.class_loss(logits, WORDS)


def recommender(b: Builder) -> Var:
    """Embeddings of categories, a network for the dense features, products of all pairs."""
    fields = 5
    ids = b.words("categories", BATCH + 3, fields, most=11)
    with b.t.inside("tables"):
        rows = b.t.constant(ids.tensor.values + 11 * np.arange(fields))
        z = b.t("embedding", rows, b.weight("weight", 11 * fields, WIDTH, scale=0.5))
    dense = b.normal("dense", BATCH + 3, 9)
    for k in range(2):
        dense = b.t("relu", b.linear(f"bottom.{k}", dense, WIDTH))
    z = b.t("cat", b.t.reshape(dense, BATCH + 3, 1, WIDTH), z, dim=1)
    pairs = b.t("matmul", z, b.t.transpose(z, 0, 2, 1))
    x = b.t("cat", dense, b.t.reshape(pairs, BATCH + 3, -1), dim=-1)
    for k in range(2):
        x = b.t("relu", b.linear(f"top.{k}", x, 2 * WIDTH))
    return b.class_loss(b.linear("click", x, 2), 2)


def radiance(b: Builder) -> Var:
    """Density and colour along rays, composited by their transmittance."""
    rays, samples = 6, 8
    place = b._draw("rays").uniform(-1, 1, (rays, samples, 3))
    place = np.roll(place, b.options["rows"], 0)
    waves = np.concatenate([f(2.0**k * place) for k in range(3) for f in (np.sin, np.cos)], -1)
    given = b.fixed(waves.astype(np.float32))
    x = b.t("relu", b.linear("first", given, 2 * WIDTH))
    x = b.t("relu", b.linear("second", b.t("cat", x, given, dim=-1), 2 * WIDTH))
    density = b.t("mul", b.t("relu", b.linear("density", x, 1)), 0.25)
    density = b.t.reshape(density, rays, samples)
    behind = b.fixed(np.triu(np.ones((samples, samples), np.float32), 1))
    seen = b.t("exp", b.t("mul", b.t("matmul", density, behind), -1.0))
    opaque = b.t("add", b.t("mul", b.t("exp", b.t("mul", density, -1.0)), -1.0), 1.0)
    share = b.t.reshape(b.t("mul", seen, opaque), rays, samples, 1)
    colour = b.t("sigmoid", b.linear("colour", x, 3))
    pixels = b.t("sum", b.t("mul", share, colour), dim=1)
    with b.t.inside("loss"):
        return b.t("mse_loss", pixels, b.normal("image", rays, 3))


def retention(b: Builder) -> Var:
    """Scores without softmax that decay with the distance, and a gate."""
    x = b.embedded()
    for layer in range(2):
        with b.t.inside(f"layers.{layer}"):
            x = b.t("add", x, _retained(b, b.rms_norm("norm1", x)))
            h = b.t("gelu", b.linear("up", b.rms_norm("norm2", x), 2 * WIDTH))
            x = b.t("add", x, b.dropout(b.linear("down", h, WIDTH)))
    return b.word_loss(b.rms_norm("norm", x))


def decays(length: int, heads: Sequence[int]) -> np.ndarray:
    """(heads, length, length): how much of a word is left at a later one."""
    distance = np.arange(length)[:, None] - np.arange(length)
    rates = 1.0 - 2.0 ** (-2.0 - np.asarray(heads, np.float64))[:, None, None]
    return np.where(distance >= 0, rates ** np.maximum(distance, 0), 0.0)


def _retained(b: Builder, x: Var) -> Var:
    q, k, v = (b.heads(b.linear(name, x, WIDTH, bias=False)) for name in ("query", "key", "value"))
    scores = b.t("matmul", q, b.t.transpose(k, 0, 1, 3, 2))
    scores = b.t("mul", b.t("mul", scores, 1.0 / math.sqrt(WIDTH / HEADS)), b.fixed(decays(LENGTH, range(HEADS))))
    y = b.joined(b.rms_norm("each", b.t("matmul", scores, v)))
    gate = b.t("silu", b.linear("gate", x, WIDTH, bias=False))
    return b.linear("out", b.t("mul", gate, y), WIDTH, bias=False)


def latents(b: Builder) -> Var:
    """A learned array reads the inputs by attention, then itself."""
    count = 6
    given = b.linear("enter", b.normal("pixels", BATCH, 2 * LENGTH, 7), WIDTH)
    with b.t.inside("array"):
        x = b.t("mul", b.fixed(np.ones((BATCH, 1, 1), np.float32)), b.weight("weight", count, WIDTH, scale=1.0))
    for layer in range(3):
        with b.t.inside(f"layers.{layer}"):
            h = b.layer_norm("norm1", x)
            memory = given if layer == 0 else h
            q, k, v = (b.linear(n, m, WIDTH) for n, m in (("query", h), ("key", memory), ("value", memory)))
            scores = b.t("div", b.t("matmul", q, b.t.transpose(k, 0, 2, 1)), math.sqrt(WIDTH))
            y = b.t("matmul", b.dropout(b.t("softmax", scores, dim=-1)), v)
            x = b.t("add", x, b.linear("out", y, WIDTH))
            h = b.t("gelu", b.linear("up", b.layer_norm("norm2", x), 2 * WIDTH))
            x = b.t("add", x, b.linear("down", h, WIDTH))
    return b.class_loss(b.linear("class", b.t("mean", x, dim=1), 7), 7)


def waves(b: Builder) -> Var:
    """Gated causal convolutions whose reach doubles, with skips to the end."""
    with b.t.inside("embedding"):
        x = b.t("embedding", b.words("samples", BATCH, LENGTH), b.weight("weight", WORDS, WIDTH, scale=1.0))
    skips = None
    for layer in range(3):
        with b.t.inside(f"layers.{layer}"):
            reach = 2**layer
            late = b.t.part(x, np.s_[:, : LENGTH - reach])
            late = b.t("cat", b.fixed(np.zeros((BATCH, reach, WIDTH), np.float32)), late, dim=1)
            h = b.linear("conv", b.t("cat", late, x, dim=-1), 2 * WIDTH)
            left, right = (b.t.part(h, np.s_[..., k * WIDTH : (k + 1) * WIDTH]) for k in range(2))
            h = b.t("mul", b.t("tanh", left), b.t("sigmoid", right))
            skip = b.linear("skip", h, WIDTH)
            skips = skip if skips is None else b.t("add", skips, skip)
            x = b.t("add", x, b.linear("residual", h, WIDTH))
    assert skips is not None
    return b.class_loss(b.linear("last", b.t("relu", skips), WORDS), WORDS)


def autoencoder(b: Builder) -> Var:
    """A mean and a variance for each sample, a draw, and the way back."""
    given = b.normal("image", BATCH + 5, 24)
    h = b.layer_norm("norm", b.t("silu", b.linear("enter", given, 2 * WIDTH)))
    mean, log = b.linear("mean", h, 6), b.linear("variance", h, 6)
    drawn = b.t("mul", b.t("exp", b.t("mul", log, 0.5)), b.normal("noise", BATCH + 5, 6))
    z = b.t("add", mean, drawn)
    h = b.t("silu", b.linear("back", z, 2 * WIDTH))
    with b.t.inside("loss"):
        error = b.t("mse_loss", b.linear("leave", h, 24), given)
        squares = b.t("add", b.t("mul", mean, mean), b.t("exp", log))
        apart = b.t("mean", b.t("sum", b.t("sub", squares, log), dim=-1), dim=0)
        return b.t("add", error, b.t("mul", apart, 0.05))


def triangles(b: Builder) -> Var:
    """Pairs of residues update each other along the third side of a triangle."""
    n, c = 6, 8
    x = b.linear("enter", b.normal("pairs", 2, n, n, 5), c)
    for layer in range(2):
        with b.t.inside(f"layers.{layer}"):
            h = b.layer_norm("norm1", x)
            sides = []
            for name in ("left", "right"):
                gate = b.t("sigmoid", b.linear(f"{name}_gate", h, c))
                sides.append(b.t.transpose(b.t("mul", gate, b.linear(name, h, c)), 0, 3, 1, 2))
            y = b.t("matmul", sides[0], b.t.transpose(sides[1], 0, 1, 3, 2))
            y = b.linear("out", b.layer_norm("norm2", b.t.transpose(y, 0, 2, 3, 1)), c)
            x = b.t("add", x, b.t("mul", b.t("sigmoid", b.linear("gate", h, c)), y))
            h = b.t("relu", b.linear("up", b.layer_norm("norm3", x), 2 * c))
            x = b.t("add", x, b.linear("down", h, c))
    with b.t.inside("loss"):
        return b.t("mse_loss", b.linear("distance", x, 1), b.normal("distances", 2, n, n, 1))


def radial(b: Builder) -> Var:
    """Functions on the edges of a network, as sums of radial bases."""
    x = b.normal("features", BATCH + 5, 10)
    grid = np.linspace(-2, 2, 5, dtype=np.float32)
    for layer, width in enumerate((12, 12, 6)):
        with b.t.inside(f"layers.{layer}"):
            far = b.t("sub", b.t.reshape(x, *x.shape, 1), b.fixed(grid))
            bases = b.t("exp", b.t("mul", b.t("mul", far, far), -1.0))
            y = b.linear("bases", b.t.reshape(bases, x.shape[0], -1), width, bias=False)
            x = b.t("add", y, b.linear("base", b.t("silu", x), width))
            if layer < 2:
                x = b.layer_norm("norm", x)
    return b.class_loss(x, 6)


def equation(b: Builder) -> Var:
    """An ordinary differential equation in two steps of Runge and Kutta, with the same weights at each."""
    x = b.linear("enter", b.normal("features", BATCH + 3, 9), WIDTH)

    def slope(x: Var) -> Var:
        return b.linear("field.out", b.t("tanh", b.linear("field.in", x, 2 * WIDTH)), WIDTH)

    for _ in range(2):
        k1 = slope(x)
        k2 = slope(b.t("add", x, b.t("mul", k1, 0.25)))
        k3 = slope(b.t("add", x, b.t("mul", k2, 0.25)))
        k4 = slope(b.t("add", x, b.t("mul", k3, 0.5)))
        middle = b.t("mul", b.t("add", k2, k3), 2.0)
        x = b.t("add", x, b.t("mul", b.t("add", b.t("add", k1, middle), k4), 0.5 / 6))
    return b.class_loss(b.linear("class", x, 5), 5)


def gates(b: Builder) -> Var:
    """Feed-forward layers whose gate mixes the words of a sentence by one product."""
    x = b.embedded()
    axes = (1, 2, 0) if b.options["axes"] == "sequence" else (0, 2, 1)
    back = (2, 0, 1) if b.options["axes"] == "sequence" else (0, 2, 1)
    for layer in range(2):
        with b.t.inside(f"layers.{layer}"):
            h = b.t("gelu", b.linear("up", b.layer_norm("norm1", x), 2 * WIDTH))
            u, v = (b.t.part(h, np.s_[..., k * WIDTH : (k + 1) * WIDTH]) for k in range(2))
            v = b.t.transpose(b.linear("mix", b.t.transpose(b.layer_norm("norm2", v), *axes), LENGTH), *back)
            x = b.t("add", x, b.dropout(b.linear("down", b.t("mul", u, v), WIDTH)))
    return b.word_loss(b.layer_norm("norm", x))


def latent_attention(b: Builder) -> Var:
    """A causal decoder whose keys and values come from one narrow latent."""
    x = b.embedded()
    hidden = b.fixed(~np.tri(LENGTH, dtype=bool))
    for layer in range(2):
        with b.t.inside(f"layers.{layer}"):
            h = b.rms_norm("norm1", x)
            latent = b.rms_norm("narrow", b.linear("down_kv", h, 6, bias=False))
            q = b.heads(b.linear("query", h, WIDTH))
            k, v = (b.heads(b.linear(name, latent, WIDTH, bias=False)) for name in ("key", "value"))
            scores = b.t("div", b.t("matmul", q, b.t.transpose(k, 0, 1, 3, 2)), math.sqrt(WIDTH / HEADS))
            scores = b.t("softmax", b.t("masked_fill", scores, hidden, -1e4), dim=-1)
            x = b.t("add", x, b.linear("out", b.joined(b.t("matmul", b.dropout(scores), v)), WIDTH))
            h = b.rms_norm("norm2", x)
            h = b.t("mul", b.t("silu", b.linear("gate", h, 24, bias=False)), b.linear("up", h, 24, bias=False))
            x = b.t("add", x, b.linear("down", h, WIDTH, bias=False))
    return b.word_loss(b.rms_norm("norm", x))


def points(b: Builder) -> Var:
    """A set of points: one network for each, a rotation that is learned, the largest of all."""
    given = b.normal("points", BATCH, 16, 3)
    h = b.t("relu", b.linear("turn.in", given, WIDTH))
    turn = b.t.reshape(b.linear("turn.out", b.t("mean", h, dim=1), 9), BATCH, 3, 3)
    x = b.t("matmul", given, b.t("add", turn, b.fixed(np.eye(3, dtype=np.float32))))
    x = b.t.transpose(b.t.reshape(x, BATCH, 4, 4, 3), 0, 3, 1, 2)
    for layer, width in enumerate((8, 16)):
        with b.t.inside(f"layers.{layer}"):
            w = b.weight("weight", width, x.shape[1], 1, 1, scale=1.0 / math.sqrt(x.shape[1]))
            x = b.t("conv2d", x, w, b.weight("bias", width), 1, 0, 1, 1)
            x = b.t(
                "relu", b.t("group_norm", x, 2, b.weight("scale", width, offset=1.0), b.weight("shift", width), 1e-5)
            )
    most = b.t.reshape(b.t("max_pool2d", x, 4), BATCH, WIDTH)
    return b.class_loss(b.linear("class", most, 6), 6)


NETWORKS: dict[str, Callable[[Builder], Var]] = {
    "recommender": recommender, "radiance": radiance, "retention": retention, "latents": latents, "waves": waves,
    "autoencoder": autoencoder, "triangles": triangles, "radial": radial, "equation": equation, "gates": gates,
    "latent_attention": latent_attention, "points": points,
}  # fmt: skip
WORDED = ("retention", "gates", "latent_attention")  # words in, tied head; in either order of axes
DROPPING = ("retention", "latents", "gates", "latent_attention")


def step_of_optimizer(b: Builder, name: str, gradient: Tensor, rate: float) -> None:
    """The update of a parameter as two recorded operators."""
    with b.t.inside("optimizer"), b.t.inside(name):
        step = b.t("mul", Var(gradient), rate)
        b.t("sub", b.t.detached(b.known[name]), step)
