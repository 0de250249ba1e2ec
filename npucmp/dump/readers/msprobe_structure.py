"""Cache the structure of dump.json files: ranks and steps that ran the same operators differ only in their figures.

The figures of tensors (Max, Min, Mean, Norm) and their checksums are cut out of the text. Files with the same rest,
the same stack.json and construct.json have the same structure: operators, slots, shapes, types, arguments, stacks.
A structure is parsed once and kept for the next file; for further files only the figures are parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from msgspec import MsgspecError
from msgspec.json import Decoder

from npucmp.model import Operator, Statistics, TensorRef
from npucmp.model.dump import FiguresAt
from npucmp.model.network import Floats

MOST = 250_000  # operators and tensors of all kept structures, about 300 bytes each

_NONCE = os.urandom(8).hex()  # no dump can contain it on purpose
FIGURES = f"figures {_NONCE}"  # the key that replaces the figures of a tensor; its value is their number
_CHECKSUM = f"checksum {_NONCE} "  # begins the text that replaces a checksum
_WORD = rb"[-+.0-9A-Za-z]{1,64}"
_FIGURES = len(Statistics._fields)
_OF_TENSORS = re.compile(
    rb",\s*".join(rb'"%s":\s*(%s)' % (name, _WORD) for name in (b"Max", b"Min", b"Mean", b"Norm")) + rb"(?=\s*[,}])"
)
_OF_CONTENT = re.compile(rb'"md5":\s*"([0-9A-Za-z]{1,64})"')
_FIGURE, _CONTENT = b"\0", b"\1"  # marks in the rest; no JSON text contains them
_decode = Decoder(List[Tuple[Optional[float], Optional[float], Optional[float], Optional[float]]]).decode
_floats = Decoder(List[float]).decode
_statistics = partial(tuple.__new__, Statistics)
_tensor = partial(tuple.__new__, TensorRef)
_operator = partial(tuple.__new__, Operator)
_NOTHING = (None, None, None, None)


class SplitText(NamedTuple):
    """The text of a dump.json, split: figures (four texts per tensor that has all of them), checksums, and the rest."""

    figures: Sequence[bytes]
    checksums: Sequence[bytes]
    rest: bytes

    @classmethod
    def of(cls, data: bytes) -> Optional[SplitText]:
        """Cut a text; None if it contains control characters, which JSON does not allow."""
        parts = _OF_TENSORS.split(data)
        rest = _FIGURE.join(parts[:: _FIGURES + 1])
        del parts[:: _FIGURES + 1]
        checksums: list[bytes] = []
        if b'"md5"' in rest:
            pieces = _OF_CONTENT.split(rest)
            checksums, rest = pieces[1::2], _CONTENT.join(pieces[::2])
        if rest.count(_FIGURE) * _FIGURES != len(parts) or rest.count(_CONTENT) != len(checksums):
            return None
        return cls(parts, checksums, rest)

    @property
    def tensors(self) -> int:
        """The number of tensors that have all figures."""
        return len(self.figures) // _FIGURES

    def digest(self, *beside: bytes) -> bytes:
        """Return the digest of the rest and of the files beside it, which identifies the structure."""
        return b"".join(sha256(one).digest() for one in (self.rest, *beside))

    def with_numbers(self) -> bytes:
        """Return the rest as JSON, with numbers in place of figures and checksums."""
        figures = (b'"%s":%d' % (FIGURES.encode(), number) for number in range(self.tensors))
        checksums = (b'"md5":"%s%d"' % (_CHECKSUM.encode(), number) for number in range(len(self.checksums)))
        return _substitute(_substitute(self.rest, _FIGURE, figures), _CONTENT, checksums)

    def numbers(self) -> Optional[Floats]:
        """Return the figures as float64 (texts, 4); None unless all are numbers, so that the texts hold no null, NaN,
        Infinity or truth value."""
        try:
            numbers = _floats(b"[" + b",".join(self.figures) + b"]")
            found = np.array(numbers, dtype=np.float64).reshape(-1, _FIGURES)
        except MsgspecError:
            return None
        norms = found[:, 3]
        norms[norms < 0.0] *= -1.0  # Statistics.recorded
        return found

    def statistics(self) -> list[Optional[Statistics]]:
        """Return the figures as numbers; equal texts share one object. ValueError for a word that is no number, bool or
        null."""
        every = [*map(b",".join, zip(*(self.figures[at::_FIGURES] for at in range(_FIGURES))))]
        different = dict.fromkeys(every)
        text = b"[[" + b"],[".join(different) + b"]]" if different else b"[]"
        try:
            rows: Sequence[Any] = _decode(text)
        except MsgspecError:  # NaN, Infinity, truth values
            rows = [*map(_row, different)]
        made = (_statistics(row) if row[3] is not None and row[3] >= 0 else _statistics_of(row) for row in rows)
        return [*map(dict(zip(different, made)).__getitem__, every)]


def _statistics_of(row: tuple[Optional[float], ...]) -> Optional[Statistics]:
    return None if row == _NOTHING else Statistics.recorded(*row)


def _row(text: bytes) -> tuple[Optional[float], ...]:
    return tuple(None if one is None else float(one) for one in json.loads(b"[%s]" % text))


def _substitute(text: bytes, mark: bytes, words: Iterator[bytes]) -> bytes:
    """Return the text with each mark replaced by a word."""
    pieces = text.split(mark)
    return b"".join(chain(pieces[:1], chain.from_iterable(zip(words, pieces[1:]))))


@dataclass(frozen=True, eq=False)
class Structure:
    """The common structure of files with the same rest.

    operators  without tensors, in order; `counts` are the numbers of their tensors
    columns    of all tensors: fields of TensorRef by name, where `file` is the name in the tensor folder
    figures    per tensor the number of its figures; higher numbers refer to `fixed`
    checksums  per tensor the number of its checksum; higher numbers refer to `written`
    heading    framework, level and task; `names_files`: whether a tensor has the name of a file
    """

    operators: tuple[Operator, ...]
    counts: tuple[int, ...]
    columns: Mapping[str, Sequence[Any]]
    figures: Sequence[int]
    fixed: Sequence[Optional[Statistics]]
    checksums: Sequence[int]
    written: Sequence[str]
    heading: tuple[str, str, str]
    names_files: bool
    cut: int  # number of figures that were cut out

    @classmethod
    def of(
        cls,
        cut: SplitText,
        operators: Sequence[Operator],
        figures: Sequence[Statistics],
        heading: tuple[str, str, str],
        names_files: bool,
    ) -> Optional[Structure]:
        """Return the structure of operators parsed from the numbered rest, with `figures` in place of the real ones.

        Returns None if not every figure and checksum belongs to a tensor, so that one occurs elsewhere in the text.
        """
        tensors = [one for operator in operators for one in operator.tensors]
        numbers = {id(one): number for number, one in enumerate(figures)}
        fixed, written = _Numbers(cut.tensors), _Numbers(len(cut.checksums))
        of_figures = [
            numbers[id(one.statistics)] if id(one.statistics) in numbers else fixed.number(one.statistics)
            for one in tensors
        ]
        of_content = [
            int(one.checksum[len(_CHECKSUM) :]) if one.checksum.startswith(_CHECKSUM) else written.number(one.checksum)
            for one in tensors
        ]
        for found, count in ((of_figures, cut.tensors), (of_content, len(cut.checksums))):
            if sorted(number for number in found if number < count) != [*range(count)]:
                return None
        columns = {name: [*map(attrgetter(name), tensors)] for name in TensorRef._fields}
        columns["shape"] = _shared_values(columns["shape"])
        return cls(
            tuple(operator._replace(tensors=()) for operator in operators),
            tuple(len(operator.tensors) for operator in operators),
            {name: column if any(column) or name == "trainable" else column[:1] for name, column in columns.items()},
            of_figures,
            fixed.values,
            of_content,
            written.values,
            heading,
            names_files,
            cut.tensors,
        )

    @property
    def size(self) -> int:
        return len(self.operators) + len(self.figures)

    @property
    def has_statistics_alone(self) -> bool:
        """Whether no tensor has a file, or a checksum that is part of the structure."""
        return not any(self.columns["file"]) and not any(self.written)

    @cached_property
    def without_figures(self) -> tuple[Operator, ...]:
        """The operators, whose tensors have the places of their figures instead of statistics."""
        places: list[Any] = [*map(FiguresAt, range(self.cut))]
        return self.fill(places, (), "", False)

    def fill(
        self, statistics: Sequence[Optional[Statistics]], checksums: Sequence[bytes], folder: str, is_there: bool
    ) -> tuple[Operator, ...]:
        """Return the operators of a file with these figures; their tensors are in `folder`, if it exists."""
        count = len(self.figures)
        columns: dict[str, Any] = {
            name: column if len(column) == count else repeat(column[0], count) for name, column in self.columns.items()
        }
        known = [*statistics, *self.fixed]
        columns["statistics"] = figures = [*map(known.__getitem__, self.figures)]
        if checksums:
            words = [*map(str, checksums, repeat("ascii")), *self.written]
            columns["checksum"] = map(words.__getitem__, self.checksums)
        if any(self.columns["file"]):
            names = [name if is_there or one is None else "" for name, one in zip(self.columns["file"], figures)]
            columns["encoding"] = [word if name else "" for name, word in zip(names, self.columns["encoding"])]
            columns["file"] = [f"{folder}{name}" if name else "" for name in names]
        tensors = map(_tensor, zip(*columns.values()))
        own = [tuple(islice(tensors, one)) for one in self.counts]
        parts = {name: map(attrgetter(name), self.operators) for name in Operator._fields}
        return tuple(map(_operator, zip(*{**parts, "tensors": own}.values())))


class _Numbers:
    """Distinct values, numbered from `start` on."""

    def __init__(self, start: int) -> None:
        self._start, self._known = start, dict[Any, int]()
        self.values: list[Any] = []

    def number(self, value: Any) -> int:
        key = repr(value)  # -0.0 and 0.0 are distinct
        if key not in self._known:
            self._known[key] = self._start + len(self.values)
            self.values.append(value)
        return self._known[key]


def _shared_values(values: Sequence[Any]) -> list[Any]:
    """Return the values with equal ones sharing one object."""
    known: dict[Any, Any] = {}
    return [known.setdefault(value, value) for value in values]


_cache: OrderedDict[bytes, Structure] = OrderedDict()  # by digest, the most recently used at the end


def known_structure(digest: bytes) -> Optional[Structure]:
    """Return the structure of a digest, if an earlier file had it."""
    found = _cache.pop(digest, None)
    if found is not None:
        _cache[digest] = found
    return found


def cache_structure(digest: bytes, structure: Structure) -> None:
    """Keep a structure for the next file; the least recently used structures are dropped."""
    _cache[digest] = structure
    while sum(one.size for one in _cache.values()) > MOST and _cache:
        _cache.popitem(last=False)
