"""The presenter of results, and the language in which they are shown. `import npucmp` sets the presenter, so that a
result can show itself and model imports no report."""

from __future__ import annotations

import os
from typing import Any, Callable

LANGUAGE = "NPUCMP_LANG"  # the environment variable; the command line sets it by --lang or the locale
_presenter: list[Callable[..., Any]] = []  # at most one


def set_presenter(presenter: Callable[..., Any]) -> None:
    """Set the function that shows a result: presenter(result, how, *more), as report.present."""
    _presenter[:] = [presenter]


def present(result: object, how: str, *more: str) -> Any:
    """Return the result of the presenter; `how` is the name of a function of report/notebook.py."""
    return _presenter[0](result, how, *more)


def is_chinese() -> bool:
    """Return whether screens, pages and tickets are in Chinese; else they are in English."""
    return os.environ.get(LANGUAGE, "").startswith("zh")
