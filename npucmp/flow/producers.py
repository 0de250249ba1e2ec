"""The latest tensor of one run under a name and with a content: what a later reader of either reads."""

from __future__ import annotations

from typing import Generic, Hashable, Optional, TypeVar

from npucmp.dump.readers.names import escaped
from npucmp.model import Operator, TensorRef

V = TypeVar("V")


class Producers(Generic[V]):
    """What is known of each tensor that was written, found again by its reader.

    by_name     of outputs, by "{operator}:{index}", escaped, as graphs name the producer of an input
    by_content  of tensors, by what they hold; a content that proves nothing is not put there
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
