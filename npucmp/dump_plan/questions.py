"""What each question needs of a dump: one entry per command that asks it."""

from __future__ import annotations

from typing import NamedTuple

VALUES, STATISTICS, MD5, DETECTION = "values", "statistics", "md5", "detection"
Ranges = tuple[tuple[int, int], ...]  # of steps or ranks, both ends included; none: all


class Question(NamedTuple):
    """What a command asks of a dump.

    kinds   what may be recorded of each tensor, what is taken by itself first
    needs   words of NEEDS (fit.py): without one of them the command cannot answer, or answers less
    level   msprobe's word: L1 are operators, mix operators and the modules around them
    steps   the first and the last
    equal   the runs are to be made as equal as they can be: seeds, deterministic operators, no dropout
    second  what the dump is held against: "golden", "run" (the same once more), "" for nothing
    """

    name: str
    kinds: tuple[str, ...]
    needs: str
    level: str = "L1"
    steps: tuple[int, int] = (0, 0)
    equal: bool = False
    second: str = ""


_EVERY = (
    Question("compare", (VALUES, STATISTICS, MD5), "values sums inputs outputs order", equal=True, second="golden"),
    Question("overflow", (STATISTICS, VALUES), "figures inputs outputs order"),
    Question("fusion-diff", (VALUES, STATISTICS), "compiled values inputs outputs graph", equal=True, second="golden"),
    Question("rerun-diff", (MD5, VALUES, STATISTICS), "bits inputs outputs order", equal=True, second="run"),
    Question("replay", (VALUES,), "values inputs outputs"),
    Question("check", (VALUES, STATISTICS), "values sums inputs outputs modules steps backward", "mix", (0, 2)),
    Question(
        "precheck",
        (VALUES, STATISTICS, MD5),
        "values sums inputs outputs data steps backward",
        "mix",
        (0, 2),
        False,
        "golden",
    ),
)
QUESTIONS = {one.name: one for one in _EVERY}
