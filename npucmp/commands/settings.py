"""Read defaults of options from a settings file: npucmp.toml, or [tool.npucmp] in pyproject.toml.

    jobs = 4                  # every command that has the option

    [compare]
    rtol = 1e-3
    exclude = ["*dropout*"]

The file is looked for in the working directory and, in a Git work tree, in the folders above it up to the root of the
tree. A file in a dump is never read: the folder of a DUMP argument or a folder above the file that is one, and a folder
that looks like a dump. The command line comes before the environment (NPUCMP_COMPARE_RTOL), and that before the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import click

from npucmp.dump.readers.text import load_toml, read_text
from npucmp.errors import NpucmpError, UsageError, nearest

NAMES = ("npucmp.toml", "pyproject.toml")
MOST_BYTES = 1 << 20  # of a settings file
REFUSED = ("plugin", "rules")  # options that name code or its limits: a file that is found may not choose them
_OF_DUMPS = re.compile(r"(?:step|rank)_?\d*|dump\.json|dump_tensor_data|construct\.json|stack\.json|.*\.(?:npy|h5)")


class Settings(NamedTuple):
    """The tables of a settings file, and its path as the user sees it; `note` says why a file was not read."""

    tables: Mapping[str, Any] = {}
    path: str = ""
    note: str = ""


def find_settings(words: Sequence[str]) -> Settings:
    """Return the settings for a command line. Raises DumpError for a file that is no TOML."""
    for folder in _folders(Path.cwd()):
        for name in NAMES:
            path = folder / name
            if not path.is_file():
                continue
            tables = _tables(path)
            if tables is None:
                continue
            if _is_in_dump(folder, words):
                return Settings(note=f"{path}: not read, because its folder is a dump")
            return Settings(tables, os.path.relpath(path))
    return Settings()


def _folders(here: Path) -> Iterator[Path]:
    """Yield the working directory, then the folders above it in the same Git work tree."""
    above = [here, *here.parents]
    root = next((at for at, folder in enumerate(above) if (folder / ".git").exists()), 0)
    yield from above[: root + 1]


def _tables(path: Path) -> Optional[Mapping[str, Any]]:
    """Return the content of a settings file; None if it has no settings of npucmp."""
    try:
        found = load_toml(path, read_text(path, MOST_BYTES))
    except NpucmpError:
        if path.name != NAMES[0]:  # of another tool
            return None
        raise
    if path.name == NAMES[0]:
        return found
    tool = found.get("tool")
    own = tool.get("npucmp") if isinstance(tool, dict) else None
    return own if isinstance(own, dict) else None


def _is_in_dump(folder: Path, words: Sequence[str]) -> bool:
    """Return whether a folder is an input, lies in one, or looks like a dump."""
    own = Path(os.path.realpath(folder))
    for before, word in zip(["", *words], words):
        if before in ("-o", "--output") or not os.path.isdir(word):
            continue
        dump = Path(os.path.realpath(word))
        if dump == own or dump in own.parents:
            return True
    with os.scandir(own) as found:
        return any(_OF_DUMPS.fullmatch(entry.name) for _, entry in zip(range(1000), found))


def default_map(settings: Settings, command: str, options: Sequence[click.Parameter]) -> dict[str, Any]:
    """Return the defaults of a command by the names of its parameters. Raises UsageError for a name that no command
    has, and for an option that a file may not set."""
    known = dict(_spellings(options))
    values = {name: value for name, value in settings.tables.items() if not isinstance(value, dict)}
    for name in values:
        if name.replace("_", "-") not in {*known, *_all_options()}:
            raise _unknown(settings, name, _all_options())
    own = settings.tables.get(command, settings.tables.get(command.replace("-", "_"), {}))
    for name in own:
        if name.replace("_", "-") not in known:
            raise _unknown(settings, f"{command}.{name}", known)
    found: dict[str, Any] = {}
    for name, value in {**values, **own}.items():
        spelled = known.get(name.replace("_", "-"))
        if spelled is None:
            continue
        if spelled[0] in REFUSED:
            raise UsageError(f"{settings.path}: {name} may only be given on the command line")
        found[spelled[0]] = (not value) if spelled[1] else value
    return found


def _spellings(options: Sequence[click.Parameter]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield the names of options in a file: (name, (parameter, whether it means the opposite))."""
    for one in options:
        if not isinstance(one, click.Option) or one.name is None:
            continue
        for flag in (*one.opts, *one.secondary_opts):
            if flag.startswith("--"):
                is_negative = flag in one.secondary_opts or (flag.startswith("--no-") and one.flag_value is False)
                yield flag[2:], (one.name, is_negative)
                if is_negative and not one.secondary_opts:
                    yield one.name.replace("_", "-"), (one.name, False)


def _all_options() -> set[str]:
    """Return the names of the options of all commands."""
    from npucmp.workflows.option_fields import all_fields, flag, spell_options

    found: set[str] = set()
    for kind in all_fields():
        for field, spelling in spell_options(kind):
            flags = spelling.flags or tuple(spelling.values) or (flag(field.name),)
            found.update(name.lstrip("-") for word in flags for name in word.split("/") if name.startswith("--"))
    return found


def _unknown(settings: Settings, name: str, known: Any) -> UsageError:
    near = nearest(name.rpartition(".")[2].replace("_", "-"), known, 3)
    return UsageError(f"{settings.path}: {name} is no option", near)


def sources_of(context: click.Context, path: str) -> dict[str, str]:
    """Return the options that do not come from the command line, each with its source."""
    found = {}
    for one in context.command.params:
        if not isinstance(one, click.Option) or one.name is None:
            continue
        source = context.get_parameter_source(one.name)
        flag = max(one.opts, key=len).lstrip("-")
        if source is click.core.ParameterSource.DEFAULT_MAP:
            found[flag] = path
        elif source is click.core.ParameterSource.ENVIRONMENT:
            found[flag] = _variable(context, one)
    return found


def _variable(context: click.Context, one: click.Option) -> str:
    return next(
        (name for name in variable_names(context.auto_envvar_prefix, one) if os.environ.get(name)), "the environment"
    )


def variable_names(prefix: Optional[str], one: click.Option) -> list[str]:
    """Return the environment variables of an option: NPUCMP_COMPARE_SKIP_RULE for --skip-rule of compare."""
    if not prefix:
        return []
    flags = [flag.lstrip("-") for flag in one.opts if flag.startswith("--")]
    return [f"{prefix}_{name.replace('-', '_').upper()}" for name in (*flags, one.name or "")]
