"""Writes folders of .pt files, one tensor each, as users of LLM frameworks dump them.

step{N}/rank{M} | pid1/dump_tensor_data/{name}.{call}.{input|output}.{n}.pt                     AclGraphDumper
step={N}___rank={M}___name={operator}.{call}.{input|output}.{n}___dump_index={n}.pt             SGLang
npu0_1/{step}/root.{module}/{input|output}_{n}.pth                                              msit, MindIE
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from tests.corpus.trace import Record, Run
from tests.corpus.writers import msprobe
from tests.corpus.writers.msprobe import pt
from tests.corpus.writers.slots import module_names, slots


def write(folder: Path, runs: Sequence[Run], tree: str) -> None:
    """One dump of all runs; tree: "calls", "records", "fields" or "modules"."""
    for run in runs:
        {"calls": _calls, "records": _calls, "fields": _fields, "modules": _modules}[tree](folder, run, tree)


def names(run: Run, tree: str) -> dict[Record, str]:
    """What a dump of this run calls each of its operators."""
    if tree == "records":
        return {record: name for record, name in msprobe.names(run).items() if record.kind != "Module"}
    some = module_names(run)
    if tree == "modules":
        return {record: f"root.{name}" for record, name in some.items()}
    return {record: f"{name.replace('.', '_')}.{place}" for place, (record, name) in enumerate(some.items())}


def _calls(folder: Path, run: Run, tree: str) -> None:
    rank = "pid1" if run.rank is None else f"rank{run.rank}"
    place = folder / f"step{run.step}" / rank / "dump_tensor_data"
    place.mkdir(parents=True)
    for record, name in names(run, tree).items():
        for slot in slots(record):
            place.joinpath(f"{name}.{slot.role}.{slot.path}.pt").write_bytes(pt(slot.tensor))


def _fields(folder: Path, run: Run, tree: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = 0
    for record, name in names(run, tree).items():
        for slot in slots(record):
            fields = f"step={run.step}___rank={run.rank or 0}___name={name}.{slot.role}.{slot.path}"
            folder.joinpath(f"{fields}___dump_index={index}.pt").write_bytes(pt(slot.tensor))
            index += 1


def _modules(folder: Path, run: Run, tree: str) -> None:
    for record, name in names(run, tree).items():
        place = folder / f"npu{run.rank or 0}_1" / str(run.step) / name
        for slot in slots(record):
            if slot.role != "input_kwargs":
                place.mkdir(parents=True, exist_ok=True)
                place.joinpath(f"{slot.role}_{slot.path.replace('.', '_')}.pth").write_bytes(pt(slot.tensor))
