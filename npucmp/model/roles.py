"""The role of a tensor for its operator: output, argument, parameter, workspace; and the containers of an operator."""

from __future__ import annotations

from functools import lru_cache
from typing import Iterator, Mapping, Optional

from npucmp.model.dump import Operator, TensorRef
from npucmp.model.optypes import is_gradient, op_type, op_type_of
from npucmp.model.pair import Pair

PEERS = "input:1", "input:src", "input:dst"  # arguments that name a rank
BUFFERS = "0", "tensor", "tensor_list", "output", "output_tensor", "output_tensor_list"  # inputs that are overwritten


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
    if pair.slot.partition(":")[0] == "param":
        return True
    return _is_place_of_parameter(pair.operator.op_type, pair.slot) and not is_gradient(pair.operator)


@lru_cache(maxsize=1 << 14)
def _is_place_of_parameter(spelled: str, slot: str) -> bool:
    return _slot_number(slot.partition(":")[2]) in op_type(spelled).parameters


def is_folded(pair: Pair) -> bool:
    """Return whether a tensor is a weight that only the target's graph has: the compiler combined it from several, so
    the golden run has no such tensor."""
    return pair.golden is None and pair.target is not None and pair.target.stored


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
