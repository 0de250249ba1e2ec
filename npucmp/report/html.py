"""report.html: one self-contained page, to be opened from a disk and attached to a ticket.

The sections of the page (sections.py) tell the answer without any script. The scripts and the style of the folder page
are put into it. What they show is data: JSON in an element that is not executed (page_data.py). Only these scripts and
this style may run, by their hashes; the page cannot load anything and has no way to make elements from text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import shlex
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from npucmp.model import Look
from npucmp.report import drawings, sections
from npucmp.report.answer import Answer, Detail, Within
from npucmp.report.files import Content, Joined
from npucmp.report.markup import NOTHING, Markup, fill, items, joined
from npucmp.report.page_data import FixedJson, page_data
from npucmp.report.rows import numbers_json
from npucmp.report.words import rate_of
from npucmp.version import __version__

PAGE = Path(__file__).with_name("page")
SCRIPTS = ("data.js", "draw.js", "chart.js", "table.js", "operator.js", "graph.js", "page.js")
PLAIN = 300_000  # characters of JSON up to which it stands in the page as it is, where one can search it
LEVEL = 5  # of zlib; 7 takes three times as long to save 3 %
EARLY = {"rows", "place"}  # columns that the first rows need besides those they show
IN_AN_ELEMENT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}  # of JSON, whose strings may hold them
FIRST = 5  # suspects that stand on top
MOST = 40  # lines of one kind
Words = dict[str, Any]
_SCRIPT = "<script>{}</script>\n"
_NUMBERS = {int, float}
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def render(answer: Answer) -> dict[str, Content]:
    """The page, and those of single steps and ranks."""
    pages = [*answer.pages(page)]  # first: they are made with the rows of the tables, which tell of the next dump
    found: dict[str, Content] = {"report.html": page(answer)}
    return {**found, **{name: one if isinstance(one, bytes) else Joined([one]) for name, one in pages}}


def page(answer: Answer, shard: Optional[Within] = None) -> bytes:
    """A page, which may be one of several."""
    style, *scripts = (_text(name) for name in ("report.css", *SCRIPTS))
    detail = answer.detail() if answer.matrix is None else None  # of several shards each has a page with its own rows
    scripts = scripts if detail else []
    shown = words(answer)
    parts = (
        _head(answer, policy(scripts, style), style, detail is not None),
        sections.header(answer, shown["counts"], shard, detail is not None),
        Markup("<main>\n"),
        _grid(answer),
        fill(
            '<div class="top">\n{}{}</div>\n', sections.first_suspects(answer, shown), sections.compared(answer, shown)
        ),
        joined(map(drawings.plot, answer.plots)),
        sections.fused(answer, shown["chains"]) if shown["chains"] else NOTHING,
        sections.later_suspects(answer, shown["later"], shown["later_more"]) if shown["later"] else NOTHING,
        fill(_text("rows.html"), chart=detail.chart, title=detail.title) if detail else NOTHING,
        sections.made(answer, _made(answer)),
        Markup("</main>\n"),
        _scripted(detail, shown["looks"], scripts) if detail else NOTHING,
        Markup("</body>\n</html>"),
    )
    return "".join(parts).encode("utf-8", "backslashreplace")


def _head(answer: Answer, allowed: str, style: str, has_rows: bool) -> Markup:
    form = """<!doctype html>
<html lang="en"{}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{} · npucmp {}</title>
<link rel="icon" href="data:,">
<style>{}</style>
</head>
<body>
"""
    empty = NOTHING if has_rows else Markup(' data-ready="0"')
    return fill(form, empty, allowed, answer.word, answer.result.command, Markup(style))


def _grid(answer: Answer) -> Markup:
    if not answer.matrix:
        return NOTHING
    from npucmp.report.grid import gridded

    return sections.grid(gridded(answer.matrix))


def _scripted(detail: Detail, looks: Sequence[Look], scripts: Sequence[str]) -> Markup:
    """The looks that no suspect shows, the data and the scripts."""
    form = """<div id="looks" hidden>{}</div>
