"""Translate finished text by the catalogue of a language: locale/zh/LC_MESSAGES/npucmp.mo.

Messages of the code are plain strings, and a screen is made of them. A text is translated as the message that it is,
else by the template that it fills ({0} tensors agree), else piece by piece. Values of a template are translated only if
they are messages themselves, so that names and paths of a dump are kept.
"""

from __future__ import annotations

import gettext
import re
from collections import Counter, defaultdict
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

LOCALE = Path(__file__).parents[1] / "locale"
COUNT = "count\x04"  # the context of nouns that a number precedes
SIDES = frozenset({"target", "golden"})  # single words that are messages, as the name of a side
NAMES = frozenset("op name slot path file operator parameter writer dump folder command dtype".split(" "))
SEPARATORS = ("; ", " · ", ". ", ": ", ", ", " or ")
JOINED = {"; ": "；", ". ": "。", ": ": "：", ", ": "，", " or ": "，或"}
MOST_WORDS = 12  # words of a message at the beginning of a text
MOST_NAMES = 4096  # names with blanks that are kept
MOST_PIECES = 16  # pieces of a line that are joined again in search of a message
LONGEST = 4000  # characters of a text that is translated
VALUE = "value\x04"  # the context of single words that are values
VERBS = frozenset(
    "differ differs was were is are has have does do need needs not left right packed lack lacks".split(" ")
)
UNCHANGED = frozenset(  # names of engines, commands and frameworks
    "numpy torch compare check overflow precheck replay parity plan extract ticket diff merge show weights rank step "
    "tensor dump token".split(" ")
)
JOINT = 0.04  # letters that a reading loses for a joint of two pieces
HELD = {
    "; ": 3.0,
    " · ": 3.0,
    ". ": 1.0,
    ": ": 0.1,
    ", ": 0.1,
    " or ": 0.3,
}  # letters that it loses for a separator in a value
LONGEST_TEMPLATE = 400  # characters of a text that is read as a template of fewer letters than STRONG
STRONG = 20
FEWEST = 2  # letters that a template must have besides its values
WEAKEST = 4  # letters below which the values of a template must be whole messages, or words without blanks
WEAK = 7  # letters below which the values of a template must be known text, or words without blanks
_FIELD = re.compile(r"{(\w*)[^{}]*}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_WIDE = re.compile("[\u3000-\u9fff\uff00-\uffef]")
_COUNTED = re.compile(r"{\w*} [a-z]+s")  # templates whose value is a number
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|`[^`]*`|[A-Za-z_][\w-]*(?:\.[\w-]+)+")  # what a translation must keep
_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")
_REMARK = re.compile(r"(.+?) \((.+)\)(?:(; |: |, | · )(.+))?", re.DOTALL)
_NUMBER = re.compile(r"(\d[\d,.]*) (.+)")


class MessageTemplate(NamedTuple):
    """A message with values: its pattern, the names of its values, its translation and the number of its letters."""

    message: str
    names: tuple[str, ...]
    translation: str
    letters: int

    def matches(self, text: str) -> Iterator[Sequence[str]]:
        """Yield the values with which the message makes a text: the first values long, then the first values short."""
        found = [one.fullmatch(text) for one in _compiled(self.message)]
        yield from dict.fromkeys(one.groups() for one in found if one is not None)

    def filled(self, values: Sequence[str]) -> str:
        """Return the message with its values."""
        rest = iter(values)
        return _FIELD.sub(lambda field: next(rest), self.message)


class Parsed(NamedTuple):
    """A text in the language, and the number of its former letters that were part of a message."""

    text: str
    known: float


@lru_cache(maxsize=8192)
def _compiled(message: str) -> tuple[re.Pattern[str], ...]:
    first, *others = map(re.escape, _FIELD.split(message)[::2])
    long, short = "(.*)", "(.*?)"
    ways = [(long, long), (long, short), (short, short)] if len(others) > 1 else [(short, short)]
    joined = ((before + others[0], [after + literal for literal in others[1:]]) for before, after in ways)
    return tuple(re.compile(first + head + "".join(rest), re.DOTALL) for head, rest in joined)


class Catalogue:
    """The messages of a language, found by the text that they make."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        whole = {key.lstrip(" ,;:·"): words.lstrip(" ，；：·") for key, words in messages.items() if key[:1] in " ,;:"}
        messages = {**whole, **messages}
        self._exact = {key: words for key, words in messages.items() if "\x04" not in key and not _FIELD.search(key)}
        self._nouns = {key[len(COUNT) :]: words for key, words in messages.items() if key.startswith(COUNT)}
        self._messages = messages
        self._parse = lru_cache(maxsize=8192)(self._parsed)
        self._whole = lru_cache(maxsize=32768)(self._message)

    def text(self, text: str) -> str:
        """Return a text in the language; words that are part of no message are unchanged."""
        return self._parse(text).text if len(text) <= LONGEST and _WORD.search(text) else text

    def word(self, message: str) -> str:
        """Return the translation of a message as it stands in the catalogue, placeholders included."""
        return self._messages.get(message) or message

    @cached_property
    def _templates(self) -> Mapping[str, Sequence[MessageTemplate]]:
        """Return the templates by their rarest word."""
        every = [one for key, words in self._messages.items() for one in _templates_of(key, words)]
        few = [one for one in reversed(every) if one.letters < WEAKEST]  # of each form the first without a name is kept
        few.sort(key=lambda one: NAMES.isdisjoint(one.names))
        weak = {_FIELD.sub("{}", one.message): one for one in few}
        found = [*(one for one in every if one.letters >= WEAKEST), *weak.values()]
        counts = Counter(word for one in found for word in {*_words_of(one)})
        index: dict[str, list[MessageTemplate]] = defaultdict(list)
        for one in found:
            index[min(_words_of(one), key=lambda word: counts[word])].append(one)
        return index

    def _parsed(self, text: str) -> Parsed:
        """Return the reading of a text in which most letters are known."""
        bare = text.strip()
        if bare != text:
            before, _, after = text.partition(bare)
            made = self._parse(bare) if bare else Parsed("", 0)
            return Parsed(before + made.text + after, made.known)
        whole = self._whole(text)
        if whole is not None and whole.known == _letters(text):
            return whole
        readings = [*self._with_title(text), *([whole] if whole is not None else []), *self._in_pieces(text)]
        best = max(readings, key=lambda one: one.known, default=None)
        return best if best is not None and best.known else Parsed(text, 0)

    def _with_title(self, text: str) -> Iterator[Parsed]:
        """Yield the readings of a sentence with its full stop, and of a text behind a title or a sign."""
        if text.endswith(".") and len(text) > 1:
            made = self._parse(text[:-1])
            yield Parsed(made.text.rstrip("。") + "。", made.known) if made.known else made
        head, colon, rest = text.partition(": ")
        if colon and " " in head and (title := self._exact.get(head)):
            made = self._parse(rest)
            yield Parsed(f"{title}：{made.text}", _letters(head) + made.known)
        if text[:1].isupper() and text[1:2].islower():
            whole = self._whole(text[:1].lower() + text[1:])
            if whole is not None and not whole.text.startswith(text[:1].lower()):  # a name keeps its letters
                yield whole
        if text[1:2] == " " and text[0] not in "aAI":
            made = self._parse(text[2:])
            yield Parsed(text[:2] + made.text, made.known - JOINT)

    def _in_pieces(self, text: str) -> Iterator[Parsed]:
        """Yield the readings of a text as several messages."""
        yield from self._with_ends(text)
        yield from self._with_brackets(text)
        for separator in SEPARATORS:
            parts = text.split(separator)
            if len(parts) > 1:
                yield self._joined(parts, separator)

    def _with_ends(self, text: str) -> Iterator[Parsed]:
        """Yield the readings of a text that begins or ends with a message of several words."""
        blanks = [found.start() for found in re.finditer(" ", text)][1:MOST_WORDS]
        for at in reversed(blanks):
            if words := self._exact.get(text[:at]):
                rest = self._parse(text[at + 1 :])
                yield Parsed(_assembled("{0} {1}", {"0": words, "1": rest.text}), _letters(text[:at]) + rest.known)
                break
        for at in (found.start() for found in re.finditer(" ", text)):
            if " " in text[at + 1 :] and (words := self._exact.get(text[at + 1 :])):
                rest = self._parse(text[:at])
                yield Parsed(_assembled("{0} {1}", {"0": rest.text, "1": words}), _letters(text[at:]) + rest.known)
                break

    def _with_brackets(self, text: str) -> Iterator[Parsed]:
        """Yield the reading of a text with a remark in brackets, at its end or before a separator."""
        if found := _REMARK.fullmatch(text):
            head, remark, rest = (self._parse(part) if part else Parsed("", 0) for part in found.group(1, 2, 4))
            words = f"（{remark.text}）" if _WIDE.search(head.text[-1:]) else f" ({remark.text})"
            made = head.text + words
            made += _join(made, rest.text, found[3]) if found[3] else ""
            yield Parsed(made, head.known + remark.known + rest.known - JOINT)

    def message(self, text: str) -> Optional[str]:
        """Return the translation of a text that is one message; None for other text."""
        found = self._whole(text)
        return None if found is None else found.text

    def _message(self, text: str, barred: str = "") -> Optional[Parsed]:
        """Return the translation of a text that is one message whose values do not hold a barred separator; None for
        other text."""
        if " " in text and (found := self._exact.get(text)):
            return Parsed(found, _letters(text))
        if counted := _NUMBER.fullmatch(text):
            number, noun = counted.groups()
            words = self._nouns.get(noun) or (self._nouns.get(noun[:-1]) if noun.endswith("s") else None)
            if words:
                return Parsed(words.replace("{0}", number), _letters(text))
        best, most = None, (0.0, 0)
        fewest = STRONG if len(text) > LONGEST_TEMPLATE else 0
        for word in dict.fromkeys(_WORD.findall(text)):
            for one in (one for one in self._templates.get(word, ()) if one.letters >= fewest):
                for values in one.matches(text):
                    if barred and any(barred in value for value in values):
                        continue
                    made = self._filled(one, values)
                    if made is not None and (made.known, one.letters) > most:
                        best, most = made, (made.known, one.letters)
        return best

    def _filled(self, template: MessageTemplate, values: Sequence[str]) -> Optional[Parsed]:
        """Return the translation of a template with its values; None if the template has few letters and a value is
        text that is not known. A value with separators may hold other messages, so it counts a little less."""
        shown = _FIELD.findall(template.translation)
        if any(value and not value.isalpha() for name, value in zip(template.names, values) if name not in shown):
            return None  # the plural of English alone is dropped
        made: dict[str, str] = {}
        known = float(template.letters)
        if _COUNTED.fullmatch(template.message) and not values[0][:1].isdigit():
            return None
        if template.letters < STRONG and any(self._is_torn(value) for value in values):
            return None
        for name, value in zip(template.names, values):
            one = self._value(name, value)
            if template.letters < WEAK and not self._is_clear(value, one, template.letters < WEAKEST):
                return None
            whole = self._whole(value)
            is_message = whole is not None and whole.known >= one.known
            held = sum(loss * value.lstrip(" ,;:").count(separator) for separator, loss in HELD.items())
            known += one.known - (0 if is_message else held)
            made.setdefault(name, one.text)
        text = _assembled(template.translation, made)
        return Parsed(text, known) if _tokens(text) == _tokens(template.filled(values)) else None

    def _is_torn(self, value: str) -> bool:
        """Return whether a value is the end of one statement and the beginning of another."""
        return (": " in value or "; " in value) and self._whole(value) is None

    def _is_clear(self, value: str, parsed: Parsed, strictly: bool) -> bool:
        """Return whether a value may stand in a template of few letters: a name or number, or text that is known."""
        if " " not in value:
            return not value.isalpha() or parsed.known > 0
        if strictly:
            whole = self._whole(value)
            return whole is not None and whole.known >= _letters(value)
        return 2 * parsed.known >= _letters(value)

    def _value(self, name: str, value: str) -> Parsed:
        if value in SIDES and name not in NAMES:
            return Parsed(self._exact.get(value, value), len(value))
        is_verb = value in VERBS
        if name not in NAMES and (is_verb or not name.isdigit()) and (word := self._messages.get(VALUE + value)):
            return Parsed(word, len(value))
        if value in UNCHANGED:
            return Parsed(value, len(value))
        if " " not in value or value.startswith(("/", "'")):
            return Parsed(value, 0)
        return self._parse(value)

    def _joined(self, parts: Sequence[str], separator: str) -> Parsed:
        """Return pieces in the language, joined. Several pieces may be one message."""
        made, known, at = "", 0.0, 0
        while at < len(parts):
            end, one = at + 1, None
            most = len(parts) if len(parts) <= MOST_PIECES else at + 1
            for last in range(most, at + 1, -1):
                if last - at < len(parts) and (one := self._whole(separator.join(parts[at:last]), separator)):
                    end = last
                    break
            one = one or self._parse(parts[at])
            made += _join(made, one.text, separator) if at else one.text
            known += one.known - (JOINT if at else 0)
            at = end
        return Parsed(made, known)


def _assembled(translation: str, values: Mapping[str, str]) -> str:
    """Return a translation with its values: a blank stands between a letter and a Chinese character, and none between
    two Chinese characters. The values themselves are unchanged."""
    parts = _FIELD.split(translation)
    made = parts[0]
    for name, literal in zip(parts[1::2], parts[2::2]):
        value = values.get(name, "{" + name + "}")
        for piece in ("" if value.isspace() else value, literal):
            if _WIDE.match(made.rstrip(" ")[-1:]) and _WIDE.match(piece.lstrip(" ")[:1]):
                made, piece = made.rstrip(" "), piece.lstrip(" ")
            ends, begins = made[-1:], piece[:1]
            is_tight = ends.isascii() and ends.isalnum() and _IDEOGRAPH.match(begins)
            is_tight = is_tight or (_IDEOGRAPH.match(ends) and begins.isascii() and begins.isalnum())
            made += f" {piece}" if is_tight else piece
    return made


def _tokens(text: str) -> Counter[str]:
    """Return the numbers, the names with dots and the code of a text."""
    return Counter(_TOKEN.findall(text))


def _letters(text: str) -> int:
    return sum(map(len, _WORD.findall(text)))


def _templates_of(message: str, words: str) -> Iterator[MessageTemplate]:
    """Yield the templates of a message. A message that begins or ends with a separator is added to other text."""
    opens, closes = message[:1] in " ,;:", message[-1:] == " "
    if "\x04" in message or not (_FIELD.search(message) or opens or closes):
        return
    whole = ("{before}" if opens else "") + message + ("{after}" if closes else "")
    made = ("{before}" if opens else "") + words + ("{after}" if closes else "")
    letters = sum(map(len, _WORD.findall(_FIELD.sub(" ", whole))))
    if letters >= FEWEST:
        yield MessageTemplate(whole, tuple(_FIELD.findall(whole)), made, letters)
    if opens and letters >= WEAK and _FIELD.search(message):
        whole, made = message.lstrip(" ,;:·("), words.lstrip(" ，；：·（")
        yield MessageTemplate(whole, tuple(_FIELD.findall(whole)), made, letters)


def _join(before: str, after: str, separator: str) -> str:
    wide = _WIDE.search(before[-1:]) or _WIDE.search(after[:1])
    return (JOINED.get(separator, separator) if wide and _WIDE.search(before) else separator) + after


def _words_of(one: MessageTemplate) -> list[str]:
    return _WORD.findall(_FIELD.sub(" ", one.message)) or [""]


@cache
def catalogue(name: str = "zh") -> Catalogue:
    """Return the catalogue of a language, read once."""
    with (LOCALE / name / "LC_MESSAGES" / "npucmp.mo").open("rb") as file:
        found = gettext.GNUTranslations(file)
    messages: dict[str, str] = found._catalog  # type: ignore[attr-defined]  # all messages; gettext has no other access
    return Catalogue({key: words for key, words in messages.items() if key and words})


_kept: dict[str, str] = {}  # names with blanks → signs that stand in their place while a text is translated


def keep_names(names: Iterable[str]) -> None:
    """Keep these names of a dump unchanged in all texts that are translated from now on. Only names with blanks can
    look like messages."""
    for name in names:
        if " " in name and len(_kept) < MOST_NAMES:
            _kept.setdefault(name, f"\ue000{chr(0xE100 + len(_kept))}\ue001")


def translate(text: str) -> str:
    """Return a text in Chinese."""
    found = sorted((name for name in _kept if name in text), key=len, reverse=True)
    for name in found:
        text = text.replace(name, _kept[name])
    made = catalogue().text(text)
    for name in found:
        made = made.replace(_kept[name], name)
    return made
