"""Read whole text files: bounded, regular files only, with or without a byte order mark (spreadsheets write one)."""

from __future__ import annotations

import os
from typing import Union

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError


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
