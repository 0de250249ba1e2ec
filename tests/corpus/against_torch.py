"""Holds the planter's networks against torch: the same functions of networks.py, on torch's operators and autograd.

For every network and several sets of its options: the output of every recorded operator, the gradient that arrives at
each of them, the loss and the gradient of every weight, in float64 and in float32. Needs torch 2.4 or later, and is
no test that pytest runs:

    python -m tests.corpus.against_torch [NETWORK ...]

What is compared is the relative distance |planter - torch| / |torch| of whole tensors (rel_l2). A tensor that is zero
but for rounding (the gradient of a key's bias, a sum that cancels) is measured by the largest of its sort instead. The
two-rank networks are held against one process: one loss, and weights that both ranks have are one tensor.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tests.corpus import networks
from tests.corpus.device import Device
from tests.corpus.networks import NETWORKS, TOGETHER, Net, Size, Weights
from tests.corpus.tape import Precision, Session, Tape
from tests.corpus.trace import Tensor

LIMITS = {"float64": 1e-11, "float32": 1e-5}
MAGNIFIED = 5e-3  # of cases whose rounding grows on the way: an offset of -1e4 that is taken away again
BFLOAT16 = 2.0**-7  # limit of what was cast to it: one value may round the other way
NOISE = 1e-6  # less than this share of the largest of its sort is zero but for rounding
COLUMNS = ("fwd 64", "grad 64", "weight 64", "fwd 32", "grad 32", "weight 32")
SHOWN = 12  # problems of a case
COLLECTIVES = ("all_reduce", "all_gather", "send", "recv")


def _dropout(x: torch.Tensor, p: float, training: bool, seed: int) -> torch.Tensor:
    kept = torch.from_numpy(np.random.RandomState(seed).random_sample(tuple(x.shape)) >= p)
    return x * kept.to(x.dtype) / (1.0 - p)


def _setitem(x: torch.Tensor, index: Any, value: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[index] = value
    return y


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": F.linear,
    "matmul": torch.matmul,
    "conv2d": F.conv2d,
    "embedding": F.embedding,
    "layer_norm": F.layer_norm,
    "rms_norm": F.rms_norm,
    "group_norm": F.group_norm,
    "batch_norm": F.batch_norm,
    "softmax": F.softmax,
    "attention": F.scaled_dot_product_attention,
    "cross_entropy": F.cross_entropy,
    "mse_loss": F.mse_loss,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "dropout": _dropout,
    "max_pool2d": F.max_pool2d,
    "avg_pool2d": F.adaptive_avg_pool2d,
    "interpolate": lambda x, scale_factor: F.interpolate(x, scale_factor=scale_factor, mode="nearest"),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "sum": torch.sum,
    "mean": torch.mean,
    "masked_fill": torch.masked_fill,
    "where": torch.where,
    "cat": lambda *parts, dim: torch.cat(parts, dim),
    "gather": torch.gather,
    "index_select": torch.index_select,
    "index_add": torch.index_add,
    "setitem": _setitem,
    "to": lambda x, dtype: x.to(getattr(torch, dtype.rpartition(".")[2])),
    "rope": _rope,
}


class Value:
    """A torch tensor, with what networks.py reads of a Var."""

    def __init__(self, held: torch.Tensor):
        self.held = held
        self.node: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.held.shape)

    @property
    def dtype(self) -> str:
        return str(self.held.dtype).rpartition(".")[2]

    @property
    def tensor(self) -> Any:
        return SimpleNamespace(values=as_array(self.held), dtype=self.dtype, needs_grad=self.held.requires_grad)


def as_array(x: torch.Tensor) -> np.ndarray:
    """Its numbers; numpy has no bfloat16."""
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()


class Seen(NamedTuple):
    """One execution: its outputs, and the gradients of the first as it arrives and of the first input, if known."""

    outputs: list[np.ndarray]
    arrived: Optional[np.ndarray]
    left: Optional[np.ndarray] = None


class Ran(NamedTuple):
    """What a run has left; recomputed: the forward records from after the loss."""

    seen: dict[Any, Seen]
    losses: list[float]
    weights: dict[tuple[int, str], np.ndarray]
    recomputed: list[Any]


class TorchTape(Tape):
    """A Tape whose operators are torch's.

    weights: those of the run by name; ranks that share them are one process.
    chosen: the indices of each topk, taken as they are: which of two equal ones comes first is nobody's business.
    """

    def __init__(self, base: str, weights: dict[str, torch.Tensor], chosen: dict[Any, np.ndarray], rank: int = 0):
        session = SimpleNamespace(precision=Precision(base), nodes=[], captures_all=False)
        super().__init__(session, rank)  # type: ignore[arg-type]
        self.type = getattr(torch, base)
        self.weights, self.chosen = weights, chosen
        self.used: dict[str, torch.Tensor] = {}
        self.made: dict[Any, tuple[list[torch.Tensor], Optional[torch.Tensor]]] = {}
        self.running: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.calls: Counter[str] = Counter()

    def keep(self, kind: str, call: int, outputs: list[torch.Tensor], entered: Optional[torch.Tensor] = None) -> None:
        """Remembers what ran, and asks autograd for the gradients."""
        for one in (outputs[0], entered):
            if one is not None and one.requires_grad:
                one.retain_grad()
        self.made[self.rank, kind, call, self.scope] = (outputs, entered)

    def call(self, kind: str) -> int:
        self.calls[kind] += 1
        return self.calls[kind] - 1

    def constant(self, values: Any, dtype: str = "float32") -> Any:
        values = np.asarray(values)
        held = torch.from_numpy(values.copy())
        if values.dtype.kind == "f":
            held = held.to(getattr(torch, dtype) if dtype != "float32" else self.type)
        return Value(held)

    def weight(self, name: str, values: np.ndarray) -> Any:
        if name not in self.weights:
            self.weights[name] = torch.from_numpy(values.copy()).to(self.type).requires_grad_()
        self.used[name] = self.weights[name]
        return Value(self.used[name])

    def _run(self, kind: str, items: Any, keywords: dict[str, Any], recorded: bool) -> Any:
        call = self.call(kind)
        held = [_bare(item) for item in items]
        named = {name: _bare(item) for name, item in keywords.items()}
        if kind == "topk":
            found = self._topk(held[0], held[1], call)
        elif kind == "empty":  # what nobody overwrites is seen
            found = (torch.full(held[0], torch.nan, dtype=self.type),)
        else:
            if kind == "batch_norm":
                held[1:3] = [one.clone() for one in held[1:3]]
            found = FUNCTIONS[kind](*held, **named)
            found = found if isinstance(found, tuple) else (found,)
        if kind == "batch_norm":
            self.running.setdefault(self.scope, (as_array(held[1]), as_array(held[2])))  # recomputing moves none
        if recorded and kind != "empty":
            self.keep(kind, call, list(found))
        made = [Value(one) for one in found]
        return made[0] if len(made) == 1 else tuple(made)

    def _topk(self, x: torch.Tensor, k: int, call: int) -> tuple[torch.Tensor, ...]:
        index = torch.from_numpy(self.chosen[self.rank, call])
        values = torch.gather(x, -1, index)
        best = torch.topk(x, k, dim=-1).values
        near = {torch.float64: 1e-12, torch.float32: 1e-5}[x.dtype]
        assert torch.allclose(values, best, rtol=near, atol=0.0), "topk has not found the largest"
        return values, index

    def view(self, x: Any, forward: Any, inverse: Any, kind: str = "") -> Any:
        raise NotImplementedError("planted code that nobody captured")

    def reshape(self, x: Any, *shape: int) -> Any:
        return Value(x.held.reshape(shape))

    def transpose(self, x: Any, *axes: int) -> Any:
        return Value(x.held.permute(axes))

    def part(self, x: Any, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        return Value(x.held[tuple(torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in index)])

    def repeated(self, x: Any, times: int) -> Any:
        return Value(x.held.repeat_interleave(times, dim=1))

    def detached(self, x: Any) -> Any:
        return Value(x.held.detach())

    def module(self, name: str, class_name: str, body: Any, x: Any) -> Any:
        with self.inside(name):
            entered = Value(x.held.view_as(x.held))
            inner = body(entered).held
            left = Value(inner.view_as(inner))
            self.keep("Module", self.call(f"Module.{self.scope}"), [left.held], entered.held)
        return left

    def same(self, x: Any) -> Any:
        made = Value(x.held.view_as(x.held))
        made.node = node = SimpleNamespace(hook=None)
        made.held.register_hook(lambda gradient: node.hook(gradient) if node.hook is not None else None)
        return made


def _bare(item: Any) -> Any:
    if isinstance(item, Value):
        return item.held
    return torch.from_numpy(item) if isinstance(item, np.ndarray) else item


class OneProcess:
    """ranks.py for tapes of one process: every collective is plain arithmetic, and autograd knows the way back."""

    @staticmethod
    def summed(tapes: Sequence[TorchTape], parts: Sequence[Value]) -> list[Value]:
        made = []
        for tape, part in zip(tapes, parts):
            total = part.held + sum(one.held for one in parts if one is not part)
            tape.keep("all_reduce", tape.call("all_reduce"), [total])
            made.append(Value(total))
        return made

    @staticmethod
    def spread(tapes: Sequence[TorchTape], parts: Sequence[Value]) -> list[Value]:
        return list(parts)

    @staticmethod
    def gathered(tapes: Sequence[TorchTape], parts: Sequence[Value]) -> list[Value]:
        made = []
        for tape in tapes:
            whole = torch.cat([part.held for part in parts], -1)
            tape.keep("all_gather", tape.call("all_gather"), [whole])
            made.append(Value(whole))
        return made

    @staticmethod
    def transfer(source: TorchTape, sink: TorchTape, x: Value) -> Value:
        arrived = x.held.view_as(x.held)
        sink.keep("recv", sink.call("recv"), [arrived])
        return Value(arrived)


@contextmanager
def one_process() -> Iterator[None]:
    """networks.py with OneProcess in place of ranks.py."""
    before = networks.ranks
    networks.ranks = OneProcess  # type: ignore[assignment]
    try:
        yield
    finally:
        networks.ranks = before


class Case(NamedTuple):
    """A network, its size and options; single: its limit in float32."""

    network: str
    size: Size
    options: dict[str, Any]
    single: float = LIMITS["float32"]

    def build(self, nets: list[Net]) -> list[Any]:
        if self.network in TOGETHER:
            return TOGETHER[self.network](nets)
        return [odds(nets[0]) if self.network == "odds" else NETWORKS[self.network].build(nets[0])]

    @property
    def ranks(self) -> int:
        return 2 if self.network in TOGETHER else 1

    def nets(self, tapes: Sequence[Any]) -> tuple[list[Net], Weights]:
        weights = Weights(5)
        return [Net(tape, weights, self.size, self.options, 11) for tape in tapes], weights


def odds(net: Net) -> Any:
    """What no network uses, and the corners of what they use: broadcasts, ties, rows twice, numbers for tensors."""
    t, w = net.t, net.weight
    x, row, column, one = w("x", 6, 8), w("row", 8), w("column", 6, 1), w("one", 1)
    scalar = t("mean", t("sum", w("many", 3, 4), dim=-1), dim=0)
    mask = t.constant(net.draw("mask").random_sample((6, 8)) < 0.4)
    terms = [
        t("where", mask, x, row),
        t("where", mask, column, t("mul", x, 2.0)),
        t("masked_fill", x, t.constant(np.arange(8) < 3), 0.25),
        t("add", row, x),
        t("sub", column, x),
        t("mul", one, x),
        t("div", x, t("add", t("mul", column, column), 1.0)),
        t("div", row, t("exp", x)),
        t("add", x, scalar),
        t("sub", x, scalar),
        t("mul", x, scalar),
        t("div", x, t("add", scalar, 3.0)),
        t("pow", x, 3),
        t("gelu", x, approximate="tanh"),
        t("gelu", x),
        t("dropout", x, 0.25, True, seed=3),
        t("setitem", t("mul", x, 2.0), np.array([1, 4]), w("value", 2, 8)),
        t("index_add", x, 0, t.constant(np.array([2, 2, 5])), w("source", 3, 8)),
        t("index_select", x, 0, t.constant(np.array([0, 3, 3, 1, 5, 0]))),
        t("embedding", t.constant(np.array([1, 1, 2, 0, 1, 3])), w("table", 5, 8)),
        t("gather", x, 1, t.constant(net.draw("index").randint(0, 8, (6, 8)))),
        t("softmax", x, dim=-1),
        t("cat", t.part(x, (slice(None), slice(0, 3))), w("narrow", 6, 5), dim=1),
        t("cat", t.part(x, slice(0, 2)), t.part(x, slice(0, 4)), dim=0),
        t("sum", t.repeated(t.reshape(x, 1, 2, 3, 8), 3), dim=1, keepdim=True),
    ]
    total = t("mean", t("mean", terms[0], dim=1, keepdim=True), dim=0)
    for k, term in enumerate(terms):
        squared = t("mul", t("add", term, 0.1 * k), term)
        total = t("add", total, t("mean", t("mean", t.reshape(squared, -1, 8), dim=-1, keepdim=True), dim=0))
    tied = t("relu", t.reshape(x, 1, 2, 4, 6))  # windows of zeros
    pooled = t("max_pool2d", tied, 2)
    image = t("conv2d", t("interpolate", pooled, scale_factor=2), w("kernel", 4, 1, 3, 3), None, 2, 1, 1, 2)
    return t("add", t("mse_loss", image, t.constant(np.full(image.shape, 0.3, np.float32))), t("mean", total, dim=0))


def planted(case: Case, base: str) -> tuple[Ran, dict[Any, np.ndarray]]:
    """The planter's run, and the indices of its topk."""
    session = Session(Device(), Precision(base), ranks=case.ranks, modules=True)
    nets, _ = case.nets([Tape(session, rank) for rank in range(case.ranks)])
    losses = case.build(nets)
    forward = len(session.records)
    session.backward(losses)
    arrived, left = {}, {}
    for rank, record in session.records:
        if record.phase == "backward":
            key = (rank, record.kind, record.call, record.scope)
            arrived[key] = record.inputs[0].values if isinstance(record.inputs[0], Tensor) else None
            left[key] = record.outputs[0].values if record.kind == "Module" and record.outputs[0] is not None else None
    seen, chosen, recomputed = {}, {}, []
    for place, (rank, record) in enumerate(session.records):
        if record.phase != "forward":
            continue
        key = (rank, record.kind, record.call, record.scope)
        if record.kind == "topk":
            chosen[rank, record.call] = record.outputs[1].values
        if record.kind != "empty":
            seen[key] = Seen([one.values for one in record.outputs if one], arrived.get(key), left.get(key))
        if place >= forward and record.kind not in COLLECTIVES:
            recomputed.append(key)
    for first, again in first_times(seen, recomputed):  # whose gradients torch has at the first
        seen[first], seen[again] = seen[first]._replace(arrived=seen[again].arrived), seen[again]._replace(arrived=None)
    weights = {key: one.values for key, one in session.weight_gradients.items()}
    return Ran(seen, [float(one.tensor.values) for one in losses], weights, recomputed), chosen


