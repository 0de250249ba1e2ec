"""The values of the tensors of roots, each read once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Iterator, Optional

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure, if_unreadable
from npucmp.model import Finding, TensorRef
from npucmp.model.dtypes import lookup

if TYPE_CHECKING:
    from npucmp.dump.readers.values import Array


ELEMENTS = 1 << 22  # of a tensor that is read again: work
STREAMED = 1 << 28  # of a tensor that is read again in blocks: work


class ValueReader:
    """The values of tensors, each read once; None for tensors without values, too large or unreadable ones."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._read: dict[int, tuple[TensorRef, Optional[Array]]] = {}

    def of(self, tensor: Optional[TensorRef]) -> Optional[Array]:
        """Return the values as bool, int64 or float64."""
        if tensor is None:
            return None
        if id(tensor) not in self._read:
            self._read[id(tensor)] = tensor, self._values(tensor)  # the tensor stays, so that its id does
        return self._read[id(tensor)][1]

    @if_unreadable(None)
    def _values(self, tensor: TensorRef) -> Optional[Array]:
        from npucmp.measure.preview import array_of

        dtype = lookup(tensor.dtype)
        if dtype is None or dtype.kind == "c" or math.prod(tensor.shape) > ELEMENTS:
            return None
        values = array_of(tensor, self._context)
        if values.dtype.kind == "b":
            return values
        return values.astype("int64" if values.dtype.kind in "iu" else "float64")

    def pair(self, finding: Finding) -> Optional[tuple[Array, Array]]:
        """Return the values of the target and the golden; None unless both have them in one shape."""
        golden, target = finding.pair.golden, finding.pair.target
        x = self.of(target) if golden is not None and target is not None else None
        y = self.of(golden) if x is not None else None
        return (x, y) if x is not None and y is not None and x.shape == y.shape and x.size else None

    def blocks(self, finding: Finding, elements: int) -> Iterator[tuple[Array, Array]]:
        """Yield the values of the target and the golden as float64, so many elements at once; nothing if a side has
        none, or they have other shapes. A block that cannot be read again ends them."""
        from npucmp.dump.readers.values import blocks
        from npucmp.measure.kernel.numpy_kernel import widen
        from npucmp.measure.pairs import payload_of

        golden, target = finding.pair.golden, finding.pair.target
        if golden is None or target is None or math.prod(golden.shape) > STREAMED:
            return
        try:
            sides = [payload_of(side, context=self._context) for side in (target, golden)]
            if sides[0] is None or sides[1] is None or sides[0].shape != sides[1].shape:
                return
            read = [blocks(side, elements, context=self._context) for side in sides if side is not None]
            for x, y in zip(*read):
                if x.dtype.kind == "c" or y.dtype.kind == "c":
                    return
                yield widen(x), widen(y)
        except SystemFailure:
            raise
        except NpucmpError:
            return
