"""The role of a tensor for its operator (output, argument, parameter, workspace), the containers of an operator, and
the role of a run's tensors in the network (parameter, gradient, buffer, input, label), from the records alone.

No value is read for this. The roles decide which tensors are read together, and which properties are computed then.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.dtypes import lookup
from npucmp.model.dump import Operator, Run, TensorRef
from npucmp.model.finding import Pair
from npucmp.model.optypes import OpType, is_gradient, op_type, op_type_of

PEERS = "input:1", "input:src", "input:dst"  # arguments that name a rank
BUFFERS = "0", "tensor", "tensor_list", "output", "output_tensor", "output_tensor_list"  # inputs that are overwritten
_LOGITS = re.compile(
    r"(?:^|[./])(?:(?:final|output|next_token|lm)_)?(?:logits?|log_?probs?|lm_head|output_layer|embed_out)(?:$|[./_])"
)


def is_logits(pair: Pair) -> bool:
    """Return whether a tensor holds logits by the name of its operator: an output of a forward pass."""
    return is_output(pair) and pair.operator.phase != "backward" and _LOGITS.search(pair.operator.name) is not None


def is_output(pair: Pair) -> bool:
    """Return whether a pair is an output of its operator."""
    tensor = pair.target or pair.golden
    return tensor is not None and tensor.is_output


def is_argument(pair: Pair) -> bool:
    """Return whether a tensor is an argument (an epsilon) and not an input that may carry an error."""
    target, golden = pair.target_op, pair.golden_op
    return target is not None and golden is not None and pair.slot in target.arguments and pair.slot in golden.arguments


def containers(operator: Operator, scopes: Mapping[str, str]) -> Iterator[str]:
    """Yield records and paths of the modules around an operator, from construct.json or the module paths."""
    name, seen = scopes.get(operator.name, ""), {operator.name}
    while name and name not in seen:
        seen.add(name)
        yield name
        name = scopes.get(name, "")
    path = operator.path.rpartition(".")[0]
    while path:
        yield f"{operator.phase} {path}"
        path = path.rpartition(".")[0]


def names_of(operator: Operator) -> tuple[str, str]:
    """Return the names by which `containers` yields a module."""
    return operator.name, f"{operator.phase} {operator.path}"


def is_meaningless(pair: Pair) -> bool:
    """Return whether a tensor is uninitialised memory or a device's workspace, whose values need not be equal."""
    return _is_meaningless(pair.operator.op_type, pair.slot)


@lru_cache(maxsize=1 << 14)
def _is_meaningless(spelled: str, slot: str) -> bool:
    op = op_type(spelled)
    role, _, key = slot.partition(":")
    return role == "output" and (op.has("uninitialised") or _slot_number(key) in op.workspaces)


def is_parameter(pair: Pair) -> bool:
    """Return whether a tensor is a weight, a bias or a running statistic, by its slot and operator."""
    is_named = pair.slot.partition(":")[0] == "param"
    return is_named or (_is_place_of_parameter(pair.operator.op_type, pair.slot) and not is_gradient(pair.operator))


def is_activation(tensor: TensorRef) -> bool:
    """Return whether a tensor is an input or an output of an operator, by its slot."""
    return tensor.slot.partition(":")[0] in ("input", "output")


def is_read_parameter(operator: Operator, tensor: TensorRef) -> bool:
    """Return whether a tensor stands where an operator reads a parameter."""
    return _is_place_of_parameter(operator.op_type, tensor.slot)


def is_golden_parameter(pair: Pair) -> bool:
    """Return whether a golden tensor is a parameter, by its slot and operator in its own dump."""
    if pair.golden is None or pair.golden_op is None:
        return False
    slot = pair.golden.own_slot or pair.golden.slot
    own = slot.partition(":")[0] == "param" or _is_place_of_parameter(pair.golden_op.op_type, slot)
    return own and not is_gradient(pair.golden_op)


@lru_cache(maxsize=1 << 14)
def _is_place_of_parameter(spelled: str, slot: str) -> bool:
    role, _, key = slot.partition(":")
    return role != "output" and _slot_number(key) in op_type(spelled).parameters


def is_folded(pair: Pair) -> bool:
    """Return whether a tensor is a weight that only the target's graph has: the compiler combined it from several, so
    the golden run has no such tensor."""
    return pair.golden is None and pair.target is not None and pair.target.stored


STATISTICS = {"input:running_mean", "input:running_var", "input:moving_mean", "input:moving_variance"}
KERNELS = frozenset({"input:3", "input:4"})  # x, scale, offset, mean, variance: ONNX, TensorFlow, GE, MindSpore, aten
FUNCTIONS = frozenset({"input:1", "input:2"})  # input, running_mean, running_var, weight, bias: torch.nn.functional
_FUNCTION = re.compile(r"(Mint)?Functional\.|torch\.nn\.functional\.")
_SNAKE = re.compile(r"(batch|instance)_norm\d?d?")


