"""The presenter of results. `import npucmp` sets it, so that a result can show itself and model imports no report."""

from __future__ import annotations

from typing import Any, Callable

_presenter: list[Callable[..., Any]] = []  # at most one


def set_presenter(presenter: Callable[..., Any]) -> None:
    """Set the function that shows a result: presenter(result, how, *more), as report.present."""
    _presenter[:] = [presenter]


def present(result: object, how: str, *more: str) -> Any:
    """Return the result of the presenter; `how` is the name of a function of report/notebook.py."""
    return _presenter[0](result, how, *more)
