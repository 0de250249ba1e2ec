"""A JSON text of a dump that must be an object."""

from __future__ import annotations

import json
from typing import Any

from npucmp.errors import DumpError


def json_object(text: str, path: object, what: str, digits: int, **hooks: Any) -> dict[str, Any]:
    """The object of a text, made with hooks of json.loads; DumpError for anything else, saying `what` it is not.

    Whole numbers have at most so many digits: the time of int() grows with the square. A key that stands twice in an
    object is refused.
    """

    def whole(number: str) -> int:
        if len(number) > digits:
            raise ValueError(f"a number of {len(number)} digits")
        return int(number)

    try:
        tree = json.loads(text, parse_int=whole, **{"object_pairs_hook": unlike, **hooks})
    except RecursionError:
        raise DumpError(path, f"not {what}: JSON that is nested too deep") from None
    except json.JSONDecodeError as error:
        raise DumpError(path, f"not JSON: line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise DumpError(path, f"not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise DumpError(path, f"not {what}: JSON, but not an object")
    return tree


def unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; ValueError for a key that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that stands twice")
    return found
