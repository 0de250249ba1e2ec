"""The comparison of one step and rank as a table: one row per pair of tensors, in graph order.

    rows       a numpy structured array (ROW): numbers, and indices of texts in `words`
    moments    a structured array (MOMENTS) of the rows whose values were measured; `rows["moments"]` has their places
    operators  data that all pairs of an operator share; `rows["operator"]` has their places
    targets, goldens   the tensor of each side by row, None if a side has none
    rank       builds whole operators and tensors from shared ones (model/network.py), None if they are whole: shared
               tensors have no statistics, checksums and files

`Pair`, `Measurement` and `Finding` are views of a row, built on request. The columns are stored between two phases of a
comparison and in a checkpoint, and are sent between processes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from dataclasses import replace
from functools import partial
from typing import (
    Any,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    TypeVar,
    Union,
    overload,
)

import numpy as np
import numpy.typing as npt

from npucmp.model.dump import FiguresAt, Operator, Run, Statistics, TensorRef
from npucmp.model.finding import Finding, Measurement, Pair, Verdict
from npucmp.model.moments import CODES, FIELDS, RECORD, SIDE_FIELDS, Merge, Moments, moments_in, record_of

Records = npt.NDArray[np.void]

_SIDE = [(field.name, CODES[field.c_type]) for field in SIDE_FIELDS]
MOMENTS = np.dtype([(field.name, _SIDE if field.merge is Merge.HALF else CODES[field.c_type]) for field in FIELDS])
ROW = np.dtype(
    [
        ("operator", "i4"),
        ("slot", "i4"),
        ("note", "i4"),
        ("moments", "i4"),  # -1 if no values were measured
        ("known", "u2"),  # which of the optional numbers are present
        ("same", "i1"),  # -1 if checksums do not decide
        ("shapes_differ", "?"),
        ("verdict", "i1"),  # -1 before the verdict
        ("problem", "i4"),
        ("unlike", "i4"),
        ("because", "i4"),
        ("metric", "i4"),
        ("rule", "i4"),
        ("explained_by", "i4"),
        ("bytes_read", "i8"),
        ("figures", "f8", (2, 4)),  # recorded max, min, mean, norm of target and golden
        ("bound", "f8"),
        ("settled", "f8"),
        ("error", "f8"),
        ("limit", "f8"),
        ("explained_limit", "f8"),
        ("working", "f8"),
    ]
)
_BOUND, _SETTLED, _ERROR, _SIDES = 1, 2, 4, (8, 16)
_FIGURES = tuple(tuple(32 << (4 * side + at) for at in range(4)) for side in range(2))
_ALL = tuple(_SIDES[side] + sum(_FIGURES[side]) for side in range(2))
_OWN = 1 << 13  # the statistics are those of the tensors, as recorded
_BOTH, _FIGURES_SIZE = sum(_ALL), ROW["figures"].itemsize
_Both = tuple[Optional[Statistics], Optional[Statistics]]
_NAN = math.nan
_NANS = (_NAN,) * 4
_VERDICTS = tuple(Verdict)
# named tuples of values in the order of their fields, without a call of a Python function
_measurement: Callable[[Iterable[Any]], Measurement] = partial(tuple.__new__, Measurement)
_finding: Callable[[Iterable[Any]], Finding] = partial(tuple.__new__, Finding)
_figures: Callable[[Iterable[Any]], Statistics] = partial(tuple.__new__, Statistics)
VERDICT_NUMBERS = {verdict: number for number, verdict in enumerate(_VERDICTS)}


class OperatorColumns(NamedTuple):
    """The data that all pairs of an operator share."""

    order: int
    target: Optional[Operator]
    golden: Optional[Operator]
    via: str
    confidence: float


class FieldSource(Protocol):
    """A provider of operators and tensors with all fields."""

    network: Any
    records: Any
    contents: dict[Any, Any]  # of the tensors (flow/contents.py), by side

    def columns(self, columns: Columns) -> Columns:
        """The columns with whole operators and tensors."""

    def pairs(self, rows: Sequence[int]) -> Sequence[Pair]:
        """The pairs of rows."""

    def shared_pairs(self, columns: Columns) -> Sequence[Pair]:
        """The pairs of the rows; the measurements have the statistics of shared pairs."""


class Columns(NamedTuple):
    """The columns of a table. They can be pickled, and no column refers to a row of another table."""

    rows: Records
    moments: Records
    operators: Sequence[OperatorColumns]
    targets: Sequence[Optional[TensorRef]]
    goldens: Sequence[Optional[TensorRef]]
    words: Sequence[str]
    rank: Optional[FieldSource] = None

    def complete(self) -> Columns:
        """The columns with whole operators and tensors."""
        return self if self.rank is None else self.rank.columns(self)


Item = TypeVar("Item", covariant=True)


class LazySequence(Sequence[Item]):
    """Items that are built on request, each by its number from 0 on."""

    @abstractmethod
    def _item(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...
    def __getitem__(self, at: Union[int, slice]) -> Union[Item, Sequence[Item]]:
        if isinstance(at, int) and 0 <= at < len(self):
            return self._item(at)
        numbers = range(len(self))[at]
        return self._item(numbers) if isinstance(numbers, int) else tuple(map(self._item, numbers))


class LazyTuple(LazySequence[Item]):
    """Items that are built together on request, and equal a tuple of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._made,)

    @property
    @abstractmethod
    def _made(self) -> tuple[Item, ...]: ...

    def _item(self, at: int) -> Item:
        return self._made[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._made)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __hash__(self) -> int:
        return hash(self._made)

    def __repr__(self) -> str:
        return repr(self._made)


