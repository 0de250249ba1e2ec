"""Find keys that occur more than once in an object of a JSON text; JSON readers keep only the last value of such a key.

If no key repeats, the text has as many colons as its parsed tree has when written again. Both are counted without
looking at single keys, which costs a fraction of the parsing; a text is parsed again, key by key, only if they differ.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator

from msgspec import MsgspecError
from msgspec.json import Encoder

_LEVELS = 2  # of objects visited one by one, so that the whole text is not copied
_encode = Encoder().encode


class RepeatedKeys(dict[str, Any]):
    """An object with repeated keys, which `keys_repeated` names; the last value of each counts."""

    keys_repeated: tuple[str, ...] = ()


def may_repeat(text: bytes, tree: Any) -> bool:
    """Return whether keys may repeat in the JSON text of a tree; True also if the cheap count cannot decide."""
    if b"\\" in text and b"\\u003" in text:  # an escaped colon, in upper or lower case; most texts have no escapes
        return True
    try:
        return text.count(b":") != _colons(tree, _LEVELS)
    except (MsgspecError, ValueError, TypeError, OverflowError, RecursionError):  # lone surrogates, huge numbers
        return True


def _colons(tree: Any, levels: int) -> int:
    """Return the number of colons of a tree as JSON."""
    if levels and type(tree) is dict:
        return sum(1 + key.count(":") + _colons(value, levels - 1) for key, value in tree.items())
    return _encode(tree).count(b":")


def loads(text: str, parse_int: Callable[[str], Any]) -> Any:
    """Return the tree of a JSON text, with RepeatedKeys for each object with repeated keys."""
    return json.loads(text, parse_int=parse_int, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    marked = RepeatedKeys(found)
    marked.keys_repeated = tuple(twice)
    return marked


def repeated_in(tree: Any) -> Iterator[RepeatedKeys]:
    """Yield the objects of a tree with repeated keys."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, RepeatedKeys):
            yield one
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
