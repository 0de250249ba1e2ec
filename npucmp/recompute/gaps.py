"""An input that no dumped operator wrote: which known function is it of which earlier outputs?

Looked for are parts of an output in another order, functions of one output of as many elements (gap_functions.py),
of two, and outputs that lie side by side. The nearest output comes first. Where the same place of other layers is
another function, that is told: one of them is not what its network says.
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

PAIRS = 12  # outputs that are tried two by two
LARGEST = 1 << 26  # elements of an input that is looked at


def filled(task: GapTask, context: ReadContext) -> Gap:
    """What makes the input of the outputs; without a function if nothing known does."""
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
    """Of two outputs of its size, or of outputs that lie side by side."""
    for (one, a), (other, b) in combinations(alike[:PAIRS], 2):
        fit = binary_fit(flat, a, b, task.tensor.dtype) or binary_fit(flat, b, a, task.tensor.dtype)
        if fit is not None:
            turned = binary_fit(flat, a, b, task.tensor.dtype) is None
            writers = (other, one) if turned else (one, other)
            return gap._replace(writers=writers, function=fit.name, ratio=fit.ratio, equal=fit.equal)
    covered, chosen = np.zeros(flat.size, bool), []
    for writer, found in parts:
        here = found.places >= 0
        if not (here & covered).any():
            covered |= here
            chosen.append(writer)
    if covered.mean() >= 0.5:
        name = "side by side" if covered.all() else PART
        if name == PART and _is_of_all(flat, covered, task.tensor.shape):
            name = "beside what all rows share"
        return gap._replace(writers=tuple(chosen), function=name, ratio=0.0, equal=True)
    return gap


def _is_of_all(flat: Any, covered: Any, shape: tuple[int, ...]) -> bool:
    """Whether what is not covered is the same in each row of the batch: a parameter, nothing that was computed."""
    if len(shape) < 2 or shape[0] < 2:
        return False
    rows = np.where(covered, 0.0, flat).reshape(shape[0], -1)
    return bool((rows == rows[0]).all())


def cast(y: Any, tensor: TensorRef) -> Any:
    """In the type of another tensor."""
    with np.errstate(over="ignore"):
        return y.astype(numpy_dtype(tensor.dtype))


def _read(tensor: TensorRef, context: ReadContext) -> Optional[Any]:
    try:
        return read(tensor, context)
    except READ_ERRORS:  # its operator has a row that says so
        return None


def with_peers(gaps: Sequence[Gap], operators: Mapping[int, Operator]) -> list[Gap]:
    """Each gap with what the same place is in other layers, where that is another function in as many or more."""
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
    """Who reads it, who wrote what it follows from, and how far that lies back."""
    reader = operators[gap.order]
    writers = [f"{operators[order].kind} {slot} {gap.order - order}" for order, slot in gap.writers]
    shape = next((one.shape for one in reader.tensors if one.slot == gap.slot), ())
    return reader.kind, gap.slot, f"{len(shape)} {shape[-1:]}", *writers
