"""Details of tensors that diverged: worst elements, position of the error, distribution of the values; and the facts
about a suspect for a ticket that its rows lack: its call, and the vendor's statistics of its outputs."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Union

from npucmp.model.dtypes import lookup
from npucmp.model.finding import Pair

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


class ImageBatch(NamedTuple):
    """Small pictures of the first samples of an input: of each run, as bytes of height × width × (red, green, blue).

    names, sizes  of the runs; a size is (width, height) of a picture
    pixels        of each run, the bytes of each sample
    low, high     values that are black and white, the same for all
    largest       largest difference between two runs, None if it is not known
    """

    names: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    pixels: tuple[tuple[bytes, ...], ...]
    low: float
    high: float
    largest: Optional[float] = None
    op: str = ""
    slot: str = ""
    step: Optional[int] = None
    rank: Optional[int] = None


LEAST_SIDE = 16  # pixels of height and width of an image
MOST_RATIO = 8  # of its longer to its shorter side


def image_axes(dtype: str, shape: tuple[int, ...]) -> str:
    """Return "NCHW" or "NHWC" if a tensor of floats or bytes has the shape of images of one or three channels, else
    ""."""
    row = lookup(dtype)
    if row is None or len(shape) != 4 or not shape[0] or not (row.kind == "f" or dtype == "uint8"):
        return ""
    for axes, channels, (height, width) in (("NCHW", (1, 3), shape[2:]), ("NHWC", (3,), shape[1:3])):
        count = shape[1] if axes == "NCHW" else shape[3]
        if (
            count in channels
            and min(height, width) >= LEAST_SIDE
            and max(height, width) <= MOST_RATIO * min(height, width)
        ):
            return axes
    return ""


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


class AscendCriteria(NamedTuple):
    """One output by the vendor's rules for single operators, target against golden.

    dtype        the coarser type of both sides, which selects the limits
    compared     elements that are finite on both sides; `mismatched` are NaN or infinite on one side only
    mere, mare   mean and largest |x - y| / (|y| + 1e-7)
    inside       share of elements within atol + rtol·|y|; `largest` is the largest |x - y|
    small        elements of the golden below the vendor's bound for small values; `small_wrong` of them fail
    mixed, mere_mare   whether it passes the mixed tolerance, and the older rule of mean and largest relative error
    limits       of the type, by name: rtol, atol, most, mean, small, small_error
    """

    slot: str
    dtype: str
    compared: int
    mismatched: int
    mere: float
    mare: float
    inside: float
    largest: float
    small: int
    small_wrong: int
    mixed: bool
    mere_mare: bool
    limits: Mapping[str, float]


class ArgumentDifference(NamedTuple):
    """A non-tensor argument in words, by name; None on a side that lacks it."""

    name: str
    target: Optional[str]
    golden: Optional[str]


class TicketFacts(NamedTuple):
    """An operator that bears error, by its priority, step and rank. `evidence` has its reasons, one sentence each.
    `stack` has the frames of its call, innermost first, from either dump. `unread` lists outputs without statistics by
    the vendor's rules, because they could not be read again or are too large."""

    place: int
    step: Optional[int]
    rank: Optional[int]
    op: str
    evidence: tuple[str, ...] = ()
    arguments: tuple[ArgumentDifference, ...] = ()
    stack: tuple[str, ...] = ()
    vendor: tuple[AscendCriteria, ...] = ()
    unread: tuple[str, ...] = ()


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
