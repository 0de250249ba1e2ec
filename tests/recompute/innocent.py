# ruff: noqa: E501 one case a line
"""Generated innocent calls: torch runs each on the CPU, and the inputs and outputs become a dump in msprobe's layout.

A replay of such a dump must accuse no call. The slow check draws 2,300 calls and prints each one that is accused:

    python -m tests.recompute.innocent --seed 1 --calls 2300
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import torch

from npucmp import replay
from npucmp.model import ReplayedOutput, ReplayVerdict

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WEIGHTS = (4, 4, 4, 1)
SCALARS = (0.1, -0.1, 0.3, 0.5, 0.7, 1.1, 1.0, 2.0, 3, -2, 1e-3, 1 / 3, 0.2, 2.5, -0.6, 7.3)
FACTORS = (1.1, 1.5, 2.0, 0.7, 2.3, 0.6, 1.3, 3.7)


class Record(NamedTuple):
    """A recorded call: name, arguments before it ran, results, gradients of the results and of the inputs."""

    name: str
    args: Any
    kwargs: dict[str, Any]
    outputs: list[Any]
    given: list[Any]
    gradients: list[Any]


class Draw:
    """Random tensors and scalars of one call."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(self.random.randrange(1 << 40))
        self.dtype = self.random.choices(DTYPES, WEIGHTS)[0]
        self.kind = self.random.choice(("normal", "tenths", "offset", "heavy", "small", "integral", "twice"))
        self.scalar = self.random.choice(SCALARS)
        self.is_planted = self.random.random() < 0.5  # values next to the scalar, where a comparison turns

    def x(self, *shape: int, dtype: Any = None) -> Any:
        dtype = self.dtype if dtype is None else dtype
        plain = torch.randn(shape, generator=self.torch, dtype=torch.float64)
        kind = self.kind
        if kind == "tenths":
            plain = (plain * 10).round() / 10
        elif kind == "offset":
            plain = plain * 0.1 + 5
        elif kind == "heavy":
            plain = plain * torch.exp(2 * torch.randn(shape, generator=self.torch, dtype=torch.float64))
        elif kind == "small":
            plain = plain * 1e-3
        elif kind == "integral":
            plain = (plain * 3).round()
        elif kind == "twice":
            plain = (plain * 4).round() / 4
        found = plain.to(dtype)
        if self.is_planted and found.dim() and found.is_floating_point():
            value = torch.tensor(self.scalar, dtype=dtype)
            for near in (value, -value, torch.nextafter(value, value * 2), torch.nextafter(value, value * 0)):
                found[torch.rand(shape, generator=self.torch) < 0.08] = near
        return found

    def positive(self, *shape: int) -> Any:
        return self.x(*shape).abs() + 0.25

    def unit(self, *shape: int) -> Any:
        return (torch.rand(shape, generator=self.torch, dtype=torch.float64) * 0.98 + 0.01).to(self.dtype)

    def i(self, high: int, *shape: int) -> Any:
        return torch.randint(0, high, shape, generator=self.torch)

    def mask(self, *shape: int) -> Any:
        return torch.rand(shape, generator=self.torch) < 0.4

    def s(self) -> Any:
        return self.scalar

    def f(self) -> float:
        return float(abs(self.s()))

    def pick(self, *some: Any) -> Any:
        return self.random.choice(some)

    def shape(self) -> tuple[int, ...]:
        return self.random.choice(((7,), (5, 9), (2, 3, 8), (33, 17), (2, 4, 6, 5), ()))


Make = Callable[[Draw], Any]  # → positional arguments, or these and keywords
CALLS: dict[str, list[tuple[str, Make]]] = {}


def add(prefixes: str, names: str, *makes: Make) -> None:
    for prefix in prefixes.split():
        for name in names.split():
            CALLS.setdefault(f"{prefix}.{name}", []).extend((name, one) for one in makes)


BOTH = "Torch Tensor"
add(BOTH, "exp exp2 expm1 sin cos tanh sigmoid erf erfc atan sinh cosh asinh square abs neg negative sign floor ceil "
    "trunc isnan isinf isfinite logical_not nan_to_num sinc tan", lambda g: (g.x(*g.shape()),))  # fmt: skip
add(BOTH, "log log2 log10 log1p sqrt rsqrt reciprocal", lambda g: (g.positive(*g.shape()),))
add(BOTH, "asin acos atanh erfinv logit", lambda g: (g.unit(*g.shape()),))
add(BOTH, "acosh", lambda g: (g.positive(4, 7) + 1,))
add(BOTH, "round", lambda g: (g.x(*g.shape()),), lambda g: ((g.x(*g.shape()),), {"decimals": g.pick(1, 2, 0, -1, 3)}))
add(BOTH, "eq ne lt le gt ge greater greater_equal less less_equal not_equal",
    lambda g: (g.x(*g.shape()), g.s()), lambda g: (g.x(*g.shape()), g.s()), lambda g: (g.x(5, 9), g.x(9)))  # fmt: skip
