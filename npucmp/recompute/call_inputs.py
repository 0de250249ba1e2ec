"""Inputs of a recorded call for numpy's formulas of calls: arguments, gradients, recorded results.

A formula takes the steps (noisy_ops.py), these inputs, and then the arguments of the call under torch's names.
A backward formula returns nodes: the gradients that one node of an autograd graph may return, in its order, one for
each tensor that the call takes. msprobe records the gradients of the last node, which may be the node of a view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import MissingTensor, RefusedRecord
from npucmp.recompute.noisy_ops import Steps

Node = Sequence[Optional[Array]]  # gradients that one autograd node returns


class Random(RefusedRecord):
    """A call whose random numbers are not in the dump."""

    status = "random"


@dataclass(frozen=True)
class CallInputs:
    """args, kwargs  float tensors are float64, scalars have the value that a kernel receives
    shapes        shapes of the forward's results, by place
    recorded      dumped results of the forward, by place
    gradients     gradients of the results; None if not recorded
    doubts        guesses; they rule out GUILTY
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    recorded: Mapping[int, Array] = field(default_factory=dict)
    gradients: tuple[Optional[Array], ...] = ()
    doubts: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[Array]:
        """The tensors that the call reads."""
        return arrays_in([self.args, self.kwargs, self.gradients])

    @property
    def first(self) -> Optional[Array]:
        """The first argument, if it is a tensor."""
        return self.args[0] if self.args and isinstance(self.args[0], np.ndarray) else None

    def map_floats(self, change: Callable[[Array], Array]) -> CallInputs:
        """Return the inputs with each float tensor changed."""
        args, kwargs, gradients, recorded = map_arrays(
            [self.args, dict(self.kwargs), self.gradients, dict(self.recorded)],
            lambda one: change(one) if one.dtype.kind == "f" else one,
        )
        return replace(self, args=args, kwargs=kwargs, gradients=gradients, recorded=recorded, doubts=[])

    def doubt(self, words: str) -> None:
        if words not in self.doubts:
            self.doubts.append(words)

    def shape(self, at: int = 0) -> tuple[int, ...]:
        """Return the recorded shape of a result."""
        if at in self.shapes:
            return self.shapes[at]
        gradient = self.gradients[at] if at < len(self.gradients) else None
        if gradient is not None:
            return gradient.shape
        raise MissingTensor("the shape of its result was not recorded")

    @property
    def dy(self) -> Array:
        """The gradient of the first result."""
        found = self.gradients[0] if self.gradients else None
        if found is None:
            raise MissingTensor("the dump has no gradient of its result")
        return found.reshape(self.shapes[0]) if 0 in self.shapes and found.size == _size(self.shapes[0]) else found

    def y(self, m: Steps, value: Callable[[], Array], at: int = 0) -> Array:
        """Return the recorded result of the forward, which autograd saves; else `value()`."""
        if at in self.recorded and self.recorded[at].size == _size(self.shape(at)):
            return self.recorded[at]
        return value()


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def arrays_in(tree: Any) -> list[Array]:
    """Return the arrays of nested arguments, in order."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if isinstance(tree, Mapping):
        tree = [*tree.values()]
    return [one for part in tree for one in arrays_in(part)] if isinstance(tree, (list, tuple)) else []


def map_arrays(tree: Any, change: Callable[[Any], Any], kind: type = np.ndarray) -> Any:
    """Return nested arguments with each array changed, or each tensor of another kind."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_arrays(one, change, kind) for key, one in tree.items()}
    return type(tree)(map_arrays(one, change, kind) for one in tree) if type(tree) in (list, tuple) else tree


def reduced(m: Steps, gradient: Array, like: Any) -> Optional[Array]:
    """Return the gradient of an operand that was broadcast; None if it is no float tensor."""
    if not is_float(like):
        return None
    shape = like.shape
    more = gradient.ndim - len(shape)
    axes = [*range(more), *(more + at for at, n in enumerate(shape) if n == 1 and gradient.shape[more + at] != 1)]
    return m.sum(gradient, axes).reshape(shape) if axes else gradient


def is_float(one: Any) -> bool:
    return isinstance(one, np.ndarray) and one.dtype.kind == "f"


def tensor(one: Any, what: str = "an argument") -> Array:
    """Return an argument that must be a tensor; else raise RefusedRecord."""
    if not isinstance(one, np.ndarray):
        raise RefusedRecord(f"{what} is not a tensor")
    return one


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Return the axes of `dim`, counted from the front; all axes if `dim` is None or ()."""
    if dim is None or dim == ():
        return tuple(range(rank))
    axes = dim if isinstance(dim, tuple) else (dim,)
    return tuple(sorted({axis(one, rank) for one in axes}))


def axis(dim: Any, rank: int) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool) or not -max(1, rank) <= dim < max(1, rank):
        raise RefusedRecord(f"axis {dim!r:.20} of {rank} axes")
    return dim % max(1, rank)
