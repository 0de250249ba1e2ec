"""Write ticket.md or ticket.zip: the page and its attachments. The files contain no absolute paths and no times of the
machine that made them. A file is written completely or not at all."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Iterable, Optional

from npucmp.errors import DumpError, UsageError
from npucmp.model.ticket import Ticket
from npucmp.report.csv_text import csv_of
from npucmp.report.files import place_file, replace_file, temporary_folder
from npucmp.report.html import IN_AN_ELEMENT, LEVEL
from npucmp.report.sanitise import strip_folders
from npucmp.tickets.report import page as page_of

PAGE = "ticket.md"
TEXTS = (".csv", ".json", ".cfg", ".txt")  # may contain paths; run.py of a case does not, and must run
THEN = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can store


def write_ticket(
    ticket: Ticket, file: str | os.PathLike[str], names: Optional[str | os.PathLike[str]] = None
) -> list[str]:
    """Write a ticket as one page (.md), or with all its attachments as an archive (.zip), and return the names of the
    files in it. `names` is a CSV file for the original of each pseudonym of a redacted ticket, which is not in it.
    Raises DumpError if the ticket cannot be written; an existing file is then unchanged.

        npucmp.write_ticket(npucmp.ticket("report", place=2), "ticket.md")
    """
    require_ending(file)
    path = Path(os.path.abspath(file))
    if names is not None and os.path.abspath(names) == str(path):
        raise UsageError(f"{os.fspath(names)}: is the ticket; the names need a file of their own")
    found = [path.name]
    try:
        if path.suffix.lower() == ".zip":
            found = write(path, page_of(ticket), ticket.files())
        else:
            replace_file(path, page_of(ticket).encode())
        if names is not None:
            replace_file(Path(os.path.abspath(names)), _names_table(ticket).encode())
    except OSError as error:
        raise DumpError(file, f"the ticket was not written: {error.strerror or error}") from None
    return found


def _names_table(ticket: Ticket) -> str:
    """Return pseudonyms and their originals as CSV."""
    rows = [*ticket.names().items()]
    columns = {"pseudonym": [pseudonym for pseudonym, _ in rows], "name": [name for _, name in rows]}
    return csv_of((*columns,), columns)


def require_ending(file: str | os.PathLike[str]) -> None:
    """Raise UsageError unless the name ends in .md or .zip."""
    if Path(file).suffix.lower() not in (".md", ".zip"):
        raise UsageError(f"-o {os.fspath(file)}: the name must end in .md or .zip")


def write(path: Path, page: str, files: Iterable[tuple[str, Iterable[bytes]]]) -> list[str]:
    """Write the archive, and return the names in it. Raises OSError; an existing file is then unchanged."""
    folder = temporary_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    names = [PAGE]
    handle, aside = tempfile.mkstemp(".tmp", ".npucmp-", folder)
    try:
        with os.fdopen(handle, "wb") as raw:
            with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(_entry(PAGE), page.encode())
                for name, pieces in files:
                    if name.endswith(".html"):
                        cleared = _page(b"".join(pieces))
                        if cleared is None:
                            continue
                        pieces = [cleared]
                    with archive.open(_entry(name), "w", force_zip64=True) as entry:
                        _copy(pieces, entry, name.endswith(TEXTS))
                    names.append(name)
            raw.flush()
            os.fsync(raw.fileno())
        os.chmod(aside, 0o644)
        place_file(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    return names


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, THEN)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _copy(pieces: Iterable[bytes], entry: IO[bytes], is_text: bool) -> None:
    """Copy pieces: text line by line without paths, other files unchanged."""
    if not is_text:
        for piece in pieces:
            entry.write(piece)
        return
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        entry.write(b"".join(_line(line) + b"\n" for line in lines))
    entry.write(_line(rest))


_PIECE = re.compile(r"(<script\b.*?</script>|<style\b.*?</style>|<svg\b.*?</svg>|<[^>]*>)", re.DOTALL)
_DATA = re.compile(r'(<script type="application/json" id="\w+">)(.*)(</script>)', re.DOTALL)
_INFLATED = 1 << 30  # bytes: limit of the inflated data of a page


def _page(data: bytes) -> Optional[bytes]:
    """Return a page without paths in its text and its data; None if npucmp did not write the page."""
    try:
        pieces = _PIECE.split(data.decode())
        cleaned = [strip_folders(piece) if number % 2 == 0 else _element(piece) for number, piece in enumerate(pieces)]
    except (ValueError, RecursionError, zlib.error):
        return None
    return "".join(cleaned).encode()


def _element(text: str) -> str:
    """Return an element unchanged, except for a data element: JSON, or deflated JSON."""
    found = _DATA.fullmatch(text)
    if not found:
        return text
    data = json.loads(found[2])
    if isinstance(data, str):
        data = _deflate(data)
    elif isinstance(data, dict) and isinstance(data.get("deflate"), str):
        data = {"deflate": _deflate(data["deflate"])}
    else:
        data = _remove_folders(data)
    return f"{found[1]}{json.dumps(data, separators=(',', ':')).translate(IN_AN_ELEMENT)}{found[3]}"


def _deflate(text: str) -> str:
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(base64.b64decode(text), _INFLATED)
    if not unpacker.eof:
        raise ValueError("larger than the data of a page")
    packed = json.dumps(_remove_folders(json.loads(found)), separators=(",", ":"))
    return base64.b64encode(zlib.compress(packed.encode(), LEVEL)).decode()


def _remove_folders(value: Any) -> Any:
    if isinstance(value, str):
        return strip_folders(value)
    if isinstance(value, dict):
        return {strip_folders(name): _remove_folders(below) for name, below in value.items()}
    return [_remove_folders(below) for below in value] if isinstance(value, list) else value


def _line(line: bytes) -> bytes:
    return strip_folders(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
