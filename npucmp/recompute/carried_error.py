"""Carry the error of a recorded output over to the float64 result of other inputs.

    recorded = rounded result       rounded other result
    a few units of the last place   as many units of the other result
    zero, NaN, Inf                  zero, NaN, Inf in the same place
    any other error                 an error of the same sign and exponent relative to the element or, if that is
                                    small, to its row; its mantissa is drawn, so that it reveals no difference of values

`model` is the float64 result, or what a hypothesis makes of it (torch_hypotheses.py): then only the rest is carried.
"""

from __future__ import annotations

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.model.dtypes import DTYPES, Dtype
from npucmp.recompute.error_budget import round_to
from npucmp.recompute.redacted_values import HALVES, has_mantissa, redraw_floats

FEW_UNITS = 8.0  # of the last place: an error of rounding, which depends on the element alone
RARE = 0.05  # share of elements: more coincide only if the operator saturates


def carried(recorded: Array, model: Array, other: Array, dtype: Dtype, rng: np.random.Generator) -> Array:
    """Return the output of other inputs. All arrays have one shape; floats are float64.

    model, other  the expected results of the original and of the other inputs
    """
    if dtype.kind == "b":
        found: Array = np.asarray(other, bool) ^ (np.asarray(recorded, bool) ^ np.asarray(model, bool))
        return found
    if dtype.kind in "iu":
        return _carried_integers(recorded, model, other)
    if dtype.kind == "c":
        half = DTYPES[HALVES[dtype.name]]
        real = _carried_floats(recorded.real, model.real, other.real, half, rng)
        return real + 1j * _carried_floats(recorded.imag, model.imag, other.imag, half, rng)
    return _carried_floats(recorded, model, other, dtype, rng)


def _carried_integers(recorded: Array, model: Array, other: Array) -> Array:
    """Return integers that differ by as much as the original ones, within their range."""
    if not recorded.size:
        return recorded
    least, most = min(0, int(recorded.min())), max(int(recorded.max()), int(np.max(other)))
    moved = np.asarray(other) + (recorded.astype(np.int64) - np.asarray(model).astype(np.int64))
    wrapped = least + (moved.astype(np.int64) - least) % max(1, most - least + 1)
    return np.where(recorded == model, other, wrapped).astype(recorded.dtype)


def _carried_floats(recorded: Array, model: Array, other: Array, dtype: Dtype, rng: np.random.Generator) -> Array:
    with np.errstate(all="ignore"):
        rounded, others = round_to(model, dtype), round_to(other, dtype)
        same = (recorded == rounded) | (np.isnan(recorded) & np.isnan(rounded))
        unit, own = last_place(rounded, dtype), last_place(others, dtype)
        units = (recorded - rounded) / unit
        is_few = np.abs(units) <= FEW_UNITS
        by_units = others + np.rint(units) * own
        error = np.where(is_few | same | (recorded == 0), 0.0, (recorded - model) * _sizes(other) / _sizes(model))
        by_size = round_to(other + _drawn_error(error, rng), dtype)
        by_size = np.where(np.isfinite(by_size), by_size, np.copysign(dtype.largest, by_size))
        moved = np.where(is_few, by_units, by_size)
        moved = round_to(np.where(moved == others, others + np.sign(recorded - rounded) * own, moved), dtype)
        moved = np.where(recorded == 0, recorded, moved)
        usable = np.isfinite(rounded) & np.isfinite(others) & np.isfinite(moved)
        spare = redraw_floats(recorded, dtype, rng)  # what nothing is known to be relative to
        found = np.where(same, others, np.where(~np.isfinite(recorded), recorded, np.where(usable, moved, spare)))
    found[np.isnan(found)] = np.nan
    return found


def _drawn_error(error: Array, rng: np.random.Generator) -> Array:
    """Return errors with other mantissas and the same rms."""
    drawn = redraw_floats(error, DTYPES["float64"], rng)
    use = np.isfinite(error)
    total = float(np.sqrt(np.mean(np.square(drawn[use])))) if use.any() else 0.0
    found: Array = drawn * (float(np.sqrt(np.mean(np.square(error[use])))) / total if total else 1.0)
    return found


def moved_apart(recorded: Array, drawn: Array, other: Array, dtype: Dtype) -> Array:
    """Return drawn floats, moved by one unit toward `other`, their expected result, where they coincide with the record
    by chance. If more than RARE coincide, the operator saturates, and they stay."""
    same = (recorded == drawn) & has_mantissa(recorded)
    if not same.any() or same.mean() > max(RARE, 1 / same.size):
        return drawn
    with np.errstate(invalid="ignore"):
        side = np.where(other >= drawn, 1.0, -1.0)
    moved = round_to(drawn + side * last_place(drawn, dtype), dtype)
    return np.where(same & np.isfinite(moved), moved, drawn)


def last_place(values: Array, dtype: Dtype) -> Array:
    """Return the distance of the next number of the type."""
    size = np.maximum(np.where(np.isfinite(values), np.abs(values), 1.0), dtype.tiny)
    found: Array = np.ldexp(2 * dtype.round_off, np.frexp(size)[1] - 1)
    return found


def _sizes(values: Array) -> Array:
    """Return the size to which an error is relative: the element, or the rms of its row if that is larger."""
    wide = np.where(np.isfinite(values), np.abs(values), 0.0)
    rows = wide if wide.ndim and wide.shape[-1] > 1 else wide.reshape(1, -1)
    mean = np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True)) if rows.size else rows
    found: Array = np.maximum(rows, np.where(mean > 0, mean, 1.0)).reshape(wide.shape)
    return found
