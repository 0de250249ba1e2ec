"""The needs of each question on a dump: one entry per command."""

from __future__ import annotations

from typing import NamedTuple

VALUES, STATISTICS, MD5, DETECTION = "values", "statistics", "md5", "detection"
Ranges = tuple[tuple[int, int], ...]  # of steps or ranks, both ends included; (): all


class Question(NamedTuple):
    """The needs of a command on a dump.

    kinds   allowed records of a tensor, the default first
    needs   words of NEEDS (sufficiency.py): if one is missing, the command cannot answer, or answers less
    level   msprobe's word: L1 records operators, mix operators and their modules
    steps   first and last step
    equal   the runs must be as equal as possible: seeds, deterministic operators, no dropout
    second  the dump to compare with: "golden", "run" (a repetition), "" for none
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