def torched(case: Case, base: str, chosen: dict[Any, np.ndarray]) -> tuple[Ran, dict[str, tuple[Any, Any]]]:
    """torch's, and of each running statistic what the Net and what torch have as the next."""
    together = case.network == "tensor_parallel"
    shared: dict[str, torch.Tensor] = {}
    tapes = [TorchTape(base, shared if together else {}, chosen, rank) for rank in range(case.ranks)]
    nets, weights = case.nets(tapes)
    with one_process():
        losses = case.build(nets)
        losses[0].held.backward()
    seen = {}
    for tape in tapes:
        for key, (outputs, entered) in tape.made.items():
            gradients = [None if x is None or x.grad is None else as_array(x.grad) for x in (outputs[0], entered)]
            seen[key] = Seen([as_array(one) for one in outputs], *gradients)
    found = {
        (tape.rank, name): as_array(one.grad)
        for tape in tapes
        for name, one in tape.used.items()
        if one.grad is not None
    }
    running = {}
    for scope, pair in tapes[0].running.items():
        for name, theirs in zip(("mean", "variance"), pair):
            running[f"{scope}.{name}"] = (weights.values[f"{scope}.{name}"], theirs)
    return Ran(seen, [float(one.held.detach()) for one in losses], found, []), running


def kept(kind: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Flat float64, without what all of them say is masked."""
    flat = [x.astype(np.float64).ravel() for x in arrays]
    masked = np.full(flat[0].shape, kind == "masked_fill")
    for x in flat:
        masked &= (x < -1e3) & (x == flat[0])
    return [x[~masked] for x in flat]


def size_of(x: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(x * x))) if x.size else 0.0


def distance(ours: np.ndarray, theirs: np.ndarray, floor: float = 0.0, kind: str = "") -> float:
    """rel_l2, or the distance in units of `floor` where theirs are smaller."""
    if ours.shape != theirs.shape:
        return np.inf
    x, y = kept(kind, ours, theirs)
    apart, norm = size_of(x - y), max(size_of(y), floor)
    if np.isnan(apart):
        return np.inf
    return apart / norm if norm else (np.inf if apart else 0.0)


class Floors:
    """By what a tensor that is zero but for rounding is measured; the float64 run of torch tells which ones are."""

    def __init__(self, exact: Ran):
        seen = exact.seen.items()
        self._outputs = {(key, k): size_of(*kept(key[1], y)) for key, one in seen for k, y in enumerate(one.outputs)}
        self._arrived = {key: size_of(*kept("", one.arrived)) for key, one in seen if one.arrived is not None}
        self._left = {key: size_of(*kept("", one.left)) for key, one in seen if one.left is not None}
        self._weights = {key: size_of(*kept("", y)) for key, y in exact.weights.items()}

    @staticmethod
    def _of(sizes: dict[Any, float], key: Any, like: Callable[[Any], bool] = lambda key: True) -> float:
        largest = max((size for other, size in sizes.items() if like(other)), default=0.0)
        return largest if sizes.get(key, largest) <= NOISE * largest else 0.0

    def output(self, key: Any, k: int) -> float:
        return self._of(self._outputs, (key, k))

    def arrived(self, key: Any) -> float:
        return self._of(self._arrived, key)

    def left(self, key: Any) -> float:
        return self._of(self._left, key)

    def weight(self, key: tuple[int, str]) -> float:
        kind = key[1].rpartition(".")[2]
        return self._of(self._weights, key, lambda other: other[1].rpartition(".")[2] == kind)


class Held(NamedTuple):
    """Of one case and type: how much was compared, and the worst of it."""

    operators: int
    gradients: int
    forward: float
    backward: float
    weight: float
    problems: list[str]


def held(case: Case, base: str, ours: Ran, theirs: Ran, floors: Floors) -> Held:
    """Everything of the two runs."""
    problems: list[str] = []
    worst = {"output": 0.0, "arriving gradient": 0.0, "weight gradient": 0.0}
    limit = LIMITS["float64"] if base == "float64" else case.single

    def note(what: str, name: Any, found: float, most: float = limit) -> None:
        if most == limit:
            worst[what] = max(worst[what], found)
        if not found <= most:
            problems.append(f"{base} {what} of {name}: rel_l2 {found:.2g}, limit {most:.2g}")

    mine = {key for key in ours.seen if key[1] not in COLLECTIVES}
    other = {key for key in theirs.seen if key[1] not in COLLECTIVES}
    problems += [f"{base} {key}: in one run only" for key in sorted(mine ^ other)]
    gradients = 0
    both = [key for key in theirs.seen if key in ours.seen]
    for key in both:
        a, b = ours.seen[key], theirs.seen[key]
        for k, (x, y) in enumerate(zip(a.outputs, b.outputs)):
            most = BFLOAT16 if key[1] == "to" else limit
            note("output", key, distance(x, y, floors.output(key, k), key[1]), most)
        if case.network == "tensor_parallel" or key[1] in COLLECTIVES:
            continue  # of one process and one loss, whose second rank has no gradient of its own
        for x, y, floor in ((a.arrived, b.arrived, floors.arrived(key)), (a.left, b.left, floors.left(key))):
            if (x is None) != (y is None):
                problems.append(f"{base} arriving gradient of {key}: in one run only")
            elif x is not None and y is not None:
                gradients += 1
                note("arriving gradient", key, distance(x, y, floor))
    for k, (x, y) in enumerate(zip(ours.losses, theirs.losses)):
        note("output", f"loss {k}", distance(np.array(x), np.array(y)))
    problems += [
        f"{base} weight gradient of {key}: in one run only" for key in sorted(set(ours.weights) ^ set(theirs.weights))
    ]
    for key in set(ours.weights) & set(theirs.weights):
        note("weight gradient", key, distance(ours.weights[key], theirs.weights[key], floors.weight(key)))
    return Held(len(both), gradients + len(ours.weights), *worst.values(), problems)


def first_times(seen: dict[Any, Seen], recomputed: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each recomputed operator beside what it computed the first time: as many of its kind before it in its scope."""
    first: dict[Any, list[Any]] = {}
    again = set(recomputed)
    for key in seen:
        if key not in again:
            first.setdefault((key[0], key[1], key[3]), []).append(key)
    places: Counter[Any] = Counter()
    found = []
    for key in recomputed:
        if key[1] != "Module" and key in seen:
            place = (key[0], key[1], key[3])
            found.append((first[place][places[place]], key))
            places[place] += 1
    return found


def recomputed(run: Ran) -> list[str]:
    """Where a checkpointed block does not compute the same again."""
    return [
        f"recomputed {again} differs from the first time"
        for first, again in first_times(run.seen, run.recomputed)
        if not np.array_equal(run.seen[first].outputs[0], run.seen[again].outputs[0])
    ]


TEXT, IMAGE = Size(3, 10, 16, 4, 2), Size(3, 8, 8, 2, 2)


def cases() -> list[Case]:
    """Every network as it is, and with its options one by one and together."""
    text = {
        "decoder": [
            {"attention": "fused"}, {"norm": "split"}, {"norm": "split", "square": "mul"}, {"scale": "div"},
            {"act": "split"}, {"linear": "split"}, {"rope": "seen"}, {"rope_layout": "pairs", "rope_base": 500.0},
            {"attention": "fused", "norm": "split", "act": "split", "rope": "seen", "linear": "split"}, {"mask": -1e4},
        ],
        "encoder": [
            {"attention": "fused"}, {"qkv": "one"}, {"qkv": "one", "attention": "fused"}, {"linear": "split"},
            {"gelu": "hidden"}, {"approximate": "tanh"}, {"approximate": "tanh", "gelu": "hidden", "scale": "div"},
            {"dropout": 0.1}, {"dropout": 0.1, "attention": "fused", "linear": "split"},
            {"dropout": 0.1, "checkpoint": True}, {"mask": -1e9}, {"mask": "lowest"},
        ],
        "experts": [
            {"attention": "fused"}, {"norm": "split", "square": "mul", "act": "split"}, {"qkv": "one", "rope": "seen"},
            {"near_ties": True}, {"mask": -1e4, "linear": "split"},
        ],
        "encoder_decoder": [
            {"attention": "fused"}, {"qkv": "one", "linear": "split"}, {"dropout": 0.1}, {"scale": "div", "mask": -1e9},
        ],
        "recurrent": [{"linear": "split"}],
        "towers": [{"attention": "fused", "square": "mul"}],
    }  # fmt: skip
    image = {"residual_conv": [], "unet": [{"act": "split"}], "mobile": [{"act": "split"}]}
    common = [{}, {"extra": True, "checkpoint": True, "side_cast": True}, {"empty": True}]
    found = [Case("odds", TEXT, {})]
    for name, sets in {**text, **image}.items():
        size = IMAGE if name in image else TEXT
        found += [Case(name, size, options) for options in [*common, *sets]]
        found.append(Case(name, size, {"cancelling": 16}))
        if name != "unet":
            found.append(Case(name, size, {"energy": -1e4}, MAGNIFIED))
        batch, longer = (
            (5 if name == "towers" else 1),
            (0 if name == "unet" else 2),
        )  # pairs of a batch; halves of halves
        found.append(Case(name, size._replace(batch=batch, length=size.length + longer, layers=1), {}))
    for name in TOGETHER:
        found += [Case(name, TEXT, {}), Case(name, TEXT, {"attention": "fused", "act": "split"})]
    # the gradient of its scale, one number, is a sum that nearly cancels
    found.append(Case("towers", TEXT, {"qkv": "one", "scale": "div", "gelu": "hidden"}, MAGNIFIED))
    return [*found, Case("tensor_parallel", TEXT._replace(layers=3), {"linear": "split", "norm": "split"})]


class Row(NamedTuple):
    """A line of the table."""

    operators: int
    gradients: int
    worst: list[float]  # in the order of COLUMNS
    problems: list[str]


def compared(case: Case) -> Row:
    """A case in both types."""
    operators = gradients = 0
    worst: list[float] = []
    problems: list[str] = []
    floors = None
    for base in LIMITS:
        ours, chosen = planted(case, base)
        theirs, running = torched(case, base, chosen)
        floors = floors or Floors(theirs)
        found = held(case, base, ours, theirs, floors)
        operators, gradients = operators + found.operators, gradients + found.gradients
        worst += [found.forward, found.backward, found.weight]
        problems += found.problems + [f"{base} {line}" for line in recomputed(ours)]
        for name, (x, y) in running.items():
            apart = distance(np.asarray(x), y)
            if not apart <= LIMITS["float32"]:  # they are kept in float32
                problems.append(f"{base} running statistic {name}: rel_l2 {apart:.2g}")
    return Row(operators, gradients, worst, problems)


def main(names: Sequence[str]) -> int:
    torch.set_num_threads(1)
    begun, failed, rows = time.monotonic(), 0, []
    print(f"{'network':<25}{'options, size':<88}{'ops':>5}{'grads':>6}" + "".join(f"{c:>10}" for c in COLUMNS))
    for case in cases():
        if names and case.network not in names:
            continue
        try:
            row = compared(case)
        except Exception as error:
            row = Row(0, 0, [np.inf] * len(COLUMNS), [f"{type(error).__name__}: {error}"])
        told = ", ".join(f"{k} {v}" for k, v in case.options.items()) or "-"
        told += "" if case.size in (TEXT, IMAGE) else f" {tuple(case.size)}"
        figures = "".join(f"{x:>10.1e}" for x in row.worst)
        print(f"{case.network:<25}{told:<88}{row.operators:>5}{row.gradients:>6}{figures}", flush=True)
        for line in row.problems[:SHOWN]:
            print(f"    {line}")
        if len(row.problems) > SHOWN:
            print(f"    and {len(row.problems) - SHOWN} more")
        failed += bool(row.problems)
        rows.append((case, row))
    print(f"{sum(r.operators for _, r in rows)} operators, {sum(r.gradients for _, r in rows)} gradients compared")
    plain = [r.worst for case, r in rows if case.single == LIMITS["float32"]]
    for column, worst in zip(COLUMNS, zip(*plain)):
        print(f"worst {column:<10}{max(worst):.1e}")
    print(f"{failed} of {len(rows)} cases beyond a limit; {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
