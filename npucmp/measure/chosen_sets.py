"""Sets of ids whose order within a row is free: the experts of a token, which a top-k returns in any order.

A row that differs may hold the golden's ids in another order. Tensors beside the ids, as the weights of a token's
experts, have the same order. The readers of the ids show whether the order counts: if their outputs agree in these
rows, it does not. Then ids and companions are compared in the golden's order. If no reader is recorded, what runs
later shows it in a dump of outputs; else only ids of experts, by their names, are a set, unless the weights beside them
keep another order.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import Closeness, holds_other_ids, measure_arrays
from npucmp.measure.preview import array_of
from npucmp.model import Measurement, Pair
from npucmp.model.dtypes import lookup
from npucmp.model.roles import is_output

Array = npt.NDArray[Any]

MOST = 1 << 26  # elements of a tensor that is read again: work
ALONE = 1 << 14  # rows with other ids whose common ids are brought to one place: work
AGREES = 0.05  # rel_l2: chosen: rows of 16 bits agree within it, weights of other experts do not, not measured
_EXPERTS = re.compile(r"expert|rout(?:er|ed|ing)|(?:^|[._])moe|(?:^|[._])gat(?:e|ing)(?:$|[._])", re.IGNORECASE)


class ComparedSets(NamedTuple):
    """The measurements, of which sets of ids are compared in one order, and a note on them."""

    measurements: list[Measurement]
    notes: tuple[str, ...] = ()


def with_sets_of_ids(found: Sequence[Measurement], closeness: Closeness, context: ReadContext) -> ComparedSets:
    """Return the measurements of one step and rank, in graph order, of which sets of ids are compared in the golden's
    order."""
    return _Sets(found, closeness, context).compared()


class _Order(NamedTuple):
    """The order of the ids of a tensor: for each row the places in the target of the golden's ids, and the rows that
    hold the same ids in another order. `places`: the rows of the measurements that hold these ids."""

    shape: tuple[int, ...]
    places: list[int]
    gather: Array
    moved: Array

    def applied(self, values: Array) -> Array:
        """Return the values of a tensor, whose first axes are those of the ids, in the golden's order."""

        width = math.prod(values.shape[len(self.shape) :])
        flat = values.reshape(-1, self.shape[-1], width)
        return np.take_along_axis(flat, self.gather[:, :, None], 1).reshape(values.shape)


