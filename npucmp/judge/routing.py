"""The experts that each token chose, as sets: how many the sides have in common in each layer, and which changes lie
beyond a tie.

A change of experts is a tie if the logits of the experts that were exchanged are nearer than rounding moves them: the
margin is the distance of the golden's logits of a dropped expert and of the one taken instead, and the noise is the
root mean square of the differences of the token's logits on both sides. In a clean run of another order of sums,
margins of changed choices are a few times the noise.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.judge.tolerance import FACTOR
from npucmp.measure.preview import array_of
from npucmp.model import Measurement, Pair
from npucmp.model.dtypes import lookup
from npucmp.model.roles import is_output
from npucmp.model.routing import RoutedLayer

Array = npt.NDArray[Any]

EXPERTS = re.compile(r"expert|rout(?:er|ed|ing)|(?:^|[._])moe|(?:^|[._])gat(?:e|ing)(?:$|[._])", re.IGNORECASE)
CHOICE = re.compile(r"top_?k", re.IGNORECASE)  # of experts, in a network that names experts
MOST = 64  # experts of a token: chosen: more ids in a row are no choice of experts
MANY = 4096  # experts of a layer: chosen: more are words of a vocabulary
LAYERED = 3  # axes: definition: engines record tokens, layers and experts in one tensor


class ExpertChange(NamedTuple):
    """A token whose experts differ: its row, the experts that one side alone has, and margin and noise of the logits,
    if they were recorded."""

    row: int
    target: tuple[int, ...]
    golden: tuple[int, ...]
    margin: Optional[float] = None
    noise: Optional[float] = None

    @property
    def is_tie(self) -> bool:
        return self.margin is not None and self.noise is not None and self.margin <= FACTOR * self.noise


def routed_layers(found: Sequence[Measurement], context: ReadContext) -> list[RoutedLayer]:
    """Return the layers of one step and rank whose ids of experts were compared, in graph order."""
    layers: list[RoutedLayer] = []
    has_experts: Optional[bool] = None
    for measurement in found:
        if measurement.moments is None or not may_hold_experts(measurement.pair):
            continue
        is_named = any(EXPERTS.search(name) for name in _names(measurement.pair))
        if not is_named and has_experts is None:
            has_experts = any(EXPERTS.search(one.pair.operator.name) for one in found)
        if is_named or has_experts:
            layers += _of_tensor(measurement, found, context)
    return layers


def may_hold_experts(pair: Pair) -> bool:
    """Return whether a tensor that an operator wrote holds ids of experts, or what top-k chose, by its type, shape and
    names."""
    golden = pair.golden
    if golden is None or pair.target is None or golden.shape != pair.target.shape or not is_output(pair):
        return False
    kind = lookup(golden.dtype)
    if kind is None or kind.kind not in "iu" or len(golden.shape) < 2 or not 1 < golden.shape[-1] <= MOST:
        return False
    return any(EXPERTS.search(name) or CHOICE.search(name) for name in _names(pair))


def _names(pair: Pair) -> tuple[str, ...]:
    return pair.operator.name, pair.slot, pair.golden.label if pair.golden is not None else ""


def changes_of(x: Array, y: Array, logits: Optional[tuple[Array, Array]]) -> list[ExpertChange]:
    """Return the rows whose sets of ids differ; `logits` of both sides have a row for each of these."""

    changed = np.flatnonzero((np.sort(x, -1) != np.sort(y, -1)).any(-1))
    found = []
    for row in map(int, changed):
        taken, dropped = np.setdiff1d(x[row], y[row]), np.setdiff1d(y[row], x[row])
        margin = noise = None
        if logits is not None and len(taken) and len(dropped):
            own, golden = (side[row].astype(np.float64) for side in logits)
            margin = float(abs(golden[dropped].min() - golden[taken].max()))
            noise = float(np.sqrt(np.mean(np.square(own - golden))))
        found.append(ExpertChange(row, tuple(map(int, taken)), tuple(map(int, dropped)), margin, noise))
    return found


def _of_tensor(measurement: Measurement, found: Sequence[Measurement], context: ReadContext) -> Iterator[RoutedLayer]:
    pair, moments = measurement.pair, measurement.moments
    assert pair.golden is not None and moments is not None
    shape = pair.golden.shape
    layered = len(shape) == LAYERED and "routed" in f"{pair.operator.name} {pair.golden.label}".lower()
    count, tokens = (shape[1], shape[0]) if layered else (1, int(np.prod(shape[:-1])))
    names = [(pair.operator.name, pair.slot, layer if layered else None) for layer in range(count)]
    both = _values(pair, context) if moments.differing else None
    if both is None:
        if not moments.differing:
            yield from (RoutedLayer(*name, tokens, 0, 0, 0, 1.0) for name in names)
        return
    if min(values.min() for values in both) < 0 or max(values.max() for values in both) >= MANY:
        return
    sides = [np.moveaxis(values, 1, 0) if layered else values.reshape(1, -1, shape[-1]) for values in both]
    highest = max(int(values.max()) for values in both)
    logits = None if layered else _logits(measurement, found, context, highest)
    for layer, name in enumerate(names):
        x, y = sides[0][layer], sides[1][layer]
        changes = changes_of(x, y, logits)
        beyond = [change for change in changes if not change.is_tie]
        moved = int((x != y).any(-1).sum()) - len(changes)
        lost = sum(len(change.golden) for change in changes)
        first = beyond[0] if beyond else changes[0] if changes else None
        yield RoutedLayer(
            *name, tokens, moved, len(changes), len(beyond), 1.0 - lost / max(1, y.size),
            None if first is None else first.row, () if first is None else _set(x, first.row),
            () if first is None else _set(y, first.row), None if first is None else first.margin,
            None if first is None else first.noise,
        )  # fmt: skip


def _set(ids: Array, row: int) -> tuple[int, ...]:
    return tuple(sorted(map(int, ids[row])))


def _logits(
    measurement: Measurement, found: Sequence[Measurement], context: ReadContext, highest: int
) -> Optional[tuple[Array, Array]]:
    """The floats of both sides that the operator of the ids read: a row for each row of ids, with a number for each id
    up to the highest. None without any."""
    golden = measurement.pair.golden
    for other in found:
        tensor = other.pair.golden
        if other.pair.order != measurement.pair.order or is_output(other.pair) or tensor is None or golden is None:
            continue
        kind = lookup(tensor.dtype)
        is_wide = tensor.shape[:-1] == golden.shape[:-1] and tensor.shape[-1:] > (highest,)
        if kind is not None and kind.kind == "f" and is_wide:
            both = _values(other.pair, context)
            if both is not None and both[0].shape == both[1].shape:
                return tuple(values.reshape(-1, values.shape[-1]) for values in both)  # type: ignore[return-value]
    return None


@if_unreadable(None)
def _values(pair: Pair, context: ReadContext) -> Optional[tuple[Array, Array]]:
    if pair.target is None or pair.golden is None:
        return None
    return array_of(pair.target, context), array_of(pair.golden, context)
