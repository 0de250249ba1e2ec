"""Inputs of an operator that come from other ranks, tensors of a rank that other ranks may read, and collectives that
leave one tensor on all ranks: if the golden's ranks hold the same tensor, the target's must too.

The content of the golden shows which ranks should hold the same. The target's tensors are compared by their statistics:
extremes, norm and sum. Ring and tree algorithms reduce every chunk on one rank and distribute it, so equal ranks are
bit-equal; the tolerance still allows one rounding of every element.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.collectives import groups_of, sends
from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings, OperatorPlace, OperatorRows
from npucmp.judge.precision import BOTH_SIDES, round_off_of
from npucmp.localise.evidence import reason
from npucmp.localise.rule_context import differs, error_size
from npucmp.localise.search import RootSearch
from npucmp.localise.sources import is_held, replace_source, source_of
from npucmp.localise.sweep import TensorSource
from npucmp.localise.thresholds import disregard
from npucmp.model import Cause, Finding, Operator, Pair, Root, TensorRef
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_buffer, is_parameter
from npucmp.model.table import made_once

FEWEST_ELEMENTS = 16  # elements: chosen: fewer are equal on ranks by chance, not measured


class RemoteView(NamedTuple):
    """A tensor of another rank as the search there sees it. `tainted`: its error descends from a root there. `rank` is
    the number of that rank; None if the dump does not record it."""

    rank: Optional[int]
    finding: Finding
    tainted: bool


def golden_of(pair: Pair) -> Operator:
    return pair.golden_op or pair.operator


def tensor_of(node: OperatorFindings, index: int) -> Finding:
    """The tensor with this number among inputs and outputs."""
    inputs = len(node.inputs)
    return node.inputs[index] if index < inputs else node.outputs[index - inputs]


def own_error(node: OperatorFindings) -> float:
    """The largest error of an operator's own inputs; in a collective, the rank with the largest error is evaluated
    first."""
    return max(map(error_size, node.inputs), default=0.0)


def snapshot(walk: RootSearch, rank: Optional[int], finding: Finding) -> RemoteView:
    """The current view of a tensor in the search of its own rank."""
    seen = walk.now(finding)
    source = source_of(walk, finding)
    return RemoteView(rank, seen, source is not None and source.tainted and differs(seen))


def add_remote_inputs(
    walk: RootSearch, node: OperatorFindings, read: Sequence[RemoteView], contributed: Sequence[RemoteView]
) -> Optional[RemoteView]:
    """Add remote tensors to an operator: those that it reads from another rank (`read`), and the inputs of other ranks
    to its collective (`contributed`). Return the tensor whose error descends from a root; None if there is none."""
    brought = None
    for one in read:
        if not is_held(walk, one.finding, node.row):
            replace_source(walk, TensorSource(one.finding, one.tainted), content_of(one.finding), node.row)
            brought = one if one.tainted else brought
    node.extra_inputs += [one.finding for one in contributed]
    node.has_remote_inputs = bool(contributed)
    node.remote_inputs_missing = node.remote_inputs_missing or _are_missing(node, contributed)
    guilty = [one for one in contributed if one.tainted]
    if guilty:
        node.error_from_other_rank = True
        brought = max(guilty, key=lambda one: error_size(one.finding))
    return brought


def _are_missing(node: OperatorFindings, contributed: Sequence[RemoteView]) -> bool:
    """Whether the recorded group of a collective has ranks without inputs here, because they are not compared."""
    if not contributed or node.op.has("point to point", "one to all") or any(one.rank is None for one in contributed):
        return False
    members = max(map(len, groups_of(golden_of(node.pair))), default=0)
    return len({one.rank for one in contributed}) < members - 1


def explain_remote(root: Root, brought: RemoteView) -> Root:
    """Add to a PROPAGATED root the rank and the tensor that the error came from."""
    if root.cause is not Cause.PROPAGATED:
        return root
    pair = brought.finding.pair
    words = "received from {which} rank, where {op} {slot} differs"
    if brought.rank is not None:
        words = "received from rank {which}, where {op} {slot} differs"
    which = "another" if brought.rank is None else brought.rank
    found = reason("another rank", words, which=which, op=pair.operator.name, slot=pair.slot)
    return replace(root, evidence=(found, *root.evidence), rule="collective")


def communicating(walk: RootSearch) -> Sequence[Optional[Operator]]:
    """Return the operators of a rank, None for those that do not communicate."""
    found: Sequence[Optional[Operator]] = made_once(walk.findings.network.columns, (_communicating,), walk.nodes.rows)
    return found


def _communicating(nodes: Sequence[OperatorRows]) -> list[Optional[Operator]]:
    goldens = [golden_of(node.pair) for node in nodes]
    return [one if op_type_of(one).has("collective") else None for one in goldens]


def without_buffers(walk: RootSearch, rank: Optional[int]) -> None:
    """Remove the memory of a receive as it was before the data arrived; its content is undefined."""
    for at, operator in enumerate(communicating(walk)):
        if operator is None or not op_type_of(walk.nodes.rows[at].operator).has("receives"):
            continue
        node = walk.nodes[at]
        for finding in list(node.inputs):
            tensor = finding.pair.golden or finding.pair.target
            if tensor is not None and is_buffer(operator, tensor, rank):
                node.inputs.remove(finding)
                walk.revised[finding.row] = disregard(finding)


def mark_missing_ranks(walk: RootSearch) -> None:
    """Mark collectives with inputs of other ranks if no other rank of the step is compared. A send only reads its own
    tensor, and a group of one rank has no others."""
    for at, row in enumerate(walk.nodes.rows):
        operator = golden_of(row.pair)
        if op_type_of(row.operator).has("collective") and not sends(operator):
            walk.nodes[at].remote_inputs_missing = all(len(group) != 1 for group in groups_of(operator))


def read_elsewhere(walks: Sequence[RootSearch]) -> dict[OperatorPlace, list[tuple[OperatorPlace, int]]]:
    """Return the operators that read a tensor which their rank did not write or read before, and another rank wrote or
    sent, each with the places of that tensor: its operator, and its number there. A receive may return before the data
    arrives, or have no record."""
    if not _may_read_elsewhere(walks):
        return {}
    wanted: list[tuple[OperatorPlace, int]] = []
    made: dict[int, dict[int, tuple[OperatorPlace, int]]] = defaultdict(dict)  # by content and rank
    for rank, walk in enumerate(walks):
        seen: set[int] = {0}
        contents = walk.edges.contents
        for at, row in enumerate(walk.nodes.rows):
            op, inputs = op_type_of(row.operator), row.inputs
            is_joint = op.has("collective")
            if is_joint and op.has("receives"):  # less its buffers
                inputs = tuple(one.row - walk.findings[0].row for one in walk.nodes[at].inputs)
            is_sent = is_joint and sends(golden_of(row.pair))
            for index, one in enumerate((*inputs, *row.outputs)):
                content, is_read = contents[one], index < len(inputs)
                if content in seen and not (is_read and is_sent and content):
                    continue
                is_new, place = content not in seen, OperatorPlace(rank, at)
                seen.add(content)
                if is_new and is_read:
                    wanted.append((place, content))
                if (is_new and not is_read and not is_joint) or (is_read and is_sent):
                    made[content][rank] = place, index
    found: dict[OperatorPlace, list[tuple[OperatorPlace, int]]] = defaultdict(list)
    for place, content in wanted:
        for sent in made.get(content, {}).values():
            if sent[0].rank != place.rank:
                found[place].append(sent)
    return found


def _rows_in_order(nodes: Sequence[OperatorRows]) -> Optional[tuple[list[int], npt.NDArray[np.bool_]]]:
    """The rows that operators read and write, in graph order, and which of them are read; None if an operator
    communicates."""
    if any(op_type_of(node.operator).has("collective") for node in nodes):
        return None
    rows = [(row, side == 0) for node in nodes for side, own in enumerate((node.inputs, node.outputs)) for row in own]
    return [row for row, _ in rows], np.array([is_read for _, is_read in rows], dtype=bool)


def _may_read_elsewhere(walks: Sequence[RootSearch]) -> bool:
    """Whether an operator communicates, or a rank first reads what another rank first wrote, by contents in columns."""
    read: list[npt.NDArray[np.uint64]] = []
    wrote: list[npt.NDArray[np.uint64]] = []
    for walk in walks:
        rows = made_once(walk.findings.network.columns, (_rows_in_order,), walk.nodes.rows)
        if rows is None:
            return True
        contents = np.array(walk.edges.contents, dtype=np.uint64)[rows[0]]
        different, first = np.unique(contents, return_index=True)
        read.append(different[rows[1][first] & (different > 0)])
        wrote.append(different[~rows[1][first] & (different > 0)])
    # without return_index, np.unique imports numpy.ma
    every = [np.unique(np.concatenate(side), return_index=True)[0] for side in (read, wrote)]
    both = np.sort(np.concatenate(every))
    return bool((both[1:] == both[:-1]).any())


def reductions_inside(walks: Sequence[RootSearch]) -> list[list[OperatorPlace]]:
    """Return the operators of several ranks that add or join what the ranks read inside them, and record no collective
    for it: a row-parallel linear layer as a module. They read unequal tensors on these ranks of the golden, and write
    one float tensor on all."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, walk in enumerate(walks):
        network = walk.findings.network
        alike[made_once(network.columns, (_names,), network.pairs)].append(rank)
    found: list[list[OperatorPlace]] = []
    for ranks in alike.values():
        first = walks[ranks[0]]
        rows = made_once(first.findings.network.columns, (_rows_joined,), first) if len(ranks) > 1 else None
        if not rows:
            continue
        contents = np.array([walks[rank].edges.contents for rank in ranks], dtype=np.uint64)
        written = np.sort(contents[:, [output for _, output, _ in rows]], axis=0)
        is_shared = ((written[1:] == written[:-1]) & (written[1:] > 0)).any(axis=0)
        for shared in np.flatnonzero(is_shared).tolist():
            at, output, inputs = rows[shared]
            holders: dict[int, list[int]] = defaultdict(list)
            for place, content in enumerate(contents[:, output].tolist()):
                holders[content].append(place)
            for content, places in holders.items():
                if content and len({*map(tuple, contents[places][:, inputs].tolist())}) > 1:
                    found.append([OperatorPlace(ranks[place], at) for place in places])
    return found


