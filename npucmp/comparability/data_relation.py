"""Find how one array is related to another: equal, rounded, shuffled, normalised, channels reversed, axes permuted.

Relations are tried in this order; the first match is returned. Reversed channels and permuted axes may be combined with
a normalisation. A relation has far fewer parameters than the elements that it explains, so a match is not chance: a
line has two parameters, lines per channel have two each, and a channel has at least SAMPLES elements.

Thresholds were measured on planted differences of images and tokens. Same: bits. Close: allclose(1e-5, 1e-8) or rel_l2
< 1e-5. Rounded: rel_l2 < 1e-2 (float16 has 2.1e-4). A line leaves < 1e-4, and the golden array itself leaves more.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Iterator, NamedTuple, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.measure.kernel.numpy_kernel import difference, widen
from npucmp.measure.recorded_stats import SUMS_SLACK
from npucmp.model.precheck_result import InputRelation

CLOSE = 1e-5, 1e-8  # rtol, atol
ROUNDED = 1e-2  # rel_l2
FITS = 1e-4  # residual of a line, relative to the deviation of the target
SAMPLES = 16  # fewest elements per channel for a line per channel
COLOURS = (3, 4)  # numbers of channels that may be reversed
CHANNELS = 64  # most channels for a line per channel
STORED = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # coarse types, finest first
SAME_BITS, SAME_STATISTICS = "same bits", "same statistics"
HARMLESS = (SAME_BITS, SAME_STATISTICS, "close")


class LinearRelation(NamedTuple):
    """target = a·golden + b, for all elements or along `axis`; residual: rel_l2 of the remainder."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    residual: float


class ArrayView(NamedTuple):
    """A transformed view of the golden array, with words for the transformation."""

    kind: str
    words: str
    array: Array


def relation(target: Array, golden: Array) -> InputRelation:
    """Return the relation of `target` to `golden`. NaN equals NaN; empty arrays are the same if their shapes are."""
    with np.errstate(all="ignore"):  # dumps may hold signalling NaN, and numbers whose squares are infinite
        return _relation(target, golden)


def _relation(target: Array, golden: Array) -> InputRelation:
    if target.shape == golden.shape:
        found = _of_values(target, golden) or _other_order(target, golden)
        if found is not None:
            return found
    for seen in _other_ways(target, golden):
        found = _of_values(target, seen.array)
        if found is not None and found.kind != "rounded":
            more = f"; and {found.words}" if found.kind == "normalised" else ""
            return found._replace(kind=seen.kind, words=seen.words + more)
    are_ids = target.dtype.kind in "iu" and golden.dtype.kind in "iu" and target.ndim == golden.ndim > 1
    if are_ids and target.shape[:-1] == golden.shape[:-1]:
        return InputRelation("differs", _first_difference(target, golden))
    if target.shape != golden.shape:
        return InputRelation("shape", f"shape {list(target.shape)} against {list(golden.shape)}")
    return InputRelation("differs", _how_far(target, golden), residual=_rel_l2(target, golden))


def _of_values(x: Array, y: Array) -> Optional[InputRelation]:
    """Compare elementwise; None if neither closeness nor a line explains one array by the other."""
    if same_values(x, y):
        return InputRelation(SAME_BITS, "the same values", residual=0.0)
    if x.dtype.kind in "bOSU" or y.dtype.kind in "bOSU":
        return None
    if np.allclose(_wide(x), _wide(y), *CLOSE, equal_nan=True):
        return InputRelation("close", "equal within 1e-5", residual=_rel_l2(x, y))
    error = _rel_l2(x, y)
    if error < CLOSE[0]:
        return InputRelation("close", f"equal within rounding (rel_l2 {error:.1e})", residual=error)
    stored = next((name for name in STORED if _is_stored(x, y, name)), "")
    if stored and error < ROUNDED:
        return InputRelation("rounded", f"the same values, on one side rounded to {stored}", residual=error)
    line = _line(x, y)
    if line is not None and not _is_one(x, y):
        return InputRelation("normalised", f"normalised differently: {in_words(line.a, line.b)}", *line)
    if error < ROUNDED:
        return InputRelation("rounded", f"the same values, rounded on one side (rel_l2 {error:.1e})", residual=error)
    for axis in _channel_axes(x.shape):
        line = _lines(x, y, axis)
        if line is not None:
            return InputRelation("normalised", f"normalised differently per channel: {in_words(line.a, line.b)}", *line)
    return None


