"""A comparison in two parts: the skeleton that all ranks of one network share, and the data of each rank.

Ranks that ran the same operators differ only in the records of values: statistics, checksums, files. The skeleton has
everything else: names, shapes, types, arguments, stacks and the pairs of the alignment. It is stored once for all
ranks; a rank then needs only the rows of its table. Operators and tensors with all fields are built from both parts on
request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union, cast, overload

from npucmp.model.comparison import Comparison
from npucmp.model.dump import ELSEWHERE, Operator, Statistics, TensorRef
from npucmp.model.finding import Pair
from npucmp.model.table import Columns, OperatorColumns, Records, Table, figures_of, has_own_figures, pairs_of

_OWN: Mapping[str, Any] = {"file": "", "checksum": "", "payload": None}  # with `statistics` the fields of each rank
_tensor = partial(tuple.__new__, TensorRef)
_operator = partial(tuple.__new__, Operator)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The shared part of ranks; its tensors have no statistics, checksum or file.

    tensors    each one once
    operators  those of `runs`, target and golden, and those that the alignment made of them, each once
    shared     the column of the table
    pairs      of its rows
    left_out   pairs that were not compared
    """

    tensors: tuple[TensorRef, ...]
    operators: tuple[Operator, ...]
    runs: tuple[tuple[Operator, ...], tuple[Operator, ...]]
    shared: tuple[OperatorColumns, ...]
    pairs: tuple[Pair, ...]
    left_out: tuple[Pair, ...]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The place of each tensor by its object id."""
        return {id(one): at for at, one in enumerate(self.tensors)}

    @cached_property
    def sides(self) -> tuple[tuple[Optional[TensorRef], ...], tuple[Optional[TensorRef], ...]]:
        """The columns of the target's and the golden's tensors."""
        return tuple(one.target for one in self.pairs), tuple(one.golden for one in self.pairs)

    @cached_property
    def ran_again(self) -> bool:
        """Whether one run has a call twice. The statistics of its operators then decide whether the second repeats the
        first."""
        alone = {one.call for target, golden in self._operators if not (target and golden)
                 for one in (target, golden) if one}  # fmt: skip
        return any(one.call in alone for both in self._operators if all(both) for one in both if one and one.call)

    @property
    def _operators(self) -> Iterator[tuple[Optional[Operator], Optional[Operator]]]:
        return ((one.target, one.golden) for one in self.shared)


class RankPart(NamedTuple):
    """The part of one rank.

    rows, moments, words   columns of the table
    statistics  statistics of tensors by number, if no row of the table has them
    fields      file, checksum, payload of each tensor; fields that no tensor has are omitted
    comparison  the other fields of the comparison; runs have no operators
    """

    rows: Records
    moments: Records
    words: Sequence[str]
    statistics: Mapping[int, Statistics]
    fields: Mapping[str, Sequence[Any]]
    comparison: Comparison


def split_table(whole: Comparison) -> tuple[Skeleton, RankPart]:
    """Split a comparison whose findings are a table into its two parts."""
    table = cast(Table, whole.findings)
    columns = table.columns.complete()
    runs = whole.target, whole.golden
    sides = [(one.target_op, one.golden_op) for one in whole.left_out]
    known = (*runs[0].operators, *runs[1].operators, *_both(columns.operators), *filter(None, chain(*sides)))
    operators = {id(one): one for one in known}
    left_out = (side for one in whole.left_out for side in (one.target, one.golden))
    listed = chain((one for op in operators.values() for one in op.tensors), columns.targets, columns.goldens, left_out)
    tensors = {id(one): one for one in listed if one is not None}
    nothing = {name: repeat(value, len(tensors)) for name, value in {**_OWN, "statistics": ELSEWHERE}.items()}
    bare = dict(zip(tensors, _tensors(tensors.values(), nothing)))
    parts = dict(zip(operators, _operators(operators.values(), bare)))
    skeleton = Skeleton(
        tuple(bare.values()),
        tuple(parts.values()),
        (_by_id(runs[0].operators, parts), _by_id(runs[1].operators, parts)),
        tuple(_shared(columns.operators, parts)),
        tuple(_pairs(pairs_of(columns), parts, bare)),
        tuple(_pairs(whole.left_out, parts, bare)),
    )
    own = RankPart(
        columns.rows,
        columns.moments,
        columns.words,
        _further_figures(columns, tensors),
        _fields(tensors.values()),
        replace(
            whole,
            target=replace(runs[0], operators=()),
            golden=replace(runs[1], operators=()),
            findings=(),
            left_out=(),
        ),
    )
    return skeleton, own


def join_parts(skeleton: Skeleton, own: RankPart) -> Comparison:
    """Join both parts into a comparison, with a table that shares the skeleton."""
    rank = Rank(skeleton, own)
    known = own.comparison
    target, golden = (replace(run, operators=cast(Any, Operators(rank, side)))
                      for side, run in enumerate((known.target, known.golden)))  # fmt: skip
    columns = Columns(own.rows, own.moments, skeleton.shared, *skeleton.sides, own.words, rank)
    left_out = rank.left_out if skeleton.left_out else ()
    return replace(known, target=target, golden=golden, findings=Table(columns=columns), left_out=left_out)


class Rank:
    """The operators and tensors of a rank with all their fields, built from a skeleton once."""

    def __init__(self, skeleton: Skeleton, own: RankPart) -> None:
        self._skeleton, self._own = skeleton, own

    def __repr__(self) -> str:
        return f"<{len(self._skeleton.operators)} operators, {len(self._skeleton.tensors)} tensors>"

    @cached_property
    def _tensors(self) -> list[TensorRef]:
        bare = self._skeleton.tensors
        figures: list[Optional[Statistics]] = [None] * len(bare)
        numbers, recorded = self._skeleton.numbers, figures_of(self._own.rows)
        for row in has_own_figures(self._own.rows):
            for tensor, found in zip(self._skeleton.pairs[row][4:6], recorded[row]):
                figures[numbers[id(tensor)]] = found
        for at, one in self._own.statistics.items():
            figures[at] = one
        return _tensors(bare, {**self._own.fields, "statistics": figures})

    @cached_property
    def _operators(self) -> list[Operator]:
        return _operators(self._skeleton.operators, self._by_bare())

    def _by_bare(self) -> dict[int, TensorRef]:
        return dict(zip(map(id, self._skeleton.tensors), self._tensors))

    def _parts(self) -> dict[int, Operator]:
        return dict(zip(map(id, self._skeleton.operators), self._operators))

    def shared_pairs(self, columns: Columns) -> list[Pair]:
        """The pairs of a table with the same rows. If only statistics are a rank's own, these are the shared pairs."""
        if self._own.fields or self._skeleton.ran_again:
            return pairs_of(columns)
        found = [*self._skeleton.pairs]
        others = {*range(len(found))}.difference(has_own_figures(columns.rows))
        if others:
            whole = pairs_of(columns)
            for row in others:
                found[row] = whole[row]
        return found

    def operators(self, side: int) -> tuple[Operator, ...]:
        """The operators of the target's run (0), or of the golden's (1)."""
        return _by_id(self._skeleton.runs[side], self._parts())

    def count(self, side: int) -> int:
        """The number of operators of a run."""
        return len(self._skeleton.runs[side])

    def columns(self, columns: Columns) -> Columns:
        """The columns of a table with the same rows, with these operators and tensors."""
        full = self._by_bare()
        return columns._replace(
            operators=_shared(columns.operators, self._parts()),
            targets=_by_id(columns.targets, full),
            goldens=_by_id(columns.goldens, full),
            rank=None,
        )

    @property
    def left_out(self) -> tuple[Pair, ...]:
        """The pairs that were not compared."""
        return tuple(_pairs(self._skeleton.left_out, self._parts(), self._by_bare()))