add("Tensor", "__eq__ __ne__ __lt__ __le__ __gt__ __ge__", lambda g: (g.x(*g.shape()), g.s()),
    lambda g: (g.x(5, 9), g.s()), lambda g: (g.x(5, 9), g.x(5, 9)), lambda g: (g.i(5, 4, 4), g.s()))  # fmt: skip
add("Tensor", "eq_ ge_ lt_", lambda g: (g.x(4, 6), g.s()))
add(BOTH, "add sub", lambda g: (g.x(5, 9), g.x(5, 9)), lambda g: (g.x(5, 9), g.s()),
    lambda g: ((g.x(5, 9), g.x(9)), {"alpha": g.s()}))  # fmt: skip
add(BOTH, "mul", lambda g: (g.x(5, 9), g.x(5, 1)), lambda g: (g.x(*g.shape()), g.s()))
add(BOTH, "div true_divide", lambda g: (g.x(5, 9), g.positive(9)), lambda g: (g.x(*g.shape()), g.s()))
add(BOTH, "div", lambda g: ((g.x(5, 9), g.positive(9)), {"rounding_mode": g.pick("floor", "trunc")}),
    lambda g: ((g.x(5, 9), g.s()), {"rounding_mode": g.pick("floor", "trunc")}))  # fmt: skip
add(BOTH, "floor_divide remainder fmod", lambda g: (g.x(5, 9), g.positive(9)), lambda g: (g.x(*g.shape()), g.s()))
add("Tensor", "__floordiv__ __mod__ __ifloordiv__ floor_divide_ remainder_ fmod_", lambda g: (g.x(5, 9), g.s()),
    lambda g: (g.x(5, 9), g.positive(9)))  # fmt: skip
add(BOTH, "pow", lambda g: (g.positive(5, 9), g.s()), lambda g: (g.positive(5, 9), g.x(9)))
add("Tensor", "__pow__", lambda g: (g.positive(5, 9), g.s()))
add("Tensor", "__rpow__", lambda g: (g.x(5, 9).clamp(-4, 4), g.f()))
add("Tensor", "__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __itruediv__ "
    "add_ sub_ mul_ div_", lambda g: (g.x(*g.shape()), g.s()), lambda g: (g.x(4, 5), g.s()))  # fmt: skip
add("Tensor", "__rtruediv__", lambda g: (g.positive(6, 7), g.s()))
add("Tensor", "__add__ __sub__ __mul__ __truediv__ __iadd__ add_ mul_", lambda g: (g.x(4, 5), g.positive(5)))
add("Tensor", "exp_ sqrt_ tanh_ sigmoid_ abs_ neg_ floor_ round_ relu_", lambda g: (g.positive(4, 5),))
add(BOTH, "lerp", lambda g: (g.x(4, 5), g.x(4, 5), g.f()), lambda g: (g.x(4, 5), g.x(4, 5), g.unit(4, 5)))
add(BOTH, "addcmul addcdiv", lambda g: ((g.x(4, 5), g.x(4, 5), g.positive(4, 5)), {"value": g.s()}))
add(BOTH, "atan2 hypot logaddexp maximum minimum copysign", lambda g: (g.x(4, 5), g.x(4, 5)))
add(BOTH, "heaviside", lambda g: (g.x(4, 5), g.x(5)))
add(BOTH, "dist", lambda g: (g.x(4, 5), g.x(4, 5)), lambda g: (g.x(4, 5), g.x(4, 5), g.pick(1, 2.0, 3.0)))
add("Torch", "cdist", lambda g: (g.x(4, 5), g.x(6, 5)))
add(BOTH, "clamp clip", lambda g: (g.x(*g.shape()), -g.f(), g.f()), lambda g: ((g.x(4, 5),), {"min": g.s()}))
add(BOTH, "clamp_min clamp_max", lambda g: (g.x(*g.shape()), g.s()))
add("Tensor", "clamp_ clamp_min_", lambda g: (g.x(4, 5), g.s()))
add(BOTH, "matmul", lambda g: (g.x(4, 16), g.x(16, 5)), lambda g: (g.x(2, 3, 4, 16), g.x(16, 5)),
    lambda g: (g.x(40), g.x(40)))  # fmt: skip
