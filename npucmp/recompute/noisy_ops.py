"""Steps of formulas in float64. With a seed, each step is rounded at random, as a kernel rounds it.

Each product, quotient, root … gets noise of 0.58 u of `level`; sums and contractions also get the random walk of their
terms (dtypes.random_walk). Copies, choices and signs get no noise, and use numpy itself.
Every step checks memory first: if the shape in a hostile record is too large, no array is made.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.model.dtypes import ROUNDING, Dtype, random_walk
from npucmp.recompute.arguments import CallTooLarge
from npucmp.recompute.error_budget import round_to

FLOPS = 1 << 36  # of the products of one operator: a few seconds of one core
_ERF: Callable[[Array], Any] = np.frompyfunc(math.erf, 1, 1)


class Alternatives(NamedTuple):
    """Results that differ between versions or frameworks; the nearest result is used."""

    among: list[Any]


class Steps:
    """One trial, exact without a seed. `unit` is the round-off of the output's type, `accumulator` that of sums. With
    `narrow`, each step is rounded to that type instead."""

    def __init__(
        self, unit: float, accumulator: float, memory: int, seed: Optional[int] = None, narrow: Optional[Dtype] = None
    ) -> None:
        self.seed, self.narrow = seed, narrow
        self.unit, self.accumulator = max(unit, accumulator), accumulator
        self._level, self._left, self._flops = accumulator, memory, FLOPS
        self._random = None if seed is None else np.random.default_rng(seed)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Store the results of steps in the type of the output."""
        before, self._level = self._level, self.unit
        try:
            yield
        finally:
            self._level = before

    def scalar(self, value: float) -> float:
        """Return a Python number as a kernel receives it."""
        return value if self.accumulator < 2.0**-30 else float(np.float32(value))

    def room(self, shape: Sequence[int]) -> None:
        """Raise TooLarge if an array does not fit beside all arrays made before."""
        self._left -= 8 * math.prod(shape)
        if self._left < 0:
            raise CallTooLarge("its replay needs more memory than --limit-memory allows")

    def rounded(self, out: Any, sigma: Any = None) -> Any:
        """Return a result with the noise of its rounding, and of sigma before it."""
        if self.narrow is not None:
            return round_to(out, self.narrow)
        if self._random is None:
            return out
        if sigma is not None:
            out = out + sigma * self._random.standard_normal(np.shape(out))
        return out * (1 + ROUNDING * self._level * self._random.standard_normal(np.shape(out)))

    def _step(self, function: Callable[..., Any], *arrays: Any) -> Any:
        self.room(np.broadcast_shapes(*map(np.shape, arrays)))
        with np.errstate(all="ignore"):
            return self.rounded(function(*arrays))

    def add(self, a: Any, b: Any) -> Any:
        return self._step(np.add, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._step(np.subtract, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._step(np.multiply, a, b)

    def div(self, a: Any, b: Any) -> Any:
        return self._step(np.divide, a, b)

    def quotient(self, a: Any, b: Any) -> Any:
        """Divide. A compiler multiplies by the rounded reciprocal if the divisor is one number."""
        found = self.div(a, b)
        with np.errstate(divide="ignore", over="ignore"):
            return (
                Alternatives(
                    [found, self.mul(a, np.asarray(1 / np.asarray(b, float)).astype(np.float32).astype(float))]
                )
                if np.size(b) == 1
                else found
            )

    def power(self, a: Any, b: Any) -> Any:
        return self._step(np.power, a, b)

    def sqrt(self, a: Any) -> Any:
        return self._step(np.sqrt, a)

    def exp(self, a: Any) -> Any:
        return self._step(np.exp, a)

    def log(self, a: Any) -> Any:
        return self._step(np.log, a)

    def tanh(self, a: Any) -> Any:
        return self._step(np.tanh, a)

    def erf(self, a: Any) -> Any:
        return self._step(lambda one: np.asarray(_ERF(one)).astype(np.asarray(one).dtype), a)

    def apply(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Apply any other function of each element."""
        return self._step(function, *arrays)

    def contract(self, function: Callable[..., Any], *arrays: Array, coarse: bool | int = False) -> Any:
        """Return sums of products. `function` must be linear in each array. Kernels may add in the type of the output
        all terms (`coarse` is true), or that number of them."""
        out = function(*arrays)
        self.room(np.shape(out))
        if self._random is None:
            return self.rounded(out)
        squares = function(*(one * one for one in arrays))
        ones = function(*(np.ones_like(one) for one in arrays))
        return self._walked(out, squares, ones, coarse)

    def _walked(self, out: Any, squares: Any, ones: Any, coarse: bool | int = False) -> Any:
        sigma = sigma_of(out, squares, ones, self.unit if coarse is True else self.accumulator)
        if coarse and coarse is not True and self.unit > self.accumulator:
            sigma = np.hypot(sigma, sigma_of(out, squares, float(coarse), self.unit))
        return self.rounded(out, sigma)

    def matmul(self, a: Array, b: Array) -> Any:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self.room((*batch, *a.shape[-2:-1], *b.shape[-1:]))
        self._flops -= 2 * math.prod((*batch, *a.shape[-2:], *b.shape[-1:]))
        if self._flops < 0:
            raise CallTooLarge("its products take too long for numpy; torch samples them")
        out = np.matmul(a, b)
        if self._random is None:
            return self.rounded(out)
        return self._walked(out, np.matmul(a * a, b * b), float(a.shape[-1]))

    def sum(
        self, x: Array, axes: Sequence[int] | None = None, keepdims: bool = False, coarse: bool | int = False
    ) -> Any:
        axis = None if axes is None else tuple(axes)
        out = np.sum(x, axis=axis, keepdims=keepdims)
        self.room(np.shape(out))
        if self._random is None:
            return self.rounded(out)
        squares = np.sum(np.square(x), axis=axis, keepdims=keepdims)
        return self._walked(out, squares, float(x.size // max(1, np.size(out))), coarse)

    def mean(self, x: Array, axes: Sequence[int], keepdims: bool = False) -> Any:
        count = math.prod(x.shape[axis] for axis in axes)
        return self.div(self.sum(x, axes, keepdims), float(max(1, count)))


def sigma_of(exact: Any, squares: Any, ones: Any, unit: float) -> Any:
    """Return the noise of a sum, element by element: `squares` is the same sum of squared terms, `ones` of ones."""
    with np.errstate(all="ignore"):
        return random_walk(exact, np.abs(squares), np.maximum(ones, 1), unit)
