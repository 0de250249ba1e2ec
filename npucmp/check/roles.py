"""What each tensor of a run is to the network, by the records alone: parameter, gradient, buffer, input, label.

No value is read for it: it decides what is read together, and what else is to be found while a tensor is read.
"""

from __future__ import annotations

import math
import re
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model import Operator, Run, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import OpType, is_gradient, op_type_of

GIVEN = re.compile(r"inputs\d+|_arg_.*")  # as MindSpore and TensorFlow call what a network is given
Held = tuple[Operator, TensorRef]


class Weight(NamedTuple):
    """A parameter in one step, and its gradient; `order` of the first operator of its module; `named` as in facts."""

    name: str
    type: OpType
    order: int
    weight: Held
    gradient: Optional[Held] = None
    named: bool = True


def kind_of(dtype: str) -> str:
    """ "f" of floats, "i" and "u" of integers, "b", "c"; "" of a type that is not known."""
    row = lookup(dtype)
    return row.kind if row is not None else ""


def forward_of(run: Run) -> "list[Operator]":
    """Calls of the forward pass: those of operators, or where none were dumped the innermost modules."""
    found = [one for one in run.operators if not is_gradient(one) and any(t.is_output for t in one.tensors)]
    found = [one for one in found if not op_type_of(one).has("updates")]
    calls = [one for one in found if not one.path]
    if calls:
        return calls
    around = {one.scope for one in found} | {one.path.rpartition(".")[0] for one in found}
    return [one for one in found if one.name not in around and one.path not in around]


def is_layer(kind: OpType) -> bool:
    """Whether it multiplies by a weight of its own: linear layers and convolutions."""
    return kind.has("contracts") and bool({0, 1} & {*kind.parameters})


def weights_of(run: Run) -> "dict[str, Weight]":
    """The parameters of a step by name: those of modules, or where none were dumped what operators read as such."""
    found = _of_modules(run.operators)
    return found or _of_calls(forward_of(run), run.operators)


def _of_modules(operators: "Sequence[Operator]") -> "dict[str, Weight]":
    first: dict[str, int] = {}  # of the operators within a module
    for one in operators:
        if one.scope and not is_gradient(one):
            first.setdefault(one.scope, one.order)
    gradients = {
        _within(one, tensor): (one, tensor) for one in operators for tensor in one.tensors if tensor.slot[:5] == "grad:"
    }
    found: dict[str, Weight] = {}
    for one in operators:
        for tensor in one.tensors:
            if tensor.slot.startswith("param:") and not is_gradient(one):
                name = _within(one, tensor)
                order = min(one.order, first.get(one.name, one.order))
                found.setdefault(name, Weight(name, op_type_of(one), order, (one, tensor), gradients.get(name)))
    return found


def _within(operator: Operator, tensor: TensorRef) -> str:
    """ "layers.0.fc1.weight" of param:weight or grad:weight of Module.layers.0.fc1."""
    path = operator.path.partition(".")[2]
    return ".".join(filter(None, (path, tensor.slot.partition(":")[2])))


def _of_calls(calls: "Sequence[Operator]", operators: "Sequence[Operator]") -> "dict[str, Weight]":
    backward = {one.call: one for one in operators if one.phase == "backward" and one.call}
    found: dict[str, Weight] = {}
    for one in calls:
        kind, gradient = op_type_of(one), backward.get(one.call)
        for word, tensor in zip(("weight", "bias"), _read_as_parameters(one, kind)):
            name = f"{one.call or one.name}.{word}"
            found[name] = Weight(name, kind, one.order, (one, tensor), _gradient_of(tensor, gradient), named=False)
    return found


def _read_as_parameters(operator: Operator, kind: OpType) -> "Iterator[TensorRef]":
    places = [place for place in kind.parameters if place not in kind.overwritten]
    names = {f"input:{place}" for place in places} | ({"input:weight", "input:bias"} if places else set())
    return (one for one in operator.tensors if one.slot in names and one.shape)


def _gradient_of(tensor: TensorRef, backward: Optional[Operator]) -> Optional[Held]:
    """What a backward wrote in the shape of a parameter, or transposed: a Linear's lies so; the input's comes first."""
    for shape in (tensor.shape, tensor.shape[::-1]):
        fitting = [one for one in backward.tensors if one.is_output and one.shape == shape] if backward else []
        if fitting and backward is not None:
            return backward, fitting[-1]
    return None


def inputs_of(run: Run, weights: "Mapping[str, Weight]") -> "list[Held]":
    """What the network was given: read by a call of the forward pass, written by none before, and no parameter.

    Two tensors with the same figures are the same. Where a dump has no figures, what its framework names as given.
    """
    taken = {id(one.weight[1]) for one in weights.values()}
    if not any(tensor.statistics or tensor.checksum for one in run.operators for tensor in one.tensors):
        given = [one for one in run.operators if GIVEN.fullmatch(one.name)]
        return [(one, tensor) for one in given for tensor in one.tensors[:1]]
    reading = {one.order for one in forward_of(run)}
    seen: set[object] = {_mark(one.weight[1]) for one in weights.values()}
    found = []
    for one in run.operators:
        if is_gradient(one):
            break
        kind = op_type_of(one)
        own = {f"input:{place}" for place in kind.parameters}
        for tensor in one.tensors if one.order in reading else ():
            if tensor.is_output or tensor.slot in own or tensor.slot.startswith("param:") or id(tensor) in taken:
                continue
            mark = _mark(tensor)
            if mark is not None and mark not in seen and not tensor.trainable and math.prod(tensor.shape) > 1:
                found.append((one, tensor))
            seen.add(mark)
        seen.update(_mark(tensor) for tensor in one.tensors if tensor.is_output)
    return found


def _mark(tensor: TensorRef) -> object:
    """What a tensor is known by through views and copies: None where nothing was recorded of it."""
    told, count = tensor.statistics, math.prod(tensor.shape)
    if told is None or told.max is None:
        return (count, tensor.checksum) if tensor.checksum else None
    return count, told.max, told.min, None if told.norm is None else f"{told.norm:.4g}"
