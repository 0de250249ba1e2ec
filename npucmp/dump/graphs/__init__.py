"""Graphs that a compiler or framework recorded: graph files become Graphs.

A graph has facts that no dump has: which operators of the network a fused operator computes, and which tensor an input
reads, in which logical shape. A graph is only supporting information: no module here reads a tensor, and a run without
a graph, or with a graph that does not fit, is compared too.

    graph.py       the classes: Graph, Node, Port; all graphs of a run in one, with lookup by name
    ge.py          GE, the Ascend graph compiler: text and JSON
    graphdef.py    TensorFlow: text, and the wire format, in a file (graph.pb) or inside tfdbg dumps
    onnx.py        ONNX: the wire format of model.onnx
    attributes.py  which attributes are kept, and their values

A new kind of graph needs a module that makes these objects, and a line in `load_graphs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from npucmp.dump.graphs import ge, graphdef, onnx
from npucmp.dump.graphs.graph import Graph
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.protobuf import Cursor
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import read_text
from npucmp.dump.readers.textproto import Message, parse
from npucmp.errors import DumpError, SystemFailure, raise_system_failure

MOST_FILES = 200
_ANCESTORS = 4
_ENTRIES = 100_000  # entries read per folder
_WIRE = re.compile(  # {name}.pb: the first node of a GraphDef, with its name and its operator type
    rb"\n[\x80-\xff]{0,4}[\x00-\x7f]\n[\x80-\xff]{0,2}[\x01-\x7f][\w./>\\-]+\x12[\x01-\x7f]\w"
)
_FILE = re.compile(r"(?:ge_proto|dynamo)_.*\.txt|(?!ge_onnx_).*\.pbtxt|ge_proto.*\.json|graph.*\.json")
_TENSOR = re.compile(r"\.[0-9]{10,}\.pb$")  # a tensor dump, with its time
_OF_ATC = re.compile(rb'\s*\{\s*"(?:attr|graph|name|version)".*"(?:key|op)"', re.DOTALL)  # {om}.json, of any name
_HEAD = 4096
_FOLDER = re.compile(r"graphs?|model|pid_.*")
_PROCESS = re.compile(r"pid_.*|[0-9]+_[0-9]+")  # "{pid}_{device}" below extra-info/graph
_STAGE = re.compile(r"ge_proto_?[0-9]*_?(graph_[0-9]+_)?(.*)\.(?:txt|json)")
_EXPECTED = (
    "not a graph that npucmp reads: GE text or JSON with `graph { op { … } }`, or a GraphDef as text with `node { … }` "
    "or binary, or an ONNX model"
)


def load_graphs(path: str | os.PathLike[str], context: ReadContext = ANYWHERE) -> list[Graph]:
    """Return the graphs of a file, recognised by content: root and subgraphs of a GE model, or one graph.

    Raises DumpError for a file of another kind, for a malformed file, and beyond a limit.
    """
    if _starts_with(path, _WIRE, context):
        return [_of_wire(path, context)]
    if _starts_with(path, onnx.HEAD, context):
        with open_regular(os.fspath(path), context) as file:  # its weights, most of the file, are skipped
            return [onnx.from_wire(Cursor(file), 0, file.size, path)]
    text, limits = read_text(path, "graph_bytes", context), context.limits
    is_json = text.lstrip()[:1] == "{"
    tree = ge.from_json(text, path, limits) if is_json else parse(text, path, ge.is_relevant, limits)
    graphs = _graphs(tree, path)
    if not any(graph.nodes for graph in graphs):
        raise DumpError(path, _EXPECTED)
    return graphs


def _starts_with(path: str | os.PathLike[str], form: re.Pattern[bytes], context: ReadContext) -> bool:
    """Return whether the first bytes of a file match a pattern."""
    with open_regular(os.fspath(path), context) as file:
        return form.match(file.read(0, min(_HEAD, file.size))) is not None


def _of_wire(path: str | os.PathLike[str], context: ReadContext) -> Graph:
    """Return the graph of a binary GraphDef. Constants are skipped, so that weights are not read."""
    with open_regular(os.fspath(path), context) as file:
        file.limits.require(path, "graph_bytes", file.size, "has {:,} bytes")
        return graphdef.from_wire(Cursor(file), 0, file.size, path)


def _graphs(tree: Message, path: object) -> list[Graph]:
    if "graph" in tree:
        return ge.ge_graphs(tree, path)
    if "op" in tree:  # a single GE graph without an enclosing model
        return ge.ge_graphs({"graph": [tree]}, path)
    return graphdef.graphdef_graphs(tree, path)


def graphs_near(path: Path) -> list[Path]:
    """Return files near a dump that look like graphs by name; of GE's compile stages only the last, if it exists.

    The search covers the dump's folder, its parent, and each folder `graph`, `graphs`, `model` or `pid_…` in the dump's
    folder and in its next four ancestors. The JSON that atc writes has an arbitrary name: its first bytes identify it.
    Returns at most MOST_FILES, final stages first, always in the same order. Raises DumpError if the system fails.
    """
    try:
        folder = Path(os.path.abspath(path))
    except OSError:  # the working directory was deleted
        return []
    if not os.path.isdir(folder):
        folder = folder.parent
    found: dict[Path, None] = {}
    for place in _places(folder):
        names = _names(place, folders=False)
        found.update((place / name, None) for name in _last_stages([name for name in names if _is_graph(place, name)]))
    files = sorted(found, key=lambda file: not _is_final(file.name))  # stable sort: nearer folders stay first
    return files[:MOST_FILES]


def _is_graph(folder: Path, name: str) -> bool:
    forms = {".json": _OF_ATC, ".pb": _WIRE, ".onnx": onnx.HEAD}
    form = forms.get(os.path.splitext(name)[1])
    if _FILE.fullmatch(name) or form is None or _TENSOR.search(name):
        return _FILE.fullmatch(name) is not None
    try:
        return _starts_with(folder / name, form, context=ANYWHERE)
    except SystemFailure:
        raise
    except (DumpError, OSError):
        return False


def _places(folder: Path) -> Iterator[Path]:
    """Yield folders that may hold graphs, nearest first."""
    yield folder
    yield folder.parent
    for base in (folder, *islice(folder.parents, _ANCESTORS)):
        for name in _names(base, folders=True):
            if _FOLDER.fullmatch(name):
                yield base / name
            if name in ("graph", "graphs"):
                yield from (base / name / one for one in _names(base / name, folders=True) if _PROCESS.fullmatch(one))


def _names(folder: Path, folders: bool) -> list[str]:
    """Return the sorted names of the files or folders in a folder, without links; [] if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            scanned = islice(entries, _ENTRIES)
            return sorted(
                one.name for one in scanned if (one.is_dir if folders else one.is_file)(follow_symlinks=False)
            )
    except OSError as error:
        raise_system_failure(error)
        return []
    except ValueError:
        return []


def _is_final(name: str) -> bool:
    return re.search(r"Build\.(?:txt|json)$", name) is not None


def _last_stages(names: list[str]) -> list[str]:
    """Drop the names of a graph's earlier stages if its last stage exists too."""
    built = {_graph_of(name) for name in names if _is_final(name)}
    return [name for name in names if _is_final(name) or _graph_of(name) not in built]


def _graph_of(name: str) -> str:
    found = _STAGE.fullmatch(name)
    return "\0" + name if found is None else found[1] or ""
