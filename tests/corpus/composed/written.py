"""What a generator of pairs leaves: two folders, and what is true of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional


class Truth(NamedTuple):
    """A planted fault: names that are right to come first, and rank, request and position if one is defined. `inputs`:
    an input of these operators is right too, as of one that reads a sum which is missing."""

    kind: str
    place: str
    names: frozenset[str]
    rank: Optional[int] = None
    request: Optional[int] = None
    position: Optional[int] = None
    inputs: bool = False


class Written(NamedTuple):
    """Folders of a pair, the drawn arrangement in words, and the truth; None for a clean pair."""

    target: Path
    golden: Path
    title: str
    truth: Optional[Truth] = None