class Rows(LazySequence[Finding]):
    """Rows of columns as Findings, which are built on request and kept.

    pairs  the pair of a row; all of them, if all rows are asked
    first  the number of the first row in a search of several tables; `cache` belongs to that search
    """

    def __init__(self, columns: Columns, pair: Callable[[int], Pair], pairs: Callable[[], Optional[Sequence[Pair]]]
                 = lambda: None, first: int = 0, cache: Any = None) -> None:  # fmt: skip
        self.columns, self._pair, self._pairs, self.first, self.cache = columns, pair, pairs, first, cache
        self._count = len(columns.rows)
        self._found: dict[int, Finding] = {}

    def __len__(self) -> int:
        return self._count

    def _item(self, at: int) -> Finding:
        found = self._found.get(at)
        if found is None:
            found = self._found[at] = finding_at(self.columns, at, self._pair(at), self.first + at, self.cache)
        return found

    def __iter__(self) -> Iterator[Finding]:
        if len(self._found) < len(self):
            every = findings_of(self.columns, self._pairs())
            if self.first or self.cache is not None:
                every = [one._replace(row=self.first + row, cache=self.cache) for row, one in enumerate(every)]
            self._found = {**dict(enumerate(every)), **self._found}
        return map(self._found.__getitem__, range(len(self)))