add("Tensor", "__matmul__", lambda g: (g.x(4, 16), g.x(16, 5)))
add(BOTH, "mm", lambda g: (g.x(4, 16), g.x(16, 5)))
add(BOTH, "bmm", lambda g: (g.x(2, 4, 16), g.x(2, 16, 5)))
add(BOTH, "mv", lambda g: (g.x(4, 16), g.x(16)))
add(BOTH, "dot inner", lambda g: (g.x(50), g.x(50)))
add(BOTH, "outer", lambda g: (g.x(5), g.x(7)))
add(BOTH, "addmm", lambda g: (g.x(5), g.x(4, 16), g.x(16, 5)),
    lambda g: ((g.x(4, 5), g.x(4, 16), g.x(16, 5)), {"alpha": g.s(), "beta": g.s()}))  # fmt: skip
add(BOTH, "baddbmm", lambda g: (g.x(2, 4, 5), g.x(2, 4, 16), g.x(2, 16, 5)),
    lambda g: ((g.x(2, 4, 5), g.x(2, 4, 16), g.x(2, 16, 5)), {"alpha": g.f(), "beta": g.pick(0, 1, 0.1)}))  # fmt: skip
add(BOTH, "addbmm", lambda g: (g.x(4, 5), g.x(2, 4, 16), g.x(2, 16, 5)))
add(BOTH, "addmv", lambda g: (g.x(4), g.x(4, 6), g.x(6)))
add(BOTH, "addr", lambda g: (g.x(4, 6), g.x(4), g.x(6)))
add(
    "Torch",
    "einsum",
    lambda g: ("bij,bjk->bik", g.x(2, 4, 9), g.x(2, 9, 5)),
    lambda g: ("ij,kj->ik", g.x(4, 9), g.x(3, 9)),
)
add("Torch", "tensordot", lambda g: ((g.x(4, 3, 5), g.x(3, 5, 6)), {"dims": 2}))
add("Torch", "chain_matmul", lambda g: (g.x(4, 8), g.x(8, 6), g.x(6, 5)))
add(BOTH, "sum mean nansum", lambda g: (g.x(*g.shape()),), lambda g: (g.x(5, 60), g.pick(0, 1, -1)),
    lambda g: ((g.x(4, 5, 6),), {"dim": (0, 2), "keepdim": g.pick(True, False)}))  # fmt: skip
