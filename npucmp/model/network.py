"""The network of a comparison: all that names, shapes, types, arguments and the alignment decide, without the records
of a rank.

Ranks and steps that ran the same operators differ only in their records: statistics, checksums, files. They share one
network; its tensors have the places of their statistics (`FiguresAt`). A rank then needs its records and the rows of
its table. Operators and tensors with all fields are built from both on request.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from itertools import chain, repeat
from typing import (
    Any,
    Callable,
    Collection,
    Iterable,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TypeVar,
    Union,
    cast,
)

import numpy as np
import numpy.typing as npt

from npucmp.model.comparison import Comparison
from npucmp.model.dump import FiguresAt, Operator, Statistics, TensorRef
from npucmp.model.finding import Finding, Pair
from npucmp.model.optypes import op_type
from npucmp.model.table import (
    ChangedRows,
    Columns,
    LazyTuple,
    OperatorColumns,
    Records,
    Rows,
    Table,
    has_own_figures,
    pairs_of,
)

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
_OWN: Mapping[str, Any] = {"file": "", "checksum": "", "payload": None}  # with `statistics` the fields of each rank
_FLOAT, _NANS = {float}, (math.nan,) * 4
_tensor = partial(tuple.__new__, TensorRef)
_operator = partial(tuple.__new__, Operator)
_statistics = partial(tuple.__new__, Statistics)
_pair = partial(tuple.__new__, Pair)


class RankRecords(NamedTuple):
    """The records of one rank.

    figures  maximum, minimum, mean and norm by place, float64 (places, 4)
    others   the statistics of places that are not four floats
    fields   file, checksum and payload of each tensor of the network; fields that no tensor has are omitted
    """

    figures: Floats
    others: Mapping[int, Optional[Statistics]] = {}
    fields: Mapping[str, Sequence[Any]] = {}

    @classmethod
    def of(cls, statistics: Sequence[Optional[Statistics]], fields: Mapping[str, Sequence[Any]]) -> RankRecords:
        """The records of tensors with these statistics; those that are not four floats keep their form."""
        floats = [one is not None and {*map(type, one)} == _FLOAT for one in statistics]
        others = {at: one for at, (one, plain) in enumerate(zip(statistics, floats)) if not plain}
        rows = [one if plain else _NANS for one, plain in zip(statistics, floats)]
        return cls(np.array(rows, dtype=np.float64).reshape(-1, 4), others, fields)

    def statistics(self, places: Sequence[int]) -> list[Optional[Statistics]]:
        """The statistics of places."""
        found: list[Optional[Statistics]] = [*map(_statistics, self.figures[[*places]].tolist())]
        for at, place in enumerate(places) if self.others else ():
            found[at] = self.others.get(place, found[at])
        return found


@dataclass(frozen=True, eq=False)
class Network:
    """The shared part of ranks. Operators and tensors are listed once each, by object.

    runs      the operators of target and golden
    shared    the column `operators` of the table
    pairs     of its rows; `left_out`: pairs that were not compared
    golden_at the place of the golden's first figure: places of both sides are joined
    """

    runs: tuple[tuple[Operator, ...], tuple[Operator, ...]]
    shared: tuple[OperatorColumns, ...]
    pairs: tuple[Pair, ...]
    left_out: tuple[Pair, ...]
    golden_at: int = 0

    @cached_property
    def columns(self) -> dict[Any, Any]:
        """The results of functions of its pairs, by function (`by_network`)."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.runs, self.shared, self.pairs, self.left_out, self.golden_at)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of both runs, and of the alignment, which may make operators of several."""
        sides = chain.from_iterable((one.target_op, one.golden_op) for one in self.left_out)
        made = chain.from_iterable((one.target, one.golden) for one in self.shared)
        return tuple({id(one): one for one in chain(*self.runs, made, sides) if one is not None}.values())

    @cached_property
    def tensors(self) -> tuple[tuple[TensorRef, int], ...]:
        """The tensors of all operators and pairs, each with its side: 0 for the target, 1 for the golden."""
        golden = {id(one) for one in self.runs[1]}
        golden |= {
            id(op) for op in chain((one.golden for one in self.shared), (one.golden_op for one in self.left_out))
        }
        listed = chain(
            ((one, int(id(op) in golden)) for op in self.operators for one in op.tensors),
            *(((one.target, 0), (one.golden, 1)) for one in chain(self.pairs, self.left_out)),
        )
        return tuple({id(one): (one, side) for one, side in listed if one is not None}.values())

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each tensor, by object."""
        return {id(one): number for number, (one, _) in enumerate(self.tensors)}

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The place of the statistics of each tensor in the records of a rank; -1 if the network has them."""
        return tuple(self._place(*both) for both in self.tensors)

    @cached_property
    def row_places(self) -> Places:
        """The places of the statistics of target and golden by row; -1 without a tensor, and if the network has
        them."""
        sides = ((pair.target, pair.golden) for pair in self.pairs)
        return np.array([(self._place(x, 0), self._place(y, 1)) for x, y in sides], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def sides(self) -> tuple[tuple[Optional[TensorRef], ...], tuple[Optional[TensorRef], ...]]:
        """The columns of the target's and the golden's tensors."""
        return tuple(one.target for one in self.pairs), tuple(one.golden for one in self.pairs)

    @cached_property
    def has_places_alone(self) -> bool:
        """Whether a rank has the statistics of each tensor of the pairs."""
        is_none = np.array([[one is None for one in side] for side in self.sides], dtype=bool).reshape(2, -1)
        return bool((is_none.T | (self.row_places >= 0)).all())

    @cached_property
    def needs_statistics(self) -> bool:
        """Whether a search needs operators with their statistics: one run has an operator without a partner, which may
        be a second execution of a call, or the writer of a tensor; or minima show the running statistics of an
        operator."""
        return any(
            one.target is None or one.golden is None or op_type(one.golden.op_type).has("averages")
            for one in self.shared
        )

    def _place(self, tensor: Optional[TensorRef], side: int) -> int:
        at = None if tensor is None else tensor.statistics
        return at.number + side * self.golden_at if isinstance(at, FiguresAt) else -1


class RankPart(NamedTuple):
    """The part of one rank beside its network: columns of its table, its records, and the other fields of the
    comparison, whose runs have no operators. `contents` are the known ones of its tensors (flow/contents.py)."""

    rows: Records
    moments: Records
    words: Sequence[str]
    records: RankRecords
    comparison: Comparison
    contents: Mapping[Any, Any]


def split_table(whole: Comparison) -> tuple[Network, RankPart]:
    """Split a comparison whose findings are a table into the network and the part of the rank."""
    columns = cast(Table, whole.findings).columns
    runs = whole.target, whole.golden
    if isinstance(columns.rank, Rank):
        network, records, contents = columns.rank.network, columns.rank.records, columns.rank.contents
    else:
        (network, records), contents = _network_of(whole, columns), {}
    bare = (replace(run, operators=()) for run in runs)
    own = dict(zip(("target", "golden"), bare), findings=(), left_out=())
    bare_whole = replace(whole, **cast(Any, own))
    return network, RankPart(columns.rows, columns.moments, columns.words, records, bare_whole, contents)


def _network_of(whole: Comparison, columns: Columns) -> tuple[Network, RankRecords]:
    given = Network(
        (tuple(whole.target.operators), tuple(whole.golden.operators)),
        tuple(columns.operators), tuple(pairs_of(columns)), tuple(whole.left_out),
    )  # fmt: skip
    tensors = [one for one, _ in given.tensors]
    marks = {"statistics": map(FiguresAt, range(len(tensors)))}
    nothing = {name: repeat(value, len(tensors)) for name, value in _OWN.items()}
    bare = dict(zip(map(id, tensors), _tensors(tensors, {**nothing, **marks})))
    parts = dict(zip(map(id, given.operators), _operators(given.operators, bare)))
    network = Network(
        (_by_id(given.runs[0], parts), _by_id(given.runs[1], parts)),
        tuple(_shared(given.shared, parts)),
        tuple(_pairs(given.pairs, parts, bare)),
        tuple(_pairs(given.left_out, parts, bare)),
    )
    return network, RankRecords.of([one.statistics for one in tensors], _fields(tensors))


def join_parts(network: Network, own: RankPart) -> Comparison:
    """Join both parts into a comparison, with a table that shares the network."""
    found = comparison_of(network, own.records, own.comparison, own.rows, own.moments, own.words)
    rank = found.columns.rank
    assert isinstance(rank, Rank)
    rank.contents.update(own.contents)
    return found


def comparison_of(
    network: Network, records: RankRecords, known: Comparison, rows: Records, moments: Records, words: Sequence[str]
) -> Comparison:
    """Return a comparison with the rows of a rank; its runs and pairs are built on request."""
    rank = Rank(network, records)
    target, golden = (replace(run, operators=cast(Any, Operators(rank, side)))
                      for side, run in enumerate((known.target, known.golden)))  # fmt: skip
    columns = Columns(rows, moments, network.shared, *network.sides, words, rank)
    left_out = rank.left_out if network.left_out else ()
    return replace(known, target=target, golden=golden, findings=Table(columns=columns), left_out=left_out)


class Rank:
    """The operators and tensors of a rank with all their fields, each built from a network on its first request."""

    def __init__(self, network: Network, records: RankRecords) -> None:
        self.network, self.records = network, records
        self.contents: dict[Any, Any] = {}
        self._tensors: dict[int, TensorRef] = {}  # by the object of the network
        self._parts: dict[int, Operator] = {}

    def _build(self, operators: Iterable[Optional[Operator]], tensors: Iterable[Optional[TensorRef]]) -> None:
        """Build operators and tensors that do not exist yet, all at once, which takes less time than one by one."""
        parts = {id(one): one for one in operators if one is not None and id(one) not in self._parts}
        listed = chain(tensors, *(one.tensors for one in parts.values()))
        bare = {id(one): one for one in listed if one is not None and id(one) not in self._tensors}
        numbers = [*map(self.network.numbers.__getitem__, bare)]
        places = [*map(self.network.places.__getitem__, numbers)]
        known = iter(self.records.statistics([place for place in places if place >= 0]))
        figures = [next(known) if place >= 0 else one.statistics for place, one in zip(places, bare.values())]
        fields = {name: [*map(values.__getitem__, numbers)] for name, values in self.records.fields.items()}
        self._tensors.update(zip(bare, _tensors(bare.values(), {**fields, "statistics": figures})))
        self._parts.update(zip(parts, _operators(parts.values(), self._tensors)))

    def _build_all(self) -> None:
        self._build(self.network.operators, (one for one, _ in self.network.tensors))

    def shared_pairs(self, columns: Columns) -> Sequence[Pair]:
        """The pairs of a table with the same rows. If only statistics are a rank's own, these are those of the
        network."""
        network = self.network
        if self.records.fields or network.needs_statistics:
            return pairs_of(columns)
        others = np.flatnonzero((network.row_places >= 0).any(axis=1) & ~has_own_figures(columns.rows)).tolist()
        if not others:
            return network.pairs
        found, whole = [*network.pairs], pairs_of(columns)
        for row in others:
            found[row] = whole[row]
        return found

    def pairs(self, rows: Sequence[int]) -> Sequence[Pair]:
        """The pairs of rows, with whole operators and tensors."""
        return self._whole([*map(self.network.pairs.__getitem__, rows)])

    def _whole(self, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        self._build(chain.from_iterable(pair[2:4] for pair in pairs), chain.from_iterable(pair[4:6] for pair in pairs))
        return tuple(_pairs(pairs, self._parts, self._tensors))

    def operators(self, side: int) -> tuple[Operator, ...]:
        """The operators of the target's run (0), or of the golden's (1)."""
        self._build_all()
        return _by_id(self.network.runs[side], self._parts)

    def columns(self, columns: Columns) -> Columns:
        """The columns of a table with the same rows, with these operators and tensors."""
        self._build_all()
        return columns._replace(
            operators=_shared(columns.operators, self._parts),
            targets=_by_id(columns.targets, self._tensors),
            goldens=_by_id(columns.goldens, self._tensors),
            rank=None,
        )

    @property
    def left_out(self) -> tuple[Pair, ...]:
        """The pairs that were not compared."""
        return self._whole(self.network.left_out)


Column = TypeVar("Column")


def by_network(function: Callable[[Sequence[Pair]], Column]) -> Callable[[Sequence[Finding]], Column]:
    """Make a function of pairs a function of findings, which is called once for all ranks of a network."""

    @wraps(function)
    def found(findings: Sequence[Finding]) -> Column:
        network = in_columns(findings).network
        if function not in network.columns:
            network.columns[function] = function(network.pairs)
        column: Column = network.columns[function]
        return column

    return found


def in_columns(findings: Sequence[Finding]) -> Union[SearchRows, ChangedRows]:
    """Return findings as rows of columns."""
    if isinstance(findings, (SearchRows, ChangedRows)):
        return findings
    return SearchRows(findings if isinstance(findings, Table) else Table(findings))


def pairs_by_network(findings: Sequence[Finding]) -> Sequence[Pair]:
    """Return the pair of each finding; those of a table of a network have no statistics."""
    rank = findings.columns.rank if isinstance(findings, Table) and findings.is_made_of_columns else None
    return rank.network.pairs if isinstance(rank, Rank) else [finding.pair for finding in findings]


class SearchRows(Rows):
    """The rows of a table for a search through many ranks, numbered from `first` on. Ranks of a network share their
    pairs: tensors have no statistics, Measurement.recorded has them.

    network    the network of the ranks, or one of this rank alone if a search needs its operators with statistics
    is_search  False if operators need no statistics
    """

    def __init__(self, table: Table, first: int = 0, cache: Any = None, is_search: bool = True) -> None:
        columns, rank = table.columns, table.columns.rank
        pairs: Sequence[Pair]
        if not table.is_made_of_columns:
            pairs = [finding.pair for finding in table]
        elif isinstance(rank, Rank):
            pairs = rank.shared_pairs(columns) if is_search else rank.network.pairs
        else:
            pairs = pairs_of(columns)
        super().__init__(columns, pairs.__getitem__, lambda: pairs, first, cache)
        if not table.is_made_of_columns:
            self._found = {row: one._replace(row=first + row, cache=cache) for row, one in enumerate(table)}
        if isinstance(rank, Rank) and pairs is rank.network.pairs:
            self.network, self.has_checksums = rank.network, "checksum" in rank.records.fields
        else:
            self.network = Network(((), ()), tuple(columns.operators), tuple(pairs), ())
            self.has_checksums = any(one.checksum for side in self.network.sides for one in side if one is not None)

    def with_columns(self, columns: Columns, changed: Collection[int]) -> SearchRows:
        """Return the rows with other columns, which differ in some rows."""
        found = copy(self)
        found.columns, found._found = columns, {row: one for row, one in self._found.items() if row not in changed}
        return found


def rows_to_search(one: Comparison) -> Sequence[Finding]:
    """The findings of a comparison, as SearchRows if ranks share its pairs."""
    return one.findings if one.columns.rank is None else SearchRows(Table(columns=one.columns))


def are_all_recorded(findings: Sequence[Finding]) -> bool:
    """Whether statistics alone are known, all four of each tensor, and all are finite, as columns show."""
    rows = findings.rows if isinstance(findings, ChangedRows) else findings
    if not isinstance(rows, SearchRows) or len(rows.columns.moments):
        return False
    figures, has = rows.columns.rows["figures"], rows.network.row_places >= 0
    return rows.network.has_places_alone and bool(np.isfinite(figures[has]).all())


class Operators(LazyTuple[Operator]):
    """The operators of one run of a comparison."""

    def __init__(self, rank: Rank, side: int) -> None:
        self.rank, self.side = rank, side

    @cached_property
    def _made(self) -> tuple[Operator, ...]:
        return self.rank.operators(self.side)

    def __len__(self) -> int:
        return len(self.rank.network.runs[self.side])


class StructuredOperators(LazyTuple[Operator]):
    """The operators of one run whose tensors have statistics alone.

    structure  the operators without statistics, which runs share; tensors have the places of their figures
    figures    of the run, by place
    """

    def __init__(self, structure: tuple[Operator, ...], figures: Floats) -> None:
        self.structure, self.figures = structure, figures

    @cached_property
    def _made(self) -> tuple[Operator, ...]:
        bare = [one for op in self.structure for one in op.tensors]
        known = [*map(_statistics, self.figures.tolist())]
        found = (one.statistics for one in bare)
        figures = [known[at.number] if isinstance(at, FiguresAt) else at for at in found]
        full = dict(zip(map(id, bare), _tensors(bare, {"statistics": figures})))
        return tuple(_operators(self.structure, full))

    def __len__(self) -> int:
        return len(self.structure)


def copied(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return equal operators with equal tensors that are other objects."""
    tensors = [one for op in operators for one in op.tensors]
    return tuple(_operators(operators, dict(zip(map(id, tensors), map(TensorRef._make, tensors)))))


def _by_id(objects: Iterable[Any], made: Mapping[int, Any]) -> tuple[Any, ...]:
    """The object built from each object, None for None."""
    return tuple(map(made.get, map(id, objects)))


def _tensors(tensors: Iterable[TensorRef], columns: Mapping[str, Iterable[Any]]) -> list[TensorRef]:
    """Copy tensors with other values in some fields."""
    fields = dict(zip(TensorRef._fields, zip(*tensors)))
    return [*map(_tensor, zip(*{**fields, **columns}.values()))] if fields else []


def _operators(operators: Iterable[Operator], tensors: Mapping[int, TensorRef]) -> list[Operator]:
    """Copy operators with other tensors, given by object id."""
    fields: dict[str, Iterable[Any]] = dict(zip(Operator._fields, zip(*operators)))
    if not fields:
        return []
    fields["tensors"] = [tuple(map(tensors.__getitem__, map(id, one))) for one in fields["tensors"]]
    return [*map(_operator, zip(*fields.values()))]


def _shared(columns: Iterable[OperatorColumns], operators: Mapping[int, Operator]) -> list[OperatorColumns]:
    return [
        OperatorColumns(order, operators.get(id(target)), operators.get(id(golden)), via, confidence)
        for order, target, golden, via, confidence in columns
    ]


def _pairs(
    pairs: Iterable[Pair], operators: Mapping[int, Operator], tensors: Mapping[int, TensorRef]
) -> Iterable[Pair]:
    return (
        _pair((*pair[:2], *map(operators.get, map(id, pair[2:4])), *map(tensors.get, map(id, pair[4:6])), *pair[6:]))
        for pair in pairs
    )


def _fields(tensors: Iterable[TensorRef]) -> dict[str, list[Any]]:
    fields = dict(zip(TensorRef._fields, zip(*tensors)))
    return {name: [*fields[name]] for name, value in _OWN.items() if any(one != value for one in fields.get(name, ()))}
