"""Updates of a data-parallel layout that splits the optimizer: ZeRO-1, and FSDP.

zero1          the gradients of all parameters are one flat buffer. A rank gets a part of its sum, updates the same part
               of the parameters, and gathers the others. A part may cross the borders of parameters.
zero1_backward the same, with the parameters in the order in which their gradients become ready
zero1_each     a flat buffer for each parameter
fsdp           every parameter is split along its first dimension, gathered before the forward and the backward pass of
               its layer, and updated in parts
fsdp_flat      the parameters of a layer are one flat parameter, which is split likewise
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Callable, Iterable, Sequence

import numpy as np

from tests.corpus.parallel import collectives as among
from tests.corpus.parallel.collectives import Tensors, Vars
from tests.corpus.tape import Var
from tests.corpus.trace import Record, Tensor

if TYPE_CHECKING:
    from tests.corpus.parallel.networks import Network

RATE = 0.5
LONGEST = 0.1  # norm of clipped gradients


def update(network: Network, gradients: dict[str, Tensors]) -> None:
    """Reduces gradients over the data-parallel ranks, and updates the parameters of each rank."""
    layout, session = network.layout, network.session
    for group in network._groups(range(layout.ranks), "dp"):
        units = _units(layout.zero, [name for name in gradients if group[0] in gradients[name]])
        parts = [_reduced(network, group, unit, {name: gradients[name] for name in unit}) for unit in units]
        if network.design.clip:
            parts = clipped(network, group, parts, reduced=True)
        for unit, part in zip(units, parts):
            _update_unit(network, group, unit, part)
    session.weight_gradients.clear()


def clipped(network: Network, ranks: Sequence[int], gradients: Sequence[Vars], reduced: bool = False) -> list[Vars]:
    """Gradients times one factor that makes their norm LONGEST. `reduced`: each rank has a part of them."""
    with network._inside(ranks, "optimizer"), network._inside(ranks, "clip"):
        total = None
        for one in gradients:
            squares = network._each(ranks, "mul", one, one)
            flat = {rank: network.tapes[rank].reshape(squares[rank], -1) for rank in ranks}
            own = network._each(ranks, "sum", flat, dim=0)
            total = own if total is None else network._each(ranks, "add", total, own)
        assert total is not None
        if reduced and not network.fault.strikes("norm not reduced over shards", "", None, network.session.step):
            made = among.all_reduce(network.session, ranks, among.tensors(total, ranks))
            total = {rank: Var(one) for rank, one in made.items()}
        factor = network._each(ranks, "mul", network._each(ranks, "rsqrt", total), LONGEST)
        return [network._each(ranks, "mul", one, factor) for one in gradients]


def _units(zero: str, names: Sequence[str]) -> list[list[str]]:
    """The parameters that share a buffer."""
    if zero in ("fsdp", "zero1_each"):
        return [[name] for name in names]
    if zero == "fsdp_flat":
        layers = [*dict.fromkeys(map(_layer, names))]
        return [[name for name in names if _layer(name) == layer] for layer in layers]
    return [[*names][:: -1 if zero == "zero1_backward" else 1]]


def _layer(name: str) -> str:
    """The layer of a parameter; that of all others is one."""
    return ".".join(name.split(".")[:2]) if name.startswith("layers.") else ""


def _reduced(network: Network, group: Sequence[int], unit: Sequence[str], gradients: dict[str, Tensors]) -> Vars:
    """The part of a unit's gradient that each rank updates with."""
    session, fault, zero = network.session, network.fault, network.layout.zero
    kinds = {kind: any(fault.strikes(kind, name, None, session.step) for name in unit)
             for kind in ("undivided", "gradient not reduced")}  # fmt: skip
    parts: Tensors = {}
    for rank in group:
        own = [gradients[name][rank] for name in unit]
        is_rows = zero == "fsdp"
        parts[rank] = _padded(network, own[0], len(group)) if is_rows else _joined(network, rank, own, len(group))
    if kinds["gradient not reduced"]:
        parts = {rank: _part(network, one, number, len(group)) for number, (rank, one) in enumerate(parts.items())}
    else:
        parts = among.reduce_scatter(session, group, parts, 0)
    found = {rank: Var(one) for rank, one in parts.items()}
    return found if kinds["undivided"] else network._each(group, "div", found, float(len(group)))


