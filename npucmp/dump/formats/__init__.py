"""Formats of dumps: they turn a DIRECTORY into Runs. One module per format; no format knows a second run.

A format is a module of this package with
    NAME                    the word of `--format`, which is the module's name
    sniff(path, context) -> bool            cheap; OSError and ValueError mean no
    open_runs(path, context) -> list[Run]   names, shapes and places of tensors; no payload is read
    heads(path, context) -> list[Head]      optional: the existing runs, without reading them; `open_head` opens a run
    open_head(head, context) -> Run         required with heads: that run; `problem` is set if it cannot be read
    labels(folder, name) -> (step, rank)    optional: step and rank of a file by its path; else by step and rank folders
    calls(run, context) -> dict[str, Call]  optional: the calls in its records, by operator, for a replay
    GRAPHS                  a GraphSource: which graphs describe its operators; None if there are none
    WALKS                   optional: True if it reads all folders below a path, not only those of steps and ranks
FORMATS sets their order: the first format that recognises a path reads it; later formats are not imported. Formats of
installed packages (installed_formats.py) come after all of them, and only if --format or a path needs one.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from heapq import nsmallest
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Mapping, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.folders import first_names
from npucmp.dump.readers.msprobe_files import DATA_FOLDER
from npucmp.dump.readers.names import place_of
from npucmp.dump.readers.safe_open import forget_links, open_regular
from npucmp.errors import DumpError, UsageError, is_closed, nearest, raise_system_failure
from npucmp.model import Call, Run, RunHeader, first_of

if TYPE_CHECKING:
    from npucmp.dump.graphs.graph import Graph, GraphSource

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".txz", ".tar.zst", ".7z", ".rar", ".gz")
NAMED, LOOKED_AT, DEPTH = 3, 50, 3  # dumps found below a path that is no dump, folders searched, depth of the search
OF_REPORTS = "summary.json", "report.html"  # that every command with -o writes
WEIGHT_FILES, WEIGHT_NAMES = (".safetensors", ".npz", ".bin", ".pt", ".pth", ".distcp"), 200  # of checkpoints
NEIGHBOURS = 1000  # names compared with a missing one to suggest a similar name
BEGINNING = 1 << 16  # bytes of a file that name its content
MOST_LISTED = 8  # listed dumps of one step and rank

FORMATS = (
    "msprobe", "cann", "mindspore", "tfdbg", "hdf5", "monitor", "fx", "atb", "saved",
    "npy", "pt", "safetensors", "npz",
)  # fmt: skip


def module_of(name: str) -> ModuleType:
    """Return the format of a name. Raises UsageError for an unknown name, and for an installed format that cannot be
    loaded."""
    if name in FORMATS:
        return import_module(f"{__name__}.{name}")
    from npucmp.dump.installed_formats import format_extensions, load_format

    installed = format_extensions()
    if name not in installed:
        known = ", ".join([*FORMATS, *(one for one in installed if one not in FORMATS)])
        raise UsageError(f"unknown format {name!r}; npucmp reads {known}")
    return load_format(installed[name])


def _installed_format(path: Path, context: ReadContext) -> tuple[Optional[ModuleType], str]:
    """Return the first installed format that recognises a path, and the reason why another could not be tried."""
    from npucmp.dump.installed_formats import format_extensions, load_format

    problem = ""
    for name, one in format_extensions().items():
        if name in FORMATS:
            continue
        try:
            module = load_format(one)
            if sniffs(module, path, context):
                return module, ""
        except UsageError as error:
            problem = problem or str(error)
    return None, problem


def may_hold_weights(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file of a checkpoint, or a folder with one among its first names; reads no file."""
    where = Path(path)
    if where.is_file():
        return where.name.endswith(WEIGHT_FILES)
    names = [*first_names(where, WEIGHT_NAMES)] if where.is_dir() else []
    return "dump.json" not in names and any(name.endswith(WEIGHT_FILES) for name in names)


