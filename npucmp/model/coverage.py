"""The share of the golden dump that a comparison accounts for: the part of the verdict that tolerances do not
decide.
"""

from __future__ import annotations

from typing import Iterable, NamedTuple, Tuple

LISTED = 50  # open tensors: work: so many are listed by name; all are counted


class OpenTensor(NamedTuple):
    """A tensor of the golden that the comparison does not account for.

    op, slot  the golden's names; the target's for an unreadable file that only the target has
    elements  number of elements, None if no header contains it
    verdict   verdict of its row in tensors.csv, "" for a record without a row
    because   the reason in one sentence
    """

    op: str
    slot: str
    elements: int | None
    verdict: str
    because: str


class Coverage(NamedTuple):
    """The golden tensors of one or more comparisons by their status; coverages are added.

    covered   elements of tensors that were compared, or that a compared tensor accounts for
    missed    elements of open tensors
    tensors   number of open tensors, of which `unsized` have no known size
    accounted number of tensors without a comparison of their own that compared tensors account for
    excluded  number of tensors that the user excluded
    first     the first open tensors in graph order, at most LISTED
    """

    covered: int = 0
    missed: int = 0
    tensors: int = 0
    unsized: int = 0
    accounted: int = 0
    excluded: int = 0
    first: Tuple[OpenTensor, ...] = ()

    @classmethod
    def sum(cls, some: Iterable[Coverage]) -> Coverage:
        """The sum of several coverages."""
        covered = missed = tensors = unsized = accounted = excluded = 0
        first: list[OpenTensor] = []
        for one in some:
            covered, missed, tensors = covered + one.covered, missed + one.missed, tensors + one.tensors
            unsized, accounted, excluded = unsized + one.unsized, accounted + one.accounted, excluded + one.excluded
            first += one.first[: LISTED - len(first)]
        return cls(covered, missed, tensors, unsized, accounted, excluded, tuple(first))

    @property
    def share(self) -> float:
        """The covered share of golden elements, 0 to 1; 1 for a golden without elements."""
        return self.covered / (self.covered + self.missed) if self.covered + self.missed else 1.0

    def suffices(self, least: float = 1.0) -> bool:
        """Return whether the covered share is at least `least`. Tensors of unknown size are never sufficient."""
        return not self.tensors or (not self.unsized and self.share >= least and least < 1.0)
