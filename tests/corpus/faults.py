"""Kinds of fault: where each can strike, and what it does there. One row of FAULTS a kind.

A kind that strikes an operator makes a Plant for one execution of it; one that strikes elsewhere (a weight, the batch,
the optimizer, code that nobody captured) changes the Setting of the run. `held` kinds are not worked on, only reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tests.corpus import ranks
from tests.corpus.device import Arithmetic, Array, other, rounded
from tests.corpus.operators import CONTRACTIONS, NON_SMOOTH, NORMS, OPERATORS, softmax
from tests.corpus.tape import Address, Plant
from tests.corpus.trace import Record, Tensor

Random = np.random.RandomState
NORM_EPS = {"layer_norm": 4, "rms_norm": 3, "group_norm": 4, "batch_norm": 7}  # which of its inputs
TRANSCENDENTAL = ("softmax", "silu", "sigmoid", "tanh", "gelu", "attention", "cross_entropy")


class Site(NamedTuple):
    """An execution that a fault may strike: its address, its record in the clean run, and (backward) its forward's."""

    address: Address
    record: Record
    forward: Optional[Record] = None

    @property
    def is_forward(self) -> bool:
        return self.address.phase == "forward"

    @property
    def out(self) -> Optional[Tensor]:
        """The first output of floats."""
        return next((one for one in self.record.outputs if one is not None and one.values.dtype.kind == "f"), None)

    @property
    def reads(self) -> list[Tensor]:
        return [tensor for _, tensor in self.record.tensors_in]


@dataclass
class Setting:
    """What a run is started with, as far as a fault may change it."""

    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Callable[[Array], Array]] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    all_ranks: bool = False  # whether weights change on every rank of a network that is split over them


