"""Faults of one operator: what can be struck, and what the operator then computes."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple

import numpy as np

from tests.corpus.frameworks.tape import Arrays, Call

Random = np.random.Generator
Before = Callable[[str, Arrays, dict[str, Any], Random], None]
After = Callable[[str, Arrays, Arrays, Random], Arrays]

PRODUCT = re.compile(r"matmul|gemm|linear|addmm|conv|bmm|dot_general|dense|^mm$|baddbmm|einsum", re.I)
NORM = re.compile(r"norm", re.I)
SOFTMAX = re.compile(r"softmax", re.I)
EPS = re.compile(r"^eps(ilon)?$|variance_epsilon")


class Fault(NamedTuple):
    """fits: whether a call can be struck so; before, after: what changes in front of and behind its computation."""

    fits: Callable[[Call], bool]
    before: Before
    after: After


def _nothing(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    pass


def _same(type: str, inputs: Arrays, outputs: Arrays, random: Random) -> Arrays:
    return outputs


def _floats(call: Call) -> bool:
    first = call.outputs[0] if call.outputs else np.zeros(0)
    return first.dtype == np.float32 and first.size >= 16 and len(np.unique(first)) > 8 and not _moves(call)


def _moves(call: Call) -> bool:
    """Whether the call only hands on, takes or reorders values of its inputs."""
    out = call.outputs[0].ravel()
    for one in call.inputs:
        if one.size >= out.size and one.dtype == call.outputs[0].dtype and np.isin(out, one).all():
            return True
    joined = [one.ravel() for one in call.inputs if one.dtype == call.outputs[0].dtype]
    return len(joined) > 1 and bool(np.isin(out, np.concatenate(joined)).all())


def _epsilon(arguments: dict[str, Any]) -> Any:
    return next((key for key in arguments if EPS.search(key)), None)


def _small(call: Call) -> list[int]:
    """Places of inputs that are one small number, as an epsilon is."""
    return [k for k, one in enumerate(call.inputs) if one.size == 1 and 0 < float(one.ravel()[0]) < 2e-3]


def _fits_epsilon(call: Call) -> bool:
    return _epsilon(dict(call.arguments)) is not None or (
        bool(re.search("add", call.type, re.I)) and bool(_small(call))
    )


def _epsilon_before(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    key = _epsilon(arguments)
    if key is not None:
        arguments[key] = 0.1
        return
    for one in inputs:
        if one.size == 1 and 0 < float(one.ravel()[0]) < 2e-3:
            one[...] = 0.1


def _fits_bias(call: Call) -> bool:
    return bool(re.search(r"linear|addmm|conv|gemm|bias", call.type, re.I)) and any(
        one.ndim == 1 and one.size > 4 and one.dtype == np.float32 for one in call.inputs
    )


def _bias_before(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    for one in inputs:
        if one.ndim == 1 and one.dtype == np.float32:
            one[...] = 0


def _square(call: Call) -> list[int]:
    return [
        k for k, one in enumerate(call.inputs) if k and one.ndim == 2 and one.shape[0] == one.shape[1] and one.size > 16
    ]


def _transpose_before(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    for k, one in enumerate(inputs):
        if k and one.ndim == 2 and one.shape[0] == one.shape[1] and one.size > 16:
            inputs[k] = np.ascontiguousarray(one.T)
            return


def _is_mask(one: np.ndarray) -> bool:
    """Whether a tensor is bool, or holds 0 and one large negative number."""
    if one.size < 8 or one.dtype == np.bool_:
        return one.dtype == np.bool_ and one.size >= 8
    numbers = np.unique(one)
    return one.dtype.kind == "f" and len(numbers) == 2 and float(numbers[0]) <= -1e3 and float(numbers[1]) == 0


def _mask_before(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    for one in inputs:
        if one.dtype == np.bool_:
            one[...] = not re.search(r"masked_fill|le$", type)
        elif _is_mask(one):
            one[...] = 0


def _gelu_before(type: str, inputs: Arrays, arguments: dict[str, Any], random: Random) -> None:
    arguments["approximate"] = "none" if arguments.get("approximate") == "tanh" else "tanh"


def _axis_after(type: str, inputs: Arrays, outputs: Arrays, random: Random) -> Arrays:
    x = inputs[0].astype(np.float64)
    e = np.exp(x - x.max(-2, keepdims=True))
    return [(e / e.sum(-2, keepdims=True)).astype(np.float32), *outputs[1:]]


def _first(change: Callable[[np.ndarray, Random], np.ndarray]) -> After:
    """Return the fault that changes the first output."""

    def after(type: str, inputs: Arrays, outputs: Arrays, random: Random) -> Arrays:
        changed = np.ascontiguousarray(change(outputs[0].copy(), random), np.float32)
        return [changed.reshape(outputs[0].shape), *outputs[1:]]

    return after


def _coarse(x: np.ndarray, random: Random) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _noise(x: np.ndarray, random: Random) -> np.ndarray:
    return x + random.standard_normal(x.shape) * 0.02 * np.sqrt((x.astype(np.float64) ** 2).mean())


def _garbage(x: np.ndarray, random: Random) -> np.ndarray:
    return random.standard_normal(x.shape) * np.sqrt((x.astype(np.float64) ** 2).mean())


def _rows(x: np.ndarray, random: Random) -> np.ndarray:
    axis = next(k for k in reversed(range(max(1, x.ndim - 1))) if x.shape[k] > 1 or k == 0)
    return np.roll(x, 1, axis)


def _head(x: np.ndarray, random: Random) -> np.ndarray:
    x[..., : max(1, x.shape[-1] // 4)] *= 1.3
    return x


def _tile(x: np.ndarray, random: Random) -> np.ndarray:
    flat = x.reshape(-1)
    flat[: max(4, flat.size // 8)] = 0
    return x


def _swap(x: np.ndarray, random: Random) -> np.ndarray:
    axes = _equal_axes(x)
    return np.swapaxes(x, *axes)


def _equal_axes(x: np.ndarray) -> tuple[int, ...]:
    """Return two neighbouring equal axes of a tensor of 4 axes: H and W of an image; () if there are none."""
    if x.ndim != 4:
        return ()
    pairs = ((2, 3), (1, 2))
    return next((pair for pair in pairs if x.shape[pair[0]] == x.shape[pair[1]] > 3), ())


FAULTS = {
    "epsilon": Fault(_fits_epsilon, _epsilon_before, _same),
    "bias": Fault(_fits_bias, _bias_before, _same),
    "weight": Fault(lambda c: bool(PRODUCT.search(c.type)) and bool(_square(c)), _transpose_before, _same),
    "mask": Fault(lambda c: any(map(_is_mask, c.inputs)) and _floats(c), _mask_before, _same),
    "gelu": Fault(lambda c: bool(re.search("gelu$", c.type, re.I)), _gelu_before, _same),
    "axis": Fault(
        lambda c: bool(SOFTMAX.search(c.type)) and c.outputs[0].ndim > 2, _nothing, _axis_after
    ),
    "bfloat16": Fault(_floats, _nothing, _first(_coarse)),
    "scale": Fault(_floats, _nothing, _first(lambda x, random: x * 1.1)),
    "noise": Fault(_floats, _nothing, _first(_noise)),
    "rows": Fault(lambda c: _floats(c) and c.outputs[0].ndim > 1, _nothing, _first(_rows)),
    "head": Fault(lambda c: _floats(c) and c.outputs[0].shape[-1:] > (4,), _nothing, _first(_head)),
    "tile": Fault(_floats, _nothing, _first(_tile)),
    "swapped": Fault(lambda c: _floats(c) and bool(_equal_axes(c.outputs[0])), _nothing, _first(_swap)),
    "garbage": Fault(_floats, _nothing, _first(_garbage)),
}  # fmt: skip
