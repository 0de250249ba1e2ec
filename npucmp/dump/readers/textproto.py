"""Parse the protobuf text format into a tree without a schema; the caller interprets it.

    message   { fields } or < fields >, after "name", "name:" or an any/extension name "[a.b/c]"
    field     name: scalar · name message · name: [ scalars or messages ]; "," or ";" may follow
    scalar    a number, a word (enum, true, false, inf, nan), or strings in ' or ", adjacent ones joined
    escapes   \\n \\r \\t \\a \\b \\f \\v \\' \\" \\? \\\\ · \\ooo and \\xHH, a byte · \\uHHHH, \\UHHHHHHHH: characters
    comment   # to the end of the line

A message becomes a dict of lists, because without a schema the repeated fields are unknown. Separators are parsed more
leniently than in the standard; they carry no meaning.
Source: protobuf.dev, "Text Format Language Specification".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Optional

from npucmp.dump.limits import Limits
from npucmp.errors import DumpError

Message = dict[str, list[Any]]  # values: str, int, float, bool, Message
Keep = Callable[[str, Message], bool]

END = ""  # in place of a next character
LONGEST_TEXT = 1 << 20  # characters; longer strings are weights, which stay unconverted

# One match per usual field; for others the empty last alternative matches and _Parser.unusual follows. Two adjacent
# repeats must not match the same character, else a file of blanks takes quadratic time; no repeat contains a group,
# which would take memory for every round.
_FIELD = re.compile(
    r"""[\s,;]*(?:([}>])
    |([A-Za-z_][A-Za-z0-9_]*)\s*(?::\s*(?:"([^"\\\n]*)"(?!\s*["'\#])|([-+.\w]+)|([{<]))|([{<]))
    |)""",
    re.VERBOSE,
)
_CLOSE, _NAME, _TEXT, _SCALAR = 1, 2, 3, 4
_GAP = re.compile(r"\s*")
_ANY_NAME = re.compile(r"\[[-\w./%]+\]|[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"[-+.\w]+")
_INTEGER = re.compile(r"-?(?:(0[xX][0-9a-fA-F]{1,16})|(0[0-7]{1,22})|(0|[1-9][0-9]{0,19}))", re.ASCII)
_FLOAT = re.compile(r"(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fF]?", re.ASCII)
_NONFINITE = re.compile(r"-?(?:inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE)
_WORD = re.compile(r"-?[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_QUOTES = ('"', "'")
_CLOSER = {"{": "}", "<": ">"}
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*)|U([0-9a-fA-F]{8})|(.?))",
    re.DOTALL,
)
_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_PLAIN.update((char, char) for char in (b"\\", b"'", b'"', b"?"))


class _Frame(NamedTuple):
    """The state to resume when an open message closes."""

    message: Message
    name: str
    closer: str
    held: int
    listed: bool  # the message is an element of [ ]
    start: int


def parse(text: str, path: object, keep: Optional[Keep] = None, limits: Limits = Limits()) -> Message:
    """Return the tree of a text. `keep` is called for each message when it closes, and decides whether it is kept.

    Bytes of a string that are not UTF-8 become \\xNN. Raises DumpError with the line for text in another format and for
    text beyond graph_depth or graph_values.
    """
    return _Parser(text, path, keep, limits).run()


class _Parser:
    def __init__(self, text: str, path: object, keep: Optional[Keep], limits: Limits) -> None:
        self.text = text
        self.path = path
        self.keep = keep
        self.at = 0
        self.limits = limits
        self.held, self.most = 0, limits.graph_values
        self.message: Message = {}
        self.stack: list[_Frame] = []
        self.scalars: dict[str, Any] = {}

    def run(self) -> Message:
        text, match = self.text, _FIELD.match
        while True:
            found = match(text, self.at)
            assert found is not None
            self.at = found.end()
            kind = found.lastindex
            if kind == _SCALAR:
                self.add(found[_NAME], self.scalar(found[_SCALAR]))
            elif kind == _CLOSE:
                self.close(found[_CLOSE])
            elif kind == _TEXT:
                self.add(found[_NAME], found[_TEXT])
            elif kind is not None:
                self.open(found[_NAME], found[kind])
            elif self.next() != END:
                self.unusual()
            else:
                break
        if self.stack:
            line = self.line(self.stack[-1].start)
            self.fail(f"ended early: {_short(self.stack[-1].name)} of line {line} is not closed")
        return self.message

    def add(self, name: str, value: Any) -> None:
        self.held += 1
        if self.held > self.most:
            self.fail(self.limits.limit_message("values held at a time", "graph_values"))
        values = self.message.get(name)
        if values is None:
            self.message[sys.intern(name)] = [value]
        else:
            values.append(value)

    def open(self, name: str, bracket: str, listed: bool = False) -> None:
        if len(self.stack) >= self.limits.graph_depth:
            self.fail(self.limits.limit_message("messages within messages", "graph_depth"))
        self.stack.append(_Frame(self.message, name, _CLOSER[bracket], self.held, listed, self.at))
        self.message = {}

    def close(self, bracket: str) -> None:
        if not self.stack or self.stack[-1].closer != bracket:
            self.fail(f"'{bracket}' closes nothing", self.at - 1)
        frame = self.stack.pop()
        message, self.message = self.message, frame.message
        if self.keep is None or self.keep(frame.name, message):
            self.add(frame.name, message)
        else:
            self.held = frame.held
        if frame.listed:
            self.elements(frame.name, first=False)

    def unusual(self) -> None:
        """Parse a field that _FIELD does not match: escapes, joined strings, a list, inner comments, an any name."""
        found = _ANY_NAME.match(self.text, self.at)
        if found is None and self.text[self.at] in ",;}>":  # a comment preceded it
            return
        if found is None:
            self.fail(f"a field is expected, not {self.next_token()}")
        self.at = found.end()
        colon = self.next() == ":"
        if colon:
            self.at += 1
        char = self.next()
        if char in _CLOSER:
            self.at += 1
            self.open(found[0], char)
        elif char == "[":
            self.at += 1
            self.elements(found[0])
        elif colon:
            self.add(found[0], self.value())
        else:
            self.fail(f"':' or '{{' is expected, not {self.next_token()}")

    def elements(self, name: str, first: bool = True) -> None:
        """Parse the rest of a list, up to its end or the next message in it."""
        while self.next() != "]":
            if not first:
                if self.next() != ",":
                    self.fail(f"',' or ']' is expected, not {self.next_token()}")
                self.at += 1
            first = False
            char = self.next()
            if char in _CLOSER:
                self.at += 1
                self.open(name, char, listed=True)
                return
            self.add(name, self.value())
        self.at += 1

    def next(self) -> str:
        """Skip white space and comments and return the next character; END after the last."""
        while True:
            gap = _GAP.match(self.text, self.at)
            assert gap is not None
            self.at = gap.end()
            if not self.text.startswith("#", self.at):
                return self.text[self.at] if self.at < len(self.text) else END
            line = self.text.find("\n", self.at)
            self.at = line if line >= 0 else len(self.text)

    def value(self) -> Any:
        if self.next() in _QUOTES:
            return self.strings()
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            self.fail(f"a value is expected, not {self.next_token()}")
        self.at = found.end()
        return self.scalar(found[0])

    def scalar(self, token: str) -> Any:
        value = self.scalars.get(token)
        if value is not None:
            return value
        if token == "-":
            self.next()
            found = _TOKEN.match(self.text, self.at)
            if found is None or found[0].startswith("-"):
                self.fail(f"a number is expected, not {self.next_token()}")
            self.at = found.end()
            token += found[0]
        value = _scalar(token)
        if value is None:
            self.fail(f"not a value: {_short(token)}", self.at - len(token))
        if len(self.scalars) < 4096:
            self.scalars[token] = value
        return value

    def strings(self) -> str:
        pieces = []
        while self.next() in _QUOTES:
            pieces.append(self.string())
        return b"".join(pieces).decode("utf-8", "backslashreplace")

    def string(self) -> bytes:
        """Return one quoted string. Searches for quotes instead of scanning characters: a weight has millions."""
        text, quote, start = self.text, self.text[self.at], self.at + 1
        end = text.find(quote, start)
        while end >= 0 and _is_escaped(text, start, end):
            end = text.find(quote, end + 1)
        if end < 0 or text.find("\n", start, end) >= 0:
            self.fail("a string does not end on its line")
        self.at = end + 1
        data = text[start:end].encode("utf-8", "surrogatepass")
        if end - start > LONGEST_TEXT or b"\\" not in data:
            return data
        try:
            return _ESCAPE.sub(_unescape, data)
        except ValueError as error:
            self.fail(str(error), start)

    def next_token(self) -> str:
        return _short(self.text[self.at : self.at + 40].split("\n")[0]) if self.at < len(self.text) else "the end"

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def fail(self, because: str, at: Optional[int] = None) -> NoReturn:
        raise DumpError(self.path, f"not protobuf text: line {self.line(self.at if at is None else at)}: {because}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _is_escaped(text: str, start: int, end: int) -> bool:
    """Return whether an odd number of backslashes precedes `end`."""
    before = end
    while before > start and text[before - 1] == "\\":
        before -= 1
    return (end - before) % 2 == 1


def _unescape(found: re.Match[bytes]) -> bytes:
    octal, byte, units, point, plain = found.groups()
    if octal is not None:
        return bytes((int(octal, 8) & 0xFF,))
    if byte is not None:
        return bytes((int(byte, 16),))
    if units is not None:  # UTF-16: a character beyond the first 65,536 is two of them
        pairs = bytes.fromhex(units.replace(b"\\", b"").replace(b"u", b"").decode("ascii"))
        return pairs.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass")
    if point is not None:
        if int(point, 16) > sys.maxunicode:
            raise ValueError(f"not a character: {found[0].decode('ascii')}")
        return chr(int(point, 16)).encode("utf-8", "surrogatepass")
    if plain not in _PLAIN:
        raise ValueError(f"not an escape: {found[0].decode('utf-8', 'backslashreplace')}")
    return _PLAIN[plain]


def _scalar(token: str) -> Any:
    """Return the value of a number or word, None for other tokens."""
    if token in _BOOLEANS:
        return _BOOLEANS[token]
    found = _INTEGER.fullmatch(token)
    if found is not None:
        base = 16 if found[1] else 8 if found[2] else 10
        size = int(found[1] or found[2] or found[3], base)
        return -size if token.startswith("-") else size
    found = _FLOAT.fullmatch(token)
    if found is not None:
        return float(found[1])
    if _NONFINITE.fullmatch(token):
        return float(token)
    return token if _WORD.fullmatch(token) else None


def messages(message: Message, name: str) -> list[Message]:
    """Return all messages of a field; ValueError for another value."""
    return _typed_values(message, name, dict, "a message")


def texts(message: Message, name: str) -> list[str]:
    """Return all texts or enum words of a field; ValueError for another value."""
    return _typed_values(message, name, str, "text")


def integers(message: Message, name: str) -> list[int]:
    """Return all integers or booleans of a field; ValueError for another value."""
    return _typed_values(message, name, int, "an integer")


def _typed_values(message: Message, name: str, kind: type[Any], word: str) -> list[Any]:
    values = message.get(name, [])
    for value in values:
        if not isinstance(value, kind):
            raise ValueError(f"{name} is not {word} but {_short(str(value))}")
    return values
