"""Drawings as SVG: where two runs differ in a tensor (a map of the tensor and a chart of its bits), and curves over
steps.

A cell of the map is the darker the more of its elements differ. Adjacent cells of a line with equal darkness are one
stroke, and all strokes of equal darkness are one path. Curves are numbers that the template embeds; no script is
needed.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, Optional, Sequence

from npucmp.model import DifferenceMap
from npucmp.model.dtypes import lookup
from npucmp.report.answer import CellMap, Plot

LEVELS = (0.01, 0.1, 0.9)  # shares of differing elements of a cell at which the next darkness begins
SHARES = (0.1, 0.5)  # of what differs in a cell of a map, at which the next darkness begins
HEIGHT = 96  # pixels: height of a picture with many lines
LEAST = 14
WIDTH, HIGHEST = 320, 46  # pixels: width of the bit chart, and height of its highest bar


def svg_data(one: DifferenceMap) -> dict[str, Any]:
    """Return the picture for the template."""
    down = len(one.counts) // one.across
    size = f"{one.rows:,} × {one.columns:,}"
    cells = f"{sum(map(bool, one.counts)):,} of {down} × {one.across} cells of the picture"
    cell = f"about {round(one.rows / down):,} × {round(one.columns / one.across):,} elements"
    if (one.rows, one.columns) == (down, one.across):
        cell = "an element"
    return {
        "across": one.across,
        "down": down,
        "height": min(HEIGHT, max(LEAST, 12 * down)),
        "paths": _paths(one, down),
        "label": f"{sum(one.counts):,} of {size} elements differ, in {cells}",
        "size": size,
        "cell": f"a cell is {cell}",
        "bits": _bits(one),
    }


def _paths(one: DifferenceMap, down: int) -> list[str]:
    """Return a path per level of darkness, the lightest first."""
    strokes: list[list[str]] = [[] for _ in range(len(LEVELS) + 1)]
    for line in range(down):
        height = _length(one.rows, down, line)
        cells = one.counts[line * one.across : (line + 1) * one.across]
        sizes = [height * _length(one.columns, one.across, place) for place in range(one.across)]
        levels = [sum(n / size >= least for least in LEVELS) if n else -1 for n, size in zip(cells, sizes)]
        for level, strokes_of in groupby(range(one.across), key=levels.__getitem__):
            if level >= 0:
                places = [*strokes_of]
                strokes[level].append(f"M{places[0]} {line}.5h{len(places)}")
    return ["".join(strokes_of) for strokes_of in strokes]


def cell_map_data(one: CellMap) -> dict[str, Any]:
    """Return the map for the template: a path of the cells that agree, then one for each share of what differs."""
    paths: list[list[str]] = [[] for _ in range(len(SHARES) + 2)]
    for line, (counts, differing) in enumerate(zip(one.counts, one.differing)):
        levels = [
            -1 if not count else 0 if not bad else 1 + sum(bad / count >= share for share in SHARES)
            for count, bad in zip(counts, differing)
        ]
        for level, places in groupby(range(len(levels)), key=levels.__getitem__):
            cells = [*places]
            if level >= 0:
                paths[level].append(f"M{cells[0]} {line}.5h{len(cells)}")
    down, across = len(one.counts), len(one.counts[0])
    each = [-(-size // cells) for size, cells in zip(one.sizes, (down, across))]
    return {
        "across": across,
        "down": down,
        "height": min(2 * HEIGHT, max(LEAST, 12 * down)),
        "paths": ["".join(path) for path in paths],
        "differing": sum(map(sum, one.differing)),
        "count": sum(map(sum, one.counts)),
        "sizes": [f"{size:,}" for size in one.sizes],
        "each": each,
    }


def _length(whole: int, cells: int, cell: int) -> int:
    """Return the number of `whole` rows or columns in a cell, divided as in bitwise.py."""
    return -(-(cell + 1) * whole // cells) - -(-cell * whole // cells)


def _bits(one: DifferenceMap) -> Optional[dict[str, Any]]:
    """Return a bar per bit, from the highest bit, and the fields of a float to which the bits belong."""
    most = max(one.bits, default=0)
    if not most:
        return None
    wide = WIDTH / len(one.bits)
    heights = [max(2.0, round(HIGHEST * count / most, 1)) if count else 0 for count in one.bits]
    parts = [{"name": name, "x": first * wide, "width": bits * wide} for name, first, bits in _parts(one)]
    return {
        "dtype": one.dtype,
        "wide": max(1.0, wide - 2),
        "bars": [{"x": place * wide + 1, "height": height} for place, height in enumerate(heights) if height],
        "parts": parts,
        "label": _bit_words(one),
    }


def _parts(one: DifferenceMap) -> list[tuple[str, int, int]]:
    """Return (name, first bit from the left, number of bits) of sign, exponent and mantissa; for other types one
    entry."""
    row, width = lookup(one.dtype), len(one.bits)
    if row is None or row.kind != "f":
        return [(f"{width} bits", 0, width)]
    mantissa = round(-math.log2(row.round_off)) - 1
    return [("sign", 0, 1), ("exponent", 1, width - 1 - mantissa), ("mantissa", width - mantissa, mantissa)]


def _bit_words(one: DifferenceMap) -> str:
    """Name the bits that differ, numbered from the lowest bit of each field."""
    found = []
    for name, first, width in _parts(one):
        held = [width - 1 - place for place in range(width) if one.bits[first + place]]
        if held:
            which = f" {held[-1]} to {held[0]}" if len(held) > 1 else f" {held[0]}" if width > 1 else ""
            found.append(f"{name}{which}")
    return f"differing bits of {one.dtype}: {', '.join(found)}"


PLOT_WIDTH, PLOT_HEIGHT, LEFT, FOOT = 900, 240, 64, 22
STEEP = 50.0  # ratio of the largest to the least value above which the scale is logarithmic, if all values are positive
TICKS = 4


def plot_data(plot: Plot) -> dict[str, Any]:
    """Return lines, bands and ticks of a plot. A value that is not finite interrupts its line and is marked above
    it."""
    steps = [step for _, numbers, _ in plot.curves for step in numbers]
    values = [value for _, _, numbers in plot.curves for value in numbers if math.isfinite(value)]
    first, last = (min(steps), max(steps)) if steps else (0, 1)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    is_log = low > 0 and high > STEEP * low

    def across(step: float) -> float:
        return round(LEFT + (PLOT_WIDTH - LEFT - 4) * (step - first) / max(1, last - first), 1)

    def up(value: float) -> float:
        a, b, c = (math.log10(one) if is_log else one / 2 for one in (low, high, value))  # halves: the range is finite
        return round(6 + (PLOT_HEIGHT - FOOT - 12) * (1 - (c - a) / (b - a) if b > a else 0.5), 1)

    return {
        "width": PLOT_WIDTH,
        "height": PLOT_HEIGHT,
        "left": LEFT,
        "floor": PLOT_HEIGHT - FOOT,
        "lines": [(name, number, _lines(numbers, one, across, up))
                  for number, (name, numbers, one) in enumerate(plot.curves, 1)],
        "lost": [across(step) for _, numbers, one in plot.curves for step, value in zip(numbers, one)
                 if not math.isfinite(value)],
        "bands": [(across(a), round(max(1.0, across(b) - across(a)), 1)) for a, b in plot.bands],
        "down": [(up(value), f"{value:.4g}") for value in _ticks(low, high, is_log)],
        "along": [(across(step), f"{step:,}") for step in dict.fromkeys(
            round(first + (last - first) * at / TICKS) for at in range(TICKS + 1))],
        "scale": "logarithmic" if is_log else "",
    }  # fmt: skip


def _lines(steps: Sequence[int], values: Sequence[float], across: Any, up: Any) -> list[str]:
    """Return the points of each range of finite values."""
    found: list[list[str]] = [[]]
    for step, value in zip(steps, values):
        if math.isfinite(value):
            found[-1].append(f"{across(step)},{up(value)}")
        elif found[-1]:
            found.append([])
    return [" ".join(points) for points in found if points]


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if low == high:
        return [low]
    shares = [at / TICKS for at in range(TICKS + 1)]
    if is_log:
        return [low * (high / low) ** share for share in shares]
    return [low + (high - low) * share for share in shares]
