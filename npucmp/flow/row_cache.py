"""Cache of results that depend on one row of the table only, for the duration of a search."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Optional, Sequence, TypeVar

from npucmp.model import Finding

Found = TypeVar("Found")
_UNKNOWN = object()


class RowCache:
    """The results of functions of a row, by its number. The rows are `count` rows from `first` on."""

    __slots__ = ("_count", "_results", "first")

    def __init__(self, first: int, count: int) -> None:
        self.first, self._count = first, count
        self._results: dict[object, list[Any]] = {}

    def __repr__(self) -> str:
        return f"<cache of {self._count} rows>"

    def __eq__(self, other: object) -> bool:
        """Compare the ranges of rows. Results are not part of a finding's identity."""
        return isinstance(other, RowCache) and (self.first, self._count) == (other.first, other._count)

    def __hash__(self) -> int:
        return hash((self.first, self._count))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without results: the cache of a pickled finding is empty."""
        return RowCache, (self.first, self._count)

    def results(self, function: object) -> list[Any]:
        """The results of one function so far."""
        found = self._results.get(function)
        if found is None:
            found = self._results[function] = [_UNKNOWN] * self._count
        return found


def numbered(findings: Sequence[Finding], first: int = 0) -> list[Finding]:
    """Findings with their row numbers, from `first` on, and a shared cache."""
    cache = RowCache(first, len(findings))
    return [one._replace(row=row, cache=cache) for row, one in enumerate(findings, first)]


def of_row(function: Callable[[Finding], Found]) -> Callable[[Finding], Found]:
    """Cache a function of a finding that depends only on its measurement; it is called once for each row of a cache."""

    @wraps(function)
    def found(finding: Finding) -> Found:
        cache: Optional[RowCache] = finding.cache
        if cache is None:
            return function(finding)
        results, at = cache.results(function), finding.row - cache.first
        value = results[at]
        if value is _UNKNOWN:
            value = results[at] = function(finding)
        result: Found = value
        return result

    return found