add(BOTH, "sum mean", lambda g: ((g.x(5, 9),), {"dtype": torch.float32}))
add(BOTH, "std var", lambda g: (g.x(6, 30),), lambda g: ((g.x(6, 30),), {"dim": -1, "unbiased": g.pick(True, False)}))
add(BOTH, "prod", lambda g: (g.unit(12) + 0.5,), lambda g: (g.unit(5, 9) + 0.5, 1))
add(BOTH, "cumsum", lambda g: (g.x(5, 40), g.pick(0, 1)))
add(BOTH, "cumprod", lambda g: (g.unit(5, 9) + 0.5, 1))
add(
    BOTH,
    "norm",
    lambda g: (g.x(5, 40),),
    lambda g: (g.x(5, 40), g.pick(1, 2, 3)),
    lambda g: ((g.x(5, 40),), {"p": 2, "dim": 1}),
)
add(BOTH, "logsumexp", lambda g: (g.x(5, 20), g.pick(0, 1)))
add(
    BOTH,
    "softmax log_softmax",
    lambda g: (g.x(5, 20), g.pick(0, 1, -1)),
    lambda g: ((g.x(5, 20), -1), {"dtype": torch.float32}),
)
add(BOTH, "trace", lambda g: (g.x(9, 9),))
add(BOTH, "renorm", lambda g: (g.x(5, 9), 2, 0, g.f()))
add(BOTH, "cross", lambda g: ((g.x(5, 3), g.x(5, 3)), {"dim": 1}))
add(BOTH, "diff", lambda g: (g.x(5, 9),))
add(BOTH, "cov", lambda g: (g.x(5, 40),))
add(BOTH, "median", lambda g: (g.x(5, 9),), lambda g: (g.x(5, 9), 1))
add(BOTH, "max min", lambda g: (g.x(5, 9),), lambda g: (g.x(5, 9), 1), lambda g: (g.x(5, 9), g.x(5, 9)))
add(BOTH, "amax amin argmax argmin", lambda g: (g.x(5, 9), 1))
add(BOTH, "cummax cummin", lambda g: (g.x(5, 9), 1))
add(BOTH, "kthvalue", lambda g: (g.x(5, 9), 3, 1))
add(BOTH, "mode", lambda g: (g.x(5, 9), 1))
add(BOTH, "topk", lambda g: (g.x(5, 9), 3))
add(BOTH, "sort argsort", lambda g: (g.x(5, 9), 1))
add(BOTH, "all any", lambda g: (g.mask(5, 9), 1), lambda g: (g.x(5, 9),))
add(BOTH, "reshape", lambda g: (g.x(4, 6), (3, 8)))
add("Tensor", "view", lambda g: (g.x(4, 6), 3, 8), lambda g: (g.x(4, 6), (-1,)))
add(BOTH, "transpose swapaxes movedim", lambda g: (g.x(4, 6, 2), 0, 2))
add(BOTH, "permute", lambda g: (g.x(4, 6, 2), (2, 0, 1)))
add(BOTH, "t clone detach flatten squeeze", lambda g: (g.x(4, 6),))
add("Tensor", "contiguous float half bfloat16 double int long bool t", lambda g: (g.x(4, 6),), lambda g: (g.x(3, 2),))
add("Tensor", "float half bfloat16 double int long bool", lambda g: (g.i(500, 4, 6),))
add("Tensor", "to type", lambda g: (g.x(4, 6), g.pick(torch.float16, torch.bfloat16, torch.float32, torch.int32)))
add("Tensor", "to", lambda g: ((g.x(4, 6),), {"dtype": g.pick(torch.float16, torch.bfloat16, torch.float64)}))
add(
    "Tensor",
    "type_as",
    lambda g: (g.x(4, 6), g.x(2, dtype=torch.bfloat16)),
    lambda g: (g.x(4, 6), g.x(2, dtype=torch.float16)),
)
add("Tensor", "view_as reshape_as expand_as", lambda g: (g.x(4, 6), g.x(4, 6)))
add(BOTH, "unsqueeze", lambda g: (g.x(4, 6), 1))
add("Tensor", "expand", lambda g: (g.x(4, 1), 4, 6))
add("Tensor", "repeat", lambda g: (g.x(4, 2), 2, 3))
add(BOTH, "tile", lambda g: (g.x(4, 2), (2, 3)))
add(BOTH, "narrow", lambda g: (g.x(4, 6), 1, 2, 3))
add(BOTH, "select", lambda g: (g.x(4, 6), 1, 2))
add(BOTH, "chunk split", lambda g: (g.x(4, 6), 2, 1))
add(BOTH, "tensor_split unbind", lambda g: (g.x(4, 6), 2) if g.pick(0, 1) else (g.x(2, 6), 1))
add(BOTH, "roll", lambda g: (g.x(4, 6), 2, 1))
add(BOTH, "flip", lambda g: (g.x(4, 6), (1,)))
add(BOTH, "rot90", lambda g: (g.x(4, 6),))
add(BOTH, "tril triu", lambda g: (g.x(6, 6),), lambda g: (g.x(6, 6), 1))
add(BOTH, "diag diagonal", lambda g: (g.x(6, 6),))
add(BOTH, "gather", lambda g: (g.x(4, 6), 1, g.i(6, 4, 3)))
add(BOTH, "index_select", lambda g: (g.x(4, 6), 1, g.i(6, 3)))
add(BOTH, "take", lambda g: (g.x(4, 6), g.i(24, 5)))
add(BOTH, "take_along_dim", lambda g: (g.x(4, 6), g.i(6, 4, 2), 1))
add(
    BOTH,
    "masked_fill",
    lambda g: (g.x(4, 6), g.mask(4, 6), g.s()),
    lambda g: (g.x(4, 6), g.mask(6), g.pick(float("-inf"), -1e4)),
)
add("Tensor", "masked_fill_", lambda g: (g.x(4, 6), g.mask(4, 6), g.s()))
add(BOTH, "masked_select", lambda g: (g.x(4, 6), g.mask(4, 6)))
add("Torch", "where", lambda g: (g.mask(4, 6), g.x(4, 6), g.x(4, 6)), lambda g: (g.mask(4, 6), g.x(4, 6), g.s()))
add("Tensor", "where", lambda g: (g.x(4, 6), g.mask(4, 6), g.s()))
add(
    BOTH,
    "index_add scatter_add",
    lambda g: (g.x(4, 6), 1, g.i(6, 6), g.x(4, 6)) if False else (g.x(8, 6), 0, g.i(8, 20), g.x(20, 6)),
)
add(BOTH, "scatter_add", lambda g: (g.x(8, 6), 0, g.i(8, 20, 6), g.x(20, 6)))
add(
    BOTH,
    "scatter",
    lambda g: (g.x(8, 6), 0, g.i(8, 1, 6), g.s()),
    lambda g: ((g.x(8, 6), 0, g.i(8, 3, 6), g.s()), {"reduce": g.pick("add", "multiply")}),
)
add(BOTH, "index_fill", lambda g: (g.x(8, 6), 0, g.i(8, 2), g.s()))
add(BOTH, "index_copy", lambda g: (g.x(8, 6), 0, torch.tensor([3, 1]), g.x(2, 6)))
add(BOTH, "repeat_interleave", lambda g: (g.x(4, 3), 2))
add(BOTH, "searchsorted", lambda g: (g.x(9).sort().values, g.x(5)), lambda g: (g.x(9).sort().values, g.f()))
add("Torch", "bucketize", lambda g: (g.x(5, 4), g.x(9).sort().values))
add(BOTH, "bincount", lambda g: (g.i(6, 30),))
add(
    BOTH,
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor",
    lambda g: (g.mask(5, 6), g.mask(5, 6)),
)
add(BOTH, "unflatten", lambda g: (g.x(4, 6), 1, (2, 3)))
add(BOTH, "equal", lambda g: (g.x(4), g.x(4)))
add("Torch", "cat concat stack hstack vstack dstack", lambda g: ([g.x(3, 4), g.x(3, 4)],))
add("Torch", "cat", lambda g: (([g.x(3, 4), g.x(2, 4, dtype=torch.float32)],), {"dim": 0}))
add("Torch", "broadcast_to", lambda g: (g.x(4, 1), (4, 6)))
add("Tensor", "__getitem__", lambda g: (g.x(6, 8), g.pick(2, slice(1, 5, 2))), lambda g: (g.x(6, 8), (slice(None, None, None), 3)),
    lambda g: (g.x(6, 8), g.mask(6)), lambda g: (g.x(6, 8), g.i(6, 4)))  # fmt: skip
