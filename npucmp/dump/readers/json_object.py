"""Parse a JSON text of a dump that must be an object."""

from __future__ import annotations

import json
from typing import Any

from npucmp.errors import DumpError


def json_object(text: str, path: object, what: str, digits: int, **hooks: Any) -> dict[str, Any]:
    """Return the object in a text, parsed with hooks of json.loads; DumpError for other content, which names `what`.

    Integers have at most `digits` digits, because the time of int() is quadratic. A repeated key in an object is
    refused.
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
    """Return the object of these pairs; ValueError for a repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a duplicate name")
    return found