def _names(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The operators and slots of all rows, which ranks of one structure share."""
    return tuple(f"{pair.operator.name} {pair.slot}" for pair in pairs)


def _rows_joined(walk: RootSearch) -> list[tuple[int, int, list[int]]]:
    """The operators that may add or join inside what ranks read: their number, the row of a float output, and the rows
    of the float tensors that they read and no parameters."""
    pairs, found = walk.findings.network.pairs, []
    for at, node in enumerate(walk.nodes.rows):
        read = [row for row in node.inputs if round_off_of(pairs[row]) and not is_parameter(pairs[row])]
        written = next((row for row in node.outputs if _is_large(pairs[row].golden)), None)
        if read and written is not None and not op_type_of(node.operator).has("collective"):
            found.append((at, written, read))
    return found


def _is_large(tensor: Optional[TensorRef]) -> bool:
    return tensor is not None and math.prod(tensor.shape) >= FEWEST_ELEMENTS


class Inequality(NamedTuple):
    """The relative difference between the tensors of two ranks, and the largest difference that rounding may cause."""

    size: float
    tolerance: float
    words: str


def mark_inequalities(ranks: Sequence[tuple[int, OperatorFindings]]) -> None:
    """Mark the outputs of one collective, given by the numbers and operators of its ranks, that differ from those of
    other ranks although the golden's are equal. The rank with the larger error of two is marked; among more
    ranks, those that differ from most."""
    holders: dict[tuple[str, int], list[tuple[int, OperatorFindings, Finding]]] = defaultdict(list)
    for rank, node in ranks:
        if node.op.has("collective") and not node.op.has("point to point", "asynchronous"):
            for one in node.outputs:
                if one.measurement.moments is not None and (content := content_of(one)):
                    holders[one.pair.slot, content].append((rank, node, one))
    for (slot, _), members in holders.items():
        for at, (rank, node, one) in enumerate(members):
            tolerance = BOTH_SIDES * round_off_of(one.pair)
            others = [(place, *member) for place, member in enumerate(members) if place != at]
            apart = [(number, size) for _, number, _, other in others if (size := _distance(one, other)) > tolerance]
            is_odd = 2 * len(apart) > len(others)
            if len(others) == 1:
                ((place, number, _, other),) = others
                is_odd = (one.error or 0.0, rank, at) > (other.error or 0.0, number, place)
            if apart and is_odd:
                number, size = apart[0]
                words = f"it differs from rank {number}'s by {size:.2e} of its size; in the golden both are equal"
                node.unequal[slot] = Inequality(size, tolerance, words)


def _distance(one: Finding, other: Finding) -> float:
    """The largest relative difference of the statistics of two target tensors: norm and extremes relative to
    themselves, the sum relative to the norm, by which independent roundings of all elements move it; infinity if NaN
    and Inf differ."""
    a, b = (finding.measurement.moments.target for finding in (one, other))  # type: ignore[union-attr]
    if (a.nan, a.posinf, a.neginf) != (b.nan, b.posinf, b.neginf):
        return math.inf
    norms = math.sqrt(a.squares), math.sqrt(b.squares)
    pairs = (norms, (a.minimum, b.minimum), (a.maximum, b.maximum))
    relative = [abs(x - y) / max(abs(x), abs(y)) for x, y in pairs if x != y]
    relative += [abs(a.total - b.total) / max(norms)] if max(norms) else []
    return max(relative, default=0.0)