class Made(Plant):
    """A fault put together from functions; those left out do nothing."""

    def __init__(
        self,
        site: Site,
        arithmetic: Optional[Callable[[Arithmetic], Arithmetic]] = None,
        inputs: Optional[Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]] = None,
        outputs: Optional[Callable[[list[Any], list[Any]], list[Any]]] = None,
        formula: Optional[Callable[..., list[Any]]] = None,
        dtype: str = "",
        openly: bool = False,
    ):
        super().__init__(site.address)
        self._arithmetic, self._inputs, self._outputs = arithmetic, inputs, outputs
        self.formula, self._dtype, self._openly = formula, dtype, openly

    def arithmetic(self, a: Arithmetic) -> Arithmetic:
        return self._arithmetic(a) if self._arithmetic else a

    def inputs(self, values: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return self._inputs(values, keywords) if self._inputs else (values, keywords)

    def outputs(self, values: list[Any], memory: list[Any]) -> list[Any]:
        return self._outputs(values, memory) if self._outputs else values

    def dtype(self, dtype: str) -> str:
        return self._dtype or dtype

    def items(self, items: list[Any], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """An open fault shows in the record: the arguments are those that the operator was given."""
        if not self._openly or self._inputs is None:
            return items, keywords
        numbers = [item if not isinstance(item, Tensor) else None for item in items]
        given, named = self._inputs(list(numbers), dict(keywords))
        return [item if isinstance(item, Tensor) else new for item, new in zip(items, given)], named


def on_output(change: Callable[[Array], Array]) -> Callable[[list[Any], list[Any]], list[Any]]:
    """A change of the first output of floats."""

    def outputs(values: list[Any], memory: list[Any]) -> list[Any]:
        done = False
        found = []
        for y in values:
            hit = not done and y is not None and np.asarray(y).dtype.kind == "f"
            found.append(change(np.array(y, np.float64)) if hit else y)
            done = done or hit
        return found

    return outputs


def size(r: Random, low: float, high: float) -> float:
    """10 to a power between -low and -high, of either sign."""
    return float(r.choice([-1.0, 1.0]) * 10.0 ** -r.uniform(high, low))


# What strikes the values that an operator writes


def scale(site: Site, r: Random) -> Plant:
    factor = 1.0 + size(r, 4.7, 0.6)
    return Made(site, outputs=on_output(lambda y: y * factor))


def tile(site: Site, r: Random) -> Plant:
    factor = float(r.choice([0.0, 1.02, 1.2, -1.0]))
    share = r.uniform(0.1, 0.4, 2)
    at = r.random_sample(2)

    def change(y: Array) -> Array:
        rows, columns = y.shape[-2:]
        high, wide = max(1, int(rows * share[0])), max(1, int(columns * share[1]))
        top, left = int(at[0] * (rows - high + 1)), int(at[1] * (columns - wide + 1))
        y[..., top : top + high, left : left + wide] *= factor
        return y

    return Made(site, outputs=on_output(change))


def repeated_row(site: Site, r: Random) -> Plant:
    at = r.random_sample()

    def change(y: Array) -> Array:
        row = 1 + int(at * (y.shape[-2] - 1))
        y[..., row, :] = y[..., row - 1, :]
        return y

    return Made(site, outputs=on_output(change))


def stale(site: Site, r: Random) -> Plant:
    def outputs(values: list[Any], memory: list[Any]) -> list[Any]:
        fits = memory and memory[0] is not None and memory[0].shape == np.shape(values[0])
        return [memory[0].astype(np.float64), *values[1:]] if fits else values

    return Made(site, outputs=outputs)


def swapped_heads(site: Site, r: Random) -> Plant:
    def change(y: Array) -> Array:
        y[:, [0, 1]] = y[:, [1, 0]]
        return y

    return Made(site, outputs=on_output(change))


def offset(site: Site, r: Random) -> Plant:
    amount = size(r, 3.0, 0.7)
    return Made(site, outputs=on_output(lambda y: y + amount * math.sqrt(float((y * y).mean()))))


def noise(site: Site, r: Random) -> Plant:
    amount, seed = abs(size(r, 5.5, 1.5)), int(r.randint(1 << 30))
    return Made(site, outputs=on_output(lambda y: y * (1.0 + amount * Random(seed).standard_normal(y.shape))))


def not_a_number(site: Site, r: Random) -> Plant:
    value, at = float(r.choice([np.nan, np.inf, -np.inf])), r.random_sample(int(r.choice([1, 1, 3])))

    def change(y: Array) -> Array:
        y.reshape(-1)[(at * y.size).astype(int)] = value
        return y

    return Made(site, outputs=on_output(change))


def saturated(site: Site, r: Random) -> Plant:
    share = r.uniform(0.9, 0.999)

    def change(y: Array) -> Array:
        most = np.quantile(np.abs(y), share)
        return np.clip(y, -most, most)

    return Made(site, outputs=on_output(change))


def low_values(site: Site, r: Random) -> Plant:
    """Around -1e4, where log likelihoods and energies lie: a wrong factor, or another value for some elements."""
    factor, seed = 1.0 + size(r, 3.5, 2.3), int(r.randint(1 << 30))
    if r.random_sample() < 0.5:
        return Made(site, outputs=on_output(lambda y: y * factor))
    return Made(site, outputs=on_output(lambda y: y * (1.0 + 0.004 * (Random(seed).random_sample(y.shape) - 0.5))))


# What strikes the way that it computes


def narrow_accumulation(site: Site, r: Random) -> Plant:
    kind = str(r.choice(["bfloat16", "float16"]))
    return Made(site, arithmetic=lambda a: a.with_(accumulator=kind))


def remainder(site: Site, r: Random) -> Plant:
    count = int(r.choice([1, 1, 2, 4]))
    return Made(site, arithmetic=lambda a: a.with_(dropped=count))


def truncation(site: Site, r: Random) -> Plant:
    return Made(site, arithmetic=lambda a: a.with_(toward_zero=True))


def flushed(site: Site, r: Random) -> Plant:
    return Made(site, arithmetic=lambda a: a.with_(flush=True))


def weak_function(site: Site, r: Random) -> Plant:
    amount = 2.0 ** -r.uniform(6, 17)
    return Made(
        site,
        arithmetic=lambda a: a.with_(weak=dict.fromkeys(("exp", "erf", "tanh", "sigmoid", "rsqrt", "log"), amount)),
    )


def narrow_operands(site: Site, r: Random) -> Plant:
    kind = str(r.choice(["bfloat16", "float16"]))
    return Made(site, arithmetic=lambda a: a.with_(operands=kind))


def single_hf32(site: Site, r: Random) -> Plant:
    return Made(site, arithmetic=lambda a: a.with_(device=other(a.device, reduced=True)))


def coarser(site: Site, r: Random) -> Plant:
    kind = (
        str(r.choice(["bfloat16", "float16"])) if site.out is not None and site.out.dtype == "float32" else "bfloat16"
    )
    if site.is_forward and r.random_sample() < 0.6:
        return Made(site, dtype=kind)
    return Made(site, outputs=on_output(lambda y: rounded(y, kind)))


# What strikes its arguments


def bias_lost(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: ([*v[:2], None, *v[3:]], k))


def residual(site: Site, r: Random) -> Plant:
    share = float(r.choice([0.0, 0.5, 0.9, 0.99]))
    return Made(site, inputs=lambda v, k: ([v[0], v[1] * share], k))


def transposed(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: ([v[0], np.swapaxes(v[1], -1, -2), *v[2:]], k))


def off_by_one(site: Site, r: Random) -> Plant:
    if site.address.kind == "embedding":
        return Made(site, inputs=lambda v, k: ([(v[0] + 1) % len(v[1]), v[1]], k))
    return Made(site, inputs=lambda v, k: ([v[0], v[1], (v[2] + 1) % len(v[0])], k))


def wrong_eps(site: Site, r: Random) -> Plant:
    factor = 10.0 ** r.randint(1, 5)
    where = {**NORM_EPS, "add": 1}[site.address.kind]
    return Made(
        site, inputs=lambda v, k: ([*v[:where], v[where] * factor, *v[where + 1 :]], k), openly=r.random_sample() < 0.5
    )


def wrong_mask(site: Site, r: Random) -> Plant:
    if site.address.kind == "masked_fill":
        return Made(site, inputs=lambda v, k: ([v[0], np.roll(v[1], 1, -1), v[2]], k))

    def inputs(v: list[Any], k: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return v, {"is_causal": False} if k.get("is_causal") else {"attn_mask": np.roll(k["attn_mask"], 1, -1)}

    return Made(site, inputs=inputs)


def wrong_root(site: Site, r: Random) -> Plant:
    factor = float(r.choice([math.sqrt(2), 1 / math.sqrt(2), 2.0, 1.01]))
    return Made(site, inputs=lambda v, k: ([v[0], v[1] * factor], k), openly=r.random_sample() < 0.5)


def gelu_variant(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: (v, {"approximate": "tanh"}), openly=r.random_sample() < 0.3)


def padding(site: Site, r: Random) -> Plant:
    """All of it on one side."""

    def inputs(v: list[Any], k: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        moved = np.zeros_like(v[0])
        moved[..., 1:, 1:] = v[0][..., :-1, :-1]
        return [moved, *v[1:]], k

    return Made(site, inputs=inputs)


def dropout_scale(site: Site, r: Random) -> Plant:
    p = float(site.record.inputs[1])  # type: ignore[arg-type]
    return Made(site, outputs=on_output(lambda y: y * (1.0 - p)))


# What strikes gradients


def smooth_gradient(site: Site, r: Random) -> Plant:
    """A wrong formula where there is a well-known one to get wrong; else a factor."""
    kind, factor = site.address.kind, 1.0 + size(r, 2.5, 0.6)
    if kind == "softmax":
        return Made(site, formula=lambda a, v, k, y: [a.r(y[0] * v[0])])
    if kind in NORMS:

        def formula(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
            right = OPERATORS[kind].backward(a, v[:1], v[1:], y, k)
            away = a.mean(right[0], tuple(range(1, right[0].ndim)))
            return [a.r(right[0] + 0.1 * (right[0] - away)), *right[1:]]

        return Made(site, formula=formula)
    if kind == "gelu":

        def slope(a: Arithmetic, v: list[Any], k: Any, y: list[Array]) -> list[Any]:
            s = 1.0 / (1.0 + np.exp(-1.702 * v[1]))
            return [a.r(v[0] * (s + 1.702 * v[1] * s * (1 - s)))]

        return Made(site, formula=slope)
    if kind == "silu":
        return Made(site, formula=lambda a, v, k, y: [a.r(v[0] / (1.0 + np.exp(-v[1])))])
    if kind == "cross_entropy" and r.random_sample() < 0.5:
        return Made(site, formula=lambda a, v, k, y: [a.r(softmax(a, v[1]) * v[0] / len(v[1])), None])
    return Made(site, outputs=on_output(lambda y: y * factor))


def non_smooth_gradient(site: Site, r: Random) -> Plant:
    """Of ReLU, pools, masks and dropout: a factor, values that leak, a mask that is another one."""
    way = r.choice(["scale", "scale", "leak", "shift"])
    if way == "scale":
        factor = 1.0 + size(r, 2.2, 0.6)
        return Made(site, outputs=on_output(lambda y: y * factor))
    if way == "leak" and site.address.kind in ("relu", "masked_fill", "where", "dropout"):
        amount, place = abs(size(r, 2.0, 0.5)), 0
        return Made(site, formula=lambda a, v, k, y: _leaking(site, a, v, k, y, amount, place))
    return Made(site, outputs=on_output(lambda y: np.roll(y, 1, -1)))


def _leaking(site: Site, a: Arithmetic, v: list[Any], k: Any, y: list[Array], amount: float, place: int) -> list[Any]:
    right = list(OPERATORS[site.address.kind].backward(a, v[:1], v[1:], y, k))
    g = right[place]
    if g is not None and g.shape == v[0].shape:
        right[place] = np.where(g == 0.0, amount * v[0], g)
    return right


# What strikes between ranks


def missing(site: Site, r: Random) -> Plant:
    return ranks.Skip(site.address)


def lost_contribution(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: (v[:1], k))


def order_of_ranks(site: Site, r: Random) -> Plant:
    return Made(site, inputs=lambda v, k: (v[::-1], k))


# What strikes elsewhere


def uncaptured(setting: Setting, r: Random) -> None:
    factor, way = 1.0 + size(r, 3.5, 0.6), r.choice(["scale", "row", "noise"])
    seed = int(r.randint(1 << 30))

    def change(v: Array) -> Array:
        if way == "scale":
            return v * factor
        if way == "row":
            v = v.copy()
            v[..., v.shape[-1] // 3] *= 1.5
            return v
        return v * (1.0 + abs(factor - 1.0) * Random(seed).standard_normal(v.shape))

    setting.options["hidden_fault"] = change


def rope_base(setting: Setting, r: Random) -> None:
    setting.options["rope_base"] = float(r.choice([1e3, 5e5, 1e6]))


def rope_layout(setting: Setting, r: Random) -> None:
    setting.options["rope_layout"] = "pairs"


def wrong_input(setting: Setting, r: Random) -> None:
    factor, way = 1.0 + size(r, 3.0, 0.6), r.choice(["scale", "shift", "order"])

    def change(v: Array) -> Array:
        return v * factor if way == "scale" else v + factor - 1.0 if way == "shift" else v[::-1].copy()

    setting.options["input"] = change


def wrong_weight(setting: Setting, r: Random, name: str) -> None:
    factor, way, at = 1.0 + size(r, 3.5, 0.6), r.choice(["scale", "row", "element"]), r.random_sample()

    def change(v: Array) -> Array:
        v = v.copy()
        if way == "row" and v.ndim > 1:
            v[int(at * len(v))] = 0.0
        elif way == "element":
            v.reshape(-1)[int(at * v.size)] += 0.5
        else:
            v *= factor
        return np.asarray(v.astype(np.float32), np.float64)

    setting.weights[name] = change


def optimizer(setting: Setting, r: Random) -> None:
    """Wrong arithmetic in the update: it shows in the parameters of the next step."""
    way = str(r.choice(["rate", "decay", "momentum", "correction", "eps", "skip"]))
    setting.optimizer[way] = float(r.choice([1.02, 1.3, 2.0]))


class Fault(NamedTuple):
    """One kind. strikes: an operator ("operator"), several ("sites"), or elsewhere ("options", "weight", "weights",
    "optimizer").

    fits: the sites where it can strike (operator), or the options and the network that it needs (options).
    """

    name: str
    make: Callable[..., Any]
    fits: Callable[..., bool] = lambda site: site.out is not None
    strikes: str = "operator"
    held: bool = False
    weight: float = 1.0


def of(*kinds: str, phase: str = "forward") -> Callable[[Site], bool]:
    return lambda site: site.address.kind in kinds and site.address.phase == phase and site.out is not None


def _wide(site: Site) -> bool:
    return site.out is not None and site.out.values.ndim > 1 and min(site.out.values.shape[-2:]) > 2


def _scalar_second(site: Site) -> bool:
    return site.is_forward and len(site.record.inputs) == 2 and isinstance(site.record.inputs[1], float)


def _computes(site: Site) -> bool:
    op = OPERATORS.get(site.address.kind, None)
    return site.out is not None and op is not None and not (op.copies if site.is_forward else op.backward_copies)


def _sums(site: Site) -> bool:
    return (
        site.is_forward
        and site.address.kind in (*CONTRACTIONS, *NORMS, "softmax", "mean", "sum")
        and site.out is not None
    )


def _narrow(site: Site) -> bool:
    return site.out is not None and site.out.dtype in ("bfloat16", "float16")


def _low(site: Site) -> bool:
    return site.is_forward and site.out is not None and float(np.median(site.out.values)) < -9000


def _square_weight(site: Site) -> bool:
    if site.address.phase != "forward" or site.address.kind not in ("linear", "matmul") or len(site.reads) < 2:
        return False
    return site.reads[1].values.shape[-1] == site.reads[1].values.shape[-2]


def _tiny(site: Site) -> bool:
    out = site.out
    return (
        out is not None and out.dtype == "float16" and bool(((np.abs(out.values) < 2.0**-14) & (out.values != 0)).any())
    )


def _with_bias(site: Site) -> bool:
    return site.is_forward and site.address.kind in ("linear", "conv2d") and isinstance(site.record.inputs[2], Tensor)


def _adds(site: Site) -> bool:
    return site.is_forward and site.address.kind == "add" and len(site.reads) == 2


def _heads(site: Site) -> bool:
    return (
        site.is_forward
        and site.address.kind in ("matmul", "attention")
        and site.out is not None
        and site.out.values.ndim == 4
    )


def _has_eps(site: Site) -> bool:
    if not site.is_forward:
        return False
    return site.address.kind in NORMS or (
        site.address.kind == "add" and _scalar_second(site) and abs(site.record.inputs[1]) < 1e-3
    )  # type: ignore[arg-type]


def _masks(site: Site) -> bool:
    return of("masked_fill", "attention")(site) and bool(site.address.kind == "masked_fill" or site.record.keywords)


def is_smooth(site: Site) -> bool:
    return site.address.phase == "backward" and site.address.kind not in NON_SMOOTH and _computes(site)


def _non_smooth(site: Site) -> bool:
    return site.address.phase == "backward" and site.address.kind in NON_SMOOTH and site.out is not None


FAULTS = [
    Fault("scale", scale, weight=2.0),
    Fault("bias_lost", bias_lost, _with_bias),
    Fault("tile", tile, _wide, weight=1.5),
    Fault("repeated_row", repeated_row, _wide),
    Fault("stale", stale, lambda s: _computes(s) and s.address.call > 0, held=True),
    Fault("swapped_heads", swapped_heads, _heads, held=True),
    Fault("off_by_one", off_by_one, of("embedding", "index_select")),
    Fault("wrong_eps", wrong_eps, _has_eps),
    Fault("wrong_mask", wrong_mask, _masks),
    Fault("residual", residual, _adds, held=True),
    Fault("wrong_root", wrong_root, lambda s: s.address.kind in ("mul", "div") and _scalar_second(s)),
    Fault("rope_base", rope_base, lambda options, network: "rope_base" in network.features, "options"),
    Fault("rope_layout", rope_layout, lambda options, network: "rope_layout" in network.features, "options", held=True),
    Fault("gelu_variant", gelu_variant, of("gelu")),
    Fault("padding", padding, lambda s: of("conv2d")(s) and s.record.inputs[4] == 1, held=True),
    Fault("dropout_scale", dropout_scale, lambda s: of("dropout")(s) and bool(s.record.inputs[1]), held=True),
    Fault("narrow_accumulation", narrow_accumulation, _sums),
    Fault("remainder", remainder, _sums, held=True),
    Fault("narrow_operands", narrow_operands, lambda s: of(*CONTRACTIONS)(s) and not _narrow(s)),
    Fault("single_hf32", single_hf32, lambda s: of(*CONTRACTIONS)(s) and not _narrow(s)),
    Fault("truncation", truncation, lambda s: _computes(s) and (_narrow(s) or s.address.kind in ("add", "mul"))),
    Fault("weak_function", weak_function, of(*TRANSCENDENTAL)),
    Fault("flushed", flushed, _tiny, held=True),
    Fault("not_a_number", not_a_number),
    Fault("saturated", saturated, _computes, held=True),
    Fault("coarser", coarser, lambda s: _computes(s) and s.out.dtype in ("float32", "float16")),
    Fault("offset", offset, _computes, held=True),
    Fault("noise", noise, _computes, held=True),
    Fault("low_values", low_values, _low, weight=4.0),
    Fault("smooth_gradient", smooth_gradient, is_smooth, weight=2.0),
    Fault("non_smooth_gradient", non_smooth_gradient, _non_smooth, weight=3.0),
    Fault("transposed", transposed, _square_weight, held=True),
    Fault("uncaptured", uncaptured, lambda options, network: "attention" in network.features, "options"),
    Fault("wrong_input", wrong_input, lambda options, network: network.image, "options"),
    Fault("wrong_weight", wrong_weight, lambda name: True, "weight"),
    Fault("optimizer", optimizer, lambda steps: steps > 1, "optimizer", weight=3.0),
    Fault("missing_all_reduce", missing, of("all_reduce"), weight=3.0),
    Fault("lost_contribution", lost_contribution, of("all_reduce"), held=True),
    Fault("order_of_ranks", order_of_ranks, of("all_gather"), held=True),
    Fault("received_wrong", scale, of("recv"), weight=2.0),
]  # fmt: skip
# Two more kinds are made of these, see planter.py: "two_at_once" and "intermittent".
