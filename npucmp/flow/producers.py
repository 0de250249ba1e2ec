"""Index of the latest tensor of one run by name and by content, for the lookup of producers."""

from __future__ import annotations

from typing import Generic, Hashable, Optional, TypeVar

from npucmp.dump.readers.name_rules import escaped
from npucmp.model import Operator, TensorRef

V = TypeVar("V")


class Producers(Generic[V]):
    """Values for written tensors, found by their consumers.

    by_name     outputs by "{operator}:{index}", escaped, as graphs name the producer of an input
    by_content  tensors by content; inconclusive contents are not included
    """

    __slots__ = ("by_content", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, V] = {}
        self.by_content: dict[Hashable, V] = {}

    def wrote(self, operator: Operator, slot: str, value: V) -> None:
        """Name `value` after the output of an operator in `slot`."""
        self.by_name[escaped(f"{operator.name}:{slot.partition(':')[2]}")] = value

    def named(self, tensor: Optional[TensorRef]) -> Optional[V]:
        """Return the output that a graph names as the producer of an input; None without one."""
        return self.by_name.get(escaped(tensor.source)) if tensor is not None and tensor.source else None