add("Tensor", "__setitem__", lambda g: (g.x(6, 8), 2, g.s()), lambda g: (g.x(6, 8), g.mask(6, 8), g.s()))
add("Tensor", "__and__ __or__ __xor__", lambda g: (g.mask(5, 6), g.mask(5, 6)))
add("Tensor", "__neg__ __abs__", lambda g: (g.x(5, 6),))
add("Tensor", "__invert__", lambda g: (g.mask(5, 6),))
add("Tensor", "fill_", lambda g: (g.x(5, 6), g.s()))
add("Tensor", "zero_", lambda g: (g.x(5, 6),))
add("Tensor", "copy_", lambda g: (g.x(5, 6), g.x(5, 6, dtype=g.pick(*DTYPES))))
add("Tensor", "new_full", lambda g: (g.x(5), (3, 4), g.s()))
add("Tensor", "new_zeros new_ones", lambda g: (g.x(5), (3, 4)))
F = "Functional"
add(F, "linear", lambda g: (g.x(6, 32), g.x(8, 32), g.x(8)), lambda g: (g.x(2, 6, 32), g.x(8, 32)))
add(F, "conv1d", lambda g: (g.x(2, 4, 12), g.x(6, 4, 3), g.x(6)))
add(
    F,
    "conv2d",
    lambda g: (g.x(2, 4, 8, 8), g.x(6, 4, 3, 3), g.x(6)),
    lambda g: ((g.x(2, 4, 8, 8), g.x(4, 1, 3, 3)), {"padding": 1, "groups": 4, "stride": 2}),
)
add(F, "conv3d", lambda g: (g.x(1, 2, 5, 5, 5), g.x(3, 2, 2, 2, 2)))
add(F, "conv_transpose1d", lambda g: (g.x(2, 4, 9), g.x(4, 3, 3)))
add(F, "conv_transpose2d", lambda g: (g.x(2, 4, 5, 5), g.x(4, 3, 3, 3)))
add(F, "bilinear", lambda g: (g.x(5, 4), g.x(5, 6), g.x(3, 4, 6), g.x(3)))
add(F, "softmax log_softmax softmin", lambda g: (g.x(5, 20), -1), lambda g: ((g.x(4, 5, 6),), {"dim": 1}))
add(
    F,
    "layer_norm",
    lambda g: (g.x(6, 32), (32,)),
    lambda g: (g.x(6, 32), (32,), g.x(32), g.x(32), g.pick(1e-5, 1e-6, 1e-12)),
)
add(F, "rms_norm", lambda g: (g.x(6, 32), (32,), g.x(32), g.pick(1e-5, 1e-6)))
add(
    F,
    "batch_norm",
    lambda g: (
        (g.x(6, 5, 4, 4), g.x(5), g.positive(5), g.x(5), g.x(5)),
        {"training": g.pick(True, False), "eps": 1e-5, "momentum": 0.1},
    ),
)
add(F, "group_norm", lambda g: (g.x(3, 8, 5), 4, g.x(8), g.x(8), 1e-5))
add(F, "instance_norm", lambda g: (g.x(3, 4, 9),))
add(F, "local_response_norm", lambda g: (g.x(3, 6, 9), 3))
add(F, "normalize", lambda g: (g.x(5, 9),), lambda g: ((g.x(5, 9),), {"p": g.pick(1.0, 2.0, 3.0), "dim": 1}))
add(F, "gelu", lambda g: (g.x(5, 9),), lambda g: ((g.x(5, 9),), {"approximate": "tanh"}))
add(F, "silu mish elu selu celu sigmoid tanh softplus softsign logsigmoid hardswish hardsigmoid tanhshrink leaky_relu "
    "relu relu6 hardtanh hardshrink", lambda g: (g.x(*g.shape()),), lambda g: (g.x(40, 7),))  # fmt: skip
