"""Parse the names of single tensors, from the right: a module's path may contain digits and dots.

    {operator}.{input|input_kwargs|kwargs|output|parameters|parameters_grad}[.{path}]    a slot of an operator
    {operator}: … .{call} | … .forward | … .backward | … .forward.{call} | anything      msprobe and others

A path that begins with a word ("output.logits") is recognised only in the names of msprobe's tools: other tools dump
names such as "encoder.0.output.dense", which is a module.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from npucmp.dump.readers.msprobe_names import PHASES, module_path, parse_msprobe_name
from npucmp.dump.readers.name_rules import natural, type_of_name
from npucmp.model import Operator, TensorRef

_ROLES = {
    "input": "input", "input_kwargs": "input", "kwargs": "input", "output": "output",
    "parameters": "param", "parameters_grad": "grad",
}  # fmt: skip
_SLOT = re.compile(rf"(?P<op>.+)\.(?P<role>{'|'.join(sorted(_ROLES, reverse=True))})(?:\.(?P<path>.+))?", re.DOTALL)
_PLACED = re.compile(r"[0-9]+(?:\.\w+)*")
_CALL = re.compile(r"(?P<head>.+)\.(?P<call>[0-9]{1,18})", re.DOTALL)
_TOOLS = ("Module", "Aten", "NPU", "Torch", "Functional", "Tensor", "VF", "Distributed", "Mint")
_LAST: list[object] = ["\U0010ffff"]


class Named(NamedTuple):
    """The operator of a tensor, its slot, and the call number at the end of the operator's name; -1 without."""

    operator: str
    slot: str
    call: int = -1


def parse_tensor_name(name: str, of_msprobe: bool = False) -> Named:
    """Parse the name of a tensor. `of_msprobe`: its folder shows that a tool of msprobe wrote it."""
    found = _SLOT.fullmatch(name)
    if found is None:
        return Named(name, "output:0")
    role, path, operator = _ROLES[found["role"]], found["path"] or "0", found["op"]
    if not _PLACED.fullmatch(path) and not of_msprobe and operator.partition(".")[0] not in _TOOLS:
        return Named(name, "output:0")
    if role == "grad":
        operator = f"{operator}.parameters_grad"
    call = _CALL.fullmatch(parse_msprobe_name(operator).call)
    return Named(operator, f"{role}:{path}", int(call["call"]) if call else -1)


def operator_of(name: str, order: int, tensors: tuple[TensorRef, ...], scope: str = "") -> Operator:
    """Return an operator known only by its name and its tensors."""
    parts = parse_msprobe_name(name)
    op_type, kind, path, unique = type_of_name(name), name, "", True
    called = _CALL.fullmatch(name)
    if parts.phase:
        op_type, kind, unique = parts.op_type, parts.kind, parts.unique
        path = module_path(parts) if unique else ""
    elif called and name.partition(".")[0] in _TOOLS:
        kind, unique = called["head"], False
        op_type, path = _typed(kind)
    return Operator(
        name=name,
        op_type=op_type,
        kind=kind,
        phase=parts.phase or next((word for word in PHASES if name.endswith(f".{word}")), ""),
        order=order,
        tensors=tensors,
        scope=scope,
        path=path,
        unique=unique,
        call=parts.call,
        reads_recorded=any(not tensor.is_output for tensor in tensors),
    )


def _typed(kind: str) -> tuple[str, str]:
    """Return type and module path of a name of AclGraphDumper: Module.{path}.{class}, Aten.{op}[.{overload}], …"""
    world, *rest = kind.split(".")
    if world == "Module":
        return rest[-1] if rest else world, ".".join([world, *rest[:-1]])
    at = 1 if world == "Torch" and len(rest) > 1 else 0
    return rest[at] if rest else world, ""


def by_module(name: str) -> list[list[object]]:
    """Return a sort key: names in natural order, part by part, and a module after everything it contains."""
    return [*map(natural, name.split(".")), _LAST]
