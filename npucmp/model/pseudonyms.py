"""Pseudonyms for private names: modules, parameters, paths, lines of call stacks.

Names of framework calls ("Functional.softmax.1.forward"), numbers, slots and element types stay. One name always gets
one pseudonym: module_1, path_1.py. Free text is searched for names that were collected before, and for paths and dotted
names in general.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Iterable, Mapping

from npucmp.model.optypes import op_type

CALL = re.compile(
    r"(?:Functional|Torch|Tensor|Mint|MintFunctional|NPU|VF|Aten|Distributed)\.\w+\.\d+(?:\.(?:forward|backward))?"
    r"(?![\w])"
)
KEPT = frozenset(
    "Module Cell forward backward input output parameter parameters parameters_grad param grad weight bias kwargs pt "
    "npy bin torch mindspore nn functional numpy npucmp torch_npu float32 float16 bfloat16 float64 int64 int32 int16 "
    "int8 uint8 bool complex64 complex128".split()
)  # segments of dotted names
OWN = re.compile(
    r"(?:roots|tensors|replay|edges|gaps|health|checks|parameters|overflow|fusion|rerun|noise|matrix|precheck|inputs|"
    r"curves|placements|parity|candidates|worst|ticket|summary|call|run|report|next_dump)\.(?:csv|json|md|py|html)"
)  # files of npucmp
GENERIC = frozenset(
    "home root user users data dump dumps tmp var opt mnt target golden npu gpu cpu report reports case out output "
    "work workspace src lib python site-packages npucmp proc msprobe torch mindspore test tests sample samples rank "
    "step".split()
)  # folders of every machine
FRAME = re.compile(r"File (?P<path>.+?), line (?P<line>\d+)(?:, in .*)?$", re.DOTALL)
SOURCE = re.compile(r"(?P<path>[^\s:]+):(?P<line>\d+)(?:\s.*)?$", re.DOTALL)
ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,5}$")
TOKEN = re.compile(r"(?:\b[A-Za-z]:(?=[/\\]))?[^\s,;:'\"()\[\]{}=<>|`*]+")
PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\]\S|.*[/\\].*[/\\]|.*[/\\].*\.[A-Za-z]\w{0,4}$")
FILE = re.compile(
    r"[\w-]+\.(?:py|pt|pth|npy|npz|bin|h5|json|yaml|yml|toml|txt|log|safetensors|csv|pb|pbtxt|onnx|om|sh)$"
)
NUMBER = re.compile(r"[-+±~≤≥<>]?\.?\d[\w.,+%-]*")
DOTTED = re.compile(r"\w{2,}(?:\.\w+)+$")


class Pseudonyms:
    """Names and their pseudonyms, in the order in which they were met."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[str, str] = {}  # whole names that free text is searched for
        self._operators: set[str] = set()
        self._kept: set[str] = set()
        self._given: set[str] = set()  # pseudonyms: a text may pass twice

    @property
    def by_pseudonym(self) -> Mapping[str, str]:
        """The original of each pseudonym."""
        return {pseudonym: name for (_, name), pseudonym in self._known.items()}

    def collect(self, names: Iterable[str], paths: Iterable[str] = ()) -> None:
        """Note names and paths, so that `of_text` finds them."""
        for name in names:
            if len(name) > 1 and not name.isdecimal():
                self._names[name] = self.of_operator(name)
                self._operators.add(name)
        for path in paths:
            if len(path) > 1:
                self._names[path] = self.of_path(path)
                for part in re.split(r"[/\\]", path):
                    stem = ENDING.sub("", part).lower().rstrip("0123456789")
                    if len(part) > 2 and stem and stem not in GENERIC and not OWN.fullmatch(part):
                        self._names.setdefault(part, self.of_path(part))
        self.__dict__.pop("_odd", None)

    def keep(self, words: Iterable[str]) -> None:
        """Note dotted words that are no names, such as rules."""
        self._kept.update(words)

    def has_operator(self, name: str) -> bool:
        """Return whether a name was collected as the name of an operator."""
        return name in self._operators

    def of_operator(self, name: str) -> str:
        """Return the pseudonym of an operator, module or parameter; the name of a framework call is its own."""
        found = CALL.match(name)
        if found:
            return found[0] + self._segments(name[found.end() :])
        is_module = name.startswith(("Module.", "Cell."))
        return self._segments(name, is_module)

    def of_path(self, path: str) -> str:
        """Return path_N with the ending of the file."""
        ending = ENDING.search(path)
        stem = path[: ending.start()] if ending else path
        return self._of("path", stem) + (ending[0] if ending else "")

    def of_frame(self, frame: str) -> str:
        """Return file and line of a frame of a call stack, without function and source: path_1.py:212."""
        found = FRAME.match(frame.strip()) or SOURCE.match(frame.strip())
        if not found:
            return "frame" if frame.strip() else ""
        name = re.split(r"[/\\]", found["path"])[-1]  # both spellings of a frame have one pseudonym
        return f"{self.of_path(name)}:{found['line']}"

    def of_type(self, name: str) -> str:
        """Return the type of an operator if npucmp's table has it, else a pseudonym."""
        return name if not name or op_type(name).name else self._of("type", name)

    def of_text(self, text: str) -> str:
        """Return free text with pseudonyms for collected names, paths, file names and dotted names."""
        for name in self._odd:
            if name in text:
                text = text.replace(name, self._names[name])
        return TOKEN.sub(lambda found: self._token(found[0]), text)

    @cached_property
    def _odd(self) -> list[str]:
        """Collected names that are not one token, longest first."""
        return sorted((one for one in self._names if not TOKEN.fullmatch(one)), key=len, reverse=True)

    def _token(self, token: str) -> str:
        bare = token.rstrip(".…?!")
        end = token[len(bare) :]
        if bare in self._names:
            return self._names[bare] + end
        if NUMBER.fullmatch(bare) or OWN.fullmatch(bare) or bare in self._kept:
            return token
        if CALL.match(bare):
            return self.of_operator(bare) + end
        if PATH.match(bare) or FILE.match(bare):
            name = re.split(r"[/\\]", bare)[-1]
            return self.of_path(name if FILE.match(name) else bare) + end
        return self.of_operator(bare) + end if DOTTED.match(bare) else token

    def _segments(self, name: str, is_module: bool = False) -> str:
        parts = re.split(r"([./:])", name)
        words = range(0, len(parts), 2)
        kind = next((at for at in words[1:] if parts[at] in ("forward", "backward")), 0) - 2 if is_module else -1
        for at in words:
            part = parts[at]
            if not part or part.isdecimal() or part in KEPT or part in self._given:
                continue
            parts[at] = part if at == kind and op_type(part).name else self._of("module", part)
        return "".join(parts)

    def _of(self, kind: str, name: str) -> str:
        found = self._known.get((kind, name))
        if found is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            found = self._known[kind, name] = f"{kind}_{self._counts[kind]}"
            self._given.add(found)
        return found
