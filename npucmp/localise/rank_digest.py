"""The digest of tensors that one step and rank shares with other ranks: small, and made from existing measurements.

Data-parallel ranks hold the same weights, and the output of a collective is the same on all ranks of its group. Dumps
do not record which ranks these are; the golden run shows it, because its ranks hold the same tensors where they should.
So the digest has two hashes for every such tensor: of the golden's content and of the target's. Constants are excluded,
because they are equal by chance.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.flow.collectives import groups_of
from npucmp.flow.contents import content_of
from npucmp.model import DIFFERS, Comparison, Finding, Operator, Pair, Statistics, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output, is_parameter, peer_of

SIZE = 8  # bytes of a digest: work
WEIGHT, GRADIENT, TOLD, TOLD_FORWARD = "w", "g", "t", "f"  # kinds of tensors; the last two: output of a collective
_FIGURES = Struct("4d")
AGREES, DIFFERENT, OPEN = "=", "x", "?"  # results of the comparison with the golden run


class Joint(NamedTuple):
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


def joint_of(one: Comparison) -> Joint:
    """The digest of a comparison for other ranks."""
    backward = min((op.order for op in one.golden.operators if is_gradient(op)), default=len(one.golden.operators))
    held = _shared_tensors(one.findings, backward)
    calls = [op for op in one.golden.operators if op_type_of(op).has("collective")]
    return Joint(
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
    return DIFFERENT if finding.verdict is not Verdict.UNKNOWN and finding.verdict in DIFFERS else OPEN


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
