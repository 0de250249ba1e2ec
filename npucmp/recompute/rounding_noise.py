"""Rounding noise at every primitive of a float64 computation: its outputs show the effect that rounding may have.

Each result of an aten call is multiplied by 1 + dtypes.ROUNDING u N(0, 1). u is the round-off of the output's type,
because kernels of low precision store intermediates and saved statistics in it. Sums get the random walk of the worst
legitimate order. Statistics of norms and softmax get the noise of sums of N terms in the accumulator. Copies get none.
Backward kernels of norms and activations are first decomposed into the steps of a device.

error_budget.py adds the final rounding, so in 16 bits outputs come without that noise.

The formula of the random walk is dtypes.random_walk: the variance of K roundings of partial sums whose terms have mean
r/K and spread Q/K. r is the sum, Q the same sum with squared operands, K the same sum with ones, element by element, so
that padding is right. Kernels that add in blocks have less: measured 0.3 to 1.1 of it. Only child processes import
this.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import cache
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from npucmp.model.dtypes import ROUNDING, random_walk
from npucmp.recompute.call_inputs import map_arrays


def sigma(exact: Any, squares: Any, ones: Any, unit: float) -> Any:
    """Return the noise of each element; `unit` is the round-off of the accumulator."""
    return random_walk(exact, squares.abs(), ones.clamp(min=1), unit)


def of_mean(exact: Any, squares: Any, terms: float, unit: float) -> Any:
    """Return the noise of a mean of `terms` terms; `squares` is the mean of the squares."""
    return random_walk(exact, squares / terms, terms, unit)


def map_tensors(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with each float tensor changed."""
    return map_arrays(tree, lambda one: change(one) if one.is_floating_point() else one, torch.Tensor)


def squared(tree: Any) -> Any:
    return map_tensors(tree, lambda one: one * one)


def all_ones(tree: Any) -> Any:
    return map_tensors(tree, torch.ones_like)


REDUCED = 0.25  # rms of a sum of N positive terms in u sqrt(N)
aten = torch.ops.aten

FREE = frozenset(
    "view _unsafe_view reshape transpose t permute expand slice select clone _to_copy copy_ copy cat stack "
    "index gather index_select embedding where squeeze unsqueeze split split_with_sizes unbind alias detach "
    "ones_like zeros_like zeros ones full full_like new_zeros new_ones new_full fill fill_ zero_ masked_fill "
    "masked_fill_ neg abs max min amax amin maximum minimum sign constant_pad_nd as_strided relu relu_ "
    "threshold_backward flip roll tril triu diagonal repeat _reshape_alias lift_fresh empty empty_like "
    "new_empty slice_backward select_backward unfold empty_strided resize_ set_ scalar_tensor scatter arange "
    "clamp clamp_min clamp_max max_pool2d_with_indices slice_scatter select_scatter diagonal_scatter "
    "lift_fresh_copy expand_copy view_copy".split()
)
SUMS = frozenset("mm bmm addmm baddbmm addmv mv dot convolution convolution_backward sum cumsum "
                 "convolution_overrideable".split())  # fmt: skip
SCATTERED = frozenset(  # sums that kernels may add in the type of the output
    "embedding_dense_backward index_add scatter_add index_put _unsafe_index_put index_add_ scatter_add_ index_put_ "
    "_index_put_impl_ upsample_bilinear2d_backward upsample_bicubic2d_backward avg_pool2d_backward "
    "_adaptive_avg_pool2d_backward max_pool2d_with_indices_backward".split()
)
REDUCTIONS = frozenset("var var_mean std linalg_vector_norm norm logsumexp prod nll_loss_forward nll_loss2d_forward "
                       "mse_loss l1_loss smooth_l1_loss huber_loss _adaptive_avg_pool2d _adaptive_avg_pool3d "
                       "avg_pool2d avg_pool3d binary_cross_entropy cumprod".split())  # fmt: skip
