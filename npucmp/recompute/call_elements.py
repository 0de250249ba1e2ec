"""Formulas of PyTorch's element-wise calls, and of their gradients: activations, arithmetic, comparisons.

Source: PyTorch 2.x documentation; derivatives.yaml lists the tensors that autograd saves.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, Random, is_float, reduced, tensor
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_formulas import ROOT_2, gelu_of, rsqrt, sigmoid

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
Pair = tuple[Callable[..., Any], Optional[Callable[..., Any]]]


def elementwise(value: Callable[..., Any], slope: Optional[Callable[..., Any]] = None) -> Pair:
    """Return forward and backward of a function of one tensor. `slope` takes the steps, the inputs and the arguments,
    and returns the factor of the gradient."""

    def forward(m: Steps, g: CallInputs, input: Array, *args: Any, **kwargs: Any) -> Any:
        return value(m, input, *args, **kwargs)

    def backward(m: Steps, g: CallInputs, input: Array, *args: Any, **kwargs: Any) -> list[Node]:
        assert slope is not None
        with m.outside():
            factor = slope(m, _Saved(m, g, input, lambda: value(m, input, *args, **kwargs)), *args, **kwargs)
        return [[m.mul(g.dy, factor)]]

    return forward, backward if slope is not None else None


class _Saved:
    """`x` is the argument, `y` the recorded result."""

    def __init__(self, m: Steps, g: CallInputs, x: Array, value: Callable[[], Array]) -> None:
        self._m, self._g, self.x, self._value = m, g, x, value

    @property
    def y(self) -> Array:
        return self._g.y(self._m, self._value)


def masked(value: Callable[..., Any], keeps: Callable[..., Any]) -> Pair:
    """Return forward and backward of a function whose gradient passes where `keeps` is true, and is 0 elsewhere."""
    forward, _ = elementwise(value)

    def backward(m: Steps, g: CallInputs, input: Array, *args: Any, **kwargs: Any) -> list[Node]:
        saved = _Saved(m, g, input, lambda: value(m, input, *args, **kwargs))
        return [[np.where(keeps(saved, *args, **kwargs), g.dy, 0.0)]]

    return forward, backward


def _one_minus(m: Steps, x: Any) -> Any:
    return m.sub(1.0, x)


def _silu_slope(m: Steps, s: _Saved, inplace: bool = False) -> Any:
    share = sigmoid(m, s.x)
    return m.mul(share, m.add(1.0, m.mul(s.x, _one_minus(m, share))))


def _gelu_slope(m: Steps, s: _Saved, approximate: str = "none") -> Any:
    x = s.x
    if approximate == "tanh":
        root = math.sqrt(2 / math.pi)
        inner = m.mul(root, m.add(x, m.mul(0.044715, m.mul(x, m.mul(x, x)))))
        t = m.tanh(inner)
        slope = m.mul(root, m.add(1.0, m.mul(3 * 0.044715, m.mul(x, x))))
        left = m.mul(0.5, m.add(1.0, t))
        return m.add(left, m.mul(m.mul(0.5, x), m.mul(_one_minus(m, m.mul(t, t)), slope)))
    share = m.mul(0.5, m.add(1.0, m.erf(m.div(x, ROOT_2))))
    density = m.mul(1 / math.sqrt(2 * math.pi), m.exp(m.mul(-0.5, m.mul(x, x))))
    return m.add(share, m.mul(x, density))


def _softplus(m: Steps, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = m.mul(x, beta) if beta != 1 else x
    near = m.apply(np.log1p, m.exp(np.minimum(scaled, threshold)))
    return np.where(scaled > threshold, x, m.div(near, beta) if beta != 1 else near)


def _softplus_slope(m: Steps, s: _Saved, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = m.mul(s.x, beta) if beta != 1 else s.x
    return np.where(scaled > threshold, 1.0, sigmoid(m, scaled))


def _elu(m: Steps, x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Compute exp(x) - 1 in two steps, as a device may: the error near 0 is a round-off of 1."""
    low = m.sub(m.exp(np.minimum(x, 0.0)), 1.0)
    return np.where(x > 0, x, m.mul(alpha, low) if alpha != 1 else low)


def _elu_slope(m: Steps, s: _Saved, alpha: float = 1.0, inplace: bool = False) -> Any:
    return np.where(s.x > 0, 1.0, m.mul(alpha, m.exp(np.minimum(s.x, 0.0))))


