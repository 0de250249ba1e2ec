"""Networks of the second generation, with what users' runs have: fused kernels without a record, layers that are
computed again, casts up from 16 bits, caches of keys and values, states of recurrent cells, seeds that are declared."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from tests.corpus import ranks
from tests.corpus.networks import WORDS, Kind, Net, Size, Weights, encoder, encoder_decoder
from tests.corpus.tape import Tape, Var

DEFAULTS: dict[str, Any] = {
    "cast_up": False,  # norms, softmaxes and losses in float32, by casts, whatever the type of the weights
    "unrecorded": (),  # kernels that leave no record: "attention", "norm" (with the residual before it), "swiglu"
    "by_step": False,  # a decoder writes each word in a step of its own
    "seed_told": "",  # how a dropout tells its seed: "argument", "mask" (an input), or not at all
    "seed": 0,  # planted: another one
    "again_seed": 0,  # planted: another one when a layer is computed again
    "rope_start": 0,  # planted: the position of the first word
    "kernel_fault": None,  # planted: what becomes of what a kernel without a record writes
}


class SecondNet(Net):
    """A Net with the options of DEFAULTS as well. `checkpoint` computes a layer again under the same faults, and the
    way back uses what that left."""

    def __init__(self, tape: Tape, weights: Weights, size: Size, options: Mapping[str, Any], batch_seed: int):
        super().__init__(tape, weights, size, {**DEFAULTS, **options}, batch_seed)
        self._states: dict[str, Var] = {}

    def fused(self, name: str) -> AbstractContextManager[None]:
        return self.t.unrecorded() if name in self.options["unrecorded"] else nullcontext()

    def leave(self, name: str, x: Var) -> Var:
        """What a fused kernel writes, with what was planted in kernels without a record."""
        fault = self.options["kernel_fault"]
        if fault is None or name not in self.options["unrecorded"]:
            return x
        return self.t.view(x, lambda v: fault(v.astype(np.float64)).astype(v.dtype), lambda g: g)

    def _again(self, name: str, body: Callable[[Var], Var], x: Var, span: list[int], dropouts: int) -> None:
        nodes, kept = self.t.session.nodes, len(self.t.session.nodes)
        first = nodes[span[0] : span[1]]
        self.t.session.expect_again(first)
        after, self._dropouts, self._is_again = self._dropouts, dropouts, True
        with self.t.inside(name):
            body(self.t.detached(x))
        self._dropouts, self._is_again = after, False
        for one, again in zip(first, nodes[kept:]):
            one.call, one.keywords = again.call, again.keywords
            for left, new in zip(one.outputs, again.outputs):
                left.tensor = replace(new.tensor, needs_grad=left.tensor.needs_grad)
        del nodes[kept:]

    # Casts

    def up(self, x: Var) -> Var:
        return self.t("to", x, "torch.float32") if self.options["cast_up"] else x

    def down(self, x: Var, like: Var) -> Var:
        return self.t("to", x, f"torch.{like.dtype}") if self.options["cast_up"] else x

    def rms_norm(self, name: str, x: Var) -> Var:
        if not self.options["cast_up"]:
            return super().rms_norm(name, x)

        def body(x: Var) -> Var:
            wide = self.up(x)
            scale = self.t("rsqrt", self.t("add", self.t("mean", self.square(wide), dim=-1, keepdim=True), 1e-6))
            return self.t(
                "mul", self.down(self.t("mul", wide, scale), x), self.weight("weight", x.shape[-1], offset=1.0)
            )

        return self.t.module(name, "RMSNorm", body, x)

    def loss_of(self, logits: Var, classes: int) -> Var:
        return super().loss_of(self.up(logits), classes)

    # Layers

    def residual_norm(self, name: str, x: Var, y: Var) -> tuple[Var, Var]:
        """x + y and its norm, in one kernel or in two operators."""
        with self.fused("norm"):
            with self.t.inside(f"{name}_residual"):
                x = self.t("add", x, y)
            return x, self.leave("norm", self.rms_norm(name, x))

    def swiglu(self, name: str, x: Var) -> Var:
        with self.t.inside(name):
            gate, up = (self.linear(which, x, 2 * x.shape[-1], bias=False) for which in ("gate", "up"))
            with self.fused("swiglu"):
                h = self.leave("swiglu", self.t("mul", self.silu(gate), up))
            return self.linear("down", h, x.shape[-1], bias=False)

    def dropout(self, x: Var) -> Var:
        self._dropouts += 1
        p, told = self.options["dropout"], self.options["seed_told"]
        if not p:
            return x
        seed = 1000 * self.batch_seed + self._dropouts + 333 * self.options["seed"]
        seed += 777 * self.options["again_seed"] if self._is_again else 0
        if told == "mask":
            kept = np.random.RandomState(seed).random_sample(x.shape) >= p
            return self.t("mul", x, self.t.constant(kept.astype(np.float32) / (1.0 - p), x.dtype))
        if told == "argument":
            return self.t("dropout", x, p, True, philox_seed=seed)
        return self.t("dropout", x, p, True, seed=seed)

    def _weights(self, q: Var, k: Var, causal: bool, mask: Any) -> Var:
        scores = self.t("matmul", q, self.t.transpose(k, 0, 1, 3, 2))
        scores = self.t("mul", scores, 1.0 / math.sqrt(q.shape[-1]))
        rows, columns = scores.shape[-2:]
        hidden = ~np.tri(rows, columns, columns - rows, dtype=bool) if causal else ~mask.tensor.values
        value = self.options["mask"]
        if value == "lowest":
            value = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38}.get(scores.dtype, -3.4028234663852886e38)
        scores = self.t("masked_fill", scores, self.t.constant(hidden), value)
        return self.dropout(self.down(self.t("softmax", self.up(scores), dim=-1), scores))

    def _rope(self, x: Var, start: int = 0) -> Var:
        n, d = x.shape[-2:]
        places = np.arange(n)[:, None] + start + self.options["rope_start"]
        angles = places * self.options["rope_base"] ** -(np.arange(0, d, 2) / d)
        wide = np.concatenate([angles, angles], -1)
        run = self.t.hidden if self.is_on("rope", "hidden") else self.t
        return run("rope", x, self.t.constant(np.cos(wide), x.dtype), self.t.constant(np.sin(wide), x.dtype))

    def attention(
        self, name: str, x: Var, memory: Var, groups: int = 1, causal: bool = False, rope: bool = False, cache: str = ""
    ) -> Var:
        """cache: "" for none, "grown" for one that is joined to the new keys, "static" for one of a fixed length."""
        with self.t.inside(name):
            heads, width = self.size.heads, x.shape[-1]
            each = width // heads
            q = self.linear("query", x, width)
            k, v = (self.linear(which, memory, heads // groups * each) for which in ("key", "value"))
            q, k, v = (self._heads(one, each) for one in (q, k, v))
            mask: Any = None if causal else self._padding(x.shape[0], q.shape[2], k.shape[2])
            start = self.cached() if cache else 0
            if rope:
                q, k = self._rope(q, start), self._rope(k, start)
            if cache:
                join = self._grown if cache == "grown" else self._static
                k, v = join("keys", k), join("values", v)
            if groups > 1:
                k, v = (self.t.repeated(one, groups) for one in (k, v))
            with self.fused("attention"):
                y = self.t("matmul", self._weights(q, k, causal, mask), v)
            y = self.t.transpose(y, 0, 2, 1, 3)
            y = self.unseen(self.leave("attention", self.t.reshape(y, x.shape[0], -1, width)))
            return self.linear("output", y, width)

    # States

    def state(self, name: str) -> Optional[np.ndarray]:
        """What an earlier step left."""
        return self.weights.values.get(f"{self.t.scope}.{name}")

    def keep(self, name: str, x: Var) -> None:
        self.weights.values[f"{self.t.scope}.{name}"] = x.tensor.values.astype(np.float64)

    def cached(self) -> int:
        """How many words a cache holds."""
        kept = self.state("count")
        return 0 if kept is None else int(kept[0])

    def _before(self, name: str, like: Var) -> Optional[Var]:
        path = f"{self.t.scope}.{name}"
        if path in self._states:
            return self._states[path]
        kept = self.state(name)
        return None if kept is None else self.t.constant(kept, like.dtype)

    def _left(self, name: str, x: Var, new: int) -> Var:
        self._states[f"{self.t.scope}.{name}"] = x
        self.keep(name, x)
        if name == "values":
            self.weights.values[f"{self.t.scope}.count"] = np.array([self.cached() + new], float)
        return x

    def _grown(self, name: str, new: Var) -> Var:
        """(batch, heads, words, width) of the words before and of the new ones."""
        before = self._before(name, new)
        whole = new if before is None else self.t("cat", before, new, dim=2)
        return self._left(name, whole, new.shape[2])

    def _static(self, name: str, new: Var) -> Var:
        """Rows written at their places of a cache of (words, batch, heads, width); what is read of it so far."""
        start, count = self.cached(), new.shape[2]
        b, h, _, d = new.shape
        before = self._before(name, new)
        if before is None:
            before = self.t.constant(np.zeros((CACHE * self.size.length, b, h, d), np.float32), new.dtype)
        rows = self.t.transpose(new, 2, 0, 1, 3)
        whole = self._left(name, self.t("setitem", before, np.arange(start, start + count), rows), count)
        return self.t.transpose(self.t.part(whole, slice(0, start + count)), 1, 2, 0, 3)


CACHE = 3  # lengths of a prompt that a static cache holds


# Networks to work on


def llama(net: Any) -> Var:
    """A decoder as Llama's, each residual joined to the norm behind it."""
    s = net.size
    x = net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))

    def layer(x: Var) -> Var:
        h = net.rms_norm("before", x)
        x, h = net.residual_norm("after", x, net.attention("attn", h, h, groups=2, causal=True, rope=True))
        y = net.dropout(net.swiglu("mlp", h))
        with net.t.inside("last_residual"):
            return net.t("add", x, y)

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    return net.loss_of(net.linear("head", net.rms_norm("norm", x), WORDS, bias=False), WORDS)