class Table(Sequence[Finding]):
    """The measured tensor pairs of one step and rank with their verdicts: a sequence with a Finding for each row.

    A table is built from findings or from columns; the other form is built on request, for the rows that are asked.
    """

    __slots__ = ("_columns", "_findings")

    def __init__(self, findings: Optional[Sequence[Finding]] = None, columns: Optional[Columns] = None) -> None:
        self._findings: Sequence[Finding] = ()
        self._columns = columns
        if findings is not None:
            self._findings = findings
        elif columns is not None:
            self._findings = Rows(columns, lambda row: pairs_at(columns, [row])[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (None, self.columns.complete())

    def __len__(self) -> int:
        return len(self._findings)

    @overload
    def __getitem__(self, at: int) -> Finding: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Finding]: ...
    def __getitem__(self, at: Union[int, slice]) -> Union[Finding, Sequence[Finding]]:
        return self._findings[at]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<table of {len(self)} rows>"

    @property
    def columns(self) -> Columns:
        """The columns; built once."""
        if self._columns is None:
            self._columns = columns_of(self._findings)
        return self._columns

    def pairs(self, rows: Sequence[int]) -> Sequence[Pair]:
        """The pairs of rows, which are built without their findings."""
        is_made = not isinstance(self._findings, Rows)
        return [self._findings[row].pair for row in rows] if is_made else pairs_at(self.columns, rows)

    @property
    def is_made_of_columns(self) -> bool:
        return isinstance(self._findings, Rows)

    @property
    def has_values(self) -> bool:
        """Whether values of any tensor were measured."""
        return bool(len(self.columns.moments))

    def replaced(self, changes: Mapping[int, Finding]) -> Table:
        """Replace the findings of some rows, by row number. The new findings must be of the same measurements."""
        return self.with_verdicts({at: one[1:-2] for at, one in changes.items()})

    def with_verdicts(self, changes: Mapping[int, Sequence[Any]]) -> Table:
        """Replace the verdicts of some rows, by row number: the fields of a Finding from the verdict on."""
        if not changes:
            return self
        found: Optional[list[Finding]] = None
        if not isinstance(self._findings, Rows):
            found = [*self._findings]
            for at, fields in changes.items():
                found[at] = Finding._make((found[at].measurement, *fields, *found[at][-2:]))
            if self._columns is None:
                return Table(found)
        columns, numbers = self.columns, {word: number for number, word in enumerate(self.columns.words)}
        rows = columns.rows.copy()
        write_verdicts(rows, changes, numbers)
        return Table(found, columns._replace(rows=rows, words=[*numbers]))


class ChangedRows(LazySequence[Finding]):
    """Rows of which some have another finding; `changes` by row of the sequence."""

    def __init__(self, rows: Sequence[Finding], changes: Mapping[int, Finding]) -> None:
        self.rows, self.changes = rows, changes
        self.network: Any = getattr(rows, "network", None)

    def __len__(self) -> int:
        return len(self.rows)

    def _item(self, at: int) -> Finding:
        found = self.changes.get(at)
        return self.rows[at] if found is None else found

    def __iter__(self) -> Iterator[Finding]:
        return (self.changes.get(at, row) for at, row in enumerate(self.rows))


def with_changes(rows: Sequence[Finding], changes: Mapping[int, Finding]) -> ChangedRows:
    """Return rows with other findings in some, and the findings of earlier changes in others."""
    return (
        ChangedRows(rows.rows, {**rows.changes, **changes})
        if isinstance(rows, ChangedRows)
        else ChangedRows(rows, changes)
    )


def rows_of_verdicts(findings: Sequence[Finding], verdicts: Collection[Verdict]) -> list[int]:
    """Return the rows with one of some verdicts, in order."""
    if isinstance(findings, ChangedRows):
        changed = {at for at, one in findings.changes.items() if one.verdict in verdicts}
        return sorted(changed.union(rows_of_verdicts(findings.rows, verdicts)).difference(
            at for at, one in findings.changes.items() if one.verdict not in verdicts))  # fmt: skip
    found: list[int] = np.flatnonzero(with_verdict(_columns(findings), verdicts)).tolist()
    return found


def rows_of_rule(findings: Sequence[Finding], rule: str) -> frozenset[int]:
    """Return the rows that a rule decided."""
    if isinstance(findings, ChangedRows):
        changed = (at for at, one in findings.changes.items() if one.rule == rule)
        return rows_of_rule(findings.rows, rule).difference(findings.changes).union(changed)
    return frozenset(np.flatnonzero(rows_with_word(_columns(findings), "rule", rule)).tolist())


def _columns(findings: Sequence[Finding]) -> Columns:
    return findings.columns if isinstance(findings, (Rows, Table)) else Table(findings).columns


class _Words:
    """Texts by number; number 0 is the empty text."""

    def __init__(self, words: Sequence[str] = ("",)) -> None:
        self._numbers = {word: number for number, word in enumerate(words)}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        return [*self._numbers]


def write_verdicts(rows: Records, changes: Mapping[int, Sequence[Any]], numbers: dict[str, int]) -> None:
    """Write the fields of a Finding from the verdict on into rows, by row. `numbers` are the numbers of words, to which
    new words are added."""
    at = [*changes]
    if not at:
        return
    verdicts, because, errors, limits, metrics, rules, explained_by, explained_limits, working = zip(*changes.values())
    rows["verdict"][at] = [*map(VERDICT_NUMBERS.__getitem__, verdicts)]
    rows["error"][at] = [_NAN if error is None else error for error in errors]
    flags = np.array([0 if error is None else _ERROR for error in errors], dtype=np.uint16)
    rows["known"][at] = (rows["known"][at] & ~np.uint16(_ERROR)) | flags
    texts = {"because": because, "metric": metrics, "rule": rules, "explained_by": explained_by}
    for name, column in texts.items():
        rows[name][at] = [numbers.setdefault(text, len(numbers)) for text in column]
    for name, values in {"limit": limits, "explained_limit": explained_limits, "working": working}.items():
        rows[name][at] = values


def write_bounds(rows: Records, at: npt.NDArray[np.int64], bounds: npt.NDArray[np.float64]) -> None:
    """Write the lower bounds of the error that statistics prove."""
    rows["bound"][at] = bounds
    rows["known"][at] |= _BOUND


def mark_recorded(rows: Records, has: npt.NDArray[np.bool_], others: Sequence[int]) -> None:
    """Mark rows whose statistics are those of their tensors; for sides in `has` (rows, 2) all are known."""
    for side in range(2):
        rows["known"][has[:, side]] |= _ALL[side]
    rows["known"][has.any(axis=1)] |= _OWN
    rows["known"][others] |= _OWN


def columns_of(records: Iterable[Union[Finding, Measurement]]) -> Columns:
    """The columns of findings, or of measurements without a verdict."""
    rows: list[tuple[Any, ...]] = []
    measured: list[Moments] = []
    operators: list[OperatorColumns] = []
    targets: list[Optional[TensorRef]] = []
    goldens: list[Optional[TensorRef]] = []
    words = _Words()
    number, last = words.number, OperatorColumns(-1, None, None, "", 0.0)
    for one in records:
        if isinstance(one, Finding):
            _, verdict, because, error, limit, metric, rule, explained_by, explained_limit, working = one[:10]
            measurement, code = one[0], VERDICT_NUMBERS[verdict]
        else:
            measurement, code, error, limit, explained_limit, working = one, -1, None, 0.0, 0.0, 0.0
            because = metric = rule = explained_by = ""
        pair, moments, bound, same, problem, unlike, shapes_differ, statistics, read, settled = measurement[:10]
        order, slot, target_op, golden_op, target, golden, via, confidence, note = pair[:9]
        if (
            last.target is not target_op
            or last.golden is not golden_op
            or (last.order, last.via, last.confidence) != (order, via, confidence)
        ):
            last = OperatorColumns(order, target_op, golden_op, via, confidence)
            operators.append(last)
        known = (_BOUND if bound is not None else 0) | (_SETTLED if settled is not None else 0)
        known |= _ERROR if error is not None else 0
        (of_target, x), (of_golden, y) = _recorded(statistics[0], 0), _recorded(statistics[1], 1)
        if target is not None and golden is not None:
            is_own = statistics[0] is target.statistics and statistics[1] is golden.statistics
            known |= _OWN if is_own else 0
        at = -1
        if moments is not None:
            at = len(measured)
            measured.append(moments)
        targets.append(target)
        goldens.append(golden)
        rows.append(
            (
                len(operators) - 1,
                number(slot),
                number(note),
                at,
                known | of_target | of_golden,
                -1 if same is None else same,
                shapes_differ,
                code,
                number(problem),
                number(unlike),
                number(because),
                number(metric),
                number(rule),
                number(explained_by),
                read,
                (x, y),
                _NAN if bound is None else bound,
                _NAN if settled is None else settled,
                _NAN if error is None else error,
                limit,
                explained_limit,
                working,
            )
        )
    return Columns(np.array(rows, dtype=ROW), records_of(measured), operators, targets, goldens, words.texts)


def pairs_of(columns: Columns) -> list[Pair]:
    """The Pair of each row."""
    columns = columns.complete()
    words, operators = columns.words, columns.operators
    numbers = (columns.rows[name].tolist() for name in ("operator", "slot", "note"))
    return [
        Pair(shared.order, words[slot], shared.target, shared.golden, x, y, shared.via, shared.confidence, words[note])
        for (operator, slot, note), x, y in zip(zip(*numbers), columns.targets, columns.goldens)
        for shared in (operators[operator],)
    ]


def measurements_of(columns: Columns, pairs: Optional[Sequence[Pair]] = None) -> list[Measurement]:
    """The Measurement of each row, with these pairs if they are given."""
    words, moments = columns.words, moments_of(columns.moments)
    names = "known", "moments", "bound", "same", "problem", "unlike", "shapes_differ", "bytes_read", "settled"
    numbers = (_interned(columns.rows[name]) for name in names)
    figures = figures_of(columns.rows)
    return [
        Measurement(
            pair,
            moments[at] if at >= 0 else None,
            bound if known & _BOUND else None,
            None if same < 0 else bool(same),
            words[problem],
            words[unlike],
            apart,
            own if known & _OWN and (own := _of_tensors(pair)) is not None else recorded,
            read,
            settled if known & _SETTLED else None,
        )
        for pair, recorded, (known, at, bound, same, problem, unlike, apart, read, settled) in zip(
            pairs_of(columns) if pairs is None else pairs, figures, zip(*numbers)
        )
    ]


def findings_of(columns: Columns, pairs: Optional[Sequence[Pair]] = None) -> list[Finding]:
    """The Finding of each row with a verdict, with these pairs if they are given."""
    words = columns.words
    names = "known", "verdict", "because", "error", "limit", "metric", "rule", "explained_by"
    numbers = (_interned(columns.rows[name]) for name in (*names, "explained_limit", "working"))
    return [
        Finding(
            measurement,
            _VERDICTS[verdict],
            words[because],
            error if known & _ERROR else None,
            limit,
            words[metric],
            words[rule],
            words[by],
            explained_limit,
            working,
            row,
        )
        for row, (
            measurement,
            (known, verdict, because, error, limit, metric, rule, by, explained_limit, working),
        ) in enumerate(zip(measurements_of(columns, pairs), zip(*numbers)))
    ]


def pair_at(columns: Columns, at: int) -> Pair:
    """The pair of a row of whole columns."""
    row, words = columns.rows[at], columns.words
    shared = columns.operators[row["operator"]]
    sides = shared.target, shared.golden, columns.targets[at], columns.goldens[at]
    return Pair(shared.order, words[row["slot"]], *sides, shared.via, shared.confidence, words[row["note"]])


def pairs_at(columns: Columns, rows: Sequence[int]) -> Sequence[Pair]:
    """The pairs of rows of columns, with whole operators and tensors."""
    return [pair_at(columns, row) for row in rows] if columns.rank is None else columns.rank.pairs(rows)


def finding_at(columns: Columns, at: int, pair: Pair, number: int, cache: Any = None) -> Finding:
    """The Finding of one row with a verdict, with this pair, row number and cache."""
    (_, _, _, moments, known, same, apart, verdict, problem, unlike, because, metric, rule, by, read, recorded,
     bound, settled, error, limit, explained_limit, working) = columns.rows[at].item()  # fmt: skip
    words, statistics = columns.words, _of_tensors(pair) if known & _OWN else None
    if statistics is None:
        figures = recorded.tolist()
        statistics = _statistics(known, figures[0], 0), _statistics(known, figures[1], 1)
    measurement = _measurement((
        pair,
        moments_of(columns.moments[moments : moments + 1])[0] if moments >= 0 else None,
        bound if known & _BOUND else None,
        None if same < 0 else bool(same),
        words[problem],
        words[unlike],
        apart,
        statistics,
        read,
        settled if known & _SETTLED else None,
    ))  # fmt: skip
    fields = error if known & _ERROR else None, limit, words[metric], words[rule], words[by], explained_limit, working
    return _finding((measurement, _VERDICTS[verdict], words[because], *fields, number, cache))


def records_of(moments: Iterable[Moments]) -> Records:
    """Moments as records; None is preserved."""
    return np.frombuffer(b"".join(map(record_of, moments)), MOMENTS)


def moments_of(records: Records) -> list[Moments]:
    """The Moments in records."""
    data = records.tobytes()
    return [moments_in(data[start : start + RECORD.size]) for start in range(0, len(data), RECORD.size)]


def _recorded(one: Optional[Statistics], side: int) -> tuple[int, tuple[float, ...]]:
    """The flags of the statistics that a side has, and the statistics."""
    if one is None:
        return 0, _NANS
    if None not in one:
        return _ALL[side], one  # type: ignore[return-value]
    known = sum(bit for bit, figure in zip(_FIGURES[side], one) if figure is not None)
    return _SIDES[side] + known, tuple(_NAN if figure is None else figure for figure in one)


def has_own_figures(rows: Records) -> npt.NDArray[np.bool_]:
    """Whether the statistics of a row are those of its tensors, as recorded."""
    return (rows["known"] & _OWN).astype(bool)


def has_figures(rows: Records, side: int) -> npt.NDArray[np.bool_]:
    """Whether no values of a row were measured, and the four statistics of its target (side 0) or golden (1) are
    known."""
    found: npt.NDArray[np.bool_] = (rows["moments"] < 0) & (rows["known"] & _ALL[side] == _ALL[side])
    return found


def _interned(column: Records) -> list[Any]:
    """The numbers of a column. Bitwise equal floats are one object."""
    if column.dtype != np.float64:
        found: list[Any] = column.tolist()
        return found
    bits, places = np.unique(np.ascontiguousarray(column).view(np.uint64), return_inverse=True)
    return [*map(bits.view(np.float64).tolist().__getitem__, places.tolist())]


def figures_of(rows: Records) -> list[_Both]:
    """The statistics of target and golden of each row. Equal statistics are one object, because an operator reads the
    output of another."""
    data, made = rows["figures"].tobytes(), dict[tuple[int, bytes], _Both]()
    found: list[_Both] = []
    for at, known in enumerate((rows["known"] & _BOTH).tolist()):
        key = known, data[at * _FIGURES_SIZE : (at + 1) * _FIGURES_SIZE]
        both = made.get(key)
        if both is None:
            x, y = np.frombuffer(key[1]).reshape(2, 4).tolist()
            both = made[key] = _statistics(known, x, 0), _statistics(known, y, 1)
        found.append(both)
    return found


def _of_tensors(pair: Pair) -> Optional[_Both]:
    """The statistics of both tensors; None if the measurements have them."""
    x, y = (None if one is None else one.statistics for one in (pair.target, pair.golden))
    return None if isinstance(x, FiguresAt) or isinstance(y, FiguresAt) else (x, y)


def _statistics(known: int, figures: Sequence[float], side: int) -> Optional[Statistics]:
    if known & _ALL[side] == _ALL[side]:
        return _figures(figures)
    if not known & _SIDES[side]:
        return None
    return Statistics(*(one if known & bit else None for bit, one in zip(_FIGURES[side], figures)))


Flags = npt.NDArray[np.bool_]
Made = TypeVar("Made")
_latest: deque[tuple[object, dict[Any, Any]]] = deque(maxlen=1)  # facts of a table without a network, by `operators`


def with_verdict(columns: Columns, verdicts: Iterable[Verdict]) -> Flags:
    """Whether each row has one of these verdicts."""
    is_one = np.zeros(len(_VERDICTS) + 1, bool)  # the last one is that of rows before the verdict
    is_one[[VERDICT_NUMBERS[verdict] for verdict in verdicts]] = True
    found: Flags = is_one[columns.rows["verdict"]]
    return found


def verdict_rows(columns: Columns) -> dict[Verdict, tuple[int, int]]:
    """The first row of each verdict and the number of its rows, in the order of the first rows."""
    numbers, rows, counts = np.unique(columns.rows["verdict"], return_index=True, return_counts=True)
    found = sorted(zip(rows.tolist(), counts.tolist(), numbers.tolist()))
    return {_VERDICTS[number]: (row, count) for row, count, number in found}


def moments_of_rows(columns: Columns) -> list[Optional[Moments]]:
    """The Moments of each row, None for a row whose values were not measured."""
    return [*map([*moments_of(columns.moments), None].__getitem__, columns.rows["moments"].tolist())]


def rows_with_word(columns: Columns, field: str, word: str) -> Flags:
    """Whether a field of each row has a text: "rule", "metric", "because" …"""
    number = columns.words.index(word) if word in columns.words else -1
    found: Flags = columns.rows[field] == number
    return found


def has_error(columns: Columns) -> Flags:
    """Whether the error of each row is known."""
    return (columns.rows["known"] & _ERROR).astype(bool)


def has_bound(columns: Columns) -> Flags:
    """Whether recorded statistics prove a bound of the error of each row."""
    return (columns.rows["known"] & _BOUND).astype(bool)


def has_record(columns: Columns, side: int) -> Flags:
    """Whether the tensor of a side of each row has recorded statistics."""
    return (columns.rows["known"] & _SIDES[side]).astype(bool)


def recorded_figures(columns: Columns, side: int) -> tuple[Flags, npt.NDArray[np.float64]]:
    """The recorded max, min, mean and norm of the tensors of a side, and which of them are known, each as (rows, 4)."""
    return (columns.rows["known"][:, None] & np.array(_FIGURES[side], "u2")) > 0, columns.rows["figures"][:, side]


def with_field(columns: Columns, field: str) -> Columns:
    """The columns with a field of tensors that each rank has for itself: "file" or "checksum". Whole tensors are built
    only if any has the field."""
    return columns.complete() if field in _own_fields(columns.rank) else columns


def _own_fields(rank: Optional[FieldSource]) -> Mapping[str, Any]:
    return {} if rank is None else rank.records.fields


def network_fact(columns: Columns, make: Callable[..., Made], *more: object) -> Made:
    """The result of a function of columns that reads names, shapes, types, arguments and pairs alone, and of further
    arguments, made once for all ranks of a network, or for the last table without one. The function must not read
    statistics, checksums and files of tensors."""
    if columns.rank is not None:
        made = columns.rank.network.columns
    else:
        if not _latest or _latest[0][0] is not columns.operators:
            _latest.append((columns.operators, {}))
        made = _latest[0][1]
    found: Made = made_once(made, (make, *more), columns, *more)
    return found


def run_fact(run: Run, make: Callable[[Run], Made], own_field: str = "") -> Made:
    """The result of a function of a run that reads names, shapes and types of its operators, its format and detail
    alone, made once for all ranks of a network. If it reads a field that tensors of each rank have for themselves,
    `own_field` is the name of the field."""
    rank, side = (getattr(run.operators, name, None) for name in ("rank", "side"))
    if rank is None or own_field in _own_fields(rank):
        return make(run)
    key = make, run.format, run.detail, side
    found: Made = made_once(rank.network.columns, key, replace(run, operators=rank.network.runs[side]))
    return found


def made_once(made: dict[Any, Any], key: tuple[Any, ...], *arguments: object) -> Any:
    """The result of the function that begins the key, called once."""
    if key not in made:
        made[key] = key[0](*arguments)
    return made[key]


def bare_pairs(columns: Columns) -> list[Pair]:
    """The Pair of each row, with the tensors that ranks of a network share."""
    return pairs_of(columns._replace(rank=None))


def orders_of(columns: Columns) -> npt.NDArray[np.int64]:
    """The order of the operator of each row."""
    orders = [shared.order for shared in columns.operators]
    return np.array([*map(orders.__getitem__, columns.rows["operator"].tolist())], np.int64)


def have_elements(columns: Columns) -> Flags:
    """Whether the tensor of each row has elements; agreement of empty tensors is no evidence."""
    tensors = map(_either, columns.targets, columns.goldens)
    return np.array([tensor is not None and 0 not in tensor.shape for tensor in tensors], bool)


def have_both_sides(columns: Columns) -> Flags:
    """Whether both sides have the tensor of each row."""
    both = zip(columns.targets, columns.goldens)
    return np.array([target is not None and golden is not None for target, golden in both], bool)


def _either(target: Optional[TensorRef], golden: Optional[TensorRef]) -> Optional[TensorRef]:
    return golden if target is None else target
