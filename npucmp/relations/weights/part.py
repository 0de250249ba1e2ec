"""A canonical parameter of one side: its values, read block by block, and the tensors that hold it."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from npucmp.model import Payload
from npucmp.relations.weights.role import Role

Shape = tuple[int, ...]


class Part(NamedTuple):
    """A canonical parameter.

    payload   its values; None if it cannot be built, and `problem` says why
    name      the tensor that holds it, with the number of its layer in the network; `slot` names the part of a fused
              one
    names     all tensors that hold it, by rank: (rank, name)
    shards    the pieces of ranks along `axis`; () for one piece
    copies    further copies that other ranks hold
    dtype     the type of the stored values; `is_bare`: codes without a scale
    words     how it lies in its tensors, "" for a tensor of its own
    """

    role: Role
    payload: Optional[Payload]
    name: str
    file: str
    dtype: str
    slot: str = ""
    names: tuple[tuple[int, str], ...] = ()
    shards: tuple[Payload, ...] = ()
    axis: int = 0
    copies: tuple[Payload, ...] = ()
    is_bare: bool = False
    words: str = ""
    problem: str = ""
    scale_dtype: str = ""

    @property
    def shape(self) -> Shape:
        return self.payload.shape if self.payload is not None else ()

    @property
    def is_codes(self) -> bool:
        """Whether it is stored as codes, with or without their scale."""
        return self.is_bare or bool(self.scale_dtype)


MakePart = Callable[[Payload], Payload]


def changed(part: Part, make: MakePart, words: str = "") -> Part:
    """Return a part with another order of its elements, on all copies of its shape; other copies differ."""
    if part.payload is None:
        return part
    words = words or part.words
    copies = tuple(make(one) if one.shape == part.shape else one for one in part.copies)
    return part._replace(payload=make(part.payload), shards=(), copies=copies, words=words)


def add_part(parts: dict[Role, Part], part: Part) -> None:
    """Add a part by its role. A second tensor of one parameter is a copy of it; if its type or shape is another, or
    either cannot be read, it has a role of its own."""
    first = parts.get(part.role)
    if first is None:
        parts[part.role] = part
    elif first.payload is None or part.payload is None or _form(first) != _form(part):
        parts[part.role._replace(kind=f"={part.name} {part.slot}")] = part
    else:
        parts[part.role] = first._replace(copies=(*first.copies, part.payload, *part.copies))


def _form(part: Part) -> tuple[Shape, str, str, bool]:
    return part.shape, part.dtype, part.scale_dtype, part.is_bare
