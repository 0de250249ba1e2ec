"""Read files beside dumps: versions, environment and hyper-parameters of a run, from packs of msprobe's config_check or
text.

    zip     env (JSON: name → value), pip (name=version per line), hyperparameters/*.json (name → value),
            random/rank*.json (function → [{"count", "stack"}]), and of the first step and rank
            weights/step*/rank*/weight.json (name → max, min, mean, norm) and dataset/step*/rank*/dataset.json
    folder  the same files, as `config_check -c` leaves them in bench/ and cmp/; or one zip and none of them
    text    name==version as in `pip freeze`, NAME=value as in `env`, JSON of names and values

The files are untrusted: zips are read member by member and never extracted, sizes that they state are not trusted, and
links out of a folder are refused. Source: output and source of mindstudio-probe 26.2.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from itertools import islice
from typing import Any, Iterator, Mapping, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.text import read_bytes, text_of
from npucmp.errors import DumpError

LARGEST = 64 << 20  # bytes of a file
MEMBER = 16 << 20  # bytes of an unpacked member; four times as many for all members together
DIRECTORY = 1 << 20  # bytes of the list of members
LEAVES, DEEP, WIDE = 20_000, 32, 1000  # leaves and depth of a configuration, entries of one list or table
FOLDERS = ("hyperparameters/", "random/", "weights/", "dataset/")
ZIP = b"PK\x03\x04"
_END = re.compile(rb"PK\x05\x06", re.DOTALL)
_VERSION = re.compile(r"([A-Za-z0-9][\w.\-]*)\s*={1,2}\s*([0-9][^\s;#]*)")
_VARIABLE = re.compile(r"(?:export\s+|declare -x\s+)?([A-Z_][A-Z0-9_]*)=(.*)")


FIGURES = ("max", "min", "mean", "norm")
Figures = tuple[float, ...]  # in this order


class RunSetup(NamedTuple):
    """The setup of a run, as a file describes it. None for each kind that the file lacks."""

    path: str
    versions: Optional[Mapping[str, str]] = None
    environment: Optional[Mapping[str, str]] = None
    parameters: Optional[Mapping[str, Any]] = None
    random: Optional[Mapping[str, int]] = None
    weights: Optional[Mapping[str, Figures]] = None
    inputs: Optional[Mapping[str, Figures]] = None


# raised by zipfile; IndexError: of a member without a name
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, IndexError,
)  # fmt: skip


def read_setup(path: str, context: ReadContext = ANYWHERE) -> RunSetup:
    """Read a zip or folder, or a text of versions or environment variables. Raises DumpError for other files."""
    if os.path.isdir(path):
        return _of_folder(path, context)
    data = read_bytes(path, LARGEST, context)
    if data[:4] == ZIP:
        return _of_zip(path, data)
    text = text_of(path, data)
    tree = parsed_json(text)
    if isinstance(tree, dict):
        return RunSetup(path, environment=_texts(tree))
    versions, environment = _lines(text)
    if not versions and not environment:
        raise DumpError(path, "is neither a zip of config_check nor text of `pip freeze` or `env`")
    return RunSetup(path, versions or None, environment or None)


def _of_zip(path: str, data: bytes) -> RunSetup:
    _require_small_directory(path, data)
    left = 4 * MEMBER
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found: dict[str, bytes] = {}
            for info in archive.infolist():
                if info.is_dir() or not _is_wanted(info.filename):
                    continue
                with archive.open(info) as stream:
                    found[info.filename] = stream.read(min(MEMBER, left) + 1)
                left -= len(found[info.filename])
                if len(found[info.filename]) > MEMBER or left < 0:
                    raise DumpError(path, f"its member {info.filename!r:.60} is larger than {MEMBER:,} bytes")
    except UNREADABLE as error:
        raise DumpError(path, f"is not a readable zip: {type(error).__name__}") from None
    return _of_members(path, found)


def _of_folder(path: str, context: ReadContext) -> RunSetup:
    context = context.confine(path)
    found: dict[str, bytes] = {}
    left = 4 * MEMBER
    for name in _members(path, context.limits.members):
        found[name] = read_bytes(os.path.join(path, *name.split("/")), min(MEMBER, left), context)
        left -= len(found[name])
    if found:
        return _of_members(path, found)
    zips = [name for name in islice(sorted(os.listdir(path)), WIDE) if name.endswith(".zip")]
    if len(zips) != 1:
        raise DumpError(path, f"is no folder of config_check: it has none of env, pip, {', '.join(FOLDERS)}")
    return read_setup(os.path.join(path, zips[0]), context)


def _members(path: str, most: int) -> list[str]:
    """The wanted files below a folder, by their names in a zip. Links to folders are not followed."""
    found: list[str] = []
    for place, folders, files in os.walk(path):
        inner = os.path.relpath(place, path).replace(os.sep, "/")
        prefix = "" if inner == "." else f"{inner}/"
        depth = prefix.count("/")
        folders[:] = sorted(name for name in folders if depth or f"{name}/" in FOLDERS) if depth < 3 else []
        found += sorted(name for name in (f"{prefix}{name}" for name in files) if _is_wanted(name))
        if len(found) > most:
            raise DumpError(path, f"has more than {most:,} files of config_check")
    return found


def _of_members(path: str, found: Mapping[str, bytes]) -> RunSetup:
    texts = {name: text_of(path, one) for name, one in found.items()}
    parameters: dict[str, Any] = {}
    for name in sorted(texts):  # sorted: values parsed from scripts first, then those of the run itself override them
        if name.startswith("hyperparameters/"):
            parameters.update(flat(parsed_json(texts[name])))
    environment = parsed_json(texts.get("env", ""))
    return RunSetup(
        path,
        _lines(texts["pip"])[0] if "pip" in texts else None,
        _texts(environment) if isinstance(environment, dict) else None,
        parameters or None,
        _random_calls(parsed_json(texts[name]) for name in sorted(texts) if name.startswith("random/")),
        _of_tensors(texts, "weights/"),
        _of_tensors(texts, "dataset/"),
    )


def _of_tensors(texts: Mapping[str, str], folder: str) -> Optional[dict[str, Figures]]:
    """The figures of tensors by dotted name, for the first step and rank."""
    names = sorted((name for name in texts if name.startswith(folder)), key=lambda name: (len(name), name))
    by_tensor: dict[str, dict[str, float]] = {}
    for name, value in (flat(parsed_json(texts[names[0]])) if names else {}).items():
        tensor, _, figure = name.rpartition(".")
        if figure in FIGURES and isinstance(value, (int, float)):
            by_tensor.setdefault(tensor, {})[figure] = float(value)
    found = {name: tuple(one[figure] for figure in FIGURES) for name, one in by_tensor.items() if len(one) == 4}
    return found or None


def _is_wanted(name: str) -> bool:
    return name in ("env", "pip") or (name.startswith(FOLDERS) and name.endswith(".json"))


def _require_small_directory(path: str, data: bytes) -> None:
    """Raise DumpError for zip64, and if the list of members is missing or could take more memory than the members."""
    ends = [one.start() for one in _END.finditer(data, max(0, len(data) - (1 << 16) - 22))]
    size = int.from_bytes(data[ends[-1] + 12 : ends[-1] + 16], "little") if ends else -1
    if not 0 <= size <= DIRECTORY or b"PK\x06\x07" in data[max(0, ends[-1] - 64) : ends[-1]]:
        raise DumpError(path, "is not a readable zip: its list of members is missing or too long")


def parsed_json(text: str) -> Any:
    """Parse JSON; None for invalid text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(tree: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in tree.items() if isinstance(value, (str, int, float))}


