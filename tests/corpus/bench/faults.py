"""Faults of one operator in the public benchmark: each a name, the records that it can strike, and what it does there.

A fault computes with what its record holds, so that the record of a struck operator has right inputs and wrong outputs.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.device import Arithmetic, Array
from tests.corpus.tape import FLOATS, Address, Plant
from tests.corpus.trace import Record, Tensor

Random = np.random.RandomState
Values = list[Any]


class Change(Plant):
    """A plant made of functions; those left out do nothing."""

    def __init__(
        self,
        address: Address,
        inputs: Optional[Callable[[Values], Values]] = None,
        output: Optional[Callable[[Array, Array], Array]] = None,
        arithmetic: Optional[Callable[[Arithmetic], Arithmetic]] = None,
        formula: Optional[Callable[..., Values]] = None,
    ):
        super().__init__(address)
        self._inputs, self._output, self._arithmetic, self.formula = inputs, output, arithmetic, formula

    def inputs(self, values: Values, keywords: dict[str, Any]) -> tuple[Values, dict[str, Any]]:
        return (self._inputs(values) if self._inputs else values), keywords

    def arithmetic(self, a: Arithmetic) -> Arithmetic:
        return self._arithmetic(a) if self._arithmetic else a

    def outputs(self, values: list[Optional[Array]], memory: list[Optional[Array]]) -> list[Optional[Array]]:
        """`output` has the first output of floats, and what the last operator of this kind wrote there."""
        if self._output is None:
            return values
        found = list(values)
        for k, y in enumerate(values):
            if y is not None and np.asarray(y).dtype.kind == "f":
                before = memory[k] if k < len(memory) and memory[k] is not None else np.zeros_like(y)
                found[k] = self._output(np.array(y, np.float64), np.asarray(before, np.float64))
                break
        return found


class Fault(NamedTuple):
    """fits: whether a record can be struck so; make: the plant for its address."""

    fits: Callable[[Record], bool]
    make: Callable[[Address, Record, Random], Plant]


def _of(*kinds: str, phase: str = "forward") -> Callable[[Record], bool]:
    return lambda one: one.kind in kinds and one.phase == phase


def _first(record: Record) -> Optional[Array]:
    """The first output of floats."""
    for one in record.outputs:
        if one is not None and one.dtype in FLOATS:
            return one.values
    return None


def _tensor(record: Record, place: int) -> Optional[Array]:
    item = record.inputs[place] if place < len(record.inputs) else None
    return item.values if isinstance(item, Tensor) else None


def _is_square(record: Record) -> bool:
    y = _first(record)
    return y is not None and y.ndim >= 2 and min(y.shape[-2:]) >= 4


def _tile_transposed(address: Address, record: Record, r: Random) -> Plant:
    """A kernel writes its last square tile transposed."""

    def output(y: Array, before: Array) -> Array:
        n = 4
        y[..., -n:, -n:] = np.swapaxes(y[..., -n:, -n:].copy(), -1, -2)
        return y

    return Change(address, output=output)


def _fractal_weight(address: Address, record: Record, r: Random) -> Plant:
    """A product reads its weight as if it stood in blocks of rows."""

    def inputs(values: Values) -> Values:
        w = values[1]
        rows = np.arange(len(w) // 4 * 4).reshape(4, -1).T.reshape(-1)
        return [values[0], np.concatenate([w[rows], w[len(rows) :]]), *values[2:]]

    return Change(address, inputs)


def _eps_outside(address: Address, record: Record, r: Random) -> Plant:
    """A norm adds eps to the root, not under it."""

    def formula(a: Arithmetic, values: Values, keywords: Any, saved: Any) -> Values:
        x = values[0]
        centred = x - x.mean(-1, keepdims=True) if record.kind == "layer_norm" else x
        normal = centred / (np.sqrt((centred * centred).mean(-1, keepdims=True)) + values[-1])
        return [normal * values[2] + (values[3] if record.kind == "layer_norm" else 0.0)]

    return Change(address, formula=formula)


def _int8_product(address: Address, record: Record, r: Random) -> Plant:
    """A product in 8-bit integers, one scale for each operand."""

    def inputs(values: Values) -> Values:
        found = list(values)
        for k in range(2):
            scale = np.abs(values[k]).max() / 127 or 1.0
            found[k] = np.rint(values[k] / scale) * scale
        return found

    return Change(address, inputs)


def _swapped(address: Address, record: Record, r: Random) -> Plant:
    """A difference or a quotient with its operands swapped."""
    return Change(address, lambda values: [values[1], values[0], *values[2:]])


def _mask_wide(address: Address, record: Record, r: Random) -> Plant:
    """A causal mask that starts a place too late, so that each word reads the next one."""

    def inputs(values: Values) -> Values:
        place = next(k for k, v in enumerate(values) if isinstance(v, np.ndarray) and _triangle(v))
        mask = values[place]
        late = np.roll(mask, 1, -1)
        late[..., 0] = mask[..., 0]
        return [*values[:place], late, *values[place + 1 :]]

    return Change(address, inputs)


def _triangle(values: Any) -> bool:
    """Whether a constant hides what comes later."""
    values = np.asarray(values)
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 4:
        return False
    upper = np.triu(np.ones(values.shape[-2:], bool), 1)
    kept = values == 0 if values.dtype.kind == "f" else values.astype(bool)
    return bool(kept[..., upper].all() and not kept[..., ~upper].any())


def _masks(record: Record) -> bool:
    return record.phase == "forward" and any(isinstance(v, Tensor) and _triangle(v.values) for v in record.inputs)


def _old_rows(address: Address, record: Record, r: Random) -> Plant:
    """The last rows of a workspace hold what the call before wrote."""

    def output(y: Array, before: Array) -> Array:
        flat, old = y.reshape(-1, y.shape[-1]), before.reshape(-1)
        n = max(1, len(flat) // 8)
        flat[-n:] = np.resize(old, flat.shape)[-n:] if old.size else 0.0
        return flat.reshape(y.shape)

    return Change(address, output=output)


def _sample_of_gradient(address: Address, record: Record, r: Random) -> Plant:
    """The gradient of a weight sums over all samples but the last."""

    def formula(a: Arithmetic, values: Values, keywords: Any, saved: Any) -> Values:
        g, x, w = values[:3]
        less = g.copy().reshape(-1, g.shape[-1])
        less[-max(1, len(less) // 4) :] = 0.0
        rows = x.reshape(-1, x.shape[-1])
        found = [a.matmul(g, w), a.matmul(less.T, rows)]
        return [*found, a.sum(less, 0) if values[3] is not None else None] if len(values) > 3 else found

    return Change(address, formula=formula)


def _saturates(address: Address, record: Record, r: Random) -> Plant:
    """An activation looks its value up in a table that ends early."""
    top = float(np.percentile(np.abs(_first(record)), 80))  # type: ignore[arg-type]
    return Change(address, output=lambda y, before: np.clip(y, -top, top))


def _temperature_twice(address: Address, record: Record, r: Random) -> Plant:
    """A fused softmax scales scores that are scaled."""
    width = _first(record).shape[-1]  # type: ignore[union-attr]
    return Change(address, lambda values: [values[0] / width**0.5, *values[1:]])


def _wrong_mean(address: Address, record: Record, r: Random) -> Plant:
    """A mean over the wrong number of terms: that of the padded length."""
    x = _tensor(record, 0)
    count = x.shape[record.keywords.get("dim", -1)]  # type: ignore[union-attr,call-overload]
    padded = -(-count // 16) * 16 if count % 16 else count + 16
    return Change(address, output=lambda y, before: y * count / padded)


def _norm_over_all(address: Address, record: Record, r: Random) -> Plant:
    """A norm takes its statistics over two axes rather than one."""

    def formula(a: Arithmetic, values: Values, keywords: Any, saved: Any) -> Values:
        x = values[0]
        axes = (-2, -1)
        centred = x - x.mean(axes, keepdims=True) if record.kind == "layer_norm" else x
        normal = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + values[-1])
        return [normal * values[2] + (values[3] if record.kind == "layer_norm" else 0.0)]

    return Change(address, formula=formula)


def _output_for_input(address: Address, record: Record, r: Random) -> Plant:
    """The derivative of an activation takes its output for its input."""

    def formula(a: Arithmetic, values: Values, keywords: Any, saved: Any) -> Values:
        g, y = values[0], saved[0]
        s = a.function("sigmoid", y)
        return [g * {"silu": s * (1 + y * (1 - s)), "tanh": 1 - np.tanh(y) ** 2, "sigmoid": s * (1 - s)}[record.kind]]

    return Change(address, formula=formula)


def _keeps_dropped(address: Address, record: Record, r: Random) -> Plant:
    """A dropout scales by p rather than by 1 - p."""
    p = float(record.inputs[1])  # type: ignore[arg-type]
    return Change(address, output=lambda y, before: y * (1 - p) / (1 - p * 0.5))


def _row_twice(address: Address, record: Record, r: Random) -> Plant:
    """A table is read a row too far, for the ids of one block."""

    def inputs(values: Values) -> Values:
        ids = values[0].copy()
        flat = ids.reshape(-1)
        flat[-max(1, flat.size // 4) :] = (flat[-max(1, flat.size // 4) :] + 1) % len(values[1])
        return [ids, *values[1:]]

    return Change(address, inputs)


def _lost_carry(address: Address, record: Record, r: Random) -> Plant:
    """Partial sums in float16 and bfloat16: each block is rounded to 8 bits before it is added."""

    def arithmetic(a: Arithmetic) -> Arithmetic:
        a.accumulator = "bfloat16"
        return a

    return Change(address, arithmetic=arithmetic)


def _wrong_axis(address: Address, record: Record, r: Random) -> Plant:
    """Parts are joined in the wrong order."""
    count = len([one for one in record.inputs if isinstance(one, Tensor)])

    def output(y: Array, before: Array) -> Array:
        return np.roll(y, y.shape[-1] // count, -1)

    return Change(address, output=output)


def _pool_first(address: Address, record: Record, r: Random) -> Plant:
    """A pool reads the first value of a window for its largest."""

    def output(y: Array, before: Array) -> Array:
        x = np.asarray(record.inputs[0].values, np.float64)  # type: ignore[union-attr]
        size = int(record.inputs[1])  # type: ignore[arg-type]
        return np.where(np.arange(y.size).reshape(y.shape) % 3 == 0, x[..., ::size, ::size], y)

    return Change(address, output=output)


def _normed(record: Record) -> bool:
    x = _tensor(record, 0)
    return _of("layer_norm", "rms_norm")(record) and x is not None and x.ndim >= 3


OPERATOR_FAULTS: dict[str, Fault] = {
    "tile transposed": Fault(lambda r: _of("linear", "matmul")(r) and _is_square(r), _tile_transposed),
    "weight in another block format": Fault(_of("linear"), _fractal_weight),
    "eps outside of the root": Fault(_of("layer_norm", "rms_norm"), _eps_outside),
    "8-bit product": Fault(_of("linear", "matmul"), _int8_product),
    "arguments swapped": Fault(
        lambda r: _of("sub", "div")(r) and _tensor(r, 0) is not None and np.shape(_tensor(r, 1)) == _tensor(r, 0).shape,  # type: ignore[union-attr]
        _swapped,
    ),
    "mask off by one": Fault(_masks, _mask_wide),
    "old rows in a workspace": Fault(_of("linear", "matmul", "add", "mul", "silu", "gelu", "relu"), _old_rows),
    "gradient without the last samples": Fault(_of("linear", phase="backward"), _sample_of_gradient),
    "activation cut off": Fault(_of("gelu", "tanh", "silu", "sigmoid"), _saturates),
    "softmax scaled twice": Fault(_of("softmax"), _temperature_twice),
    "mean of the padded length": Fault(_of("mean"), _wrong_mean),
    "norm over two axes": Fault(_normed, _norm_over_all),
    "derivative of the output": Fault(_of("silu", "tanh", "sigmoid", phase="backward"), _output_for_input),
    "dropout scaled wrongly": Fault(lambda r: _of("dropout")(r) and bool(r.inputs[1]), _keeps_dropped),
    "row of a table off by one": Fault(_of("embedding"), _row_twice),
    "sums in a coarse type": Fault(_of("linear", "matmul", "cross_entropy", "mean"), _lost_carry),
    "parts in another order": Fault(_of("cat"), _wrong_axis),
    "first of a window": Fault(_of("max_pool2d"), _pool_first),
}
