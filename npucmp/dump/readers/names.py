"""What the names of operators and files say, of all formats alike."""

from __future__ import annotations

import os
import re
from typing import Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.model import first_of

BESIDE = (  # endings of what lies beside tensors, or is read for itself: tables, texts, graphs
    ".csv", ".json", ".txt", ".pbtxt", ".prototxt", ".pb", ".ir", ".om", ".onnx", ".log", ".md", ".html", ".py", ".sh",
    ".yaml", ".yml", ".toml",
)  # fmt: skip

_ESCAPES = str.maketrans(dict.fromkeys(" ./\\", "_"))
_FED = re.compile(r"_arg_(.+)_(\d+)_\d+")  # TensorFlow's stand-in for what a session is fed


def escaped(name: str) -> str:
    """A name as dump files bear it: each blank, ".", "/" and "\\" is "_". Several names may share one."""
    return name.translate(_ESCAPES)


def fed(name: str) -> str:
    """The tensor that a stand-in for a fed value is, "{operator}:{index}"; "" for other operators."""
    match = _FED.fullmatch(name)
    return f"{match[1]}:{match[2]}" if match else ""


def left_out(folder: object, names: Iterable[str]) -> Optional[str]:
    """The note on files that no operator was made of, though they may hold a tensor; None if there are none."""
    found = [name for name in names if may_be_tensor(name)]
    if not found:
        return None
    if len(found) == 1:
        return f"{folder}: 1 file has no name that is understood and is left out: {found[0]}"
    return f"{folder}: {len(found)} files have no name that is understood and are left out, as {found[0]}"


def unnamed(folder: str, known: Iterable[str]) -> Iterator[str]:
    """A note on files of a tensor folder that are none of the known ones: a run that ended before its last records were
    written leaves such."""
    try:
        there = os.listdir(folder)
    except OSError:
        return
    names = {os.path.basename(file) for file in known}
    left = sorted(name for name in there if name not in names and may_be_tensor(name))
    if left:
        yield f"{folder}: {len(left)} files that no record names are left out: {first_of(left)}"


def may_be_tensor(name: str) -> bool:
    """Whether a file may hold numbers, as far as its name tells."""
    return not name.lower().endswith(BESIDE) and not os.path.basename(name).startswith(".")


def natural(text: str) -> list[object]:
    """A key that sorts numbers in names as numbers: "conv2" before "conv10". Digits are taken eighteen at a time,
    because Python turns no text of thousands of them into a number."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


GRADIENTS = ("backward", "grad")  # parts of a name that make the part before them a gradient


def type_of_name(name: str) -> str:
    """The last part of a node's name that is no index: "MatMul" of "layer1/MatMul_3" and "layer1_MatMul_3"; with the
    part before it where it says that the node is a gradient: "linear_backward" of "layer1.linear_backward_0"."""
    parts = [part for part in re.split(r"[/_.]", name) if not re.fullmatch(r"[0-9]*", part)]
    if len(parts) > 1 and parts[-1].lower() in GRADIENTS:
        return "_".join(parts[-2:])
    return parts[-1] if parts else name


def made_of(name: str, keys: Mapping[str, object], lengths: Sequence[int]) -> list[str]:
    """The names that a name is made of, the longest first where several would do; none if it is not."""
    made: dict[int, list[str]] = {len(name): []}
    for start in range(len(name) - 1, -1, -1):
        for length in lengths:
            rest = made.get(start + length)
            if rest is not None and name[start : start + length] in keys:
                made[start] = [name[start : start + length], *rest]
                break
    return made.get(0, [])
