"""The columns that depend on the pairs of tensors alone: names, shapes, types. All ranks of a network share them, and
data that presenters derive from them is made once."""

from __future__ import annotations

import math
from collections import deque
from operator import itemgetter
from typing import Any, Callable, Hashable, List, Optional, Sequence, TypeVar

from npucmp.model import Operator, Pair, TensorRef
from npucmp.report.answer import Columns
from npucmp.report.tables import OF_OPERATORS, SIDES, of_operator

SHORT = 1 << 14  # rows up to which a network is kept for the next rank
CACHED_NETWORKS = 2  # networks that are kept
Made = TypeVar("Made")


def _places(kind: Any, names: str) -> Any:
    """Return a function that returns these fields of a record as a tuple."""
    return itemgetter(*map(kind._fields.index, names.split()))


# all fields on which the columns of a network, and the data made from them, depend
_of_pair = _places(Pair, "order slot via confidence")
_of_tensor = _places(TensorRef, "slot dtype shape layout label own_slot")
_of_operator = _places(Operator, "name op_type phase scope path stack originals inserted passes own_name")


class FixedColumn(List[Any]):
    """The cells of a column of a network, and the data made from them."""

    def __init__(self, cells: Sequence[Any], network: Network) -> None:
        super().__init__(cells)
        self.network = network
        self._made: dict[object, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)

    def cached(self, make: Callable[[Sequence[Any]], Made]) -> Made:
        """Return the result of a function of the cells; it is called once."""
        if make not in self._made:
            self._made[make] = make(self)
        found: Made = self._made[make]
        return found


class Network:
    """The columns of one network, and the data made from several of them. Networks with equal `key` are the same
    network."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.columns: dict[str, FixedColumn] = {}
        self._made: dict[Hashable, Any] = {}

    def column(self, cells: Sequence[Any]) -> FixedColumn:
        """Return a column of this network."""
        return FixedColumn(cells, self)

    def cached(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """Return the result of a function of several columns; it is called once for each `what`."""
        if what not in self._made:
            self._made[what] = make()
        found: Made = self._made[what]
        return found


_cache: deque[Network] = deque(maxlen=CACHED_NETWORKS)


def network_of(pairs: Sequence[Pair]) -> Network:
    """Return the network of the pairs of one step and rank: the network of an earlier rank if its columns are equal."""
    keys = [*zip([id(pair.target_op) for pair in pairs], [id(pair.golden_op) for pair in pairs])]
    different = dict(zip(keys, pairs))
    numbers = dict(zip(different, range(len(different))))
    at = [*map(numbers.__getitem__, keys)]
    key = (
        [*map(_of_pair, pairs)],
        [None if pair.target is None else _of_tensor(pair.target) for pair in pairs],
        [None if pair.golden is None else _of_tensor(pair.golden) for pair in pairs],
        at,
        [tuple(one and _of_operator(one) for one in pair[2:4]) for pair in different.values()],
    )
    for known in [*_cache]:
        if known.key == key:
            return known
    found = Network(key)
    columns = _columns(pairs, [*different.values()], at)
    found.columns.update((name, found.column(cells)) for name, cells in columns.items())
    if len(pairs) <= SHORT:
        _cache.appendleft(found)
    return found


def _columns(pairs: Sequence[Pair], operators: Sequence[Pair], at: Sequence[int]) -> Columns:
    """Return the columns of pairs; `operators` has one pair per operator, `at` the index into it for each row."""
    targets, goldens = [pair.target for pair in pairs], [pair.golden for pair in pairs]
    own = ["" if one is None else one.own_slot or one.slot for one in goldens]
    made = zip(*map(of_operator, operators)) if operators else iter([()] * len(OF_OPERATORS))
    found: Columns = {name: [*map(cells.__getitem__, at)] for name, cells in zip(OF_OPERATORS, made)}
    found["order"] = [pair.order for pair in pairs]
    found["slot"] = [pair.slot for pair in pairs]
    found["matched_by"] = [pair.via for pair in pairs]
    found["match_confidence"] = [pair.confidence if pair.via else None for pair in pairs]
    found["elements"] = _elements([one or other for one, other in zip(targets, goldens)])
    for side, tensors in zip(SIDES, (targets, goldens)):
        found.update(_of_tensors(side, tensors))
    found["golden_slot"] = [one if one != pair.slot else None for one, pair in zip(own, pairs)]
    return found


def _elements(tensors: Sequence[Optional[TensorRef]]) -> list[Any]:
    shapes = [one.shape if one is not None and one.slot else None for one in tensors]
    known = {shape: None if shape is None else math.prod(shape) for shape in {*shapes}}
    return [*map(known.__getitem__, shapes)]


def _of_tensors(side: str, tensors: Sequence[Optional[TensorRef]]) -> Columns:
    shapes = [one.shape if one is not None and one.slot else None for one in tensors]
    words = {shape: None if shape is None else str(list(shape)) for shape in {*shapes}}
    return {
        f"{side}_tensor": [None if one is None else one.label for one in tensors],
        f"{side}_dtype": [None if one is None else one.dtype for one in tensors],
        f"{side}_shape": [*map(words.__getitem__, shapes)],
        f"{side}_layout": [None if one is None else one.layout for one in tensors],
    }