def graph_source(name: str) -> Optional[GraphSource]:
    """Return the source of the graphs that describe the operators of a format, None if there are none."""
    found: Optional[GraphSource] = module_of(name).GRAPHS
    return found


def calls_of(run: Run, context: ReadContext = ANYWHERE) -> Mapping[str, Call]:
    """Return the calls of a run's operators by name, {} if its format records none; its records are read again."""
    calls = getattr(module_of(run.format), "calls", None)
    return _calls_of_graph(run) if calls is None else calls(run, context)


def _calls_of_graph(run: Run) -> dict[str, Call]:
    """Return the calls of the operators of a kernel dump, whose types identify the computation.

    For files with outputs only, a graph must name the type and the inputs of an operator.
    """
    kernels = run.format in ("cann", "mindspore")
    return {
        operator.name: Call(f"Graph.{run.format}", operator.op_type)
        for operator in run.operators
        if any(one.slot.startswith("input:") and (kernels or one.source) for one in operator.tensors)
    }


def own_graphs(path: Path, notes: list[str], context: ReadContext = ANYWHERE) -> list[Graph]:
    """Return the graphs that a dump itself contains, in any format; a malformed graph adds a note."""
    sources = filter(None, map(graph_source, FORMATS))
    return [graph for source in sources if source.own for graph in source.own(path, notes, context)]


def open_runs(path: str | os.PathLike[str], format: Optional[str] = None, context: ReadContext = ANYWHERE) -> list[Run]:
    """Return the runs below `path`, one per (step, rank), in that order.

    `format` names one of FORMATS; without it the format is recognised. Links that lead out of the dump and of the other
    dumps of the context are not followed. Raises DumpError if the path does not exist, is not a dump, or holds nothing;
    UsageError for an unknown format.
    """
    where, module, context = _detect_format(path, format, context)
    runs: list[Run] = module.open_runs(where, context)
    broken = [run.problem for run in runs if run.problem]
    if broken and len(broken) == len(runs):
        raise DumpError(where, f"none of its {len(runs)} dumps can be read, the first: {broken[0]}")
    if not any(run.operators or run.records for run in runs):
        if format is not None:
            raise DumpError(where, _other_format(where, format, context))
        raise DumpError(where, f"recognised as {module.NAME}, but no operator was dumped in it")
    _require_one_dump(where, runs)
    return sorted([*runs, *_unreadable_folders(where, module)], key=lambda run: (run.step or 0, run.rank or 0))


def heads(
    path: str | os.PathLike[str], format: Optional[str] = None, context: ReadContext = ANYWHERE
) -> list[RunHeader]:
    """List the runs that `open_runs` would find, in the same order.

    For most formats this opens the runs; for formats with `heads` only names of folders are read. Raises like
    `open_runs`, except for errors that only reading reveals.
    """
    where, module, context = _detect_format(path, format, context)
    known = _heads(where, module, context)
    return known if known is not None else [_head_of(run, str(where)) for run in open_runs(where, format, context)]


def format_at(
    path: str | os.PathLike[str], format: Optional[str] = None, context: ReadContext = ANYWHERE
) -> Optional[ModuleType]:
    """Return the format that reads a path, and its `labels`; None if no dump is there yet. Raises UsageError for an
    unknown format."""
    with suppress(DumpError, OSError):
        return _detect_format(path, format, context)[1]
    return None


def early_heads(
    path: str | os.PathLike[str], format: Optional[str] = None, context: ReadContext = ANYWHERE
) -> Optional[list[RunHeader]]:
    """Return the heads if no run has to be opened for them; None for formats without `heads`."""
    return _heads(*_detect_format(path, format, context))


def _heads(where: Path, module: ModuleType, context: ReadContext) -> Optional[list[RunHeader]]:
    if not hasattr(module, "heads"):
        return None
    found: list[RunHeader] = module.heads(where, context)
    _require_one_dump(where, found)
    return sorted(found, key=lambda head: (head.step or 0, head.rank or 0))


