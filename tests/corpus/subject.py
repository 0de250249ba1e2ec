"""What npucmp says of a pair: the only module of the corpus that knows npucmp."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import npucmp
from npucmp.errors import NpucmpError
from npucmp.localise.rules import RULES

RULE_NAMES = tuple(rule.name for rule in RULES)


class Answer(NamedTuple):
    """status: the exit status, -1 for a traceback. The rest is place 1 of roots.csv, empty without one."""

    status: int
    operator: str = ""
    cause: str = ""
    step: int = 0
    rank: int = 0
    because: str = ""


def asked(target: Path, golden: Path, skip: "tuple[str, ...]" = ()) -> Answer:
    """Compares two dumps, without the rules of that name."""
    try:
        report = npucmp.compare(target, golden, jobs=1, skip_rules=skip)
    except NpucmpError as error:
        return Answer(2, because=str(error))
    except Exception as error:
        return Answer(-1, because=repr(error))
    status = report.exit_status
    placed = [(root, one) for one in report.comparisons for root in one.roots if root.cause.value != "PROPAGATED"]
    if not placed:
        return Answer(status)
    root, one = min(placed, key=lambda pair: pair[0].place)
    pair = root.pair
    operator = pair.target_op or pair.golden_op
    name = operator.name if operator is not None else ""
    run = one.target
    return Answer(status, name, root.cause.value, run.step or 0, run.rank or 0, root.because)
