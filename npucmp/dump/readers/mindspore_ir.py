"""Read the graphs of a rank that MindSpore writes beside its dump, by full names ("Default/fc-Dense/MatMul-op0").

    graphs/ms_output_trace_code_graph_{graph}.ir
        %0(y) = PrimFunc_LayerNorm(%para1_x, %para2_w, I64(-1), F32(1e-07)) {…}     constants are among the inputs
                … primitive_attrs: {pad_mode: "valid", stride: (1, 1, 2, 2), groups: I64(1), use_nesterov: Bool(0)} …
            : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (2, 3)>)
            : (<Float32xDefaultFormat[const vector]{2, 3}>) -> (<Float32xDefaultFormat[const vector]{2, 3}>)
            # Fullname with scope: (Default/network-Net/ln-LayerNorm/LayerNorm-op0)   older: full_name_with_scope
            # In file net.py:13~15, 4~59/    def construct(self,x):/                  outermost call first, and each
            # In file net.py:15, 10~15/        x=self.ln(x)/                          function before the line in it
    execution_order/ms_execution_order_graph_{graph}.csv
        a header, then a full name per line, in the order of launch
Source: MindSpore 2.10 on CPU, and public test data of 2.x releases.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.mindspore_files import kind
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError
from npucmp.model import Scalar

_GRAPHS = 16  # files of one rank
_FRAMES = 64  # of one node
_CALL_LENGTH = 16384
_MOST = 64  # attributes of a node, numbers of one

_FULL_NAME = re.compile(r"[#:]\s*full_?name_?\s*_?with_?\s*_?scope:?\s*\((?P<name>[^()\s]+)\)", re.IGNORECASE)
_CALL = re.compile(r"% ?\w+\(.*?\) = [\w.]+\((?P<inputs>.*)")
_CONSTANT = re.compile(r"(?P<type>Bool|[IUF][0-9]{1,2})\((?P<value>[^()]{1,40})\)")
_ATTRIBUTES = re.compile(r"primitive_attrs: \{(?P<inside>.*)")
_ATTRIBUTE = re.compile(r"(?P<key>\w{1,40}): (?P<value>.+)", re.DOTALL)
_SHAPE = re.compile(r"\[const vector\]\{(?P<dims>[0-9, ]{0,400})\}")
_FRAME = re.compile(
    r"# In file (?P<path>.+?)(?::|\()(?P<line>[0-9]{1,9})(?:~[0-9]+, [0-9~]+|, [0-9~]+|\))/(?P<code>.*)"
)
_DEFINITION = re.compile(r"\s*(?:async )?def (?P<name>\w+)")


class IrKernel(NamedTuple):
    """A kernel of a graph: its full name, constant inputs by slot as (dtype, value), and frames, innermost first.

    attributes are those of its primitive; `shape of input:0` is the shape in which the kernel reads an operand; the
    file of the operand has the shape of the kernel that wrote it.
    """

    name: str
    constants: Mapping[str, tuple[str, Scalar]]
    stack: tuple[str, ...]
    attributes: Mapping[str, Any] = {}


class FullNames:
    """Lookup of a full name's position in a list by the spelling in file names."""

    def __init__(self, full_names: Iterable[str]) -> None:
        self._places: dict[str, int] = {}
        self._spellings: dict[str, set[str]] = {}
        for place, full in enumerate(full_names):
            self._places.setdefault(full, place)
            escaped = re.sub(r"[/.\\ ]", "_", full)
            # the spelling without number is last: a pass that replaces a kernel renumbers it after the order is written
            for spelling in (escaped, full.rpartition("/")[2], kind(escaped)):
                self._spellings.setdefault(spelling, set()).add(full)

    def find(self, op_name: str) -> Optional[int]:
        """Return the position of the only full name that matches; None if none matches, or several do."""
        for spelling in (op_name, kind(op_name)):
            found = self._spellings.get(spelling, set())
            if len(found) == 1:
                return self._places[next(iter(found))]
        return None