def _lines(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Versions and environment variables, line by line."""
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    for line in text.splitlines():
        variable, version = _VARIABLE.fullmatch(line.strip()), _VERSION.match(line.strip())
        if variable and "==" not in line:
            environment[variable[1]] = variable[2].strip("\"'")
        elif version:
            versions[version[1].lower().replace("-", "_")] = version[2]
    return versions, environment


def _random_calls(trees: Iterator[Any]) -> Optional[dict[str, int]]:
    """The number of calls of each random function, by calling line."""
    found: dict[str, int] = {}
    seen = False
    for tree in trees:
        for name, entries in tree.items() if isinstance(tree, dict) else ():
            seen = True
            for entry in entries if isinstance(entries, list) else ():
                count, stack = (entry.get("count"), entry.get("stack")) if isinstance(entry, dict) else (None, None)
                if isinstance(count, int) and isinstance(stack, list) and stack:
                    key = f"{str(name)[:80]} in {_frame(str(stack[-1]))}"
                    found[key] = found.get(key, 0) + count
    return found if seen else None


def _frame(text: str) -> str:
    """The file name and function in "File path, line n, in function, code"."""
    found = re.match(r"File (\S{1,400}), line \d{1,9}, in (\w{1,80})", text)
    return f"{found[1].rpartition('/')[2]} {found[2]}" if found else text[:80]


def flat(tree: Any, limit: int = LEAVES) -> dict[str, Any]:
    """Flatten a tree into leaves by dotted names; lists of plain values are leaves. Anything beyond the limits is
    dropped."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    steps = 0
    while waiting and len(found) < limit and steps < 2 * limit:
        steps += 1
        name, value, depth = waiting.pop()
        if isinstance(value, dict) and depth < DEEP:
            items = list(islice(value.items(), WIDE))
            waiting += [(f"{name}.{str(key)[:200]}".lstrip("."), one, depth + 1) for key, one in reversed(items)]
        elif isinstance(value, list) and depth < DEEP and any(isinstance(one, (dict, list)) for one in value[:WIDE]):
            items = list(enumerate(value[:WIDE]))
            waiting += [(f"{name}.{at}", one, depth + 1) for at, one in reversed(items)]
        elif isinstance(value, (str, int, float, bool, list, type(None))) and name:
            found[name] = value if not isinstance(value, list) else value[:WIDE]
    return found
