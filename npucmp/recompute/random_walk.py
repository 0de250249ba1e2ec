"""Noise of rounding in a sequential sum: the worst legitimate order.

The formula is dtypes.random_walk: the variance of K roundings of partial sums whose terms have mean r/K and spread Q/K.
r is the sum, Q the same sum with squared operands, K the same sum with ones, element by element, so that padding is
right. Kernels that add in blocks have less: measured 0.3 to 1.1 of it. Only child processes import this.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Callable, Sequence

import torch

from npucmp.model.dtypes import ROUNDING, random_walk


def sigma(exact: Any, squares: Any, ones: Any, unit: float) -> Any:
    """Return the noise of each element; `unit` is the round-off of the accumulator."""
    return random_walk(exact, squares.abs(), ones.clamp(min=1), unit)


def of_mean(exact: Any, squares: Any, terms: float, unit: float) -> Any:
    """Return the noise of a mean of `terms` terms; `squares` is the mean of the squares."""
    return random_walk(exact, squares / terms, terms, unit)


def of_rounded(before: Any, parts: Sequence[Any], unit: float) -> Any:
    """Return the noise of a sum of parts, any of which may be rounded first; `before` is the noise without that."""
    return reduce(torch.hypot, (ROUNDING * unit * part.abs() for part in parts), before)


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with each float tensor changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree) if tree.is_floating_point() else tree
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(one, change) for one in tree) if type(tree) in (list, tuple) else tree
    if isinstance(tree, dict):
        return {key: mapped(one, change) for key, one in tree.items()}
    return tree


def squared(tree: Any) -> Any:
    return mapped(tree, lambda one: one * one)


def all_ones(tree: Any) -> Any:
    return mapped(tree, torch.ones_like)
