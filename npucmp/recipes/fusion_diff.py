"""Which fused operator computes something else than its unfused chain, and which pass made it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Sequence

from npucmp.errors import DumpError
from npucmp.model import FusionPass, Report
from npucmp.readers import fusion_result
from npucmp.recipes.compare import Options, Sides, compared
from npucmp.recipes.graphs import loaded, with_graphs
from npucmp.recipes.runs import StrPath

ANCESTORS = 3  # folders above a dump that may hold fusion_result.json


@dataclass(frozen=True)
class FusionOptions(Options):
    """Options of a comparison, and which graphs belong to which side."""

    on_graph: Sequence[StrPath] = ()
    off_graph: Sequence[StrPath] = ()


def fusion_diff(on: StrPath, off: StrPath, options: Optional[FusionOptions] = None, **more: object) -> Report:
    """Compares a run with fusion (target) with one without (golden); keyword arguments are fields of the options.

    Raises NpucmpError when there is nothing to compare. Trouble with single tensors is in the report.
    """
    options = replace(options or FusionOptions(), **more)  # type: ignore[arg-type]
    started = time.monotonic()
    fused, plain = options.runs(on), options.runs(off)
    both = loaded(options.graph, [*fused, *plain])
    fused = with_graphs(on, fused, on, [*loaded(options.on_graph, fused), *both])
    plain = with_graphs(off, plain, off, [*loaded(options.off_graph, plain), *both])
    report = compared("fusion-diff", Sides(on, fused, off, plain), options, started)
    notes: list[str] = []
    passes = _passes(Path(on), Path(off), notes)
    if not any(operator.originals for run in fused for operator in run.operators):
        notes.append("no graph of the fused run: fused operators are known by their names alone, or by their order")
    return replace(report, passes=passes, notes=(*report.notes, *notes))


def _passes(on: Path, off: Path, notes: "list[str]") -> "tuple[FusionPass, ...]":
    """Passes by how often they took effect in either compilation, as far as fusion_result.json tells."""
    effects = [_effects(path, notes) for path in (on, off)]
    names = {key: None for side in effects for key in side}
    return tuple(FusionPass(name, kind, *(side.get((name, kind)) for side in effects)) for name, kind in names)


def _effects(path: Path, notes: "list[str]") -> "dict[tuple[str, str], int]":
    folder = path.absolute()
    for place in (folder, *list(folder.parents)[:ANCESTORS]):
        file = place / fusion_result.FILE
        if file.is_file():
            try:
                return {(one.name, one.kind): one.times for one in fusion_result.read(file)}
            except DumpError as error:
                notes.append(f"{file}: ignored, {error.because}")
                return {}
    return {}
