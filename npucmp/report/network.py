"""The columns that depend on the pairs of tensors alone: names, shapes, types. All ranks of a network share them, and
data that presenters derive from them is made once."""

from __future__ import annotations

import math
from typing import Any, Callable, Hashable, List, Optional, Sequence, TypeVar

from npucmp.model import Pair, TensorRef
from npucmp.model.table import Columns as TableColumns
from npucmp.model.table import bare_pairs, network_fact
from npucmp.report.answer import Columns
from npucmp.report.tables import OF_OPERATORS, SIDES, columns_of_rows, of_operator

Made = TypeVar("Made")
NOTHING = "estimator"  # a column without values; those of a network without any value share it


class FixedColumn(List[Any]):
    """The cells of a column of a network, and the data made from them."""

    def __init__(self, cells: Sequence[Any], network: NetworkColumns) -> None:
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


class NetworkColumns:
    """The columns of one network, and the data made from several of them."""

    def __init__(self, table: TableColumns) -> None:
        self.pairs = network_fact(table, bare_pairs)
        self._made: dict[Hashable, Any] = {}
        at = table.rows["operator"].tolist()
        self.columns = self.fixed(_columns(self.pairs, at))

    def fixed(self, columns: Columns) -> Columns:
        """Return columns as those of this network."""
        return {name: FixedColumn(cells, self) for name, cells in columns.items()}

    def cached(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """Return the result of a function of several columns; it is called once for each `what`."""
        if what not in self._made:
            self._made[what] = make()
        found: Made = self._made[what]
        return found


def _columns(pairs: Sequence[Pair], at: Sequence[int]) -> Columns:
    """Return the columns of pairs; `at` is the number of the operator of each row."""
    targets, goldens = [pair.target for pair in pairs], [pair.golden for pair in pairs]
    own = ["" if one is None else one.own_slot or one.slot for one in goldens]
    operators = {number: of_operator(pair) for number, pair in dict(zip(at, pairs)).items()}
    found = columns_of_rows(OF_OPERATORS, [*map(operators.__getitem__, at)])
    found["order"] = [pair.order for pair in pairs]
    found["slot"] = [pair.slot for pair in pairs]
    found["matched_by"] = [pair.via for pair in pairs]
    found["match_confidence"] = [pair.confidence if pair.via else None for pair in pairs]
    found["elements"] = _elements([one or other for one, other in zip(targets, goldens)])
    for side, tensors in zip(SIDES, (targets, goldens)):
        found.update(_of_tensors(side, tensors))
    found["golden_slot"] = [one if one != pair.slot else None for one, pair in zip(own, pairs)]
    relations = [None if one is None else one.relation for one in targets]
    found["relation"] = [None if one is None else one.words or None for one in relations]
    found["match_reason"] = [pair.note or None if pair.via else None for pair in pairs]
    found[NOTHING] = [None] * len(pairs)
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
