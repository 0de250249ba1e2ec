"""Extensions from installed packages: rules of `check`, formats, metrics and reports (docs/extending.md).

A package names its extensions in its metadata, by the groups `npucmp.rules`, `npucmp.formats`, `npucmp.metrics` and
`npucmp.reports`. Code of a dump is never loaded. Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

import importlib.metadata
from typing import Any, Iterator

from npucmp.errors import UsageError


def load_entry_points(group: str, hint: str = "") -> dict[str, Any]:
    """Return the objects that installed packages name in a group, by their names. Raises UsageError, with the hint, if
    one cannot be loaded."""
    return dict(_load(group, hint))


def _load(group: str, hint: str) -> Iterator[tuple[str, Any]]:
    found: Any = importlib.metadata.entry_points()
    chosen = found.select(group=group) if hasattr(found, "select") else found.get(group, ())  # a dict in Python 3.9
    for one in sorted(chosen, key=lambda point: str(point.name)):
        try:
            yield one.name, one.load()
        except Exception as error:  # code of another package raises anything
            because = f"{type(error).__name__}: {error}{hint}"
            raise UsageError(f"entry point {one.name} ({one.value}) of {group}: {because}") from error
