"""Numbers with a slope: a function of float64 arrays, written once over a namespace, gives its derivative too
(gaps.py).

A dual number x + x' e has e² = 0, so that f(x + x' e) = f(x) + f'(x) x' e (forward differentiation)."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np

from npucmp.dump.readers.values import Array


class Dual:
    """An array of values and one of their slopes."""

    def __init__(self, value: Any, slope: Any) -> None:
        self.value, self.slope = value, slope

    def __add__(self, other: Any) -> Dual:
        x, slope = _parts(other)
        return Dual(self.value + x, self.slope + slope)

    def __mul__(self, other: Any) -> Dual:
        x, slope = _parts(other)
        return Dual(self.value * x, self.slope * x + self.value * slope)

    def __truediv__(self, other: Any) -> Dual:
        x, slope = _parts(other)
        return Dual(self.value / x, self.slope / x - self.value * slope / (x * x))

    def __rtruediv__(self, other: Any) -> Dual:
        return Dual(other, 0.0) / self

    def __pow__(self, power: int) -> Dual:
        return Dual(self.value**power, power * self.value ** (power - 1) * self.slope)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __sub__(self, other: Any) -> Dual:
        x, slope = _parts(other)
        return Dual(self.value - x, self.slope - slope)

    def __rsub__(self, other: Any) -> Dual:
        return (-self).__add__(other)

    def __gt__(self, other: Any) -> Array:
        return np.asarray(self.value > other)

    def __lt__(self, other: Any) -> Array:
        return np.asarray(self.value < other)

    __radd__, __rmul__ = __add__, __mul__


def _parts(one: Any) -> tuple[Any, Any]:
    return (one.value, one.slope) if isinstance(one, Dual) else (one, 0.0)


def _function(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Dual], Dual]:
    return lambda x: Dual(value(x.value), slope(x.value) * x.slope)


def _erf(x: Array) -> Array:
    return np.reshape([math.erf(one) for one in np.ravel(x)], np.shape(x))


class DualNumpy:
    """Functions of dual numbers under torch's names."""

    exp = staticmethod(_function(np.exp, np.exp))
    log = staticmethod(_function(np.log, lambda x: 1 / x))
    log1p = staticmethod(_function(np.log1p, lambda x: 1 / (1 + x)))
    sqrt = staticmethod(_function(np.sqrt, lambda x: 0.5 / np.sqrt(x)))
    tanh = staticmethod(_function(np.tanh, lambda x: 1 - np.tanh(x) ** 2))
    sin = staticmethod(_function(np.sin, np.cos))
    cos = staticmethod(_function(np.cos, lambda x: -np.sin(x)))
    abs = staticmethod(_function(np.abs, np.sign))
    erf = staticmethod(_function(_erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)))

    @staticmethod
    def where(condition: Array, one: Any, other: Any) -> Dual:
        (a, da), (b, db) = _parts(one), _parts(other)
        return Dual(np.where(condition, a, b), np.where(condition, da, db))
