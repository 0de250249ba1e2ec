"""The data flow of one run between contents: which operator computes a content, which contents it is computed from.

An operator that should change what it reads, but does not (a bias that is lost), writes a content of its own with the
same values. The edges come from the contents themselves, and from the producers that a graph names. A gradient is also
computed from what the forward pass of its call read. An operator that writes what it reads (a view, a copy, a module
around others) computes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import AbstractSet, Collection, Container, Hashable, Iterable, Mapping, Optional, Sequence, Union

from npucmp.dump.readers.names import file_name_of
from npucmp.model import Operator, Run, TensorRef
from npucmp.model.optypes import is_gradient, op_type, same_type
from npucmp.relations.frameworks.contents.axis_orders import without_units
from npucmp.relations.frameworks.contents.content import FEWEST, Content, ContentReader, Recording

_HANDING = ("views", "hands on", "copies", "drops", "collective", "constant", "stored", "in place")
HOPS = 6  # steps: chosen: the farthest ancestor that is looked for, more than any fused operator has

WEIGHT_REACH = 5  # steps: chosen: a decomposed norm has its weight so far above what it writes
CUT_STEPS = 16  # steps: chosen: more operators than a decomposed norm or activation has

_Edges = Union[Mapping[int, Collection[int]], Sequence[Collection[int]]]


class ContentGraph:
    """The contents of a run, and their edges.

    contents  by number; `content_of`: the number of the content of each tensor, by operator place and slot
    reads     the contents that each operator reads, by its place; `writes`: those that it writes
    forward_of  the forward content of which a content is the gradient
    parents   the contents from which a content is computed; `children`: those that are computed from it
    """

    def __init__(self, run: Run, reader: ContentReader) -> None:
        self.run = run
        self.operators: Sequence[Operator] = run.operators
        self.contents: list[Content] = []
        self.content_of: dict[tuple[int, str], int] = {}
        self.reads: list[list[int]] = [[] for _ in self.operators]
        self.writes: list[list[int]] = [[] for _ in self.operators]
        self._types = [same_type(one.op_type) for one in self.operators]
        self.forward_of: dict[int, int] = {}
        self._terms: dict[int, set[int]] = {}  # of a gradient that autograd adds up
        self._collect(reader)
        self._add_graph_edges()
        self._settle_makers()
        self.gradients = [is_gradient(one) for one in self.operators]
        self.has_gradients = any(self.gradients)
        self._add_saved()
        self.parents: list[list[int]] = [self._parents(one) for one in self.contents]
        self.children: dict[int, set[int]] = defaultdict(set)
        for number, parents in enumerate(self.parents):
            for parent in parents:
                self.children[parent].add(number)

    def _collect(self, reader: ContentReader) -> None:
        by_key: dict[Hashable, list[Content]] = defaultdict(list)
        later: list[
            tuple[int, TensorRef, Hashable, Optional[int]]
        ] = []  # read before they are written, if the order is a guess
        for place, operator in enumerate(self.operators):
            for tensor in operator.tensors:
                sketch = reader.sketch(tensor)
                if sketch is None:
                    continue
                known = by_key[sketch.key]
                computes = tensor.is_output and not self.hands_on(place)
                order = reader.order(tensor)
                content = _of_order(known, tensor, order)
                if content is None and known and not computes:
                    later.append((place, tensor, sketch.key, order))
                    continue
                if content is None or (computes and content.number in self.reads[place]):
                    content = Content(len(self.contents), tensor, sketch, place)
                    known.append(content)
                    self.contents.append(content)
                self._record(content, place, tensor)
                if order is not None:
                    content.orders.setdefault(without_units(tensor.shape), order)
        for place, tensor, key, order in later:
            content = _of_order(by_key[key], tensor, order) or by_key[key][-1]
            self._record(content, place, tensor)
            content.makers.sort()
            content.readers.sort()

    def _record(self, content: Content, place: int, tensor: TensorRef) -> None:
        content.recordings.append(Recording(place, tensor))
        self.content_of[place, tensor.slot] = content.number
        ends, side = (content.makers, self.writes) if tensor.is_output else (content.readers, self.reads)
        if not ends or ends[-1] != place:
            ends.append(place)
        if content.number not in side[place]:
            side[place].append(content.number)

    def _add_graph_edges(self) -> None:
        """Add what a graph names as the producer of a tensor without values."""
        made: dict[str, int] = {}
        for (place, slot), number in self.content_of.items():
            if slot.startswith("output"):
                made[file_name_of(f"{self.operators[place].name}:{slot.partition(':')[2]}")] = number
        for place, operator in enumerate(self.operators):
            for tensor in operator.tensors:
                if tensor.source and (place, tensor.slot) not in self.content_of:
                    producer = made.get(file_name_of(tensor.source))
                    if producer is not None and producer not in self.reads[place]:
                        self.reads[place].append(producer)
                        self.contents[producer].readers.append(place)

    def _settle_makers(self) -> None:
        """Keep the operators that compute a content. A record of a module counts if no other operator does."""
        for content in self.contents:
            computing = [place for place in content.makers if content.number not in self.reads[place]]
            plain = [place for place in computing if not self.operators[place].path]
            content.makers = plain or computing
            content.is_weight = not content.makers or all(
                op_type(self.operators[place].op_type).has("constant", "stored", "reads a weight")
                for place in content.makers
            )

    def _add_saved(self) -> None:
        """Let a gradient read what the forward pass of its call read."""
        forward: dict[str, int] = {}
        for place, operator in enumerate(self.operators):
            if operator.call and operator.phase == "forward":
                forward.setdefault(operator.call, place)
        for place, operator in enumerate(self.operators):
            start = forward.get(operator.call) if operator.call and operator.phase == "backward" else None
            if start is not None:
                self.reads[place] += [one for one in self.reads[start] if one not in self.reads[place]]
        self._add_gradient_sums(forward)

    def _add_gradient_sums(self, forward: Mapping[str, int]) -> None:
        """Find the forward tensor of each gradient, and let a gradient that no operator wrote be computed from those
        that the readers of the forward tensor wrote: autograd adds them without a record. `forward`: the place of the
        forward record of each call."""
        arrived, terms = {}, defaultdict(set)
        for place, operator in enumerate(self.operators):
            start = forward.get(operator.call) if operator.call and operator.phase == "backward" else None
            for tensor in operator.tensors if start is not None else ():
                number = self.content_of.get((place, tensor.slot))
                other = "input" if tensor.is_output else "output"
                of = self.content_of.get((start, f"{other}:{tensor.slot.partition(':')[2]}"))  # type: ignore[arg-type]
                if number is None or of is None or self.contents[number].size != self.contents[of].size:
                    continue
                self.forward_of[number] = of
                if tensor.is_output:
                    terms[of].add(number)
                elif not self.contents[number].makers:
                    arrived[number] = of
        for number, of in arrived.items():
            if terms[of]:
                self._terms[number] = terms[of]
                self.contents[number].is_weight = False

    def _parents(self, content: Content) -> list[int]:
        read = {one for place in content.makers[:1] for one in self.reads[place] if one != content.number}
        return sorted(read or self._terms.get(content.number, set()))

    def hands_on(self, place: int) -> bool:
        """Whether an operator may write what it reads: views, copies, casts, dropout, a record of a module."""
        operator = self.operators[place]
        return bool(operator.path) or op_type(operator.op_type).has(*_HANDING)

    def is_bounded(self, number: int, known: Container[int]) -> bool:
        """Whether every content upstream has a partner, or is computed from such contents or from nothing."""
        seen, todo = {number}, [number]
        while todo:
            one = todo.pop()
            if not self.parents[one] and not self.contents[one].is_weight:
                return False
            for parent in self.parents[one]:
                if parent not in seen and parent not in known:
                    seen.add(parent)
                    todo.append(parent)
        return True

    def maker(self, number: int) -> Optional[Operator]:
        """The operator that computes a content; None for a weight or an input of the network."""
        makers = self.contents[number].makers
        return self.operators[makers[0]] if makers else None

    def type_of(self, number: int) -> str:
        """The type of the operator that computes a content; "" without one."""
        makers = self.contents[number].makers
        return self._types[makers[0]] if makers else ""

    def types_of(self, number: int) -> AbstractSet[str]:
        """The types of all operators that compute a content."""
        return {self._types[place] for place in self.contents[number].makers}

    def type_at(self, place: int) -> str:
        """The type of the operator at a place."""
        return self._types[place]

    def is_gradient(self, number: int) -> bool:
        """Whether a backward pass computes a content."""
        makers = self.contents[number].makers
        return bool(makers) and self.gradients[makers[0]]

    def ancestors(self, number: int, known: Container[int], hops: int = HOPS) -> set[int]:
        """The nearest contents upstream that are `known`, within so many steps."""
        found: set[int] = set()
        seen, level = {number}, {*self.parents[number]}
        for _ in range(hops):
            level -= seen
            seen |= level
            near = {one for one in level if one in known}
            found |= near
            level = {parent for one in level - near for parent in self.parents[one]}
        return found

    def cone(self, number: int, stop: Container[int], hops: int) -> set[int]:
        """All contents upstream within so many steps, but nothing above a weight or a content of `stop`."""
        found: set[int] = set()
        level = {*self.parents[number]}
        for _ in range(hops):
            level -= found
            found |= level
            inner = [one for one in level if one not in stop and not self.contents[one].is_weight]
            level = {parent for one in inner for parent in self.parents[one]}
        return found

    def is_data(self, number: int) -> bool:
        """Whether an operator computes a content, or products and norms read it, but none as a parameter: an input of
        the network, or of a module, if modules alone are recorded."""
        if not self.contents[number].is_weight:
            return True
        places = []
        for one in self.tensors_of(number):
            kind, at = op_type(self.operators[one.operator].op_type), one.tensor.slot.partition(":")[2]
            if kind.parameters and min(kind.parameters) < 2:  # either operand of a matrix product may be a weight
                places.append(one.tensor.is_output or not at.isdecimal() or int(at) in kind.parameters)
        return bool(places) and not any(places)

    def constants(self, place: int) -> list[int]:
        """The sizes of the inputs of an operator that are no contents, without those of a few elements."""
        sizes = [
            math.prod(one.shape)
            for one in self.operators[place].tensors
            if not one.is_output and (place, one.slot) not in self.content_of
        ]
        return [size for size in sizes if size >= FEWEST]

    def data_of(self, place: int) -> list[int]:
        """The contents that an operator reads, without weights."""
        return [one for one in self.reads[place] if self.is_data(one)]

    def data_cuts(self, number: int) -> list[int]:
        """The contents upstream through which all data pass that a content is computed from, the nearest first; none if
        the order of execution is unknown."""
        found: list[int] = []
        front = {one for one in self.parents[number] if self.is_data(one)} if self.run.ordered else set()
        for _ in range(CUT_STEPS):
            if len(front) == 1:
                found += front
            last = max(front, key=lambda one: self.contents[one].first, default=None)
            if last is None or not self.parents[last]:
                break
            front = front - {last} | {one for one in self.parents[last] if self.is_data(one)}
        return found

    def weights_above(self, number: int, known: Container[int]) -> set[int]:
        """The weights from which a content is computed, behind the contents that are `known`."""
        return {one for one in self.cone(number, known, WEIGHT_REACH) if not self.is_data(one)}

    def among(self, numbers: Optional[AbstractSet[int]]) -> Iterable[Content]:
        """The contents with these numbers, or all."""
        return self.contents if numbers is None else [self.contents[one] for one in sorted(numbers)]

    def near_upstream(self, number: int) -> set[int]:
        """All computed contents from which a content is computed within a few steps."""
        return self._within_reach(number, self.parents)

    def near_downstream(self, number: int) -> set[int]:
        """All contents that are computed from a content within a few steps."""
        return self._within_reach(number, self.children)

    def _within_reach(self, number: int, edges: _Edges) -> set[int]:
        found: set[int] = set()
        level: set[int] = {number}
        for _ in range(HOPS):
            level = {one for each in level for one in edges[each] if not self.contents[one].is_weight} - found
            found |= level
        return found - {number}

    def upstream(self, numbers: Sequence[int]) -> set[int]:
        """All contents from which these are computed."""
        found: set[int] = set()
        todo = [parent for number in numbers for parent in self.parents[number]]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += self.parents[one]
        return found

    def above_agreement(self, numbers: Collection[int]) -> set[int]:
        """All contents from which these are computed that their agreement proves. A part, as of a split, proves nothing
        of the rest: what it is taken from needs all that is computed from it, but what zeros absorb."""
        found: set[int] = set()
        proven = {*numbers}
        for content in reversed(self.contents):  # a gate times zeros: an operator reads it and writes no content
            if content.readers and self.children[content.number] <= proven:
                proven.add(content.number)
        todo = [*numbers]
        while todo:
            one = todo.pop()
            for parent in self.parents[one]:
                smaller = self.contents[one].size < self.contents[parent].size
                is_part = smaller and self.hands_on(self.contents[one].makers[0])
                if parent not in found and (not is_part or self.children[parent] <= proven):
                    found.add(parent)
                    proven.add(parent)
                    todo.append(parent)
        return found

    def tensors_of(self, number: int) -> Sequence[Recording]:
        """The tensors that hold a content."""
        return self.contents[number].recordings


def _of_order(known: Sequence[Content], tensor: TensorRef, order: Optional[int]) -> Optional[Content]:
    """The latest content whose tensors of this shape have the values in this order, else the latest of which no tensor
    has this shape. None if there is none: two sentences of the same words are two contents."""
    if order is None:
        return known[-1] if known else None
    shape = without_units(tensor.shape)
    unseen = [one for one in known if shape not in one.orders]
    return next((one for one in reversed(known) if one.orders.get(shape) == order), unseen[-1] if unseen else None)


def operands(operator: Operator) -> list[TensorRef]:
    """The inputs of an operator that have more than one element, or whose producer a graph names."""
    return [one for one in operator.tensors if not one.is_output and (one.source or any(n > 1 for n in one.shape))]


def adds_bias_apart(one: Optional[Operator], other: Optional[Operator]) -> bool:
    """Whether two products have unequal numbers of operands: one of them adds a bias, and the other does not."""
    if one is None or other is None:
        return False
    counts = {len(operands(each)) for each in (one, other)}
    return (
        len(counts) == 2 and min(counts) >= 2 and all(op_type(each.op_type).has("contracts") for each in (one, other))
    )
