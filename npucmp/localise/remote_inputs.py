"""What comes to an operator from other ranks, and what a rank wrote or sent that others may read."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.flow.collectives import groups_of, sends
from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.localise.evidence import reason
from npucmp.localise.intervals import differs
from npucmp.localise.rule_context import error_size
from npucmp.localise.search import RootSearch
from npucmp.localise.sources import TensorSource
from npucmp.localise.thresholds import disregard
from npucmp.model import Cause, Finding, Operator, Root
from npucmp.model.roles import is_buffer


class Arrival(NamedTuple):
    """A tensor of another rank, as the walk there sees it, and whether its error descends from a root there. `rank` is
    what that rank is called, None where the dump does not tell."""

    rank: Optional[int]
    finding: Finding
    tainted: bool


class RemoteTensor(NamedTuple):
    """A tensor of a rank, known by its content: of operator number `at`, its tensor `number`."""

    content: int
    at: int
    number: int


class RankTensors(NamedTuple):
    """What a rank reads that nothing on it wrote or read before, and what it wrote or sent, each in order."""

    wanted: list[RemoteTensor]
    made: list[RemoteTensor]


def golden_of(node: OperatorFindings) -> Operator:
    return node.pair.golden_op or node.operator


def tensor_of(node: OperatorFindings, index: int) -> Finding:
    """By its number among inputs and outputs."""
    inputs = len(node.inputs)
    return node.inputs[index] if index < inputs else node.outputs[index - inputs]


def own_error(node: OperatorFindings) -> float:
    """How far an operator's own inputs are off: of a collective, who is farthest off is asked first."""
    return max(map(error_size, node.inputs), default=0.0)


def as_seen(walk: RootSearch, rank: Optional[int], finding: Finding) -> Arrival:
    """A tensor as the walk of its own rank sees it, so far."""
    seen = walk.revised.get(finding.row, finding)
    source = walk.sources.of(finding)
    return Arrival(rank, seen, source is not None and source.tainted and differs(seen))


def take_in(
    walk: RootSearch, node: OperatorFindings, read: Sequence[Arrival], given: Sequence[Arrival]
) -> Optional[Arrival]:
    """Tells an operator what comes to it: what it reads that another rank wrote, and what others put in. The one that
    brings an error that descends from a root, None if none does."""
    brought = None
    for one in read:
        if not walk.sources.is_known(one.finding, node.row):
            walk.sources.replace(TensorSource(one.finding, one.tainted), content_of(one.finding), node.row)
            brought = one if one.tainted else brought
    node.context += [one.finding for one in given]
    node.arrived = bool(given)
    node.unheard = node.unheard or _are_missing(node, given)
    guilty = [one for one in given if one.tainted]
    if guilty:
        node.carried = True
        brought = max(guilty, key=lambda one: error_size(one.finding))
    return brought


def _are_missing(node: OperatorFindings, given: Sequence[Arrival]) -> bool:
    """Whether the group of a collective, where it is recorded, has ranks that put nothing in: they are not compared."""
    if not given or node.op.has("point to point", "one to all") or any(one.rank is None for one in given):
        return False
    members = max(map(len, groups_of(golden_of(node))), default=0)
    return len({one.rank for one in given}) < members - 1


def arrived(root: Root, brought: Arrival) -> Root:
    """A root that passes on what arrived, and says from where."""
    if root.cause is not Cause.PROPAGATED:
        return root
    pair = brought.finding.pair
    words = "arrived from {which} rank, where {op} {slot} differs"
    if brought.rank is not None:
        words = "arrived from rank {which}, where {op} {slot} differs"
    which = "another" if brought.rank is None else brought.rank
    found = reason("another rank", words, which=which, op=pair.operator.name, slot=pair.slot)
    return replace(root, evidence=(found, *root.evidence), rule="collective")


def contents(nodes: Sequence[OperatorFindings]) -> RankTensors:
    """Of one rank: what may have come from others by receives that return before the data is there, or that were not
    recorded; and what others may have got so."""
    seen: set[int] = set()
    found = RankTensors([], [])
    for at, node in enumerate(nodes):
        is_sent, is_joint = sends(golden_of(node)), node.op.has("collective")
        for index, finding in enumerate((*node.inputs, *node.outputs)):
            content, is_read = content_of(finding), index < len(node.inputs)
            if not content:
                continue
            is_new = content not in seen
            seen.add(content)
            if is_new and is_read:
                found.wanted.append(RemoteTensor(content, at, index))
            if (is_new and not is_read and not is_joint) or (is_read and is_sent):
                found.made.append(RemoteTensor(content, at, index))
    return found


def without_buffers(walk: RootSearch, rank: Optional[int]) -> None:
    """What lay in memory before something was received there means nothing."""
    for node in walk.nodes:
        operator = golden_of(node)
        for finding in list(node.inputs) if node.op.has("receives") else ():
            tensor = finding.pair.golden or finding.pair.target
            if tensor is not None and is_buffer(operator, tensor, rank):
                node.inputs.remove(finding)
                walk.revised[finding.row] = disregard(finding)


def without_others(walk: RootSearch) -> None:
    """Marks what other ranks put something into, where no other rank of the step is compared. A send hands over what
    it has; of a group of one there are no others."""
    for node in walk.nodes:
        operator = golden_of(node)
        alone = any(len(group) == 1 for group in groups_of(operator))
        node.unheard = node.op.has("collective") and not sends(operator) and not alone


def read_elsewhere(
    ranks: Sequence[RankTensors],
) -> Iterator[tuple[tuple[int, int], list[tuple[int, int, int]]]]:
    """(rank, operator) that reads what another rank wrote or sent → where: rank, operator, tensor."""
    made: list[dict[int, RemoteTensor]] = [{} for _ in ranks]
    makers: dict[int, dict[int, None]] = {}  # the ranks that made something of a content
    for rank, one in enumerate(ranks):
        for some in one.made:
            made[rank][some.content] = some
            makers.setdefault(some.content, {})[rank] = None
    for rank, one in enumerate(ranks):
        by_operator: dict[int, list[tuple[int, int, int]]] = {}
        for some in one.wanted:
            for other in makers.get(some.content, ()):
                if other != rank:
                    sent = made[other][some.content]
                    by_operator.setdefault(some.at, []).append((other, sent.at, sent.number))
        yield from (((rank, at), found) for at, found in by_operator.items())
