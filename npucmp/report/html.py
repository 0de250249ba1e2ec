"""report.html: one self-contained page, to be opened from a disk and attached to a ticket.

The page is made of page/template.html, which tells the answer without any script, and of the scripts and the style
beside it, which are put into it. What they show is data: JSON in an element that is not executed (island.py). Only
these scripts and this style may run, by their hashes; the page cannot load anything and has no way to make elements
from text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any, Sequence, Union

from npucmp.model import Overflow, Report
from npucmp.report import answer, island

NAME = "html"
PAGE = Path(__file__).with_name("page")
SCRIPTS = ("data.js", "draw.js", "chart.js", "table.js", "operator.js", "page.js")
PLAIN = 300_000  # characters of JSON up to which it stands in the page as it is, where one can search it
LEVEL = 5  # of zlib; 7 takes three times as long to save 3 %
EARLY = {"rows", "place"}  # columns that the first rows need besides those they show
IN_AN_ELEMENT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}  # of JSON, whose strings may hold them


def render(report: "Union[Report, Overflow]", extra: Sequence[str] = ()) -> "dict[str, str]":
    """The one file. `extra` are names of further metrics that the table can show."""
    if isinstance(report, Overflow):
        return {"report.html": page(answer.of_overflow(report), island.of_overflow(report))}
    return {"report.html": page(answer.of_report(report), island.of_report(report, extra))}


def page(words: "dict[str, Any]", data: "dict[str, Any]") -> str:
    """The page with its scripts and its style inside."""
    from jinja2 import Environment, StrictUndefined

    style, *scripts = (_text(name) for name in ("report.css", *SCRIPTS))
    shell = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    first, others = packed(data)
    text: str = shell.from_string(_text("template.html")).render(
        policy=policy(scripts, style), style=style, scripts=scripts, island=first, others=others, **words
    )
    return text


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def policy(scripts: "Sequence[str]", style: str) -> str:
    """A Content-Security-Policy that lets only these run, and nothing be loaded or sent."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(map(_hash, scripts)),
            "style-src " + _hash(style),
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def packed(data: "dict[str, Any]") -> "tuple[str, str]":
    """JSON that cannot end the elements it stands in: (what the first rows need, the other columns).

    What is large is deflated (browsers have DecompressionStream). The second element is the last of the page, so that
    the first rows are shown while it is still being read; what is small stands in the first as a whole.
    """
    first, others = map(_json, _pieces(data))
    if len(first) + len(others) <= PLAIN:
        return _json(data).translate(IN_AN_ELEMENT), ""
    return _json({"deflate": _deflated(first)}), _json(_deflated(others))  # base64 has no such characters


def _pieces(data: "dict[str, Any]") -> "tuple[dict[str, Any], dict[str, Any]]":
    early, first, other = {*EARLY, *data["shown"], *data["facets"]}, dict(data), {}
    for part in ("operators", "rows"):
        columns = data[part]["columns"]
        first[part] = {**data[part], "columns": {name: columns[name] for name in columns if name in early}}
        other[part] = {name: columns[name] for name in columns if name not in early}
    return first, other


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()
