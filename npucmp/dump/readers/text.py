"""Read whole text files, JSON objects and TOML.

Text files are bounded, regular files only, with or without a byte order mark (spreadsheets write one). The JSON text of
a dump must be an object. TOML is read from the user's own files; the standard library includes a parser from Python
3.11 on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Union

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError, UsageError


def read_text(path: str | os.PathLike[str], most: Union[int, str], context: ReadContext = ANYWHERE) -> str:
    """Return the text of a UTF-8 file of at most `most` bytes, or within the limit of that name. Else DumpError."""
    return text_of(path, read_bytes(path, most, context))


def read_bytes(path: str | os.PathLike[str], most: Union[int, str], context: ReadContext = ANYWHERE) -> bytes:
    """Return the bytes of such a file, for callers that decode them."""
    with open_regular(os.fspath(path), context) as file:
        if isinstance(most, str):
            file.limits.require(path, most, file.size, "has {:,} bytes")
        elif file.size > most:
            raise DumpError(path, f"has {file.size:,} bytes, more than the {most:,} that are read of such a file")
        return file.read(0, file.size)


def text_of(path: str | os.PathLike[str], data: bytes) -> str:
    """Return the decoded text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DumpError(path, "is not UTF-8 text", error.start) from None


def json_object(text: str, path: object, what: str, digits: int, **hooks: Any) -> dict[str, Any]:
    """Return the object in a text, parsed with hooks of json.loads; DumpError for other content, which names `what`."""
    tree = json_value(text, path, digits, **hooks)
    if not isinstance(tree, dict):
        raise DumpError(path, f"not {what}: JSON, but not an object")
    return tree


def json_value(text: str, path: object, digits: int, line: int = 1, **hooks: Any) -> Any:
    """Return the value of a text that begins at a line of a file, parsed with hooks of json.loads. Else DumpError.

    Integers have at most `digits` digits, because the time of int() is quadratic. A repeated key in an object is
    refused.
    """

    def whole(number: str) -> int:
        if len(number) > digits:
            raise ValueError(f"a number of {len(number)} digits")
        return int(number)

    try:
        return json.loads(text, parse_int=whole, **{"object_pairs_hook": unlike, **hooks})
    except RecursionError:
        raise DumpError(path, "JSON that is nested too deep") from None
    except json.JSONDecodeError as error:
        raise DumpError(path, f"not JSON: line {line - 1 + error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise DumpError(path, f"not JSON: {error}") from None


def unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; ValueError for a repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a duplicate name")
    return found


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
