"""Step, rank and process of a file by the folders that it lies in, in the spellings of all tools.

    step{N}  step_{N}  token_{N}                     step
    {npu|cuda|gpu|cpu}{D}_{pid}/{N}                  step N, a token, of device D (msit, MindIE)
    rank{M}  rank_{M}  worldsize{W}_global_rank{M}   rank; the global one, wherever others stand
    pid{P}  pid_{P}  proc{P}  rank                   a process without a rank
    micro_batch_{K}  micro_step{K}  microbatch{K}    a micro batch: a part of its step, no step of its own

Source: documents and sources of msprobe, msit, verl and sglang; docs/formats.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.readers.folders import folders

_STEP = re.compile(r"(?:step|token)_?([0-9]{1,9})", re.ASCII)
_RANK = re.compile(r"rank_?([0-9]{1,9})", re.ASCII)
_GLOBAL = re.compile(r"world_?size_?[0-9]+_global_rank_?([0-9]{1,9})", re.ASCII)
_DEVICE = re.compile(r"(?:npu|cuda|gpu|cpu)([0-9]{0,9})_[0-9]+", re.ASCII)
_PROCESS = re.compile(r"(?:pid|proc)_?[0-9]+|rank", re.ASCII)
_MICRO = re.compile(r"micro_?(?:batch|step)_?[0-9]{1,9}", re.ASCII)
_TOKEN = re.compile(r"([0-9]{1,9})", re.ASCII)
DATA = ("dump_tensor_data", "tensor_data", "torch_tensors")  # folders that hold tensors and say nothing of them


class Place(NamedTuple):
    """`depth` counts the parts of the path down to the last that tells step, rank or process; 0 if none does."""

    step: Optional[int] = None
    rank: Optional[int] = None
    depth: int = 0


def place_of(parts: "Sequence[str]") -> Place:
    """What the parts of a path tell; the last one that tells a number decides, but a global rank before another."""
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
    return Place(step, rank if whole is None else whole, depth)


class Files(NamedTuple):
    """The files of one run. `paths` are (folders below the run, file name, path), `others` what has another ending."""

    step: Optional[int]
    rank: Optional[int]
    path: str
    paths: "list[tuple[str, str, str]]"
    others: "list[str]"


def files_of(path: Path, endings: "tuple[str, ...]") -> "list[Files]":
    """The files of these endings at or below a path, by run.

    A run is all that lies below the folder that tells its step, rank or process last; below a path that tells none,
    each folder is one. Where micro batches stand above that folder, they are told as if they stood below it.
    """
    if path.is_file():
        place = place_of(path.absolute().parts[:-1])
        return [Files(place.step, place.rank, str(path), [("", path.name, str(path))], [])]
    runs: dict[str, Files] = {}
    given = len(path.absolute().parts)
    for folder, names in folders(path):
        chosen = [name for name in names if name.endswith(endings)]
        if not chosen:
            continue
        parts = Path(folder).absolute().parts
        place = place_of(parts)
        end = place.depth if place.depth >= given else _of_itself(parts)
        micro = [part for part in parts[given : place.depth] if _MICRO.fullmatch(part)]
        base = os.path.join(*(part for at, part in enumerate(parts[:end]) if at < given or part not in micro))
        below = [*micro, *(part for part in parts[end:] if part not in DATA)]
        found = runs.setdefault(base, Files(place.step, place.rank, base, [], []))
        found.paths.extend(("/".join(below), name, os.path.join(folder, name)) for name in chosen)
        found.others.extend(name for name in names if not name.endswith(endings))
    return list(runs.values())


def _of_itself(parts: "Sequence[str]") -> int:
    """How many parts of a folder's path are the run's, where no part below the given path tells one."""
    end = len(parts)
    if is_module(parts[-1]):
        end -= 1
    while end > 1 and parts[end - 1] in DATA:
        end -= 1
    return end


def is_module(name: str) -> bool:
    """Whether a folder is one module of msit's torch hook, which holds its inputs and outputs."""
    return name == "root" or name.startswith("root.")


def holds(path: Path, endings: "tuple[str, ...]", names: "Iterable[str]") -> bool:
    """Whether a path is a file of these endings, or one of the names below it has one."""
    if path.is_file():
        return path.name.endswith(endings)
    return path.is_dir() and any(name.endswith(endings) for name in names)
