"""Read the variables of MindSpore's graphs that msprobe saves, one .npy each.

    {root}/step{N}/rank{M}/{name}[_grad]_{dtype}_{n}.npy                                save, save_grad
    {root}/data/{tag}/step{N}/rank{M}[/micro_step{K}]/{tag}[.{i}].npy, {tag}.json       SingleSave

n counts saved variables, so it gives the order if all numbers are distinct; SingleSave records no order. Every tensor
is an output, because consumers are not recorded.
Source: public documentation and sources of msprobe; docs/formats.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.file_per_tensor import Place, contents_by_place, operator_by_name, run_of
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.readers.folders import executions, first_files, folders
from npucmp.dump.readers.names import micro_of, natural, place_of, skipped_files_note
from npucmp.model import Run

NAME = "saved"
WALKS = True
GRAPHS = None

_SAVED = re.compile(
    r"(?P<name>.+?)(?P<grad>_grad)?_(?P<dtype>bool_?|b?float[0-9]+|u?int[0-9]+|complex[0-9]+)_(?P<n>[0-9]{1,9})\.npy",
    re.IGNORECASE,
)
_DEPTH = 8
_SNIFFED = 5000  # maximum number of file names read


class SavedFile(NamedTuple):
    """One tensor. number is the counter in its name, -1 without."""

    operator: str
    slot: str
    dtype: str
    number: int
    micro: int
    path: str


def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file has such a name in such folders, or a folder holds one within eight levels."""
    if path.is_file():
        return bool(_files(str(path.absolute().parent), [path.name])[1])
    return any(_files(folder, names)[1] for folder, names in first_files(folders(path, _DEPTH), _SNIFFED))


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    found = contents_by_place(path, _read, _DEPTH)
    return [_run(place, one.files, one.notes, context) for place, one in found.items()]


def _read(folder: str, names: list[str], notes: list[str]) -> tuple[Optional[Place], list[SavedFile]]:
    place, files = _files(folder, names)
    read = {os.path.basename(file.path) for file in files}
    notes += filter(None, [skipped_files_note(folder, (name for name in names if name not in read))])
    return place, files


def _files(folder: str, names: Sequence[str]) -> tuple[Optional[Place], list[SavedFile]]:
    """Return place and tensors of a folder; None if it is not a step and rank of such a dump."""
    parts = Path(folder).absolute().parts
    micro = micro_of(parts[-1])
    above = parts if micro is None else parts[:-1]
    step, rank = (place_of(above[-2:-1]).step, place_of(above[-1:]).rank) if len(above) > 2 else (None, None)
    if step is None or rank is None:
        return None, []
    root, tag = above[:-2], above[-3]
    single = len(root) > 2 and root[-2] == "data"  # {tag} is no part of the run
    place = Place(os.path.join(*(root[:-2] if single else root)), step, rank)
    number = -1 if micro is None else micro
    files = (_single(tag, name, number) if single else _parse_name(name) for name in names if name.endswith(".npy"))
    return place, [file._replace(path=os.path.join(folder, file.path)) for file in files if file is not None]


def _parse_name(name: str) -> Optional[SavedFile]:
    match = _SAVED.fullmatch(name)
    if match is None:
        return None
    return SavedFile(f"{match['name']}{match['grad'] or ''}", "output:0", match["dtype"], int(match["n"]), -1, name)


def _single(tag: str, name: str, micro: int) -> Optional[SavedFile]:
    stem = name[: -len(".npy")]
    if stem != tag and not stem.startswith(f"{tag}."):
        return None
    operator = tag if micro < 0 else f"{tag}.micro_step{micro}"
    return SavedFile(operator, f"output:{stem[len(tag) + 1 :] or 0}", "", -1, micro, name)


def _run(place: Place, files: list[SavedFile], notes: list[str], context: ReadContext) -> Run:
    numbers = [file.number for file in files]
    counted = len({*numbers}) == len(numbers) and len(numbers) > 1
    groups = executions(
        files,
        operator=lambda file: file.operator,
        slot=lambda file: file.slot,
        age=lambda file: file.number,
        within=lambda file: natural(file.slot),
        position=_first_number if counted else _place_by_name,
    )
    if not counted:
        notes = [*notes, "order: the files do not record it; operators are sorted by name"]
    operators = []
    for order, group in enumerate(groups):
        name = group[0].operator
        tensors = (tensor_of(file.slot, file.path, "npy", file.dtype, context) for file in group)
        operators.append(operator_by_name(name, order, tensors, phase="backward" if name.endswith("_grad") else ""))
    return run_of(place, NAME, operators, "outputs only", notes, counted)


def _first_number(group: list[SavedFile]) -> int:
    return min(file.number for file in group)


def _place_by_name(group: list[SavedFile]) -> tuple[int, list[object], int]:
    return group[0].micro, natural(group[0].operator), group[0].number