def generate(net: Any) -> None:
    """A decoder that reads a prompt and goes on word by word, with a cache that grows."""
    _written(net, _cached_layer)


def _written(net: Any, layer: Callable[[Any, Var], Var]) -> None:
    """The prompt and three words, in one step; or the prompt in the first step and a word in each later one."""
    step = net.t.session.step
    passes = [step] if net.options["by_step"] else range(4)
    for k in passes:
        count = net.size.length if k == 0 else 1
        ids = net.words(f"ids{k}", net.size.batch, count)
        x = net.t("embedding", ids, net.weight("embed.weight", WORDS, net.size.width, scale=0.5))
        for n in range(net.size.layers):
            x = net.block(f"layers.{n}", lambda x: layer(net, x), x)
        logits = net.linear("head", net.t.part(x, (slice(None), slice(-1, None))), WORDS, bias=False)
        net.t("softmax", net.up(logits), dim=-1)


def _cached_layer(net: Any, x: Var) -> Var:
    h = net.rms_norm("before", x)
    x, h = net.residual_norm("after", x, net.attention("attn", h, h, groups=2, causal=True, rope=True, cache="grown"))
    y = net.swiglu("mlp", h)
    with net.t.inside("last_residual"):
        return net.t("add", x, y)


def lstm(net: Any) -> Var:
    """Two LSTM layers over several words, each cell in its elementary calls."""
    s = net.size
    words = net.t(
        "embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5)
    )
    xs = [net.t.part(words, (slice(None), k)) for k in range(min(5, s.length))]
    for layer in range(min(2, s.layers)):
        zero = np.zeros((s.batch, s.width), np.float32)
        h, c = net.t.constant(zero, words.dtype), net.t.constant(zero, words.dtype)
        with net.t.inside(f"lstm.{layer}"):
            for k, x in enumerate(xs):
                h, c = _lstm_cell(net, x, h, c)
                xs[k] = h
    return net.loss_of(net.linear("head", net.t("cat", *xs, dim=0), WORDS), WORDS)


