"""What ranks do together: sums, gathers, sends and receives, forward and on the way back, with the records that dump
tools make of them. A call inside a backward is recorded as a forward of its own, as msprobe does."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from tests.corpus.device import Arithmetic, Array, rounded
from tests.corpus.tape import Address, Node, Plant, Session, Tape, Var
from tests.corpus.trace import Record, Tensor


class Skip(Plant):
    """A collective that one side never calls, on any rank: later calls have its number."""


def all_reduce(session: Session, parts: Sequence[Tensor], scope: str = "") -> list[Tensor]:
    """The sum of all ranks' tensors, on each rank."""
    found = []
    for rank, part in enumerate(parts):
        call = session.call(rank, "all_reduce")
        address = Address(session.step, rank, "forward", "all_reduce", call)
        if isinstance(session.plants.get(address), Skip) and address not in session.skipped:
            session.skipped.add(address)
            session.uncall(rank, "all_reduce")
            found.append(part)
            continue
        values = [np.asarray(parts[k].values, np.float64) for k in (rank, *(k for k in range(len(parts)) if k != rank))]

        def summed(a: Arithmetic, given: list[Any], keywords: Any) -> list[Array]:
            return [a.r(sum(given[1:], given[0]))]

        (total,) = session.compute(address, "", values, {}, summed, lambda k, d=part.dtype: False if k is None else d)
        assert total is not None
        made = Tensor(total, part.dtype, session.key(), part.needs_grad)
        session.records.append((rank, Record("all_reduce", "forward", call, scope, (part,), (made,))))
        found.append(made)
    return found


def _joint(tapes: Sequence[Tape], items: list[Var], made: list[Tensor], back: Any) -> list[Var]:
    out = [Var(one) for one in made]
    node = Node(0, "joint", 0, tapes[0].scope, "", list(items), {}, out, recorded=False, joint=back)
    tapes[0].session.nodes.append(node)
    for one in out:
        one.node = node
    return out


def summed(tapes: Sequence[Tape], parts: Sequence[Var]) -> list[Var]:
    """The partial products of a layer that is split by rows; the gradient passes as it is."""
    made = all_reduce(tapes[0].session, [part.tensor for part in parts], tapes[0].scope)
    return _joint(tapes, list(parts), made, lambda arrived: arrived)


def spread(tapes: Sequence[Tape], parts: Sequence[Var]) -> list[Var]:
    """What all ranks read of one tensor; its gradient is the sum of theirs."""
    session = tapes[0].session
    same = [Tensor(part.tensor.values, part.dtype, part.tensor.key, part.tensor.needs_grad) for part in parts]

    def back(arrived: list[Optional[Tensor]]) -> list[Optional[Tensor]]:
        known = [one for one in arrived if one is not None]
        return list(all_reduce(session, known)) if len(known) == len(arrived) else arrived

    return _joint(tapes, list(parts), same, back)


def gathered(tapes: Sequence[Tape], parts: Sequence[Var]) -> list[Var]:
    """The parts of all ranks side by side along the last axis, on each rank."""
    session = tapes[0].session
    made = []
    for rank, part in enumerate(parts):
        call = session.call(rank, "all_gather")
        address = Address(session.step, rank, "forward", "all_gather", call)
        values = [np.asarray(one.tensor.values, np.float64) for one in parts]

        def joined(a: Arithmetic, given: list[Any], keywords: Any) -> list[Array]:
            return [np.concatenate(given, -1)]

        (whole,) = session.compute(address, "", values, {}, joined, lambda k, d=part.dtype: k is None or d)
        assert whole is not None
        kept = Tensor(whole, part.dtype, session.key(), True)
        empty = Tensor(np.zeros_like(whole), part.dtype, session.key())
        session.records.append((rank, Record("all_gather", "forward", call, "", (empty, part.tensor), (kept,))))
        made.append(kept)
    widths = np.cumsum([part.shape[-1] for part in parts])[:-1]

    def back(arrived: list[Optional[Tensor]]) -> list[Optional[Tensor]]:
        whole = next(one for one in arrived if one is not None)
        return [Tensor(np.ascontiguousarray(g), whole.dtype, session.key()) for g in np.split(whole.values, widths, -1)]

    return _joint(tapes, list(parts), made, back)


def _moved(session: Session, source: int, sink: int, one: Tensor) -> Tensor:
    """Sends and receives, as msprobe 26.2 records them: a send repeats its tensor as its output; the buffer of a
    receive is nothing among its inputs, and what arrived as its output."""
    call = session.call(source, "send")
    session.records.append((source, Record("send", "forward", call, "", (one, sink), (one,))))
    call = session.call(sink, "recv")
    address = Address(session.step, sink, "forward", "recv", call)
    (values,) = session.compute(
        address, "", [one.values.astype(np.float64)], {}, lambda a, given, _: given, lambda k: k is None or one.dtype
    )
    assert values is not None
    arrived = Tensor(values, one.dtype, session.key(), one.needs_grad)
    session.records.append((sink, Record("recv", "forward", call, "", (None, source), (arrived,))))
    return arrived


def transfer(source: Tape, sink: Tape, x: Var) -> Var:
    """An activation from one stage of a pipeline to the next; its gradient comes back the same way."""
    session = source.session
    arrived = _moved(session, source.rank, sink.rank, x.tensor)

    def back(gradients: list[Optional[Tensor]]) -> list[Optional[Tensor]]:
        (gradient,) = gradients
        return [gradient and _moved(session, sink.rank, source.rank, gradient)]

    return _joint([source], [x], [arrived], back)[0]


def average_gradients(session: Session) -> None:
    """Data parallelism written out: every weight's gradient summed over the ranks and divided by their number."""
    for name in dict.fromkeys(name for _, name in session.weight_gradients):
        known = next(g for (_, n), g in session.weight_gradients.items() if n == name)
        none = Tensor(np.zeros_like(known.values), known.dtype, session.key())  # an expert that no word was sent to
        parts = [session.weight_gradients.get((rank, name), none) for rank in range(session.ranks)]
        for rank, total in enumerate(all_reduce(session, parts)):
            half = rounded(total.values.astype(np.float64) / session.ranks, total.dtype).astype(total.values.dtype)
            session.weight_gradients[rank, name] = Tensor(half, total.dtype, session.key())
