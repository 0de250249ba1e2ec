"""Whether one checkpoint is an update of the optimizer further than the other.

It is proven where the state of the further side moves the other side's parameter to its own, within the rounding of
float32 in every element:

    Adam, AdamW       p' = p - decay * p - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    SGD with momentum p' = p - decay * p - rate * b

m, v and b are exp_avg, exp_avg_sq and momentum_buffer of the further side; t, beta1, beta2 and eps are recorded, or
torch's defaults. Rate and decay are two fitted numbers for all elements of a parameter. A state belongs to a parameter
if it fits; it has the same shape.
Source: torch.optim.Adam, AdamW, SGD.
"""

from __future__ import annotations

import math
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.training_state import TrainingState
from npucmp.errors import if_unreadable
from npucmp.model import Payload
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.sample import Array, only_value, row_numbers, rows_of, whole_values

FEWEST = 8  # elements: chosen: fewer fit two numbers by chance
WORK = 1 << 26  # elements of all parameters that are read: work
ROUND_OFF = 2.0**-24  # of a value: definition: of float32
ROUNDED = 8.0  # round-offs: chosen: square root, quotient, two products and two sums
SHOWN = 8.0  # times the rounding: chosen: a smaller movement shows no update
BETA1 = 0.9  # per update: definition: default of torch.optim.Adam
BETA2 = 0.999  # per update: definition: default of torch.optim.Adam
EPS = 1e-8  # of a root: definition: default of torch.optim.Adam


class ParameterUpdate(NamedTuple):
    """An update that a side has and the other lacks: `is_ahead` if it is the target's."""

    is_ahead: bool
    rate: float
    decay: float


class _Moments(NamedTuple):
    """The state of a parameter: first and second moment, None for SGD, and the corrections of their bias."""

    first: Payload
    second: Optional[Payload]
    corrections: tuple[float, float]
    eps: float

    def movement(self, first: Array, second: Optional[Array]) -> Array:
        """Return what a rate of one subtracts."""
        if second is None:
            return first
        return first / self.corrections[0] / (np.sqrt(second / self.corrections[1]) + self.eps)


class UpdateFinder:
    """Finds parameters that an update moved, from the training's state of both sides."""

    def __init__(self, target: TrainingState, golden: TrainingState, context: ReadContext) -> None:
        self._context, self._left = context, WORK
        self._of_shape: tuple[dict[tuple[int, ...], list[_Moments]], ...] = ({}, {})
        for state, of_shape in zip((target, golden), self._of_shape):
            for moments in _moments(state, context):
                of_shape.setdefault(moments.first.shape, []).append(moments)

    def update(self, pair: CheckpointPair) -> Optional[ParameterUpdate]:
        """Return the update between the sides of a pair; None if none is proven."""
        target, golden = pair.target, pair.golden
        if target is None or golden is None or target.payload is None or golden.payload is None:
            return None
        shape = golden.payload.shape
        if target.payload.shape != shape or math.prod(shape) < FEWEST:
            return None
        for is_ahead, of_shape in zip((True, False), self._of_shape):
            after, before = (target.payload, golden.payload) if is_ahead else (golden.payload, target.payload)
            for moments in of_shape.get(shape, ()):
                fitted = self._fitted(moments, after, before)
                if fitted is not None:
                    return ParameterUpdate(is_ahead, *fitted)
        return None

    @if_unreadable(None)
    def _fitted(self, moments: _Moments, after: Payload, before: Payload) -> Optional[tuple[float, float]]:
        """Return rate and decay if they move a parameter to its values after the update."""
        needed = [after, before, moments.first, *([moments.second] if moments.second is not None else [])]
        numbers, size = row_numbers(after.shape[0]), math.prod(after.shape)
        self._left -= size * len(numbers) // after.shape[0]
        if self._left < 0:
            return None
        rows = [rows_of(payload, numbers, self._context) for payload in needed]
        if _fit(moments, rows) is None or self._left < size:
            return None
        self._left -= size
        return _fit(moments, [whole_values(payload, self._context) for payload in needed])


@np.errstate(all="ignore")
def _fit(moments: _Moments, values: Sequence[Array]) -> Optional[tuple[float, float]]:
    after, before, *own = (value.reshape(-1) for value in values)
    movement = moments.movement(own[0], own[1] if len(own) > 1 else None)
    away = before - after
    if not (np.isfinite(away).all() and np.isfinite(movement).all()):
        return None
    columns = np.stack([movement, before], 1)
    sizes = np.abs(after) + np.abs(before)
    weights = 1.0 / np.maximum(sizes, sizes.max() * ROUND_OFF)  # small values are rounded less
    fitted = np.linalg.lstsq(columns * weights[:, None], away * weights, rcond=None)[0]
    rate, decay = (float(number) for number in fitted)
    rounding = ROUNDED * ROUND_OFF * (sizes + np.abs(rate * movement))
    is_moved = bool(np.linalg.norm(away) > SHOWN * np.linalg.norm(rounding))
    if rate <= 0 or not is_moved or (np.abs(away - columns @ [rate, decay]) > rounding).any():
        return None
    return rate, decay if (np.abs(decay * before) > rounding).any() else 0.0


def _moments(state: TrainingState, context: ReadContext) -> Iterator[_Moments]:
    """Yield the states of parameters in their order."""
    for name, ref in state.tensors.items():
        prefix, _, key = name.rpartition(".")
        if key == "momentum_buffer" and ref.payload is not None:
            yield _Moments(ref.payload, None, (1.0, 1.0), 0.0)
        second = state.tensors.get(f"{prefix}.exp_avg_sq")
        if key == "exp_avg" and ref.payload is not None and second is not None and second.payload is not None:
            steps = _steps(state, prefix, context)
            betas = [_setting(state, prefix, f"betas.{at}", beta) for at, beta in enumerate((BETA1, BETA2))]
            first, last = (1.0 - beta**steps if steps else 1.0 for beta in betas)
            yield _Moments(ref.payload, second.payload, (first, last), _setting(state, prefix, "eps", EPS))


def _steps(state: TrainingState, prefix: str, context: ReadContext) -> float:
    number, ref = state.numbers.get(f"{prefix}.step"), state.tensors.get(f"{prefix}.step")
    if number is None and ref is not None:
        number = only_value(ref, context)
    return float(number or 0)


def _setting(state: TrainingState, prefix: str, name: str, default: float) -> float:
    """Return a setting of the first group of parameters."""
    return float(state.numbers.get(f"{prefix.partition('state.')[0]}param_groups.0.{name}", default))