def _lstm_cell(net: Any, x: Var, h: Var, c: Var) -> tuple[Var, Var]:
    n = net.size.width
    gates = net.t("add", net.linear("input", x, 4 * n), net.linear("state", h, 4 * n, bias=False))
    i, f, g, o = (net.t.part(gates, (..., slice(k * n, (k + 1) * n))) for k in range(4))
    i, f, o = (net.t("sigmoid", one) for one in (i, f, o))
    c = net.t("add", net.t("mul", f, c), net.t("mul", i, net.t("tanh", g)))
    return net.t("mul", o, net.t("tanh", c)), c


# Networks to report by


def static_cache(net: Any) -> None:
    """GPT's layers, writing word by word into a cache of a fixed length."""

    def layer(net: Any, x: Var) -> Var:
        h = net.layer_norm("norm1", x)
        x = net.t("add", x, net.attention("attn", h, h, causal=True, cache="static"))
        return net.t("add", x, net.feed_forward("mlp", net.layer_norm("norm2", x), "gelu"))

    _written(net, layer)


def gru_state(net: Any) -> Var:
    """A GRU whose state goes on from one step of training to the next."""
    s = net.size
    words = net.t(
        "embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5)
    )
    with net.t.inside("gru"):
        kept = net.state("state")
        h = net.t.constant(np.zeros((s.batch, s.width), np.float32) if kept is None else kept, words.dtype)
        for k in range(min(5, s.length)):
            h = _gru_cell(net, net.t.part(words, (slice(None), k)), h)
        net.keep("state", h)
    h = net.dropout(net.layer_norm("norm", h))
    return net.loss_of(net.linear("head", h, WORDS), WORDS)


