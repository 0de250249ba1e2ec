"""Find the known function of earlier outputs that makes an input without a dumped producer.

The search tries parts of an output in another order, functions of one output of as many elements (gap_functions.py),
functions of two outputs, and concatenations of outputs. The nearest output comes first. If the same place of other
layers is another function, the gap says so: one of the layers does not match its network.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from npucmp.dump.context import ReadContext
from npucmp.model import Gap, Operator, TensorRef
from npucmp.model.dtypes import numpy_dtype
from npucmp.recompute.data_flow import PART, GapTask
from npucmp.recompute.gap_functions import UNARY, binary_fit, unary_fits
from npucmp.recompute.load_values import READ_ERRORS, read
from npucmp.recompute.permutations import places_in

PAIRS = 12  # outputs that are tried in pairs
LARGEST = 1 << 26  # elements of an input that is searched


def filled(task: GapTask, context: ReadContext) -> Gap:
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
        others = Counter(one.function for one in alike if not _may_be_the_same(gap, one))
        is_odd = bool(others) and others.most_common(1)[0][1] >= len(alike) - sum(others.values())
        words = " and ".join(f"{name} in {count} of {len(alike)}" for name, count in others.most_common(3))
        found.append(gap._replace(differs=words if is_odd else ""))
    return found


def _may_be_the_same(one: Gap, other: Gap) -> bool:
    return bool({one.function, *one.others} & {other.function, *other.others})


def _gap_key(gap: Gap, operators: Mapping[int, Operator]) -> tuple[str, ...]:
    """Return the reader, the writers and their distance from the reader."""
    reader = operators[gap.order]
    writers = [f"{operators[order].kind} {slot} {gap.order - order}" for order, slot in gap.writers]
    shape = next((one.shape for one in reader.tensors if one.slot == gap.slot), ())
    return reader.kind, gap.slot, f"{len(shape)} {shape[-1:]}", *writers
