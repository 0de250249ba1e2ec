"""Parse the words of a user: selections of steps and ranks (`--step 0-9`, `--rank 0,8-15`, `--pair step1=step0`) and
sizes (`--disk 20GB`).
"""

from __future__ import annotations

import re
from typing import AbstractSet, Iterable, Iterator, NamedTuple, Optional, Protocol, Sequence, Union

from npucmp.errors import UsageError

Numbers = Union[int, str, Sequence[int], None]  # as the user gives them; None: all

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_END = re.compile(r"(?:step_?([0-9]{1,18}))?/?(?:rank_?([0-9]{1,18}))?")


class NumberedRecord(Protocol):
    """A record with a step and a rank; a missing number counts as 0."""

    @property
    def step(self) -> Optional[int]: ...

    @property
    def rank(self) -> Optional[int]: ...


class NumberRanges(NamedTuple):
    """Ranges of numbers, both ends included; without ranges, every number matches."""

    ranges: tuple[tuple[int, int], ...] = ()

    def has(self, number: int) -> bool:
        """Return whether a number matches."""
        return not self.ranges or any(low <= number <= high for low, high in self.ranges)

    def unmatched(self, known: AbstractSet[int]) -> Iterator[str]:
        """Yield the ranges that contain none of the known numbers, in the user's notation."""
        for low, high in self.ranges:
            if not any(low <= number <= high for number in known):
                yield str(low) if low == high else f"{low}-{high}"


def parse_numbers(name: str, value: Numbers) -> NumberRanges:
    """Parse "0,8-15", a number, or several numbers. The UsageError names `name` and the mistake."""
    if value is None:
        return NumberRanges()
    words = value.split(",") if isinstance(value, str) else [value] if not isinstance(value, Iterable) else [*value]
    found = [_RANGE.fullmatch(str(word).strip()) for word in words]
    ranges = [(int(one[1]), int(one[2] or one[1])) for one in found if one]
    if not ranges or None in found or any(high < low for low, high in ranges):
        raise UsageError(f"--{name} {value}: needs numbers or ranges, as in --{name} 0,8-15")
    return NumberRanges(tuple(ranges))


class End(NamedTuple):
    """One side of `--pair`: a step, a rank, or both; None matches any number."""

    step: Optional[int]
    rank: Optional[int]

    def has(self, run: NumberedRecord) -> bool:
        """Return whether a run has these numbers."""
        return self.step in (None, run.step or 0) and self.rank in (None, run.rank or 0)

    def completed(self, run: NumberedRecord) -> End:
        """Return these numbers, completed by the numbers of a run."""
        return End(run.step if self.step is None else self.step, run.rank if self.rank is None else self.rank)


class Partner(NamedTuple):
    """Runs of the target, and the runs of the golden with which they are compared."""

    text: str
    target: End
    golden: End


def partners(texts: Sequence[str]) -> list[Partner]:
    """Parse `--pair`: "step1=step0", "rank8=rank0", "step1/rank8=step0/rank0"; pairs with both numbers come first."""
    found = dict.fromkeys(map(_partner, texts))
    known: dict[End, Partner] = {}
    for one in found:
        other = known.setdefault(one.target, one)
        if other.golden != one.golden:
            raise UsageError(f"--pair {one.text}: contradicts --pair {other.text}")
    return sorted(found, key=lambda one: None in one.target)


def _partner(text: str) -> Partner:
    ends = [End(*(int(one) if one else None for one in found.groups())) for found in _ends(text)]
    kinds = {tuple(one is None for one in end) for end in ends}
    if len(ends) != 2 or len(kinds) != 1 or End(None, None) in ends:
        raise UsageError(f"--pair {text}: needs a step or rank of target and golden, as in --pair step1=step0")
    return Partner(text, *ends)


def _ends(text: str) -> Iterator[re.Match[str]]:
    return (found for word in text.split("=") if (found := _END.fullmatch(word.strip())))


def in_bytes(name: str, value: Union[int, str, None]) -> Optional[int]:
    """Return bytes, None if no size is given. Units are powers of 1000, as on disks, or with "i" of 1024."""
    if value is None or isinstance(value, int):
        return value
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTP]?)(i?)B?\s*", value, re.IGNORECASE)
    if not found or not float(found[1]):
        raise UsageError(f"--{name} {value}: needs a positive size, as in --{name} 20GB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGTP".index(found[2].upper() or " "))
