"""Updates of a data-parallel layout that splits the optimizer: ZeRO-1, and FSDP.

zero1   the gradients of all parameters are one flat buffer. A rank gets a part of its sum, updates the same part of the
        parameters, and gathers the others. A part may cross the borders of parameters.
fsdp    every parameter is split along its first dimension, gathered before the forward pass, and updated in parts
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from tests.corpus.parallel import collectives as among
from tests.corpus.parallel.collectives import Tensors
from tests.corpus.tape import Var
from tests.corpus.trace import Record, Tensor

if TYPE_CHECKING:
    from tests.corpus.parallel.networks import Network

RATE = 0.5


def update(network: Network, gradients: dict[str, Tensors]) -> None:
    """Reduces gradients over the data-parallel ranks, and updates the parameters of each rank."""
    layout, session = network.layout, network.session
    for group in network._groups(range(layout.ranks), "dp"):
        names = [name for name in gradients if group[0] in gradients[name]]
        units = [[name] for name in names] if layout.zero == "fsdp" else [names]
        for unit in units:
            _update_unit(network, group, unit, {name: gradients[name] for name in unit})
    session.weight_gradients.clear()


def _update_unit(network: Network, group: Sequence[int], unit: Sequence[str], gradients: dict[str, Tensors]) -> None:
    session, fault = network.session, network.fault
    is_flat = len(unit) > 1 or network.layout.zero == "zero1"
    kinds = {kind: any(fault.strikes(kind, name, None, session.step) for name in unit)
             for kind in ("undivided", "gradient not reduced")}  # fmt: skip
    parts: Tensors = {}
    for rank in group:
        own = [gradients[name][rank] for name in unit]
        parts[rank] = _joined(network, rank, own, len(group)) if is_flat else _padded(network, own[0], len(group))
    if kinds["gradient not reduced"]:
        parts = {rank: _part(network, one, number, len(group)) for number, (rank, one) in enumerate(parts.items())}
    else:
        parts = among.reduce_scatter(session, group, parts, 0)
    if not kinds["undivided"]:
        made = network._each(group, "div", {r: Var(one) for r, one in parts.items()}, float(len(group)))
        parts = {rank: one.tensor for rank, one in made.items()}
    scope = "flat" if is_flat else unit[0]
    with network._inside(group, "optimizer"), network._inside(group, scope):
        step = network._each(group, "mul", {rank: Var(one) for rank, one in parts.items()}, RATE)
        values: Tensors = {}
        for number, rank in enumerate(group):
            known = [network._known[rank, name].tensor for name in unit]
            whole = _flat(known, len(group)) if is_flat else _rows(known[0].values, len(group))
            piece = np.ascontiguousarray(np.split(whole, len(group))[number])
            if fault.strikes("stale shard", "", rank, session.step):
                piece = piece * (1 + fault.size)
            values[rank] = Tensor(piece, known[0].dtype, session.key())
        new = network._each(group, "sub", {rank: Var(one) for rank, one in values.items()}, step)
    among.all_gather(session, group, {rank: one.tensor for rank, one in new.items()}, 0)


def _flat(tensors: Sequence[Tensor], count: int) -> np.ndarray:
    """The values one behind the other, with zeros up to a multiple of the number of ranks."""
    whole = np.concatenate([one.values.reshape(-1) for one in tensors])
    return np.pad(whole, (0, -len(whole) % count))


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    return np.pad(values, [(0, -len(values) % count)] + [(0, 0)] * (values.ndim - 1))


def _joined(network: Network, rank: int, tensors: Sequence[Tensor], count: int) -> Tensor:
    """The flat buffer, as a concatenation records it."""
    session = network.session
    made = Tensor(_flat(tensors, count), tensors[0].dtype, session.key())
    session.records.append((rank, Record("cat", "forward", session.call(rank, "cat"), "", tuple(tensors), (made,))))
    return made


def _padded(network: Network, one: Tensor, count: int) -> Tensor:
    return Tensor(_rows(one.values, count), one.dtype, network.session.key())


def _part(network: Network, one: Tensor, number: int, count: int) -> Tensor:
    return Tensor(np.ascontiguousarray(np.split(one.values, count)[number]), one.dtype, network.session.key())


def gather_parameter(network: Network, rank: int, path: str, whole: np.ndarray) -> np.ndarray:
    """The parameter as an all-gather of the parts along the first dimension makes it."""
    group = network.layout.group(rank, "dp")
    padded = _rows(whole, len(group))
    parts = np.split(padded, len(group))
    if network.fault.strikes("shard gathered in another order", path, None, network.session.step):
        parts = parts[1:] + parts[:1]
    return np.concatenate(parts)[: len(whole)]
