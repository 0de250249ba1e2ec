"""The pairs of contents that were found so far, how, and how far they are apart."""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model import TensorRef
from npucmp.model.relation import SAME_ORDER, AxisOrder
from npucmp.relations.frameworks.contents.axis_orders import AxisOrders, Shape, in_order, places_in, without_units
from npucmp.relations.frameworks.contents.content import MASKED, ContentReader
from npucmp.relations.frameworks.contents.content_graph import ContentGraph

COMPARED = 1 << 16  # elements: work: of larger tensors so many are compared
_SAMPLED = 256  # elements: work: so many show which orders of axes are wrong
_ORDERLESS = ("content", "mapping")  # stages whose pairs no other pair contradicts
Near = Optional[tuple[set[int], set[int]]]  # contents of each side near new pairs; None: all
CERTAIN = 0.99  # confidence: chosen: of equal values, as measured on 389 pairs (43,000 right, none wrong)
AGREES = 4  # times the noise: chosen: values with smaller errors agree
EXACT = 10  # times below the noise: chosen: after an order of axes that is so near no other is tried
SPREAD = 4  # times: chosen: so much larger may the error of a sample be than that of all elements
ROOM = 1e-6  # relative error: chosen: samples of equal values may round so much
_TINY = 1e-30  # norm: definition: keeps a quotient finite


class ContentPair(NamedTuple):
    """Two contents that correspond.

    via     the stage that found the pair, as in the column `matched_by`; `reason` in words
    error   relative L2 error in `order`; None for recorded statistics
    """

    target: int
    golden: int
    via: str
    confidence: float
    reason: str
    order: Optional[AxisOrder] = None
    error: Optional[float] = None


