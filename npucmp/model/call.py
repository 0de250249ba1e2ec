"""The call that a record of a dump tells: what was called with which arguments, its tensors by their slots."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Union


class Slot(NamedTuple):
    """An argument or result that is a tensor: that of the operator with this slot."""

    name: str


class Word(NamedTuple):
    """An argument that is none: its type and value as the dump spells them ("float" 1e-05, "slice" [0, None, 1])."""

    kind: str
    value: Any


Tree = Union[Slot, Word, None, "list[Any]", "dict[str, Any]"]  # None where the record holds null


class Call(NamedTuple):
    """One recorded call.

    prefix, name  whose function it is and which one ("Functional", "softmax"), without the number of the call
    args, kwargs  of a forward record; a backward record has the gradients that reached its outputs
    outputs       what it returned; of a backward record the gradients that it handed on
    """

    prefix: str
    name: str
    args: tuple[Tree, ...] = ()
    kwargs: Mapping[str, Tree] = MappingProxyType({})
    outputs: tuple[Tree, ...] = ()
