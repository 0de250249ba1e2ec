"""What a look at values tells: of a tensor that diverged its worst elements, where the error lies, how values lie."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from npucmp.model.accused import Vendor
from npucmp.model.pair import Pair

Number = Union[int, float, complex]


class DifferenceMap(NamedTuple):
    """Where two tensors differ, as a picture: the last axis across, all others down.

    rows, columns  of the tensor so cut
    across         cells in a line of the picture
    counts         of elements that differ, cell by cell, line by line
    bits           of elements that differ in a bit, bit by bit from the highest; () where types have no common bits.
                   Of several millions only the first count here
    """

    dtype: str
    rows: int
    columns: int
    across: int
    counts: tuple[int, ...]
    bits: tuple[int, ...] = ()


class Histogram(NamedTuple):
    """How many values lie in each of some equal parts of low to high; () where nothing is finite."""

    low: float
    high: float
    counts: tuple[int, ...] = ()


class Worst(NamedTuple):
    """One element: its place in C order, both values, and its errors as `max_abs_err` and `max_rel_err` take them; inf
    where one side alone is NaN or Inf, or both differently so."""

    at: int
    target: Number
    golden: Number
    abs_err: float
    rel_err: float


class Peek(NamedTuple):
    """What the values of one tensor are: how they spread, the first of the largest and of the smallest, with their
    places in C order; corners, as (name, rows), None for what is left out; elements that were asked for."""

    values: Histogram
    largest: tuple[tuple[int, Number], ...]
    smallest: tuple[tuple[int, Number], ...]
    zeros: int
    corners: tuple[tuple[str, tuple[tuple[Optional[Number], ...], ...]], ...]
    asked: tuple[tuple[int, Number], ...] = ()


class Look(NamedTuple):
    """One tensor.

    run      number of its comparison, from 0, and that one's step and rank
    place    of the root that its operator is, and its cause; 0 and "" if it is none
    worst    by |target - golden|, the largest first; of equal ones the first in the tensor
    bar      the picture counts elements whose error is above it: about the root mean square of all errors
    values   of target and golden, over the same range; of complex numbers the magnitudes
    errors   of target - golden; of complex numbers |target - golden|
    vendor   of an output of a suspect its figures by the vendor's rules, if there are any
    """

    pair: Pair
    worst: tuple[Worst, ...]
    bar: float
    picture: DifferenceMap
    values: tuple[Histogram, Histogram]
    errors: Histogram
    run: int = 0
    step: Optional[int] = None
    rank: Optional[int] = None
    place: int = 0
    cause: str = ""
    vendor: Optional[Vendor] = None
