"""Drawings of a page as SVG: error in and out of an operator, where a tensor differs, histograms, curves over steps."""

from __future__ import annotations

import math
from typing import Any, Optional

from npucmp.model import Look, brief
from npucmp.report.answer import Flow, Plot
from npucmp.report.markup import NOTHING, Markup, fill, fill_each, fill_if, items, joined

LOST = 200  # marks of values that are not finite
DECADES = (10, 50, 83.3)  # ticks of the scale of errors
Words = dict[str, Any]


def flow(one: Flow) -> Markup:
    """Error in and out of an operator, against its limit, on one logarithmic scale of 10^-10 to 10^2."""
    limit, words = _at(one.limit), (_brief(one.input), _brief(one.output), brief(one.limit))
    return joined(
        (
            fill(
                '<svg class="flow" viewBox="0 0 310 46" role="img" '
                'aria-label="rel_l2: inputs {}, output {}, limit {}">\n',
                *words,
            ),
            fill('<rect class="band" x="60" y="3" width="{}" height="34"/>\n', (limit or 0) * 1.8),
            Markup('<line class="axis" x1="60" y1="37" x2="240" y2="37"/>\n'),
            items((60 + one * 1.8 for one in DECADES), '<line class="axis" x1="{0}" y1="37" x2="{0}" y2="40"/>'),
            Markup('<text x="0" y="15">inputs</text><text x="0" y="32">output</text>\n'),
            _placed('<circle class="in" cx="{}" cy="11" r="4"/>', _at(one.input)),
            _placed('<circle class="out" cx="{}" cy="28" r="4.5"/>', _at(one.output)),
            _placed(
                '<line class="limit" x1="{0}" y1="3" x2="{0}" y2="37"/>\n'
                '<text class="tick" x="{0}" y="46" text-anchor="middle">limit {1}</text>',
                limit,
                words[2],
            ),
            fill('<text x="252" y="15">{}</text><text x="252" y="32">{}</text>\n</svg>\n', *words[:2]),
        )
    )


def _placed(form: str, at: Optional[float], *more: object) -> Markup:
    """A form at a place of the scale of errors; nothing without a place."""
    return NOTHING if at is None else fill(form, 60 + at * 1.8, *more)


def _brief(error: Optional[float]) -> str:
    return "not known" if error is None else "equal" if error == 0 else brief(error)


def _at(error: Optional[float]) -> Optional[float]:
    """The place of an error on the scale, from 0 to 100."""
    if error is None or math.isnan(error):
        return None
    return 0.0 if error <= 0 else round(max(0.0, min(100.0, (math.log10(min(error, 1e300)) + 10) / 12 * 100)), 1)


def difference_map(one: Words, words: str) -> Markup:
    """The drawing of difference_map.drawn."""
    paths = [(number, path) for number, path in enumerate(one["paths"], 1) if path]
    bits = one["bits"]
    return joined(
        (
            fill(
                '<div class="difference-map">\n<figure><figcaption>where in {} <span class="muted">· {} · {}</span>'
                "</figcaption>\n",
                one["size"],
                words,
                one["cell"],
            ),
            fill(
                '<svg viewBox="0 0 {across} {down}" height="{height}" preserveAspectRatio="none" role="img" '
                'aria-label="{label}"><title>{label}</title>\n',
                **one,
            ),
            fill_each('<path class="share-{}" d="{}"/>', paths),
            Markup("</svg></figure>\n"),
            _bits(bits) if bits else NOTHING,
            Markup("</div>\n"),
        )
    )


def _bits(one: Words) -> Markup:
    return joined(
        (
            fill(
                "<figure><figcaption>in which bits of {dtype}</figcaption>\n"
                '<svg class="bits" viewBox="0 0 320 68" role="img" aria-label="{label}"><title>{label}</title>\n',
                **one,
            ),
            joined(
                fill(
                    '<rect class="part" x="{}" y="52" width="{}" height="2"/>{}',
                    part["x"] + 1,
                    part["width"] - 2,
                    _part_name(part),
                )
                for part in one["parts"]
            ),
            fill_each(
                '<rect class="bit" x="{}" y="{}" width="{}" height="{}"/>',
                ((bar["x"], 50 - bar["height"], one["wide"], bar["height"]) for bar in one["bars"]),
            ),
            Markup("</svg></figure>"),
        )
    )


