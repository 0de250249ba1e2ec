"""The place of a rank among the ranks of its step: its pipeline stage and its tensor-parallel rank.

No dump has a field for it. Only facts that follow from the golden run's records are reported:

    stage        sends and receives of the forward pass lead from a stage to the next: the rank that sends first is in
                 the earlier stage. All paths to a rank must have equal length, and none may lead back
    tensor rank  its number in the smallest group of ranks of one stage that share the output of a collective of the
                 forward pass, and hold parameters of the same names that differ. A group is recorded, or inferred: its
                 ranks got the same, and no smaller rank is missing. If a rank also exchanges parts with others (all to
                 all), a group may be one of experts, and nothing is reported
"""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.rank_digest import TOLD_FORWARD, WEIGHT, RankDigest, held_alike


class Coordinates(NamedTuple):
    """The stage and the tensor rank; None if they do not follow from the records."""

    stage: Optional[int] = None
    tensor_rank: Optional[int] = None

    @property
    def words(self) -> str:
        """ "pipeline stage 1, tensor rank 0", "" if nothing is known."""
        named = ("pipeline stage", self.stage), ("tensor rank", self.tensor_rank)
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)


def coordinates(step: Sequence[RankDigest]) -> dict[int, Coordinates]:
    """The coordinates of the numbered ranks of one step."""
    ranks = {one.rank: one for one in step if one.rank is not None}
    if len(ranks) < 2 or len(ranks) < len(step):
        return {}
    stages = _stages(ranks)
    parts = _tensor_ranks(ranks, stages)
    return {rank: Coordinates(stages.get(rank), parts.get(rank)) for rank in ranks}


def _stages(ranks: Mapping[int, RankDigest]) -> dict[int, int]:
    first = {(rank, peer): sends for rank, one in ranks.items() for peer, sends in one.peers}
    after: dict[int, list[int]] = defaultdict(list)
    for (rank, peer), sends in first.items():
        if peer not in ranks or first.get((peer, rank)) is not (not sends):
            return {}  # the named peer is missing or contradicts: the path may be another
        if sends:
            after[rank].append(peer)
    behind = {peer for peers in after.values() for peer in peers}
    todo = [rank for rank in after if rank not in behind]
    found = dict.fromkeys(todo, 0)
    while todo:
        rank = todo.pop()
        for peer in after.get(rank, ()):
            if peer not in found:
                todo.append(peer)
            if found.setdefault(peer, found[rank] + 1) != found[rank] + 1:
                return {}
    return found if len(found) == len(behind.union(after)) else {}


def _tensor_ranks(ranks: Mapping[int, RankDigest], stages: Mapping[int, int]) -> dict[int, int]:
    alike = {tuple(sorted(rank for rank, _ in group)) for group in held_alike(ranks.values(), TOLD_FORWARD)}
    alone = {rank for group in alike if len(group) == 1 for rank in group}
    groups = {group for one in ranks.values() for group in one.groups if ranks.keys() >= {*group}}
    if len(ranks) == max(ranks) + 1:  # missing ranks follow all present ranks: numbers in a group are right
        groups |= alike
    found: dict[int, int] = {}
    for group in sorted(groups, key=len):
        is_new = len(group) > 1 and not any(rank in found or rank in alone for rank in group)
        if is_new and len({stages.get(rank) for rank in group}) == 1 and _is_split([ranks[rank] for rank in group]):
            found.update((rank, number) for number, rank in enumerate(group))
    return found


def _is_split(group: Sequence[RankDigest]) -> bool:
    """Whether each holds parameters of the same names as the others, and some of its own."""
    weights = [{tensor.name: tensor.golden for tensor in one.tensors if tensor.kind == WEIGHT} for one in group]
    if any(one.keys() != weights[0].keys() for one in weights):
        return False
    return any(len({one[name] for one in weights}) == len(weights) for name in weights[0])