def _update_unit(network: Network, group: Sequence[int], unit: Sequence[str], parts: Vars) -> None:
    session, fault = network.session, network.fault
    scope = unit[0] if network.layout.zero == "fsdp" else "flat"
    with network._inside(group, "optimizer"), network._inside(group, scope):
        step = network._each(group, "mul", parts, RATE)
        values: Tensors = {}
        for number, rank in enumerate(group):
            piece = _pieces(network, rank, unit, len(group))[number]
            if fault.strikes("stale shard", "", rank, session.step):
                piece = piece * (1 + fault.size)
            values[rank] = Tensor(piece, network._known[rank, unit[0]].dtype, session.key())
        new = network._each(group, "sub", {rank: Var(one) for rank, one in values.items()}, step)
    if not network.layout.zero.startswith("fsdp"):
        among.all_gather(session, group, {rank: one.tensor for rank, one in new.items()}, 0)


def _pieces(network: Network, rank: int, unit: Sequence[str], count: int) -> list[np.ndarray]:
    """The parameters of a unit in the parts of `count` ranks."""
    known = [network.stored[rank, name] for name in unit]
    whole = _rows(known[0], count) if network.layout.zero == "fsdp" else _flat(known, count)
    return [np.ascontiguousarray(one) for one in np.split(whole, count)]


def _flat(arrays: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The values one behind the other, with zeros up to a multiple of the number of ranks."""
    whole = np.concatenate([one.reshape(-1) for one in arrays])
    return np.pad(whole, (0, -len(whole) % count))


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    return np.pad(values, [(0, -len(values) % count)] + [(0, 0)] * (values.ndim - 1))


def _joined(network: Network, rank: int, tensors: Sequence[Tensor], count: int) -> Tensor:
    """The flat buffer, as a concatenation records it."""
    session = network.session
    made = Tensor(_flat([one.values for one in tensors], count), tensors[0].dtype, session.key())
    session.records.append((rank, Record("cat", "forward", session.call(rank, "cat"), "", tuple(tensors), (made,))))
    return made


def _copies(whole: np.ndarray, parts: list[np.ndarray]) -> list[np.ndarray]:
    return [whole] * len(parts)


def _padded(network: Network, one: Tensor, count: int) -> Tensor:
    return Tensor(_rows(one.values, count), one.dtype, network.session.key())


def _part(network: Network, one: Tensor, number: int, count: int) -> Tensor:
    return Tensor(np.ascontiguousarray(np.split(one.values, count)[number]), one.dtype, network.session.key())


def gathered(network: Network, ranks: Sequence[int], x: Vars, layer: Callable[[Vars], Vars]) -> Vars:
    """A layer of FSDP, with the gathers of its parameters before its forward and its backward pass."""
    if not network.layout.zero.startswith("fsdp"):
        return layer(x)
    session, scope = network.session, network.tapes[ranks[0]].scope
    start = len(session.records)
    y = layer(x)
    end = len(session.records)
    groups = network._groups(ranks, "dp")
    for group in groups:
        _gather(network, group, scope)
    session.records[start:start] = [session.records.pop() for _ in range(len(session.records) - end)][::-1]
    for group in groups:
        for rank in group:
            y[rank] = network.tapes[rank].same(y[rank])
        node = y[group[-1]].node  # the first of the group on the way back
        assert node is not None
        node.hook = lambda _, group=group: _gather(network, group, scope)
    return y


def _gather(network: Network, group: Sequence[int], scope: str) -> None:
    """The all-gathers of a layer's parameters."""
    names = [name for rank, name in network._known if rank == group[0] and name.startswith(f"{scope}.")]
    count = len(group)
    for unit in _units(network.layout.zero, names):
        used = [network._known[group[0], name].tensor.values for name in unit]
        whole = _rows(used[0], count) if network.layout.zero == "fsdp" else _flat(used, count)
        parts: Tensors = {}
        for number, rank in enumerate(group):
            piece = _pieces(network, rank, unit, count)[number]
            parts[rank] = Tensor(piece, network._known[rank, unit[0]].dtype, network.session.key())
        made = partial(_copies, whole)
        among.communicate(network.session, "all_gather", group, parts, made, True)


def gather_parameter(network: Network, rank: int, path: str, whole: np.ndarray) -> np.ndarray:
    """The parameter as an all-gather of the parts along the first dimension makes it."""
    group, fault, step = network.layout.group(rank, "dp"), network.fault, network.session.step
    parts: Iterable[np.ndarray] = np.split(_rows(whole, len(group)), len(group))
    if fault.strikes("shard gathered in another order", path, None, step):
        parts = [*parts][1:] + [*parts][:1]
    parts = [one * (1 + fault.size) if fault.strikes("old shard gathered", path, holder, step) else one
             for holder, one in zip(group, parts)]  # fmt: skip
    return np.concatenate([*parts])[: len(whole)]