def open_head(head: RunHeader, context: ReadContext = ANYWHERE) -> Run:
    """Open one of the runs that `heads` found. Raises DumpError if it no longer exists."""
    module, context = module_of(head.format), context.confine(head.dump)
    if hasattr(module, "open_head"):
        opened: Run = module.open_head(head, context)
        return opened
    runs: list[Run] = module.open_runs(Path(head.dump), context)
    found = next((run for run in runs if _head_of(run, head.dump) == head), None)
    if found is None:
        raise DumpError(head.path, "no longer exists")
    return found


def _head_of(run: Run, dump: str) -> RunHeader:
    return RunHeader(dump, run.format, run.step, run.rank, run.path)


def _detect_format(
    path: str | os.PathLike[str], format: Optional[str], context: ReadContext
) -> tuple[Path, ModuleType, ReadContext]:
    where = Path(path)
    if not os.path.exists(where):
        words = "no such file or folder; pass the dump's root, a step or rank folder, or a dump.json"
        raise DumpError(where, words + "".join(f"; nearest: {near}" for near in _near(where)))
    forget_links()
    context = context.confine(where)
    return (*_recognise(where, context), context) if format is None else (where, module_of(format), context)


def _other_format(path: Path, format: str, context: ReadContext) -> str:
    """Return why a requested format finds nothing here."""
    other = _format_of(path, context)
    if other is None or format == other.NAME:
        return f"contains no operator of a {format} dump; npucmp formats describes the formats"
    return f"contains no operator of a {format} dump; without --format it is read as {other.NAME}"


def _require_one_dump(path: Path, runs: Sequence[Run | RunHeader]) -> None:
    """Raise DumpError for a folder with several dumps of one step and rank: a comparison would choose randomly."""
    places: dict[tuple[Optional[int], Optional[int]], list[str]] = {}
    for run in runs:
        places.setdefault((run.step, run.rank), []).append(run.path)
    several = next((paths for paths in places.values() if len(paths) > 1), None)
    if several:
        inside = first_of([os.path.relpath(one, path) for one in several], MOST_LISTED)
        raise DumpError(path, f"contains several dumps of one step and rank ({inside}); pass one of them")


def _recognise(path: Path, context: ReadContext) -> tuple[Path, ModuleType]:
    """Return the dump at a path, or the only dump below it."""
    record = path.absolute().parent / "dump.json"
    if path.name == DATA_FOLDER and record.is_file():
        words = "contains the tensors of a dump without their names and order"
        raise DumpError(path, f"{words}; pass the folder with dump.json, {path.parent}")
    module, problem = _format_of(path, context), ""
    if module is None:
        module, problem = _installed_format(path, context)
    if module is not None:
        return path, module
    if path.is_dir() and not any(path.iterdir()):
        raise DumpError(path, "the folder is empty; was the dump written elsewhere, or by another rank or step?")
    packed = _archive(path)
    if packed:
        raise DumpError(path, f"{packed} is an archive; unpack it and pass the resulting folder")
    below, all_of_them = _below(path, context)
    if len(below) == 1 and all_of_them:
        return below[0]
    if below:
        words = " or ".join(str(folder) for folder, _ in below)
        raise DumpError(path, f"no dump is recognised here, but in subfolders: pass {words}")
    if record.is_file():
        raise DumpError(path, f"is a file of a dump; pass {record}")
    if all((path / name).is_file() for name in OF_REPORTS):
        raise DumpError(path, "is a report of npucmp, not a dump; npucmp diff, ticket and merge read it")
    for folder in (path, *_folders(path)):
        if not os.access(folder, os.R_OK):
            raise DumpError(folder, "cannot be read: permission denied")
    if mentions_log_probs(path, context):
        raise DumpError(path, "holds log-probabilities of tokens, not tensors; npucmp parity compares them")
    words = "no dump is recognised here; `npucmp formats` lists the formats, --format selects one"
    raise DumpError(path, words + (f"; not tried: {problem}" if problem else ""))


