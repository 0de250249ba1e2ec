"""Declare the options of fusion-diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from npucmp.workflows.option_fields import CompareFields, StrPath, option


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FusionFields(CompareFields):
    """The options of fusion-diff."""

    on_graph: Sequence[StrPath] = option((), "Graph of the run with fusion; repeatable.", metavar="FILE", repeats=True)
    off_graph: Sequence[StrPath] = option(
        (), "Graph of the run without fusion; repeatable.", metavar="FILE", repeats=True
    )
