"""Rules of users: from files that they name, and from installed packages (entry points npucmp.rules).

A file is executed as a Python script. No script is ever taken from a dump.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from os import PathLike
from pathlib import Path
from typing import Any, Iterator, Sequence

from npucmp.errors import UsageError
from npucmp.health.rule import Rule

GROUP = "npucmp.rules"


def own_rules(
    files: Sequence[str | PathLike[str]], installed: bool = True, known: Sequence[Rule] = ()
) -> tuple[Rule, ...]:
    """Return the rules of files, in the order of their text, then those of packages. Raise UsageError if a source holds
    no rule or cannot be executed, and for a duplicate name."""
    found: list[Rule] = []
    names = {one.name: "npucmp" for one in known}
    for source, some in [*_of_files(files), *(_of_packages() if installed else ())]:
        for one in some:
            if one.name in names:
                raise UsageError(f"{source}: rule {one.name} already exists in {names[one.name]}")
            names[one.name] = source
            found.append(one)
    return tuple(found)


def _of_files(files: Sequence[str | PathLike[str]]) -> Iterator[tuple[str, list[Rule]]]:
    for number, file in enumerate(files):
        path, name = Path(file), f"npucmp_plugin_{number}"
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path}: not a Python file (*.py)")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses of the file look there
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # user code raises anything
            raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
        yield str(path), _rules(str(path), module)


def _of_packages() -> Iterator[tuple[str, list[Rule]]]:
    found: Any = importlib.metadata.entry_points()
    chosen = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())  # a dict in Python 3.9
    for one in sorted(chosen, key=lambda point: str(point.name)):
        try:
            loaded = one.load()
        except Exception as error:  # code of another package raises anything
            because = f"{type(error).__name__}: {error}; --no-plugins skips it"
            raise UsageError(f"entry point {one.name} ({one.value}): {because}") from error
        yield f"entry point {one.name}", _rules(f"entry point {one.name}", loaded)


def _rules(source: str, loaded: Any) -> list[Rule]:
    """The rules in a module or a sequence, or the single rule."""
    some = (
        [loaded] if isinstance(loaded, Rule) else loaded if isinstance(loaded, (list, tuple)) else vars(loaded).values()
    )
    found = [*dict.fromkeys(one for one in some if isinstance(one, Rule))]
    if not found:
        raise UsageError(f"{source}: holds no rule; docs/extending.md has an example")
    return found
