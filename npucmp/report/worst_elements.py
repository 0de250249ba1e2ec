"""Report the worst elements of tensors that diverged: the rows of worst.csv, and the words and strokes of a drawing."""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional, Sequence

from npucmp.model import Histogram, TensorDetail, position
from npucmp.report.answer import ReportTable, Row, Section, Suspect, Suspects
from npucmp.report.tables import table

COLUMNS = tuple("place step rank order op slot cause number at target golden abs_err rel_err".split(" "))
WIDTH, HIGHEST = 320, 46  # pixels: width of a histogram, and height of its highest bar


def worst_rows(looks: Sequence[TensorDetail]) -> ReportTable:
    """Return up to ten rows for each tensor, suspects first."""
    return table("worst.csv", COLUMNS, lambda: _rows(looks))


def _rows(looks: Sequence[TensorDetail]) -> Iterator[Row]:
    for look in looks:
        pair, shape = look.pair, look.pair.golden.shape if look.pair.golden else ()
        known = {
            "place": look.place or None,
            "cause": look.cause or None,
            "step": look.step,
            "rank": look.rank,
            "order": pair.order,
            "op": pair.operator.name,
            "slot": pair.slot,
        }
        for number, one in enumerate(look.worst, 1):
            yield {**known, **one._asdict(), "number": number, "at": position(one.at, shape)}


def with_worst_elements(sections: Sequence[Section], looks: Sequence[TensorDetail]) -> list[Section]:
    """Return the sections with the worst elements of the tensor that shows each suspect."""
    found = {look.place: look for look in reversed(looks) if look.place}  # the first look of a place is of that tensor

    def add_details(suspects: Sequence[Suspect]) -> list[Suspect]:
        return [one._replace(look=found.get(one.place)) for one in suspects]

    return [one._replace(suspects=Suspects(*map(add_details, one.suspects))) for one in sections]


def template_data(look: TensorDetail) -> dict[str, Any]:
    """Return the picture and both histograms for the template."""
    from npucmp.report.svg import svg_data as picture

    golden = look.pair.golden
    shape = list(golden.shape) if golden else []
    above = f"whose error is above its root mean square, {look.bar:.2g}" if look.bar else "that differ"
    return {
        "key": f"{look.pair.order}/{look.pair.slot}",
        "slot": look.pair.slot,
        "shape": shape,
        "picture": picture(look.picture),
        "words": f"elements {above}",
        "spread": _values(*look.values),
        "errors": _errors(look.errors),
        "worst": [
            (position(one.at, tuple(shape)), _short(one.target), _short(one.golden), f"{one.abs_err:.3g}")
            for one in look.worst[:5]
        ],
    }


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _values(target: Histogram, golden: Histogram) -> Optional[dict[str, Any]]:
    """Return bars of the target and the outline of the golden; heights are logarithmic, so that one element is visible
    beside a million."""
    if not sum(target.counts) + sum(golden.counts):
        return None
    most = max(*target.counts, *golden.counts)
    heights, wide = [_height(count, most) for count in golden.counts], WIDTH / len(golden.counts)
    steps = "".join(f"V{HIGHEST + 4 - height:g}H{wide * (place + 1):g}" for place, height in enumerate(heights))
    return {
        **_bars(target, most),
        "outline": f"M0 {HIGHEST + 4}{steps}V{HIGHEST + 4}",
        "label": f"from {target.low:.4g} to {target.high:.4g}: target as bars, golden as an outline",
    }


def _errors(one: Histogram) -> Optional[dict[str, Any]]:
    if not one.high > 0 or not sum(one.counts):
        return None
    below, above = sum(one.counts[: len(one.counts) // 2]), sum(one.counts[len(one.counts) // 2 + 1 :])
    many = sum(one.counts)
    sides = f": {below / many:.0%} below the middle bar, {above / many:.0%} above it" if one.low < 0 else ""
    return {**_bars(one, max(one.counts)), "outline": "", "label": f"from {one.low:.3g} to {one.high:.3g}{sides}"}


def _bars(one: Histogram, most: int) -> dict[str, Any]:
    wide = WIDTH / len(one.counts)
    bars = [
        {"x": round(place * wide + 0.5, 2), "height": _height(count, most)}
        for place, count in enumerate(one.counts)
        if count
    ]
    return {"low": f"{one.low:.4g}", "high": f"{one.high:.4g}", "wide": round(wide - 1, 2), "bars": bars}


def _height(count: int, most: int) -> float:
    return round(max(2.0, HIGHEST * math.log1p(count) / math.log1p(most)), 1) if count else 0.0
