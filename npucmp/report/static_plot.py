"""Plots as SVG without scripts and style sheets, for the cells of a notebook on a light or dark ground."""

from __future__ import annotations

from html import escape
from typing import Any, Collection, Iterator, Sequence

from npucmp.report.answer import Plot
from npucmp.report.sanitise import visible
from npucmp.report.svg import plot_data

COLOURS = ("#3d87cc", "#d08a2a", "#dd5147", "#3f9e63")  # of curves in their order
DASHES = ("", "6 4", "", "3 3")
TEXT = "font:11px system-ui,sans-serif;fill:currentColor"
AXIS = "stroke:currentColor;opacity:.2"


def text(words: str) -> str:
    """Return text of a dump for HTML."""
    return escape(visible(words))


def figure(plots: Sequence[Plot], head: str = "") -> str:
    """Return plots as HTML below a head that is HTML."""
    return f'<div style="max-width:920px">{head}{"".join(map(_plot, plots))}</div>'


def _plot(plot: Plot) -> str:
    drawn, dots = plot_data(plot), plot.dots
    key = " &#160; ".join(
        f'<span style="color:{_colour(number)}">{_sign(number, dots)} {text(name)}</span>'
        for name, number, _ in drawn["lines"]
    )
    notes = " · ".join(filter(None, (text(plot.words), drawn["scale"], "✗ not finite" if drawn["lost"] else "")))
    parts = [
        *_axes(drawn),
        *(mark for name, number, lines in drawn["lines"] for mark in _curve(number, lines, number in dots)),
    ]
    parts += [
        f'<text x="{x}" y="12" text-anchor="middle" style="{TEXT};fill:{COLOURS[2]}">✗</text>'
        for x in drawn["lost"][:200]
    ]
    size = f'viewBox="0 0 {drawn["width"]} {drawn["height"]}" style="width:100%;height:auto;display:block"'
    label = f'role="img" aria-label="{text(plot.title)}"'
    title = f'<p style="margin:8px 0 2px"><b>{text(plot.title)}</b> &#160; {key} &#160; <small>{notes}</small></p>'
    return f"{title}<svg {size} {label}>{''.join(parts)}</svg>"


def _sign(number: int, dots: Collection[int]) -> str:
    return "●" if number in dots else "╌╌" if _dash(number) else "──"


def _colour(number: int) -> str:
    return COLOURS[(number - 1) % len(COLOURS)]


def _dash(number: int) -> str:
    return DASHES[(number - 1) % len(DASHES)]


def _axes(drawn: dict[str, Any]) -> Iterator[str]:
    left, width, height = drawn["left"], drawn["width"], drawn["height"]
    for y, words in drawn["down"]:
        yield f'<line x1="{left}" x2="{width}" y1="{y}" y2="{y}" style="{AXIS}"/>'
        yield f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" style="{TEXT}">{words}</text>'
    for at, (x, words) in enumerate(drawn["along"]):
        anchor = "start" if not at else "end" if at == len(drawn["along"]) - 1 else "middle"
        yield f'<text x="{x}" y="{height - 4}" text-anchor="{anchor}" style="{TEXT}">{words}</text>'


def _curve(number: int, lines: Sequence[str], is_dotted: bool) -> Iterator[str]:
    colour = _colour(number)
    if is_dotted:
        places = {tuple(round(float(one)) for one in point.split(",")) for points in lines for point in points.split()}
        size = 2.5 if number == 1 else 4
        yield "".join(f'<circle cx="{x}" cy="{y}" r="{size}" fill="{colour}"/>' for x, y in sorted(places))
        return
    for points in lines:
        style = f"fill:none;stroke:{colour};stroke-width:1.8;stroke-dasharray:{_dash(number) or 'none'}"
        yield f'<polyline points="{points}" style="{style}"/>'
        if points.count(" ") < 100:
            ends = [point.split(",") for point in points.split()]
            yield "".join(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in ends)
