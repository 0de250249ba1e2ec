"""What two operators' shapes say of each other."""

from __future__ import annotations

from npucmp.model import Operator


def signature(operator: Operator) -> "tuple[tuple[str, tuple[int, ...]], ...]":
    """Slots and shapes of an operator's tensors; empty for one without tensors."""
    return tuple((tensor.slot, tensor.shape) for tensor in operator.tensors)


def outputs(operator: Operator) -> "tuple[tuple[int, ...], ...]":
    """Shapes of its outputs."""
    return tuple(tensor.shape for tensor in operator.tensors if tensor.is_output)


def same_shapes(target: Operator, golden: Operator) -> bool:
    """Every slot that both have holds the same shape, and there is at least one, or neither has tensors."""
    golden_shapes = dict(signature(golden))
    common = [(shape, golden_shapes[slot]) for slot, shape in signature(target) if slot in golden_shapes]
    if not common:
        return (not target.tensors and not golden.tensors) or outputs(target) == outputs(golden)
    return all(a == b for a, b in common)
