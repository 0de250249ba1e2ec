"""Compare tensors that ranks of the target should share: weights, reduced gradients, outputs of collectives.

The golden run shows which ranks should hold the same tensor: those that hold the same there. Ranks whose tensors differ
by design (tensor, pipeline, expert parallelism) differ in the golden too, and are not compared. Rounding may make ranks
of the target differ although each agrees with its golden: this is reported separately from a tensor that is wrong on
one rank.

The report names the ranks that differ from their golden while others do not, otherwise the smaller group, otherwise all
of them, from which step on, and the number of tensors. Roots and exit status do not depend on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.localise.rank_digest import DIFFERENT, GRADIENT, WEIGHT, Joint

WORDS = {WEIGHT: "weight", GRADIENT: "gradient"}  # other kinds are outputs of a collective


class Odd(NamedTuple):
    """Ranks whose tensor differs from that of other ranks that should share it; `first` of `tensors` such tensors,
    since a step.

    wrong  whether a rank differs from its golden; otherwise rounding may be the reason
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
    """The groups of ranks that differ, counted from their first step; wrong groups come first."""
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
    """The ranks that differ from their golden if other ranks do not; otherwise the minority; otherwise all ranks."""
    wrong = [one for one in group if one.verdict == DIFFERENT]
    odd = wrong
    if not wrong or len(wrong) == len(group):
        (most, count), *_ = times = Counter(one.target for one in group).most_common()
        is_most = len(times) == 1 or count > times[1][1]
        odd = [one for one in group if one.target != most] if is_most else [*group]
    ranks = tuple(sorted(one.rank for one in odd))
    others = tuple(sorted(one.rank for one in group if one.rank not in ranks)) or ranks
    return Odd(step, ranks, others, WORDS.get(group[0].kind, "result"), name, 1, bool(wrong))