def same_values(x: Array, y: Array) -> bool:
    """Whether all elements are equal; NaN equals NaN."""
    if x.shape != y.shape:
        return False
    if x.dtype.kind + y.dtype.kind in ("iu", "ui", "if", "fi", "uf", "fu"):  # float64 would round 64 bits
        a, b = x.ravel(), y.ravel()
        return not np.any(difference(a, b, widen(a), widen(b))[2])
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind in "fc" and y.dtype.kind in "fc"))


def in_words(a: tuple[float, ...], b: tuple[float, ...]) -> str:
    """ "target = 1.429·golden − 0.4286"; for more channels, the first three."""
    lines = [_one_line(slope, shift) for slope, shift in zip(a[:3], b[:3])]
    return f"target = {', '.join(lines)}" + (f" and {len(a) - 3} more" if len(a) > 3 else "")


def _one_line(a: float, b: float) -> str:
    slope = "golden" if abs(a - 1) < 1e-6 else f"{a:.4g}·golden"
    return slope if abs(b) < 1e-6 * max(1.0, abs(a)) else f"{slope} {'−' if b < 0 else '+'} {abs(b):.4g}"


def by_statistics(
    target: tuple[Optional[float], ...], golden: tuple[Optional[float], ...], count: int
) -> InputRelation:
    """The relation by (max, min, mean, norm) of `count` elements each. A line is computed from max and min, and must
    agree with mean and norm."""
    x = [one for one in target if one is not None and math.isfinite(one)]
    y = [one for one in golden if one is not None and math.isfinite(one)]
    if len(x) < 4 or len(y) < 4:
        known = [(a, b) for a, b in zip(target, golden) if a is not None and b is not None]
        if not known:
            return InputRelation("unknown", "the dumps contain no statistics of it")
        same = all(a == b or (a != a and b != b) for a, b in known)
        return (
            InputRelation(SAME_STATISTICS, "the same statistics")
            if same
            else InputRelation("differs", "its statistics differ")
        )
    if x == y:
        return InputRelation(SAME_STATISTICS, "the same max, min, mean and norm")
    scale = math.sqrt(y[3] ** 2 / count) if count else 0.0  # for means near 0: the rounding of their sum
    apart = max(abs(x[2] - y[2]) / (abs(y[2]) + scale or 1.0), abs(x[3] - y[3]) / (y[3] or 1.0))
    if x[:2] == y[:2] and apart < SUMS_SLACK:
        return InputRelation(
            "close", f"the same max and min, mean and norm within rounding ({apart:.1e})", residual=apart
        )
    apart = max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in zip(x, y))
    if apart < CLOSE[0]:
        return InputRelation("close", f"the same statistics within rounding ({apart:.1e})", residual=apart)
    if y[0] > y[1] and x[0] > x[1] and count:
        for high, low in ((x[0], x[1]), (x[1], x[0])):
            a = (high - low) / (y[0] - y[1])
            b = high - a * y[0]
            mean, square = a * y[2] + b, a * a * y[3] ** 2 / count + 2 * a * b * y[2] + b * b
            scale = math.sqrt(x[3] ** 2 / count)
            fits = abs(mean - x[2]) < FITS * scale and abs(math.sqrt(max(square, 0.0)) - scale) < FITS * scale
            if fits and (abs(a - 1) > ROUNDED or abs(b) > ROUNDED * scale):
                words = f"normalised differently, by its statistics: {in_words((a,), (b,))}"
                return InputRelation("normalised", words, (a,), (b,))
    if apart < ROUNDED / 10:
        return InputRelation("rounded", f"nearly the same statistics (up to {apart:.1e} apart)", residual=apart)
    return InputRelation("differs", f"its statistics differ: mean {x[2]:.4g} against {y[2]:.4g}, norm {x[3]:.4g} "
                    f"against {y[3]:.4g}")  # fmt: skip


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _rel_l2(x: Array, y: Array) -> float:
    if x.dtype.kind in "OSU" or x.shape != y.shape:
        return math.nan
    a, b = _wide(x).reshape(-1), _wide(y).reshape(-1)
    known = np.isfinite(a) & np.isfinite(b)
    size = float(np.linalg.norm(b[known]))
    error = float(np.linalg.norm(a[known] - b[known]))
    return error / size if size else (math.inf if error else 0.0)


