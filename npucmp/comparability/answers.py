"""The answers of a check of two runs (same, close, differs, unknown, not applicable), and the corresponding steps and
ranks that the check reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol, Sequence

from npucmp.align import Alignment
from npucmp.model import Match, Pair, Run
from npucmp.model.item_result import ItemResult, Status

RANDOM_SHARE = 0.9  # share of differing random parameters from which on seed or checkpoint differ


def same(because: str = "", **more: Any) -> ItemResult:
    return ItemResult("", Status.SAME, "", because, **more)


def close(because: str, **more: Any) -> ItemResult:
    return ItemResult("", Status.CLOSE, "", because, **more)


def differs(because: str, severity: str = "", **more: Any) -> ItemResult:
    return ItemResult("", Status.DIFFERS, severity, because, **more)


def unknown(because: str, **more: Any) -> ItemResult:
    """Return an unknown answer; `because` names the missing data."""
    return ItemResult("", Status.UNKNOWN, "", because, **more)


def not_applicable(because: str, **more: Any) -> ItemResult:
    return ItemResult("", Status.NOT_APPLICABLE, "", because, **more)


def compare_words(target: Optional[str], golden: Optional[str], what: str) -> ItemResult:
    """Compare two words; the answer is unknown if either is None."""
    if target is None or golden is None:
        return unknown(f"the dumps do not record {what} of both sides", target=target or "", golden=golden or "")
    if target == golden:
        return same(target, target=target, golden=golden)
    return differs(f"{what}: {target} against {golden}", target=target, golden=golden)


class AlignedStep(NamedTuple):
    """A step and rank of both runs. If the runs cannot be aligned, `alignment` is None and `problem` has the reason."""

    target: Run
    golden: Run
    alignment: Optional[Alignment]
    pairs: tuple[Pair, ...]
    problem: str = ""

    @property
    def matches(self) -> tuple[Match, ...]:
        return self.alignment.matches if self.alignment is not None else ()


class AlignedRuns(Protocol):
    """Two aligned runs."""

    @property
    def aligned_steps(self) -> Sequence[AlignedStep]:
        """Each common step and rank, in order."""

    def agree(self, pair: Pair) -> Optional[bool]:
        """Return whether two float tensors agree within rounding; None if unknown."""

    def are_equal(self, pair: Pair) -> Optional[bool]:
        """Return whether two tensors are equal: by their bits, else by their records; None if unknown."""
