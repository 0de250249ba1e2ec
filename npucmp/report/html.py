"""Make report.html: one self-contained page that can be opened from a disk and attached to a ticket.

The page consists of page/template.html, which shows the answer without any script, and of the scripts and the style
beside it, which are embedded. The scripts show data: JSON in an element that is not executed (page_json.py). Only these
scripts and this style may run, by their hashes; the page cannot load anything and has no way to make elements from
text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import shlex
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import numpy

from npucmp.model import ImageBatch, brief
from npucmp.presenter import is_chinese
from npucmp.report.answer import Answer, Detail, Flow, PageContext, ReportTable
from npucmp.report.csv_text import numbers_json
from npucmp.report.files import ConcatFile, Content
from npucmp.report.page_json import FixedJson, page_data
from npucmp.report.phrases import count_of, rate_of
from npucmp.report.rank_picture import matrix_data
from npucmp.report.sanitise import visible
from npucmp.report.svg import cell_map_data, plot_data, svg_data
from npucmp.report.worst_elements import template_data as looked
from npucmp.version import __version__

PAGE = Path(__file__).with_name("page")
SCRIPTS = (
    *("data.js", "words.js", "draw.js", "chart.js", "table.js", "operator.js", "graph.js", "modules.js", "nested.js"),
    *("whole.js", "ranks.js", "heat.js", "curves.js", "page.js"),
)
PLAIN = 300_000  # characters of JSON up to which it is not compressed, so that the page can be searched
LEVEL = 5  # of zlib; level 7 takes three times as long to save 3 %
EARLY = {"rows", "place"}  # columns that the first rows need besides the visible ones
IN_AN_ELEMENT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}  # escapes for JSON strings
FIRST = 5  # suspects at the top
MOST = 40  # lines of one kind
ROWS = 200  # of a table that the template shows: chosen: more are read in the file
Words = dict[str, Any]
_NUMBERS = {int, float}
_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def render(answer: Answer) -> dict[str, Content]:
    """Return the main page, and the pages of single steps and ranks."""
    pages = [*answer.pages(page)]  # first: they also make the rows of the tables, which the next dump needs
    found: dict[str, Content] = {"report.html": page(answer)}
    return {**found, **{name: one if isinstance(one, bytes) else ConcatFile([one]) for name, one in pages}}


def page(answer: Answer, page_context: Optional[PageContext] = None, only: str = "") -> bytes:
    """Return a page, which may be one of several. With `only`, it shows a single section, by its id."""
    style, *scripts = (_text(name) for name in ("report.css", *SCRIPTS))
    if is_chinese():
        from npucmp.report import chinese

        chinese.keep_names(answer)
        scripts = [*map(chinese.page_script, scripts)]
    detail = answer.detail() if answer.matrix is None else None  # else each page has its own rows
    series = answer.series()
    data, others = json_for_script(_data(detail)) if detail else ("", "")
    scripts = scripts if detail or series else []
    assets = {"policy": policy(scripts, style), "style": style, "scripts": scripts, "data": data, "others": others}
    assets["only"] = only
    assets["series"] = _series_json(series) if series else ""
    shell = _template(is_chinese())
    made: str = shell.render(answer=answer, detail=detail, page_context=page_context, **words(answer), **assets)
    return made.encode("utf-8", "backslashreplace")


def _data(detail: Detail) -> Words:
    data = page_data(detail)
    if is_chinese():
        from npucmp.report import chinese

        return chinese.page_data(data)
    return data


def load_template() -> None:
    """Load the template of a page, which workers that are forked later share."""
    _template(is_chinese())


@cache
def _template(in_chinese: bool) -> Any:
    from jinja2 import Environment, StrictUndefined

    from npucmp.report.page_bytecode import compiled

    source, finalize = _text("template.html"), _harmless
    if in_chinese:
        from npucmp.report import chinese

        source = chinese.page_template(source)

        def finalize(value: Any) -> Any:
            return chinese.page_value(_harmless(value))

    shell = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize
    )
    shell.filters.update(
        count_of=count_of,
        svg_data=svg_data,
        cell_map_data=cell_map_data,
        flow=flow,
        looked=looked,
        plot_data=plot_data,
        visible=visible,
    )
    code = compiled(shell, source, PAGE / ("template_zh.html" if in_chinese else "template.html"))
    return shell.template_class.from_code(shell, code, shell.make_globals(None))


def _harmless(value: Any) -> Any:
    """Escape text for the page: invisible characters in names from dumps are made visible."""
    return visible(value) if type(value) is str else value


def words(answer: Answer) -> Words:
    """Return the values that the template needs besides the fields of the Answer: the first entries of long lists, and
    drawings."""
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
        "left_out": _shorten_lines([*answer.left_out, *answer.undecided]),
        "nothing": answer.nothing[:MOST],
        "notes": [*warnings, *notes],
        "counts": _bar(answer.counts),
        "made": _words_of(answer),
        "images": image_words(answer.result.images) if answer.result.images is not None else None,
        "tables": [table_data(one) for one in answer.tables if one.title],
        "grid_of": matrix_data(answer.matrix) if answer.matrix else None,
    }


@cache
def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _shorten_lines(lines: Sequence[str]) -> list[str]:
    return [*lines[:MOST], *([f"and {len(lines) - MOST} more in summary.json"] if len(lines) > MOST else [])]


def table_data(table: ReportTable) -> Words:
    """Return the columns of a table that a page shows, without those that have no value, and its first rows."""
    columns = table.columns()
    names = [name for name in table.shown if any(cell is not None for cell in columns[name])]
    rows = [*zip(*(columns[name] for name in names))]
    cells = [[("", False) if cell is None else _cell(cell) for cell in row] for row in rows[:ROWS]]
    return {"table": table, "names": names, "rows": cells, "more": len(rows) - ROWS}


def _cell(cell: Any) -> tuple[str, bool]:
    """Return a cell as text, and whether it is a number."""
    is_number = isinstance(cell, (int, float))
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell), is_number


def image_words(one: ImageBatch) -> Words:
    """Return the pictures of a batch as data: addresses, sample by sample."""
    from npucmp.report.png import data_uri

    samples = [
        [(name, *size, data_uri(*size, picture)) for name, size, picture in zip(one.names, one.sizes, pictures)]
        for pictures in zip(*one.pixels)
    ]
    return {
        "op": one.op,
        "slot": one.slot,
        "samples": samples,
        "range": f"black is {one.low:.4g}, white {one.high:.4g}",
        "difference": "" if one.largest is None else f"largest difference {one.largest:.3g} in these samples",
    }


def flow(one: Flow) -> Words:
    """Return the errors of inputs and outputs and the limit on one logarithmic scale, 10^-10 to 10^2 as 0 to 100."""
    return {
        "input": _at(one.input),
        "output": _at(one.output),
        "limit": _at(one.limit),
        "input_words": _brief(one.input),
        "output_words": _brief(one.output),
        "limit_words": brief(one.limit),
    }


def _brief(error: Optional[float]) -> str:
    return "not known" if error is None else "equal" if error == 0 else brief(error)


def _at(error: Optional[float]) -> Optional[float]:
    if error is None or math.isnan(error):
        return None
    return 0.0 if error <= 0 else round(max(0.0, min(100.0, (math.log10(min(error, 1e300)) + 10) / 12 * 100)), 1)


def _bar(counts: Mapping[str, int]) -> list[Words]:
    """Return the counts of rows as pieces of one bar, each wide enough to be visible."""
    total = sum(counts.values()) or 1
    widths = [max(0.005, count / total) for count in counts.values()]
    pieces, at = [], 0.0
    for (name, count), width in zip(counts.items(), widths):
        share = 100 * width / sum(widths)
        pieces.append({"name": name, "count": f"{count:,}", "x": round(at, 2), "width": round(share, 2)})
        at += share
    return pieces


def _words_of(answer: Answer) -> Words:
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
    """Return a Content-Security-Policy that runs only these scripts and this style, and loads or sends nothing."""
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


@cache
def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def json_for_script(data: dict[str, Any]) -> tuple[str, str]:
    """Return JSON that cannot end the elements around it: (data of the first rows, the other columns).

    Large data is deflated (browsers have DecompressionStream). The second element is the last of the page, so that the
    first rows are shown while the browser still reads it. Small data is in the first element as a whole.
    """
    first, others = map(_json, _pieces(data))
    if len(first) + len(others) <= PLAIN:
        return _json(data).translate(IN_AN_ELEMENT), ""
    return _json({"deflate": _deflate(first)}), _json(_deflate(others))  # base64 needs no escapes


def _series_json(series: dict[str, Any]) -> str:
    """Return the data over the steps as JSON, deflated if it is large."""
    text = _json(series)
    return _json({"deflate": _deflate(text)}) if len(text) > PLAIN else text.translate(IN_AN_ELEMENT)


def _pieces(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    early, first, other = {*EARLY, *data["shown"], *data["facets"]}, dict(data), {}
    for part in ("operators", "rows"):
        columns = data[part]["columns"]
        first[part] = {**data[part], "columns": {name: columns[name] for name in columns if name in early}}
        other[part] = {name: columns[name] for name in columns if name not in early}
    return first, other


def _json(value: Any) -> str:
    """Return compact JSON in ASCII; long lists of numbers are written at once."""
    if isinstance(value, FixedJson):
        value.json = value.json or _json({**value})
        return value.json
    if isinstance(value, dict):
        return f"{{{','.join([f'{_dumps(key)}:{_json(below)}' for key, below in value.items()])}}}"
    if isinstance(value, list) and {*map(type, value)} <= _NUMBERS and (text := numbers_json(value)):
        return text
    return _dumps(value)


def _deflate(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()
