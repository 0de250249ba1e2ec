"""Rows whose error one of unknown size explains, and the operators that propagate such an error, as numbers of rows.

Verdicts of these rows are written into columns at once. Roots are made on request.
"""

from __future__ import annotations

import math
from typing import Collection, Iterable, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.localise.evidence import differing_reason, row_reason
from npucmp.model import Cause, Finding, Pair, Root, Verdict
from npucmp.model.table import VERDICT_NUMBERS, Columns

RULE = "growth"  # an operator may enlarge an error of any size
_ROW = 2  # numbers: definition: of a row: itself and its kind
_OPERATOR = 4  # numbers: definition: of an operator: its clock and three rows
WORDS = "", "the errors of its inputs", "upstream errors"  # what explains it, by kind
DESCENDS, WRITTEN, READ = range(len(WORDS))
_Rows = npt.NDArray[np.int64]


class ExplainedRows(NamedTuple):
    """The result of one rank.

    rows        rows from 0 on, each with a kind: its error DESCENDS from a root, or that of an output (WRITTEN) or
                input (READ) is excused
    propagated  operators: clock, first row, the rows of the output and of the input that differ
    """

    rows: _Rows = np.zeros((0, _ROW), np.int64)
    propagated: _Rows = np.zeros((0, _OPERATOR), np.int64)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int]], propagated: Iterable[tuple[int, ...]]) -> ExplainedRows:
        every, operators = (np.array([*found], np.int64) for found in (rows, propagated))
        return cls(every.reshape(-1, _ROW), operators.reshape(-1, _OPERATOR))

    def in_columns(self, columns: Columns) -> Columns:
        """Return columns with the verdicts of these rows."""
        if not len(self.rows):
            return columns
        rows, numbers = columns.rows.copy(), {word: number for number, word in enumerate(columns.words)}
        at, kinds = self.rows.T
        rows["explained_by"][at], rows["explained_limit"][at] = numbers.setdefault(RULE, len(numbers)), math.inf
        rows["verdict"][at[kinds != DESCENDS]] = VERDICT_NUMBERS[Verdict.UNKNOWN]
        for kind in (WRITTEN, READ):
            own = at[kinds == kind]
            different, places = np.unique(rows["because"][own], return_inverse=True)
            words = [with_reason(columns.words[number], WORDS[kind]) for number in different.tolist()]
            made = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int32)
            rows["because"][own] = made[places] if len(own) else 0
        return columns._replace(rows=rows, words=[*numbers])

    def without(self, clocks: Collection[int]) -> ExplainedRows:
        """Return the same without the operators of these clocks."""
        return self._replace(propagated=self.propagated[~np.isin(self.propagated[:, 0], [*clocks])])

    def roots(self, places: Sequence[int], pairs: Sequence[Pair], columns: Columns, bare: Sequence[Pair]) -> list[Root]:
        """Return the roots of operators that propagate an error, with these places and pairs. `columns` have the
        verdicts before the search, `bare` are the pairs of all rows."""
        rows, words, found = columns.rows, columns.words, []
        because, metric, bound, limit = (rows[name].tolist() for name in ("because", "metric", "bound", "limit"))
        for place, pair, (_, _, wrote, read) in zip(places, pairs, self.propagated.tolist()):
            own, reads = bare[wrote], differing_reason(bare[wrote], bare[read], math.inf, words[because[read]])
            errors, reasons = (
                (bound[wrote], limit[wrote], math.inf, math.inf),
                (reads, row_reason(own, words[because[wrote]])),
            )
            found.append(Root(place, pair, Cause.PROPAGATED, own.slot, words[metric[wrote]], *errors, reasons, RULE))
        return found


def explained(finding: Finding, kind: int) -> Finding:
    """Return the finding of such a row."""
    found = finding._replace(explained_by=RULE, explained_limit=math.inf)
    because = with_reason(finding.because, WORDS[kind])
    return found if kind == DESCENDS else found._replace(verdict=Verdict.UNKNOWN, because=because)


def with_reason(because: str, words: str) -> str:
    """Return the words of a verdict with the reason why the error is explained."""
    return f"{because}; explained by {words}"
