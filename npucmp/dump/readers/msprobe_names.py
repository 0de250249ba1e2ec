"""Parse the names of msprobe's records.

Names:  API     {api type}.{api name}.{call index}.{forward|backward}
        module  {Module|Cell}.{path}.{class}.{forward|backward}.{call index}
        grads   {Module|Cell}.{path}.{class}.parameters_grad[.{n}]
        debug   {user's name}.{count}.debug
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

PHASES = ("forward", "backward")


class MsprobeName(NamedTuple):
    """The parts of an operator's name; the module docstring has the grammar."""

    op_type: str
    kind: str
    phase: str
    call: str
    unique: bool


@lru_cache(maxsize=1 << 14)  # all ranks of a dump have the same names
def parse_msprobe_name(name: str) -> MsprobeName:
    """Split a name from the right: a module path may contain digits and dots."""
    head, *tail = name.rsplit(".", 2)
    if len(tail) == 2 and tail[1] in PHASES and tail[0].isdigit():
        return MsprobeName(head.rsplit(".", 1)[-1], f"{head}.{tail[1]}", tail[1], f"{head}.{tail[0]}", unique=False)
    if len(tail) == 2 and tail[0] in PHASES and tail[1].isdigit():
        return MsprobeName(head.rsplit(".", 1)[-1], f"{head}.{tail[0]}", tail[0], f"{head}.{tail[1]}", unique=True)
    for mark in (".parameters_grad", ".debug"):
        owner, found, number = name.rpartition(mark)
        if found and (not number or number[1:].isdigit()):
            kind = owner.rstrip(".0123456789") if mark == ".debug" else owner
            phase = "backward" if mark == ".parameters_grad" else ""
            return MsprobeName(kind.rsplit(".", 1)[-1], owner + mark, phase, owner, unique=True)
    return MsprobeName(name.rsplit(".", 1)[-1], name, "", name, unique=True)


@lru_cache(maxsize=1 << 14)
def module_path(parts: MsprobeName) -> str:
    """Return the module path, such as "Module.layers.0.fc1" for "Module.layers.0.fc1.Linear.forward.0"."""
    for mark in (".forward", ".backward", ".parameters_grad"):
        if parts.kind.endswith(mark):
            return parts.kind[: -len(mark)].rpartition(".")[0]
    return ""