add(F, "elu celu leaky_relu hardshrink softplus", lambda g: (g.x(30, 7), g.f()))
add(F, "hardtanh", lambda g: (g.x(5, 7), -g.f(), g.f()))
add(F, "threshold", lambda g: (g.x(5, 7), g.s(), g.s()))
add(F, "prelu", lambda g: (g.x(5, 4, 3), g.x(4)))
add(F, "glu", lambda g: (g.x(5, 8),))
add(F, "avg_pool1d max_pool1d", lambda g: (g.x(2, 3, 12), 3))
add(
    F,
    "avg_pool2d max_pool2d",
    lambda g: (g.x(2, 3, 8, 8), 2),
    lambda g: ((g.x(2, 3, 8, 8), 3), {"stride": 2, "padding": 1}),
)
add(F, "avg_pool3d max_pool3d", lambda g: (g.x(2, 3, 4, 4, 4), 2))
add(F, "adaptive_avg_pool1d adaptive_max_pool1d", lambda g: (g.x(2, 3, 12), 5))
add(F, "adaptive_avg_pool2d adaptive_max_pool2d", lambda g: (g.x(2, 3, 8, 8), (3, 3)))
add(F, "adaptive_avg_pool3d", lambda g: (g.x(2, 3, 4, 4, 4), 2))
add(F, "lp_pool1d", lambda g: (g.positive(2, 3, 12), 2.0, 3))
add(F, "lp_pool2d", lambda g: (g.positive(2, 3, 8, 8), 2.0, 2))
add(F, "interpolate", lambda g: ((g.x(2, 3, 8, 9),), {"scale_factor": g.pick(*FACTORS), "mode": g.pick("nearest", "nearest-exact", "bilinear", "bicubic")}),
    lambda g: ((g.x(2, 3, 40),), {"scale_factor": g.pick(*FACTORS), "mode": g.pick("nearest", "linear")}),
    lambda g: ((g.x(1, 2, 30, 31),), {"scale_factor": g.pick(*FACTORS)}),
    lambda g: ((g.x(2, 3, 8, 8),), {"scale_factor": g.pick(*FACTORS), "mode": "bilinear", "align_corners": g.pick(True, False)}),
    lambda g: ((g.x(2, 3, 8, 8),), {"scale_factor": g.pick(*FACTORS), "mode": "bilinear", "recompute_scale_factor": True}),
    lambda g: ((g.x(2, 3, 8, 8),), {"size": g.pick(13, (5, 11)), "mode": g.pick("nearest", "bilinear", "bicubic", "area")}),
    lambda g: ((g.x(1, 2, 4, 5, 6),), {"scale_factor": g.pick(*FACTORS), "mode": g.pick("nearest", "trilinear")}))  # fmt: skip
add(
    F,
    "grid_sample",
    lambda g: (
        (g.x(2, 3, 5, 6), (g.unit(2, 4, 4, 2) * 2 - 1)),
        {"mode": g.pick("bilinear", "nearest"), "padding_mode": g.pick("zeros", "border"), "align_corners": False},
    ),
)
add(F, "affine_grid", lambda g: ((g.x(2, 2, 3), (2, 3, 4, 5)), {"align_corners": g.pick(True, False)}))
add(F, "scaled_dot_product_attention", lambda g: (g.x(2, 2, 8, 16), g.x(2, 2, 8, 16), g.x(2, 2, 8, 16)),
    lambda g: ((g.x(2, 2, 8, 16), g.x(2, 2, 8, 16), g.x(2, 2, 8, 16)), {"is_causal": True, "scale": g.pick(0.1, 0.25)}))  # fmt: skip
