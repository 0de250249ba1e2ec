"""Formats of installed packages: entry points of the group `npucmp.formats`, each a module like those of formats/.

The name of the entry point is the word of `--format` and the NAME of the module. `GRAPHS`, `heads`, `open_head`,
`calls` and `WALKS` are optional. An error of such a module that is not an error of npucmp ends the run with one line
that names the extension.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, wraps
from types import ModuleType
from typing import Any, Callable

from npucmp.errors import UsageError
from npucmp.model import Run, RunHeader
from npucmp.model.entry_points import Extension, call_extension, find_extensions, load_extension

GROUP = "npucmp.formats"
REQUIRED = "sniff", "open_runs"
FUNCTIONS = (*REQUIRED, "heads", "open_head", "calls")
CONSTANTS = {"NAME": "", "GRAPHS": None, "WALKS": False}  # with their defaults
NO_MATCH = (OSError, ValueError)  # errors of `sniff` that mean no


@cache
def format_extensions() -> dict[str, Extension]:
    """Return the formats of installed packages by their names; loads none of them."""
    return find_extensions(GROUP)


@cache
def load_format(one: Extension) -> ModuleType:
    """Return a module with the functions of an installed format. Raises UsageError, which names the extension, if it
    cannot be loaded or lacks a part."""
    found = load_extension(one)
    lacking = [name for name in REQUIRED if not callable(getattr(found, name, None))]
    if lacking:
        raise UsageError(f"{one.words}: lacks {' and '.join(lacking)}; docs/extending.md has an example")
    if getattr(found, "NAME", None) != one.name:
        raise UsageError(f"{one.words}: its NAME is {getattr(found, 'NAME', None)!r:.60}, not {one.name!r}")
    module = ModuleType(f"{GROUP}.{one.name}", found.__doc__)
    for name, default in CONSTANTS.items():
        setattr(module, name, getattr(found, name, default))
    for name in FUNCTIONS:
        if hasattr(found, name):
            setattr(module, name, _checked(one, name, getattr(found, name)))
    return module


def _checked(one: Extension, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an extension whose errors name the extension, and whose runs have its format."""

    @wraps(function)
    def call(*args: Any) -> Any:
        passes = NO_MATCH if name == "sniff" else ()
        found = call_extension(one, function, *args, passes=passes)
        return found if name in ("sniff", "calls") else _with_format(one, found)

    return call


def _with_format(one: Extension, found: Any) -> Any:
    """Return a Run, or a list of Runs or RunHeaders, each with the name of the format."""
    if isinstance(found, Run):
        return replace(found, format=one.name)
    if isinstance(found, RunHeader):
        return found._replace(format=one.name)
    if not isinstance(found, (list, tuple)) or not all(isinstance(run, (Run, RunHeader)) for run in found):
        raise UsageError(f"{one.words}: returned {type(found).__name__}, not a list of Runs")
    return [_with_format(one, run) for run in found]