def _gru_cell(net: Any, x: Var, h: Var) -> Var:
    n = net.size.width
    a, b = net.linear("input", x, 3 * n), net.linear("state", h, 3 * n)
    xs, hs = ([net.t.part(y, (..., slice(k * n, (k + 1) * n))) for k in range(3)] for y in (a, b))
    reset = net.t("sigmoid", net.t("add", xs[0], hs[0]))
    update = net.t("sigmoid", net.t("add", xs[1], hs[1]))
    new = net.t("tanh", net.t("add", xs[2], net.t("mul", reset, hs[2])))
    return net.t("add", net.t("mul", net.t("sub", new, h), update), h)


# Over two ranks


def tp_decoder(nets: Sequence[Any]) -> list[Var]:
    """A decoder layer whose heads and inner width are split over the ranks, and whose residuals join the norms."""
    tapes, s = [net.t for net in nets], nets[0].size
    half = s.width // 2
    xs = [
        net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))
        for net in nets
    ]
    for k in range(min(2, s.layers)):
        hs = ranks.spread(tapes, [net.rms_norm(f"before{k}", x) for net, x in zip(nets, xs)])
        ys = [_split_attention(net, f"attn{k}.rank{r}", h, half) for r, (net, h) in enumerate(zip(nets, hs))]
        ys = ranks.summed(
            tapes, [net.linear(f"out{k}.rank{r}", y, s.width, bias=False) for r, (net, y) in enumerate(zip(nets, ys))]
        )
        pairs = [net.residual_norm(f"after{k}", x, y) for net, x, y in zip(nets, xs, ys)]
        xs, hs = [one for one, _ in pairs], ranks.spread(tapes, [h for _, h in pairs])
        ys = ranks.summed(tapes, [net.swiglu(f"mlp{k}.rank{r}", h) for r, (net, h) in enumerate(zip(nets, hs))])
        xs = [net.t("add", x, y) for net, x, y in zip(nets, xs, ys)]
    return [net.loss_of(net.linear("head", net.rms_norm("norm", x), WORDS), WORDS) for net, x in zip(nets, xs)]


def _split_attention(net: Any, name: str, x: Var, width: int) -> Var:
    with net.t.inside(name):
        each = width // max(1, net.size.heads // 2)
        q, k, v = (net._heads(net.linear(which, x, width), each) for which in ("query", "key", "value"))
        with net.fused("attention"):
            y = net.t("matmul", net._weights(q, k, True, None), v)
        return net.leave("attention", net.t.reshape(net.t.transpose(y, 0, 2, 1, 3), x.shape[0], -1, width))


OPEN2 = {
    "llama": Kind(llama, False, ("attention", "norm", "swiglu", "rope", "dropout", "layers", "length", "training")),
    "generate": Kind(generate, False, ("attention", "norm", "swiglu", "rope", "cache")),
    "lstm": Kind(lstm, False, ("length", "training")),
    "encoder": Kind(encoder, False, ("attention", "dropout", "layers", "training")),
}
HELD2 = {
    "static_cache": Kind(static_cache, False, ("attention", "cache")),
    "gru_state": Kind(gru_state, False, ("dropout", "length", "training")),
    "encoder_decoder": Kind(encoder_decoder, False, ("attention", "dropout", "layers", "length", "training")),
}
SECOND_NETWORKS = {
    name: kind for name, kind in {**OPEN2, **HELD2}.items() if name not in ("encoder", "encoder_decoder")
}
SECOND_TOGETHER = {"tp_decoder": tp_decoder}