add(
    F,
    "cross_entropy",
    lambda g: (g.x(6, 11), g.i(11, 6)),
    lambda g: ((g.x(6, 11), g.i(11, 6)), {"label_smoothing": 0.1, "reduction": g.pick("mean", "sum", "none")}),
)
add(F, "nll_loss", lambda g: (g.x(6, 11), g.i(11, 6)))
add(
    F,
    "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss",
    lambda g: ((g.x(6, 11), g.x(6, 11)), {"reduction": g.pick("mean", "sum", "none")}),
)
add(F, "smooth_l1_loss", lambda g: ((g.x(6, 11), g.x(6, 11)), {"beta": g.f()}))
add(F, "huber_loss", lambda g: ((g.x(6, 11), g.x(6, 11)), {"delta": g.f()}))
add(
    F,
    "kl_div",
    lambda g: ((g.x(6, 11), g.unit(6, 11)), {"reduction": g.pick("sum", "none", "batchmean") if False else "sum"}),
)
add(F, "binary_cross_entropy", lambda g: (g.unit(6, 11), g.unit(6, 11)))
add(F, "binary_cross_entropy_with_logits", lambda g: (g.x(6, 11), g.unit(6, 11)))
add(F, "cosine_similarity pairwise_distance", lambda g: (g.x(6, 11), g.x(6, 11)))
add("Torch", "cosine_similarity", lambda g: (g.x(6, 11), g.x(6, 11)))
add(F, "poisson_nll_loss", lambda g: (g.x(6, 7).clamp(-3, 3), g.positive(6, 7)))
add(F, "margin_ranking_loss", lambda g: ((g.x(9), g.x(9), g.x(9).sign()), {"margin": g.f()}))
add(F, "hinge_embedding_loss", lambda g: ((g.x(9), g.mask(9).to(g.dtype) * 2 - 1), {"margin": g.f()}))
add(F, "triplet_margin_loss", lambda g: ((g.x(6, 9), g.x(6, 9), g.x(6, 9)), {"margin": g.f()}))
add(F, "cosine_embedding_loss", lambda g: ((g.x(6, 9), g.x(6, 9), g.mask(6).long() * 2 - 1), {"margin": 0.1}))
add(F, "embedding", lambda g: (g.i(9, 5), g.x(9, 6)))
add(F, "one_hot", lambda g: (g.i(9, 5), 10))
add(
    F,
    "pad",
    lambda g: (g.x(4, 6), (1, 2), "constant", g.s()),
    lambda g: (g.x(2, 4, 6), (1, 2), g.pick("reflect", "replicate", "circular")),
)
add(F, "pixel_shuffle", lambda g: (g.x(2, 8, 3, 3), 2))
add(F, "pixel_unshuffle", lambda g: (g.x(2, 2, 4, 4), 2))
add(F, "channel_shuffle", lambda g: (g.x(2, 8, 3, 3), 2))
add(F, "unfold", lambda g: (g.x(2, 3, 6, 6), 3))
add(F, "dropout", lambda g: (g.x(30, 20) + 0.01, g.pick(0.1, 0.5), True))
add("Torch", "layer_norm", lambda g: (g.x(6, 32), (32,), g.x(32), g.x(32), 1e-5))


def records(seed: int, count: int) -> list[Record]:
    """The first `count` calls that this torch can make."""
    torch.manual_seed(seed)
    found: list[Record] = []
    names, numbers = sorted(CALLS), Counter[str]()
    trial = 0
    while len(found) < count and trial < 4 * count + 100:
        g = Draw(f"{seed} {trial}")
        key = names[trial % len(names)] if trial < count // 2 else g.random.choice(names)
        trial += 1
        _, make = g.random.choice(CALLS[key])
        try:
            one = _record(f"{key}.{numbers[key]}", key, make(g), g)
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError, AttributeError):
            continue  # this type has no such kernel
        numbers[key] += 1
        found.append(one)
    return found


def _record(name: str, key: str, made: Any, g: Draw) -> Record:
    prefix, _, word = key.partition(".")
    args, kwargs = made if len(made) == 2 and isinstance(made[1], dict) else (made, {})
    path = {"Functional": "nn.functional.", "Tensor": "Tensor.", "Torch": ""}[prefix]
    function = attrgetter(path + word)(torch)
    before = _copied(args)
    inputs = _copied(args)
    leaves: list[Any] = []
    writes = word.endswith("_") and (not word.startswith("__") or word.startswith("__i"))
    if (not writes or word == "__invert__") and word != "__setitem__":
        inputs = _with_gradients(inputs, leaves)
    result = function(*inputs, **kwargs)
    result = inputs[0] if result is None else result
    outputs = [one.detach().clone() for one in _tensors(result)]
    given: list[Any] = []
    gradients: list[Any] = []
    through = [one for one in _tensors(result) if one.requires_grad]
    if leaves and len(through) == len(outputs) == 1 and g.random.random() < 0.5:
        given = [g.x(*outputs[0].shape, dtype=outputs[0].dtype)]
        found = torch.autograd.grad(through, leaves, given, allow_unused=True)
        gradients = [None if one is None else one.detach() for one in found]
    return Record(name, before, kwargs, outputs, given, gradients)


