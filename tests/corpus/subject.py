"""What npucmp says of a pair: the only module of the corpus that knows npucmp."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import npucmp
from npucmp.dump.readers import hdf5
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


def asked(target: Path, golden: Path, skip: tuple[str, ...] = (), recompute: str = "auto") -> Answer:
    """Compares two dumps, without the rules of that name."""
    try:
        report = npucmp.compare(target, golden, jobs=1, skip_rules=skip, recompute=recompute)
    except NpucmpError as error:
        return Answer(2, because=str(error))
    except Exception as error:
        return Answer(-1, because=repr(error))
    return _answer(report)


def _answer(report: npucmp.Report) -> Answer:
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


class Examined(NamedTuple):
    """An Answer, and the verdict of each tensor by (step, rank, operator of the golden, slot)."""

    answer: Answer
    verdicts: dict[tuple[int, int, str, str], str]

    @property
    def status(self) -> int:
        return self.answer.status


def examined(target: Path, golden: Path) -> Examined:
    """Compares two dumps without a precheck; the HDF5 library works in this process, which is quicker."""
    isolated, hdf5.ISOLATED = hdf5.ISOLATED, False
    try:
        report = npucmp.compare(target, golden, jobs=1, precheck=False)
    except NpucmpError as error:
        return Examined(Answer(2, because=str(error)), {})
    except Exception as error:
        return Examined(Answer(-1, because=repr(error)), {})
    finally:
        hdf5.ISOLATED = isolated
    verdicts = {}
    for one in report.comparisons:
        for finding in one.findings:
            operator = finding.pair.golden_op or finding.pair.target_op
            name = operator.name if operator is not None else ""
            verdicts[one.step or 0, one.rank or 0, name, finding.pair.slot] = finding.verdict.value
    return Examined(_answer(report), verdicts)