BY_EXP = frozenset("expm1 elu log1p sinh asinh atanh erf".split())  # a device may compute exp(x) - 1: error u near 0
SOFTMAX = frozenset("_softmax _safe_softmax _log_softmax".split())
NORMS = frozenset(
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward".split()
)  # some kernels add gradients of weights in the type of the output
_INNER = (  # forward kernels that compute their steps in the accumulator
    aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm, aten._native_batch_norm_legit,
    *filter(None, [getattr(aten, "_fused_rms_norm", None)]), aten.gelu, aten.mish, aten.softplus,
    aten.log_sigmoid_forward,
)  # fmt: skip
_STEPS = (  # backward kernels that compute their steps in the type of the output
    aten.native_layer_norm_backward, aten.native_group_norm_backward, aten.native_batch_norm_backward,
    *filter(None, [getattr(aten, "_fused_rms_norm_backward", None)]), aten.log_sigmoid_backward,
    aten.gelu_backward, aten.silu_backward, aten.mish_backward, aten._softmax_backward_data,
    aten._log_softmax_backward_data, aten.tanh_backward,
    aten.sigmoid_backward, aten.elu_backward, aten.hardswish_backward, aten.softplus_backward,
)  # fmt: skip


@cache
def _decompositions() -> dict[Any, tuple[Any, bool]]:
    """Return the decomposition of each operator, and whether its steps are those of an accumulator."""
    from torch._decomp import get_decompositions

    found = {one: (how, True) for one, how in get_decompositions(_INNER).items()}
    found.update({one: (how, False) for one, how in get_decompositions(_STEPS).items()})
    return found


