"""Keys that stand more than once in an object of a JSON text, of which JSON readers keep the last value alone.

A text without such keys has as many colons as what was made of it, written again. Both are counted without a look at
single keys, which costs a fraction of the reading; only a text whose counts differ is read once more, key by key.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator

from msgspec import MsgspecError
from msgspec.json import Encoder

_LEVELS = 2  # of objects that are gone through one by one, so that no copy of the whole text is made
_encode = Encoder().encode


class Repeated(dict[str, Any]):
    """An object with keys that stand more than once, which `keys_repeated` names; the last value of each counts."""

    keys_repeated: tuple[str, ...] = ()


def may_repeat(text: bytes, tree: Any) -> bool:
    """Whether keys stand more than once in the JSON text of a tree, or a cheap look cannot tell."""
    if b"\\" in text and b"\\u003" in text:  # an escaped colon, of either case; most texts escape nothing
        return True
    try:
        return text.count(b":") != _colons(tree, _LEVELS)
    except (MsgspecError, ValueError, TypeError, OverflowError, RecursionError):  # lone surrogates, endless numbers
        return True


def _colons(tree: Any, levels: int) -> int:
    """How many colons a tree has as JSON."""
    if levels and type(tree) is dict:
        return sum(1 + key.count(":") + _colons(value, levels - 1) for key, value in tree.items())
    return _encode(tree).count(b":")


def loads(text: str, parse_int: Callable[[str], Any]) -> Any:
    """The tree of a JSON text, with a Repeated for each object with keys that stand more than once."""
    return json.loads(text, parse_int=parse_int, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    marked = Repeated(found)
    marked.keys_repeated = tuple(twice)
    return marked


def repeated_in(tree: Any) -> Iterator[Repeated]:
    """The objects of a tree with keys that stand more than once."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Repeated):
            yield one
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
