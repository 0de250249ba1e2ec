"""Small networks: each a function of a Net that returns its loss. OPEN ones are there to work on, HELD ones to report
by. They are written as model code is, one call an operator; tests/corpus/against_torch.py has the same in torch."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from tests.corpus import ranks
from tests.corpus.tape import Tape, Var

WORDS = 37  # of the vocabulary


class Size(NamedTuple):
    """batch, length (words, or the edge of an image), width, heads, layers."""

    batch: int
    length: int
    width: int
    heads: int
    layers: int


@dataclass
class Weights:
    """The parameters of a run, float64 values by name, from the start to the last step; drawn when first asked for."""

    seed: int
    values: dict[str, np.ndarray] = field(default_factory=dict)
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)  # planted ones

    def get(self, name: str, shape: tuple[int, ...], scale: float, offset: float) -> np.ndarray:
        if name not in self.values:
            self.set(name, self.drawn(name, shape, scale, offset))
        return self.values[name]

    def drawn(self, name: str, shape: tuple[int, ...], scale: float, offset: float = 0.0) -> np.ndarray:
        """What a name starts with."""
        draw = np.random.RandomState([self.seed, zlib.crc32(name.encode())])
        return (offset + scale * draw.standard_normal(shape)).astype(np.float32).astype(np.float64)

    def set(self, name: str, values: np.ndarray) -> None:
        self.values[name] = self.changes[name](values) if name in self.changes else values


DEFAULTS: dict[str, Any] = {
    "attention": "split",  # or fused
    "qkv": "three",  # or one: the three projections as one product
    "linear": "whole",  # or split: a product and an addition
    "norm": "whole",  # or split: of RMS norms, in its five operators
    "square": "pow",  # or mul: how something is squared
    "scale": "mul",  # or div: how scores are scaled
    "act": "whole",  # or split: SiLU as x · sigmoid(x)
    "gelu": "seen",  # or hidden: captured before the hooks
    "approximate": "none",  # of gelu
    "rope": "hidden",  # or seen: in its four operators
    "rope_base": 10000.0,
    "rope_layout": "halves",  # or pairs
    "mask": -math.inf,  # or -1e9, -1e4, the lowest number: what masked scores are
    "dropout": 0.0,
    "extra": False,  # an operator more, that changes nothing
    "checkpoint": False,  # forward computed again on the way back
    "side_cast": False,  # a bfloat16 cast of a few rows, for somebody's statistics
    "cancelling": 0,  # terms of a sum that cancel, on a side branch that matters a little
    "energy": 0.0,  # an offset of the scores: -1e4, as log likelihoods have
    "empty": False,  # rows written into memory that was not cleared
    "near_ties": False,  # two experts that are as good as each other
    "input": None,  # planted: what becomes of the batch
    "hidden_fault": None,  # planted: what becomes of a tensor in code that nobody captured
}


class Net:
    """A network in the making: the tape, its weights, its size and the options that two equal codings differ in."""

    def __init__(self, tape: Tape, weights: Weights, size: Size, options: Mapping[str, Any], batch_seed: int):
        self.t, self.weights, self.size = tape, weights, size
        self.options = {**DEFAULTS, **options}
        self.batch_seed = batch_seed
        self._known: dict[str, Var] = {}
        self._dropouts = 0
        self._is_again = False  # while checkpointing computes a forward once more

    def is_on(self, name: str, value: Any = True) -> bool:
        return bool(self.options[name] == value)

    def weight(self, name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> Var:
        path = f"{self.t.scope}.{name}" if self.t.scope else name
        if path not in self._known:
            scale = scale or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
            self._known[path] = self.t.weight(path, self.weights.get(path, shape, scale, offset))
        return self._known[path]

    def draw(self, name: str) -> np.random.RandomState:
        return np.random.RandomState([self.batch_seed, zlib.crc32(name.encode())])

    def normal(self, name: str, *shape: int) -> Var:
        values = self.draw(name).standard_normal(shape).astype(np.float32)
        return self.t.constant(self.options["input"](values) if self.options["input"] else values)

    def words(self, name: str, *shape: int, most: int = WORDS) -> Var:
        values = self.draw(name).randint(0, most, shape)
        return self.t.constant(values)

    def running(self, name: str, width: int, of: Var, first: float) -> Var:
        """A running statistic of a batch norm: what it was before, and its next value for the next step."""
        path = f"{self.t.scope}.{name}"
        before = self.weights.values.setdefault(path, np.full(width, first))
        values = of.tensor.values.astype(np.float64)
        if self._is_again:
            return self.t.constant(before.astype(np.float32))
        new = values.mean((0, 2, 3)) if first == 0.0 else values.var((0, 2, 3), ddof=1)
        self.weights.values[path] = (0.9 * before + 0.1 * new).astype(np.float32).astype(np.float64)
        return self.t.constant(before.astype(np.float32))

    # Layers

    def linear(self, name: str, x: Var, n: int, bias: bool = True) -> Var:
        def body(x: Var) -> Var:
            w = self.weight("weight", n, x.shape[-1])
            b = self.weight("bias", n) if bias else None
            if self.is_on("linear", "split"):
                y = self.t("matmul", x, self.t.transpose(w, 1, 0))
                return y if b is None else self.t("add", y, b)
            return self.t("linear", x, w, b)

        return self.t.module(name, "Linear", body, x)

    def layer_norm(self, name: str, x: Var) -> Var:
        def body(x: Var) -> Var:
            n = x.shape[-1]
            return self.t("layer_norm", x, [n], self.weight("weight", n, offset=1.0), self.weight("bias", n), 1e-5)

        return self.t.module(name, "LayerNorm", body, x)

    def rms_norm(self, name: str, x: Var) -> Var:
        def body(x: Var) -> Var:
            w = self.weight("weight", x.shape[-1], offset=1.0)
            if not self.is_on("norm", "split"):
                return self.t("rms_norm", x, [x.shape[-1]], w, 1e-6)
            scale = self.t("rsqrt", self.t("add", self.t("mean", self.square(x), dim=-1, keepdim=True), 1e-6))
            return self.t("mul", self.t("mul", x, scale), w)

        return self.t.module(name, "RMSNorm", body, x)

    def square(self, x: Var) -> Var:
        return self.t("mul", x, x) if self.is_on("square", "mul") else self.t("pow", x, 2)

    def conv(
        self, name: str, x: Var, n: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = True
    ) -> Var:
        def body(x: Var) -> Var:
            inputs = x.shape[1] // groups
            w = self.weight("weight", n, inputs, kernel, kernel, scale=1.0 / (kernel * math.sqrt(inputs)))
            return self.t("conv2d", x, w, self.weight("bias", n) if bias else None, stride, kernel // 2, 1, groups)

        return self.t.module(name, "Conv2d", body, x)

    def batch_norm(self, name: str, x: Var) -> Var:
        def body(x: Var) -> Var:
            n = x.shape[1]
            mean, variance = self.running("mean", n, x, 0.0), self.running("variance", n, x, 1.0)
            w, b = self.weight("weight", n, offset=1.0), self.weight("bias", n)
            return self.t("batch_norm", x, mean, variance, w, b, True, 0.1, 1e-5)

        return self.t.module(name, "BatchNorm2d", body, x)

    def group_norm(self, name: str, x: Var, groups: int = 2) -> Var:
        def body(x: Var) -> Var:
            n = x.shape[1]
            return self.t("group_norm", x, groups, self.weight("weight", n, offset=1.0), self.weight("bias", n), 1e-5)

        return self.t.module(name, "GroupNorm", body, x)

    def silu(self, x: Var) -> Var:
        return self.t("mul", x, self.t("sigmoid", x)) if self.is_on("act", "split") else self.t("silu", x)

    def gelu(self, x: Var) -> Var:
        keywords = {} if self.is_on("approximate", "none") else {"approximate": self.options["approximate"]}
        return (self.t.hidden if self.is_on("gelu", "hidden") else self.t)("gelu", x, **keywords)

    def dropout(self, x: Var) -> Var:
        self._dropouts += 1
        if not self.options["dropout"]:
            return x
        return self.t("dropout", x, self.options["dropout"], True, seed=1000 * self.batch_seed + self._dropouts)

    def unseen(self, x: Var) -> Var:
        """Code of one's own between two operators: here a shift by nothing, or what was planted."""
        fault = self.options["hidden_fault"]
        if fault is None:
            return x
        return self.t.view(x, lambda v: fault(v.astype(np.float64)).astype(v.dtype), lambda g: g)

    def attention(
        self, name: str, x: Var, memory: Var, groups: int = 1, causal: bool = False, rope: bool = False
    ) -> Var:
        with self.t.inside(name):
            heads, width = self.size.heads, x.shape[-1]
            each, shared = width // heads, heads // groups
            if self.is_on("qkv", "one") and groups == 1 and x is memory:
                self._join(width)
                whole = self.linear("qkv", x, 3 * width)
                q, k, v = (self.t.part(whole, (..., slice(n * width, (n + 1) * width))) for n in range(3))
            else:
                q = self.linear("query", x, width)
                k, v = (self.linear(which, memory, shared * each) for which in ("key", "value"))
            q, k, v = (self._heads(one, each) for one in (q, k, v))
            if rope:
                q, k = self._rope(q), self._rope(k)
            if groups > 1:
                k, v = (self.t.repeated(one, groups) for one in (k, v))
            mask = None if causal else self._padding(x.shape[0], q.shape[2], k.shape[2])
            if self.is_on("attention", "fused"):
                y = self.t("attention", q, k, v, **({"is_causal": True} if causal else {"attn_mask": mask}))
            else:
                y = self.t("matmul", self._weights(q, k, causal, mask), v)
            y = self.t.transpose(y, 0, 2, 1, 3)
            y = self.unseen(self.t.reshape(y, x.shape[0], -1, width))
            return self.linear("output", y, width)

    def _join(self, width: int) -> None:
        """The weights of the one product, from those that the three would have."""
        path = self.t.scope
        for last, shape, scale in (("weight", (width, width), 1.0 / math.sqrt(width)), ("bias", (width,), 0.1)):
            name = f"{path}.qkv.{last}"
            if name not in self.weights.values:
                parts = [self.weights.drawn(f"{path}.{n}.{last}", shape, scale) for n in ("query", "key", "value")]
                self.weights.set(name, np.concatenate(parts))

    def _weights(self, q: Var, k: Var, causal: bool, mask: Any) -> Var:
        scores = self.t("matmul", q, self.t.transpose(k, 0, 1, 3, 2))
        root = math.sqrt(q.shape[-1])
        scores = self.t("div", scores, root) if self.is_on("scale", "div") else self.t("mul", scores, 1.0 / root)
        hidden = (
            self.t.constant(~np.tri(*scores.shape[-2:], dtype=bool)) if causal else self.t.constant(~mask.tensor.values)
        )
        value = self.options["mask"]
        if value == "lowest":
            value = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38}.get(scores.dtype, -3.4028234663852886e38)
        scores = self.t("masked_fill", scores, hidden, value)
        return self.dropout(self.t("softmax", scores, dim=-1))

    def _padding(self, batch: int, rows: int, columns: int) -> Var:
        """What is attended to: the last places of some sentences are padding."""
        kept = np.ones((batch, 1, 1, columns), bool)
        kept[::2, ..., -max(1, columns // 5) :] = False
        return self.t.constant(np.broadcast_to(kept, (batch, 1, rows, columns)).copy())

    def _heads(self, x: Var, each: int) -> Var:
        return self.t.transpose(self.t.reshape(x, x.shape[0], x.shape[1], -1, each), 0, 2, 1, 3)

    def _rope(self, x: Var) -> Var:
        n, d = x.shape[-2:]
        angles = np.arange(n)[:, None] * self.options["rope_base"] ** -(np.arange(0, d, 2) / d)
        wide = np.repeat(angles, 2, -1) if self.is_on("rope_layout", "pairs") else np.concatenate([angles, angles], -1)
        cos, sin = self.t.constant(np.cos(wide)), self.t.constant(np.sin(wide))
        if self.is_on("rope", "hidden"):
            return self.t.hidden("rope", x, cos, sin)
        first, second = (self.t.part(x, (..., slice(k * d // 2, (k + 1) * d // 2))) for k in range(2))
        turned = self.t("cat", self.t("mul", second, -1.0), first, dim=-1)
        return self.t("add", self.t("mul", x, cos), self.t("mul", turned, sin))

    def feed_forward(self, name: str, x: Var, act: str) -> Var:
        with self.t.inside(name):
            if act == "gated":
                gate, up = (self.linear(which, x, 2 * x.shape[-1], bias=False) for which in ("gate", "up"))
                return self.linear("down", self.t("mul", self.silu(gate), up), x.shape[-1], bias=False)
            h = self.linear("in", x, 2 * x.shape[-1])
            h = self.gelu(h) if act == "gelu" else self.t(act, h)
            return self.dropout(self.linear("out", h, x.shape[-1]))

    def block(self, name: str, body: Callable[[Var], Var], x: Var) -> Var:
        """A layer: a module at level mix, with what some runs do around their layers."""
        if self.is_on("extra") and name.endswith(("0", "1")):
            with self.t.inside("debug"):
                x = self.t("mul", x, 1.0)
        if self.is_on("side_cast") and name.endswith("0"):
            with self.t.inside("statistics"):
                self.t("to", self.t.detached(self.t.part(x, (slice(0, 1),))), "torch.bfloat16")
        if not self.is_on("checkpoint"):
            return self.t.module(name, "Block", body, x)
        before, span = self._dropouts, [0, 0]

        def counted(x: Var) -> Var:
            span[0] = len(self.t.session.nodes)
            y = body(x)
            span[1] = len(self.t.session.nodes)
            return y

        y = self.t.same(self.t.module(name, "Block", counted, x))
        assert y.node is not None
        y.node.hook = lambda gradient: self._again(name, body, x, span, before)
        return y

    def _again(self, name: str, body: Callable[[Var], Var], x: Var, span: list[int], dropouts: int) -> None:
        """Checkpointing: the forward once more, when the gradient arrives. Its records stand among those of the
        backward, which belongs to these calls; random numbers are those of the first time, running statistics stay."""
        nodes = self.t.session.nodes
        kept = len(nodes)
        after, self._dropouts, self._is_again = self._dropouts, dropouts, True
        with self.t.inside(name):
            body(self.t.detached(x))
        self._dropouts, self._is_again = after, False
        for first, second in zip(nodes[span[0] : span[1]], nodes[kept:]):
            first.call = second.call
        del nodes[kept:]

    def finish(self, x: Var) -> Var:
        """What some networks do before their head: see DEFAULTS."""
        if self.options["cancelling"]:
            n = self.options["cancelling"]
            flat = self.t.reshape(x, -1)
            rows = max(1, flat.shape[0] // n)
            if rows * n <= flat.shape[0]:
                centred = self.t(
                    "sub",
                    rows_of := self.t.reshape(self.t.part(flat, slice(0, rows * n)), rows, n),
                    self._means(rows_of),
                )
                small = self.t("mul", self.t("mean", self.t("sum", centred, dim=-1), dim=0), 1e-3)
                x = self.t("add", x, small)
        if self.is_on("empty"):
            rows = x.shape[0]
            memory = self.t("empty", list(x.shape))
            x = self.t("setitem", memory, np.arange(rows), x) if rows else x
        return x

    def _means(self, rows: Var) -> Var:
        """Their means, as one of the inputs holds them: the sums of what is left cancel."""
        values = rows.tensor.values.astype(np.float64)
        return self.t.constant(values.mean(-1, keepdims=True))

    def loss_of(self, logits: Var, classes: int) -> Var:
        """Cross entropy; with `energy` around such an offset, as log likelihoods have; their mean for a log file."""
        low = self.options["energy"]
        if low:
            scores = self.t("add", self.t("mul", logits, 2.0), low)
            self.t("mean", self.t.detached(scores), dim=-1)
            scores = self.t("mul", scores, 1.001)
            logits = self.t("mul", self.t("add", scores, -1.001 * low), 0.5)
        flat = self.t.reshape(logits, -1, classes)
        return self.t("cross_entropy", flat, self.words("labels", flat.shape[0], most=classes))


# Networks to work on


def decoder(net: Net) -> Var:
    """GQA, RoPE, RMS norms and a gated feed-forward layer, as Llama and Qwen have them."""
    s = net.size
    x = net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))

    def layer(x: Var) -> Var:
        h = net.rms_norm("before", x)
        x = net.t("add", x, net.attention("attn", h, h, groups=2, causal=True, rope=True))
        return net.t("add", x, net.feed_forward("mlp", net.rms_norm("after", x), "gated"))

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    x = net.finish(net.rms_norm("norm", x))
    return net.loss_of(net.linear("head", x, WORDS, bias=False), WORDS)


def encoder(net: Net) -> Var:
    """BERT's: positions, layer norms after the residuals, GELU, a pooler with tanh."""
    s = net.size
    x = net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))
    x = net.t("add", x, net.weight("position", s.length, s.width, scale=0.1))
    x = net.dropout(net.layer_norm("norm", x))
    for k in range(s.layers):
        x = net.block(f"layers.{k}", lambda x: encoder_layer(net, x), x)
    first = net.t.part(net.finish(x), (slice(None), 0))
    pooled = net.dropout(net.t("tanh", net.linear("pooler", first, s.width)))
    return net.loss_of(net.linear("classifier", pooled, 5), 5)


def encoder_layer(net: Net, x: Var, act: str = "gelu") -> Var:
    x = net.layer_norm("norm1", net.t("add", x, net.dropout(net.attention("attn", x, x))))
    return net.layer_norm("norm2", net.t("add", x, net.feed_forward("mlp", x, act)))


def residual_conv(net: Net) -> Var:
    """ResNet's: convolution, batch norm, ReLU, a shortcut, a pool."""
    s = net.size
    x = net.normal("image", s.batch, 3, s.length, s.length)
    x = net.t("relu", net.batch_norm("bn", net.conv("stem", x, s.width, bias=False)))
    x = net.t("max_pool2d", x, 2)

    def layer(x: Var) -> Var:
        h = net.t("relu", net.batch_norm("bn1", net.conv("conv1", x, s.width)))
        return net.t("relu", net.t("add", x, net.batch_norm("bn2", net.conv("conv2", h, s.width, bias=False))))

    for k in range(s.layers):
        x = net.block(f"stage.{k}", layer, x)
    x = net.t.reshape(net.t("avg_pool2d", net.finish(x), 1), s.batch, s.width)
    return net.loss_of(net.linear("fc", x, 5), 5)


def experts(net: Net) -> Var:
    """A mixture of four experts, two for each word, as Mixtral routes them."""
    s, count = net.size, 4
    x = net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))

    def layer(x: Var) -> Var:
        h = net.rms_norm("before", x)
        x = net.t("add", x, net.attention("attn", h, h, causal=True, rope=True))
        h = net.t.reshape(net.rms_norm("after", x), -1, s.width)
        return net.t("add", x, net.t.reshape(routed(net, h, count), *x.shape))

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    return net.loss_of(net.linear("head", net.finish(net.rms_norm("norm", x)), WORDS, bias=False), WORDS)


def routed(net: Net, h: Var, count: int) -> Var:
    if net.is_on("near_ties"):
        w = net.weights.get(f"{net.t.scope}.router.weight", (count, h.shape[-1]), 1.0 / math.sqrt(h.shape[-1]), 0.0)
        if "tied" not in net.weights.values:
            w[2], w[3] = w[0] * (1 + 1e-7), w[1]
            net.weights.values["tied"] = np.ones(1)
    weights = net.t("softmax", net.linear("router", h, count, bias=False), dim=-1)
    best, chosen = net.t("topk", weights, 2)
    best = net.t("div", best, net.t("sum", best, dim=-1, keepdim=True))
    total = net.t.constant(np.zeros(h.shape, np.float32), h.dtype)
    for k in range(count):
        row, place = np.nonzero(chosen.tensor.values == k)
        if not len(row):
            continue
        rows = net.t.constant(row)
        with net.t.inside(f"experts.{k}"):
            y = net.feed_forward("mlp", net.t("index_select", h, 0, rows), "gated")
            share = net.t.part(best, (row, place, None))
            total = net.t("index_add", total, 0, rows, net.t("mul", y, share))
    return total


def unet(net: Net) -> Var:
    """A U-Net with group norms and SiLU: down, through, up, with the way across."""
    s = net.size
    x = net.conv("in", net.normal("image", s.batch, 3, s.length, s.length), s.width)

    def residual(x: Var) -> Var:
        h = net.conv("conv1", net.silu(net.group_norm("norm1", x)), x.shape[1])
        return net.t("add", x, net.conv("conv2", net.silu(net.group_norm("norm2", h)), x.shape[1]))

    skips: list[Var] = []
    depth = min(s.layers, int(math.log2(s.length)) - 1)  # so that no norm is over two or three values
    for k in range(depth):
        x = net.block(f"down.{k}", residual, x)
        skips.append(x)
        x = net.conv(f"narrow{k}", x, s.width, stride=2)
    x = net.block("middle.0", residual, x)
    for k in range(depth):
        x = net.t("cat", net.t("interpolate", x, scale_factor=2), skips.pop(), dim=1)
        x = net.block(f"up.{k}", residual, net.conv(f"join{k}", x, s.width, kernel=1))
    x = net.conv("out", net.silu(net.group_norm("norm", net.finish(x))), 3)
    return net.t("mse_loss", x, net.normal("noise", *x.shape))


# Networks to report by


def encoder_decoder(net: Net) -> Var:
    """T5's: an encoder, a decoder that attends to it, ReLU."""
    s = net.size
    table = net.weight("embed.weight", WORDS, s.width, scale=0.5)
    memory = encoded(net, net.t("embedding", net.words("source", s.batch, s.length), table))
    return decoded(net, net.t("embedding", net.words("ids", s.batch, s.length), table), memory)


def encoded(net: Net, x: Var) -> Var:
    for k in range(net.size.layers):
        x = net.block(f"encoder.{k}", lambda x: encoder_layer(net, x, "relu"), x)
    return net.layer_norm("encoder_norm", x)


def decoded(net: Net, x: Var, memory: Var) -> Var:
    def layer(x: Var) -> Var:
        h = net.layer_norm("norm1", x)
        x = net.t("add", x, net.attention("self", h, h, causal=True))
        x = net.t("add", x, net.attention("cross", net.layer_norm("norm2", x), memory))
        return net.t("add", x, net.feed_forward("mlp", net.layer_norm("norm3", x), "relu"))

    for k in range(net.size.layers):
        x = net.block(f"decoder.{k}", layer, x)
    return net.loss_of(net.linear("head", net.finish(net.layer_norm("norm", x)), WORDS), WORDS)


def mobile(net: Net) -> Var:
    """EfficientNet's: pointwise, depthwise, squeeze and excitation, SiLU."""
    s = net.size
    x = net.silu(
        net.batch_norm("bn", net.conv("stem", net.normal("image", s.batch, 3, s.length, s.length), s.width, stride=2))
    )

    def layer(x: Var) -> Var:
        h = net.silu(net.batch_norm("bn1", net.conv("expand", x, 2 * s.width, kernel=1, bias=False)))
        h = net.silu(net.batch_norm("bn2", net.conv("depthwise", h, 2 * s.width, groups=2 * s.width, bias=False)))
        squeezed = net.t("avg_pool2d", h, 1)
        gate = net.conv("excite", net.t("relu", net.conv("squeeze", squeezed, 4, kernel=1)), 2 * s.width, kernel=1)
        h = net.t("mul", h, net.t("sigmoid", gate))
        return net.t("add", x, net.batch_norm("bn3", net.conv("project", h, s.width, kernel=1, bias=False)))

    for k in range(s.layers):
        x = net.block(f"stage.{k}", layer, x)
    x = net.t.reshape(net.t("avg_pool2d", net.finish(x), 1), s.batch, s.width)
    return net.loss_of(net.linear("fc", x, 5), 5)


def recurrent(net: Net) -> Var:
    """A GRU over a few words, the same weights at every one."""
    s = net.size
    words = net.t(
        "embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5)
    )
    h = net.t.constant(np.zeros((s.batch, s.width), np.float32), words.dtype)

    def cell(x: Var, h: Var) -> Var:
        a, b = net.linear("input", x, 3 * s.width), net.linear("state", h, 3 * s.width)
        xs, hs = ([net.t.part(y, (..., slice(k * s.width, (k + 1) * s.width))) for k in range(3)] for y in (a, b))
        reset = net.t("sigmoid", net.t("add", xs[0], hs[0]))
        keep = net.t("sigmoid", net.t("add", xs[1], hs[1]))
        new = net.t("tanh", net.t("add", xs[2], net.t("mul", reset, hs[2])))
        return net.t("add", new, net.t("mul", keep, net.t("sub", h, new)))

    with net.t.inside("gru"):
        for k in range(min(4 + s.layers, s.length)):
            h = cell(net.t.part(words, (slice(None), k)), h)
    return net.loss_of(net.linear("head", net.finish(h), WORDS), WORDS)


def towers(net: Net) -> Var:
    """Two towers, as CLIP has them: words and an image to one space, every pair of the batch against each other."""
    s = net.size
    words = net.t(
        "embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5)
    )
    text = net.block("text.0", lambda x: encoder_layer(net, x), words)
    text = net.linear("text_out", net.t("mean", net.finish(text), dim=1), s.width, bias=False)
    x = net.conv("patches", net.normal("image", s.batch, 3, s.length, s.length), s.width, stride=2)
    x = net.t("relu", net.group_norm("image_norm", x))
    x = net.t.reshape(net.t("avg_pool2d", x, 1), s.batch, s.width)
    image = net.linear("image_out", x, s.width, bias=False)
    text, image = unit(net, text), unit(net, image)
    heat = net.t("exp", net.weight("scale", 1, offset=1.0))
    logits = net.t("mul", net.t("matmul", text, net.t.transpose(image, 1, 0)), heat)
    return net.loss_of(logits, s.batch)


def unit(net: Net, x: Var) -> Var:
    return net.t("mul", x, net.t("rsqrt", net.t("add", net.t("sum", net.square(x), dim=-1, keepdim=True), 1e-6)))


class Kind(NamedTuple):
    """A network, and whether its length is that of a sentence or the edge of an image."""

    build: Callable[[Net], Var]
    image: bool
    features: Sequence[str]  # options that make sense in it


OPEN = {
    "decoder": Kind(
        decoder, False, ("attention", "norm", "square", "scale", "act", "rope", "linear", "rope_base", "rope_layout")
    ),
    "encoder": Kind(encoder, False, ("attention", "qkv", "linear", "scale", "gelu", "dropout", "approximate")),
    "residual_conv": Kind(residual_conv, True, ()),
    "experts": Kind(experts, False, ("attention", "norm", "square", "scale", "act", "near_ties", "qkv", "rope")),
    "unet": Kind(unet, True, ("act",)),
}
HELD = {
    "encoder_decoder": Kind(encoder_decoder, False, ("attention", "qkv", "linear", "scale", "dropout")),
    "mobile": Kind(mobile, True, ("act",)),
    "recurrent": Kind(recurrent, False, ("linear",)),
    "towers": Kind(towers, True, ("attention", "qkv", "square", "scale", "gelu")),
}
NETWORKS = {**OPEN, **HELD}
GENERATED: dict[str, Kind] = {}  # networks of the pair search, which draws their size and depth


# Networks over two ranks


def tensor_parallel(nets: Sequence[Net]) -> list[Var]:
    """A feed-forward network whose inner width is split over the ranks, as Megatron does it."""
    tapes, s = [net.t for net in nets], nets[0].size
    xs = [
        net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))
        for net in nets
    ]
    for k in range(s.layers + 1):
        hs = ranks.spread(tapes, [net.rms_norm(f"norm{k}", x) for net, x in zip(nets, xs)])
        hs = [net.silu(net.linear(f"column{k}.rank{r}", h, s.width)) for r, (net, h) in enumerate(zip(nets, hs))]
        if k == 0:
            hs = ranks.spread(
                tapes, [net.linear(f"inner{k}", h, s.width) for net, h in zip(nets, ranks.gathered(tapes, hs))]
            )
        hs = ranks.summed(
            tapes, [net.linear(f"row{k}.rank{r}", h, s.width, bias=False) for r, (net, h) in enumerate(zip(nets, hs))]
        )
        xs = [net.t("add", x, h) for net, x, h in zip(nets, xs, hs)]
    return [net.loss_of(net.linear("head", x, WORDS), WORDS) for net, x in zip(nets, xs)]


