"""Networks and kinds of fault that no rule was tuned on, for the domain `unseen`: of its pairs nobody looks at single
cases, neither here nor in a report; the sheet is all that there is."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from tests.corpus.device import LARGEST, ROUND_OFF, TINY, Arithmetic, Array, rounded
from tests.corpus.faults import Fault, Made, Random, Site, of, on_output, size
from tests.corpus.networks import WORDS, Kind
from tests.corpus.operators import NORMS, OPERATORS
from tests.corpus.tape import Plant, Var

# Networks


def state_space(net: Any) -> Var:
    """Mamba's: a gated layer whose state decays and takes in each word by steps that depend on it."""
    s = net.size
    x = net.t("embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5))

    def layer(x: Var) -> Var:
        h = net.rms_norm("norm", x)
        u, gate = net.linear("in", h, s.width, bias=False), net.linear("gate", h, s.width, bias=False)
        rates = net.t("sigmoid", net.linear("rate", u, s.width))
        decay = net.t("exp", net.t("mul", rates, -1.0))
        inward = net.t("mul", rates, net.linear("B", u, s.width, bias=False))
        outward = net.linear("C", u, s.width, bias=False)
        state = net.t.constant(np.zeros((s.batch, s.width), np.float32), u.dtype)
        ys = []
        for k in range(min(5, s.length)):
            at = (slice(None), k)
            state = net.t("add", net.t("mul", net.t.part(decay, at), state), net.t.part(inward, at))
            ys.append(net.t.reshape(net.t("mul", state, net.t.part(outward, at)), s.batch, 1, s.width))
        y = net.t("cat", *ys, dim=1)
        seen = (slice(None), slice(0, len(ys)))
        y = net.t("mul", y, net.silu(net.t.part(gate, seen)))
        return net.t("add", net.t.part(x, seen), net.linear("out", y, s.width, bias=False))

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    return net.loss_of(net.linear("head", net.rms_norm("norm", x), WORDS, bias=False), WORDS)


def message_passing(net: Any) -> Var:
    """A network over a graph: each edge computes a message from its two ends, each node adds up what arrives."""
    s, nodes = net.size, net.size.batch * net.size.length
    draw = net.draw("edges")
    source, sink = (draw.randint(0, nodes, 2 * nodes) for _ in range(2))
    x = net.linear("in", net.normal("nodes", nodes, s.width), s.width)
    degree = np.maximum(1.0, np.bincount(sink, minlength=nodes))[:, None]

    def layer(x: Var) -> Var:
        ends = [net.t("index_select", x, 0, net.t.constant(one)) for one in (source, sink)]
        message = net.t("relu", net.linear("message", net.t("cat", *ends, dim=1), s.width))
        total = net.t.constant(np.zeros((nodes, s.width), np.float32), message.dtype)
        total = net.t("index_add", total, 0, net.t.constant(sink), message)
        mean = net.t("div", total, net.t.constant(degree))
        h = net.linear("update", net.t("cat", x, mean, dim=1), s.width)
        return net.layer_norm("norm", net.t("add", x, net.t("tanh", h)))

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    return net.loss_of(net.linear("classifier", x, 5), 5)


def diffusion_transformer(net: Any) -> Var:
    """DiT's: patches of a noisy image, layers whose norms are shifted and scaled by what the time says."""
    s = net.size
    image = net.normal("image", s.batch, 3, s.length, s.length)
    x = net.conv("patches", image, s.width, stride=2)
    count = x.shape[2] * x.shape[3]
    x = net.t.transpose(net.t.reshape(x, s.batch, s.width, count), 0, 2, 1)
    x = net.t("add", x, net.weight("position", count, s.width, scale=0.1))
    time = net.silu(net.linear("time", net.normal("time", s.batch, 8), s.width))

    def layer(x: Var) -> Var:
        both = net.t.reshape(net.linear("modulation", time, 2 * s.width), s.batch, 1, 2 * s.width)
        shift, scale = (net.t.part(both, (..., slice(k * s.width, (k + 1) * s.width))) for k in range(2))
        h = net.layer_norm("norm1", x)
        h = net.t("add", net.t("mul", h, net.t("add", scale, 1.0)), shift)
        x = net.t("add", x, net.attention("attn", h, h))
        return net.t("add", x, net.feed_forward("mlp", net.layer_norm("norm2", x), "gelu"))

    for k in range(s.layers):
        x = net.block(f"layers.{k}", layer, x)
    x = net.linear("out", net.layer_norm("norm", x), 12)
    return net.t("mse_loss", x, net.normal("noise", *x.shape))


UNSEEN_NETWORKS = {
    "state_space": Kind(state_space, False, ("training", "length")),
    "message_passing": Kind(message_passing, False, ("layers", "training", "length")),
    "diffusion_transformer": Kind(diffusion_transformer, True, ("attention", "layers", "training")),
}


# Kinds of fault


def bit_flip(site: Site, r: Random) -> Plant:
    """One bit of one element: the sign, the last of the exponent, or one of the first of the fraction."""
    at, factor = r.random_sample(), float(r.choice([-1.0, 2.0, 0.5, 1.5, 1.25]))

    def change(y: Array) -> Array:
        flat = y.reshape(-1)
        flat[np.argsort(-np.abs(flat), kind="stable")[int(at * 0.3 * y.size)]] *= factor
        return y

    return Made(site, outputs=on_output(change))


def sign_lost(site: Site, r: Random) -> Plant:
    """One channel without its signs."""
    at = r.random_sample()

    def change(y: Array) -> Array:
        place = int(at * y.shape[-1])
        y[..., place] = np.abs(y[..., place])
        return y

    return Made(site, outputs=on_output(change))


def swapped_channels(site: Site, r: Random) -> Plant:
    at = r.random_sample()

    def change(y: Array) -> Array:
        place = int(at * (y.shape[-1] - 1))
        y[..., [place, place + 1]] = y[..., [place + 1, place]]
        return y

    return Made(site, outputs=on_output(change))


def counted_twice(site: Site, r: Random) -> Plant:
    """The last terms of a product's sums, which two blocks of a kernel both add."""
    count = int(r.choice([1, 2, 4]))

    def inputs(v: list[Any], k: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        x = v[0].copy()
        x[..., -count:] *= 2.0
        return [x, *v[1:]], k

    return Made(site, inputs=inputs)


def rounded_up(site: Site, r: Random) -> Plant:
    """Roundings upwards, all of them."""
    assert site.out is not None
    dtype = site.out.dtype

    def change(y: Array) -> Array:
        near = rounded(y, dtype)
        step = np.maximum(np.abs(near) * ROUND_OFF[dtype] * 1.5, 2 * TINY[dtype] * ROUND_OFF[dtype])
        return np.where(near < y, np.minimum(rounded(near + step, dtype), LARGEST[dtype]), near)

    return Made(site, outputs=on_output(change))


def unbiased_variance(site: Site, r: Random) -> Plant:
    """A norm that divides by one less than it has values."""
    assert site.out is not None
    count = site.out.values.shape[-1]
    kind = site.address.kind

    def formula(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
        right = OPERATORS[kind].forward(a, *v, **k)
        bias = v[3] if kind == "layer_norm" else 0.0
        return [a.r((right - bias) * np.sqrt((count - 1) / count) + bias)]

    return Made(site, formula=formula)


def base_two(site: Site, r: Random) -> Plant:
    """A softmax of powers of two, without the factor that makes them powers of e."""

    def formula(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
        return [OPERATORS["softmax"].forward(a, v[0] * np.log(2.0))]

    return Made(site, formula=formula)


def clipped_gradient(site: Site, r: Random) -> Plant:
    """A gradient cut off at a share of its largest value."""
    share = r.uniform(0.3, 0.9)

    def change(y: Array) -> Array:
        most = share * np.abs(y).max()
        return np.clip(y, -most, most)

    return Made(site, outputs=on_output(change))


def samples_mixed(site: Site, r: Random) -> Plant:
    """A little of the first sample in the last one."""
    share = abs(size(r, 3.0, 0.6))

    def change(y: Array) -> Array:
        y[-1] = (1.0 - share) * y[-1] + share * y[0]
        return y

    return Made(site, outputs=on_output(change))


def lost_update(site: Site, r: Random) -> Plant:
    """Rows added by threads that do not wait for each other: of those to one place the last one stays."""

    def formula(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
        if site.is_forward:
            found = v[0].copy()
            found[v[2]] = v[0][v[2]] + v[3]
            return [a.r(found)]
        g, index, shape = _scattered(site.address.kind, v)
        found = np.zeros(shape)
        found[index.reshape(-1)] = g.reshape(-1, shape[-1])
        return [None, a.r(found)] if site.address.kind == "embedding" else [a.r(found), None, None]

    return Made(site, formula=formula)


def _scattered(kind: str, v: Sequence[Any]) -> tuple[Array, Array, tuple[int, ...]]:
    """Of a backward: the gradient, the rows that it goes to, the shape of all rows."""
    return (v[0], v[1], v[2].shape) if kind == "embedding" else (v[0], v[3], v[1].shape)


def _forward(site: Site) -> bool:
    op = OPERATORS.get(site.address.kind)
    return site.is_forward and site.out is not None and op is not None and not op.copies


def _matrix(site: Site) -> bool:
    return _forward(site) and site.out.values.ndim > 1 and site.out.values.shape[-1] > 1


def _several(site: Site) -> bool:
    return _matrix(site) and len(site.out.values) > 1


def _clips(site: Site) -> bool:
    op = OPERATORS.get(site.address.kind)
    return site.address.phase == "backward" and op is not None and not op.backward_copies and site.out.values.ndim > 1


def _scatters(site: Site) -> bool:
    if site.is_forward:
        return site.address.kind == "index_add"
    return site.address.kind in ("embedding", "index_select") and site.out is not None


UNSEEN_FAULTS = [
    Fault("bit_flip", bit_flip, _forward),
    Fault("sign_lost", sign_lost, _matrix),
    Fault("swapped_channels", swapped_channels, _matrix),
    Fault("counted_twice", counted_twice, of("linear", "matmul"), weight=1.5),
    Fault("rounded_up", rounded_up, lambda s: _forward(s) and s.out.dtype in ROUND_OFF),
    Fault(
        "unbiased_variance", unbiased_variance, lambda s: of("layer_norm", "rms_norm")(s) and s.address.kind in NORMS
    ),
    Fault("base_two", base_two, of("softmax"), weight=2.0),
    Fault("clipped_gradient", clipped_gradient, _clips),
    Fault("samples_mixed", samples_mixed, _several),
    Fault("lost_update", lost_update, _scatters, weight=2.0),
]
