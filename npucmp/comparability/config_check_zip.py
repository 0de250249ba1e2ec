"""Read files beside dumps: versions, environment and hyper-parameters of a run, from zips of msprobe's config_check or
text.

    zip     env (JSON: name → value), pip (name=version per line), hyperparameters/*.json (name → value),
            random/rank*.json (function → [{"count", "stack"}]), and of the first step and rank
            weights/step*/rank*/weight.json (name → max, min, mean, norm) and dataset/step*/rank*/dataset.json
    text    name==version as in `pip freeze`, NAME=value as in `env`, JSON of names and values
    config  YAML, JSON, TOML, or a script with --name value, in which $VARIABLES are substituted

The files are untrusted: zips are read member by member and never extracted, and sizes that they state are not trusted.
Source: output and source of mindstudio-probe 26.2.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from itertools import islice
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.text import load_toml, read_bytes, text_of
from npucmp.errors import DumpError, UsageError

LARGEST = 64 << 20  # bytes of a file
MEMBER = 16 << 20  # bytes of an unpacked member; four times as many for all members together
DIRECTORY = 1 << 20  # bytes of the list of members
LEAVES, DEEP, WIDE = 20_000, 32, 1000  # leaves and depth of a configuration, entries of one list or table
FOLDERS = ("hyperparameters/", "random/", "weights/", "dataset/")
ZIP = b"PK\x03\x04"
_END = re.compile(rb"PK\x05\x06", re.DOTALL)
_VERSION = re.compile(r"([A-Za-z0-9][\w.\-]*)\s*={1,2}\s*([0-9][^\s;#]*)")
_VARIABLE = re.compile(r"(?:export\s+|declare -x\s+)?([A-Z_][A-Z0-9_]*)=(.*)")
_OPTION = re.compile(r"""--([A-Za-z][\w\-.]*)(?:(?:\s*=\s*|\s+)("[^"]*"|'[^']*'|(?!--)[^\s\\'"]+))?""")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s#;]*)", re.MULTILINE)
_USED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


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
    """Read a zip, or a text of versions or environment variables. Raises DumpError for other files."""
    data = read_bytes(path, LARGEST, context)
    if data[:4] == ZIP:
        return _of_zip(path, data)
    text = text_of(path, data)
    tree = _json(text)
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
    texts = {name: text_of(path, one) for name, one in found.items()}
    parameters: dict[str, Any] = {}
    for name in sorted(texts):  # sorted: values parsed from scripts first, then those of the run itself override them
        if name.startswith("hyperparameters/"):
            parameters.update(flat(_json(texts[name])))
    environment = _json(texts.get("env", ""))
    return RunSetup(
        path,
        _lines(texts["pip"])[0] if "pip" in texts else None,
        _texts(environment) if isinstance(environment, dict) else None,
        parameters or None,
        _random_calls(_json(texts[name]) for name in sorted(texts) if name.startswith("random/")),
        _of_tensors(texts, "weights/"),
        _of_tensors(texts, "dataset/"),
    )


def _of_tensors(texts: Mapping[str, str], folder: str) -> Optional[dict[str, Figures]]:
    """The figures of tensors by dotted name, for the first step and rank."""
    names = sorted((name for name in texts if name.startswith(folder)), key=lambda name: (len(name), name))
    by_tensor: dict[str, dict[str, float]] = {}
    for name, value in (flat(_json(texts[names[0]])) if names else {}).items():
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


def _json(text: str) -> Any:
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


def read_config(path: str, context: ReadContext = ANYWHERE) -> dict[str, Any]:
    """Hyper-parameters of a file by dotted name. Raises DumpError or UsageError if there are none."""
    data = read_bytes(path, LARGEST, context)
    if data[:4] == ZIP:
        found = dict(_of_zip(path, data).parameters or {})
    else:
        found = _parameters(Path(path), text_of(path, data))
    if not found:
        raise DumpError(path, "holds no hyper-parameters: expected YAML, JSON, TOML or text with --name value")
    return found


def _parameters(path: Path, text: str) -> dict[str, Any]:
    ending = path.suffix.lower()
    tree = _json(text)
    if tree is None and ending == ".toml":
        tree = load_toml(path, text)
    if tree is None and ending in (".yaml", ".yml"):
        tree = _yaml(path, text)
    return flat(tree) if isinstance(tree, dict) else options_of(text)


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]:.120}") from None


def options_of(text: str) -> dict[str, Any]:
    """The --name value pairs of a command line or script; a name without a value is True."""
    text = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    assigned = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    text = _substitute(_substitute(text, assigned), assigned)  # twice: a variable may refer to others
    found: dict[str, Any] = {}
    for name, value in _OPTION.findall(text):
        if len(found) < LEAVES:
            found[name] = _number(value.strip("\"'")) if value else True
    return found


def _substitute(text: str, assigned: Mapping[str, str]) -> str:
    """Substitute variables by their values; return the text unchanged if the result exceeds 4 MiB."""
    made = _USED.sub(lambda one: assigned.get(one[1] or one[2], one[0])[:4096], text[: 1 << 20])
    return made if len(made) <= 4 << 20 else text


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


def _number(text: str) -> Any:
    """Convert text to a number, a boolean or None; else return the text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        return text
