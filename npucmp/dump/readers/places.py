"""Step and rank as tools write them into names of folders."""

from __future__ import annotations

import re
from typing import Optional, Sequence

_WORDS = {
    "step": re.compile(r"step_?([0-9]{1,18})"),
    "rank": re.compile(r"(?:worldsize[0-9]+_global_)?rank_?([0-9]{1,9})"),  # torchair names the number of ranks too
}


def number_of(folder: str, word: str) -> Optional[int]:
    """The step or rank that one folder's name tells: "step3", "step_3", "rank0", "worldsize8_global_rank3"."""
    found = _WORDS[word].fullmatch(folder)
    return int(found[1]) if found else None


def number_in(folders: "Sequence[str]", word: str) -> Optional[int]:
    """That of the innermost folder that tells one."""
    return next((number for one in reversed(folders) if (number := number_of(one, word)) is not None), None)
