"""Pairs of contents by structure: operators of one type that read the same partners, and copies.

A pair needs all parents paired, except weights that the other run has as a constant of that size; the same size, as
many contents read, and to be the only such pair on both sides. A copy is the output of an operator that only hands on
what it reads, but wrote other values: its partner is that of what it read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Hashable, Mapping, Optional, Sequence

from npucmp.model.optypes import op_type
from npucmp.relations.frameworks.contents.content import Content
from npucmp.relations.frameworks.contents.content_graph import ContentGraph, adds_bias_apart, operands
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs, Near
from npucmp.relations.frameworks.contents.learned_types import LearnedTypes

STRUCTURE, COPY = "structure", "copy"
_HANDING = ("views", "hands on", "copies")
PARTNER_TYPES = 0.2  # score: chosen: types that are partners in most places where they occur, or equal types
_Reads = tuple[int, tuple[int, ...], tuple[int, ...]]
CONFIDENCE = 0.8  # confidence: chosen: 2,589 right and 8 wrong on 389 pairs


def match_structure(pairs: ContentPairs, types: LearnedTypes, near: Near = None) -> int:
    """Add the pairs by structure, of all contents or of those `near` new pairs; return their number."""
    goldens = _by_reads(pairs, 1, pairs.to_target, near)
    targets = _by_reads(pairs, 0, pairs.with_copies, near) if goldens else {}
    count = 0
    for key, numbers in targets.items():
        for target in numbers:
            fitting = [one for one in goldens.get(key, ()) if types.alike(target, one)]
            if len(fitting) != 1 or sum(types.alike(one, fitting[0]) for one in numbers) != 1:
                continue
            golden = fitting[0]
            hidden = target in pairs.right[0] or golden in pairs.right[1]
            if types.are_inner(target, golden) or (hidden and types.fit(target, golden) < PARTNER_TYPES):
                continue
            if _read_alike(pairs, target, golden) and pairs.same_pass(target, golden):
                reads, every = len(key[1]), len(key[1]) + len(key[2])
                reason = f"{reads} of {every} inputs are partners, same type, the only one of this size"
                count += pairs.add(ContentPair(target, golden, STRUCTURE, CONFIDENCE, reason))
    return count


def _by_reads(pairs: ContentPairs, side: int, known: Mapping[int, int], near: Near) -> dict[_Reads, list[int]]:
    """The contents that may get a partner, by their size, the golden numbers of what they are computed from, and the
    sizes of other inputs. A weight without a partner counts as a constant of its size: a bias that is lost is zero in
    one run."""
    graph = pairs.golden if side else pairs.target
    found: dict[_Reads, list[int]] = defaultdict(list)
    for content in graph.among(near[side] if near else None):
        parents = graph.parents[content.number]
        lost = [one for one in parents if one not in known and graph.contents[one].is_weight]
        reads = [one if side else known[one] for one in parents if one in known]
        if not content.makers or not reads or len(reads) + len(lost) < len(parents):
            continue
        if _is_open(pairs, side, content.number, lost):
            if not lost:
                found[content.size, tuple(sorted(reads)), ()].append(content.number)
            rest = sorted([*(graph.contents[one].size for one in lost), *graph.constants(content.makers[0])])
            if rest:
                found[content.size, tuple(sorted(reads)), tuple(rest)].append(content.number)
    return found


def match_first(pairs: ContentPairs, types: LearnedTypes) -> int:
    """Add the first contents of partner types behind the same partners as pairs, and return their number. Operators may
    lie between: a batch norm behind a convolution is the partner of a convolution that a compiler folded."""
    known = pairs.with_copies
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, graph in enumerate((pairs.target, pairs.golden)):
        partners = pairs.to_target if side else known
        for content in graph.contents:
            if content.makers and pairs.is_open(side, content.number):
                above = graph.ancestors(content.number, partners)
                if above and any(not graph.contents[one].is_weight for one in above):
                    key = content.size, frozenset(above if side else map(known.__getitem__, above))
                    groups[key][side].append(content.number)
    count = 0
    for targets, goldens in groups.values():
        for target in targets:
            fitting = _first(pairs.golden, [one for one in goldens if _may_be_first(pairs, types, target, one)])
            if fitting is None or not pairs.same_pass(target, fitting):
                continue
            rivals = [one for one in targets if _may_be_first(pairs, types, one, fitting)]
            if _first(pairs.target, rivals) == target:
                reason = "the first of its type behind the same partners"
                count += pairs.add(ContentPair(target, fitting, STRUCTURE, CONFIDENCE, reason))
    return count


def _may_be_first(pairs: ContentPairs, types: LearnedTypes, target: int, golden: int) -> bool:
    """Whether the types of two contents are partners, and none of them is a product whose bias is added below."""
    is_apart = adds_bias_apart(pairs.target.maker(target), pairs.golden.maker(golden))
    return types.fit(target, golden) >= PARTNER_TYPES and not is_apart


def _first(graph: ContentGraph, numbers: Sequence[int]) -> Optional[int]:
    """The content from which all others of these are computed; None if there is none."""
    first = [one for one in numbers if {*numbers} <= {one} | graph.near_downstream(one)]
    return first[0] if len(first) == 1 else None


def _is_open(pairs: ContentPairs, side: int, number: int, lost: Sequence[int]) -> bool:
    """Whether a content may get a partner by structure. Below an operator that hides an error (a norm hides a factor)
    the runs agree again; a content above it is open if the partners of at least two parents are known by value."""
    if pairs.is_open(side, number):
        return True
    graph, known = (pairs.golden, pairs.to_target) if side else (pairs.target, pairs.to_golden)
    if number in known or number not in pairs.right[side]:
        return False
    parents = [one for one in graph.parents[number] if one not in lost]
    return len(parents) > 1 and all(pairs.is_by_value(side, one) for one in parents)


def _read_alike(pairs: ContentPairs, target: int, golden: int) -> bool:
    """Whether the makers of two contents read the same partners as often (x·x is no multiple of x); a product as many
    operands, so that a bias apart from the product is not taken for one inside it."""
    places = pairs.target.contents[target].makers[0], pairs.golden.contents[golden].makers[0]
    if _times_read(pairs.target, places[0]) != _times_read(pairs.golden, places[1]):
        return False
    here, there = pairs.target.operators[places[0]], pairs.golden.operators[places[1]]
    contracts = op_type(here.op_type).has("contracts") or op_type(there.op_type).has("contracts")
    return not contracts or len(operands(here)) == len(operands(there))


def _times_read(graph: ContentGraph, place: int) -> int:
    """How often an operator of one content reads it; 1 for others."""
    read = [graph.content_of.get((place, one.slot)) for one in graph.operators[place].tensors if not one.is_output]
    known = [one for one in read if one is not None]
    return len(known) if len({*known}) == 1 else 1


def add_copies(pairs: ContentPairs) -> None:
    """Add the copies: contents that an operator or a module handed on as other values, of the target. An agreement
    below proves nothing about what a module hands on, because a norm hides a shift."""
    known = pairs.with_copies
    for content in pairs.target.contents:
        if not content.makers or content.number in known:
            continue
        is_module = bool(pairs.target.operators[content.makers[0]].path)
        read = _handed_on(pairs.target, content) if is_module or pairs.is_open(0, content.number) else None
        if read is not None and read in pairs.to_golden:
            pairs.copies[content.number] = pairs.to_golden[read]


def _handed_on(graph: ContentGraph, content: Content) -> Optional[int]:
    """The content that the maker of another content should have handed on; None if there is none. A module hands on the
    last content that was computed inside it, if nothing else reads this content."""
    place = content.makers[0]
    operator = graph.operators[place]
    if operator.path:
        inside = (
            one
            for before in range(place - 1, -1, -1)
            if not graph.operators[before].path
            for one in graph.writes[before]
        )
        last = next((one for one in inside if graph.contents[one].size == content.size), None)
        if last is None or graph.children[last] or graph.upstream([last]).isdisjoint(graph.reads[place]):
            return None
        return last
    read = [one for one in graph.reads[place] if one != content.number and graph.contents[one].size == content.size]
    return read[0] if len(read) == 1 and _hands_on(operator.op_type) else None


def _hands_on(spelled: str) -> bool:
    found = op_type(spelled)
    return found.has(*_HANDING) and not found.has("picks")
