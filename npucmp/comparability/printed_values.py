"""Read values as Python, JSON and loggers print them. Nothing is executed or imported.

    literal      'text', 1e-4, True, None, true, null, [..], (..), {..}; adjacent strings are one string
    object       <Enum.STEPS: 'steps'>, torch.bfloat16, IntervalStrategy.NO and other text become their own text
    call         CometConfig(enabled=False) becomes a dict of its named arguments, np.float64(0.5) its number

The text is untrusted: depth and number of values are bounded. Source: repr and pprint of CPython 3.11, json.dumps.
"""

from __future__ import annotations

import re
from typing import Any, Optional

DEEPEST = 48  # nested brackets; verl's configuration has 6
MOST = 50_000  # values of one text; Megatron-LM prints 500

WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"""[bruf]{0,2}(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,9})?(?![\w.])")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_OBJECT = re.compile(r"<[^<>\n]{0,400}>")
_FREE = re.compile(r"[^,\[\](){}'\"\n]+")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^xu])", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def printed_value(text: str) -> Any:
    """Return the value of a text; the text itself, without addresses of memory, if it is no literal."""
    reader = _Reader(text.strip())
    try:
        found = reader.value(0)
        if reader.is_at_end():
            return found
    except ValueError:
        pass
    return without_address(text.strip())


def printed_tree(text: str) -> Optional[dict[str, Any]]:
    """Return the dict at the begin of a text; None if there is none, or if it exceeds the bounds."""
    reader = _Reader(text)
    try:
        found = reader.value(0)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def printed_arguments(text: str) -> Optional[dict[str, Any]]:
    """Return the named arguments of a text "name=value, name=value)"; None if it does not consist of them."""
    reader = _Reader(text)
    try:
        return reader.named(0)
    except ValueError:
        return None


def number_or_text(text: str) -> Any:
    """Return a number, a boolean or None for a text that is one; else the text."""
    text = text.strip()
    if text.capitalize() in WORDS or text.lower() in WORDS:
        return WORDS.get(text.lower(), WORDS.get(text.capitalize()))
    if _NUMBER.fullmatch(text):
        return _number(text)
    return text


def without_address(text: str) -> str:
    """Return the text of an object without its address, which differs in every run."""
    return _ADDRESS.sub("", text)


def _number(text: str) -> Any:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if code[0] in "xu" else _ESCAPED.get(code, code)

    return _ESCAPE.sub(one, text) if "\\" in text else text


class _Reader:
    """A position in a text. Methods read from it and raise ValueError beyond the bounds."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.count = text, 0, 0

    def is_at_end(self) -> bool:
        self._skip()
        return self.at >= len(self.text)

    def value(self, depth: int) -> Any:
        self.count += 1
        if depth > DEEPEST or self.count > MOST:
            raise ValueError("too deep or too many values")
        self._skip()
        first = self.text[self.at : self.at + 1]
        if first in ("[", "("):
            return self._list(first, depth)
        if first == "{":
            return self._dict(depth)
        return self._plain(depth)

    def named(self, depth: int) -> dict[str, Any]:
        """Read named arguments up to the closing bracket."""
        found: dict[str, Any] = {}
        while not self._takes(")"):
            name = _NAMED.match(self.text, self.at)
            if name is None:
                raise ValueError("not a named argument")
            self.at = name.end()
            found[name[1]] = self.value(depth + 1)
            if not self._takes(",") and self._peek() != ")":
                raise ValueError("no comma")
        return found

    def _skip(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]

    def _peek(self) -> str:
        self._skip()
        return self.text[self.at : self.at + 1]

    def _takes(self, mark: str) -> bool:
        found = self._peek() == mark
        self.at += found
        return found

    def _list(self, opening: str, depth: int) -> Any:
        self.at += 1
        found: list[Any] = []
        comma = False
        while not self._takes(_CLOSING[opening]):
            found.append(self.value(depth + 1))
            comma = self._takes(",")
            if not comma and self._peek() != _CLOSING[opening]:
                raise ValueError("no comma")
        return found[0] if opening == "(" and len(found) == 1 and not comma else found

    def _dict(self, depth: int) -> Any:
        self.at += 1
        found: dict[str, Any] = {}
        alone: list[Any] = []  # of a set
        while not self._takes("}"):
            key = self.value(depth + 1)
            if self._takes(":"):
                found[str(key)] = self.value(depth + 1)
            else:
                alone.append(key)
            if not self._takes(",") and self._peek() != "}":
                raise ValueError("no comma")
        return found if found or not alone else alone

    def _plain(self, depth: int) -> Any:
        string = _STRING.match(self.text, self.at)
        if string is not None:
            return self._strings(string)
        number = _NUMBER.match(self.text, self.at)
        if number is not None:
            self.at = number.end()
            return _number(number[0])
        start = self.at
        thing = _OBJECT.match(self.text, start)
        if thing is not None:
            self.at = thing.end()
            return without_address(thing[0])
        call = _CALL.match(self.text, start)
        if call is not None:
            return self._call(call, depth)
        return self._free(depth)

    def _strings(self, string: Optional[re.Match[str]]) -> str:
        parts: list[str] = []
        while string is not None:
            parts.append(_unescape(string[1] if string[1] is not None else string[2]))
            self.at = string.end()
            self._skip()
            string = _STRING.match(self.text, self.at)
        return "".join(parts)

    def _call(self, call: re.Match[str], depth: int) -> Any:
        start, self.at = self.at, call.end()
        if _NAMED.match(self.text, self.at):
            return self.named(depth + 1)
        self.at = call.end() - 1
        inner = self.value(depth + 1)
        if call[1].startswith(("np.", "numpy.")) and isinstance(inner, (int, float)):
            return inner
        return without_address(" ".join(self.text[start : self.at].split()))

    def _free(self, depth: int) -> Any:
        """Read text up to a comma or a closing bracket; the key of a dict also ends at a colon."""
        found = _FREE.match(self.text, self.at)
        if found is None:
            raise ValueError("no value")
        end = found.end()
        word = found[0].partition(":")[0] if depth and "://" not in found[0] and ": " in found[0] else found[0]
        self.at = end if word == found[0] else self.at + len(word)
        text = without_address(word.strip())
        return WORDS.get(text, text)
