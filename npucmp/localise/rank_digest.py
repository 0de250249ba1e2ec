"""Tensors that one step and rank shares with other ranks: a small digest of them, made from existing measurements, and
the comparison of the digests of all ranks (weights, reduced gradients, outputs of collectives).

Data-parallel ranks hold the same weights, and the output of a collective is the same on all ranks of its group. Dumps
do not record which ranks these are; the golden run shows it, because its ranks hold the same tensors where they should.
So the digest has two hashes for every tensor: of the golden's content and of the target's. Constants are excluded,
because they are equal by chance. Ranks whose tensors differ by design (tensor, pipeline, expert parallelism) differ in
the golden too, and are not compared. Rounding may make ranks of the target differ although each agrees with its golden:
this is reported separately from a tensor that is wrong on one rank.

The report names the ranks that differ from their golden while others do not, otherwise the smaller group, otherwise all
of them, from which step on, and the number of tensors. Roots and exit status do not depend on it.

The place of a rank among the ranks of its step: its pipeline stage and its tensor-parallel rank.

No dump has a field for it. Only facts that follow from the golden run's records are reported:

    stage        sends and receives of the forward pass lead from a stage to the next: the rank that sends first is in
                 the earlier stage. All paths to a rank must have equal length, and none may lead back
    tensor rank  its number in the smallest group of ranks of one stage that share the output of a collective of the
                 forward pass, and hold parameters of the same names that differ. A group is recorded, or inferred: its
                 ranks got the same, and no smaller rank is missing. If a rank also exchanges parts with others (all to
                 all), a group may be one of experts, and nothing is reported
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from hashlib import blake2b
from itertools import compress
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.flow.collectives import groups_of
from npucmp.flow.contents import contents_of
from npucmp.model import DIFFERS, Comparison, Operator, Pair, Run
from npucmp.model.network import rows_to_search
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output, is_parameter, peer_of
from npucmp.model.table import (
    Columns,
    bare_pairs,
    network_fact,
    recorded_figures,
    run_fact,
    with_field,
    with_verdict,
)

SIZE = 8  # bytes of a digest: work
WEIGHT, GRADIENT, TOLD, TOLD_FORWARD = "w", "g", "t", "f"  # kinds of tensors; the last two: output of a collective


class SharedTensor(NamedTuple):
    """A tensor that other ranks may hold too: its operator and slot, its kind, whether it differs from its golden, the
    content of the golden, and that of the target."""

    name: tuple[str, str]
    kind: str
    differs: bool
    golden: int
    target: int


class RankDigest(NamedTuple):
    """The digest of one step and rank.

    names    of the tensors that other ranks may hold too, and the columns of their other facts
    groups   of ranks in collectives of the forward pass
    peers    the ranks that it sends to (True) or receives from first, in order of execution
    """

    step: Optional[int]
    rank: Optional[int]
    names: tuple[tuple[str, str], ...] = ()
    kinds: str = ""
    differs: tuple[bool, ...] = ()
    golden: Sequence[int] = ()
    target: Sequence[int] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    peers: tuple[tuple[int, bool], ...] = ()

    @property
    def tensors(self) -> Iterator[SharedTensor]:
        """The tensors that other ranks may hold too."""
        return map(SharedTensor, self.names, self.kinds, self.differs, self.golden, self.target)


def joint_of(one: Comparison) -> RankDigest:
    """The digest of a comparison for other ranks."""
    columns, run = one.columns, run_fact(one.golden, _CollectiveCalls.of)
    contents, marks = contents_of(rows_to_search(one)), _target_marks(columns)
    shared = network_fact(columns, _shared_tensors, run.backward)
    held = {name: (kind, row) for row, name, kind in shared if contents[row]}
    rows = [row for _, row in held.values()]
    return RankDigest(
        one.step,
        one.rank,
        tuple(held),
        "".join(kind for kind, _ in held.values()),
        tuple(with_verdict(columns, DIFFERS)[rows].tolist()),
        array("Q", map(contents.__getitem__, rows)),
        array("Q", (_digest(marks(row)) for row in rows)),
        run.groups,
        run.peers,
    )


class _CollectiveCalls(NamedTuple):
    """The order of the first gradient of a run, or the number of its operators; the groups of ranks in collectives of
    the forward pass, and the ranks that it sends to or receives from."""

    backward: int
    groups: tuple[tuple[int, ...], ...]
    peers: tuple[tuple[int, bool], ...]

    @classmethod
    def of(cls, run: Run) -> _CollectiveCalls:
        backward = min((op.order for op in run.operators if is_gradient(op)), default=len(run.operators))
        calls = [(op, op_type_of(op)) for op in run.operators if op_type_of(op).has("collective")]
        groups = dict.fromkeys(group for op, _ in calls if op.order < backward for group in groups_of(op))
        peers: dict[int, bool] = {}
        for op, kind in calls:
            if kind.has("point to point") and (peer := peer_of(op)) is not None:
                peers.setdefault(peer, not kind.has("receives"))
        return cls(backward, tuple(groups), tuple(peers.items()))


def _shared_tensors(columns: Columns, backward: int) -> list[tuple[int, tuple[str, str], str]]:
    """The rows of tensors that other ranks may hold too, each with its operator and slot, and its kind."""
    pairs = [(row, pair, pair.golden_op) for row, pair in enumerate(network_fact(columns, bare_pairs))]
    return [
        (row, (operator.name, pair.slot), kind)
        for row, pair, operator in pairs
        if operator is not None and (kind := _kind(pair, operator, backward))
    ]


def _kind(pair: Pair, operator: Operator, backward: int) -> str:
    """The kind of a tensor; "" if other ranks need not have the same."""
    op = op_type_of(operator)
    if not op.has("collective"):
        return GRADIENT if pair.slot.startswith("grad:") else WEIGHT if is_parameter(pair) else ""
    is_told = is_output(pair) and not op.has("point to point")
    return "" if not is_told else TOLD_FORWARD if operator.order < backward else TOLD


def _target_marks(columns: Columns) -> Callable[[int], bytes]:
    """A function of a row that returns what identifies its target tensor, which may be a constant or all NaN."""
    known, figures = recorded_figures(columns, 0)
    halves, tensors = columns.moments["target"], with_field(columns, "checksum").targets

    def mark(row: int) -> bytes:
        tensor, place = tensors[row], columns.rows["moments"][row]
        if place >= 0:
            return bytes(halves[place].tobytes())
        identity = tensor.identity if tensor is not None and tensor.checksum else ""
        return identity.encode("utf-8", "backslashreplace") or known[row].tobytes() + figures[row].tobytes()

    return mark


def _digest(mark: bytes) -> int:
    return int.from_bytes(blake2b(mark, digest_size=SIZE).digest(), "big")


def held_alike(digests: Iterable[RankDigest], *kinds: str) -> list[list[tuple[int, SharedTensor]]]:
    """Return the numbered ranks that hold the same tensor of some kinds in the golden, with the tensor."""
    found: dict[object, dict[int, list[tuple[int, SharedTensor]]]] = defaultdict(lambda: defaultdict(list))
    for one in digests:
        for tensor in one.tensors if one.rank is not None and {*kinds} & {*one.kinds} else ():
            if tensor.kind in kinds:
                found[tensor.name][tensor.golden].append((one.rank, tensor))  # type: ignore[arg-type]
    return [group for groups in found.values() for group in groups.values()]


def _repeated(digests: Sequence[RankDigest]) -> Iterator[RankDigest]:
    """Yield the digests with the golden tensors alone that occur more than once."""
    goldens = [np.array(one.golden, np.uint64) for one in digests]
    every = np.sort(np.concatenate(goldens))
    again = every[1:][every[1:] == every[:-1]]
    for one, golden in zip(digests, goldens):
        kept = np.isin(golden, again).tolist()
        yield one._replace(
            names=tuple(compress(one.names, kept)), kinds="".join(compress(one.kinds, kept)),
            differs=tuple(compress(one.differs, kept)),
            golden=[*compress(one.golden, kept)], target=[*compress(one.target, kept)],
        )  # fmt: skip


WORDS = {WEIGHT: "weight", GRADIENT: "gradient"}  # other kinds are outputs of a collective


class ReplicaMismatch(NamedTuple):
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


def odd_ones(joints: Iterable[RankDigest]) -> list[ReplicaMismatch]:
    """The groups of ranks that differ, counted from their first step; wrong groups come first."""
    steps: dict[int, list[RankDigest]] = defaultdict(list)
    for one in joints:
        steps[-1 if one.step is None else one.step].append(one)
    found: dict[object, ReplicaMismatch] = {}
    tensors: Counter[object] = Counter()
    for _, digests in sorted(steps.items()):
        for group in held_alike(_repeated(digests), WEIGHT, GRADIENT, TOLD, TOLD_FORWARD):
            if len({tensor.target for _, tensor in group}) > 1:
                odd = _odd(digests[0].step, group)
                key = odd.ranks, odd.others, odd.wrong
                tensors[key] += found.setdefault(key, odd).step == odd.step
    every = (odd._replace(tensors=tensors[key]) for key, odd in found.items())
    return sorted(every, key=lambda one: not one.wrong)


def _odd(step: Optional[int], group: Sequence[tuple[int, SharedTensor]]) -> ReplicaMismatch:
    """The ranks that differ from their golden if other ranks do not; otherwise the minority; otherwise all ranks."""
    odd = wrong = [rank for rank, tensor in group if tensor.differs]
    if not wrong or len(wrong) == len(group):
        (most, count), *_ = times = Counter(tensor.target for _, tensor in group).most_common()
        odd = [rank for rank, tensor in group if tensor.target != most or count == times[1][1]]
    others = [rank for rank, _ in group if rank not in odd] or odd
    _, first = group[0]
    what = WORDS.get(first.kind, "result")
    return ReplicaMismatch(step, (*sorted(odd),), (*sorted(others),), what, first.name, 1, bool(wrong))


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
    are_named_alike = all(names.keys() == weights[0].keys() for names in weights)
    return are_named_alike and any(len({names[name] for names in weights}) == len(weights) for name in weights[0])
