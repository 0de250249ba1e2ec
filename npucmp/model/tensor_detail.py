"""Details from the values of tensors: worst elements, position of the error, distribution of the values."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from npucmp.model.finding import Pair
from npucmp.model.ticket_facts import AscendCriteria

Number = Union[int, float, complex]


class DifferenceMap(NamedTuple):
    """The position of differences between two tensors, as a picture: the last axis across, all other axes down.

    rows, columns  of the tensor in this form
    across         cells in a line of the picture
    counts         of differing elements, cell by cell, line by line
    bits           of elements that differ in a bit, bit by bit from the highest; () if the types have no common
                   bits. Beyond several millions, further elements do not count here
    """

    dtype: str
    rows: int
    columns: int
    across: int
    counts: tuple[int, ...]
    bits: tuple[int, ...] = ()


class Histogram(NamedTuple):
    """Counts of values in equal parts of the range low to high; () if nothing is finite."""

    low: float
    high: float
    counts: tuple[int, ...] = ()


class WorstElement(NamedTuple):
    """One element: its index in C order, both values, and its errors as in `max_abs_err` and `max_rel_err`; inf if only
    one side is NaN or Inf, or both are but differ in kind."""

    at: int
    target: Number
    golden: Number
    abs_err: float
    rel_err: float


class TensorPreview(NamedTuple):
    """A preview of the values of one tensor: their distribution; the largest and the smallest with their indices in C
    order; corners as (name, rows), with None for omitted elements; and the requested elements."""

    values: Histogram
    largest: tuple[tuple[int, Number], ...]
    smallest: tuple[tuple[int, Number], ...]
    zeros: int
    corners: tuple[tuple[str, tuple[tuple[Optional[Number], ...], ...]], ...]
    elements: tuple[tuple[int, Number], ...] = ()


class TensorDetail(NamedTuple):
    """Details of one tensor.

    run      number of its comparison, from 0, with step and rank
    place    priority of the root that its operator is, and its cause; 0 and "" if it is not one
    worst    by |target - golden|, the largest first; equal ones in the order of the tensor
    bar      the picture counts elements with a larger error: about the root mean square of all errors
    values   of target and golden, over the same range; magnitudes for complex numbers
    errors   of target - golden; |target - golden| for complex numbers
    vendor   statistics of a suspect's output by the vendor's rules, if there are any
    """

    pair: Pair
    worst: tuple[WorstElement, ...]
    bar: float
    picture: DifferenceMap
    values: tuple[Histogram, Histogram]
    errors: Histogram
    run: int = 0
    step: Optional[int] = None
    rank: Optional[int] = None
    place: int = 0
    cause: str = ""
    vendor: Optional[AscendCriteria] = None
