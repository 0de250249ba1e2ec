"""Find the known function of earlier outputs that makes an input without a dumped producer.

The search tries parts of an output in another order, functions of one output of as many elements,
functions of two outputs, and concatenations of outputs. The nearest output comes first. If the same place of other
layers is another function, the gap says so: one of the layers does not match its network.

Each known function of one or two earlier outputs, which code outside the dump may have applied, is written once for
numpy and torch (`m` is either). An input is compared with each function in float64. It may differ by its own rounding,
and by the effect of one rounding of the argument.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import combinations
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.model import Gap, Operator, TensorRef
from npucmp.model.dtypes import lookup, numpy_dtype, unit_of
from npucmp.recompute.arguments import READ_ERRORS, read
from npucmp.recompute.data_flow import PART, GapTask
from npucmp.recompute.permutations import places_in

SAMPLE = 1 << 14  # elements that are compared with a function
CANCELS = ("gelu", "silu", "elu", "mish", "softplus")  # a result near 0 is a difference of larger numbers
SAMPLE_ELEMENTS = 64  # elements that all functions are first tried on
MOST = 3.0  # rms of the error over that of the expected error; a single element may have twelve times that
ROUNDED = 2.0**-10  # relative error up to which a constant counts as a short decimal


class Numpy:
    """numpy's functions under torch's names."""

    exp, tanh, sqrt, where, abs, log1p, sin, cos, log = (
        np.exp, np.tanh, np.sqrt, np.where, np.abs, np.log1p, np.sin, np.cos, np.log,
    )  # fmt: skip

    @staticmethod
    def erf(x: Any) -> Any:
        return np.reshape([math.erf(one) for one in np.ravel(x)], np.shape(x))


def _sigmoid(m: Any, x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


UNARY: dict[str, Callable[[Any, Any], Any]] = {  # the simplest first, for equal fits
    "cast": lambda m, x: 1 * x,
    "gelu (erf)": lambda m, x: 0.5 * x * (1 + m.erf(x * math.sqrt(0.5))),
    "gelu (tanh)": lambda m, x: 0.5 * x * (1 + m.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "gelu (sigmoid 1.702)": lambda m, x: x * _sigmoid(m, 1.702 * x),
    "silu": lambda m, x: x * _sigmoid(m, x),
    "relu": lambda m, x: m.where(x > 0, x, 0 * x),
    "relu squared": lambda m, x: m.where(x > 0, x, 0 * x) ** 2,
    "leaky relu 0.01": lambda m, x: m.where(x > 0, x, 0.01 * x),
    "leaky relu 0.1": lambda m, x: m.where(x > 0, x, 0.1 * x),
    "leaky relu 0.2": lambda m, x: m.where(x > 0, x, 0.2 * x),
    "elu": lambda m, x: m.where(x > 0, x, m.exp(m.where(x > 0, 0 * x, x)) - 1),
    "mish": lambda m, x: x * m.tanh(m.log1p(m.exp(x))),
    "softplus": lambda m, x: m.log1p(m.exp(x)),
    "hardswish": lambda m, x: m.where(x > 3, x, m.where(x < -3, 0 * x, x * (x + 3) / 6)),
    "sigmoid": _sigmoid,
    "tanh": lambda m, x: m.tanh(x),
    "exp": lambda m, x: m.exp(x),
    "log": lambda m, x: m.log(x),
    "sqrt": lambda m, x: m.sqrt(x),
    "rsqrt": lambda m, x: 1 / m.sqrt(x),
    "square": lambda m, x: x * x,
    "reciprocal": lambda m, x: 1 / x,
    "negative": lambda m, x: -x,
    "abs": lambda m, x: m.abs(x),
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(x),
    "1 - x": lambda m, x: 1 - x,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
}
SCALE = "scaled by "


class FunctionFit(NamedTuple):
    """A function that an input may be. ratio: rms of the error over rms of the expected error; equal: every element
    that was compared is correctly rounded."""

    name: str
    ratio: float
    equal: bool


def applied(name: str, m: Any, sources: list[Any]) -> Any:
    """Return the function of this name, of float64 values."""
    if name.startswith(SCALE):
        return sources[0] * float(name[len(SCALE) :])
    return BINARY[name](*sources) if name in BINARY else UNARY[name](m, sources[0])


def unary_fits(x: Any, y: Any, dtype: str) -> list[FunctionFit]:
    """Return the functions of y that fit x, the best first. Both are flat float64; `dtype` is the type of x."""
    few, at = _sample_places(x.size, SAMPLE_ELEMENTS), _sample_places(x.size)
    names = [name for name in UNARY if _fit(name, x[few], [y[few]], dtype) is not None]
    x, y = x[at], y[at]
    found = [fit for name in names if (fit := _fit(name, x, [y], dtype)) is not None]
    if not found and (name := _scale(x, y)) and (fit := _fit(name, x, [y], dtype)) is not None:
        found.append(fit)
    return sorted(found, key=lambda one: (not one.equal, 0.0 if one.equal else round(one.ratio, 3)))


def binary_fit(x: Any, a: Any, b: Any, dtype: str) -> Optional[FunctionFit]:
    """Return the function of a and b that fits x; None if none does."""
    few = _sample_places(x.size, SAMPLE_ELEMENTS)
    unit = unit_of(dtype)
    for name, function in BINARY.items():
        with np.errstate(all="ignore"):
            away = np.abs(function(a[few], b[few]) - x[few])
        if (away <= 16 * unit * (np.abs(x[few]) + np.abs(a[few]) + np.abs(b[few]))).all():
            at = _sample_places(x.size)
            fit = _fit(name, x[at], [a[at], b[at]], dtype)
            if fit is not None:
                return fit
    return None


def _fit(name: str, x: Any, sources: list[Any], dtype: str) -> Optional[FunctionFit]:
    unit = unit_of(dtype)
    row = lookup(dtype)
    with np.errstate(all="ignore"):
        exact = applied(name, Numpy, sources)
        use = np.isfinite(exact) & np.isfinite(x)
        if not use.all() and (np.isfinite(exact) != np.isfinite(x)).any():
            return None
        if not use.any():
            return None
        moved = applied(name, Numpy, [one * (1 + unit) for one in sources])
        due = (
            unit * np.abs(exact)
            + np.abs(moved - exact)
            + (unit * np.abs(sources[0]) if name.startswith(CANCELS) else 0.0)
        )
        error, due = np.abs(x - exact)[use], due[use] + (row.tiny if row is not None else 0.0)
        ratio = float(np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(due**2)))
        if not ratio <= MOST or (error > 12 * MOST * due).any():
            return None
    return FunctionFit(name, ratio, _equal(x[use], exact[use], dtype))


def _equal(x: Any, exact: Any, dtype: str) -> bool:
    from npucmp.recompute.error_budget import round_to

    row = lookup(dtype)
    return row is not None and bool(np.array_equal(round_to(exact, row), x))


def _scale(x: Any, y: Any) -> str:
    """Return the name of the constant factor between x and y, as a short decimal if that is near; "" if there is
    none."""
    use = np.isfinite(x) & np.isfinite(y) & (y != 0) & (x != 0)
    if use.sum() < 8:
        return ""
    x, y = x[use], y[use]
    factor = float(np.dot(x, y) / np.dot(y, y))
    if not math.isfinite(factor) or factor == 0:
        return ""
    short = float(f"{factor:.4g}")
    spread = float(np.std(x / y) / abs(factor)) / math.sqrt(x.size)
    return f"{SCALE}{short if abs(short / factor - 1) <= max(4 * spread, 1e-12) else factor!r}"


def _sample_places(size: int, most: int = SAMPLE) -> Any:
    """Return places spread over a flat tensor."""
    return np.unique(np.linspace(0, max(size - 1, 0), min(size, most)).astype(np.int64))


PAIRS = 12  # outputs that are tried in pairs
LARGEST = 1 << 26  # elements of an input that is searched


def fill_gap(task: GapTask, context: ReadContext) -> Gap:
    """Return the gap with the function that makes the input from the outputs; without a function if none fits."""
    gap = Gap(task.order, task.tensor.slot)
    if int(np.prod(task.tensor.shape)) > LARGEST:
        return gap
    x = read(task.tensor, context)
    flat = x.reshape(-1).astype(np.float64)
    if not np.isfinite(flat).any():
        return gap
    alike: list[tuple[tuple[int, str], Any]] = []
    parts: list[tuple[tuple[int, str], Any]] = []
    for order, tensor in task.sources:
        writer = order, tensor.slot
        y = _read(tensor, context)
        if y is None:
            continue
        if y.size == x.size:
            own = y.reshape(-1).astype(np.float64)
            fits = unary_fits(flat, own, task.tensor.dtype)
            if fits:
                best, *others = fits
                names = tuple(one.name for one in others if not best.equal or one.equal)
                return gap._replace(writers=(writer,), function=best.name, ratio=best.ratio, equal=best.equal,
                                    others=names)  # fmt: skip
            alike.append((writer, own))
        found = places_in(x, cast(y, task.tensor))
        if found is not None and found.share == 1:
            return gap._replace(writers=(writer,), function=found.words, ratio=0.0, equal=True)
        if found is not None and found.share > 0.1:
            parts.append((writer, found))
    return _of_several(gap, task, flat, alike, parts)


def _of_several(
    gap: Gap,
    task: GapTask,
    flat: Any,
    alike: Sequence[tuple[tuple[int, str], Any]],
    parts: Sequence[tuple[tuple[int, str], Any]],
) -> Gap:
    """Return the gap as a function of two outputs of its size, or as a concatenation of outputs."""
    for (one, a), (other, b) in combinations(alike[:PAIRS], 2):
        fit = binary_fit(flat, a, b, task.tensor.dtype) or binary_fit(flat, b, a, task.tensor.dtype)
        if fit is not None:
            is_swapped = binary_fit(flat, a, b, task.tensor.dtype) is None
            writers = (other, one) if is_swapped else (one, other)
            return gap._replace(writers=writers, function=fit.name, ratio=fit.ratio, equal=fit.equal)
    covered, chosen = np.zeros(flat.size, bool), []
    for writer, found in parts:
        here = found.places >= 0
        if not (here & covered).any():
            covered |= here
            chosen.append(writer)
    if covered.mean() >= 0.5:
        name = "concatenation" if covered.all() else PART
        if name == PART and _is_of_all(flat, covered, task.tensor.shape):
            name = "concatenation with a shared tensor"
        return gap._replace(writers=tuple(chosen), function=name, ratio=0.0, equal=True)
    return gap


def _is_of_all(flat: Any, covered: Any, shape: tuple[int, ...]) -> bool:
    """Return whether the uncovered elements are the same in each row of the batch: they are a parameter, not
    computed."""
    if len(shape) < 2 or shape[0] < 2:
        return False
    rows = np.where(covered, 0.0, flat).reshape(shape[0], -1)
    return bool((rows == rows[0]).all())


def cast(y: Any, tensor: TensorRef) -> Any:
    """Return y in the type of another tensor."""
    with np.errstate(over="ignore"):
        return y.astype(numpy_dtype(tensor.dtype))


def _read(tensor: TensorRef, context: ReadContext) -> Optional[Any]:
    try:
        return read(tensor, context)
    except READ_ERRORS:  # the row of its operator has the error
        return None


def with_peers(gaps: Sequence[Gap], operators: Mapping[int, Operator]) -> list[Gap]:
    """Return each gap with the other functions at the same place of other layers, if they are as frequent or more."""
    kinds: dict[tuple[str, ...], list[Gap]] = defaultdict(list)
    for gap in gaps:
        if gap.function in UNARY:
            kinds[_gap_key(gap, operators)].append(gap)
    found = []
    for gap in gaps:
        alike = kinds[_gap_key(gap, operators)] if gap.function in UNARY else []
        others = Counter(
            one.function for one in alike if {gap.function, *gap.others}.isdisjoint((one.function, *one.others))
        )
        is_odd = bool(others) and others.most_common(1)[0][1] >= len(alike) - sum(others.values())
        words = " and ".join(f"{name} in {count} of {len(alike)}" for name, count in others.most_common(3))
        found.append(gap._replace(differs=words if is_odd else ""))
    return found


def _gap_key(gap: Gap, operators: Mapping[int, Operator]) -> tuple[str, ...]:
    """Return the reader, the writers and their distance from the reader."""
    reader = operators[gap.order]
    writers = [f"{operators[order].kind} {slot} {gap.order - order}" for order, slot in gap.writers]
    shape = next((one.shape for one in reader.tensors if one.slot == gap.slot), ())
    return reader.kind, gap.slot, f"{len(shape)} {shape[-1:]}", *writers
