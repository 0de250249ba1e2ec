"""Everything that npucmp raises on purpose.

Raised where the fact is known, carrying the facts as attributes; turned into text once, in cli.py.
Trouble with one tensor becomes a row of the report, so what reaches a caller is only what ends a run.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

RAISE = "NPUCMP_RAISE"


def raise_in_tests(error: Exception) -> None:
    """Raise `error` again if the variable NPUCMP_RAISE is set, as tests/conftest.py does.

    Called where an unexpected error costs one row, rule or operator instead of the run: in tests it is a bug.
    """
    if os.environ.get(RAISE):
        raise error


class NpucmpError(Exception):
    """Root of all errors of this package. Survives pickling, as what a worker raises must reach its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        """By default an exception is made again from its text, which is not what these are made from."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[NpucmpError], args: tuple[Any, ...], facts: dict[str, Any]) -> NpucmpError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class DumpError(NpucmpError):
    """A dump that cannot be read: which file, where in it (bytes, if known) and why."""

    def __init__(self, path: object, because: str, offset: Optional[int] = None) -> None:
        self.path = str(path)
        self.because = because
        self.offset = offset
        where = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{self.path}: {because}{where}")


class UnsupportedError(NpucmpError):
    """Something valid that npucmp does not read; `hint` says what to do instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}; {hint}" if hint else what)


class MissingExtra(NpucmpError):
    """A package is needed that is not installed."""

    def __init__(self, package: str, why: str) -> None:
        self.package = package
        super().__init__(f"{why} needs the package {package}: {install_line(package)}")


def install_line(package: str) -> str:
    """The command that installs a package; an extra of npucmp is installed from a checkout."""
    return (
        f"pip install -e '.{package[len('npucmp') :]}'" if package.startswith("npucmp[") else f"pip install {package}"
    )


class UsageError(NpucmpError):
    """The call's words are off; `near` lists the names that come closest."""

    def __init__(self, because: str, near: Sequence[str] = ()) -> None:
        self.because = because
        self.near = tuple(near)
        super().__init__(f"{because}; nearest: {', '.join(self.near)}" if self.near else because)