def _is_stored(x: Array, y: Array, name: str) -> bool:
    """Whether one array equals the other rounded to a type."""
    import ml_dtypes

    if x.dtype.kind != "f" and x.dtype.kind != "V" and y.dtype.kind != "f" and y.dtype.kind != "V":
        return False
    coarse = np.dtype(getattr(ml_dtypes, name)) if name != "float16" else np.dtype(np.float16)
    a, b = _wide(x), _wide(y)
    return same_values(b.astype(coarse).astype(np.float64), a) or same_values(a.astype(coarse).astype(np.float64), b)


def _line(x: Array, y: Array) -> Optional[LinearRelation]:
    """The least-squares line of all elements, if its residual is below FITS."""
    a, b = _wide(x).reshape(-1).real, _wide(y).reshape(-1).real
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < SAMPLES:
        return None
    slope, shift, residual = _fit(a[known], b[known])
    return LinearRelation((slope,), (shift,), residual) if residual < FITS else None


def _is_one(x: Array, y: Array) -> bool:
    """Whether the line is target = golden: the plain difference is below the residual that a line may have."""
    a, b = _wide(x).reshape(-1).real, _wide(y).reshape(-1).real
    known = np.isfinite(a) & np.isfinite(b)
    spread = float(np.linalg.norm(a[known] - a[known].mean()))
    return float(np.linalg.norm(a[known] - b[known])) < FITS * spread


def _lines(x: Array, y: Array, axis: int) -> Optional[LinearRelation]:
    """A line per channel; None if any channel does not fit."""
    a = np.moveaxis(_wide(x).real, axis, 0).reshape(x.shape[axis], -1)
    b = np.moveaxis(_wide(y).real, axis, 0).reshape(y.shape[axis], -1)
    if a.shape[1] < SAMPLES or not 1 < a.shape[0] <= CHANNELS or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    fits = [_fit(one, other) for one, other in zip(a, b)]
    worst = max(residual for _, _, residual in fits)
    if not worst < FITS:
        return None
    return LinearRelation(tuple(one[0] for one in fits), tuple(one[1] for one in fits), worst)


def _fit(x: Array, y: Array) -> tuple[float, float, float]:
    """Slope, shift, and residual relative to the deviation of x; the residual is infinite if either array is
    constant."""
    dx, dy = x - x.mean(), y - y.mean()
    xx, yy = float(dx @ dx), float(dy @ dy)
    if not xx or not yy:
        return math.nan, math.nan, math.inf
    slope = float(dx @ dy) / yy
    left = dx - slope * dy
    return slope, float(x.mean() - slope * y.mean()), math.sqrt(float(left @ left) / xx)


def _channel_axes(shape: tuple[int, ...]) -> list[int]:
    """Axes that may hold the channels of images and the features of tables."""
    return [*dict.fromkeys((1, len(shape) - 1))] if len(shape) > 1 else []


