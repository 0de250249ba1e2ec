"""Parse TOML text of the user's own files; the standard library includes a parser from Python 3.11 on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from npucmp.errors import UsageError


def load_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raises UsageError that names the file if the text is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    return table
