"""Ranks that should hold the same, held against each other within the target: weights, reduced gradients, what
collectives gave out.

Who should hold the same the golden run tells: ranks that hold the same there. Ranks whose tensors differ by design
(tensor, pipeline, expert parallelism) differ in it too, and nothing is asked of them. Rounding may let ranks of the
target differ although each agrees with its golden: that is told apart from a tensor that has gone wrong on one rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.localise.rank_digest import DIFFERENT, GRADIENT, WEIGHT, Joint

WORDS = {WEIGHT: "weight", GRADIENT: "gradient"}  # others were given out by a collective


class Odd(NamedTuple):
    """Ranks that hold another tensor than those that should hold the same; `first` of `tensors` of them, since a step.

    wrong  whether one of them differs from its golden: else rounding may be all
    """

    step: Optional[int]
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    what: str
    first: tuple[str, str]
    tensors: int
    wrong: bool


class _Seen(NamedTuple):
    rank: int
    target: bytes
    verdict: str
    kind: str


def odd_ones(joints: Iterable[Joint]) -> list[Odd]:
    """By ranks that differ, from the first step on; what is wrong comes first."""
    steps: dict[int, list[Joint]] = defaultdict(list)
    for one in joints:
        if one.rank is not None:
            steps[-1 if one.step is None else one.step].append(one)
    found: dict[object, Odd] = {}
    tensors: Counter[object] = Counter()
    for _, some in sorted(steps.items()):
        for odd in _of_step(some):
            key = odd.ranks, odd.others, odd.wrong
            if found.setdefault(key, odd).step == odd.step:
                tensors[key] += 1
    every = (odd._replace(tensors=tensors[key]) for key, odd in found.items())
    return sorted(every, key=lambda one: (not one.wrong, one.step or 0))


def _of_step(some: Sequence[Joint]) -> Iterator[Odd]:
    held: dict[tuple[str, str], dict[bytes, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for one in some:
        assert one.rank is not None
        for at, name in enumerate(one.names):
            golden, target = one.digests(at)
            held[name][golden].append(_Seen(one.rank, target, one.verdicts[at], one.kinds[at]))
    for name, groups in held.items():
        for group in groups.values():
            if len({one.target for one in group}) > 1:
                yield _odd(some[0].step, name, group)


def _odd(step: Optional[int], name: tuple[str, str], group: Sequence[_Seen]) -> Odd:
    """Those who differ from their golden where others do not; else those who are few; else everyone."""
    wrong = [one for one in group if one.verdict == DIFFERENT]
    odd = wrong
    if not wrong or len(wrong) == len(group):
        (most, count), *_ = times = Counter(one.target for one in group).most_common()
        is_most = len(times) == 1 or count > times[1][1]
        odd = [one for one in group if one.target != most] if is_most else [*group]
    ranks = tuple(sorted(one.rank for one in odd))
    others = tuple(sorted(one.rank for one in group if one.rank not in ranks)) or ranks
    return Odd(step, ranks, others, WORDS.get(group[0].kind, "result"), name, 1, bool(wrong))
