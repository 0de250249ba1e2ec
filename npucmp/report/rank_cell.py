"""The records of an overview of steps and ranks."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

HERE, ARRIVED, PASSED, UNKNOWN = "here", "another rank", "passed on", "unknown"  # origins of an error


class FirstOperator(NamedTuple):
    """The first operator to look at in a step and rank."""

    place: int
    op: str
    slot: str
    order: int
    cause: str
    value: Optional[float]
    suspected: bool = False


class Cell(NamedTuple):
    """A step and rank.

    compared  share of its elements that were compared; `counts` are numbers of its tensors by verdict
    verdict   as the last line of the screen reports it for this step and rank alone; "UNREADABLE" or "ALONE" if there
              is no comparison
    origin    where its error comes from; `through` is the operator by which it arrived, from rank `source`
    because   the reason why no verdict exists
    """

    step: Optional[int]
    rank: Optional[int]
    target: str
    golden: str
    verdict: str
    operators: int = 0
    compared: float = 0.0
    counts: tuple[tuple[str, int], ...] = ()
    first: Optional[FirstOperator] = None
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
        """The position in a picture; a number that the dump lacks counts as 0."""
        return self.step or 0, self.rank or 0

    @property
    def name(self) -> str:
        """ "3-5": the name of its page."""
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def where(self) -> str:
        """ "step 3 rank 5"; a number that the dump lacks is omitted."""
        named = ("step", self.step), ("rank", self.rank)
        return " ".join(f"{name} {value}" for name, value in named if value is not None)


class Matrix(NamedTuple):
    """All cells, for presenters.

    sentence  where the error begins and how it reaches other ranks, "" if no error is found; `first` is the key of that
              cell
    odd       a sentence for each rank that holds other values than its replicas
    pages     names of cells that have a page; `unwritten` names those without a page and the reason, "" if all have one
    """

    cells: Sequence[Cell]
    sentence: str = ""
    first: Optional[tuple[int, int]] = None
    odd: Sequence[str] = ()
    pages: Sequence[str] = ()
    unwritten: str = ""
