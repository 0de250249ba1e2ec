"""A mixture of experts in place of an MLP, whose experts are split over ranks.

summed     all ranks of a group have the same tokens; each computes with its own experts, and the sums are reduced
exchanged  ranks have tokens of their own, which go to the rank of their expert and back
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from tests.corpus.device import Array
from tests.corpus.parallel import collectives as among
from tests.corpus.parallel.collectives import Tensors, Vars

if TYPE_CHECKING:
    from tests.corpus.parallel.networks import Network


def is_expert(parameter: str) -> bool:
    """Whether a parameter is one of an expert."""
    return ".experts." in parameter


def mixture(network: Network, ranks: Sequence[int], x: Vars) -> Vars:
    """The weighted outputs of the experts that a router chooses for each token."""
    d, tapes = network.design, network.tapes
    shapes = {rank: x[rank].shape for rank in ranks}
    flat = {rank: tapes[rank].reshape(x[rank], -1, d.width) for rank in ranks}
    with network._inside(ranks, "router"):
        w = network.weight(ranks, "weight", (d.experts, d.width), scale=1.0)
        logits = network._each(ranks, "linear", flat, w)
        shares = network._each(ranks, "softmax", logits, dim=-1)
        best = network._each(ranks, "topk", shares, d.choices)
        gates, chosen = ({rank: one[k] for rank, one in best.items()} for k in (0, 1))
        if d.choices > 1:
            gates = network._each(ranks, "div", gates, network._each(ranks, "sum", gates, dim=-1, keepdim=True))
    places = {rank: one.tensor.values for rank, one in chosen.items()}
    mixed = _exchanged if d.permuted else _summed
    made = mixed(network, ranks, flat, gates, places)
    return {rank: tapes[rank].reshape(made[rank], *shapes[rank]) for rank in ranks}


def _owned(network: Network, rank: int) -> range:
    """The experts of a rank."""
    count = network.design.experts // network.layout.ep
    return range(network.layout.at(rank, "ep") * count, (network.layout.at(rank, "ep") + 1) * count)


def _expert(network: Network, ranks: Sequence[int], number: int, x: Vars) -> Vars:
    """What an expert makes of its tokens, on the ranks that have it."""
    d = network.design
    scope = network.tapes[ranks[0]].scope
    if network.fault.strikes("expert order", scope, None, network.session.step):
        own = _owned(network, ranks[0])
        number = own.start + (number + 1 - own.start) % len(own) if len(own) > 1 else (number + 1) % d.experts
    with network._inside(ranks, f"experts.{number}"):
        with network._inside(ranks, "up"):
            w = network.weight(ranks, "weight", (d.inner, d.width), 0)
            y = network._each(ranks, "linear", x, w, network.weight(ranks, "bias", (d.inner,), 0))
        y = network._each(ranks, "gelu", y)
        if d.apart:
            return network._row(ranks, "down", y, d.width, d.inner)
        with network._inside(ranks, "down"):
            w = network.weight(ranks, "weight", (d.width, d.inner), 1)
            b = network.weight(ranks, "bias", (d.width,))
            if network._struck("expert bias", ranks[0]):
                b = {rank: network.tapes[rank].part(one, np.s_[::-1]) for rank, one in b.items()}
            return network._each(ranks, "linear", y, w, b)


def _entered(network: Network, ranks: Sequence[int], x: Vars, axes: Sequence[str], fault: str) -> Vars:
    """What each rank reads of a tensor that ranks hold alike: its gradient is the sum of theirs."""
    out: Vars = {}
    scope = network.tapes[ranks[0]].scope
    for group in network._groups(ranks, *axes):
        made = {rank: among.alias(network.session, x[rank].tensor) for rank in group}

        def back(arrived: Tensors, group: list[int] = group) -> Tensors:
            is_missing = len(group) == 1 or network.fault.strikes(fault, scope, None, network.session.step)
            return arrived if is_missing else among.all_reduce(network.session, group, arrived, scope)

        out.update(among.joint(network.tapes, group, x, made, back))
    return out


def _summed(network: Network, ranks: Sequence[int], flat: Vars, gates: Vars, chosen: dict[int, Array]) -> Vars:
    d, tapes, layout = network.design, network.tapes, network.layout
    flat = _entered(network, ranks, flat, ("tp", "ep"), "expert backward not reduced")
    gates = _entered(network, ranks, gates, ("ep",), "gates not reduced")
    total = {rank: tapes[rank].constant(np.zeros(flat[rank].shape, np.float32)) for rank in ranks}
    for number in range(d.experts):
        own = [rank for rank in ranks if number in _owned(network, rank)]
        found = {rank: np.nonzero(chosen[rank] == number) for rank in own}
        rows = {rank: tapes[rank].constant(found[rank][0]) for rank in own}
        picked = network._each(own, "index_select", flat, 0, rows)
        y = _expert(network, own, number, picked)
        if not network._struck("gates missing", own[0]):
            share = {rank: tapes[rank].part(gates[rank], (*found[rank], None)) for rank in own}
            y = network._each(own, "mul", y, share)
        total.update(network._each(own, "index_add", total, 0, rows, y))
    if layout.ep == 1 or network._struck("experts not reduced", ranks[0]):
        return total
    out: Vars = {}
    for group in network._groups(ranks, "ep"):
        scope = tapes[group[0]].scope
        made = among.all_reduce(network.session, group, among.tensors(total, group), scope)
        out.update(among.joint(network.tapes, group, total, made, lambda arrived: arrived))
    return out


def _exchanged(network: Network, ranks: Sequence[int], flat: Vars, gates: Vars, chosen: dict[int, Array]) -> Vars:
    """Tokens side by side in the order of their experts. Experts of a rank get those of all ranks of its group."""
    d, tapes = network.design, network.tapes
    order = {rank: np.argsort(chosen[rank].reshape(-1), kind="stable") for rank in ranks}
    counts = {rank: np.bincount(chosen[rank].reshape(-1), minlength=d.experts) for rank in ranks}
    rows = {rank: tapes[rank].constant(order[rank] // d.choices) for rank in ranks}
    flat = _entered(network, ranks, flat, ("tp",), "expert backward not reduced")
    x = network._each(ranks, "index_select", flat, 0, rows)
    parts, made = _sent(network, ranks, x, counts), {}
    for number in range(d.experts):
        own = [rank for rank in ranks if number in _owned(network, rank)]
        y = _expert(network, own, number, {rank: parts[rank][number] for rank in own})
        for rank in own:
            made[rank, number] = y[rank]
    y = _returned(network, ranks, made, counts)
    if not network._struck("gates missing", ranks[0]):
        share = {rank: tapes[rank].part(gates[rank], (order[rank] // d.choices, order[rank] % d.choices, None))
                 for rank in ranks}  # fmt: skip
        y = network._each(ranks, "mul", y, share)
    total = {rank: tapes[rank].constant(np.zeros(flat[rank].shape, np.float32)) for rank in ranks}
    return network._each(ranks, "index_add", total, 0, rows, y)


def _sent(network: Network, ranks: Sequence[int], x: Vars, counts: dict[int, Array]) -> dict[int, dict]:
    """The tokens of each expert on its rank: those of each source one behind the other."""
    tapes, found = network.tapes, {}
    for group in network._groups(ranks, "ep"):
        owned = [[*_owned(network, rank)] for rank in group]
        if len(group) > 1:
            x = {**x, **_exchange(network, group, x, [[int(counts[r][own].sum()) for own in owned] for r in group])}
        for rank, own in zip(group, owned):
            sizes = [[int(counts[source][number]) for number in own] for source in group]
            if len(group) > 1:
                wrong = network._struck("tokens sent in another order", rank)
                found[rank] = _by_expert(network, rank, x[rank], own, sizes, wrong)
                continue
            starts = np.concatenate([[0], np.cumsum(sizes[0])])
            found[rank] = {n: tapes[rank].part(x[rank], np.s_[a:b]) for n, a, b in zip(own, starts, starts[1:])}
    return found


def _by_expert(network: Network, rank: int, x: object, own: Sequence[int], sizes: list, wrong: bool) -> dict:
    tape, starts = network.tapes[rank], np.concatenate([[0], np.cumsum(np.ravel(sizes))]).reshape(-1)
    pieces = [tape.part(x, np.s_[a:b]) for a, b in zip(starts, starts[1:])]
    found = {}
    for at, number in enumerate(own):
        some = pieces[at :: len(own)]
        found[number] = tape("cat", *(some[::-1] if wrong else some), dim=0)
    return found


def _returned(network: Network, ranks: Sequence[int], made: dict, counts: dict[int, Array]) -> Vars:
    """What experts made of the tokens of each rank, in the order of experts."""
    tapes, out = network.tapes, {}
    for group in network._groups(ranks, "ep"):
        back = {}
        for rank in group:
            own = [*_owned(network, rank)]
            if len(group) == 1:
                out[rank] = tapes[rank]("cat", *(made[rank, number] for number in own), dim=0)
                continue
            pieces = []
            for source in group:
                for number in own:
                    start = sum(int(counts[other][number]) for other in group[: group.index(source)])
                    pieces.append(
                        tapes[rank].part(made[rank, number], np.s_[start : start + int(counts[source][number])])
                    )
            back[rank] = tapes[rank]("cat", *pieces, dim=0)
        if back:
            owned = [[*_owned(network, rank)] for rank in group]
            wrong = network._struck("tokens returned in another order", group[0])
            sent = [[int(counts[source][own].sum()) for source in group] for own in owned]
            out.update(_exchange(network, group, back, sent, wrong))
    return out


def _exchange(network: Network, group: Sequence[int], x: Vars, sent: list, wrong: bool = False) -> Vars:
    session, scope = network.session, network.tapes[group[0]].scope
    counts = np.array(sent)
    made = among.all_to_all(session, group, among.tensors(x, group), counts, scope)
    if wrong:
        made = {rank: among.turned(session, one) for rank, one in made.items()}

    def back(arrived: Tensors) -> Tensors:
        return among.all_to_all(session, group, arrived, counts.T, scope)

    return among.joint(network.tapes, group, x, made, back)
