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
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.named_tensors import tensor_of
from npucmp.dump.readers.folders import executions, folders
from npucmp.dump.readers.names import left_out, micro_of, natural, place_of, type_of_name
from npucmp.model import Operator, Run

NAME = "saved"
WALKS = True
GRAPHS = None

_SAVED = re.compile(
    r"(?P<name>.+?)(?P<grad>_grad)?_(?P<dtype>bool_?|b?float[0-9]+|u?int[0-9]+|complex[0-9]+)_(?P<n>[0-9]{1,9})\.npy",
    re.IGNORECASE,
)
_DEPTH = 8
_SNIFFED = 5000  # maximum number of file names read


class SavedPlace(NamedTuple):
    """The run that a folder belongs to; tag and micro step are those of SingleSave."""

    dump: str
    step: int
    rank: int


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
        return bool(_files(str(path.absolute().parent), [path.name]))
    left = _SNIFFED
    for folder, names in folders(path, _DEPTH):
        if _files(folder, names[:left]):
            return True
        left -= len(names) + 1
        if left <= 0:
            break
    return False


def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return one Run per (step, rank). Only headers are read; a malformed file becomes one unreadable tensor."""
    found: dict[SavedPlace, list[SavedFile]] = defaultdict(list)
    notes: list[str] = []
    for folder, names in [(str(path.parent), [path.name])] if path.is_file() else folders(path, _DEPTH):
        files = _files(folder, names)
        for place, file in files:
            found[place].append(file)
        read = {os.path.basename(file.path) for _, file in files}
        notes += filter(None, [left_out(folder, (name for name in names if name not in read))])
    return [_run(place, files, notes if i == 0 else [], context) for i, (place, files) in enumerate(found.items())]


def _files(folder: str, names: Sequence[str]) -> list[tuple[SavedPlace, SavedFile]]:
    """Return the tensors of a folder; [] if it is not a step and rank of such a dump."""
    parts = Path(folder).absolute().parts
    micro = micro_of(parts[-1])
    above = parts if micro is None else parts[:-1]
    step, rank = (place_of(above[-2:-1]).step, place_of(above[-1:]).rank) if len(above) > 2 else (None, None)
    if step is None or rank is None:
        return []
    root, tag = above[:-2], above[-3]
    single = len(root) > 2 and root[-2] == "data"
    place = SavedPlace(os.path.join(*(root[:-2] if single else root)), step, rank)
    number = -1 if micro is None else micro
    files = (_single(tag, name, number) if single else _saved(name) for name in names if name.endswith(".npy"))
    return [(place, file._replace(path=os.path.join(folder, file.path))) for file in files if file is not None]


def _saved(name: str) -> Optional[SavedFile]:
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


def _run(place: SavedPlace, files: Sequence[SavedFile], notes: Sequence[str], context: ReadContext) -> Run:
    numbers = [file.number for file in files]
    counted = len({*numbers}) == len(numbers) and len(numbers) > 1
    groups = executions(files, lambda one: one.operator, lambda one: one.slot, lambda one: one.number)
    groups = [sorted(group, key=lambda one: natural(one.slot)) for group in groups]
    if counted:
        groups.sort(key=lambda group: min(one.number for one in group))
    else:
        groups.sort(key=lambda group: (group[0].micro, natural(group[0].operator), group[0].number))
        notes = [*notes, "order: the files do not record it; operators are sorted by name"]
    return Run(
        path=place.dump,
        format=NAME,
        operators=tuple(_operator(order, group, context) for order, group in enumerate(groups)),
        step=place.step,
        rank=place.rank,
        detail="outputs only",
        notes=tuple(notes),
        ordered=counted,
    )


def _operator(order: int, group: Sequence[SavedFile], context: ReadContext) -> Operator:
    name = group[0].operator
    return Operator(
        name=name,
        op_type=type_of_name(name),
        kind=name,
        phase="backward" if name.endswith("_grad") else "",
        order=order,
        tensors=tuple(tensor_of(one.slot, one.path, "npy", one.dtype, context) for one in group),
        call=name,
        reads_recorded=False,
    )