def _selu(m: Steps, x: Any, inplace: bool = False) -> Any:
    return m.mul(SELU_SCALE, _elu(m, x, SELU_ALPHA))


def _selu_slope(m: Steps, s: _Saved, inplace: bool = False) -> Any:
    return np.where(s.x > 0, SELU_SCALE, m.mul(SELU_SCALE * SELU_ALPHA, m.exp(np.minimum(s.x, 0.0))))


def _leaky(m: Steps, x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return np.where(x > 0, x, m.mul(x, m.scalar(negative_slope)))


def _leaky_slope(m: Steps, s: _Saved, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return np.where(s.x > 0, 1.0, m.scalar(negative_slope))


def _mish(m: Steps, x: Any, inplace: bool = False) -> Any:
    return m.mul(x, m.tanh(_softplus(m, x)))


def _mish_slope(m: Steps, s: _Saved, inplace: bool = False) -> Any:
    t, share = m.tanh(_softplus(m, s.x)), sigmoid(m, s.x)
    return m.add(t, m.mul(m.mul(s.x, share), _one_minus(m, m.mul(t, t))))


def _logsigmoid(m: Steps, x: Any) -> Any:
    return m.sub(np.minimum(x, 0.0), m.apply(np.log1p, m.exp(-np.abs(x))))


def _hardsigmoid(m: Steps, x: Any, inplace: bool = False) -> Any:
    return m.div(np.clip(m.add(x, 3.0), 0.0, 6.0), 6.0)


def _hardswish(m: Steps, x: Any, inplace: bool = False) -> Any:
    return m.mul(x, _hardsigmoid(m, x))


def _hardswish_slope(m: Steps, s: _Saved, inplace: bool = False) -> Any:
    inner = m.add(m.div(s.x, 3.0), 0.5)
    return np.where(s.x < -3, 0.0, np.where(s.x > 3, 1.0, inner))


def _clamped(m: Steps, x: Any, min: Any = None, max: Any = None) -> Any:
    """Clamp x. NaN stays. If the lower bound exceeds the upper bound, the result is the upper bound."""
    found = x if min is None else np.maximum(x, min)
    return found if max is None else np.minimum(found, max)


def _clamp_keeps(s: _Saved, min: Any = None, max: Any = None) -> Any:
    if isinstance(min, np.ndarray) or isinstance(max, np.ndarray):
        raise RefusedRecord("tensor bounds have gradients of their own")
    inside = np.ones(s.x.shape, bool) if min is None else s.x >= min
    return inside if max is None else inside & (s.x <= max)


def _hardtanh(m: Steps, x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return np.clip(x, min_val, max_val)


def _hardtanh_keeps(s: _Saved, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return (s.x > min_val) & (s.x < max_val)


def _threshold(m: Steps, x: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    return np.where(x > threshold, x, value)


def _round(m: Steps, x: Any, decimals: int = 0) -> Any:
    if decimals:
        raise RefusedRecord("numpy does not recompute rounding to decimals")
    return np.rint(x)


relu = masked(lambda m, x, inplace=False: np.maximum(x, 0), lambda s, inplace=False: s.y > 0)
relu6 = masked(lambda m, x, inplace=False: np.clip(x, 0, 6), lambda s, inplace=False: (s.x > 0) & (s.x < 6))
hardtanh = masked(_hardtanh, _hardtanh_keeps)
threshold = masked(_threshold, lambda s, threshold, value, inplace=False: s.x > threshold)
clamp = masked(_clamped, _clamp_keeps)
silu = elementwise(lambda m, x, inplace=False: m.mul(x, sigmoid(m, x)), _silu_slope)
gelu = elementwise(lambda m, x, approximate="none": gelu_of(m, x, approximate), _gelu_slope)
sigmoid_ = elementwise(lambda m, x: sigmoid(m, x), lambda m, s: m.mul(s.y, _one_minus(m, s.y)))
tanh = elementwise(lambda m, x: m.tanh(x), lambda m, s: _one_minus(m, m.mul(s.y, s.y)))
softplus = elementwise(_softplus, _softplus_slope)
elu = elementwise(_elu, _elu_slope)
celu = elementwise(lambda m, x, alpha=1.0, inplace=False: np.where(
    x > 0, x, m.mul(alpha, m.sub(m.exp(m.div(np.minimum(x, 0.0), alpha)), 1.0))), lambda m, s, alpha=1.0, inplace=False:
    np.where(s.x > 0, 1.0, m.exp(m.div(np.minimum(s.x, 0.0), alpha))))  # fmt: skip
selu = elementwise(_selu, _selu_slope)
leaky_relu = elementwise(_leaky, _leaky_slope)
mish = elementwise(_mish, _mish_slope)
logsigmoid = elementwise(_logsigmoid, lambda m, s: sigmoid(m, -s.x))
hardsigmoid = elementwise(_hardsigmoid, lambda m, s, inplace=False: np.where(np.abs(s.x) < 3, 1 / 6, 0.0))
hardswish = elementwise(_hardswish, _hardswish_slope)
exp = elementwise(lambda m, x: m.exp(x), lambda m, s: s.y)
exp2 = elementwise(lambda m, x: m.apply(np.exp2, x), lambda m, s: m.mul(s.y, math.log(2)))
expm1 = elementwise(lambda m, x: m.sub(m.exp(x), 1.0), lambda m, s: m.add(s.y, 1.0))
log = elementwise(lambda m, x: m.log(x), lambda m, s: m.div(1.0, s.x))
log2 = elementwise(lambda m, x: m.apply(np.log2, x), lambda m, s: m.div(1.0, m.mul(s.x, math.log(2))))
log10 = elementwise(lambda m, x: m.apply(np.log10, x), lambda m, s: m.div(1.0, m.mul(s.x, math.log(10))))
log1p = elementwise(lambda m, x: m.log(m.add(x, 1.0)), lambda m, s: m.div(1.0, m.add(s.x, 1.0)))
sqrt = elementwise(lambda m, x: m.sqrt(x), lambda m, s: m.div(0.5, s.y))
rsqrt_ = elementwise(lambda m, x: rsqrt(m, x), lambda m, s: m.mul(-0.5, m.mul(s.y, m.mul(s.y, s.y))))
reciprocal = elementwise(lambda m, x: m.div(1.0, x), lambda m, s: m.mul(-s.y, s.y))
square = elementwise(lambda m, x: m.mul(x, x), lambda m, s: m.mul(2.0, s.x))
sin = elementwise(lambda m, x: m.apply(np.sin, x), lambda m, s: m.apply(np.cos, s.x))
cos = elementwise(lambda m, x: m.apply(np.cos, x), lambda m, s: -m.apply(np.sin, s.x))
erf = elementwise(lambda m, x: m.erf(x), lambda m, s: m.mul(2 / math.sqrt(math.pi), m.exp(-m.mul(s.x, s.x))))
absolute = elementwise(lambda m, x: np.abs(x), lambda m, s: np.sign(s.x))
negative = elementwise(lambda m, x: -x, lambda m, s: np.float64(-1.0))
sign, floor, ceil, trunc = (elementwise(lambda m, x, f=function: f(x), lambda m, s: np.float64(0.0))
                            for function in (np.sign, np.floor, np.ceil, np.trunc))  # fmt: skip
rounded = elementwise(_round, lambda m, s, decimals=0: np.float64(0.0))


def test(function: Callable[..., Any]) -> Pair:
    """Return forward of a comparison or logic function, which has no gradient."""
    return (lambda m, g, input, *other: function(input, *other)), None


# functions of two broadcast operands


def _scaled(m: Steps, x: Any, alpha: float) -> Any:
    return x if alpha == 1 else m.mul(x, alpha)


def _both(m: Steps, a: Any, b: Any, to_a: Any, to_b: Any) -> list[Node]:
    """Return the node of two operands: a gradient for each that is a float tensor. `to_a` and `to_b` compute it."""
    found = []
    for one, gradient in ((a, to_a), (b, to_b)):
        found.append(reduced(m, gradient(), one) if is_float(one) else None)
    return [found]


def _with(a: Any, b: Any) -> tuple[Any, Any]:
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        raise RefusedRecord("no operand is a tensor")
    return a, b


def add(m: Steps, g: CallInputs, input: Any, other: Any, alpha: float = 1) -> Any:
    a, b = _with(input, other)
    return m.add(a, _scaled(m, b, alpha))


def add_back(m: Steps, g: CallInputs, input: Any, other: Any, alpha: float = 1) -> list[Node]:
    return _both(m, input, other, lambda: g.dy, lambda: _scaled(m, g.dy, alpha))


def sub(m: Steps, g: CallInputs, input: Any, other: Any, alpha: float = 1) -> Any:
    a, b = _with(input, other)
    return m.sub(a, _scaled(m, b, alpha))


def sub_back(m: Steps, g: CallInputs, input: Any, other: Any, alpha: float = 1) -> list[Node]:
    return _both(m, input, other, lambda: g.dy, lambda: -_scaled(m, g.dy, alpha))


def mul(m: Steps, g: CallInputs, input: Any, other: Any) -> Any:
    return m.mul(*_with(input, other))


def mul_back(m: Steps, g: CallInputs, input: Any, other: Any) -> list[Node]:
    return _both(
        m, input, other, lambda: _stored_product(m, input, g.dy, other), lambda: _stored_product(m, other, g.dy, input)
    )


def _stored_product(m: Steps, one: Any, dy: Array, factor: Any) -> Any:
    """Multiply. Before a sum over broadcast axes, the product is stored in the type of the output."""
    if np.shape(one) == dy.shape:
        return m.mul(dy, factor)
    with m.outside():
        return m.mul(dy, factor)


def div(m: Steps, g: CallInputs, input: Any, other: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        raise RefusedRecord("numpy does not recompute div with rounding_mode")
    return m.quotient(*_with(input, other))


def div_back(m: Steps, g: CallInputs, input: Any, other: Any, rounding_mode: Any = None) -> list[Node]:
    def to_b() -> Any:
        with m.outside():
            ratio = m.div(m.div(input, other), other)
            return m.mul(-g.dy, ratio)

    if rounding_mode is not None:
        raise RefusedRecord("numpy does not recompute div with rounding_mode")
    return _both(m, input, other, lambda: m.div(g.dy, other), to_b)


def power(m: Steps, g: CallInputs, input: Any, exponent: Any) -> Any:
    return m.power(*_with(input, exponent))


def power_back(m: Steps, g: CallInputs, input: Any, exponent: Any) -> list[Node]:
    def to_base() -> Any:
        with m.outside():
            slope = m.mul(exponent, m.power(input, exponent - 1))
        return np.where(np.equal(exponent, 0), 0.0, m.mul(g.dy, slope))

    def to_exponent() -> Any:
        with m.outside():
            y = g.y(m, lambda: m.power(input, exponent))
            return np.where(y == 0, 0.0, m.mul(g.dy, m.mul(y, m.log(input))))

    return _both(m, input, exponent, to_base, to_exponent)


def reflected_method(pair: Pair) -> Pair:
    """Return forward and backward of a reflected method: `other - self`. The first gradient is that of `self`."""
    forward, backward = pair
    assert backward is not None
    known = backward

    def back(m: Steps, g: CallInputs, input: Any, other: Any) -> list[Node]:
        return [[*node][::-1] for node in known(m, g, other, input)]

    return (lambda m, g, input, other: forward(m, g, other, input)), back


def extreme_of_two(function: Callable[..., Any], beats: Callable[..., Any]) -> Pair:
    """Return forward and backward of the larger or smaller of two tensors. Equal elements share the gradient."""

    def backward(m: Steps, g: CallInputs, input: Array, other: Array) -> list[Node]:
        def share(a: Array, b: Array) -> Array:
            return np.where(a == b, g.dy / 2, np.where(beats(a, b), g.dy, 0.0))

        return _both(m, input, other, lambda: share(input, other), lambda: share(other, input))

    return (lambda m, g, input, other: function(tensor(input), tensor(other))), backward


def where(m: Steps, g: CallInputs, condition: Array, input: Any, other: Any) -> Any:
    return np.where(tensor(condition).astype(bool), input, other)


def where_back(m: Steps, g: CallInputs, condition: Array, input: Any, other: Any) -> list[Node]:
    known = tensor(condition).astype(bool)
    ((a, b),) = _both(m, input, other, lambda: np.where(known, g.dy, 0.0), lambda: np.where(known, 0.0, g.dy))
    return [[None, a, b], [a, b]]


def where_method(m: Steps, g: CallInputs, input: Any, condition: Array, other: Any) -> Any:
    return where(m, g, condition, input, other)


def where_method_back(m: Steps, g: CallInputs, input: Any, condition: Array, other: Any) -> list[Node]:
    _, (a, b) = where_back(m, g, condition, input, other)
    return [[a, None, b], [a, b]]


def masked_fill(m: Steps, g: CallInputs, input: Array, mask: Array, value: Any) -> Any:
    return np.where(tensor(mask).astype(bool), value, input)


def masked_fill_back(m: Steps, g: CallInputs, input: Array, mask: Array, value: Any) -> list[Node]:
    known = tensor(mask).astype(bool)
    ((a, b),) = _both(m, input, value, lambda: np.where(known, 0.0, g.dy), lambda: np.where(known, g.dy, 0.0))
    return [[a, None, b], [a, b]]


def lerp(m: Steps, g: CallInputs, input: Array, end: Array, weight: Any) -> Any:
    return m.add(input, m.mul(weight, m.sub(end, input)))


def lerp_back(m: Steps, g: CallInputs, input: Array, end: Array, weight: Any) -> list[Node]:
    ((first, second),) = _both(
        m,
        input,
        end,
        lambda: _stored_product(m, input, g.dy, m.sub(1.0, weight)),
        lambda: _stored_product(m, end, g.dy, weight),
    )
    to_weight = None if not is_float(weight) else reduced(m, m.mul(g.dy, m.sub(end, input)), weight)
    return [[first, second, to_weight]]


def addcmul(m: Steps, g: CallInputs, input: Array, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
    return m.add(input, m.mul(_scaled(m, tensor1, value), tensor2))


def addcmul_back(m: Steps, g: CallInputs, input: Array, tensor1: Any, tensor2: Any, value: float = 1) -> list[Node]:
    ((first, second),) = _both(
        m,
        tensor1,
        tensor2,
        lambda: _stored_product(m, tensor1, g.dy, _scaled(m, tensor2, value)),
        lambda: _stored_product(m, tensor2, g.dy, _scaled(m, tensor1, value)),
    )
    return [[reduced(m, g.dy, input), first, second]]


def addcdiv(m: Steps, g: CallInputs, input: Array, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
    return m.add(input, m.div(_scaled(m, tensor1, value), tensor2))


def addcdiv_back(m: Steps, g: CallInputs, input: Array, tensor1: Any, tensor2: Any, value: float = 1) -> list[Node]:
    def to_divisor() -> Any:
        with m.outside():
            ratio = m.div(_scaled(m, tensor1, value), m.mul(tensor2, tensor2))
            return m.mul(-g.dy, ratio)

    def to_dividend() -> Any:
        with m.outside():
            return m.mul(g.dy, m.div(value, tensor2))

    ((first, second),) = _both(m, tensor1, tensor2, to_dividend, to_divisor)
    return [[reduced(m, g.dy, input), first, second]]


def dropout(m: Steps, g: CallInputs, input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Apply the mask of the recorded result: zeros were dropped."""
    if not training or p == 0:
        return input
    nonzero = _unary_gradient(g, input)
    possible, count = int((input != 0).sum()), int((nonzero & (input != 0)).sum())
    if abs(count - possible * (1 - p)) > 8 * (math.sqrt(possible * p * (1 - p)) + 1):
        raise Random(f"{count:,} of {possible:,} elements are kept, p is {p:g}")
    return _dropped(m, input, nonzero, p)


def _dropped(m: Steps, x: Array, mask: Array, p: float) -> Any:
    """Scale the elements that dropout keeps. The factor or the quotient is rounded to the type of the result."""
    with m.outside():
        return np.where(mask, m.div(x, 1 - p) if p < 1 else 0.0, 0.0)


def dropout_back(
    m: Steps, g: CallInputs, input: Array, p: float = 0.5, training: bool = True, inplace: bool = False
) -> list[Node]:
    """Return the gradient. Where the input is 0, the mask is unknown, and the gradient may be either."""
    if not training or p == 0:
        return [[g.dy]]
    if np.any(input == 0):
        g.doubt("the mask is unknown where its input is 0")
    return [[_dropped(m, g.dy, _unary_gradient(g, input), p)]]


def _unary_gradient(g: CallInputs, input: Array) -> Array:
    if 0 not in g.recorded:
        raise Random("its mask is not in the dump")
    return np.asarray(g.recorded[0].reshape(input.shape) != 0)


def both(forward: Callable[..., Any], backward: Optional[Callable[..., Any]] = None) -> Pair:
    return forward, backward
