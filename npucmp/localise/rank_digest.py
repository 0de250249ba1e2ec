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
"""

from __future__ import annotations

from collections import Counter, defaultdict
from hashlib import blake2b
from struct import Struct
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.flow.collectives import groups_of
from npucmp.flow.contents import content_of
from npucmp.model import DIFFERS, Comparison, Finding, Operator, Pair, Statistics, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output, is_parameter, peer_of

SIZE = 8  # bytes of a digest: work
WEIGHT, GRADIENT, TOLD, TOLD_FORWARD = "w", "g", "t", "f"  # kinds of tensors; the last two: output of a collective
_FIGURES = Struct("4d")
AGREES, DIFFERENT, OPEN = "=", "x", "?"  # results of the comparison with the golden run


class RankDigest(NamedTuple):
    """The digest of one step and rank.

    names    of the tensors that other ranks may hold too: operator and slot
    kinds    one letter for each tensor; verdicts: one letter too
    golden, target  digests, SIZE bytes each
    groups   of ranks in collectives of the forward pass
    peers    the ranks that it sends to (True) or receives from first, in order of execution
    """

    step: Optional[int]
    rank: Optional[int]
    names: tuple[tuple[str, str], ...] = ()
    kinds: str = ""
    verdicts: str = ""
    golden: bytes = b""
    target: bytes = b""
    groups: tuple[tuple[int, ...], ...] = ()
    peers: tuple[tuple[int, bool], ...] = ()

    def digests(self, at: int) -> tuple[bytes, bytes]:
        """The digests of the golden's and the target's tensor number `at`."""
        place = slice(at * SIZE, (at + 1) * SIZE)
        return self.golden[place], self.target[place]


def joint_of(one: Comparison) -> RankDigest:
    """The digest of a comparison for other ranks."""
    backward = min((op.order for op in one.golden.operators if is_gradient(op)), default=len(one.golden.operators))
    held = _shared_tensors(one.findings, backward)
    calls = [op for op in one.golden.operators if op_type_of(op).has("collective")]
    return RankDigest(
        one.step,
        one.rank,
        tuple(held),
        "".join(kind for kind, _, _ in held.values()),
        "".join(_verdict(finding) for _, finding, _ in held.values()),
        b"".join(content.to_bytes(SIZE, "big") for _, _, content in held.values()),
        b"".join(_digest(_of_target(finding)) for _, finding, _ in held.values()),
        tuple(dict.fromkeys(group for op in calls if op.order < backward for group in groups_of(op))),
        tuple(_peers(calls)),
    )


def _shared_tensors(findings: Sequence[Finding], backward: int) -> dict[tuple[str, str], tuple[str, Finding, int]]:
    """The tensors that other ranks may hold too: kind, finding and content, by operator and slot."""
    found: dict[tuple[str, str], tuple[str, Finding, int]] = {}
    known: Optional[Operator] = None
    is_collective = False
    for finding in findings:
        pair = finding.measurement.pair
        operator, slot = pair.golden_op, pair.slot
        if operator is None:
            continue
        if operator is not known:
            known, is_collective = operator, op_type_of(operator).has("collective")
        if is_collective:
            kind = _kind_of_given(operator, pair, backward)
        else:
            kind = GRADIENT if slot.startswith("grad:") else WEIGHT if is_parameter(pair) else ""
        if kind and (content := content_of(finding)):
            found[operator.name, slot] = kind, finding, content
    return found


def _kind_of_given(operator: Operator, pair: Pair, backward: int) -> str:
    """The kind of a collective's tensor; "" if other ranks need not have the same."""
    is_told = is_output(pair) and not op_type_of(operator).has("point to point")
    return "" if not is_told else TOLD_FORWARD if operator.order < backward else TOLD


def _verdict(finding: Finding) -> str:
    if finding.verdict is Verdict.MATCH:
        return AGREES
    return DIFFERENT if finding.verdict in DIFFERS else OPEN


def _of_target(finding: Finding) -> object:
    """The key of the target's tensor, which may be a constant or all NaN."""
    moments, tensor = finding.measurement.moments, finding.pair.target
    if moments is not None:
        return moments.target
    return (tensor.identity if tensor is not None and tensor.checksum else None) or finding.measurement.statistics[0]


def _digest(mark: object) -> bytes:
    if isinstance(mark, Statistics) and {*map(type, mark)} == {float}:
        return blake2b(_FIGURES.pack(*mark), digest_size=SIZE).digest()
    return blake2b(repr(mark).encode("utf-8", "backslashreplace"), digest_size=SIZE).digest()


def _peers(calls: Sequence[Operator]) -> Iterator[tuple[int, bool]]:
    """Yield the first call between this rank and each other rank."""
    seen = set()
    for operator in calls:
        op = op_type_of(operator)
        peer = peer_of(operator) if op.has("point to point") else None
        if peer is not None and peer not in seen:
            seen.add(peer)
            yield peer, not op.has("receives")


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


class _DigestIndex(NamedTuple):
    rank: int
    target: bytes
    verdict: str
    kind: str


def odd_ones(joints: Iterable[RankDigest]) -> list[ReplicaMismatch]:
    """The groups of ranks that differ, counted from their first step; wrong groups come first."""
    steps: dict[int, list[RankDigest]] = defaultdict(list)
    for one in joints:
        if one.rank is not None:
            steps[-1 if one.step is None else one.step].append(one)
    found: dict[object, ReplicaMismatch] = {}
    tensors: Counter[object] = Counter()
    for _, digests in sorted(steps.items()):
        for odd in _of_step(digests):
            key = odd.ranks, odd.others, odd.wrong
            if found.setdefault(key, odd).step == odd.step:
                tensors[key] += 1
    every = (odd._replace(tensors=tensors[key]) for key, odd in found.items())
    return sorted(every, key=lambda one: not one.wrong)


def _of_step(digests: Sequence[RankDigest]) -> Iterator[ReplicaMismatch]:
    held: dict[tuple[str, str], dict[bytes, list[_DigestIndex]]] = defaultdict(lambda: defaultdict(list))
    for one in digests:
        assert one.rank is not None
        for at, name in enumerate(one.names):
            golden, target = one.digests(at)
            held[name][golden].append(_DigestIndex(one.rank, target, one.verdicts[at], one.kinds[at]))
    for name, groups in held.items():
        for group in groups.values():
            if len({one.target for one in group}) > 1:
                yield _odd(digests[0].step, name, group)


def _odd(step: Optional[int], name: tuple[str, str], group: Sequence[_DigestIndex]) -> ReplicaMismatch:
    """The ranks that differ from their golden if other ranks do not; otherwise the minority; otherwise all ranks."""
    wrong = [one for one in group if one.verdict == DIFFERENT]
    odd = wrong
    if not wrong or len(wrong) == len(group):
        (most, count), *_ = times = Counter(one.target for one in group).most_common()
        odd = [one for one in group if one.target != most] if count > times[1][1] else [*group]
    ranks = tuple(sorted(one.rank for one in odd))
    others = tuple(sorted(one.rank for one in group if one.rank not in ranks)) or ranks
    return ReplicaMismatch(step, ranks, others, WORDS.get(group[0].kind, "result"), name, 1, bool(wrong))
