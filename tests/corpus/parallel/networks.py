"""A GPT as Megatron splits it: tensor, sequence, context, data and pipeline parallel, micro batches, one training step.

All ranks are computed in lockstep, each on a tape of its own. Activations are (sequence, batch, width). A Fault may
strike at the places that `_struck` names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.device import Array
from tests.corpus.networks import Weights
from tests.corpus.parallel import collectives as among
from tests.corpus.parallel import experts, sharded_update
from tests.corpus.parallel.collectives import Tensors, Vars
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.layout import Layout, part, positions
from tests.corpus.parallel.lockstep import Lockstep
from tests.corpus.tape import Session, Tape, Var
from tests.corpus.trace import Record, Tensor

LOWEST = -10000.0  # of masked scores, as Megatron has it
RATE = 0.5


class Design(NamedTuple):
    """Sizes and choices of the network.

    fused    "blocks": q, k and v of all heads in a row; "groups": by key head; "": three products
    gated    SiLU of a gate times the other half; else GELU
    tied     the head is the embedding
    experts  of a mixture in place of the MLP, of which `choices` compute each token; permuted: tokens stand side by
             side in the order of experts, else each expert picks its own
    parallel_loss  the loss is computed on parts of the vocabulary; else logits are gathered before it
    """

    batch: int = 4
    length: int = 8
    width: int = 16
    heads: int = 4
    keys: int = 4
    layers: int = 2
    inner: int = 24
    words: int = 48
    fused: str = "groups"
    gated: bool = False
    tied: bool = False
    rms: bool = False
    parallel_loss: bool = True
    rope: bool = True
    clip: bool = False
    experts: int = 0
    choices: int = 2
    permuted: bool = False
    apart: bool = False  # the last bias of an expert is added behind its product


class Network(Lockstep):
    """One step on all ranks of a layout."""

    def __init__(
        self, session: Session, layout: Layout, design: Design, weights: Weights, seed: int, fault: Fault = Fault()
    ) -> None:
        self.session, self.layout, self.design, self.weights, self.fault = session, layout, design, weights, fault
        self.tapes = {rank: Tape(session, rank) for rank in range(layout.ranks)}
        self._known: dict[tuple[int, str], Var] = {}
        self.stored: dict[tuple[int, str], Array] = {}  # parameters of a rank before any gather
        self._replicated: set[str] = set()  # parameters that all tensor ranks hold whole
        self._shards: dict[str, Callable[[Array, int], Array]] = {}
        draw = np.random.RandomState([seed, 77])
        self.ids = draw.randint(0, design.words, (design.length + 1, design.batch))
        self._stale: dict[tuple[int, int], Tensor] = {}  # by rank and chunk

    # Parts and scopes

    def _struck(self, kind: str, rank: Optional[int] = None) -> bool:
        """Whether the fault is of this kind, here."""
        scope = next(iter(self.tapes.values())).scope if rank is None else self.tapes[rank].scope
        return self.fault.strikes(kind, scope, rank, self.session.step)

    @contextmanager
    def _inside(self, ranks: Sequence[int], name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for rank in ranks:
                stack.enter_context(self.tapes[rank].inside(name))
            yield

    def _groups(self, ranks: Sequence[int], *axes: str) -> list[list[int]]:
        found = {tuple(self.layout.group(rank, *axes)) for rank in ranks}
        return [list(group) for group in sorted(found)]

    def weight(
        self,
        ranks: Sequence[int],
        name: str,
        shape: Sequence[int],
        axis: Optional[int] = None,
        blocks: Sequence[int] = (),
        offset: float = 0.0,
        scale: float = 0.0,
    ) -> Vars:
        """A parameter; `axis`: along which tensor ranks split it, in these blocks."""
        found = {}
        for rank in ranks:
            tape = self.tapes[rank]
            path = f"{tape.scope}.{name}" if tape.scope else name
            if (rank, path) not in self._known:
                scale = scale or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
                whole = self.weights.get(path, tuple(shape), scale, offset)
                if axis is None:
                    self._replicated.add(path)
                    self._shards[path] = lambda values, r: values
                else:

                    def shard(
                        values: Array, r: int, axis: int = axis, blocks: Any = tuple(blocks), path: str = path
                    ) -> Array:
                        count = self.layout.tp
                        number = self.layout.at(r, "tp")
                        if self.fault.strikes("shard order", path, None, 0):
                            number = (number + 1) % count
                        if self.fault.strikes("blocks ignored", path.rpartition(".")[0], None, 0):
                            blocks = ()
                        return part(values, axis, number, count, blocks)

                    self._shards[path] = shard
                values = self._shards[path](whole, rank)
                self.stored[rank, path] = values
                if self.layout.zero.startswith("fsdp"):
                    values = sharded_update.gather_parameter(self, rank, path, values)
                if self.fault.strikes("replica differs", path, rank, self.session.step):
                    values = values + self.fault.size * np.abs(values).mean() * np.sign(
                        np.cos(np.arange(values.size))
                    ).reshape(values.shape)
                self._known[rank, path] = tape.weight(path, values)
            found[rank] = self._known[rank, path]
        return found

    # What tensor ranks do together

    def _enter(self, ranks: Sequence[int], x: Vars) -> Vars:
        """From what all tensor ranks hold (sp: a part of the sequence each) to what column-parallel layers read."""
        if self.layout.tp == 1:
            return x
        out: Vars = {}
        scope = self.tapes[ranks[0]].scope
        for group in self._groups(ranks, "tp"):
            own = among.tensors(x, group)
            if self.layout.sp:
                order = [*range(1, len(group)), 0] if self._struck("gather order", group[0]) else None
                made = among.all_gather(self.session, group, own, 0, scope, order)
            else:
                made = {rank: among.alias(self.session, one) for rank, one in own.items()}

            def back(arrived: Tensors, group: list[int] = group, scope: str = scope) -> Tensors:
                if self.fault.strikes("backward not reduced", scope, group[0], self.session.step):
                    return arrived
                if self.layout.sp:
                    return among.reduce_scatter(self.session, group, arrived, 0, scope)
                return among.all_reduce(self.session, group, arrived, scope)

            out.update(among.joint(self.tapes, group, x, made, back))
        return out

    def _leave(self, ranks: Sequence[int], x: Vars) -> Vars:
        """From partial sums to what all tensor ranks hold."""
        if self.layout.tp == 1:
            return x
        out: Vars = {}
        scope = self.tapes[ranks[0]].scope
        wrong = self._struck("wrong group", ranks[0])
        axes = ("dp",) if wrong and self.layout.dp > 1 else ("cp",) if wrong and self.layout.cp > 1 else ("tp",)
        groups = self._groups(ranks, *axes)
        if wrong and axes == ("tp",):
            groups = [group[k : k + 2] for group in groups for k in range(0, len(group), 2)]
        for group in groups:
            own = among.tensors(x, group)
            missing = self._struck("not reduced", group[0])
            if self.layout.sp:
                made = among.reduce_scatter(self.session, group, own, 0, scope)
            elif missing:
                made = {rank: among.alias(self.session, one) for rank, one in own.items()}
            else:
                made = among.all_reduce(self.session, group, own, scope)

            def back(arrived: Tensors, group: list[int] = group, scope: str = scope) -> Tensors:
                return among.all_gather(self.session, group, arrived, 0, scope) if self.layout.sp else arrived

            out.update(among.joint(self.tapes, group, x, made, back))
        return out

    def _row(self, ranks: Sequence[int], name: str, x: Vars, width: int, inner: int) -> Vars:
        """A row-parallel layer with its bias behind the reduction."""
        with self._inside(ranks, name):
            w = self.weight(ranks, "weight", (width, inner), 1)
            b = self.weight(ranks, "bias", (width,))
            y = self._each(ranks, "linear", x, w)
            if self._struck("bias per rank", ranks[0]):
                return self._leave(ranks, self._each(ranks, "add", y, b))
            return self._each(ranks, "add", self._leave(ranks, y), b)

    def _norm(self, ranks: Sequence[int], name: str, x: Vars) -> Vars:
        n = self.design.width
        with self._inside(ranks, name):
            w = self.weight(ranks, "weight", (n,), offset=1.0)
            if self.design.rms:
                return self._each(ranks, "rms_norm", x, [n], w, 1e-6)
            return self._each(ranks, "layer_norm", x, [n], w, self.weight(ranks, "bias", (n,)), 1e-5)

    # Layers

    def _local(self, rank: int, values: Array, micro: int) -> Array:
        """The part of a batch (sequence, batch) that a rank computes in a micro batch."""
        layout = self.layout
        data = layout.data_part(rank)
        if self.fault.strikes("same data", "data", rank, self.session.step):
            data = 0
        own = np.split(values, layout.data_parts, 1)[data]
        own = np.split(own, layout.micro, 1)[micro]
        places = positions(layout, rank, len(values))
        if self.fault.strikes("contiguous data", "data", None, self.session.step):
            places = positions(layout._replace(zigzag=not layout.zigzag), rank, len(values))
        return own[places]

    def _masked(self, rank: int, ids: Array, first: int, last: int) -> tuple[Var, Var]:
        """Numbers within a part of the vocabulary, 0 elsewhere, and where elsewhere is. Only a part has the records."""
        tape, session = self.tapes[rank], self.session
        mask = (ids < first) | (ids >= last)
        inside = tape.constant(np.where(mask, 0, ids - first))
        if self.layout.tp > 1:
            whole, shifted, where = tape.constant(ids), tape.constant(ids - first), tape.constant(mask)
            for kind, given, made in (
                ("sub", (whole.tensor, first), shifted),
                ("masked_fill", (shifted.tensor, where.tensor, 0), inside),
            ):
                record = Record(kind, "forward", session.call(rank, kind), tape.scope, given, (made.tensor,))
                session.records.append((rank, record))
        return inside, tape.constant(mask[..., None])

    def _embedded(self, ranks: Sequence[int], micro: int) -> Vars:
        d, tp = self.design, self.layout.tp
        with self._inside(ranks, "embedding"):
            w = self.weight(ranks, "weight", (d.words, d.width), 0, scale=1.0)
            ids, masks = {}, {}
            for rank in ranks:
                own = self._local(rank, self.ids[:-1], micro)
                first = self.layout.at(rank, "tp") * d.words // tp
                last = first + d.words // tp
                if self.fault.strikes("vocabulary edge", "embedding", rank, self.session.step):
                    last -= (last - first) // 3
                ids[rank], masks[rank] = self._masked(rank, own, first, last)
            x = self._each(ranks, "embedding", ids, w)
            if tp > 1:
                x = self._leave(ranks, self._each(ranks, "masked_fill", x, masks, 0.0))
        return x

    def _attention(self, ranks: Sequence[int], x: Vars) -> Vars:
        d, tp = self.design, self.layout.tp
        size, heads, keys = d.width // d.heads, d.heads // tp, d.keys // tp
        per = d.heads // d.keys
        x = self._enter(ranks, x)
        widths = (d.heads * size, d.keys * size, d.keys * size)
        q, k, v = {}, {}, {}
        if d.fused:
            with self._inside(ranks, "qkv"):
                blocks = widths if d.fused == "blocks" else ()
                w = self.weight(ranks, "weight", (sum(widths), d.width), 0, blocks)
                b = self.weight(ranks, "bias", (sum(widths),), 0, blocks)
                y = self._each(ranks, "linear", x, w, b)
            for rank in ranks:
                tape, one = self.tapes[rank], y[rank]
                if d.fused == "groups":
                    one = tape.reshape(one, *one.shape[:2], keys, (per + 2), size)
                    cuts = [np.s_[:, :, :, :per], np.s_[:, :, :, per : per + 1], np.s_[:, :, :, per + 1 :]]
                else:
                    one = tape.reshape(one, *one.shape[:2], heads + 2 * keys, size)
                    cuts = [np.s_[:, :, :heads], np.s_[:, :, heads : heads + keys], np.s_[:, :, heads + keys :]]
                for into, cut, count in zip((q, k, v), cuts, (heads, keys, keys)):
                    into[rank] = tape.reshape(tape.part(one, cut), *one.shape[:2], count, size)
        else:
            for into, name, width, count in zip((q, k, v), ("query", "key", "value"), widths, (heads, keys, keys)):
                with self._inside(ranks, name):
                    w = self.weight(ranks, "weight", (width, d.width), 0)
                    b = self.weight(ranks, "bias", (width,), 0)
                    made = self._each(ranks, "linear", x, w, b)
                for rank in ranks:
                    one = made[rank]
                    into[rank] = self.tapes[rank].reshape(one, *one.shape[:2], count, size)
        q, k, v = ({rank: self.tapes[rank].transpose(one[rank], 1, 2, 0, 3) for rank in ranks} for one in (q, k, v))
        if d.rope:
            cos, sin = {}, {}
            for rank in ranks:
                places = positions(self.layout, rank, d.length)
                if self._struck("wrong positions", rank):
                    places = np.arange(len(places))
                angle = places[:, None] * 100.0 ** -(np.arange(0, size, 2) / size)
                wide = np.concatenate([angle, angle], -1)
                cos[rank], sin[rank] = self.tapes[rank].constant(np.cos(wide)), self.tapes[rank].constant(np.sin(wide))
            q, k = self._each(ranks, "rope", q, cos, sin), self._each(ranks, "rope", k, cos, sin)
        k, v = self._whole_sequence(ranks, k), self._whole_sequence(ranks, v)
        if per > 1:
            k, v = ({rank: self.tapes[rank].repeated(one[rank], per) for rank in ranks} for one in (k, v))
        turned = {rank: self.tapes[rank].transpose(k[rank], 0, 1, 3, 2) for rank in ranks}
        scores = self._each(ranks, "matmul", q, turned)
        scores = self._each(ranks, "div", scores, math.sqrt(size))
        masks = {}
        for rank in ranks:
            places = positions(self.layout, rank, d.length)
            if self._struck("local mask", rank):
                places = np.arange(len(places))
            masks[rank] = self.tapes[rank].constant(np.arange(d.length)[None, :] > places[:, None])
        scores = self._each(ranks, "masked_fill", scores, masks, LOWEST)
        weights = self._each(ranks, "softmax", scores, dim=-1)
        y = self._each(ranks, "matmul", weights, v)
        for rank in ranks:
            tape, one = self.tapes[rank], y[rank]
            one = tape.transpose(one, 2, 0, 1, 3)
            y[rank] = tape.reshape(one, *one.shape[:2], heads * size)
        return self._row(ranks, "proj", y, d.width, d.heads * size)

    def _whole_sequence(self, ranks: Sequence[int], x: Vars) -> Vars:
        """Keys or values of all context ranks, in the order of the sequence."""
        if self.layout.cp == 1:
            return x
        out: Vars = {}
        for group in self._groups(ranks, "cp"):
            own = among.tensors(x, group)
            if self._struck("keys not gathered", group[0]):
                whole = {
                    r: Tensor(np.concatenate([one.values] * len(group), 2), one.dtype, self.session.key(), True)
                    for r, one in own.items()
                }
            else:
                whole = among.all_gather(self.session, group, own, 2)
            length = self.design.length
            places = np.concatenate([positions(self.layout, rank, length) for rank in group])
            order = np.argsort(places)

            def back(arrived: Tensors, group: list[int] = group, places: Array = places) -> Tensors:
                inward = {
                    r: Tensor(np.ascontiguousarray(one.values[:, :, places]), one.dtype, self.session.key())
                    for r, one in arrived.items()
                }
                return among.reduce_scatter(self.session, group, inward, 2)

            made = {
                r: Tensor(np.ascontiguousarray(one.values[:, :, order]), one.dtype, one.key, True)
                for r, one in whole.items()
            }
            out.update(among.joint(self.tapes, group, x, made, back))
        return out

    def _mlp(self, ranks: Sequence[int], x: Vars) -> Vars:
        d, tp = self.design, self.layout.tp
        x = self._enter(ranks, x)
        with self._inside(ranks, "up"):
            width = d.inner * (2 if d.gated else 1)
            blocks = (d.inner, d.inner) if d.gated else ()
            w = self.weight(ranks, "weight", (width, d.width), 0, blocks)
            b = self.weight(ranks, "bias", (width,), 0, blocks)
            y = self._each(ranks, "linear", x, w, b)
        if d.gated:
            half = d.inner // tp
            gate = {rank: self.tapes[rank].part(y[rank], np.s_[..., :half]) for rank in ranks}
            other = {rank: self.tapes[rank].part(y[rank], np.s_[..., half:]) for rank in ranks}
            y = self._each(ranks, "mul", self._each(ranks, "silu", gate), other)
        else:
            y = self._each(ranks, "gelu", y)
        return self._row(ranks, "down", y, d.width, d.inner)

    def _loss(self, ranks: Sequence[int], x: Vars, micro: int) -> Vars:
        d, _tp = self.design, self.layout.tp
        x = self._norm(ranks, "norm", x)
        x = self._enter(ranks, x)
        with self._inside(ranks, "embedding" if d.tied else "head"):
            w = self.weight(ranks, "weight", (d.words, d.width), 0, scale=1.0 if d.tied else 0.0)
        with self._inside(ranks, "head"):
            logits = self._each(ranks, "linear", x, w)
        with self._inside(ranks, "loss"):
            labels = {rank: self._local(rank, self.ids[1:], micro) for rank in ranks}
            if not d.parallel_loss:
                loss = self._whole_loss(ranks, logits, labels)
            else:
                loss = self._parallel_loss(ranks, logits, labels)
            if self.layout.micro > 1 and not self._struck("micro undivided", ranks[0]):
                loss = self._each(ranks, "div", loss, self.layout.micro)
        return loss

    def _whole_loss(self, ranks: Sequence[int], logits: Vars, labels: dict[int, Array]) -> Vars:
        if self.layout.tp > 1:
            out: Vars = {}
            for group in self._groups(ranks, "tp"):
                made = among.all_gather(self.session, group, among.tensors(logits, group), 2, "loss")

                def back(arrived: Tensors, group: list[int] = group) -> Tensors:
                    return {
                        r: Tensor(
                            np.ascontiguousarray(np.split(one.values, len(group), 2)[k]), one.dtype, self.session.key()
                        )
                        for k, (r, one) in enumerate(arrived.items())
                    }

                out.update(among.joint(self.tapes, group, logits, made, back))
            logits = out
        flat = {rank: self.tapes[rank].reshape(logits[rank], -1, self.design.words) for rank in ranks}
        words = {rank: self.tapes[rank].constant(labels[rank].reshape(-1)) for rank in ranks}
        return self._each(ranks, "cross_entropy", flat, words)

    def _parallel_loss(self, ranks: Sequence[int], logits: Vars, labels: dict[int, Array]) -> Vars:
        d, tp = self.design, self.layout.tp
        free = {rank: self.tapes[rank].detached(logits[rank]) for rank in ranks}
        most = self._each(ranks, "amax", free, dim=-1)
        if tp > 1 and not self._struck("maximum not reduced", ranks[0]):
            for group in self._groups(ranks, "tp"):
                made = among.maximum(self.session, group, among.tensors(most, group), "loss")
                most.update({rank: Var(one) for rank, one in made.items()})
        most = {rank: self.tapes[rank].reshape(most[rank], *most[rank].shape, 1) for rank in ranks}
        z = self._each(ranks, "sub", logits, most)
        index, masks = {}, {}
        for rank in ranks:
            first = self.layout.at(rank, "tp") * d.words // tp
            inside, masks[rank] = self._masked(rank, labels[rank], first, first + d.words // tp)
            index[rank] = self.tapes[rank].reshape(inside, *inside.shape, 1)
        picked = self._each(ranks, "gather", z, 2, index)
        picked = self._each(ranks, "masked_fill", picked, masks, 0.0)
        picked = self._reduced(ranks, picked, "picked not reduced")
        e = self._each(ranks, "exp", z)
        total = self._each(ranks, "sum", e, dim=-1, keepdim=True)
        total = self._reduced(ranks, total, "sum not reduced")
        loss = self._each(ranks, "sub", self._each(ranks, "log", total), picked)
        loss = {rank: self.tapes[rank].reshape(loss[rank], -1) for rank in ranks}
        return self._each(ranks, "mean", loss, dim=0)

    def _reduced(self, ranks: Sequence[int], x: Vars, fault: str) -> Vars:
        if self.layout.tp == 1 or self._struck(fault, ranks[0]):
            return x
        out: Vars = {}
        for group in self._groups(ranks, "tp"):
            made = among.all_reduce(self.session, group, among.tensors(x, group), "loss")
            out.update(among.joint(self.tapes, group, x, made, lambda arrived: arrived))
        return out

    # A step

    def forward(self, micro: int) -> Vars:
        d, layout = self.design, self.layout
        x: Vars = {}
        chunks = layout.pp * layout.vpp
        for chunk in range(chunks):
            ranks, before = layout.stage(chunk % layout.pp), layout.stage((chunk - 1) % layout.pp)
            x = self._embedded(ranks, micro) if chunk == 0 else self._sent(before, ranks, x, chunk)
            first, last = chunk * d.layers // chunks, (chunk + 1) * d.layers // chunks
            for layer in range(first, last):
                with self._inside(ranks, f"layers.{layer}"):
                    x = sharded_update.gathered(self, ranks, x, lambda x, ranks=ranks: self._layer(ranks, x))  # type: ignore[misc]
        return self._loss(layout.stage(layout.pp - 1), x, micro)

    def _layer(self, ranks: Sequence[int], x: Vars) -> Vars:
        h = self._attention(ranks, self._norm(ranks, "norm1", x))
        x = self._each(ranks, "add", x, h)
        h = self._norm(ranks, "norm2", x)
        h = experts.mixture(self, ranks, h) if self.design.experts else self._mlp(ranks, h)
        return self._each(ranks, "add", x, h)

    def _sent(self, sources: Sequence[int], sinks: Sequence[int], x: Vars, chunk: int) -> Vars:
        out: Vars = {}
        for source, sink in zip(sources, sinks):
            given = x[source].tensor
            if (
                self.fault.strikes("stale activation", "stage", sink, self.session.step)
                and (source, chunk) in self._stale
            ):
                given = self._stale[source, chunk]
            self._stale[source, chunk] = x[source].tensor
            arrived = among.move(self.session, source, sink, given)

            def back(gradients: Tensors, source: int = source, sink: int = sink) -> Tensors:
                return {source: among.move(self.session, sink, source, gradients[source])}

            node = among.joint({source: self.tapes[source]}, [source], x, {source: arrived}, back)
            out[sink] = node[source]
        return out

    def step(self) -> None:
        """Forward and backward of all micro batches, gradients reduced, an update of SGD."""
        todo = []
        for micro in range(self.layout.micro):
            losses = self.forward(micro)
            todo.append((self.session.nodes, losses))
            self.session.nodes = []
            if not self.layout.ahead or micro + 1 == self.layout.micro:
                for nodes, some in todo:
                    self.session.nodes = nodes
                    self.session.backward([*some.values()])
                self.session.nodes, todo = [], []
        self._reduce_gradients()
        if self.layout.zero:
            sharded_update.update(self, self._gradients())
        else:
            self._update()

    def _gradients(self) -> dict[str, Tensors]:
        found: dict[str, Tensors] = defaultdict(dict)
        for (rank, name), one in sorted(self.session.weight_gradients.items(), key=lambda both: both[0][1]):
            found[name][rank] = one
        return found

    def _reduce_gradients(self) -> None:
        layout, session = self.layout, self.session
        for name, parts in self._gradients().items():
            if (
                layout.sp
                and name in self._replicated
                and not self.fault.strikes("norm not reduced", name, None, session.step)
            ):
                for group in self._groups([*parts], "tp"):
                    parts.update(among.all_reduce(session, group, parts))
            tied = self.design.tied and name == "embedding.weight" and layout.pp > 1
            if tied and not self.fault.strikes("tied not reduced", name, None, session.step):
                for group in self._groups([*parts], "pp"):
                    parts.update(among.all_reduce(session, [r for r in group if r in parts], parts))
            count = 1 if layout.zero else layout.data_parts * layout.cp
            axes = ("dp",) if experts.is_expert(name) else layout.data_axes
            if count > 1 and not self.fault.strikes("gradient not reduced", name, None, session.step):
                for group in self._groups([*parts], "cp", *axes):
                    if len(group) > 1:
                        parts.update(among.all_reduce(session, group, parts))
                if not self.fault.strikes("undivided", name, None, session.step):
                    made = self._each([*parts], "div", {r: Var(one) for r, one in parts.items()}, float(count))
                    parts.update({r: one.tensor for r, one in made.items()})
            if self.fault.strikes("doubled", name, None, session.step):
                made = {r: Tensor(2 * one.values, one.dtype, session.key()) for r, one in parts.items()}
                parts.update(made)
            for rank, one in parts.items():
                session.weight_gradients[rank, name] = one

    def _update(self) -> None:
        gradients = {name: {r: Var(one) for r, one in parts.items()} for name, parts in self._gradients().items()}
        if self.design.clip:
            ranks = [*range(self.layout.ranks)]
            gradients = dict(zip(gradients, sharded_update.clipped(self, ranks, [*gradients.values()])))
        for name, free in gradients.items():
            ranks = [*free]
            with self._inside(ranks, "optimizer"), self._inside(ranks, name):
                step = self._each(ranks, "mul", free, RATE)
                w = {rank: self.tapes[rank].detached(self._known[rank, name]) for rank in ranks}
                self._each(ranks, "sub", w, step)


class Ran(NamedTuple):
    """One step of all ranks."""

    session: Session
    network: Network
