"""The result of `npucmp fusion-diff`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

from npucmp.model.result import Report


class FusionPass(NamedTuple):
    """How often a fusion pass took effect with fusion on and off; None if unknown."""

    name: str
    kind: str
    on: Optional[int]
    off: Optional[int]


@dataclass(frozen=True, repr=False)
class FusionResult(Report):
    """The result of `npucmp fusion-diff`. Paths are those of the run with fusion and of the run without."""

    command = "fusion-diff"

    passes: tuple[FusionPass, ...] = ()