def running_statistics(operator: Operator) -> frozenset[str]:
    """The slots of the running mean and variance that an operator reads; empty for other operators.

    Kernels and graphs read them behind scale and offset, functions of torch.nn.functional and mint before them. If
    recorded minima show which of two inputs is no variance, they decide, else the framework's spelling.
    """
    if not op_type_of(operator).has("averages") or is_gradient(operator):
        return frozenset()
    read = {tensor.own_slot or tensor.slot: tensor for tensor in operator.tensors if not tensor.is_output}
    if named := STATISTICS & read.keys():
        return frozenset(named)
    least = [_least(read.get(f"input:{place}")) for place in (2, 4)]
    if None not in least and (least[0] < 0) is not (least[1] < 0):  # type: ignore[operator]
        found = KERNELS if least[0] < 0 else FUNCTIONS  # type: ignore[operator]
    else:
        found = FUNCTIONS if _is_function(operator) else KERNELS
    return found & read.keys()


def _least(tensor: Optional[TensorRef]) -> Optional[float]:
    return tensor.statistics.min if tensor is not None and tensor.statistics is not None else None


def _is_function(operator: Operator) -> bool:
    """Whether an operator has the signature of torch.nn.functional: by its prefix, or in small letters without one."""
    if _FUNCTION.match(operator.name):
        return True
    is_bare = "::" not in operator.op_type and not operator.name.startswith(("Torch.", "Aten.", "Primitive.", "aten"))
    return is_bare and _SNAKE.fullmatch(operator.op_type.rpartition(".")[2]) is not None


def _slot_number(key: str) -> int:
    """The number of a slot, -1 for a slot without one."""
    return int(key) if key.isdecimal() and len(key) < 10 else -1


def peer_of(operator: Operator) -> Optional[int]:
    """The rank that an operator names as the destination of a send or the source of a receive."""
    named = (operator.arguments.get(slot) for slot in PEERS)
    return next((one for one in named if isinstance(one, int) and not isinstance(one, bool)), None)


def is_buffer(operator: Operator, tensor: TensorRef, rank: Optional[int]) -> bool:
    """Return whether an input is only the destination of a result: for a receiving operator, an input with the shape of
    an output; for a broadcast, on all ranks except the source."""
    op, (role, _, key) = op_type_of(operator), tensor.slot.partition(":")
    if not op.has("receives") or role != "input" or key.partition(".")[0] not in BUFFERS:
        return False
    if op.has("one to all"):
        return peer_of(operator) not in (None, rank)
    return any(one.is_output and one.shape == tensor.shape for one in operator.tensors)


GIVEN = re.compile(r"inputs\d+|_arg_.*")  # names of the network's inputs in MindSpore and TensorFlow
Held = tuple[Operator, TensorRef]


class Weight(NamedTuple):
    """A parameter in one step, and its gradient. `order` is that of the first operator of its module, `named` as in
    facts."""

    name: str
    type: OpType
    order: int
    weight: Held
    gradient: Optional[Held] = None
    named: bool = True


def kind_of(dtype: str) -> str:
    """ "f" for floats, "i" and "u" for integers, "b", "c"; "" for an unknown type."""
    row = lookup(dtype)
    return row.kind if row is not None else ""


def forward_of(run: Run) -> list[Operator]:
    """Calls of the forward pass: those of operators, or of the innermost modules if no operators were dumped."""
    found = [one for one in run.operators if not is_gradient(one) and any(t.is_output for t in one.tensors)]
    found = [one for one in found if not op_type_of(one).has("updates")]
    calls = [one for one in found if not one.path]
    if calls:
        return calls
    around = {one.scope for one in found} | {one.path.rpartition(".")[0] for one in found}
    return [one for one in found if one.name not in around and one.path not in around]


def is_layer(kind: OpType) -> bool:
    """Return whether an operator multiplies by its own weight: linear layers and convolutions."""
    return kind.has("contracts") and bool({0, 1} & {*kind.parameters})


def weights_of(run: Run) -> dict[str, Weight]:
    """The parameters of a step by name: those of modules, or without modules the parameters that operators read."""
    return _of_modules(run.operators) or _of_calls(forward_of(run), run.operators)


def _of_modules(operators: Sequence[Operator]) -> dict[str, Weight]:
    first: dict[str, int] = {}  # of the operators in a module
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


