"""Find the elements of one tensor in another: views, transposes, slices, rows, halves that are swapped.

Runs of elements along an axis are searched among all runs of the same length of the source, by the sum of their
scrambled bits without the sign. Matches are compared element by element. The shortest run has two elements of 32 bits,
or four of 16: shorter runs match by chance. If there are no runs, elements of 32 bits are searched one by one.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.recompute.data_flow import bits_of, hash_numbers

WINDOW = 8  # elements of a run that are hashed
LARGEST = 1 << 23  # elements of a source
AXES = 5  # axes that may be permuted: 120 orders
TRIES = 4  # runs with the same sum that are tried
FIRST_ELEMENTS = 32  # elements: unless one of them is found, nothing is searched
FEWEST = 4  # elements that are searched one by one, of 32 bits


class Permutation(NamedTuple):
    """The places of the elements of a tensor in a flat source (-1: absent), whether each is negated, their share, and
    whether some of them also lie at other places."""

    places: Any
    negated: Any
    share: float
    ambiguous: bool

    @property
    def words(self) -> str:
        """The operation on the source, in words."""
        known = self.places[self.places >= 0]
        if self.negated.any():
            return "halves, one negated"
        steps = np.diff(known)
        if known.size == 0 or (steps == 1).all():
            return "slice" if self.share == 1 else "part"
        once = np.unique(known).size == known.size
        return ("slice" if (steps > 0).all() else "rearranged") if once else "rows"


def places_in(x: Any, y: Any) -> Optional[Permutation]:
    """Return the places of the elements of x in y, both of one type; None if hardly any is found."""
    if y.size > LARGEST or x.size > LARGEST or x.dtype != y.dtype or not x.size:
        return None
    own, source = bits_of(x), bits_of(y)
    if x.size == y.size and np.array_equal(own, source):
        return Permutation(np.arange(x.size), np.zeros(x.size, bool), 1.0, False)
    transposed = _transposition(own.reshape(x.shape), source.reshape(y.shape)) if x.size == y.size else None
    if transposed is not None:
        return transposed
    top = np.array(1 << (8 * x.dtype.itemsize - 1), own.dtype)
    sample, size = own[:: max(1, own.size // FIRST_ELEMENTS)] & ~top, source & ~top
    if not any((size == one).any() for one in sample):
        return None
    search = _PermutationSearch(source, x.dtype.itemsize)
    best: Optional[Permutation] = None
    for axis in reversed(range(x.ndim)):
        order = np.moveaxis(np.arange(x.size).reshape(x.shape), axis, -1)
        for length in _lengths(x.shape[axis], 2 if x.dtype.itemsize > 2 else 4):
            found = search.runs(own, order.reshape(-1, length))
            if best is None or found.share > best.share:
                best = found
            if best.share == 1:
                return best
    if x.dtype.itemsize > 2 and x.size >= FEWEST and (best is None or best.share < 0.5):
        single = search.runs(own, np.arange(x.size).reshape(-1, 1))
        if single.share >= 0.5:
            return single
    return best if best is not None and best.share > 0 else None


def _transposition(own: Any, source: Any) -> Optional[Permutation]:
    """Return the places if only axes were permuted, before or after a change of shape; else None."""
    places = np.arange(own.size)
    found: list[Any] = []
    for axes in permutations(range(own.ndim)) if own.ndim <= AXES else ():
        if _equal(own.transpose(axes), source):
            back = np.empty_like(places)
            back[places.reshape(own.shape).transpose(axes).reshape(-1)] = places
            found.append(back)
    for axes in permutations(range(source.ndim)) if source.ndim <= AXES else ():
        if _equal(source.transpose(axes), own):
            found.append(places.reshape(source.shape).transpose(axes).reshape(-1))
    if not found:
        return None
    ambiguous = any(not np.array_equal(one, found[0]) for one in found)
    return Permutation(found[0], np.zeros(own.size, bool), 1.0, ambiguous)


def _equal(a: Any, b: Any) -> bool:
    """Return whether arrays are equal when flat. A few elements are compared first."""
    step = max(1, a.size // FIRST_ELEMENTS)
    return np.array_equal(a.flat[::step], b.flat[::step]) and np.array_equal(a.reshape(-1), b.reshape(-1))


def _lengths(size: int, least: int) -> Iterator[int]:
    """Yield the lengths of runs that an axis is cut into."""
    yield from (size // parts for parts in range(1, size // least + 1) if size % parts == 0)


class _PermutationSearch:
    """A search for runs in a flat source."""

    def __init__(self, source: Any, width: int) -> None:
        self._top = np.array(1 << (8 * width - 1), source.dtype)
        self._source, self._size = source, source & ~self._top
        self._sums: dict[int, tuple[Any, Any]] = {}

    def runs(self, own: Any, order: Any) -> Permutation:
        """Return the places of runs. order: flat places of x, a run per row."""
        length = order.shape[1]
        window = min(length, WINDOW)
        places, negated = np.full(own.size, -1), np.zeros(own.size, bool)
        ambiguous = False
        if self._source.size >= length:
            sums, at = self._of(window)
            first = _sum(hash_numbers((own & ~self._top)[order[:, :window]].T), window)
            left, right = np.searchsorted(sums, first, "left"), np.searchsorted(sums, first, "right")
            ambiguous = bool((right - left > 1).any())
            turn = _turns(first)  # the second of equal runs matches the second in the source
            for attempt in range(TRIES):
                rows = np.flatnonzero((right > left) & (places[order[:, 0]] < 0))
                if not rows.size or (attempt and not (right - left > attempt).any()):
                    break
                start = at[left[rows] + (turn[rows] + attempt) % (right - left)[rows]]
                fits = start + length <= self._source.size
                rows, start = rows[fits], start[fits]
                theirs, mine = self._source[start[:, None] + np.arange(length)], own[order[rows]]
                same, other = (theirs == mine).all(-1), ((theirs ^ self._top) == mine).all(-1)
                good = same | other
                done = order[rows[good]]
                places[done] = start[good][:, None] + np.arange(length)
                negated[done] = ~same[good][:, None]
        share = float((places >= 0).mean())
        return Permutation(places, negated, share, ambiguous)

    def _of(self, window: int) -> tuple[Any, Any]:
        if window not in self._sums:
            mixed = hash_numbers(self._size)
            count = mixed.size - window + 1
            sums = _sum([mixed[step : step + count] for step in range(window)], window)
            at = np.argsort(sums, kind="stable")
            self._sums[window] = sums[at], at
        return self._sums[window]


def _turns(keys: Any) -> Any:
    """Return how many equal keys precede each key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, ordered.size))
    found = np.empty(keys.size, np.int64)
    found[order] = np.arange(keys.size) - np.repeat(starts, lengths)
    return found


def _sum(parts: Any, window: int) -> Any:
    """Return a sum whose weights depend on the place."""
    total = np.zeros_like(parts[0])
    with np.errstate(over="ignore"):
        for step in range(window):
            total = total * np.uint64(0xD6E8FEB86659FD93) + parts[step]
    return total
