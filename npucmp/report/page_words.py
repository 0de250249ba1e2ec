"""Find the words of the page in its template and scripts, and replace them by those of another language.

A message of the template is the text between two tags or statements, or a label in an attribute; a message of a script
is a string with at least two words. `{{ … }}` and `${…}` inside a message become {0}, {1} …, as in Python's format.
"""

from __future__ import annotations

import re
from typing import Callable, Iterator, NamedTuple

Translate = Callable[[str], str]
WORDS = re.compile(r"[A-Za-z]{2,}[,;:.]? +[A-Za-z0-9{(]|\} [a-z]{2,}|[A-Za-z]{2,},? \{|^ ?(?:and|of) \{")
ALONE = frozenset(  # single words that a script shows
    "Inputs Outputs copied close equal values".split(" ")
)
_TAG = re.compile(r"({%.*?%}|{#.*?#}|<(?:{%.*?%}|{{.*?}}|[^>])*>)", re.S)
_LABEL = re.compile(r'(?<=\s)((?:aria-label|title|placeholder)=")([^"]*)(")')
_HOLE = re.compile(r"{{.*?}}")
_CODE = re.compile(r"system-ui|use strict|^[#.(]|^node n-")  # fonts, selectors
_NAME = re.compile(  # what stands before the name of a class, an element or an event
    r"(?:class: [^,}]*|\bid: |===? |(?:querySelector(?:All)?|getElementById|matchMedia|\w+Listener|\w+Attribute)\()$"
)
_BEFORE_REGEX = re.compile(r"[(,=:\[!&|?]\s*$")
_REGEX = re.compile(r"/(?![*/ ])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_PLAIN = re.compile(r"[^\"`/]+")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _Hole(NamedTuple):
    """A place in a script's template string, and the index behind its end."""

    text: str
    end: int


def template_words(source: str) -> list[str]:
    """Return the messages of a template of the page."""
    found: list[str] = []
    translate_template(source, lambda words: found.append(words) or words)  # type: ignore[func-returns-value]
    return found


def script_words(source: str) -> list[str]:
    """Return the messages of a script of the page."""
    found: list[str] = []
    translate_script(source, lambda words: found.append(words) or words)  # type: ignore[func-returns-value]
    return found


def translate_template(source: str, translate: Translate) -> str:
    """Return the template with its messages translated, also those in strings of expressions; tags and code are
    kept."""
    parts = _TAG.split(source)
    return "".join(_tag(part, translate) if at % 2 else _text(part, translate) for at, part in enumerate(parts))


def _tag(tag: str, translate: Translate) -> str:
    if tag.startswith("{"):
        return tag
    return _LABEL.sub(lambda found: found[1] + _text(found[2], translate) + found[3], tag)


def _text(text: str, translate: Translate) -> str:
    text = _HOLE.sub(lambda hole: _STRING.sub(lambda found: _quoted(found[0], translate), hole[0]), text)
    bare = text.strip()
    holes = _HOLE.findall(bare)
    if "{%" in bare or not re.search("[A-Za-z]{2}", _HOLE.sub("", bare)):
        return text
    count = iter(range(len(holes)))
    words = translate(_HOLE.sub(lambda _: f"{{{next(count)}}}", bare))
    before, _, after = text.partition(bare)
    return before + re.sub(r"{(\d+)}", lambda found: holes[int(found[1])], words) + after


def translate_script(source: str, translate: Translate) -> str:
    """Return the script with its messages translated; comments, keys and code are kept."""
    return "".join(_script(source, translate))


def _script(source: str, translate: Translate) -> Iterator[str]:
    at = 0
    while at < len(source):
        before = source[max(0, at - 80) : at]
        wanted = str if _NAME.search(before) else translate
        if found := _PLAIN.match(source, at):
            made, at = found[0], found.end()
        elif source.startswith("//", at) and not before.endswith(":"):
            end = source.find("\n", at)
            made, at = source[at : end if end >= 0 else None], end if end >= 0 else len(source)
        elif found := _STRING.match(source, at):
            made, at = _quoted(found[0], wanted), found.end()
        elif source[at] == "`":
            made, at = _template_string(source, at, wanted)
        elif _BEFORE_REGEX.search(before) and (found := _REGEX.match(source, at)):
            made, at = found[0], found.end()
        else:
            made, at = source[at], at + 1
        yield made


def is_message(words: str) -> bool:
    """Return whether a string of a script is shown to the user."""
    return words in ALONE or bool(WORDS.search(words) and not _CODE.search(words))


def _quoted(literal: str, translate: Translate) -> str:
    words = literal[1:-1]
    if not is_message(words) or "\\" in words or "{" in words:
        return literal
    return f'"{translate(words)}"'


def _template_string(source: str, at: int, translate: Translate) -> tuple[str, int]:
    """Return a template string, translated, and the index behind it."""
    holes: list[str] = []
    text = ""
    at += 1
    while source[at] != "`":
        if source.startswith("${", at):
            hole = _hole(source, at + 2)
            text += f"{{{len(holes)}}}"
            holes.append("".join(_script(hole.text, translate)))
            at = hole.end
        else:
            step = 2 if source[at] == "\\" else 1
            text += source[at : at + step]
            at += step
    words = text if "\\" in text or not is_message(text) else translate(text)
    filled = re.sub(r"{(\d+)}", lambda found: "${" + holes[int(found[1])] + "}", words)
    return f"`{filled}`", at + 1


def _hole(source: str, at: int) -> _Hole:
    """Return the expression that begins here, up to its closing brace."""
    begin, depth = at, 0
    while depth or source[at] != "}":
        if source[at] == "`":
            _, at = _template_string(source, at, str)
            continue
        if source[at] == '"' and (found := _STRING.match(source, at)):
            at = found.end()
            continue
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return _Hole(source[begin:at], at + 1)
