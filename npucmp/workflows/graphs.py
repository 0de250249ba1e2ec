"""Which graphs belong to two dumps: those that a user names, else those that lie beside the dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Sequence

from npucmp.dump.formats.tfdbg import own_graphs
from npucmp.dump.graphs import beside, load
from npucmp.dump.graphs.annotate import annotate, holds, serves
from npucmp.dump.graphs.graph import Graph
from npucmp.errors import DumpError, UsageError
from npucmp.model import Run
from npucmp.workflows.runs import StrPath

GRAPHED = ("cann", "tfdbg", "npy")  # formats whose operators are nodes of a graph file
SEARCHED = 1 << 30  # bytes of graph files beside a dump that are read in all


def with_graphs(path: StrPath, runs: "list[Run]", other: StrPath, given: "Sequence[Graph]") -> "list[Run]":
    """The runs of one side with what graphs tell. Those beside the other side's dump serve too: the network is one."""
    if not any(run.format in GRAPHED for run in runs):
        return runs
    notes: list[str] = []
    known = list(given)
    if not known:
        roots = (run.path for run in runs if run.format == "cann")  # of the whole dump, be a folder deep in it given
        for places in ([path, *roots], [other]):
            known += _beside([Path(place) for place in places], runs, notes)
            if any(serves(graph, run) for graph in known for run in runs):
                break
    annotated = [
        annotate(run, [graph for graph in known if serves(graph, run)]) if run.format in GRAPHED else run
        for run in runs
    ]
    if str(path) != str(other) and any(run.format == "cann" and run == before for run, before in zip(annotated, runs)):
        notes.append("no graph beside the dump: a fused operator is compared by its name alone; give --graph")
    return [replace(run, notes=(*run.notes, *notes)) for run in annotated] if notes else annotated


def loaded(paths: "Sequence[StrPath]", runs: "Sequence[Run]") -> "list[Graph]":
    """The graphs of files that a user named; UsageError for one that holds nothing of either dump."""
    found = []
    for path in paths:
        graphs = load(Path(path))
        if not any(holds(graph, run) for graph in graphs for run in runs):
            raise UsageError(f"{path}: no operator of this graph is in either dump")
        found += graphs
    return found


def _beside(places: "Sequence[Path]", runs: "Sequence[Run]", notes: "list[str]") -> "list[Graph]":
    found, left = own_graphs(places[0], notes), SEARCHED
    if found:
        return found
    for file in dict.fromkeys(file for place in dict.fromkeys(places) for file in beside(place)):
        try:
            left -= file.stat().st_size
            if left < 0:
                notes.append(f"{file}: not read, the graphs beside the dump are too large; name one with --graph")
                break
            found += [graph for graph in load(file) if any(holds(graph, run) for run in runs)]
        except DumpError as error:
            notes.append(f"{file}: ignored, {error.because}")
        except OSError:
            continue
    return found