def mentions_log_probs(path: str | os.PathLike[str], context: ReadContext = ANYWHERE) -> bool:
    """Return whether a file, or the first file of a folder, begins with the names of log-probabilities of tokens."""
    with suppress(OSError, DumpError):
        for _ in range(DEPTH):
            if not os.path.isdir(path):
                break
            path = min((entry.path for entry in os.scandir(path) if not entry.is_symlink()), default=os.devnull)
        with open_regular(os.fspath(path), context) as file:
            start = file.read(0, min(BEGINNING, file.size))
        return b"log_prob" in start or b"logprob" in start
    return False


def _near(path: Path) -> list[str]:
    """Return a path in the same folder with a similar name; [] if there is none."""
    with suppress(OSError):
        names = (entry.name for entry in islice(os.scandir(path.parent), NEIGHBOURS))
        return [str(path.with_name(name)) for name in nearest(path.name, names, 1)]
    return []


def _format_of(path: Path, context: ReadContext) -> Optional[ModuleType]:
    return next((module for module in map(module_of, FORMATS) if sniffs(module, path, context)), None)


def _unreadable_folders(path: Path, module: ModuleType) -> list[Run]:
    """Return folders below that cannot be listed but would have been read, each as an unreadable run.

    The content of such a folder is unknown. Formats with `heads` handle this case themselves.
    """
    lost: list[OSError] = []
    if path.is_dir() and not hasattr(module, "heads"):
        deque(os.walk(path, onerror=lost.append), maxlen=0)
    found = []
    for error in lost:
        step, rank, depth = place_of(Path(error.filename).absolute().parts)
        is_read = getattr(module, "WALKS", False) or depth > len(path.absolute().parts)
        if is_closed(error) and is_read:
            because = f"{error.filename}: cannot be listed: {error.strerror}"
            found.append(Run(error.filename, module.NAME, (), step, rank, problem=because))
    return found


def sniffs(module: ModuleType, path: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether a format recognises a path. Raises DumpError if the system fails."""
    try:
        return bool(module.sniff(path, context))
    except OSError as error:  # the path cannot be opened
        raise_system_failure(error)
        return False
    except ValueError:  # no file can have such a name
        return False


def _archive(path: Path) -> str:
    """Return the archive at a path, or the archives that are all that a folder holds; "" if there is none."""
    if path.is_file():
        return path.name if path.name.lower().endswith(ARCHIVES) else ""
    with suppress(OSError):
        names = [entry.name for entry in os.scandir(path)]
        if all(name.lower().endswith(ARCHIVES) for name in names):
            return first_of(sorted(names))
    return ""


def _below(path: Path, context: ReadContext) -> tuple[list[tuple[Path, ModuleType]], bool]:
    """Return up to NAMED folders below with a recognised dump, nearest first, and whether all folders were searched."""
    found: list[tuple[Path, ModuleType]] = []
    level, left = [path], LOOKED_AT
    for _ in range(DEPTH):
        below = [folder for above in level for folder in _folders(above)]
        level = []
        for folder in below:
            if len(found) == NAMED or not left:
                return found, False
            left -= 1
            module = _format_of(folder, context)
            if module is None:
                level.append(folder)
            else:
                found.append((folder, module))
    return found, not level


def _folders(path: Path) -> list[Path]:
    """Return the first folders directly below, in the order of their names; links are skipped."""
    try:
        with os.scandir(path) as entries:
            folders = (one.path for one in entries if one.is_dir(follow_symlinks=False))
            return [Path(folder) for folder in nsmallest(LOOKED_AT + 1, folders)]
    except OSError as error:
        raise_system_failure(error)
        return []
