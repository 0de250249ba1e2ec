"""Check large products on a sample: one row and one column of every 16.

The sample has one element of each 16 x 16 tile of a result, for a 256th of the work. It finds a wrong tile, but may
miss a single wrong element: it can prove an operator wrong, but not correct. Gradients of products are products too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array, picked_rows
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import ROUNDING, lookup, numpy_dtype, unit_of
from npucmp.recompute.arguments import CallTooLarge, RefusedRecord, arguments_of, payload_of, read, slots_of
from npucmp.recompute.bound_call import ANOTHER, GRADIENT_DISTANCE
from npucmp.recompute.error_budget import BudgetTally
from npucmp.recompute.noisy_ops import sigma_of
from npucmp.recompute.table import PRODUCTS, row_of
from npucmp.recompute.task import ReplaySettings, Task, kind_of

EVERY = 16  # work: one row or column of every 16 is computed
PASSED = "the record holds the incoming gradient, not the computed gradients"
HEAVY = 2.0**28  # work: a sample is taken above this number of scalar products
LARGE = 1 << 22  # work: a sample is taken if the largest tensor has more elements


class Operand(NamedTuple):
    """A tensor as a batch of matrices; `is_turned`: rows and columns are swapped."""

    tensor: TensorRef
    is_turned: bool = False


class Product(NamedTuple):
    """left @ right + bias for `batch` pairs of matrices; its gradients are products too."""

    left: Operand
    right: Operand
    batch: int
    bias: Optional[TensorRef] = None


def is_large(task: Task) -> bool:
    """Whether a task is a product, or its gradients, large enough for a sample."""
    found = _forward_of(task)
    if found is None:
        return False
    product, out = found
    *_, terms = _matrix(product.left, product.batch)
    sizes = (math.prod(one.shape) for one in (product.left.tensor, product.right.tensor, out))
    return math.prod(out.shape) * float(terms) > HEAVY or max(sizes) > LARGE


def by_sample(task: Task, context: ReadContext, settings: ReplaySettings) -> list[ReplayedOutput]:
    """A row for each result of a large product. Raises RefusedRecord, and the errors of the readers."""
    found = _forward_of(task)
    assert found is not None
    product, out = found
    elements = sum(math.prod(one.shape) for one in (product.left.tensor, product.right.tensor, out))
    if 8 * elements > settings.memory:
        raise CallTooLarge("its tensors alone exceed --limit-memory")
    tensors = {one.slot: one for one in task.operator.tensors}
    if not task.is_backward:
        return [_result_row(task, out, [product], out, context, settings)]
    dy = tensors.get("input:0")
    if dy is None or math.prod(dy.shape) != math.prod(out.shape):
        raise RefusedRecord("no incoming gradient was recorded")
    outputs = [tensors[slot] for slot in slots_of(task.call) if slot in tensors]
    rows = []
    for one in outputs:
        among = [sampled for shapes, sampled in _gradients(product, dy) if one.shape in shapes]
        if among:
            rows.append(_result_row(task, one, among, out, context, settings))
        else:
            is_bias = product.bias is not None and one.shape == product.bias.shape
            rows.append(_bias_row(task, one, dy, context, settings) if is_bias else _passed_row(task, one, context))
    return rows


def _passed_row(task: Task, tensor: TensorRef, context: ReadContext) -> ReplayedOutput:
    """The row of a record that may hold the incoming gradient, as of the view that ends a product."""
    dy = next(one for one in task.operator.tensors if one.slot == "input:0")
    is_equal = math.prod(tensor.shape) == math.prod(dy.shape) and np.array_equal(
        read(tensor, context).ravel(), read(dy, context).ravel()
    )
    if not is_equal:
        return _unknown(task, tensor)
    return ReplayedOutput(
        task.operator.order, tensor.slot, verdict=ReplayVerdict.CLEAN, budget="exact", rms_ratio=0.0, max_ratio=0.0,
        explanation=PASSED,
    )  # fmt: skip


def _bias_row(
    task: Task, tensor: TensorRef, dy: TensorRef, context: ReadContext, settings: ReplaySettings
) -> ReplayedOutput:
    """The row of the gradient of a bias: the incoming gradient, added up over all rows."""
    given = read(dy, context).astype(np.float64).reshape(-1, dy.shape[-1])
    exact, squares = given.sum(0), np.square(given).sum(0)
    dtype = lookup(tensor.dtype)
    if dtype is None or dtype.kind != "f":
        raise RefusedRecord(f"results of the type {tensor.dtype!r:.40} are not supported")
    tally = BudgetTally(dtype, "walk")
    sigma = sigma_of(exact, squares, float(len(given)), 2.0**-53 if dy.dtype == "float64" else 2.0**-24)
    tally.add(read(tensor, context).astype(np.float64).ravel(), exact, sigma)
    limit = max(1.0, settings.known.get((kind_of(task.operator, task.call.prefix), tensor.slot), 1.0)) * settings.scale
    row = tally.row(task.operator.order, tensor.slot, limit)
    is_near = row.rel_l2 is not None and row.rel_l2 <= GRADIENT_DISTANCE
    return row if row.verdict is not ReplayVerdict.GUILTY or is_near else _unknown(task, tensor)


def _unknown(task: Task, one: TensorRef) -> ReplayedOutput:
    words = "it is near no gradient of this call that a sample can compute"
    return ReplayedOutput(task.operator.order, one.slot, ANOTHER, explanation=words)


def _forward_of(task: Task) -> Optional[tuple[Product, TensorRef]]:
    """The product that a forward computes, and its result; None for other calls."""
    operator, call = (task.forward, task.forward_call) if task.is_backward else (task.operator, task.call)
    row = row_of(call) if call is not None else None
    if operator is None or call is None or row is None or row.call.rpartition(".")[2] not in PRODUCTS:
        return None
    tensors = {one.slot: one for one in operator.tensors}
    outputs = [tensors[slot] for slot in slots_of(call) if slot in tensors]
    try:
        args, kwargs = arguments_of(call, row, lambda slot: tensors.get(slot), lambda name: name)
    except RefusedRecord:
        return None
    if len(outputs) != 1 or kwargs or len(args) < 2 or not all(isinstance(one, TensorRef) for one in args[:2]):
        return None
    a, b, out = args[0], args[1], outputs[0]
    is_linear = row.call.endswith("linear")
    if len(a.shape) < 2 or len(b.shape) < 2 or (is_linear and len(b.shape) != 2):
        return None
    batch = 1 if len(b.shape) == 2 else math.prod(b.shape[:-2])
    terms, columns = b.shape[-2:][::-1] if is_linear else b.shape[-2:]
    wanted = (*a.shape[:-1], columns)
    if a.shape[-1] != terms or out.shape != wanted or (batch > 1 and b.shape[:-2] != a.shape[:-2]):
        return None
    bias = args[2] if len(args) > 2 and isinstance(args[2], TensorRef) else None
    if bias is not None and bias.shape != (columns,):
        return None
    return Product(Operand(a), Operand(b, is_linear), batch, bias), out


def _gradients(product: Product, dy: TensorRef) -> list[tuple[list[tuple[int, ...]], Product]]:
    """The gradients of both operands as products, each with the shapes that it may have in a record."""
    a, b, batch = product.left.tensor, product.right.tensor, product.batch
    incoming = Operand(dy)
    first = Product(incoming, Operand(b, not product.right.is_turned), batch)
    shapes = [a.shape, (math.prod(a.shape[:-1]), a.shape[-1])]
    second = Product(Operand(a, True), incoming, batch)
    turned = Product(Operand(dy, True), Operand(a), batch)
    rows = (*b.shape[:-2], b.shape[-1], b.shape[-2])
    if product.right.is_turned:
        return [(shapes, first), ([b.shape], turned), ([rows], second)]
    return [(shapes, first), ([b.shape], second), ([rows], turned)]


def _matrix(one: Operand, batch: int) -> tuple[int, int, int]:
    """The batch, rows and columns of an operand."""
    shape = one.tensor.shape
    columns = shape[-1]
    rows = math.prod(shape) // max(1, batch * columns)
    return (batch, columns, rows) if one.is_turned else (batch, rows, columns)


def _result_row(
    task: Task, tensor: TensorRef, among: list[Product], low: TensorRef, context: ReadContext, settings: ReplaySettings
) -> ReplayedOutput:
    """The row of a result, by the nearest of the possible products."""
    dtype = lookup(tensor.dtype)
    if dtype is None or dtype.kind != "f" or dtype.name == "float64":
        raise RefusedRecord(f"results of the type {tensor.dtype!r:.40} cannot be checked by a sample")
    rows = [_row(task, tensor, one, low, context, settings) for one in among]
    best = min(rows, key=lambda row: row.rel_l2 if row.rel_l2 is not None else math.inf)
    is_open = task.is_backward and (best.rel_l2 is None or not best.rel_l2 <= GRADIENT_DISTANCE)
    return _passed_row(task, tensor, context) if is_open and best.verdict is ReplayVerdict.GUILTY else best


def _row(
    task: Task, tensor: TensorRef, product: Product, low: TensorRef, context: ReadContext, settings: ReplaySettings
) -> ReplayedOutput:
    """The row of a result as one product."""
    batch, rows, terms = _matrix(product.left, product.batch)
    columns = _matrix(product.right, product.batch)[2]
    random = np.random.default_rng(settings.seed)
    across, down = _pick_indices(rows, random), _pick_indices(columns, random)
    treated = _treated(task, product, low)
    left = _picked_lines(product.left, batch, across, None, treated, context)
    right = _picked_lines(product.right, batch, None, down, treated, context)
    recorded = _rows_of(tensor, (batch, rows, columns), across, context)[:, :, down].astype(np.float64)
    exact, squares = np.matmul(left, right), np.matmul(left * left, right * right)
    dtype = lookup(tensor.dtype)
    assert dtype is not None
    found = []
    for name in ("", treated) if product.bias is not None and treated else ("",):
        added = 0.0 if product.bias is None else _rounded(read(product.bias, context)[down].astype(np.float64), name)
        sigma = sigma_of(exact + added, squares + added * added, float(terms), 2.0**-24)
        if treated and dtype.round_off < unit_of(treated):  # of an input that autocast rounded
            sigma = np.hypot(sigma, ROUNDING * unit_of(treated) * np.abs(exact))
        tally = BudgetTally(dtype, "walk")
        tally.add(np.ravel(recorded), np.ravel(exact + added), np.ravel(sigma))
        kind = kind_of(task.operator, task.call.prefix), tensor.slot
        limit = max(1.0, settings.known.get(kind, 1.0)) * settings.scale
        found.append(tally.row(task.operator.order, tensor.slot, limit))
    best = next((one for one in found if one.verdict is ReplayVerdict.CLEAN), found[0])
    at = best.max_abs_index
    if at is not None:
        place, column = divmod(at, down.size)
        part, line = divmod(place, across.size)
        at = int((part * rows + across[line]) * columns + down[column])
    share = f"1/{round(rows * columns / (across.size * down.size))}"
    return best._replace(sampled=share, max_abs_index=at, treated=f"autocast {treated}" if treated else "")


def _pick_indices(size: int, random: np.random.Generator) -> Array:
    """Pick one index at random of every EVERY indices."""
    starts = np.arange(0, size, EVERY)
    return starts + random.integers(0, np.minimum(EVERY, size - starts))


def _picked_lines(
    one: Operand, batch: int, rows: Optional[Array], columns: Optional[Array], name: str, context: ReadContext
) -> Array:
    """The picked rows or columns of an operand, rounded to the type `name`, in float64."""
    shape = (batch, math.prod(one.tensor.shape[:-1]) // batch, one.tensor.shape[-1])
    stored, across = (columns, rows) if one.is_turned else (rows, columns)
    found = (
        read(one.tensor, context).reshape(shape)[:, :, across]
        if stored is None
        else _rows_of(one.tensor, shape, stored, context)
    )
    return _rounded((found.swapaxes(1, 2) if one.is_turned else found).astype(np.float64), name)


def _rows_of(tensor: TensorRef, shape: tuple[int, int, int], rows: Array, context: ReadContext) -> Array:
    """The picked rows of each matrix of a tensor that holds matrices of this shape."""
    numbers = np.add.outer(np.arange(shape[0]) * shape[1], rows)
    picked = picked_rows(payload_of(tensor, context), shape[2], numbers.ravel().tolist(), context)
    return picked.reshape(shape[0], rows.size, shape[2])


def _rounded(values: Array, name: str) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(numpy_dtype(name)).astype(np.float64) if name else values


def _treated(task: Task, product: Product, low: TensorRef) -> str:
    """The 16-bit type to which autocast rounds wider operands, "" if it does not."""
    call = task.forward_call if task.is_backward else task.call
    row = row_of(call) if call is not None else None
    types: list[Any] = [one.tensor.dtype for one in (product.left, product.right)]
    wider = any(0 < unit_of(one) < unit_of(low.dtype) for one in types)
    return low.dtype if row is not None and row.autocast and unit_of(low.dtype) > 2.0**-12 and wider else ""
