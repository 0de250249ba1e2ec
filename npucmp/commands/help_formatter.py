"""The help in Chinese: click formats it with this formatter, and reads its own words from the catalogue."""

from __future__ import annotations

import gettext
import os
import re
import sys
from typing import Iterable, Iterator

import click

from npucmp.report import chinese
from npucmp.report.terminal import columns_of
from npucmp.report.translation import LOCALE, keep_names, translate

TITLES = {
    "Output": "输出", "Judgement": "判定", "Execution": "执行", "Other": "其他", "Arguments": "参数", "Options": "选项",
    "Commands": "命令",
}  # fmt: skip
CLOSING = "，。：；！？、）》」』%"  # characters that do not begin a line
_PIECE = re.compile("[\u3000-\u9fff\uff00-\uffef]|[^\u3000-\u9fff\uff00-\uffef\\s]+|\\s+")


class ChineseFormatter(click.HelpFormatter):
    """A formatter that translates what it writes, and breaks lines between Chinese characters."""

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{TITLES.get(heading) or translate(heading)}：\n")

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
            if paragraph.lstrip(" ").startswith("\b"):
                lines = [chinese.line(line) for line in paragraph.split("\n")[1:]]
            else:
                lines = [*wrapped(translate(" ".join(paragraph.split())), self.width - self.current_indent)]
            self.write("\n".join(indent + line for line in lines) + "\n\n")
        self.buffer[-1] = self.buffer[-1][:-1]

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows = [*rows]
        first = min(max((columns_of(name) for name, _ in rows), default=0), col_max) + col_spacing
        indent = self.current_indent
        for name, words in rows:
            lines = [*wrapped(_option(words), max(20, self.width - first - indent - 2))]
            gap = first - columns_of(name)
            head = " " * indent + name
            if gap < col_spacing:
                self.write(f"{head}\n")
                head, gap = "", first + indent
            for at, line in enumerate(lines or [""]):
                self.write((head + " " * gap if not at else " " * (first + indent)) + line + "\n")


def wrapped(text: str, columns: int) -> Iterator[str]:
    """Yield the lines of a text: broken at blanks and between Chinese characters, but not before punctuation."""
    line = ""
    for piece in _PIECE.findall(text):
        if line and columns_of(line + piece.rstrip()) > columns and piece not in CLOSING:
            yield line.rstrip()
            line = ""
        line += piece if line or piece.strip() else ""
    if line.strip():
        yield line.rstrip()


def _option(words: str) -> str:
    """Return the help of an option, and the remarks of click behind it: [default: 10; required]."""
    text, _, remarks = words.partition("  [")
    return translate(text) + (f"  [{remarks}" if remarks else "")


def use() -> None:
    """Show the help and the errors of click in Chinese in this process: click reads its words by gettext. Arguments of
    the command line are unchanged."""
    keep_names(sys.argv)
    click.Context.formatter_class = ChineseFormatter
    os.environ["LANGUAGE"] = "zh"
    gettext.textdomain("npucmp")
    gettext.bindtextdomain("npucmp", str(LOCALE))
