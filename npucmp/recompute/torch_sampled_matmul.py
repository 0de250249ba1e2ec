"""Check large products on a stratified sample: one row and one column of every 16, so one element of each 16 x 16 tile,
for a 256th of the work. The sample finds a wrong tile, but may miss a single wrong element. Only child processes
import this."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from npucmp.dump.limits import ReadContext
from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.recompute import rounding_noise
from npucmp.recompute.arguments import arguments_of, read, slots_of
from npucmp.recompute.error_budget import BudgetTally
from npucmp.recompute.table import CallRow
from npucmp.recompute.task import ReplaySettings, Task
from npucmp.recompute.torch_bind_call import ANY, DTYPES, load, require, widen_values
from npucmp.recompute.torch_blocks import RowSplit, TensorRows
from npucmp.recompute.torch_results import numpy_of

HEAVY = 2e9  # multiplications and additions: larger products are sampled
EVERY = 16
PRODUCTS = frozenset("linear matmul mm bmm __matmul__".split())


class SampledProduct(NamedTuple):
    """a @ b, or a @ b.T + bias for a weight stored by rows. Both have the same batch dimensions before the last two."""

    a: TensorRef
    b: TensorRef
    bias: Optional[TensorRef]
    out: TensorRef
    is_weight: bool


def product_of(task: Task, row: CallRow) -> Optional[SampledProduct]:
    """The large product of a task; None for other calls and small products."""
    name = row.call.rpartition(".")[2]
    tensors = {one.slot: one for one in task.operator.tensors}
    outputs = [tensors[slot] for slot in slots_of(task.call) if slot in tensors]
    if name not in PRODUCTS or len(outputs) != 1:
        return None
    args, kwargs = arguments_of(task.call, row, lambda slot: tensors.get(slot), lambda name: name)
    if kwargs or len(args) < 2 or not all(isinstance(one, TensorRef) for one in args[:2]):
        return None
    a, b, out = args[0], args[1], outputs[0]
    bias = args[2] if len(args) > 2 and isinstance(args[2], TensorRef) else None
    if len(a.shape) < 2 or len(b.shape) < 2 or 2.0 * math.prod(out.shape) * a.shape[-1] < HEAVY:
        return None
    if len(b.shape) != 2 and b.shape[:-2] != out.shape[:-2]:
        return None
    if a.shape[:-1] != out.shape[:-1] or (bias is not None and bias.shape != out.shape[-1:]):
        return None
    return SampledProduct(a, b, bias, out, name == "linear")


def by_sample(
    task: Task, row: CallRow, product: SampledProduct, context: ReadContext, settings: ReplaySettings
) -> Optional[list[ReplayedOutput]]:
    """The row of replay.csv; None for types that a sample does not support."""
    dtype = lookup(product.out.dtype)
    if dtype is None or dtype.kind != "f" or dtype.name == "float64":
        return None
    require(task.operator, task.call, row, ANY)
    random = np.random.default_rng(settings.seed)
    batch = product.out.shape[:-2] if len(product.b.shape) != 2 else ()
    rows, columns = math.prod(product.out.shape[len(batch) : -1]), product.out.shape[-1]
    across, down = _pick_indices(rows, random), _pick_indices(columns, random)
    places = [(at * rows + int(one), at * rows + int(one) + 1) for at in range(math.prod(batch)) for one in across]
    a, out = (
        TensorRows(one, RowSplit(len(one.shape) - 1, rows * math.prod(batch), frozenset()), context).take(places)
        for one in (product.a, product.out)
    )
    wide = widen_values(a, product.a).reshape(math.prod(batch), across.size, -1)
    b = _columns(product, down, context)
    treated = _rounding(row, product)
    if treated:
        wide, b = (one.to(DTYPES[treated]).to(torch.float64) for one in (wide, b))
    exact, squares, terms = wide @ b, (wide * wide) @ (b * b), torch.tensor(float(wide.shape[-1]), dtype=torch.float64)
    alone = exact
    if product.bias is not None:
        bias = load(product.bias, context)[torch.from_numpy(down)]
        exact, squares, terms = exact + bias, squares + bias * bias, terms + 1
    sigma = rounding_noise.sigma(exact, squares, terms, 2.0**-24)
    actual = out.reshape(-1, columns)[:, down].astype(np.float64).reshape(-1)
    kind = f"{task.call.prefix}.{task.call.name}.{task.operator.phase}", product.out.slot
    limit = max(1.0, settings.known.get(kind, 1.0)) * settings.scale

    def judged(sigma: Any) -> ReplayedOutput:
        tally = BudgetTally(dtype, "walk")
        tally.add(actual, numpy_of(exact), numpy_of(sigma))
        return tally.row(task.operator.order, product.out.slot, limit)

    found = judged(sigma)
    if found.verdict is ReplayVerdict.GUILTY and product.bias is not None and dtype.itemsize <= 2:
        again = judged(rounding_noise.of_rounded(sigma, [alone, exact - alone], dtype.round_off))
        found = again if again.verdict is ReplayVerdict.CLEAN else found
    share = f"1/{round(rows * columns / (across.size * down.size))}"
    index = _index(found.max_abs_index, across, down, rows, columns)
    return [found._replace(sampled=share, max_abs_index=index, treated=f"autocast {treated}" if treated else "")]


def _pick_indices(size: int, random: Any) -> Any:
    """Pick one index at random of every EVERY indices."""
    starts = np.arange(0, size, EVERY)
    return starts + random.integers(0, np.minimum(EVERY, size - starts))


def _columns(product: SampledProduct, down: Any, context: ReadContext) -> Any:
    """The picked columns of b, as a batch of matrices in float64."""
    if product.is_weight:
        places = [(int(one), int(one) + 1) for one in down]
        rows = TensorRows(product.b, RowSplit(1, product.b.shape[0], frozenset()), context).take(places)
        return widen_values(rows, product.b).T[None]
    picked = read(product.b, context)[..., down]
    return widen_values(np.ascontiguousarray(picked), product.b).reshape(-1, *picked.shape[-2:])


def _rounding(row: CallRow, product: SampledProduct) -> str:
    """The 16-bit type to which autocast rounds wider inputs, "" if it does not."""
    types = [lookup(one.dtype) for one in (product.a, product.b)]
    low = product.out.dtype in ("float16", "bfloat16")
    wider = any(one is not None and one.kind == "f" and one.itemsize > 2 for one in types)
    return product.out.dtype if row.autocast and low and wider else ""


def _index(at: Optional[int], across: Any, down: Any, rows: int, columns: int) -> Optional[int]:
    """The index in the whole result of an element of the sample."""
    if at is None:
        return None
    line, column = divmod(at, down.size)
    batch, line = divmod(line, across.size)
    return int((batch * rows + across[line]) * columns + down[column])
