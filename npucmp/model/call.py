"""The call that a record of a dump describes: the function, its arguments, and its tensors by slot."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Union


class Slot(NamedTuple):
    """An argument or result that is a tensor: the operator's tensor in this slot."""

    name: str


class SpelledArgument(NamedTuple):
    """A non-tensor argument: its type and value as the dump spells them ("float" 1e-05, "slice" [0, None, 1])."""

    kind: str
    value: Any


Tree = Union[Slot, SpelledArgument, None, "list[Any]", "dict[str, Any]"]  # None if the record has null


class Call(NamedTuple):
    """One recorded call.

    prefix, name  the namespace and name of the function ("Functional", "softmax"), without the number of the call
    args, kwargs  of a forward record; a backward record has the gradients that reached its outputs
    outputs       the results; of a backward record the gradients that it returned
    """

    prefix: str
    name: str
    args: tuple[Tree, ...] = ()
    kwargs: Mapping[str, Tree] = {}  # a plain dict, so that it can be pickled; nothing writes to it
    outputs: tuple[Tree, ...] = ()
