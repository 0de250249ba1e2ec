"""Ranks of a step by hand: operators with the values of both runs, and their comparisons."""

from __future__ import annotations

import numpy as np

from npucmp.model import Comparison, RankGroup, Run
from tests.localise.rules.craft import case


def node_of(order, kind, reads, wrote, name="", peer=None, group=None, step=0, rank=0, **more):
    """An operator at that place of a run. A tensor is one array that both runs have, or a pair (target, golden)."""
    arguments = {} if peer is None else {"input:1": peer}
    arguments |= {} if group is None else {"input:group": RankGroup(group)}
    found = case(kind, [*map(_sides, reads)], _sides(wrote), name=name or f"{kind}.{order}",
                 arguments=(arguments, arguments), **more).node  # fmt: skip

    def placed(finding):
        pair = finding.pair
        target, golden = (one._replace(order=order) for one in (pair.target_op, pair.golden_op))
        moved = pair._replace(order=order, target_op=target, golden_op=golden)
        return finding._replace(measurement=finding.measurement._replace(pair=moved))

    found.inputs[:], found.outputs[:] = map(placed, found.inputs), map(placed, found.outputs)
    found.pair = found.outputs[0].pair
    return found


def _sides(one):
    return one if isinstance(one, tuple) else (one, one)


def comparison_of(rank, *calls, step=0):
    """The comparison of one rank: each call is (kind, reads, wrote) with what node_of takes."""
    nodes = [node_of(order, *call[:3], **(call[3] if len(call) > 3 else {})) for order, call in enumerate(calls)]
    sides = []
    for side in ("target_op", "golden_op"):
        sides.append(Run("run", "npy", tuple(getattr(one.pair, side) for one in nodes), step, rank))
    findings = [finding for node in nodes for finding in (*node.inputs, *node.outputs)]
    return Comparison(*sides, tuple(findings), (), {"name": len(nodes)})


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def off(values, error):
    """The values of the target and of the golden, that far apart."""
    return values * (1 + error * np.where(np.arange(values.size).reshape(values.shape) % 2, 1.0, -1.0)), values
