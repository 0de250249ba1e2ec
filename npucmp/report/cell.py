"""The nouns of an overview of steps and ranks."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

HERE, ARRIVED, PASSED, UNKNOWN = "here", "another rank", "passed on", "unknown"  # where the error of a shard comes from


class First(NamedTuple):
    """The operator of a shard to look at first."""

    place: int
    op: str
    slot: str
    order: int
    cause: str
    value: Optional[float]
    suspected: bool = False


class Cell(NamedTuple):
    """One step and rank.

    compared  share of its elements that were really compared; `counts` are of its tensors, by verdict
    verdict   as the last line of the screen says it of this shard alone; "UNREADABLE", "ALONE" of what has no such line
    origin    where its error comes from; `through` is the operator by which it arrived, from rank `source`
    because   why nothing can be said
    """

    step: Optional[int]
    rank: Optional[int]
    target: str
    golden: str
    verdict: str
    operators: int = 0
    compared: float = 0.0
    counts: tuple[tuple[str, int], ...] = ()
    first: Optional[First] = None
    largest: Optional[float] = None
    origin: str = ""
    through: str = ""
    source: Optional[int] = None
    seconds: Optional[float] = None
    because: str = ""
    stage: Optional[int] = None
    tensor_rank: Optional[int] = None

    @property
    def key(self) -> tuple[int, int]:
        """Where it stands in a picture; what a dump does not number counts as 0."""
        return self.step or 0, self.rank or 0

    @property
    def name(self) -> str:
        """ "3-5": that of its page."""
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def where(self) -> str:
        """ "step 3 rank 5", as far as the dump tells."""
        named = ("step", self.step), ("rank", self.rank)
        return " ".join(f"{name} {value}" for name, value in named if value is not None)


class Matrix(NamedTuple):
    """All of them, for presenters.

    sentence  where the error begins and how it reaches the others, "" if there is none; `first` is that cell's key
    odd       of ranks that hold something else than their peers, a sentence each
    pages     names of cells that have a page; `unwritten` says which have none and why, "" if all have
    """

    cells: Sequence[Cell]
    sentence: str = ""
    first: Optional[tuple[int, int]] = None
    odd: Sequence[str] = ()
    pages: Sequence[str] = ()
    unwritten: str = ""