def _copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    return type(tree)(_copied(one) for one in tree) if type(tree) in (list, tuple) else tree


def _with_gradients(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            leaves.append(tree.requires_grad_())
        return tree
    return type(tree)(_with_gradients(one, leaves) for one in tree) if type(tree) in (list, tuple) else tree


def _tensors(tree: Any) -> list[Any]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [one for part in tree for one in _tensors(part)] if isinstance(tree, (list, tuple)) else []


def write(some: list[Record], folder: Path) -> Path:
    """The calls as a dump of msprobe."""
    place = folder / "step0" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for one in some:
        name = f"{one.name}.forward"
        data[name] = {
            "input_args": [_leaf(f"{name}.input.{at}", value, place) for at, value in enumerate(one.args)],
            "input_kwargs": {key: _leaf(f"{name}.input.{key}", value, place) for key, value in one.kwargs.items()},
            "output": [_leaf(f"{name}.output.{at}", value, place) for at, value in enumerate(one.outputs)],
        }
    for one in reversed(some):
        name = f"{one.name}.backward"
        if one.given:
            data[name] = {
                "input": [_leaf(f"{name}.input.{at}", value, place) for at, value in enumerate(one.given)],
                "output": [_leaf(f"{name}.output.{at}", value, place) for at, value in enumerate(one.gradients)],
            }
    top = {"task": "tensor", "level": "L1", "framework": "pytorch", "data": data}
    (place / "dump.json").write_text(json.dumps(top))
    return folder


def _leaf(name: str, value: Any, place: Path) -> Any:
    if isinstance(value, torch.Tensor):
        torch.save(value.detach().contiguous().clone(), place / "dump_tensor_data" / f"{name}.pt")
        return {
            "type": "torch.Tensor",
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "data_name": f"{name}.pt",
        }
    if isinstance(value, (list, tuple)):
        return [_leaf(f"{name}.{at}", one, place) for at, one in enumerate(value)]
    if value is None:
        return None
    if isinstance(value, torch.dtype):
        return {"type": "torch.dtype", "value": str(value)}
    if isinstance(value, slice):
        return {"type": "slice", "value": [value.start, value.stop, value.step]}
    if isinstance(value, float) and not np.isfinite(value):
        return {"type": "float", "value": str(value)}
    return {"type": type(value).__name__, "value": value}


def accused(
    seed: int, count: int, folder: Path, jobs: int = 1
) -> tuple[list[tuple[str, ReplayedOutput]], list[tuple[str, ReplayedOutput]]]:
    """The rows that are guilty or crashed, and all rows, each with the name of its call."""
    found = replay(write(records(seed, count), folder), jobs=jobs)
    (one,) = found.replays
    run = one.run
    names = {one.order: one.name for one in run.operators}
    rows = [(names[one.order], one) for one in found.rows]
    return [(name, one) for name, one in rows if one.verdict is ReplayVerdict.GUILTY or one.status == "crashed"], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=2300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-v", action="store_true", help="The calls that were not replayed, too.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        guilty, rows = accused(options.seed, options.calls, Path(folder), options.jobs)
        (place,) = Path(folder).glob("step0/rank0/dump.json")
        data = json.loads(place.read_text())["data"]
    for name, one in guilty:
        print(
            name,
            one.slot,
            one.status,
            one.verdict,
            one.rms_ratio,
            one.max_ratio,
            one.bias,
            one.same_dtype_ratio,
            one.explanation,
            _brief(data, name),
        )
    if options.v:
        for name, one in rows:
            if one.status != "replayed":
                print("  not replayed:", name, one.slot, one.status, one.explanation)
    print(Counter(f"{one.status} {one.verdict.name}" for _, one in rows))
    print(f"{len(guilty)} of {len(rows)} outputs accused, {len({name for name, _ in guilty})} of {options.calls} calls")


def _brief(data: dict[str, Any], name: str) -> str:
    one = data[name.replace(".backward", ".forward")]
    return json.dumps([_short(value) for value in [*one["input_args"], one["input_kwargs"]]])


def _short(value: Any) -> Any:
    if isinstance(value, dict) and "data_name" in value:
        return value["dtype"] + str(value["shape"])
    if isinstance(value, dict) and set(value) == {"type", "value"}:
        return value["value"]
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
