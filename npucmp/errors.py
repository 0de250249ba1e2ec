"""The errors that npucmp raises on purpose.

An error is raised where its cause is known, and has the facts as attributes; only cli.py prints it. An error of one
tensor becomes a row of the report, so only errors that end a run reach the caller.
"""

from __future__ import annotations

import errno
import os
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence, TypeVar, Union

R = TypeVar("R")
D = TypeVar("D")
if TYPE_CHECKING:
    from typing import ParamSpec

    P = ParamSpec("P")

RAISE = "NPUCMP_RAISE"


def raise_in_tests(error: Exception) -> None:
    """Raise `error` again if the variable NPUCMP_RAISE is set, as tests/conftest.py does.

    Called where an unexpected error costs one row, rule or operator instead of the run: in tests it is a bug.
    """
    if os.environ.get(RAISE):
        raise error


class NpucmpError(Exception):
    """The base class of all errors of this package. It can be pickled, because errors of workers reach their parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes. By default an exception is made again from its text, which does not fit these
        constructors."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[NpucmpError], args: tuple[Any, ...], facts: dict[str, Any]) -> NpucmpError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class DumpError(NpucmpError):
    """A dump that cannot be read: its file, the position in it (bytes, if known) and the reason."""

    def __init__(self, path: object, because: str, offset: Optional[int] = None) -> None:
        self.path = str(path)
        self.because = because
        self.offset = offset
        where = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{self.path}: {because}{where}")


# the system failed: a bad sector, no memory, no free descriptor, a lost server; such an error says nothing about a path
SYSTEM_FAILURES = frozenset(
    {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ESTALE, errno.ETIMEDOUT}
)


class SystemFailure(DumpError):
    """A dump that another try might read. It is never taken as "this is another format"."""


def if_unreadable(otherwise: D, *more: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, Union[R, D]]]:
    """Decorate a function that reads tensors: it returns `otherwise` if one cannot be read, and for errors of `more`. A
    failure of the system is raised."""

    kinds: tuple[type[Exception], ...] = (NpucmpError, *more)

    def decorated(function: Callable[P, R]) -> Callable[P, Union[R, D]]:
        @wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> Union[R, D]:
            try:
                return function(*args, **named)
            except SystemFailure:
                raise
            except kinds:
                return otherwise

        return called

    return decorated


def read_error(path: object, words: str, error: OSError, offset: Optional[int] = None) -> DumpError:
    """Return the error of a path that the system does not open or read."""
    kind = SystemFailure if error.errno in SYSTEM_FAILURES else DumpError
    return kind(path, f"{words}: {error.strerror}", offset)


def is_closed(error: OSError) -> bool:
    """Return whether a path exists but cannot be read: its content is unknown, and not nothing."""
    return isinstance(error, PermissionError) or error.errno in SYSTEM_FAILURES


def raise_system_failure(error: OSError) -> None:
    """Raise SystemFailure if the system failed. Otherwise return: the folder is closed or absent.

    A folder whose listing failed is not an empty one: its dump would be taken for one of another format.
    """
    if error.errno in SYSTEM_FAILURES:
        raise SystemFailure(error.filename or "dump", f"cannot be read: {error.strerror}") from None


class UnsupportedError(NpucmpError):
    """Valid input that npucmp does not support; `hint` proposes an alternative."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}; {hint}" if hint else what)


class MissingExtra(NpucmpError):
    """A required package is not installed."""

    def __init__(self, package: str, why: str) -> None:
        self.package = package
        super().__init__(f"{why} needs the package {package}: {install_line(package)}")


def install_line(package: str) -> str:
    """Return the command that installs a package; an extra of npucmp is installed from a checkout."""
    return (
        f"pip install -e '.{package[len('npucmp') :]}'" if package.startswith("npucmp[") else f"pip install {package}"
    )


class UsageError(NpucmpError):
    """A call with wrong arguments; `near` lists the nearest names."""

    def __init__(self, because: str, near: Sequence[str] = ()) -> None:
        self.because = because
        self.near = tuple(near)
        super().__init__(f"{because}; nearest: {', '.join(self.near)}" if self.near else because)


def nearest(word: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known words that a mistyped word resembles, for the message about it."""
    from difflib import get_close_matches

    return get_close_matches(word, [*known], most, cutoff)
