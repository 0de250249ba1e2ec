"""The presenter of results: `import npucmp` hands it in, so that a result shows itself and model imports no report."""

from __future__ import annotations

from typing import Any, Callable

_presenter: list[Callable[..., Any]] = []  # of one at most


def set_presenter(presenter: Callable[..., Any]) -> None:
    """Set the function that shows a result: presenter(result, how, *more), as report.present."""
    _presenter[:] = [presenter]


def present(result: object, how: str, *more: str) -> Any:
    """Return what the presenter makes of a result; `how` is the name of a function of report/notebook.py."""
    return _presenter[0](result, how, *more)
