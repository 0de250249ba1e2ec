"""Rows of logged curves: the loss, and other figures in both logs."""

from __future__ import annotations

from typing import Any, Optional

from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.run_pair import Both, Curves
from npucmp.health.curves.curve import Curve
from npucmp.health.curves.curve_pair import Parting, parting
from npucmp.health.curves.reading import read_log
from npucmp.model import first_of
from npucmp.model.precheck_result import Told
from npucmp.run_differences.answers import close, differs, same, unknown

METRICS = 50  # most further curves that are compared
LAST = 0.01  # relative difference of a metric's last value: the vendor's limit


def loss(both: Both) -> Told:
    """Compare the curve of the loss, or of --column, window by window."""
    if both.given.curve is None:
        return unknown("give --curve with two logs of the training")
    logs = [read_log(path, both.context) for path in both.given.curve]
    target, golden = (log.column(both.given.column) for log in logs)
    repeat: Optional[Curve] = None
    if both.given.repeat_curve is not None:
        repeat = read_log(both.given.repeat_curve, both.context).column(both.given.column)
    found = parting(target, golden, repeat)
    both.curves.append(Curves(golden.name, target, golden, found))
    return _curve_result(golden.name, found)


def _curve_result(name: str, found: Parting) -> Told:
    words = f"{name}: {found.because}"
    more: dict[str, Any] = {
        "places": found.common,
        "value": found.mean if found.mean == found.mean else None,
        "limit": LAST,
    }
    if found.status == "unknown":
        return unknown(words)
    if found.status == "same":
        return same(words, **more)
    if found.status == "close":
        return close(words, **more)
    where = "" if found.first_step is None else f"; the curves differ from step {found.first_step} on"
    first = "" if found.first_step is None else str(found.first_step)
    return differs(f"{words}{where}", first=first, **more)


def metric(both: Both) -> Told:
    """Compare the last values of other curves in both logs. They have few points, so a difference is only a note."""
    if both.given.curve is None:
        return unknown("give --curve with two logs of the training")
    here, there = (read_log(path, both.context) for path in both.given.curve)
    taken = {one.name for one in both.curves}
    odd, known = list[str](), 0
    for name in [name for name in here.curves if name in there.curves and name not in taken][:METRICS]:
        target, golden = here.curves[name], there.curves[name]
        if not len(target.values) or not len(golden.values) or target.steps[-1] != golden.steps[-1]:
            continue
        known += 1
        a, b = float(target.values[-1]), float(golden.values[-1])
        if not (a == b or abs(a - b) <= LAST * abs(b)) and not (a != a and b != b):
            odd.append(f"{name} ends at {a:.4g} against {b:.4g}")
    if not known:
        return unknown("the logs have no other curve in common that ends at the same step")
    if odd:
        return differs(first_of(odd, 3), places=len(odd), first=odd[0].partition(" ends")[0])
    return same(f"{known} other curves agree in their last values", places=known)


ROWS = (
    CheckItem("curve.loss", "error", "the curve of the loss",
        "resolve the rows above, then dump the step from which the curves differ", loss, False),
    CheckItem("curve.metric", "note", "other curves", "", metric, False),
)  # fmt: skip