def _part_name(part: Words) -> Markup:
    """The name of a part of a float, where there is room for it."""
    middle = part["x"] + part["width"] / 2
    return fill_if(part["width"] > 50, '<text x="{}" y="65" text-anchor="middle">{}</text>', middle, part["name"])


def _histogram(one: Words, title: str) -> Markup:
    return joined(
        (
            fill('<figure><figcaption>{} <span class="muted">· {}</span></figcaption>\n', title, one["label"]),
            fill(
                '<svg class="histogram" viewBox="0 0 320 66" role="img" aria-label="{0}: {1}"><title>{1}</title>\n',
                title,
                one["label"],
            ),
            fill_each(
                '<rect class="count" x="{}" y="{}" width="{}" height="{}"/>',
                ((bar["x"], 50 - bar["height"], one["wide"], bar["height"]) for bar in one["bars"]),
            ),
            fill_if(one["outline"], '<path class="outline" d="{}"/>', one["outline"]),
            fill(
                '<line class="axis" x1="0" y1="50" x2="320" y2="50"/><text x="0" y="63">{}</text>'
                '<text x="320" y="63" text-anchor="end">{}</text></svg></figure>\n',
                one["low"],
                one["high"],
            ),
        )
    )


def look(seen: Look) -> Markup:
    """The second look at a tensor that diverged: where it differs, its values, its worst elements."""
    from npucmp.report.looks import drawn

    one = drawn(seen)
    return joined(
        (
            fill('<div class="look" data-look="{}">\n', one["key"]),
            difference_map(one["picture"], one["words"]),
            Markup('\n<div class="difference-map">\n'),
            _histogram(one["spread"], "values") if one["spread"] else NOTHING,
            _histogram(one["errors"], "target − golden") if one["errors"] else NOTHING,
            Markup("</div>\n"),
            fill_if(
                one["worst"],
                '<table class="worst"><thead><tr><th>worst elements</th><th>target</th><th>golden</th>'
                "<th>|target − golden|</th></tr></thead>\n<tbody>{}</tbody></table>",
                fill_each("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", one["worst"]),
            ),
            Markup("</div>\n"),
        )
    )


def plot(curves: Plot) -> Markup:
    """Curves over steps."""
    from npucmp.report.plot import plotted

    one = plotted(curves)
    y_ticks = ((one["left"], y, one["width"], one["left"] - 6, y + 4, words) for y, words in one["down"])
    last = len(one["along"]) - 1
    x_ticks = [
        (x, one["height"] - 4, "start" if not at else "end" if at == last else "middle", words)
        for at, (x, words) in enumerate(one["along"])
    ]
    lines = ((number, points) for _, number, some in one["lines"] for points in some)
    return joined(
        (
            fill('<section class="plot" aria-label="{0}">\n<h2>{0}</h2>\n', curves.title),
            fill('<p class="muted key">{}{}</p>\n', _legend(one), _remarks(one, curves.words)),
            fill('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">\n', one["width"], one["height"], curves.title),
            fill_each(
                '<rect class="parts" x="{}" y="0" width="{}" height="{}"/>',
                ((x, width, one["floor"]) for x, width in one["bands"]),
            ),
            fill_each(
                '<line class="axis" x1="{0}" y1="{1}" x2="{2}" y2="{1}"/>'
                '<text x="{3}" y="{4}" text-anchor="end">{5}</text>',
                y_ticks,
            ),
            fill_each('<text x="{}" y="{}" text-anchor="{}">{}</text>', x_ticks),
            fill_each('<polyline class="line-{}" points="{}"/>', lines),
            items(one["lost"][:LOST], '<text class="lost" x="{}" y="12" text-anchor="middle">✗</text>'),
            Markup("</svg>\n</section>\n"),
        )
    )


def _legend(one: Words) -> Markup:
    names = [fill('<span class="line-{}">—</span> {}', number, name) for name, number, _ in one["lines"]]
    return Markup(" · ".join(names))


def _remarks(one: Words, words: str) -> Markup:
    return joined(
        (
            fill(" · shaded: {}", words) if one["bands"] else fill_if(words, " · {}", words),
            fill_if(one["lost"], " · ✗ not finite"),
            fill_if(one["scale"], " · {}", one["scale"]),
        )
    )
