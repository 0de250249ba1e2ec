"""Operators that are not bit-equal in repeated runs, and the result of `npucmp rerun-diff`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

from npucmp.model.cause import Cause, Evidence, Statement
from npucmp.model.finding import Pair
from npucmp.model.result import Report
from npucmp.model.tensor_detail import DifferenceMap


@dataclass(frozen=True)
class Rerun(Statement):
    """One operator that is not bit-equal in all runs; one row of rerun.csv.

    `odd` numbers the runs, from 1, that do not agree with most of them (all, if no two agree). `excused` is True if the
    operator is random or asynchronous by design. Numbers and evidence are of run `pictured`, which is the farthest from
    run 1; None if unknown. `picture` maps where the two differ, None if it was not computed. `alike` is the place
    of the first operator of the same type that differs for the same reason; 0 for that operator itself.
    """

    place: int
    step: Optional[int]
    rank: Optional[int]
    pair: Pair
    slot: str
    cause: Cause
    differing: Optional[int]
    max_abs: Optional[float]
    rel_l2: Optional[float]
    max_ulp: Optional[int]
    odd: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    excused: bool = False
    picture: Optional[DifferenceMap] = None
    pictured: int = 0
    alike: int = 0


class Noise(NamedTuple):
    """The largest differences of one tensor between repeated runs; one row of noise.csv."""

    op: str
    slot: str
    rel_l2: float
    max_abs_err: float
    runs: int


@dataclass(frozen=True, repr=False)
class RerunResult(Report):
    """The result of `npucmp rerun-diff`. Paths are all runs. Each later run (target) is compared with the first
    (golden).

    `warnings` are reasons why the answer may be invalid: runs that are not repeats.
    """

    command = "rerun-diff"

    reruns: tuple[Rerun, ...] = ()
    noise: tuple[Noise, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def target_path(self) -> str:
        return self.paths[1]

    @property
    def golden_path(self) -> str:
        return self.paths[0]
