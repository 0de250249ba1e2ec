"""Declare the options of replay and extract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from npucmp.workflows.option_fields import DumpFields, StrPath, option

_MEMORY = "Memory that {} may take (default 8192)."


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReplayFields(DumpFields):
    """The options of replay."""

    engine: Optional[str] = option(None, "Use only this engine: torch or numpy.", metavar="NAME")
    golden: Optional[StrPath] = option(
        None, "Another run of the network, also replayed, to find which run is wrong.", metavar="DUMP"
    )
    budget: float = option(1.0, "Multiply every limit by X.", metavar="X", least=0, is_open=True)
    budget_from: Optional[StrPath] = option(
        None, "A clean run; its error ratios per kind of operator set the limits.", metavar="DUMP"
    )
    limit_memory: Optional[int] = option(
        None, _MEMORY.format("one operator"), metavar="MB", least=1, is_whole=True, python="limit_memory=BYTES"
    )
    against: Optional[str] = option(
        None,
        "DUMP is a case of npucmp extract: run this function on its inputs, and judge its results by the same limits.",
        metavar="MODULE:FUNCTION",
    )
    strict: bool = option(False, "Exit 2 also if an output could not be replayed.")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ExtractFields(DumpFields):
    """The options of extract."""

    smallest: bool = option(False, "If rows are independent, write only the fewest rows that still show the fault.")
    redact: bool = option(
        False, "Replace all values and private names by others with the same verdict; if none has it, write nothing."
    )
    limit_memory: Optional[int] = option(
        None, _MEMORY.format("it"), metavar="MB", least=1, is_whole=True, python="limit_memory=BYTES"
    )
