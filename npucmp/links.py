"""Which operator produced a tensor.

A dump with a graph says so itself. Others carry no edges: there, two tensors of one run with the same content are the
same tensor, so the nearest earlier output equal to an input is its producer. The golden run is asked, whose numbers no
fault disturbs; the target only where the golden run did not record what its operators read. Constant, tiny and
all-zero tensors are equal to each other by chance and link nothing.
"""

from __future__ import annotations

import math
from typing import Generic, Hashable, NamedTuple, Optional, TypeVar

from npucmp.model import Finding

Owner = TypeVar("Owner")

TINY = 4  # elements
SUM_ROUNDING = 1e-9  # sums of one tensor in another order (a transpose) agree to this, relative to their scale


class Fingerprint(NamedTuple):
    """key must be equal; sums (of elements, of squares) agree within rounding relative to scale."""

    key: Hashable
    sums: tuple[float, float] = (0.0, 0.0)
    scale: tuple[float, float] = (0.0, 0.0)

    def agrees(self, other: "Fingerprint") -> bool:
        """Whether both can be one tensor."""
        return self.key == other.key and all(
            abs(a - b) <= SUM_ROUNDING * max(s, 1e-300) for a, b, s in zip(self.sums, other.sums, self.scale)
        )


def fingerprint(finding: Finding, of_target: bool = False) -> Optional[Fingerprint]:
    """Of the golden side; None where nothing is known of it or equality would say nothing."""
    tensor = finding.pair.target if of_target else finding.pair.golden
    if tensor is None:
        return None
    moments, count = finding.measurement.moments, math.prod(tensor.shape)
    if count < TINY:
        return None
    if moments is not None:
        side = moments.target if of_target else moments.golden
        if side.minimum != side.minimum:
            return None
        if side.minimum == side.maximum:  # a constant is known again by its error only
            return (
                Fingerprint((moments.count, side.minimum, moments.sum_dd, moments.max_abs)) if moments.max_abs else None
            )
        key = (moments.count, side.minimum, side.maximum, side.nan, side.posinf, side.neginf)
        return Fingerprint(key, (side.total, side.squares), (math.sqrt(side.squares * count), side.squares))
    recorded = tensor.statistics
    if recorded is not None and recorded.max == recorded.min:
        return None
    if tensor.checksum:
        return Fingerprint((count, tensor.checksum))
    if recorded is not None and None not in recorded:
        return Fingerprint((count, *recorded))
    return None


class Producers(Generic[Owner]):
    """Tensors seen so far, the latest with its owner."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[tuple[Fingerprint, Owner]]] = {}
        self._named: dict[Hashable, Owner] = {}

    def name(self, key: Hashable, owner: Owner) -> None:
        """A tensor that the graph has a name for."""
        self._named[key] = owner

    def named(self, key: Hashable) -> Optional[Owner]:
        """The latest owner of a tensor of that name."""
        return self._named.get(key)

    def add(self, mark: Optional[Fingerprint], owner: Owner) -> None:
        """A tensor that `owner` wrote or was first seen with; later ones hide earlier ones of the same content."""
        if mark is not None:
            self._seen.setdefault(mark.key, []).append((mark, owner))

    def find(self, mark: Optional[Fingerprint]) -> Optional[Owner]:
        """The latest owner of a tensor with this content."""
        if mark is not None:
            for other, owner in reversed(self._seen.get(mark.key, ())):
                if mark.agrees(other):
                    return owner
        return None