class ContentPairs:
    """The pairs of contents of two runs, each content in at most one.

    axes    the orders of axes that the pairs by value show
    copies  contents of the target that an operator handed on as other values, and their golden partners
    right   contents above an agreement, of each side: without a partner by value they have none
    noise   relative error of two runs that compute the same
    """

    def __init__(self, target: ContentGraph, golden: ContentGraph, reader: ContentReader, noise: float) -> None:
        self.target, self.golden, self.noise, self._reader = target, golden, noise, reader
        self.to_golden: dict[int, int] = {}
        self.to_target: dict[int, int] = {}
        self.found: dict[int, ContentPair] = {}
        self.copies: dict[int, int] = {}
        self.right: tuple[set[int], set[int]] = (set(), set())
        self.axes = AxisOrders()
        self._recent: list[ContentPair] = []
        self._errors: dict[tuple[int, int, Optional[AxisOrder]], Optional[float]] = {}

    def __iter__(self) -> Iterator[ContentPair]:
        return iter(self.found.values())

    def add(self, pair: ContentPair) -> bool:
        """Add a pair; return False if one of its contents has a partner, or if a pair that values do not show crosses
        another pair."""
        if pair.target in self.to_golden or pair.golden in self.to_target:
            return False
        if pair.via not in _ORDERLESS and self._crosses(pair.target, pair.golden):
            return False
        self.to_golden[pair.target], self.to_target[pair.golden] = pair.golden, pair.target
        self.found[pair.target] = pair
        self.copies.pop(pair.target, None)
        self._recent.append(pair)
        return True

    def take_recent(self) -> tuple[set[int], set[int]]:
        """The contents of each side near the pairs that were added since the last call: a pair decides others there."""
        near: tuple[set[int], set[int]] = set(), set()
        for pair in self._recent:
            for found, graph, number in ((near[0], self.target, pair.target), (near[1], self.golden, pair.golden)):
                found |= graph.near_downstream(number)
                found |= graph.near_upstream(number)
        self._recent.clear()
        return near

    def _crosses(self, target: int, golden: int) -> bool:
        """Whether a content upstream of one has its partner downstream of the other, or in the other itself."""
        above = {self.to_golden[one] for one in self.target.near_upstream(target) if one in self.to_golden}
        if not above.isdisjoint(self.golden.near_downstream(golden)):
            return True
        above = {self.to_target[one] for one in self.golden.near_upstream(golden) if one in self.to_target}
        return not above.isdisjoint(self.target.near_downstream(target))

    def remove(self, pair: ContentPair) -> None:
        """Remove a pair that turned out to be wrong."""
        del self.to_golden[pair.target], self.to_target[pair.golden], self.found[pair.target]

    @property
    def with_copies(self) -> Mapping[int, int]:
        """The golden partner of each target content, of copies too."""
        return {**self.to_golden, **self.copies} if self.copies else self.to_golden

    def is_open(self, side: int, number: int) -> bool:
        """Whether a content of the target (side 0) or the golden (1) may still get a partner."""
        if number in self.right[side]:
            return False
        return number not in self.to_target if side else not (number in self.to_golden or number in self.copies)

    def is_by_value(self, side: int, number: int) -> bool:
        """Whether a content of the target (side 0) or the golden (1) was paired by value, with no second one near."""
        target = self.to_target.get(number) if side else number
        pair = None if target is None else self.found.get(target)
        return pair is not None and pair.error is not None and pair.confidence >= CERTAIN

    def same_pass(self, target: int, golden: int) -> bool:
        """Whether both contents belong to the forward, or both to the backward, as far as both runs know; and whether
        they are gradients of partners, if they are gradients."""
        if not (self.target.has_gradients and self.golden.has_gradients):
            return True
        if self.target.is_gradient(target) != self.golden.is_gradient(golden):
            return False
        own, other = self.target.forward_of.get(target), self.golden.forward_of.get(golden)
        return own is None or other is None or self.with_copies.get(own) == other

    def shapes(self, target: int, golden: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of two contents without axes of length one."""
        one, other = self.target.contents[target].tensor, self.golden.contents[golden].tensor
        return without_units(one.shape), without_units(other.shape)

    def error(self, target: int, golden: int, order: AxisOrder = SAME_ORDER) -> Optional[float]:
        """The relative L2 error of two contents of one size in an order of axes, without masks; None if values of one
        are not recorded."""
        key = target, golden, order
        if key not in self._errors:
            self._errors[key] = self._measure(target, golden, order)
        return self._errors[key]

    def _measure(self, target: int, golden: int, order: AxisOrder) -> Optional[float]:
        one, other = self.target.contents[target].tensor, self.golden.contents[golden].tensor
        shapes = self.shapes(target, golden)
        size = self.target.contents[target].size
        if size > COMPARED:
            x, y = self._picked(target, golden, order, sample_places(size, COMPARED))
        else:
            x, y = self._reader.flat(one), self._reader.flat(other)
            if x is not None and y is not None:
                x, y = in_order(x, order, shapes[0], False), in_order(y, order, shapes[1], True)
        return None if x is None or y is None else relative_error(x, y)

    def _picked(self, target: int, golden: int, order: AxisOrder, places: Any) -> tuple[Any, Any]:
        here, there = places_in(order, *self.shapes(target, golden), places)
        one, other = self.target.contents[target].tensor, self.golden.contents[golden].tensor
        return self._reader.picked(one, here), self._reader.picked(other, there)

    def values(self, side: int, number: int) -> Optional[Any]:
        """The values of a content in C order; None if they cannot be read or are too many to hold."""
        return self._reader.flat((self.golden if side else self.target).contents[number].tensor)

    def picked_values(self, side: int, number: int, places: Any) -> Optional[Any]:
        """The values of a content at these places of its C order."""
        graph = self.golden if side else self.target
        return self._reader.picked(graph.contents[number].tensor, places)

    def best_order(self, target: int, golden: int, enough: float) -> tuple[Optional[float], AxisOrder]:
        """The smallest error of two contents in any order of axes, and that order; the first one below `enough`."""
        size = self.target.contents[target].size
        few = sample_places(size, _SAMPLED)
        best: tuple[Optional[float], AxisOrder] = (None, SAME_ORDER)
        for order in self.axes.first_try(*self.shapes(target, golden)):
            x, y = self._picked(target, golden, order, few)
            if x is None or y is None:
                return None, SAME_ORDER
            if relative_error(x, y) > SPREAD * enough + ROOM:
                continue
            error = self.error(target, golden, order)
            if error is not None and (best[0] is None or error < best[0]):
                best = error, order
            if error is not None and error <= enough:
                break
        return best

    def tensor_order(
        self,
        target: TensorRef,
        golden: TensorRef,
        shapes: tuple[Shape, Shape],
        orders: Sequence[AxisOrder] = (),
        strict: bool = True,
    ) -> Optional[AxisOrder]:
        """The order of axes in which two tensors agree best, of `orders` or of all. If it is `strict`, the tensors must
        agree within the noise. None without such an order, or if values are not recorded."""
        places = sample_places(math.prod(target.shape), _SAMPLED)
        best, least = None, math.inf
        for order in orders or self.axes.first_try(*shapes):
            here, there = places_in(order, *shapes, places)
            x, y = self._reader.picked(target, here), self._reader.picked(golden, there)
            if x is None or y is None:
                return None if strict else (orders or [SAME_ORDER])[0]
            error = relative_error(x, y)
            if error < least:
                best, least = order, error
            if error < self.noise / EXACT:
                break
        return best if least <= AGREES * self.noise or not strict else None

    def are_equal(self, target: TensorRef, golden: TensorRef, limit: float, order: AxisOrder = SAME_ORDER) -> bool:
        """Whether the recorded values of two tensors of one size are equal in an order of axes, masks included."""

        x, y = self._reader.flat(target), self._reader.flat(golden)
        if x is None or y is None:
            return False
        x = in_order(x, order, without_units(target.shape), False)
        y = in_order(y, order, without_units(golden.shape), True)
        with np.errstate(all="ignore"):
            return bool(np.allclose(x, y, rtol=limit, atol=0.0, equal_nan=True))

    def learned_error(self, target: int, golden: int) -> tuple[Optional[float], Optional[AxisOrder]]:
        """The smallest error of two contents in the learned orders, and that order."""
        orders = self.axes.learned(*self.shapes(target, golden))
        errors = [(self.error(target, golden, order), order) for order in orders]
        return min(errors, key=lambda one: math.inf if one[0] is None else one[0], default=(None, None))


def relative_error(x: Any, y: Any) -> float:
    """‖x - y‖ / ‖y‖ without masks; infinite if it is no number."""

    with np.errstate(all="ignore"):
        x, y = x.astype(np.float64), y.astype(np.float64)
        seen = (x > MASKED) | (y > MASKED)
        if not seen.all():
            x, y = x[seen], y[seen]
        norm = float(np.linalg.norm(y))
        error = float(np.linalg.norm(x - y)) / max(norm, _TINY)
    return error if np.isfinite(error) else float("inf")


def sample_places(size: int, most: int) -> Any:
    """Places of at most so many elements, in order, the same for every tensor of this size."""

    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(size).integers(0, size, most))