<aside id="operator" aria-label="One operator" tabindex="-1" hidden></aside>
<div id="hint" role="status" hidden></div>
<script type="application/json" id="data">{}</script>
{}"""
    data, others = packed(page_data(detail))
    made = [fill(form, joined(map(drawings.look, looks)), Markup(data), items(map(Markup, scripts), _SCRIPT))]
    if others:
        made.append(fill('<script type="application/json" id="others">{}</script>', Markup(others)))
    return joined(made)


def words(answer: Answer) -> Words:
    """What the sections show of an Answer that does not stand there as such: the first of many, drawings."""
    first, passed = answer.suspects
    later = [*first[FIRST:], *passed] if answer.rest else []
    sides = dict.fromkeys(answer.sides or (side for section in answer.sections for side in section.sides))
    warnings = [text for section in answer.sections for text in section.warnings]
    notes = [text for listing in answer.notes for text in listing.lines]
    shown = {id(one.look) for one in (*first[:FIRST], *later[: MOST - FIRST])}
    return {
        "looks": [one for one in answer.looks if id(one) not in shown][:MOST],
        "first": first[:FIRST],
        "more": 0 if answer.rest else len(first[FIRST:]) + answer.unlisted,
        "later": later[: MOST - FIRST],
        "later_more": len(later) - (MOST - FIRST),
        "chains": answer.chains[:MOST],
        "sides": [*sides][:MOST],
        "sides_more": len(sides) - MOST,
        "remarks": answer.remarks("."),
        "left_out": _shortened([*answer.left_out, *answer.undecided]),
        "nothing": answer.nothing[:MOST],
        "notes": [*warnings, *notes],
        "counts": _bar(answer.counts),
    }


@cache
def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _shortened(lines: Sequence[str]) -> list[str]:
    return [*lines[:MOST], *([f"and {len(lines) - MOST} more in summary.json"] if len(lines) > MOST else [])]


def _bar(counts: Mapping[str, int]) -> list[Words]:
    """Rows by what they are, as pieces of one bar; none is too thin to see."""
    total = sum(counts.values()) or 1
    widths = [max(0.005, count / total) for count in counts.values()]
    pieces, at = [], 0.0
    for (name, count), width in zip(counts.items(), widths):
        share = 100 * width / sum(widths)
        pieces.append({"name": name, "count": f"{count:,}", "x": round(at, 2), "width": round(share, 2)})
        at += share
    return pieces


def _made(answer: Answer) -> Words:
    import numpy

    argv = answer.result.argv
    return {
        "argv": shlex.join(("npucmp", *argv[1:])) if argv else "",
        "npucmp": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "rate": rate_of(answer.result),
    }


def policy(scripts: Sequence[str], style: str) -> str:
    """A Content-Security-Policy that lets only these run, and nothing be loaded or sent."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src " + (" ".join(map(_hash, scripts)) or "'none'"),
            "style-src " + _hash(style),
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def packed(data: dict[str, Any]) -> tuple[str, str]:
    """JSON that cannot end the elements it stands in: (what the first rows need, the other columns).

    What is large is deflated (browsers have DecompressionStream). The second element is the last of the page, so that
    the first rows are shown while it is still being read; what is small stands in the first as a whole.
    """
    first, others = map(_json, _pieces(data))
    if len(first) + len(others) <= PLAIN:
        return _json(data).translate(IN_AN_ELEMENT), ""
    return _json({"deflate": _deflated(first)}), _json(_deflated(others))  # base64 has no such characters


def _pieces(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    early, first, other = {*EARLY, *data["shown"], *data["facets"]}, dict(data), {}
    for part in ("operators", "rows"):
        columns = data[part]["columns"]
        first[part] = {**data[part], "columns": {name: columns[name] for name in columns if name in early}}
        other[part] = {name: columns[name] for name in columns if name not in early}
    return first, other


def _json(value: Any) -> str:
    """Compact JSON in ASCII; long lists of numbers are written at once."""
    if isinstance(value, FixedJson):
        value.json = value.json or _json({**value})
        return value.json
    if isinstance(value, dict):
        return f"{{{','.join([f'{_dumps(key)}:{_json(below)}' for key, below in value.items()])}}}"
    if isinstance(value, list) and {*map(type, value)} <= _NUMBERS and (text := numbers_json(value)):
        return text
    return _dumps(value)


def _deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()
