"""Names of operators and files: functions common to all formats."""

from __future__ import annotations

import os
import re
from typing import Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.model import first_of

BESIDE = (  # endings of files beside tensors, or of separately read files: tables, texts, graphs
    ".csv", ".json", ".txt", ".pbtxt", ".prototxt", ".pb", ".ir", ".om", ".onnx", ".log", ".md", ".html", ".py", ".sh",
    ".yaml", ".yml", ".toml",
)  # fmt: skip

_ESCAPES = str.maketrans(dict.fromkeys(" ./\\", "_"))
_FED = re.compile(r"_arg_(.+)_(\d+)_\d+")  # TensorFlow's placeholder for a tensor that is fed to a session


def escaped(name: str) -> str:
    """Return a name as in dump files: blank, ".", "/" and "\\" become "_". Several names may become equal."""
    return name.translate(_ESCAPES)


def fed(name: str) -> str:
    """Return the fed tensor of a placeholder, "{operator}:{index}"; "" for other operators."""
    match = _FED.fullmatch(name)
    return f"{match[1]}:{match[2]}" if match else ""


def left_out(folder: object, names: Iterable[str]) -> Optional[str]:
    """Return a note on files that became no operator although they may hold a tensor; None if there are none."""
    found = [name for name in names if may_be_tensor(name)]
    if not found:
        return None
    if len(found) == 1:
        return f"{folder}: 1 file has an unknown name and is skipped: {found[0]}"
    return f"{folder}: {len(found)} files have unknown names and are skipped, for example {found[0]}"


def unnamed(folder: str, known: Iterable[str]) -> Iterator[str]:
    """Yield a note on files of a tensor folder that no record names.

    A run that ended before it wrote its last records leaves such files.
    """
    try:
        there = os.listdir(folder)
    except OSError:
        return
    names = {os.path.basename(file) for file in known}
    left = sorted(name for name in there if name not in names and may_be_tensor(name))
    if left:
        yield f"{folder}: {len(left)} files that no record names are skipped: {first_of(left)}"


def may_be_tensor(name: str) -> bool:
    """Return whether a file may hold numbers, judged by its name."""
    return not name.lower().endswith(BESIDE) and not os.path.basename(name).startswith(".")


def natural(text: str) -> list[object]:
    """Return a sort key that orders numbers in names by value: "conv2" before "conv10".

    Digits are split into groups of eighteen, because Python does not convert thousands of digits to a number.
    """
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


GRADIENTS = ("backward", "grad")  # name parts that make the preceding part a gradient


def type_of_name(name: str) -> str:
    """Return the operator type in a node's name: its last part that is not an index.

    The type is "MatMul" for "layer1/MatMul_3" and "layer1_MatMul_3". If the last part marks a gradient, the part before
    is included: "linear_backward" for "layer1.linear_backward_0".
    """
    parts = [part for part in re.split(r"[/_.]", name) if not re.fullmatch(r"[0-9]*", part)]
    if len(parts) > 1 and parts[-1].lower() in GRADIENTS:
        return "_".join(parts[-2:])
    return parts[-1] if parts else name


def made_of(name: str, keys: Mapping[str, object], lengths: Sequence[int]) -> list[str]:
    """Split a name into known names, the longest first if several fit; [] if it cannot be split."""
    made: dict[int, list[str]] = {len(name): []}
    for start in range(len(name) - 1, -1, -1):
        for length in lengths:
            rest = made.get(start + length)
            if rest is not None and name[start : start + length] in keys:
                made[start] = [name[start : start + length], *rest]
                break
    return made.get(0, [])
