"""Read the hyper-parameters of a run from a file.

YAML, JSON, TOML    by the ending of the name; JSON under any name
script              --name value, in which $VARIABLES are substituted
log                 the configuration that the training printed (logged_config.py)
config_check        its zip or folder (config_check_zip.py)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Mapping

from npucmp.comparability.config_check_zip import LARGEST, LEAVES, ZIP, flat, parsed_json, read_setup
from npucmp.comparability.logged_config import LoggedConfig, logged_config
from npucmp.comparability.printed_values import number_or_text
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import load_toml, text_of
from npucmp.errors import DumpError, UsageError

SCRIPTS = (".sh", ".bash", ".py")
EXPECTED = "expected YAML, JSON, TOML, text with --name value, or a log in which the training printed its configuration"
_OPTION = re.compile(r"""--([A-Za-z][\w\-.]*)(?:(?:\s*=\s*|\s+)("[^"]*"|'[^']*'|(?!--)[^\s\\'"]+))?""")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s#;]*)", re.MULTILINE)
_USED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def read_config(path: str, context: ReadContext = ANYWHERE) -> LoggedConfig:
    """Return the hyper-parameters of a file by dotted name, with a note if they come from a log.

    Raises DumpError or UsageError if there are none.
    """
    if os.path.isdir(path):
        found = LoggedConfig(dict(read_setup(path, context).parameters or {}), "")
    else:
        with open_regular(path, context) as file:
            size, head = file.size, file.read(0, min(4, file.size))
            data = file.read(0, size) if size <= LARGEST else None
        if head == ZIP:
            found = LoggedConfig(dict(read_setup(path, context).parameters or {}), "")
        else:
            found = _of_text(path, data, context)
    if not found.values:
        raise DumpError(path, f"holds no hyper-parameters: {EXPECTED}")
    return found


def _of_text(path: str, data: bytes | None, context: ReadContext) -> LoggedConfig:
    """`data` is None for a file that only a log may have."""
    ending = Path(path).suffix.lower()
    if data is not None and ending in (".json", ".toml", ".yaml", ".yml", *SCRIPTS):
        return LoggedConfig(_of_format(path, ending, text_of(path, data)), "")
    tree = parsed_json(data.decode("utf-8-sig", "replace")) if data is not None else None
    if isinstance(tree, dict):
        return LoggedConfig(flat(tree), "")
    logged = logged_config(path, context)
    if logged is not None:
        return logged
    if data is None:
        raise DumpError(path, f"has more than {LARGEST:,} bytes and is no log of a training: {EXPECTED}")
    return LoggedConfig(options_of(text_of(path, data)), "")


def _of_format(path: str, ending: str, text: str) -> dict[str, Any]:
    tree = parsed_json(text)
    if tree is None and ending == ".toml":
        tree = load_toml(Path(path), text)
    if tree is None and ending in (".yaml", ".yml"):
        tree = _yaml(path, text)
    return flat(tree) if isinstance(tree, dict) else options_of(text)


def _yaml(path: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML: {str(error).splitlines()[0]:.120}") from None


def options_of(text: str) -> dict[str, Any]:
    """Return the --name value pairs of a command line or script; a name without a value is True."""
    text = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    assigned = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}
    text = _substitute(_substitute(text, assigned), assigned)  # twice: a variable may refer to others
    found: dict[str, Any] = {}
    for name, value in _OPTION.findall(text):
        if len(found) < LEAVES:
            found[name] = number_or_text(value.strip("\"'")) if value else True
    return found


def _substitute(text: str, assigned: Mapping[str, str]) -> str:
    """Substitute variables by their values; return the text unchanged if the result exceeds 4 MiB."""
    made = _USED.sub(lambda one: assigned.get(one[1] or one[2], one[0])[:4096], text[: 1 << 20])
    return made if len(made) <= 4 << 20 else text
