"""A ticket with pseudonyms: modules, parameters, paths and lines of call stacks have other names in its page, its
tables and its JSON. Files in which names cannot be replaced, and elements of tensors, are left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any, Iterable, Iterator, Mapping, Optional

from npucmp.errors import UsageError
from npucmp.model.pseudonyms import Pseudonyms
from npucmp.model.ticket import Cells, Files, Ticket

NAMES = frozenset(
    "op target_op golden_op target_ops fused_op original_ops parameter first_op same_bits_as golden_input".split()
)
TENSORS = frozenset("target_tensor golden_tensor".split())
TYPES = frozenset("op_type kind".split())
STACKS = frozenset(("stack",))
PATHS = frozenset("path runs_path file".split())
WORDS = frozenset("settings argv also".split())  # the command line: patterns and paths
PLAIN = frozenset(
    "step rank order place phase verdict matched_by cause metric rule row target_dtype golden_dtype dtype target_shape "
    "golden_shape shape target_layout golden_layout estimator event origin severity status decided unit budget sampled "
    "treated group command npucmp format detail framework level vendor_level device_status".split()
)  # words of npucmp, types and shapes
RULES = frozenset("rule row".split())  # words of npucmp with dots
LEFT_OUT = ("worst.csv",)  # elements of tensors
LEFT_OUT_KEYS = frozenset(("next", "sources"))  # of summary.json: commands and files of this machine
TEXTS = (".csv", ".json", ".cfg", ".txt")
CASE_DATA = re.compile(r"case/(?:\w[\w.-]*\.npy|run\.py)")  # without names
SPLIT = re.compile(r"(;\s*)")


def redacted(ticket: Ticket, case: Optional[Mapping[str, Any]]) -> Ticket:
    """Return a ticket with pseudonyms; `case` is the content of its call.json.

    Raises UsageError if the case holds values of the dump.
    """
    if case is not None and "redacted" not in case:
        raise UsageError("the case holds values of the dump; write it again with npucmp extract --redact")
    names = Pseudonyms()
    try:
        _collect(ticket, names)
        summary, accused = _json(names, ticket.summary), _json(names, ticket.accused)
    except (csv.Error, RecursionError) as error:
        raise UsageError(f"the report cannot be redacted: {error}") from None

    def row(cells: Cells) -> Cells:
        return {column: _cell(names, column, cell) for column, cell in cells.items()}

    return ticket._replace(
        summary=summary,
        row=row(ticket.row),
        others=tuple(map(row, ticket.others)),
        rows=tuple(map(row, ticket.rows)),
        accused=accused,
        files=lambda: _files(names, ticket.files()),
        names=lambda: names.by_pseudonym,
    )


def _collect(ticket: Ticket, names: Pseudonyms) -> None:
    """Note the names and paths of a report, so that they are found in its sentences too."""
    paths: list[str] = []
    _paths_of(ticket.summary, paths)
    argv = ticket.summary.get("argv")
    paths += [one for one in argv[1:] if isinstance(one, str) and "/" in one] if isinstance(argv, list) else []
    names.collect((), paths)
    for cells in (ticket.row, *ticket.others, *ticket.rows):
        _collect_row(cells, names)
    for name, pieces in ticket.files():
        if name.endswith(".csv") and "/" not in name and name not in LEFT_OUT:
            rows = csv.reader(_lines(pieces))
            header = next(rows, [])
            for row in rows:
                _collect_row(dict(zip(header, row)), names)


def _collect_row(cells: Cells, names: Pseudonyms) -> None:
    names.keep(cells[column] for column in RULES.intersection(cells))
    for column in NAMES.intersection(cells):
        names.collect(part for part in SPLIT.split(cells[column])[::2] if part)


def _paths_of(value: Any, found: list[str]) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            if key in PATHS and isinstance(below, str):
                found.append(below)
            _paths_of(below, found)
    elif isinstance(value, list):
        for below in value:
            _paths_of(below, found)


def _files(names: Pseudonyms, files: Files) -> Files:
    for name, pieces in files:
        if CASE_DATA.fullmatch(name):
            yield name, pieces
        elif name.endswith(".csv") and name not in LEFT_OUT:
            yield name, _table(names, pieces)
        elif name.endswith(".json"):
            text = _json_text(names, b"".join(pieces))
            if text:
                yield name, iter((text,))
        elif name.endswith(TEXTS) and name not in LEFT_OUT:
            yield name, (f"{names.of_text(line.rstrip())}\n".encode() for line in _lines(pieces))


def _json_text(names: Pseudonyms, data: bytes) -> bytes:
    """Return a JSON file with pseudonyms; empty if it is damaged or nested too deeply, so that it is left out."""
    try:
        return json.dumps(_json(names, json.loads(data)), indent=1).encode() + b"\n"
    except (ValueError, RecursionError):
        return b""


def _table(names: Pseudonyms, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows of a table with pseudonyms."""
    rows = csv.reader(_lines(pieces))
    header = next(rows, [])
    yield _encode(header)
    for row in rows:
        yield _encode(_cell(names, column, cell) for column, cell in zip(header, row))


def _encode(row: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "surrogateescape") + "\n"
    if rest:
        yield rest.decode("utf-8", "surrogateescape")


def _cell(names: Pseudonyms, column: str, cell: str) -> str:
    """Return the text of a column with pseudonyms."""
    if not cell or column in PLAIN:
        return cell
    if column in NAMES:
        return "".join(part if at % 2 else names.of_operator(part) for at, part in enumerate(SPLIT.split(cell)))
    if column in TENSORS:
        return names.of_operator(re.split(r"[/\\]", cell)[-1])
    if column in TYPES:
        return names.of_type(cell)
    if column in STACKS:
        return names.of_frame(cell)
    return names.of_path(cell) if column in PATHS else names.of_text(cell)


def _json(names: Pseudonyms, value: Any, key: str = "") -> Any:
    """Return a JSON value with pseudonyms; `key` is the key under which it stands."""
    if key in LEFT_OUT_KEYS and isinstance(value, (list, Mapping)):
        return type(value)()
    if isinstance(value, Mapping):
        inner = key if key in WORDS else ""
        return {_key(names, name): _json(names, below, inner or name) for name, below in value.items()}
    if isinstance(value, list):
        if key == "argv":
            return _arguments(names, value)
        return [_json(names, below, key) for below in value]
    if not isinstance(value, str):
        return value
    return _word(names, value) if key in WORDS else _cell(names, key, value)


def _key(names: Pseudonyms, key: str) -> str:
    """Return a key of an object: a word of npucmp, or a name."""
    return key if re.fullmatch(r"[a-z0-9_]+", key) and not names.has_operator(key) else names.of_text(key)


def _arguments(names: Pseudonyms, argv: list[Any]) -> list[Any]:
    """Return a command line: options and numbers stay, patterns and paths get pseudonyms."""
    is_command = len(argv) > 1 and isinstance(argv[1], str) and re.fullmatch(r"[a-z-]{1,20}", argv[1])
    found: list[Any] = ["npucmp", argv[1]] if is_command else ["npucmp"]
    for one in argv[len(found) :]:
        option, equals, value = one.partition("=") if isinstance(one, str) and one.startswith("-") else ("", "", one)
        found.append(f"{option}{equals}{_word(names, value) if value else ''}" if option else _word(names, value))
    return found


def _word(names: Pseudonyms, value: Any) -> Any:
    if not isinstance(value, str) or re.fullmatch(r"[-+]?[\d.,eE+-]*|[Tt]rue|[Ff]alse|None", value):
        return value
    return names.of_path(value)