def _other_order(x: Array, y: Array) -> Optional[InputRelation]:
    """The same samples in another order, or partly the same samples."""
    if x.ndim < 1 or len(x) < 2 or x.size < 2 * len(x) or x.dtype != y.dtype:
        return None
    here, there = ([row.tobytes() for row in np.ascontiguousarray(one)] for one in (x, y))
    moved = sum(a != b for a, b in zip(here, there))
    if sorted(here) == sorted(there):
        return InputRelation("shuffled", f"the same {len(x)} samples in another order ({moved} moved)", residual=0.0)
    lacking = sum((Counter(here) - Counter(there)).values())
    if 2 * lacking > len(x) or len({*here}) < 2:
        return None
    words = f"{lacking} of {len(x)} samples are not in the other run"
    if 2 * moved <= len(x):
        words = f"other samples: {moved} of {len(x)}; the rest is equal in place"
    return InputRelation("differs", words, residual=_rel_l2(x, y))


def _other_ways(x: Array, y: Array) -> Iterator[ArrayView]:
    """Transformed views of the golden array: channels reversed, mirrored, axes permuted."""
    if x.shape == y.shape and x.ndim > 2:
        for axis in _channel_axes(y.shape):
            if y.shape[axis] in COLOURS:
                yield _reversed_channels(y, axis)
        for axis in range(1, y.ndim):
            if y.shape[axis] > 1 and y.shape[axis] not in COLOURS:
                yield ArrayView("mirrored", f"mirrored along axis {axis}", np.flip(y, axis))
    if x.ndim == y.ndim and 1 < x.ndim <= 4:
        for order in permutations(range(y.ndim)):
            if order != tuple(range(y.ndim)) and tuple(y.shape[at] for at in order) == x.shape:
                moved = y.transpose(order)
                words = _layout_words(y.shape, order)
                yield ArrayView("layout", words, moved)
                if x.ndim == 4:
                    axis = order.index(1) if y.shape[1] in COLOURS else order.index(3)
                    if moved.shape[axis] in COLOURS:
                        seen = _reversed_channels(moved, axis)
                        yield seen._replace(kind="layout", words=f"{words}, and {seen.words}")


def _reversed_channels(array: Array, axis: int) -> ArrayView:
    """RGB against BGR; an alpha channel stays in place."""
    order = [2, 1, 0, *range(3, array.shape[axis])]
    return ArrayView("channels reversed", "the channels are reversed (RGB against BGR)", array.take(order, axis))


def _layout_words(shape: tuple[int, ...], order: tuple[int, ...]) -> str:
    known: dict[tuple[int, ...], str] = {(0, 2, 3, 1): "NHWC against NCHW", (0, 3, 1, 2): "NCHW against NHWC"}
    name = known.get(order, "")
    return f"its axes are in another order: {name or f'axes {list(order)} of golden'}"


def _how_far(x: Array, y: Array) -> str:
    if x.dtype.kind in "OSU":
        return "it differs"
    differing = int(x.size - np.count_nonzero((x == y) | ((x != x) & (y != y))))
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return f"{differing:,} of {x.size:,} numbers differ"
    error = _rel_l2(x, y)
    return f"{differing:,} of {x.size:,} elements differ (rel_l2 {error:.2g}), and no relation explains it"


def _first_difference(x: Array, y: Array) -> str:
    """The first difference between two arrays of token ids (samples, positions)."""
    a, b = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    width = min(a.shape[1], b.shape[1])
    unequal = a[:, :width] != b[:, :width]
    rows = np.flatnonzero(unequal.any(axis=1))
    if not len(rows):
        return f"equal up to position {width}, then one side ends: truncation or padding"
    first = int(unequal.any(axis=0).argmax())
    row = int(rows[0])
    words = f"{len(rows)} of {len(a)} samples differ"
    pads = _padding(a[row]), _padding(b[row])
    if pads[0] != pads[1]:
        return f"{words}: target pads {pads[0]}, golden {pads[1]}"
    if first:
        return f"{words}, equal up to position {first}: truncation, special tokens or padding"
    return f"{words}, from the first position on: other samples or another tokenizer"


def _padding(row: Array) -> str:
    """The side on which a sample is padded: a run of at least three equal ids."""
    for name, line in (("right", row[::-1]), ("left", row)):
        run = int((line != line[0]).argmax()) if (line != line[0]).any() else len(line)
        if 3 <= run < len(line):
            return f"on the {name} with {int(line[0])}"
    return "nothing"
