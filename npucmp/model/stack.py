"""The user's source line in a recorded call stack.

msprobe's frames read "File {path}, line {n}, in {function}, \\n {source line}", innermost first.
"""

from __future__ import annotations

import re
from functools import lru_cache

from npucmp.model import Operator

_FRAME = re.compile(r"File (?P<path>.+?), line (?P<line>\d+), in (?P<function>[^,\n]+),?\s*(?P<code>.*)", re.DOTALL)
_NOT_THE_USERS = re.compile(r"[/\\](torch|torch_npu|msprobe|mindspore|atat|calibrator)[/\\]")


def frames(operator: Operator) -> tuple[str, ...]:
    """The call stack, innermost first, one frame per line."""
    return _frames(operator.stack)


@lru_cache(maxsize=1 << 12)
def _frames(stack: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(frame.split()) for frame in stack)


def source_line(operator: Operator) -> str:
    """The innermost frame outside the framework as "modeling_vit.py:212  attn = softmax(attn)"; "" if there is none."""
    return _call(operator.stack)[0]


def source_path(operator: Operator) -> str:
    """The recorded path of the file of `source_line`; "" if there is none."""
    return _call(operator.stack)[1]


@lru_cache(maxsize=1 << 12)  # calls of a layer, and all ranks, share stacks
def _call(stack: tuple[str, ...]) -> tuple[str, str]:
    frames = [found for found in (_FRAME.match(frame) for frame in stack) if found]
    if not frames:
        return "", ""
    chosen = next((frame for frame in frames if not _NOT_THE_USERS.search(frame["path"])), frames[0])
    name = re.split(r"[/\\]", chosen["path"])[-1]
    return f"{name}:{chosen['line']}  {' '.join(chosen['code'].split())}".rstrip(), chosen["path"]
