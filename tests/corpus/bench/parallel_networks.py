"""A retention network on several ranks, each layout against one card, with the bugs of parallel training.

The bugs are those of the kinds that TTrace (2025) found in Megatron-LM and that its page lists: a reduction that is
missing or over the wrong ranks, a part of a weight that is another rank's or old, a scale, a seed, an offset.
Activations are (sequence, batch, width).

    tp2    heads and inner width split; sp2: and the sequence outside of them
    dp2    samples split, gradients averaged; zero2: and the optimizer
    cp2    the sequence split, keys and values gathered
    pp2    one layer on each rank, the embedding of the first is the head of the last
    ep2    one expert on each rank; acc2: one rank, the samples in two micro batches
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.bench.networks import decays
from tests.corpus.bench.parallel_updates import Updates
from tests.corpus.device import Array, Device
from tests.corpus.networks import Weights
from tests.corpus.parallel import collectives as among
from tests.corpus.tape import Precision, Session, Tape, Var
from tests.corpus.trace import Run, Tensor

Vars = dict[int, Var]
BATCH, LENGTH, WIDTH, HEADS, INNER, WORDS = 4, 8, 16, 4, 32, 24
RANKS = {"one": 1, "tp2": 2, "sp2": 2, "dp2": 2, "zero2": 2, "cp2": 2, "pp2": 2, "ep2": 2, "acc2": 1, "moe": 1}
GOLDEN = {"ep2": "moe", "zero2": "zero2"}  # the layout of the golden where it is not one card
BUGS: dict[str, tuple[str, ...]] = {  # kind: the layouts that can have it
    "row-parallel product not reduced": ("tp2", "ep2"),
    "gradient of a column-parallel input not reduced": ("tp2",),
    "norm gradient not reduced over the sequence": ("sp2",),
    "sequence gathered in another order": ("sp2",),
    "loss of a micro batch not divided": ("acc2",),
    "tied embedding not reduced over stages": ("pp2",),
    "part of a weight of another rank": ("tp2", "sp2"),
    "part of a weight from before the update": ("tp2", "zero2", "ep2"),
    "dropout of another seed on a rank": ("tp2", "ep2"),
    "gradient of the router not reduced": ("ep2",),
    "gradient not averaged": ("dp2", "cp2"),
    "gradient of one parameter not reduced": ("dp2", "cp2"),
    "shard of the optimizer shifted": ("zero2",),
    "norm for clipping of one rank": ("zero2",),
    "offset of positions missing": ("cp2",),
    "mask of the local part": ("cp2",),
    "keys of one rank": ("cp2",),
    "bias added on every rank": ("tp2",),
    "activation of the batch before": ("pp2",),
    "same samples on all ranks": ("dp2",),
}


class Plan(NamedTuple):
    """Everything that the values of a run depend on; recorded optimizers leave records."""

    layout: str
    seed: int
    steps: int = 1
    layers: int = 2
    device: Device = Device()
    precision: Precision = Precision()
    dropout: float = 0.0
    recorded: bool = True
    tied: bool = False


class Bug(NamedTuple):
    """kind, "" for none; layer and rank that it strikes, and the first step."""

    kind: str = ""
    layer: int = 0
    rank: int = 0
    step: int = 0


class Cluster(Updates):
    """One step of all ranks."""

    def __init__(self, session: Session, plan: Plan, weights: list[Weights], bug: Bug, older: list[Any]):
        self.session, self.plan, self.weights, self.bug, self.older = session, plan, weights, bug, older
        self.layout, self.step = plan.layout, session.step
        self.tapes = {rank: Tape(session, rank) for rank in range(RANKS[plan.layout])}
        self.known: dict[tuple[int, str], Var] = {}
        self.layer = 0
        self.whole: set[str] = set()  # parameters that every rank holds whole
        draw = np.random.RandomState([plan.seed, 5, self.step])
        self.words = draw.randint(0, WORDS, (LENGTH + 1, BATCH))
        self.before = np.random.RandomState([plan.seed, 6, self.step]).randint(0, WORDS, (LENGTH + 1, BATCH))

    def has(self, kind: str, rank: Optional[int] = None, layer: Optional[int] = None) -> bool:
        """Whether the bug is of this kind, here."""
        here = rank is None or rank == self.bug.rank
        at = layer is None or layer == self.bug.layer
        return self.bug.kind == kind and here and at and self.step >= self.bug.step

    @property
    def is_split(self) -> bool:
        return self.layout in ("tp2", "sp2")

    @contextmanager
    def inside(self, ranks: Sequence[int], name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for rank in ranks:
                stack.enter_context(self.tapes[rank].inside(name))
            yield

    def each(self, ranks: Sequence[int], kind: str, *items: Any, **keywords: Any) -> Vars:
        """The same operator on each rank; a dictionary has an item for each."""
        found = {}
        for rank in ranks:
            own = [item[rank] if isinstance(item, dict) else item for item in items]
            found[rank] = self.tapes[rank](
                kind, *own, **{k: v[rank] if isinstance(v, dict) else v for k, v in keywords.items()}
            )
        return found

    def weight(self, ranks: Sequence[int], name: str, shape: tuple[int, ...], axis: int = -1, **drawn: Any) -> Vars:
        """A parameter; axis: along which tensor ranks split it, -1 for none."""
        found = {}
        for rank in ranks:
            tape = self.tapes[rank]
            path = f"{tape.scope}.{name}"
            if (rank, path) not in self.known:
                scale = drawn.get("scale") or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
                values = self.weights[rank].get(path, shape, scale, drawn.get("offset", 0.0))
                is_old = self.has("part of a weight from before the update", rank, self.layer)
                if is_old and path.endswith((f"layers.{self.layer}.up.weight", "experts.0.up.weight")):
                    values = self.older[rank].get(path, values)
                if self.is_split and axis >= 0:
                    number = rank
                    if self.has("part of a weight of another rank", None, self.layer) and path.endswith("up.weight"):
                        number = 1 - rank
                    values = np.split(values, 2, axis)[number]
                else:
                    self.whole.add(path)
                self.known[rank, path] = tape.weight(path, values)
            found[rank] = self.known[rank, path]
        return found

    # Communication

    def joint(self, ranks: Sequence[int], x: Vars, made: Any, back: Callable[[Any], Any]) -> Vars:
        return among.joint(self.tapes, ranks, x, made, back)

    def entered(self, ranks: Sequence[int], x: Vars) -> Vars:
        """The tensor that all ranks of a split layer read; its gradient is the sum of theirs."""
        if not self.is_split and "experts" not in self.tapes[0].scope:
            return x
        scope, layer, s = self.tapes[0].scope, self.layer, self.session
        own = among.tensors(x, ranks)
        if self.layout == "sp2":
            order = [1, 0] if self.has("sequence gathered in another order", None, layer) else None
            made = among.all_gather(s, ranks, own, 0, scope, order)
            return self.joint(ranks, x, made, lambda g: among.reduce_scatter(s, ranks, g, 0, f"{scope}.gradient"))
        made = {rank: among.alias(s, one) for rank, one in own.items()}
        kind = "gradient of a column-parallel input not reduced"
        missing = self.bug.kind == kind and layer == self.bug.layer and self.step >= self.bug.step
        return self.joint(
            ranks, x, made, lambda g: g if missing else among.all_reduce(s, ranks, g, f"{scope}.gradient")
        )

    def left(self, ranks: Sequence[int], x: Vars) -> Vars:
        """From partial sums to their sum."""
        if not self.is_split and "experts" not in self.tapes[0].scope:
            return x
        scope, s = self.tapes[0].scope, self.session
        own = among.tensors(x, ranks)
        if self.has("row-parallel product not reduced", None, self.layer) and "out" not in scope:
            return self.joint(ranks, x, {r: among.alias(s, one) for r, one in own.items()}, lambda g: g)
        if self.layout == "sp2":
            made = among.reduce_scatter(s, ranks, own, 0, scope)
            return self.joint(ranks, x, made, lambda g: among.all_gather(s, ranks, g, 0, f"{scope}.gradient"))
        return self.joint(ranks, x, among.all_reduce(s, ranks, own, scope), lambda g: g)

    # Layers

    def column(self, ranks: Sequence[int], name: str, x: Vars, n: int) -> Vars:
        with self.inside(ranks, name):
            w, b = self.weight(ranks, "weight", (n, WIDTH), 0), self.weight(ranks, "bias", (n,), 0)
            return self.each(ranks, "linear", x, w, b)

    def row(self, ranks: Sequence[int], name: str, x: Vars, inner: int) -> Vars:
        with self.inside(ranks, name):
            y = self.each(ranks, "linear", x, self.weight(ranks, "weight", (WIDTH, inner), 1), None)
            b = self.weight(ranks, "bias", (WIDTH,))
            if self.has("bias added on every rank", None, self.layer) and name == "down":
                return self.left(ranks, self.each(ranks, "add", y, b))
            return self.each(ranks, "add", self.left(ranks, y), b)

    def norm(self, ranks: Sequence[int], name: str, x: Vars) -> Vars:
        with self.inside(ranks, name):
            w, b = self.weight(ranks, "weight", (WIDTH,), offset=1.0), self.weight(ranks, "bias", (WIDTH,))
            return self.each(ranks, "layer_norm", x, [WIDTH], w, b, 1e-5)

    def mixed(self, ranks: Sequence[int], x: Vars) -> Vars:
        """Retention."""
        x = self.entered(ranks, x)
        q, k, v = (self.column(ranks, name, x, WIDTH) for name in ("query", "key", "value"))
        if self.layout == "cp2":
            k, v = self.gathered(ranks, k), self.gathered(ranks, v)
        cut: list[Vars] = []
        for one in (q, k, v):
            heads = {r: self.tapes[r].reshape(one[r], *one[r].shape[:2], -1, WIDTH // HEADS) for r in ranks}
            cut.append({r: self.tapes[r].transpose(heads[r], 1, 2, 0, 3) for r in ranks})
        turned = {r: self.tapes[r].transpose(cut[1][r], 0, 1, 3, 2) for r in ranks}
        scores = self.each(ranks, "mul", self.each(ranks, "matmul", cut[0], turned), 1.0 / math.sqrt(WIDTH / HEADS))
        decay = {r: self.tapes[r].constant(self.decay(r).astype(np.float32)) for r in ranks}
        y = self.each(ranks, "matmul", self.each(ranks, "mul", scores, decay), cut[2])
        y = {r: self.tapes[r].transpose(y[r], 2, 0, 1, 3) for r in ranks}
        y = {r: self.tapes[r].reshape(y[r], *y[r].shape[:2], -1) for r in ranks}
        return self.row(ranks, "out", y, WIDTH)

    def decay(self, rank: int) -> Array:
        """The share of each word that is left at each later one, for the heads and places of a rank."""
        found = decays(LENGTH, range(HEADS))
        if self.is_split:
            return np.split(found, 2)[rank]
        if self.layout == "cp2":
            is_local = self.has("mask of the local part", None, self.layer)
            return found[:, : LENGTH // 2] if is_local else np.split(found, 2, 1)[rank]
        return found

    def gathered(self, ranks: Sequence[int], x: Vars) -> Vars:
        s, scope = self.session, self.tapes[0].scope
        own = among.tensors(x, ranks)
        made = among.all_gather(s, ranks, own, 0, scope)
        if self.has("keys of one rank", None, self.layer):
            for rank in ranks:
                twice = np.concatenate([own[rank].values] * 2)
                made[rank] = Tensor(twice, own[rank].dtype, s.key(), True)
        return self.joint(ranks, x, made, lambda g: among.reduce_scatter(s, ranks, g, 0, f"{scope}.gradient"))

    def fed(self, ranks: Sequence[int], x: Vars) -> Vars:
        if self.layout in ("ep2", "moe"):
            return self.experts(ranks, x)
        h = self.each(ranks, "gelu", self.column(ranks, "up", self.entered(ranks, x), INNER))
        return self.row(ranks, "down", h, INNER)

    def experts(self, ranks: Sequence[int], x: Vars) -> Vars:
        """Two experts, weighted by a router; on two ranks each has one, and the sum is reduced."""
        with self.inside(ranks, "router"):
            w = self.weight(ranks, "weight", (2, WIDTH), scale=0.6)
            share = self.each(ranks, "softmax", self.each(ranks, "linear", x, w, None), dim=-1)
        if self.layout == "ep2":
            s, scope = self.session, f"{self.tapes[0].scope}.router"
            made = {r: among.alias(s, share[r].tensor) for r in ranks}
            missing = self.has("gradient of the router not reduced", None, self.layer)
            share = self.joint(
                ranks, share, made, lambda g: g if missing else among.all_reduce(s, ranks, g, f"{scope}.gradient")
            )
        if self.layout == "ep2":
            with self.inside(ranks, "experts"):
                x = self.entered(ranks, x)
        total: Optional[Vars] = None
        for number in range(2):
            own = [number] if self.layout == "ep2" else list(ranks)
            with self.inside(own, f"experts.{number}"):
                y = self.each(own, "gelu", self.column(own, "up", x, WIDTH))
                with self.inside(own, "down"):
                    y = self.each(own, "linear", y, self.weight(own, "weight", (WIDTH, WIDTH)), None)
                gate = {r: self.tapes[r].part(share[r], np.s_[..., number : number + 1]) for r in own}
                y = self.each(own, "mul", y, gate)
            if self.layout == "ep2":
                total = {**(total or {}), **y}
            else:
                with self.inside(own, "experts"):
                    total = y if total is None else self.each(own, "add", total, y)
        assert total is not None
        if self.layout == "ep2":
            with self.inside(ranks, "experts"):
                return self.left(ranks, total)
        return total

    # A step

    def local(self, rank: int, words: Array, micro: int) -> Array:
        """The part of a batch (sequence, batch) that a rank computes."""
        if self.layout in ("dp2", "zero2"):
            number = 0 if self.has("same samples on all ranks") else rank
            return np.split(words, 2, 1)[number]
        if self.layout == "acc2":
            return np.split(words, 2, 1)[micro]
        return np.split(words, 2, 0)[rank] if self.layout in ("cp2", "sp2") else words

    def embedded(self, ranks: Sequence[int], micro: int) -> Vars:
        with self.inside(ranks, "embedding"):
            w = self.weight(ranks, "weight", (WORDS, WIDTH), scale=1.0)
            ids = {r: self.tapes[r].constant(self.local(r, self.words[:-1], micro)) for r in ranks}
            x = self.each(ranks, "embedding", ids, w)
        with self.inside(ranks, "positions"):
            angle = np.arange(LENGTH)[:, None] / 20.0 ** (np.arange(WIDTH) / WIDTH)
            places = {}
            for rank in ranks:
                own = np.cos(angle)[:, None]
                if self.layout in ("cp2", "sp2"):
                    own = np.split(own, 2)[0 if self.has("offset of positions missing") else rank]
                places[rank] = self.tapes[rank].constant(own.astype(np.float32))
            return self.each(ranks, "add", x, places)

    def layered(self, ranks: Sequence[int], x: Vars, layer: int) -> Vars:
        self.layer = layer
        with self.inside(ranks, f"layers.{layer}"):
            x = self.each(ranks, "add", x, self.mixed(ranks, self.norm(ranks, "norm1", x)))
            h = self.fed(ranks, self.norm(ranks, "norm2", x))
            if self.plan.dropout:
                seeds = dict.fromkeys(ranks, 100 * self.plan.seed % 10_000_000 + 10 * self.step + layer)
                if self.has("dropout of another seed on a rank", None, layer):
                    seeds[self.bug.rank] += 7
                h = self.each(ranks, "dropout", h, self.plan.dropout, True, seed=seeds)
            return self.each(ranks, "add", x, h)

    def loss(self, ranks: Sequence[int], x: Vars, micro: int) -> Vars:
        x, s = self.norm(ranks, "norm", x), self.session
        if self.layout == "sp2":
            made = among.all_gather(s, ranks, among.tensors(x, ranks), 0, "norm")

            def back(g: Any) -> Any:
                halves = {r: np.ascontiguousarray(np.split(one.values, 2)[r]) for r, one in g.items()}
                return {r: Tensor(half, g[r].dtype, s.key()) for r, half in halves.items()}

            x = self.joint(ranks, x, made, back)
        with self.inside(ranks, "embedding" if self.plan.tied else "head"):
            w = self.weight(ranks, "weight", (WORDS, WIDTH), scale=1.0)
        with self.inside(ranks, "head"):
            x = self.each(ranks, "mul", self.each(ranks, "linear", x, w, None), 1.0 / math.sqrt(WIDTH))
        flat = {r: self.tapes[r].reshape(x[r], -1, WORDS) for r in ranks}
        with self.inside(ranks, "loss"):
            whole = self.layout == "sp2"
            words = {r: self.words[1:] if whole else self.local(r, self.words[1:], micro) for r in ranks}
            labels = {r: self.tapes[r].constant(words[r].reshape(-1)) for r in ranks}
            loss = self.each(ranks, "cross_entropy", flat, labels)
            if self.layout == "acc2" and not self.has("loss of a micro batch not divided"):
                loss = self.each(ranks, "mul", loss, 0.5)
        return loss

    def run(self) -> None:
        """Forward, backward, gradients reduced, an update."""
        ranks, s = [*self.tapes], self.session
        for micro in range(2 if self.layout == "acc2" else 1):
            stages = [[0], [1]] if self.layout == "pp2" else [ranks]
            x = self.embedded(stages[0], micro)
            for layer in range(self.plan.layers):
                stage = stages[layer * len(stages) // self.plan.layers]
                if len(stages) > 1 and layer == self.plan.layers // 2:
                    x = self.sent(x)
                x = self.layered(stage, x, layer)
            self.session.backward([*self.loss(stages[-1], x, micro).values()])
            s.nodes = []
        self.used = [{name: one.copy() for name, one in w.values.items()} for w in self.weights]
        if self.layout == "zero2":
            self.update_shards()
        else:
            self.reduce()
            self.update()

    def sent(self, x: Vars) -> Vars:
        s, given = self.session, x[0].tensor
        if self.has("activation of the batch before"):
            given = Tensor(np.ascontiguousarray(given.values[:, ::-1]), given.dtype, s.key(), True)
        arrived = among.move(s, 0, 1, given)
        found = among.joint({0: self.tapes[0]}, [0], x, {0: arrived}, lambda g: {0: among.move(s, 1, 0, g[0])})
        return {1: found[0]}


class Ran(NamedTuple):
    """Recorded runs, and the sessions."""

    runs: list[Run]
    sessions: list[Session]


def run(plan: Plan, bug: Bug = Bug()) -> Ran:
    """All steps of all ranks."""
    count = RANKS[plan.layout]
    weights = [Weights(plan.seed) for _ in range(count)]
    older: list[dict[str, Array]] = [{} for _ in range(count)]
    sessions = []
    for step in range(plan.steps):
        session = Session(plan.device, plan.precision, {}, step, count)
        cluster = Cluster(session, plan, weights, bug, older)
        cluster.run()
        older = cluster.used
        sessions.append(session)
    return Ran([run for one in sessions for run in one.runs()], sessions)
