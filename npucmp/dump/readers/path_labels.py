"""Read step, rank and process of a run from the folders of its path, in the spellings of all tools.

    step{N}  step_{N}  token_{N}                     step
    {npu|cuda|gpu|cpu}{D}_{pid}/{N}                  step N, a token, of device D (msit, MindIE)
    rank{M}  rank_{M}  worldsize{W}_global_rank{M}   rank; a global rank takes precedence
    pid{P}  pid_{P}  proc{P}  rank                   a process without a rank
    micro_batch_{K}  micro_step{K}  microbatch{K}    a micro batch, which is a part of its step

Source: documents and sources of msprobe, msit, verl and torchair; docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

_STEP = re.compile(r"(?:step|token)_?([0-9]{1,18})")
_RANK = re.compile(r"rank_?([0-9]{1,9})")
_GLOBAL = re.compile(r"world_?size_?[0-9]+_global_rank_?([0-9]{1,9})")
_DEVICE = re.compile(r"(?:npu|cuda|gpu|cpu)([0-9]{0,9})_[0-9]+")
_PROCESS = re.compile(r"(?:pid|proc)_?[0-9]+|rank")
_MICRO = re.compile(r"micro_?(?:batch|step)_?([0-9]{1,9})")
_TOKEN = re.compile(r"([0-9]{1,9})")


class PathLabels(NamedTuple):
    """Step and rank of a path. `depth` is the number of path parts up to the last that names step, rank or process."""

    step: Optional[int] = None
    rank: Optional[int] = None
    depth: int = 0


def place_of(parts: Sequence[str]) -> PathLabels:
    """Return step and rank of a path; the last part with a number decides, but a global rank takes precedence."""
    step = rank = whole = None
    depth = 0
    for at, part in enumerate(parts, 1):
        is_token = at > 1 and _DEVICE.fullmatch(parts[at - 2])
        if found := _STEP.fullmatch(part) or (is_token and _TOKEN.fullmatch(part)):
            step = int(found[1])
        elif found := _GLOBAL.fullmatch(part):
            whole = int(found[1])
        elif found := _RANK.fullmatch(part) or _DEVICE.fullmatch(part):
            rank = int(found[1]) if found[1] else rank
        elif not _PROCESS.fullmatch(part):
            continue
        depth = at
    return PathLabels(step, rank if whole is None else whole, depth)


def is_process(folder: str) -> bool:
    """Return whether a folder is that of a process without a rank in its name."""
    return folder != "rank" and _PROCESS.fullmatch(folder) is not None


def micro_of(folder: str) -> Optional[int]:
    """Return the micro batch of a folder; None if it has none."""
    found = _MICRO.fullmatch(folder)
    return int(found[1]) if found else None
