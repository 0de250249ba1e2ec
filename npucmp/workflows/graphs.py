"""Find the graphs of two dumps: those that the user names, else those beside the dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from npucmp.dump.formats import graph_source, own_graphs
from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError, SystemFailure, UsageError, raise_system_failure
from npucmp.model import Run
from npucmp.workflows.option_fields import StrPath

if TYPE_CHECKING:
    from npucmp.dump.graphs.graph import Graph

SEARCHED = 1 << 30  # bytes of graph files beside a dump that are read in all


def with_graphs(
    path: StrPath, runs: list[Run], other: StrPath, loaded: Sequence[Graph], context: ReadContext
) -> list[Run]:
    """Return the runs of one side annotated with graphs. Graphs beside the dump of the other side are used too, since
    the network is the same."""
    from npucmp.dump.graphs.apply_graph import annotate
    from npucmp.dump.graphs.graph import GraphSource

    any_format = GraphSource() if loaded else None  # a graph that the user names describes files of every format
    found = {run.format: graph_source(run.format) or any_format for run in runs}
    sources = {name: source for name, source in found.items() if source is not None}

    def of_run(run: Run, graphs: Sequence[Graph]) -> list[Graph]:
        return [graph for graph in graphs if graph.of_device == sources[run.format].of_device]

    graphed = [run for run in runs if run.format in sources]
    if not graphed:
        return runs
    notes: list[str] = []
    known = list(loaded)
    if not known:
        roots = (run.path for run in graphed if sources[run.format].of_device)  # may lie deep in the given dump
        for places in ([path, *roots], [other]):
            known += _graphs_of([Path(place) for place in places], runs, notes, context)
            if any(of_run(run, known) for run in graphed):
                break
    annotated = [annotate(run, of_run(run, known)) if run.format in sources else run for run in runs]
    unknown = [run for run, before in zip(annotated, runs) if run.format in sources and run == before]
    if str(path) != str(other) and any(sources[run.format].of_device for run in unknown):
        notes.append("no graph beside the dump: fused operators are matched by name only; give --graph")
    return [replace(run, notes=tuple(dict.fromkeys((*run.notes, *notes)))) for run in annotated]


def load_named_graphs(paths: Sequence[StrPath], runs: Sequence[Run], context: ReadContext) -> list[Graph]:
    """Return the graphs of files that the user named, or of dumps that contain their own. Raises UsageError for a graph
    without an operator of either dump."""
    if not paths:
        return []
    from npucmp.dump.graphs import load_graphs
    from npucmp.dump.graphs.apply_graph import holds

    found = []
    for path in paths:
        graphs = own_graphs(Path(path), [], context) if Path(path).is_dir() else load_graphs(Path(path), context)
        if not any(holds(graph, run) for graph in graphs for run in runs):
            raise UsageError(f"{path}: no operator of this graph is in either dump")
        found += graphs
    return found


def _graphs_of(places: Sequence[Path], runs: Sequence[Run], notes: list[str], context: ReadContext) -> list[Graph]:
    from npucmp.dump.graphs import graphs_near, load_graphs
    from npucmp.dump.graphs.apply_graph import holds

    found, left = own_graphs(places[0], notes, context), SEARCHED
    if found:
        return found
    for file in dict.fromkeys(file for place in dict.fromkeys(places) for file in graphs_near(place)):
        try:
            left -= file.stat().st_size
            if left < 0:
                notes.append(f"{file}: not read, the graphs beside the dump are too large; name one with --graph")
                break
            found += [graph for graph in load_graphs(file, context) if any(holds(graph, run) for run in runs)]
        except SystemFailure:
            raise
        except DumpError as error:
            notes.append(f"{file}: ignored, {error.because}")
        except OSError as error:
            raise_system_failure(error)
            continue
    return found
