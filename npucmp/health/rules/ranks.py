"""Rules of several ranks, and of dtypes: tensors that must be equal on all ranks, and the headroom of float16."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Optional

from npucmp.health.facts import Health, Parameter
from npucmp.health.rule import Found, rule
from npucmp.health.rules.locations import data_in
from npucmp.model.dtypes import lookup

Finds = Iterator[Found]
MOST = 0.5  # above this share of differing parameters, ranks hold slices or used different seeds


def _others(health: Health) -> Iterator[Health]:
    return (one for one in health.ranks if one is not health and one.rank != health.rank)


def _differing_parameters(health: Health, other: Health) -> tuple[list[Parameter], int]:
    """Parameters that differ in the first step, and the number of comparable parameters (same name, shape and
    dtype)."""
    found, known = [], 0
    for one in health.parameters:
        theirs = other.by_name.get(one.name)
        if theirs is None or (one.shape, one.dtype) != (theirs.shape, theirs.dtype):
            continue
        a, b = (weights[0].mark if weights[0] is not None else "" for weights in (one.weights, theirs.weights))
        if a and b:
            known += 1
            found += [one] if a != b else []
    return found, known


def _is_split(differing: list[Parameter], known: int) -> bool:
    """Whether each rank holds a part of the network, or used its own seed: most comparable parameters differ."""
    return len(differing) > MOST * known


@rule(
    "rank.weights_differ",
    "error",
    "marks, ranks, parameters",
    says="parameters differ between ranks at the first step",
    remedy="broadcast them from rank 0, or use one seed",
    source="guides of MindSpore: different nodes; TrainCheck",
)
def weights_differ(health: Health, limit: Optional[float]) -> Finds:
    """Report differing parameters. It is an error if few of many differ. If most differ, it is a hint: tensor
    parallelism and different seeds look alike."""
    for other in _others(health):
        differing, known = _differing_parameters(health, other)
        if not differing:
            continue
        words = f"{len(differing)} of {known} parameters differ on rank {other.rank}"
        names = tuple(one.name for one in differing[1:])
        meant = "fine for tensor parallelism; else broadcast them from rank 0, or use one seed"
        split = _is_split(differing, known)
        yield Found(differing[0], words, float(len(differing)), "hint" if split else "", meant if split else "", 0,
                    len(differing), names)  # fmt: skip


@rule(
    "rank.norms_differ",
    "error",
    "marks, ranks, parameters",
    says="weights of norms differ between ranks that split the other weights",
    remedy="sum their gradients over the ranks",
    source="TrainCheck (BLOOM-176B)",
)
def norms_differ(health: Health, limit: Optional[float]) -> Finds:
    """Report differing norms if matrices are split, because norms are whole. If all norms differ too, a seed and a
    split are indistinguishable."""
    for other in _others(health):
        differing, known = _differing_parameters(health, other)
        norms = [one for one in differing if one.type.has("normalises") and len(one.shape) == 1]
        every = [one for one in health.parameters if one.type.has("normalises") and len(one.shape) == 1]
        if norms and _is_split(differing, known) and len(norms) < len(every):
            words = f"{len(norms)} of {len(every)} norms differ on rank {other.rank}"
            yield Found(norms[0], words, step=0, places=len(norms), also=tuple(one.name for one in norms[1:]))


@rule(
    "rank.same_batch",
    "warning",
    "bits, ranks, inputs",
    says="ranks read the same batch",
    remedy="give each rank a part of the data (DistributedSampler)",
    source="TrainCheck",
)
def same_batch(health: Health, limit: Optional[float]) -> Finds:
    """Compare the first data input in all steps, on ranks with equal weights: ranks of tensor parallelism share a
    batch."""
    mine = _bits(health)
    same = []
    for other in _others(health):
        differing, known = _differing_parameters(health, other)
        if mine and known and not _is_split(differing, known) and mine == _bits(other):
            same.append(str(other.rank))
    if same:
        words = f"rank {', '.join(same[:8])} reads the same bits as rank {health.rank}"
        yield Found(next(iter(data_in(health).values()))[0][1], words, step=0)


def _bits(health: Health) -> tuple[str, ...]:
    """The bits of the data in each step; () if any are unknown."""
    found = tuple(one.figures.bits for _, one in next(iter(data_in(health).values()), ()))
    return found if all(found) else ()


@rule(
    "rank.operators",
    "hint",
    "ranks, tensors",
    says="ranks executed different operators",
    remedy="fine for pipeline parallelism; else look for a branch that depends on the rank",
    source="msprobe's training guide",
)
def operators(health: Health, limit: Optional[float]) -> Finds:
    """Report names of records in the first step that this rank has and another rank lacks."""
    mine = Counter(one.name for one in health.steps[0].operators)
    for other in _others(health):
        lacking = mine - Counter(one.name for one in other.steps[0].operators)
        if lacking:
            first = next(one for one in health.steps[0].operators if one.name in lacking)
            words = f"rank {other.rank} lacks {sum(lacking.values())} operators of rank {health.rank}"
            yield Found(first, words, float(sum(lacking.values())), step=0)


@rule(
    "float16.headroom",
    "hint",
    "figures, tensors",
    2.0,
    "float16 tensors are close to the largest float16 number",
    "npucmp overflow --headroom lists them; scale them down, or use bfloat16",
    "guides of Ascend",
)
def headroom(health: Health, limit: float) -> Finds:
    """Report outputs within a factor of two of 65504."""
    half = lookup("float16")
    assert half is not None
    for step in health.steps:
        for op in step.operators:
            sizes = [one.figures.largest for one in op.outputs if one.dtype == "float16"]
            most = max((size for size in sizes if size), default=0.0)
            if half.largest / limit < most < half.largest:
                yield Found(
                    op,
                    f"reaches {most:.6g}; the largest float16 number is {half.largest:.6g}",
                    most,
                    limit=half.largest / limit,
                )