def _of_calls(calls: Sequence[Operator], operators: Sequence[Operator]) -> dict[str, Weight]:
    """Parameters, named by the calls that read them. A call after the first gradient has no parameters of its own if an
    earlier call reads the same (a recomputed forward) or others in their shapes, which an optimizer may have updated in
    between (a validation, a second pass of a discriminator)."""
    backward = {one.call: one for one in operators if one.phase == "backward" and one.call}
    turn = next((one.order for one in operators if is_gradient(one)), math.inf)
    found: dict[str, Weight] = {}
    known: dict[object, str] = {}
    first: set[object] = set()  # of the forward before the first gradient
    for one in calls:
        kind, gradient = op_type_of(one), backward.get(one.call)
        for word, tensor in zip(("weight", "bias"), _read_as_parameters(one, kind)):
            read = kind, word, tensor.shape
            name, key = f"{one.call or one.name}.{word}", (*read, mark_of(tensor))
            made = _gradient_of(tensor, gradient)
            if one.order > turn and mark_of(tensor) is not None and key in known:
                again = found[known[key]]
                found[again.name] = again._replace(gradient=again.gradient or made)
                continue
            if one.order > turn and read in first:
                continue
            if one.order < turn and mark_of(tensor) is not None:
                first.add(read)
            known.setdefault(key, name)
            found[name] = Weight(name, kind, one.order, (one, tensor), made, named=False)
    return found


def _read_as_parameters(operator: Operator, kind: OpType) -> Iterator[TensorRef]:
    names = {f"input:{place}" for place in kind.parameters} - running_statistics(operator)
    names |= {"input:weight", "input:bias"} if names else set()
    return (one for one in operator.tensors if one.slot in names and one.shape)


def _gradient_of(tensor: TensorRef, backward: Optional[Operator]) -> Optional[Held]:
    """The output of a backward in the shape of a parameter, or transposed as for Linear. The gradient of the input
    comes first, so the last output is taken."""
    for shape in (tensor.shape, tensor.shape[::-1]):
        fitting = [one for one in backward.tensors if one.is_output and one.shape == shape] if backward else []
        if fitting and backward is not None:
            return backward, fitting[-1]
    return None


def inputs_of(run: Run, weights: Mapping[str, Weight]) -> list[Held]:
    """Return the inputs of the network: a call of the forward pass reads them, no earlier call wrote them, and they are
    not parameters. A float that is read after `made_from` is not an input.

    Two tensors with the same statistics are the same tensor. If a dump has no statistics, the names of the framework
    decide (GIVEN).
    """
    taken = {id(one.weight[1]) for one in weights.values()}
    if not any(tensor.statistics or tensor.checksum for one in run.operators for tensor in one.tensors):
        markers = [one for one in run.operators if GIVEN.fullmatch(one.name)]
        return [(one, tensor) for one in markers for tensor in one.tensors[:1]]
    calls = forward_of(run)
    reading, last = {one.order for one in calls}, made_from(calls)
    seen: set[object] = {mark_of(one.weight[1]) for one in weights.values()}
    found = []
    for one in run.operators:
        if is_gradient(one):
            break
        kind = op_type_of(one)
        own = {f"input:{place}" for place in kind.parameters}
        for tensor in one.tensors if one.order in reading else ():
            if tensor.is_output or tensor.slot in own or tensor.slot.startswith("param:") or id(tensor) in taken:
                continue
            mark = mark_of(tensor)
            is_new = mark is not None and mark not in seen and math.prod(tensor.shape) > 1
            if is_new and not tensor.trainable and (one.order <= last or kind_of(tensor.dtype) != "f"):
                found.append((one, tensor))
            seen.add(mark)
        seen.update(mark_of(tensor) for tensor in one.tensors if tensor.is_output)
    return found


def made_from(calls: Sequence[Operator]) -> float:
    """The place of the first layer whose output requires no gradient. A float that is read after it, and that no call
    wrote, may be computed from that output by code that was not dumped: slices, caches. A tensor computed from an
    output that requires a gradient requires one too."""
    layers = (one for one in calls if op_type_of(one).has("contracts", "looks up"))
    without_gradient = (
        one for one in layers if not any(tensor.trainable for tensor in one.tensors if tensor.is_output)
    )
    return next((float(one.order) for one in without_gradient), math.inf)


def mark_of(tensor: TensorRef) -> object:
    """The record that identifies a tensor through views and copies; None if nothing was recorded."""
    statistics, count = tensor.statistics, math.prod(tensor.shape)
    if statistics is None or statistics.max is None:
        return (count, tensor.identity) if tensor.identity else None
    return count, statistics.max, statistics.min, None if statistics.norm is None else f"{statistics.norm:.4g}"