class Companions:
    """The files of one rank's folder, each read once. A malformed file adds a note."""

    def __init__(self, folder: Path, context: ReadContext = ANYWHERE) -> None:
        self.notes: list[str] = []
        self._folder, self._context = folder, context
        self._orders: dict[str, FullNames] = {}

    def launch_order(self, graph: str, op_names: Sequence[str]) -> list[int]:
        """Return positions of a graph's kernels in the order of launch; [] unless each kernel has a distinct one."""
        if graph not in self._orders:
            text = self._read(self._folder / "execution_order" / f"ms_execution_order_graph_{graph}.csv")
            self._orders[graph] = FullNames(filter(None, map(str.strip, text.splitlines()[1:])))
        found = [self._orders[graph].find(name) for name in op_names]
        return [] if None in found or len(set(found)) < len(found) else [place for place in found if place is not None]

    def node(self, op_name: str) -> IrKernel:
        """Return the first kernel of a name in the graphs; an empty one if no name matches, or several do."""
        place = self._names.find(op_name)
        return IrKernel("", {}, ()) if place is None else self._nodes[place]

    @cached_property
    def _nodes(self) -> list[IrKernel]:
        files = sorted(self._folder.glob("graphs/ms_output_trace_code_graph_*.ir"))[:_GRAPHS]
        return [node for file in files for node in _nodes(self._read(file))]

    @cached_property
    def _names(self) -> FullNames:
        return FullNames(node.name for node in self._nodes)

    def _read(self, file: Path) -> str:
        try:
            return read_text(file, "table_bytes", self._context) if file.exists() else ""
        except (DumpError, OSError) as error:
            self.notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
            return ""


def _nodes(text: str) -> Iterator[IrKernel]:
    call, name = "", ""
    frames: list[str] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for line in [*map(str.strip, text.splitlines()), ""]:  # a line that is not a comment begins another node
        if not line.startswith(("#", ":")):
            if name:
                yield IrKernel(name, _constants(call), _stack(frames), {**_attributes(call), **shapes})
            call, name, frames, shapes = line, "", [], {}
        elif not name:
            match = _FULL_NAME.match(line)
            name = match["name"] if match else ""
            shapes = shapes or _shapes(line)
        elif line.startswith("# In file ") and len(frames) < _FRAMES:
            frames.append(line)


def _constants(call: str) -> dict[str, tuple[str, Scalar]]:
    match = _CALL.match(call[:_CALL_LENGTH])
    constants = {f"input:{i}": _constant(text) for i, text in enumerate(_inputs(match["inputs"]) if match else ())}
    return {slot: constant for slot, constant in constants.items() if constant}


def _constant(text: str) -> Optional[tuple[str, Scalar]]:
    match = _CONSTANT.fullmatch(text)
    if match is None:
        return None
    word, value = match["type"], match["value"]
    try:
        if word == "Bool":
            return "bool", value in ("1", "true", "True")
        if word[0] == "F":
            return f"float{word[1:]}", float(value)
        return f"{'int' if word[0] == 'I' else 'uint'}{word[1:]}", int(value)
    except ValueError:
        return None


def _attributes(call: str) -> dict[str, Any]:
    match = _ATTRIBUTES.search(call[:_CALL_LENGTH])
    entries = map(_ATTRIBUTE.fullmatch, islice(_inputs(match["inside"]) if match else (), _MOST))
    found = {entry["key"]: _value(entry["value"]) for entry in entries if entry}
    return {key: value for key, value in found.items() if value is not None}


def _value(text: str) -> Any:
    """Return a number, a bool, a word, or a tuple of them; None for other texts."""
    if text[:1] in ("(", "["):
        values = [_value(one) for one in islice(_inputs(text[1:]), _MOST + 1) if one]
        return None if None in values or len(values) > _MOST else tuple(values)
    constant = _constant(text)
    if constant is not None:
        return constant[1]
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    word = text.strip('"')
    return word if re.fullmatch(r"\w{0,40}", word) else None


def _shapes(line: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes in which operands are read; only tensors of a kernel, so that monads do not count."""
    read = line.partition(" -> ")[0]
    found = [one["dims"] for one in islice(_SHAPE.finditer(read[:_CALL_LENGTH]), _MOST)]
    return {f"shape of input:{i}": tuple(map(int, dims.split(", "))) if dims else () for i, dims in enumerate(found)}


def _inputs(text: str) -> Iterator[str]:
    """Yield the inputs of a call up to its closing bracket, split at commas outside of brackets."""
    depth = start = 0
    for i, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and sign == ","):
            yield text[start:i].strip()
            start = i + 1
        if depth < 0:
            return


def _stack(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the frames in msprobe's form (npucmp/model/stack.py)."""
    frames: list[str] = []
    functions: dict[str, str] = {}
    for match in filter(None, map(_FRAME.match, lines)):
        path, code = match["path"], match["code"].partition("/<~~")[0].rstrip("/")
        definition = _DEFINITION.match(code)
        if definition:
            functions[path] = definition["name"]
            continue
        frame = f"File {path}, line {match['line']}, in {functions.get(path, '?')}, \n {code.strip()}"
        if frame not in frames[-1:]:
            frames.append(frame)
    return tuple(reversed(frames))
