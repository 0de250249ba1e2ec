"""What ranks do together, as torch.distributed does it and msprobe records it. A collective within a backward pass is
recorded as a forward call, as msprobe does."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from tests.corpus.device import Array, rounded
from tests.corpus.tape import Node, Session, Tape, Var
from tests.corpus.trace import Record, Tensor
from tests.corpus.writers.msprobe import Group

Vars = dict[int, Var]
Tensors = dict[int, Tensor]


def _stored(values: Array, like: Tensor) -> Array:
    return np.asarray(rounded(values, like.dtype).astype(like.values.dtype), order="C")


def communicate(
    session: Session,
    kind: str,
    group: Sequence[int],
    parts: Mapping[int, Tensor],
    made: Callable[..., list[Array]],
    buffered: bool = False,
    scope: str = "",
) -> Tensors:
    """One call on each rank of a group; `made` has the values of all ranks and returns what each gets."""
    wide = [np.asarray(parts[rank].values, np.float64) for rank in group]
    found = {}
    for rank, values in zip(group, made(wide)):
        like = parts[rank]
        out = Tensor(_stored(values, like), like.dtype, session.key(), like.needs_grad)
        empty = Tensor(np.zeros_like(out.values), like.dtype, session.key())
        inputs: tuple[Any, ...] = (empty, like) if buffered else (like,)
        call = session.call(rank, kind)
        session.records.append((rank, Record(kind, "forward", call, scope, inputs, (out,), {"group": Group(group)})))
        found[rank] = out
    return found


def all_reduce(session: Session, group: Sequence[int], parts: Mapping[int, Tensor], scope: str = "") -> Tensors:
    return communicate(session, "all_reduce", group, parts, lambda all: [sum(all[1:], all[0])] * len(all), scope=scope)


def maximum(session: Session, group: Sequence[int], parts: Mapping[int, Tensor], scope: str = "") -> Tensors:
    return communicate(
        session, "all_reduce", group, parts, lambda all: [np.maximum.reduce(all)] * len(all), scope=scope
    )


def all_gather(
    session: Session,
    group: Sequence[int],
    parts: Mapping[int, Tensor],
    axis: int,
    scope: str = "",
    order: Optional[Sequence[int]] = None,
) -> Tensors:
    """`order`: a wrong one, of the ranks' parts."""

    def made(all: list[Array]) -> list[Array]:
        some = [all[k] for k in order] if order else all
        return [np.concatenate(some, axis)] * len(all)

    return communicate(session, "all_gather", group, parts, made, True, scope)


def reduce_scatter(
    session: Session, group: Sequence[int], parts: Mapping[int, Tensor], axis: int, scope: str = ""
) -> Tensors:
    def made(all: list[Array]) -> list[Array]:
        return np.split(sum(all[1:], all[0]), len(all), axis)

    return communicate(session, "reduce_scatter", group, parts, made, True, scope)


def all_to_all(
    session: Session, group: Sequence[int], parts: Mapping[int, Tensor], sent: Array, scope: str = ""
) -> Tensors:
    """Rows of each rank to each rank; `sent`: how many, by source and sink."""

    def made(all: list[Array]) -> list[Array]:
        cut = [np.split(one, np.cumsum(counts)[:-1]) for one, counts in zip(all, sent)]
        return [np.concatenate([pieces[sink] for pieces in cut]) for sink in range(len(all))]

    return communicate(session, "all_to_all", group, parts, made, True, scope)


def joint(
    tapes: Mapping[int, Tape], group: Sequence[int], items: Vars, made: Tensors, back: Callable[[Tensors], Tensors]
) -> Vars:
    """Outputs of a collective whose gradients `back` makes, by rank."""
    first = tapes[group[0]]
    out = [Var(made[rank]) for rank in group]

    def reversed_(arrived: list[Optional[Tensor]]) -> list[Optional[Tensor]]:
        known = {}
        for rank, one, var in zip(group, arrived, out):
            zero = Tensor(np.zeros_like(var.tensor.values), var.dtype, first.session.key())
            known[rank] = zero if one is None else one
        found = back(known)
        return [found.get(rank) for rank in group]

    node = Node(
        group[0], "joint", 0, first.scope, "", [items[rank] for rank in group], {}, out, recorded=False, joint=reversed_
    )
    first.session.nodes.append(node)
    for one in out:
        one.node = node
    return dict(zip(group, out))


def tensors(parts: Vars, group: Sequence[int]) -> Tensors:
    return {rank: parts[rank].tensor for rank in group}


def alias(session: Session, one: Tensor) -> Tensor:
    return Tensor(one.values, one.dtype, one.key, one.needs_grad)


def turned(session: Session, one: Tensor) -> Tensor:
    """Rows in the opposite order."""
    return Tensor(np.ascontiguousarray(one.values[::-1]), one.dtype, session.key(), one.needs_grad)


def move(session: Session, source: int, sink: int, one: Tensor) -> Tensor:
    """A send and its receive."""
    call = session.call(source, "send")
    session.records.append((source, Record("send", "forward", call, "", (one, sink), (one,))))
    call = session.call(sink, "recv")
    arrived = Tensor(one.values.copy(), one.dtype, session.key(), one.needs_grad)
    session.records.append((sink, Record("recv", "forward", call, "", (None, source), (arrived,))))
    return arrived
