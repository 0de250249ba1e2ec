"""Findings of crafted operators, without files."""

from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict


def operator(name, *slots, op_type="linear", phase="forward", shape=(4, 4), dtype="float32", **more):
    """An operator with tensors in slots; a slot is a name, or a TensorRef."""
    made = [slot if isinstance(slot, TensorRef) else TensorRef(slot, dtype, shape) for slot in slots]
    return Operator(name, op_type, op_type, phase, 0, tuple(made), **more)


def rows(*operators, moments=None):
    """The rows of operators in graph order: an operator of both sides, or the two sides, of which one may be None."""
    found = []
    for order, one in enumerate(operators):
        sides = [each and each._replace(order=order) for each in (one if type(one) is tuple else (one, one))]
        held = [{tensor.slot: tensor for tensor in each.tensors} if each else {} for each in sides]
        for slot in dict.fromkeys([*held[0], *held[1]]):
            pair = Pair(order, slot, *sides, *(each.get(slot) for each in held))
            found.append(Finding(Measurement(pair, moments), Verdict.MATCH, "", row=len(found)))
    return found