class RoundingNoise(TorchDispatchMode):  # type: ignore[misc]
    """unit is the round-off of the output's type, accumulator that of sums. Each trial has its own."""

    is_recomputed = False  # whether a backward recomputes the softmax of its forward

    def __init__(self, unit: float, accumulator: float, seed: int) -> None:
        super().__init__()
        self.unit, self.accumulator = max(unit, accumulator), accumulator
        self._level, self._sums = self.unit, accumulator
        self._random = torch.Generator().manual_seed(seed)
        self._clean: dict[int, tuple[Any, Any]] = {}  # storage → its values, and its values without the last noise

    def settled(self, one: Any, unit: float) -> Any:
        """Return a result without the noise of its own rounding, if its type has the largest round-off; `unit` is the
        round-off of its type. Results of other types keep the rounding of the coarse type."""
        coarse = self.unit > self.accumulator and unit >= self.unit
        held = self._clean.get(one.untyped_storage().data_ptr()) if coarse else None
        if held is None:
            return one.detach()
        clean = held[1]
        return torch.as_strided(clean, one.size(), one.stride(), one.storage_offset()) if clean.numel() else clean

    def _before(self, one: Any) -> Any:
        return self.settled(one, self.unit)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        how, is_inner = _decompositions().get(func, (None, False))
        if how is not None:
            sums = self._level if func.overloadpacket.__name__ in NORMS else self._sums
            with self._at(self.accumulator if is_inner else self._level, sums), self:
                out = how(*args, **kwargs)
            return self._round_results(out) if is_inner else out
        name = func.overloadpacket.__name__
        if name in FREE:
            return self._copy_noisy(func, args, kwargs)
        extra = self._of_sums(func, name, args, kwargs)
        out = func(*args, **kwargs)
        if not name.endswith("_") and _shares(out, args):
            return out
        if extra is None:
            extra = self._of_steps(name, args, kwargs, out)
        return self._round_results(out, extra)

    @contextmanager
    def _at(self, level: float, sums: float) -> Iterator[None]:
        before = self._level, self._sums
        self._level, self._sums = level, sums
        try:
            yield
        finally:
            self._level, self._sums = before

    def _normal(self, like: Any) -> Any:
        return torch.randn(like.shape, generator=self._random, dtype=torch.float64)

    def _round_results(self, out: Any, extra: Any = None) -> Any:
        """Return results with the noise of their rounding; `extra` are deviations that precede it."""
        flat, _ = tree_flatten(out)
        added = dict(zip(map(id, flat), extra)) if extra is not None else {}
        return tree_map(lambda one: self._one(one, added.get(id(one))), out)

    def _one(self, one: Any, deviation: Any) -> Any:
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float64:
            return one
        if deviation is not None:
            change = deviation * self._normal(one)
            one.add_(torch.where(torch.isfinite(change), change, 0.0))
        if self.unit > self.accumulator:
            self._clean[one.untyped_storage().data_ptr()] = one, _storage_copy(one)
        one.mul_(self._normal(one).mul_(ROUNDING * self._level).add_(1))
        return one

    def _copy_noisy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copy a tensor with noise and its clean original. A write in place changes both."""
        if func.overloadpacket.__name__.endswith("_") and args and self._has_original(args[0]):
            func(*map_tensors(list(args), self._before), **kwargs)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if self._clean and isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            place = out.untyped_storage().data_ptr()
            if place not in self._clean and out.numel():
                tensors = [one for one in tree_flatten(args)[0] if isinstance(one, torch.Tensor)]
                if any(map(self._has_original, tensors)):
                    clean = func(*map_tensors(list(args), self._before), **kwargs)
                    self._clean[place] = out, _storage_copy(out)
                    self._before(out).copy_(clean)
        return out

    def _has_original(self, one: Any) -> bool:
        return isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() in self._clean

    def _of_sums(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return the random walk of a sum, from the same call on squares and on ones."""
        if name not in SUMS and name not in SCATTERED:
            return None
        unit = self.unit if name in SCATTERED else self._sums
        plain = map_tensors(list(args), torch.clone) if name.endswith("_") else args
        exact = func(*plain, **kwargs)
        squares, ones = (
            func(*squared(list(args)), **kwargs),
            func(*all_ones(list(args)), **kwargs),
        )
        triples = zip(*(tree_flatten(one)[0] for one in (exact, squares, ones)))
        found: list[Any] = [sigma(a, b, c, unit) if isinstance(a, torch.Tensor) else None for a, b, c in triples]
        if name == "convolution_backward" and self.unit > unit:  # terms of taps and images are added in 16 bits
            for at, terms in enumerate((math.prod(args[2].shape[2:]), args[0].shape[0])):
                if found[at] is not None:
                    count = torch.tensor(float(terms), dtype=torch.float64)
                    found[at] = found[at].hypot(sigma(exact[at], squares[at], count, self.unit))
        return found

    def _of_steps(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        unit, source = self.accumulator, args[0] if args else None
        if not isinstance(source, torch.Tensor) or not source.numel() or not source.is_floating_point():
            return None
        results = [one for one in tree_flatten(out)[0] if isinstance(one, torch.Tensor)]
        if not results or not results[0].numel():
            return None
        if name in SOFTMAX:
            dim = args[1]
            terms = source.shape[dim] if source.dim() else 1
            reach = (source - source.amax(dim, keepdim=True)).abs() if source.dim() else source.abs()
            relative = unit * (reach + REDUCED * math.sqrt(terms))
            if self.is_recomputed:  # from the scores and the logarithm of their sum, each rounded
                largest = source.abs().masked_fill(torch.isinf(source), 0.0).amax(dim, keepdim=True)
                relative = relative + unit * largest
            return [relative * results[0].abs() if name != "_log_softmax" else relative]
        if name in BY_EXP:
            return [torch.full_like(results[0], ROUNDING * unit)]
        terms = source.numel() / results[0].numel()
        if name == "mean":
            squares = (source * source).mean(*args[1:], **kwargs)
            return [of_mean(results[0], squares, terms, unit)]
        if name == "var_mean":
            scale = REDUCED * math.sqrt(terms) * unit
            return [scale * results[0].abs(), scale * (results[0] + results[1] ** 2).sqrt()]
        if name in REDUCTIONS:
            size = [one.abs() + (source.abs().amax() if name == "logsumexp" else 0.0) for one in results]
            return [REDUCED * math.sqrt(max(terms, 1.0)) * unit * one for one in size]
        return None


def _storage_copy(one: Any) -> Any:
    """Return a flat copy of the whole storage of a tensor."""
    return torch.empty(0, dtype=one.dtype).set_(one.untyped_storage().clone())


def _shares(out: Any, args: Any) -> bool:
    """Return whether a result is a view of an argument."""
    if not isinstance(out, torch.Tensor) or not out.numel():
        return False
    place = out.untyped_storage().data_ptr()
    flat = tree_flatten(args)[0]
    return any(isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == place for one in flat)
