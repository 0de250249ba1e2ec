"""Where a rank stands among the others of its step: its stage of a pipeline, its part of the tensors.

No dump has a field for it. What follows from the golden run's records is said, and nothing else:

    stage        sends and receives of the forward pass lead from a stage to the next: of two ranks the one that sends
                 first stands before the other. All ways to a rank must be equally long, and none lead back
    tensor rank  its number in the smallest group of ranks of one stage that share what a collective of the forward pass
                 gave out, and hold parameters of the same names that differ. A group is recorded, or seen: its ranks
                 got the same, and no smaller rank is missing. Where a rank also exchanges parts with others (all to
                 all), a group may be one of experts, and nothing is said
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.rank_digest import TOLD_FORWARD, WEIGHT, Joint


class Coordinates(NamedTuple):
    """None where it does not follow."""

    stage: Optional[int] = None
    tensor_rank: Optional[int] = None

    @property
    def words(self) -> str:
        """ "pipeline stage 1, tensor rank 0", "" if nothing is known."""
        named = ("pipeline stage", self.stage), ("tensor rank", self.tensor_rank)
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)


def coordinates(step: Sequence[Joint]) -> dict[int, Coordinates]:
    """Those of the ranks of one step that are known by a number."""
    ranks = {one.rank: one for one in step if one.rank is not None}
    if len(ranks) < 2 or len(ranks) < len(step):
        return {}
    stages = _stages(ranks)
    parts = _tensor_ranks(ranks, stages)
    return {rank: Coordinates(stages.get(rank), parts.get(rank)) for rank in ranks}


def _stages(ranks: Mapping[int, Joint]) -> dict[int, int]:
    first = {(rank, peer): sends for rank, one in ranks.items() for peer, sends in one.peers}
    after: dict[int, list[int]] = defaultdict(list)
    before: dict[int, list[int]] = defaultdict(list)
    for (rank, peer), sends in first.items():
        if peer not in ranks or first.get((peer, rank)) is not (not sends):
            return {}  # whom it names is not here, or says otherwise: the way may be another
        if sends:
            after[rank].append(peer)
            before[peer].append(rank)
    found: dict[int, int] = {}
    todo = [rank for rank in after if rank not in before]
    for rank in todo:
        found[rank] = 0
    while todo:
        rank = todo.pop()
        for peer in after[rank]:
            if peer not in found:
                found[peer] = found[rank] + 1
                todo.append(peer)
            elif found[peer] != found[rank] + 1:
                return {}
    return found if len(found) == len({*after, *before}) else {}


def _tensor_ranks(ranks: Mapping[int, Joint], stages: Mapping[int, int]) -> dict[int, int]:
    told = _ranks_by_content(ranks)
    alone = {rank for some in told.values() for group in some.values() if len(group) == 1 for rank in group}
    groups = {group for one in ranks.values() for group in one.groups if ranks.keys() >= {*group}}
    if len(ranks) == max(ranks) + 1:  # those who are missing come after all that are here: numbers in a group are right
        groups |= {tuple(sorted(group)) for some in told.values() for group in some.values()}
    found: dict[int, int] = {}
    for group in sorted(groups, key=len):
        is_new = len(group) > 1 and not any(rank in found or rank in alone for rank in group)
        if is_new and len({stages.get(rank) for rank in group}) == 1 and _is_split([ranks[rank] for rank in group]):
            found.update((rank, number) for number, rank in enumerate(group))
    return found


def _ranks_by_content(ranks: Mapping[int, Joint]) -> dict[tuple[str, str], dict[bytes, list[int]]]:
    """By tensor that a collective of the forward pass gave out: the ranks that hold the same."""
    found: dict[tuple[str, str], dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, one in ranks.items():
        for at, kind in enumerate(one.kinds):
            if kind == TOLD_FORWARD:
                found[one.names[at]][one.digests(at)[0]].append(rank)
    return found


def _is_split(group: Sequence[Joint]) -> bool:
    """Whether each holds parameters of the same names as the others, and some of its own."""
    weights = [dict(_weights(one)) for one in group]
    if any(one.keys() != weights[0].keys() for one in weights):
        return False
    return any(len({one[name] for one in weights}) == len(weights) for name in weights[0])


def _weights(one: Joint) -> Iterator[tuple[tuple[str, str], bytes]]:
    return ((one.names[at], one.digests(at)[0]) for at, kind in enumerate(one.kinds) if kind == WEIGHT)
