"""Convert a record of msprobe's dump.json to a Call, with nulls, types and keywords in their places.

Source: output of mindstudio-probe 26.2 and older; formats/msprobe.py has the grammar of records.
"""

from __future__ import annotations

from typing import Any

from npucmp.dump.readers.msprobe_names import PHASES, parse_msprobe_name
from npucmp.dump.readers.msprobe_record import NESTING, argument_of, is_tensor
from npucmp.model import Call, Slot, SpelledArgument, Tree


def call_of(name: str, record: Any, framework: str = "pytorch") -> Call | None:
    """Return the call of a record; None for records of other kinds: gradients of parameters, tensors saved by a user.

    MindSpore's own functions share names with PyTorch's but have other arguments, so their prefix says "MindSpore". The
    functions of its mint have the arguments of PyTorch's.
    """
    parts = parse_msprobe_name(name)
    if not isinstance(record, dict) or parts.phase not in PHASES or parts.kind.endswith(".parameters_grad"):
        return None
    head = parts.kind.rpartition(".")[0]  # without the phase
    kwargs = _tree("input:", record.get("input_kwargs"), NESTING)
    prefix = head.partition(".")[0]
    own = framework == "mindspore" and not prefix.startswith("Mint")
    return Call(
        f"MindSpore.{prefix}" if own else prefix,
        parts.op_type,
        _listed("input:", record.get("input_args", record.get("input"))),
        kwargs if isinstance(kwargs, dict) else {},
        _listed("output:", record.get("output")),
    )


def _listed(slot: str, value: Any) -> tuple[Tree, ...]:
    found = _tree(slot, value, NESTING)
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def _tree(slot: str, value: Any, depth: int) -> Tree:
    """Return the tree of a value, with the same paths as formats/msprobe.py gives to the tensors."""
    start = slot if slot.endswith(":") else f"{slot}."
    if isinstance(value, dict):
        if "type" in value and ("shape" in value or "value" in value or "format" in value):
            return Slot(slot) if is_tensor(value) else SpelledArgument(str(value["type"]), argument_of(value))
        return {str(key): _tree(f"{start}{key}", below, depth - 1) for key, below in value.items()} if depth else None
    if isinstance(value, list):
        return [_tree(f"{start}{at}", below, depth - 1) for at, below in enumerate(value)] if depth else None
    return None
