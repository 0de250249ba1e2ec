"""Ranks of a step by hand: operators with the values of both runs, and their comparisons."""

from __future__ import annotations

import numpy as np

from npucmp import Tolerances
from npucmp.judge.tolerance import Limit, judge
from npucmp.model import Comparison, Measurement, Operator, Pair, RankGroup, Run, Statistics, TensorRef
from tests.localise.rules.craft import case

SLOTS = "input:0", "output:0"


def node_of(order, kind, reads, wrote, name="", peer=None, group=None, step=0, rank=0, **more):
    """An operator at that place of a run. A tensor is one array that both runs have, or a pair (target,
    golden)."""
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
    found.pair, found.operator = found.outputs[0].pair, found.outputs[0].pair.operator
    return found


def _sides(one):
    return one if isinstance(one, tuple) else (one, one)


def comparison_of(rank, *calls, step=0):
    """The comparison of one rank: each call is (kind, reads, wrote) with what node_of takes."""
    nodes = [node_of(order, *call[:3], **dict(*call[3:])) for order, call in enumerate(calls)]
    sides = []
    for side in ("target_op", "golden_op"):
        sides.append(Run("run", "npy", tuple(getattr(one.pair, side) for one in nodes), step, rank))
    findings = [finding for node in nodes for finding in (*node.inputs, *node.outputs)]
    return Comparison(*sides, tuple(findings), (), {"name": len(nodes)})


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def off(values, error):
    """The values of the target and of the golden, that far apart."""
    signs = np.where(np.arange(values.size).reshape(values.shape) % 2, 1.0, -1.0)
    return values * (1 + error * signs), values


def figures_of(rank, *shifts, kind="relu", step=0, elements=4096):
    """Operators of one rank of which statistics alone are known: each reads data that agree, and writes a
    tensor whose mean moved by that many roundings of float32; the names are those of every rank."""
    findings, size = [], elements**0.5
    for order, shift in enumerate(shifts):
        scale = 1.0 + 0.1 * order + 0.01 * rank
        own = [Statistics(3 * one, -2 * one, 0.1 * one, size * one) for one in (scale + 0.003, scale)]
        moved = own[1]._replace(mean=own[1].mean + shift * 2.0**-24 * scale)
        refs = [TensorRef(slot, "float32", (elements,), statistics=one) for slot, one in zip(SLOTS, own)]
        operator = Operator(f"{kind}.{order}", kind, kind, "forward", order, tuple(refs))
        for ref, one in zip(refs, (own[0], moved)):
            pair = Pair(order, ref.slot, operator, operator, ref._replace(statistics=one), ref, "name", 1.0)
            measured = Measurement(pair, statistics=(one, ref.statistics))
            findings.append(judge(measured, Tolerances(), Limit(2.0**-21, "round_off")))
    run = Run("run", "npy", tuple(one.pair.golden_op for one in findings[1::2]), step, rank)
    return Comparison(run, run, tuple(findings), (), {"name": len(shifts)})