def pipeline(nets: Sequence[Net]) -> list[Var]:
    """Layers of an encoder on the first rank, the rest on the second."""
    first, second = nets
    s = first.size
    x = first.t(
        "embedding", first.words("ids", s.batch, s.length), first.weight("embed.weight", WORDS, s.width, scale=0.5)
    )
    for k in range(s.layers):
        x = first.block(f"layers.{k}", lambda x: encoder_layer(first, x), x)
    x = ranks.transfer(first.t, second.t, x)
    for k in range(s.layers):
        x = second.block(f"layers.{k + s.layers}", lambda x: encoder_layer(second, x), x)
    return [second.loss_of(second.linear("head", x, WORDS), WORDS)]


def pipeline_encoder_decoder(nets: Sequence[Net]) -> list[Var]:
    """The encoder on the first rank, the decoder on the second."""
    first, second = nets
    s = first.size
    table = first.weight("embed.weight", WORDS, s.width, scale=0.5)
    memory = encoded(first, first.t("embedding", first.words("source", s.batch, s.length), table))
    memory = ranks.transfer(first.t, second.t, memory)
    table = second.weight("embed.weight", WORDS, s.width, scale=0.5)
    return [decoded(second, second.t("embedding", second.words("ids", s.batch, s.length), table), memory)]


TOGETHER = {  # open network, held network
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
    "pipeline_encoder_decoder": pipeline_encoder_decoder,
}
