"""Blocks of values, of which a reader takes any number of elements."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from npucmp.model import Payload

Blocks = Callable[[Payload, int], Iterator[Any]]  # yields the values of a payload in blocks of so many elements


class BlockStream:
    """Blocks, of which any number of elements can be taken."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._rest: Optional[Any] = None

    def take(self, count: int) -> Any:
        import numpy as np

        found: list[Any] = []
        missing = count
        while missing:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._blocks)
            piece, self._rest = self._rest[:missing], self._rest[missing:]
            missing -= len(piece)
            found.append(piece if not missing and not found else np.array(piece))
        return found[0] if len(found) == 1 else np.concatenate(found)
