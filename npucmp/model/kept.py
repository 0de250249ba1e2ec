"""What is made of a record again and again, made once and kept with it."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Dict, Protocol, TypeVar


class Keeps(Protocol):
    """A record that nobody changes, and that what follows from it may be kept with: a tuple with room for more."""

    __dict__: Dict[str, Any]


One = TypeVar("One", bound=Keeps)
Found = TypeVar("Found")


def kept(function: Callable[[One], Found]) -> Callable[[One], Found]:
    """A function of one record alone, which is called once for each; a changed copy of a record starts anew."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def found(one: One) -> Found:
        try:
            value: Found = one.__dict__[name]
        except KeyError:
            value = one.__dict__[name] = function(one)
        return value

    return found
