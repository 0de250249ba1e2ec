"""Whether a tensor that no recorded operator wrote was given to the network, or may be made by the network itself.

Masks, positions, slots of a cache and buffers enter the recorded operators like inputs. The record of the whole network
lists what the network was given. Without this record, an operator that also reads what an earlier operator wrote stands
inside the network, and the network may count positions or draw the triangle of a mask without an input.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Optional

import numpy as np

from npucmp.comparability.tensors import readable_values
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.model import Operator, Pair, Run, TensorRef
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import Weight, containers, is_output, is_parameter, kind_of, mark_of, names_of

COUNTING = 0.5  # share of a row: chosen: padding and ends of packed requests do not count on, ids hardly ever do
SHORTEST = 4  # elements of a row that counts on, or of a triangle: chosen: fewer may do so by chance


class GivenInputs:
    """The tensors that the records of one run show to be given to the network."""

    def __init__(self, run: Run, weights: Mapping[str, Weight], context: ReadContext) -> None:
        self._context = context
        forward = [operator for operator in run.operators if not is_gradient(operator)]
        self.network = _network(forward)
        self._given = {mark_of(tensor) for tensor in _read_by(self.network)} - {None} if self.network else set()
        self._inside: set[int] = set()  # the orders of operators that read what an earlier one wrote
        parameters = {mark_of(weight.weight[1]) for weight in weights.values()}
        written: set[object] = set()
        for operator in forward:
            if not written.isdisjoint({mark_of(tensor) for tensor in _read_by(operator)} - parameters):
                self._inside.add(operator.order)
            written.update({mark_of(tensor) for tensor in operator.tensors if tensor.is_output} - {None})

    def is_of_network(self, pair: Pair) -> bool:
        """Whether the record of the whole network reads a tensor."""
        return pair.golden_op is self.network is not None and not is_output(pair) and not is_parameter(pair)

    def has(self, pair: Pair) -> bool:
        """Whether the records show that a tensor, which no recorded operator wrote, was given to the network."""
        operator, tensor = pair.golden_op, pair.golden
        if operator is None or tensor is None:
            return False
        if self._given:
            return mark_of(tensor) in self._given
        if op_type_of(operator).has("loss"):
            return True
        return operator.order not in self._inside and not self._is_made_of_nothing(tensor)

    def _is_made_of_nothing(self, tensor: TensorRef) -> bool:
        """Whether the rows of a tensor count on by one, as positions do, or a mask hides what stands behind each
        token; without values, whether whole numbers are places in a row."""
        values = readable_values(tensor, self._context)
        if values is None:
            return _holds_places(tensor)
        return _counts_on(values) or _is_triangle(values)


def _network(forward: list[Operator]) -> Optional[Operator]:
    """The record of a module that contains most operators; None without one."""
    scopes = {operator.name: operator.scope for operator in forward if operator.scope}
    members = Counter(name for operator in forward for name in {*containers(operator, scopes)})
    found = [(max(members[name] for name in names_of(one)), one) for one in forward if one.path]
    count, module = max(found, key=lambda pair: pair[0], default=(0, None))
    return module if 2 * count > len(forward) else None


def _read_by(operator: Operator) -> list[TensorRef]:
    return [tensor for tensor in operator.tensors if not tensor.is_output and not tensor.slot.startswith("param:")]


def _holds_places(tensor: TensorRef) -> bool:
    """Whether recorded figures are those of whole numbers that span at most the length of a row, more than a mask."""
    figures = tensor.statistics
    if figures is None or figures.max is None or figures.min is None or not tensor.shape:
        return False
    is_whole = kind_of(tensor.dtype) in ("i", "u") and figures.min >= 0 and figures.max > 1
    return is_whole and figures.max - figures.min < tensor.shape[-1]


def _counts_on(values: Array) -> bool:
    """Whether most integers are the one before them in their row plus one; padding and ends of requests do not count
    on."""
    if values.dtype.kind not in "iu" or not values.ndim or values.shape[-1] < SHORTEST:
        return False
    return float((np.diff(values.astype(np.int64)) == 1).mean()) >= COUNTING


def _is_triangle(values: Array) -> bool:
    """Whether the last two axes hold one number in the triangle behind the diagonal, and other ones before it."""
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < SHORTEST:
        return False
    behind = np.triu(np.ones(values.shape[-2:], bool), 1)
    hidden = values[..., behind]
    diagonal = np.diagonal(values, axis1=-2, axis2=-1)
    return bool(hidden.size) and bool((hidden == hidden.flat[0]).all() and (diagonal != hidden.flat[0]).any())