class _Sets:
    def __init__(self, found: Sequence[Measurement], closeness: Closeness, context: ReadContext) -> None:
        self._found, self._closeness, self._context = [*found], closeness, context

    def compared(self) -> ComparedSets:
        orders = self._orders()
        count, rows, places = 0, 0, []
        for order in orders:
            companions = self._companions(order)
            if not self._is_free(order, companions):
                continue
            again = {**self._reordered(order.places, order), **companions, **self._indices(order, companions)}
            for at, measurement in again.items():
                self._found[at] = measurement
            count, rows = count + int(order.moved.sum()), rows + len(order.moved)
            places.append(order.places[0])
        if not places:
            return ComparedSets(self._found)
        pair = self._found[places[0]].pair
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        words = (
            f"{count:,} of {rows:,} rows of {pair.operator.name} {pair.slot}{more} hold the same ids in another order; "
            "they are compared as sets"
        )
        return ComparedSets(self._found, (words,))

    def _orders(self) -> list[_Order]:
        """Return the orders of all ids that have one, each once."""

        orders: list[_Order] = []
        for at, measurement in enumerate(self._found):
            if not holds_other_ids(measurement) or (both := self._values(measurement.pair)) is None:
                continue
            x, y = (values.reshape(-1, values.shape[-1]) for values in both)
            same = _same_sets(x, y)
            moved = same & (x != y).any(-1)
            if not moved.any():
                continue
            gather = _gather(x, y, same)
            known = next((order for order in orders if order.shape == both[1].shape
                          and np.array_equal(order.gather, gather)), None)  # fmt: skip
            if known is not None:
                known.places.append(at)
            else:
                orders.append(_Order(both[1].shape, [at], gather, moved))
        return orders

    def _companions(self, order: _Order) -> dict[int, Measurement]:
        """Return the measurements in the golden's order of tensors that stand beside the ids: each is nearer in it."""
        lead = len(order.shape)
        places = []
        for at, measurement in enumerate(self._found):
            golden, moments = measurement.pair.golden, measurement.moments
            if golden is None or moments is None or not moments.differing or at in order.places:
                continue
            if (
                golden.shape[:lead] == order.shape
                and math.prod(golden.shape) <= MOST
                and not holds_other_ids(measurement)
            ):
                places.append(at)
        again = self._reordered(places, order)
        return {at: measurement for at, measurement in again.items() if self._is_nearer(at, measurement)}

    def _indices(self, order: _Order, companions: dict[int, Measurement]) -> dict[int, Measurement]:
        """Return the measurements in the golden's order of the places where a mask beside the ids is true, as `where`
        and `nonzero` return them and others read them: they name a place in the row."""

        result = {}
        places = [at for at, row in enumerate(self._found) if row.moments is not None and row.moments.differing
                  and row.pair.golden is not None and row.pair.golden.dtype.startswith("int")
                  and at not in order.places]  # fmt: skip
        for again in companions.values() if places else ():
            both = self._values(again.pair)
            if both is None or both[1].dtype != bool or again.moments is None or again.moments.differing:
                continue
            x, y, ordered = (np.argwhere(mask) for mask in (*both, order.applied(both[0])))
            for place in places:
                pair = self._found[place].pair
                axes = range(x.shape[1]) if (values := self._values(pair)) is not None and values[1].ndim == 1 else ()
                for one in (slice(None), *axes):
                    if values is not None and all(map(np.array_equal, values, (x[:, one], y[:, one]))):
                        moments = measure_arrays(pair, ordered[:, one], y[:, one], self._closeness)
                        result[place] = self._found[place]._replace(moments=moments)
        return result

    def _is_nearer(self, at: int, again: Measurement) -> bool:
        """Whether a tensor is nearer to the golden in another order: it agrees, or half of its error is gone."""
        before, after = self._found[at].moments, again.moments
        if before is None or after is None or after.mismatched > before.mismatched:
            return False
        return rel_l2(after) < AGREES < rel_l2(before) or 2.0 * rel_l2(after) < rel_l2(before)

    def _reordered(self, places: Sequence[int], order: _Order) -> dict[int, Measurement]:
        """Return the measurements of tensors whose target stands in the golden's order."""
        result = {}
        for at in places:
            measurement = self._found[at]
            both = self._values(measurement.pair)
            if both is not None and both[0].shape == both[1].shape:
                moments = measure_arrays(measurement.pair, order.applied(both[0]), both[1], self._closeness)
                result[at] = measurement._replace(moments=moments)
        return result

    def _is_free(self, order: _Order, companions: dict[int, Measurement]) -> bool:
        """Whether the order of the ids does not count, by what reads them."""
        operators = {self._found[at].pair.order for at in (*order.places, *companions)}
        reading = {self._found[at].pair.order for at in (*order.places, *companions)
                   if not is_output(self._found[at].pair)}  # fmt: skip
        known = {*order.places, *companions}
        made = [at for at, row in enumerate(self._found)
                if row.pair.order in reading and at not in known and self._is_result(row)]  # fmt: skip
        if made:
            return all(self._agrees(at, order) for at in made)
        first = self._found[order.places[0]].pair
        beside = [at for at, row in enumerate(self._found)
                  if row.pair.order in operators and at not in known and self._is_beside(row, order)]  # fmt: skip
        if any(self._found[at].moments for at in beside):
            return False  # weights that do not follow the ids
        later = [at for at, row in enumerate(self._found) if row.pair.order > max(operators) and self._is_result(row)]
        if later and not any(row.pair.operator.reads_recorded for row in self._found):
            return all(self._agrees(at, order) for at in later)
        names = [
            first.operator.name,
            first.slot,
            *(one.label for one in (first.target, first.golden) if one is not None),
        ]
        return any(_EXPERTS.search(name) for name in names)

    @staticmethod
    def _is_result(row: Measurement) -> bool:
        kind = lookup(row.pair.golden.dtype) if row.pair.golden is not None else None
        return row.moments is not None and is_output(row.pair) and kind is not None and kind.kind == "f"

    def _is_beside(self, row: Measurement, order: _Order) -> bool:
        golden = row.pair.golden
        return golden is not None and golden.shape == order.shape and not holds_other_ids(row)

    def _agrees(self, at: int, order: _Order) -> bool:
        """Whether a tensor agrees in the rows whose ids have another order; as a whole if it has other rows."""

        row = self._found[at]
        if row.moments is None or not row.moments.differing:
            return row.moments is not None
        lead, golden = order.shape[:-1], row.pair.golden
        if golden is None or golden.shape[: len(lead)] != lead or (both := self._values(row.pair)) is None:
            return not row.moments.mismatched and rel_l2(row.moments) <= AGREES
        x, y = (values.reshape(len(order.moved), -1)[order.moved].astype(np.float64) for values in both)
        with np.errstate(all="ignore"):
            return bool(np.square(x - y).sum() <= AGREES**2 * np.square(y).sum())

    @if_unreadable(None)
    def _values(self, pair: Pair) -> Optional[tuple[Array, Array]]:
        if pair.target is None or pair.golden is None:
            return None
        return array_of(pair.target, self._context), array_of(pair.golden, self._context)


def _same_sets(x: Array, y: Array) -> Array:
    """Which rows hold the same ids on both sides, each once."""

    ordered = [np.sort(values, -1) for values in (x, y)]
    distinct = (ordered[1][:, 1:] != ordered[1][:, :-1]).all(-1)
    return (ordered[0] == ordered[1]).all(-1) & distinct  # type: ignore[no-any-return]


def _gather(x: Array, y: Array, same: Array) -> Array:
    """For each row the places of the golden's ids in the target. Ids that the target lacks take the places that are
    left, in their order; a row that holds an id twice keeps its order."""

    found = np.tile(np.arange(x.shape[1]), (len(x), 1))
    orders = [np.argsort(values[same], -1) for values in (x, y)]
    own = found[same]
    np.put_along_axis(own, orders[1], orders[0], -1)
    found[same] = own
    for row in np.flatnonzero((x != y).any(-1) & ~same)[:ALONE]:
        places = {int(value): at for at, value in enumerate(x[row])}
        wanted = [places.get(int(value), -1) for value in y[row]]
        if len(places) == x.shape[1] and len({*y[row].tolist()}) == x.shape[1]:
            rest = iter(sorted({*places.values()} - {*wanted}))
            found[row] = [next(rest) if at < 0 else at for at in wanted]
    return found
