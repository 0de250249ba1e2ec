"""The skeleton of formats that write a file per tensor: folders → files of a run → executions of operators → Run.

A format decides which names are its files (`read`), to which run a folder belongs (Place), and how operators, slots
and executions are distinguished and sorted (readers/folders.py, executions). The name gives the rest of an operator;
a format that knows more replaces it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, Optional, TypeVar

from npucmp.dump.readers.folders import DEPTH, folders_at
from npucmp.dump.readers.names import type_of_name
from npucmp.model import Operator, Run, TensorRef

File = TypeVar("File")
Name = TypeVar("Name", bound=Hashable)


class Place(NamedTuple):
    """The run that a folder belongs to: its dump, step and rank."""

    dump: str
    step: Optional[int]
    rank: Optional[int]


@dataclass
class PlaceContents(Generic[File]):
    """The content of the folders of one place. `records` are the overflow records of the device."""

    files: list[File] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def contents_by_place(
    path: Path, read: Callable[[str, list[str], list[str]], tuple[Optional[Place], list[File]]], depth: int = DEPTH
) -> dict[Place, PlaceContents[File]]:
    """Return the files at or below a path, by run.

    `read(folder, names, notes)` returns the place and the files of one folder, and adds notes on the others; the first
    run has the notes of all folders.
    """
    found: dict[Place, PlaceContents[File]] = defaultdict(PlaceContents)
    notes: list[str] = []
    for folder, names in folders_at(path, depth):
        place, files = read(folder, names, notes)
        if place is not None and files:
            found[place].files += files
    for first in [*found.values()][:1]:
        first.notes += notes
    return found


def kinds_met_once(kind: Callable[[Name], str], names: Iterable[Name]) -> set[str]:
    """Return the kinds that only one of the names has: no other operator shifts the index in such a name."""
    return {one for one, times in Counter(map(kind, {*names})).items() if times == 1}


def run_of(
    place: Place,
    format: str,
    operators: Iterable[Operator],
    detail: str = "",
    notes: Iterable[str] = (),
    ordered: bool = True,
    records: Iterable[str] = (),
) -> Run:
    """Return the run of a place; a note that several folders gave occurs once."""
    return Run(
        path=place.dump,
        format=format,
        operators=tuple(operators),
        step=place.step,
        rank=place.rank,
        detail=detail,
        notes=tuple(dict.fromkeys(notes)),
        ordered=ordered,
        records=tuple(records),
    )


def operator_by_name(
    name: str, order: int, tensors: Iterable[TensorRef], reads: bool = False, phase: str = ""
) -> Operator:
    """Return an operator whose name gives its type and identifies it in all runs; `reads`: inputs are recorded."""
    return Operator(
        name=name,
        op_type=type_of_name(name),
        kind=name,
        phase=phase,
        order=order,
        tensors=tuple(tensors),
        call=name,
        reads_recorded=reads,
    )
