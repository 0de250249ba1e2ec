"""Declare the options of overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from npucmp.workflows.option_fields import DumpFields, StrPath, option


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OverflowFields(DumpFields):
    """The options of overflow."""

    golden: Optional[StrPath] = option(None, "A correct run to compare every event with.", metavar="DUMP")
    headroom: Optional[float] = option(
        None, "Also list tensors closer than this to their type's limit.", metavar="BITS", least=0
    )
