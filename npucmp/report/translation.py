"""Translate finished text by the catalogue of a language: locale/zh/LC_MESSAGES/npucmp.mo.

Messages of the code are plain strings, and a screen is made of them. A text is translated as the message that it is,
else by the template that it fills ({0} tensors agree), else piece by piece. Values of a template are translated only if
they are messages themselves, so that names and paths of a dump stay as they are.
"""

from __future__ import annotations

import gettext
import re
from collections import Counter, defaultdict
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

LOCALE = Path(__file__).parents[1] / "locale"
COUNT = "count\x04"  # the context of nouns that a number precedes
SIDES = frozenset({"target", "golden"})  # single words that are messages, as the name of a side
NAMES = frozenset("op name slot path file operator parameter writer dump folder command dtype".split(" "))
SEPARATORS = ("; ", " · ", ". ", ": ", ", ", " (")
JOINED = {"; ": "；", ". ": "。", ": ": "：", ", ": "，"}
MOST_PIECES = 16  # pieces of a line that are joined again in search of a message
LONGEST = 4000  # characters of a text that is translated
FEWEST = 3  # letters that a template must have besides its values
WEAK = 9  # letters below which the values of a template must be known text, or words without blanks
_FIELD = re.compile(r"{(\w*)[^{}]*}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_WIDE = re.compile("[\u3000-\u9fff\uff00-\uffef]")
_NUMBER = re.compile(r"(\d[\d,.]*) (.+)")


class Template(NamedTuple):
    """A message with values: its pattern, the names of its values, its translation and the number of its letters."""

    message: str
    names: tuple[str, ...]
    translation: str
    letters: int

    def match(self, text: str) -> Optional[list[str]]:
        """Return the values with which the message makes a text; None if it does not."""
        found = _compiled(self.message).fullmatch(text)
        return None if found is None else [*found.groups()]


class Parsed(NamedTuple):
    """A text in the language, and the number of its former letters that were part of a message."""

    text: str
    known: int


@lru_cache(maxsize=8192)
def _compiled(message: str) -> re.Pattern[str]:
    parts = _FIELD.split(message)
    literals = [re.escape(part) for part in parts[::2]]
    return re.compile("(.*?)".join(literals), re.DOTALL)


class Catalogue:
    """The messages of a language, found by the text that they make."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        self._exact = {key: words for key, words in messages.items() if COUNT not in key and not _FIELD.search(key)}
        self._nouns = {key[len(COUNT) :]: words for key, words in messages.items() if key.startswith(COUNT)}
        self._messages = messages
        self._parse = lru_cache(maxsize=8192)(self._parsed)

    def text(self, text: str) -> str:
        """Return a text in the language; words that are part of no message stay as they are."""
        return self._parse(text).text if len(text) <= LONGEST and _WORD.search(text) else text

    def word(self, message: str) -> str:
        """Return the translation of a message as it stands in the catalogue, placeholders included."""
        return self._messages.get(message) or message

    @cached_property
    def _templates(self) -> Mapping[str, Sequence[Template]]:
        """Return the templates by their rarest word."""
        found = [*filter(None, (self._template(key, words) for key, words in self._messages.items()))]
        counts = Counter(word for one in found for word in {*_words_of(one)})
        index: dict[str, list[Template]] = defaultdict(list)
        for one in found:
            index[min(_words_of(one), key=lambda word: counts[word])].append(one)
        return index

    def _template(self, message: str, words: str) -> Optional[Template]:
        opens, closes = message[:1] in " ,;:", message[-1:] == " "
        if COUNT in message or not (_FIELD.search(message) or opens or closes):
            return None
        whole = ("{before}" if opens else "") + message + ("{after}" if closes else "")
        made = ("{before}" if opens else "") + words + ("{after}" if closes else "")
        names = tuple(_FIELD.findall(whole))
        letters = sum(map(len, _WORD.findall(_FIELD.sub(" ", whole))))
        return Template(whole, names, made, letters) if letters >= FEWEST else None

    def _parsed(self, text: str) -> Parsed:
        """Return the reading of a text in which most letters are known: as a message, or as pieces."""
        bare = text.strip()
        if bare != text:
            before, _, after = text.partition(bare)
            made = self._parse(bare) if bare else Parsed("", 0)
            return Parsed(before + made.text + after, made.known)
        whole = self._whole(text)
        if whole is not None and whole.known == _letters(text):
            return whole
        found = [whole] if whole is not None else []
        if text.endswith(".") and len(text) > 1:
            made = self._parse(text[:-1])
            found.insert(0, Parsed(made.text.rstrip("。") + "。", made.known) if made.known else made)
        for separator in SEPARATORS:
            parts = text.split(separator) if separator != " (" else _bracketed(text)
            if 1 < len(parts) <= MOST_PIECES:
                found.append(self._joined(tuple(parts), separator))
        best = max(found, key=lambda one: one.known, default=None)
        return best if best is not None and best.known else Parsed(text, 0)

    def _whole(self, text: str) -> Optional[Parsed]:
        """Return the translation of a text that is one message; None for other text."""
        if " " in text and (found := self._exact.get(text)):
            return Parsed(found, _letters(text))
        if counted := _NUMBER.fullmatch(text):
            number, noun = counted.groups()
            words = self._nouns.get(noun) or (self._nouns.get(noun[:-1]) if noun.endswith("s") else None)
            if words:
                return Parsed(words.replace("{0}", number), _letters(text))
        best: Optional[Parsed] = None
        for word in dict.fromkeys(_WORD.findall(text)):
            for one in self._templates.get(word, ()):
                if (values := one.match(text)) is not None and (made := self._filled(one, values)) is not None:
                    best = made if best is None or made.known > best.known else best
        return best

    def _filled(self, template: Template, values: Sequence[str]) -> Optional[Parsed]:
        """Return the translation of a template with its values; None if the template has few letters and a value is
        text that is not known."""
        made: dict[str, str] = {}
        known = template.letters
        for name, value in zip(template.names, values):
            one = self._value(name, value)
            if template.letters < WEAK and one.known < _letters(value) and (" " in value or value.isalpha()):
                return None
            known += one.known
            made.setdefault(name, one.text)
        return Parsed(_FIELD.sub(lambda field: made.get(field[1], field[0]), template.translation), known)

    def _value(self, name: str, value: str) -> Parsed:
        if value in SIDES and name not in NAMES:
            return Parsed(self._exact.get(value, value), len(value))
        if " " not in value or value.startswith(("/", "'")):
            return Parsed(value, 0)
        return self._parse(value)

    def _joined(self, parts: tuple[str, ...], separator: str) -> Parsed:
        """Return pieces in the language, joined. Several pieces may be one message."""
        made, known, at = "", 0, 0
        while at < len(parts):
            end, one = at + 1, None
            for last in range(len(parts), at + 1, -1):
                if last - at < len(parts) and separator != " (" and (one := self._whole(separator.join(parts[at:last]))):
                    end = last
                    break
            one = one or self._parse(parts[at])
            made += _join(made, one.text, separator) if at else one.text
            known += one.known
            at = end
        return Parsed(made, known)


def _letters(text: str) -> int:
    return sum(map(len, _WORD.findall(text)))


def _bracketed(text: str) -> list[str]:
    """Return a text and the remark in brackets behind it."""
    found = re.fullmatch(r"(.+?) \((.+)\)", text, re.DOTALL)
    return [found[1], found[2]] if found else [text]


def _join(before: str, after: str, separator: str) -> str:
    if separator == " (":
        return f"（{after}）" if _WIDE.search(before[-1:]) else f" ({after})"
    wide = _WIDE.search(before[-1:]) or _WIDE.search(after[:1])
    return (JOINED.get(separator, separator) if wide and _WIDE.search(before) else separator) + after


def _words_of(one: Template) -> list[str]:
    return _WORD.findall(_FIELD.sub(" ", one.message)) or [""]


@cache
def catalogue(name: str = "zh") -> Catalogue:
    """Return the catalogue of a language, read once."""
    with (LOCALE / name / "LC_MESSAGES" / "npucmp.mo").open("rb") as file:
        found = gettext.GNUTranslations(file)
    messages: dict[str, str] = found._catalog  # type: ignore[attr-defined]  # all messages; gettext has no other access
    return Catalogue({key: words for key, words in messages.items() if key and words})


def translate(text: str) -> str:
    """Return a text in Chinese."""
    return catalogue().text(text)
