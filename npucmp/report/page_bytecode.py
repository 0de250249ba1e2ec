"""Keep the compiled template of the page beside Python's bytecode: compiling it takes as long as making a page."""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def compiled(shell: Environment, source: str, place: Path) -> CodeType:
    """Return the code of a template. By the rules of Python's own bytecode, it is kept where the bytecode of a module
    at `place` is, and nowhere if that is read-only."""
    from jinja2 import __version__

    mark = hashlib.sha256(f"{sys.version} {__version__} {source}".encode()).digest()
    file = Path(cache_from_source(str(place)))
    with suppress(OSError, EOFError, ValueError, TypeError):
        kept = file.read_bytes()
        if kept.startswith(mark):
            found: CodeType = marshal.loads(kept[len(mark) :])
            return found
    code = shell.compile(source)
    if not sys.dont_write_bytecode:
        part = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(mark + marshal.dumps(code))
            part.replace(file)
    return code
