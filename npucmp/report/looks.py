"""What the second looks at tensors that diverged say: the rows of worst.csv, and the words and strokes of a drawing."""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional

from npucmp.model import Finding, Histogram, Look, Report, Root, Verdict, position
from npucmp.report.answer import Row, Table
from npucmp.report.difference_map import drawn as picture
from npucmp.report.tables import table

COLUMNS = tuple("place step rank order op slot cause number at target golden abs_err rel_err".split(" "))
WIDTH, HIGHEST = 320, 46  # of a histogram, and of its highest bar
Key = tuple[int, int, str]  # a comparison, the order of an operator in it, a slot of that


def worst(report: Report) -> Table:
    """Up to ten rows for each tensor that was looked at, suspects first; one for each of the others that diverged, of
    which the measurement tells the place of the largest error, but not its values."""
    return table("worst.csv", COLUMNS, lambda: _rows(report))


def key_of(look: Look) -> Key:
    return look.run, look.pair.order, look.pair.slot


def _rows(report: Report) -> "Iterator[Row]":
    looks = {key_of(one): (place, one) for place, one in enumerate(report.looks)}
    first: list[tuple[int, list[Row]]] = []
    others: list[Row] = []
    for run, one in enumerate(report.comparisons):
        roots = {root.pair.order: root for root in one.roots}
        for finding in one.findings:
            known = {"step": one.step, "rank": one.rank, **_of(finding, roots.get(finding.pair.order))}
            found = looks.get((run, finding.pair.order, finding.pair.slot))
            if found is not None:
                first.append((found[0], [{**known, **row} for row in _worst(found[1])]))
            elif finding.verdict in (Verdict.DIVERGED, Verdict.NONFINITE) and (row := _largest(finding)):
                others.append({**known, **row})
    for _, rows in sorted(first, key=lambda some: some[0]):
        yield from rows
    yield from others


def _of(finding: Finding, root: "Optional[Root]") -> Row:
    pair = finding.pair
    found = {"order": pair.order, "op": pair.operator.name, "slot": pair.slot}
    return found if root is None else {**found, "place": root.place, "cause": root.cause.value}


def _worst(look: Look) -> "Iterator[Row]":
    shape = look.pair.golden.shape if look.pair.golden else ()
    for number, one in enumerate(look.worst, 1):
        yield {**one._asdict(), "number": number, "at": position(one.at, shape)}


def _largest(finding: Finding) -> "Optional[Row]":
    moments, golden = finding.measurement.moments, finding.pair.golden
    if moments is None or golden is None or moments.max_abs_index < 0:
        return None
    error = moments.max_abs if moments.max_abs_exact is None else moments.max_abs_exact
    return {"number": 1, "at": position(moments.max_abs_index, golden.shape), "abs_err": error}


def drawn(look: Look) -> "dict[str, Any]":
    """For the template: the picture, and both histograms."""
    golden = look.pair.golden
    shape = list(golden.shape) if golden else []
    above = f"whose error is above its root mean square, {look.bar:.2g}" if look.bar else "that differ"
    return {
        "key": "/".join(map(str, key_of(look))),
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


def _values(target: Histogram, golden: Histogram) -> "Optional[dict[str, Any]]":
    """Bars of the target, and the outline of the golden over them; heights are logarithmic, so that one element is
    seen beside a million."""
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


def _errors(one: Histogram) -> "Optional[dict[str, Any]]":
    if not one.high > 0 or not sum(one.counts):
        return None
    below, above = sum(one.counts[: len(one.counts) // 2]), sum(one.counts[len(one.counts) // 2 + 1 :])
    many = sum(one.counts)
    sides = f": {below / many:.0%} below the middle bar, {above / many:.0%} above it" if one.low < 0 else ""
    return {**_bars(one, max(one.counts)), "outline": "", "label": f"from {one.low:.3g} to {one.high:.3g}{sides}"}


def _bars(one: Histogram, most: int) -> "dict[str, Any]":
    wide = WIDTH / len(one.counts)
    bars = [
        {"x": round(place * wide + 0.5, 2), "height": _height(count, most)}
        for place, count in enumerate(one.counts)
        if count
    ]
    return {"low": f"{one.low:.4g}", "high": f"{one.high:.4g}", "wide": round(wide - 1, 2), "bars": bars}


def _height(count: int, most: int) -> float:
    return round(max(2.0, HIGHEST * math.log1p(count) / math.log1p(most)), 1) if count else 0.0
