"""Draw curves over steps as numbers for an SVG drawing, which the template embeds; no script is needed."""

from __future__ import annotations

import math
from typing import Any, Sequence

from npucmp.report.answer import Plot

WIDTH, HEIGHT, LEFT, FOOT = 900, 240, 64, 22
STEEP = 50.0  # ratio of the largest to the least value above which the scale is logarithmic, if all values are positive
TICKS = 4


def plot_data(plot: Plot) -> dict[str, Any]:
    """Return lines, bands and ticks of a plot. A value that is not finite interrupts its line and is marked above
    it."""
    steps = [step for _, some, _ in plot.curves for step in some]
    values = [value for _, _, some in plot.curves for value in some if math.isfinite(value)]
    first, last = (min(steps), max(steps)) if steps else (0, 1)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    is_log = low > 0 and high > STEEP * low

    def across(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 4) * (step - first) / max(1, last - first), 1)

    def up(value: float) -> float:
        a, b, c = (math.log10(one) if is_log else one / 2 for one in (low, high, value))  # halves: the range is finite
        return round(6 + (HEIGHT - FOOT - 12) * (1 - (c - a) / (b - a) if b > a else 0.5), 1)

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "floor": HEIGHT - FOOT,
        "lines": [(name, number, _lines(some, one, across, up))
                  for number, (name, some, one) in enumerate(plot.curves, 1)],
        "lost": [across(step) for _, some, one in plot.curves for step, value in zip(some, one)
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
    return [" ".join(some) for some in found if some]


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if low == high:
        return [low]
    shares = [at / TICKS for at in range(TICKS + 1)]
    if is_log:
        return [low * (high / low) ** share for share in shares]
    return [low + (high - low) * share for share in shares]
