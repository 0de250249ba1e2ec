"""Extensions from installed packages: rules of `check`, formats, metrics and reports (docs/extending.md).

A package names its extensions in its metadata, by the groups `npucmp.rules`, `npucmp.formats`, `npucmp.metrics` and
`npucmp.reports`. Code of a dump is never loaded. Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, TypeVar

from npucmp.errors import NpucmpError, UsageError

T = TypeVar("T")


class Extension(NamedTuple):
    """An extension that a package names: its group, its name, the object in the package, and the package."""

    group: str
    name: str
    value: str
    package: str
    points: tuple[Any, ...]

    @property
    def words(self) -> str:
        """Its name in messages."""
        return f"entry point {self.name} ({self.value}) of {self.group}"


def find_extensions(group: str) -> dict[str, Extension]:
    """Return the extensions of a group by their names, in the order of the names; loads none of them."""
    import importlib.metadata

    found: Any = importlib.metadata.entry_points()
    chosen = found.select(group=group) if hasattr(found, "select") else found.get(group, ())  # a dict in Python 3.9
    points: dict[str, dict[str, Any]] = {}
    for point in chosen:
        points.setdefault(str(point.name), {})[str(point.value)] = point
    return {
        name: Extension(group, name, " and ".join(sorted(same)), _package(same), tuple(same.values()))
        for name, same in sorted(points.items())
    }


def _package(points: dict[str, Any]) -> str:
    """Return the packages of entry points with their versions; "" if they are unknown, as in Python 3.9."""
    owners = [dist for point in points.values() if (dist := getattr(point, "dist", None)) is not None]
    return " and ".join(sorted(f"{dist.name} {dist.version}" for dist in owners))


def load_extension(one: Extension, hint: str = "") -> Any:
    """Return the object of an extension. Raises UsageError, with the hint, if it cannot be loaded or two packages have
    its name."""
    if len(one.points) > 1:
        raise UsageError(f"{one.words}: two packages have this name; uninstall one{hint}")
    return call_extension(one, one.points[0].load, hint=hint)


def load_entry_points(group: str, hint: str = "") -> dict[str, Any]:
    """Return the objects that installed packages name in a group, by their names. Raises UsageError, with the hint, if
    one cannot be loaded."""
    return {name: load_extension(one, hint) for name, one in find_extensions(group).items()}


def call_extension(
    one: Extension, function: Callable[..., T], *args: Any, hint: str = "", passes: tuple[type[Exception], ...] = ()
) -> T:
    """Return the result of a function of an extension. An error of it is a UsageError that names the extension, except
    for errors of npucmp and those of `passes`."""
    passed: tuple[type[Exception], ...] = (NpucmpError, MemoryError, *passes)
    try:
        return function(*args)
    except passed:
        raise
    except Exception as error:  # code of another package raises anything
        because = " ".join(f"{type(error).__name__}: {error}{hint}".split())
        raise UsageError(f"{one.words}: {because}") from error
