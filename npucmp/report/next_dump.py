"""next_dump.json: the configuration of a dump that holds the values which a comparison leaves open.

It is written in the words of the tool that made the dump, with the names that this tool takes (npucmp/plan/).
"""

from __future__ import annotations

import shlex
from typing import NamedTuple, Optional, Sequence

from npucmp.localise.next_dump import Linked, Wish, wishes
from npucmp.model import Comparison, Operator, Report
from npucmp.plan.configs import text_of
from npucmp.plan.growing import Growing, recorded
from npucmp.report.answer import Row
from npucmp.report.words import count_of, in_bytes

SIDES = ("target", "golden")
FILES = ("next_dump.json", "next_dump_golden.json")  # the second where two differ


class NextDump(NamedTuple):
    """What is to be dumped next.

    files      configurations by the name of their file; none where not even one operator fits on the disk
    operators  how many are asked for; `wanted`: how many would be on a disk without end
    complete   whether they are asked for in all steps and ranks in which they are wanted
    bytes      of the larger side; where nothing fits, of the smallest operator
    sides      whose values are wanted
    """

    files: "dict[str, str]"
    operators: int
    wanted: int
    complete: bool
    bytes: int
    sides: "tuple[str, ...]"


def next_dump(report: Report, linked: Linked) -> Optional[NextDump]:
    """The dump that would tell more than a comparison does; None if there is none, or nobody knows how it is made."""
    found = wishes(report.comparisons, linked)
    sides = tuple(side for side in SIDES if any(_lacks(side, report.comparisons, wish) for wish in found))
    asked_of = {side: recorded([getattr(one, side) for one in report.comparisons]) for side in sides}
    plans = {side: Growing(runs) for side, runs in asked_of.items() if runs}
    wanted: set[str] = set()
    sizes: list[int] = []  # of what did not fit
    too_large: set[object] = set()  # names and runs that did not, nor will when more is asked for
    for wish in found:
        operators = {side: operator for side in plans if (operator := _of(side, wish)) is not None}
        asked = {side: plans[side].runs[wish.comparison].asked(operator) for side, operator in operators.items()}
        names = {side: name for side, name in asked.items() if name}
        key = tuple(names.values())
        wanted.update(key[:1])
        if not names or key in too_large or wish.comparison in too_large:
            continue
        more = {side: plans[side].more(wish.comparison, name) for side, name in names.items()}
        size = max(plans[side].size + one.size for side, one in more.items())
        if report.disk is None or size <= report.disk:
            for side, one in more.items():
                plans[side].take(one)
        else:
            sizes.append(size)
            is_asked_for = all(name in plans[side].names for side, name in names.items())
            too_large.add(wish.comparison if is_asked_for else key)
    if not wanted:
        return None
    configs = [text_of(plan.config()) for plan in plans.values() if plan.names]
    files = dict(zip(FILES, dict.fromkeys(configs)))  # one does for both sides if it is the same
    most = max(len(plan.names) for plan in plans.values())
    size = max(plan.size for plan in plans.values()) if files else min(sizes)
    return NextDump(files, most, len(wanted), not sizes, size, sides)


def facts(found: Optional[NextDump]) -> Optional[Row]:
    """What summary.json says of it."""
    return None if found is None else {**found._asdict(), "files": [*found.files]}


def _of(side: str, wish: Wish) -> Optional[Operator]:
    return wish.pair.target_op if side == "target" else wish.pair.golden_op


def _lacks(side: str, comparisons: "Sequence[Comparison]", wish: Wish) -> bool:
    """Whether a dump has an operator without values, or without what it reads."""
    operator = _of(side, wish)
    if operator is None:
        return False
    return not operator.reads_recorded or any(one.problem or not one.file for one in operator.tensors)


def files(found: Optional[NextDump]) -> "dict[str, str]":
    """The configurations, by the name of their file."""
    return found.files if found is not None else {}


def remarks(report: Report, found: "Optional[NextDump]", folder: str) -> "list[str]":
    """What to run next, in one line."""
    if found is None:
        return []
    if not found.files:
        return [
            f"next: the values of none of {count_of(found.wanted, 'operator')} fit on a disk of "
            f"{in_bytes(report.disk or 0)}; the smallest take {in_bytes(found.bytes)}"
        ]
    where = " and ".join(f"{folder}/{name}" for name in found.files)
    more = "" if found.operators < found.wanted else " in more steps or ranks"
    few = "" if found.complete else f", what fits of {found.wanted:,}{more}"
    whose = "both runs" if len(found.sides) > 1 else f"the {found.sides[0]} run"
    also = *report.also, *(f"{side}=DUMP" for side in found.sides)
    command = shlex.join(["npucmp", "compare", *report.paths, *(word for one in also for word in ("--also", one))])
    what = f"{count_of(found.operators, 'operator')} ({in_bytes(found.bytes)}{few})"
    return [f"next: dump the values of {what} of {whose} with {where}, then {command}"]
