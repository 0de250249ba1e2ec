"""Show screens, pages and tickets in Chinese. Loaded only if the language is Chinese (presenter.py).

Lines are translated cell by cell: cells are separated by two or more blanks, and stay in their columns. The words of
verdicts, the prefix of a note and JSON stay English, as tables do.
"""

from __future__ import annotations

import re
from typing import Any, Iterator

from npucmp.report.answer import Answer
from npucmp.report.page_words import translate_script, translate_template
from npucmp.report.terminal import columns_of
from npucmp.report.translation import NAMES, SIDES, catalogue, translate
from npucmp.report.translation import keep_names as keep

TEXTS = frozenset(
    "because evidence remedy what why why_not explanation words linked relation".split(" ")
)  # columns of sentences
WIDEST = 36  # columns of a cell of a table; what follows a longer text has no column
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PAINTED = re.compile(r"(\x1b\[[0-9;]+m)(.*?)(\x1b\[0m)")
_GAP = re.compile(r"( {2,})")
_HEAD = re.compile(r"(?:note|explain|[A-Z][A-Z ]+[A-Z]): ")  # note: …, AGREES: …
_WHERE = re.compile(r" \((?:step|rank) \d+[^()]*\)$")  # of a note: … (step 1)
_SPAN = re.compile(r"(`[^`]+`)")
_CODE = re.compile(r"`[^`]+`")
_LIST = re.compile(r"( *(?:#+|-|\d+\.) (?:note: )?)(.*)")


def screen(text: str) -> str:
    """Return the text of a terminal; JSON is unchanged."""
    if text.startswith(("{", "[")):
        return text
    return "\n".join(map(line, text.split("\n")))


def line(text: str) -> str:
    """Return a line of a screen, its colours and columns kept."""
    if "\x1b" not in text:
        return _cells(text)
    made = _cells(_COLOUR.sub("", text))
    for opens, words, closes in _PAINTED.findall(text):
        shown = next((one for one in (words, _cells(words)) if one in made), "")
        made = made.replace(shown, f"{opens}{shown}{closes}", 1) if shown.strip() else made
    return made


def _cells(text: str) -> str:
    parts = _GAP.split(text)
    made, column = "", 0
    for at, part in enumerate(parts):
        if at % 2:
            column += len(part)
            is_indent = not made
            is_free = is_indent or parts[at - 1].endswith(".") or columns_of(parts[at - 1]) > WIDEST
            made += part if is_free else " " * max(2, column - columns_of(made))
        else:
            column += columns_of(part)
            made += _cell(part, is_first=at == 0 and len(parts) > 1)
    return made


def _cell(text: str, is_first: bool = False) -> str:
    if is_first and text in SIDES:
        return catalogue().word(text)
    head = _HEAD.match(text) if catalogue().word(text) == text else None
    where = _WHERE.search(text) if head else None
    end = where.start() if where else len(text)
    return head[0] + translate(text[head.end() : end]) + text[end:] if head else translate(text)


def keep_names(answer: Answer) -> None:
    """Keep the names and paths that an answer shows."""
    every = (*answer.suspects.first, *answer.suspects.passed)
    texts = (text for one in every for text in (one.op, one.golden, one.slot, one.line))
    facts = (
        fact.value for one in every for reason in one.evidence for name, fact in reason.facts.items() if name in NAMES
    )
    sides = (side.path for section in answer.sections for side in section.sides)
    keep([*answer.result.paths, *texts, *sides, *(fact for fact in facts if isinstance(fact, str))])


def page_template(source: str) -> str:
    """Return the template of the page."""
    source = source.replace('<html lang="en"', '<html lang="zh"', 1)
    return translate_template(source, catalogue().word).replace("}}.</p>", "}}。</p>")


def page_script(source: str) -> str:
    """Return a script of the page."""
    return translate_script(source, catalogue().word)


def page_value(value: Any) -> Any:
    """Return a value that the template shows."""
    return translate(value) if type(value) is str else value


def page_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the page with its sentences translated; names, verdicts and columns are unchanged."""
    for part in ("operators", "rows"):
        columns = data[part]["columns"]
        columns.update({name: _column(column) for name, column in columns.items() if name in TEXTS})
    return data


def _column(column: dict[str, Any]) -> dict[str, Any]:
    return {key: _value(value) if key in ("all", "words", "values") else value for key, value in column.items()}


def _value(value: Any) -> Any:
    return [*map(_value, value)] if isinstance(value, (list, tuple)) else page_value(value)


def ticket(page: str) -> str:
    """Return the page of a ticket; blocks of code are unchanged."""
    return "\n".join(_ticket_lines(page))


def _ticket_lines(page: str) -> Iterator[str]:
    fence = ""
    for text in page.split("\n"):
        mark = text[:3] if text.startswith("```") else ""
        fence = "" if fence and mark else mark or fence
        if fence or mark:
            yield text
        elif text.startswith("|"):
            yield "|".join(f" {_spans(cell.strip())} " if cell.strip(" -") else cell for cell in text.split("|"))
        else:
            found = _LIST.fullmatch(text)
            marker, words = found.groups() if found else ("", text)
            if _CODE.fullmatch(words):
                yield marker + _spans(words)
            else:
                yield catalogue().message(text) or marker + (catalogue().message(words) or _spans(words))


def _spans(text: str) -> str:
    """Return a text in which spans of code and the words between them are translated one by one."""
    parts = _SPAN.split(text)
    return "".join(f"`{translate(part[1:-1])}`" if at % 2 else _word(part) for at, part in enumerate(parts))


def _word(text: str) -> str:
    """Return words of a ticket: one of its titles, with or without a colon, or other text."""
    title = text.strip(": ")
    return text.replace(title, TITLES.get(title) or translate(title), 1) if title else text


TITLES = {  # single words of a ticket
    "Where": "位置", "Figures": "数字", "operator": "算子", "kind": "类型", "phase": "阶段", "step": "step",
    "rank": "rank", "argument": "参数", "target": "目标", "golden": "标杆", "verdict": "verdict", "side": "侧",
    "limit": "限值", "metric": "指标", "why": "原因", "type": "类型", "missing": "缺失", "**differs**": "**不同**",
    "passes": "通过", "**fails**": "**不通过**", "at": "位置", "none": "无", "framework": "框架",
}  # fmt: skip