class Operators(Sequence[Operator]):
    """The operators of one run of a comparison, built on request."""

    def __init__(self, rank: Rank, side: int) -> None:
        self._rank, self._side = rank, side

    @cached_property
    def _made(self) -> tuple[Operator, ...]:
        return self._rank.operators(self._side)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._made,)

    def __len__(self) -> int:
        return self._rank.count(self._side)

    @overload
    def __getitem__(self, at: int) -> Operator: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Operator, ...]: ...
    def __getitem__(self, at: Union[int, slice]) -> Union[Operator, tuple[Operator, ...]]:
        return self._made[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __hash__(self) -> int:
        return hash(self._made)

    def __repr__(self) -> str:
        return repr(self._made)


def _by_id(objects: Iterable[Any], made: Mapping[int, Any]) -> tuple[Any, ...]:
    """The object built from each object, None for None."""
    return tuple(map(made.get, map(id, objects)))


def _both(operators: Iterable[OperatorColumns]) -> Iterable[Operator]:
    return (side for one in operators for side in (one.target, one.golden) if side is not None)


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
        one._replace(
            target_op=operators.get(id(one.target_op)),
            golden_op=operators.get(id(one.golden_op)),
            target=tensors.get(id(one.target)),
            golden=tensors.get(id(one.golden)),
        )
        for one in pairs
    )


def _further_figures(columns: Columns, tensors: Mapping[int, TensorRef]) -> dict[int, Statistics]:
    """The statistics of tensors, by number, that no row of the table contains exactly."""
    held = set[int]()
    for row in has_own_figures(columns.rows):
        held.update((id(columns.targets[row]), id(columns.goldens[row])))
    words = {*map(type, chain.from_iterable(filter(None, (one.statistics for one in tensors.values()))))}
    if not words <= {float, type(None)}:  # a float64 column would convert them
        held.clear()
    return {at: one.statistics for at, (key, one) in enumerate(tensors.items()) if one.statistics and key not in held}


def _fields(tensors: Iterable[TensorRef]) -> dict[str, list[Any]]:
    fields = dict(zip(TensorRef._fields, zip(*tensors)))
    return {name: [*fields[name]] for name, value in _OWN.items() if any(one != value for one in fields.get(name, ()))}
