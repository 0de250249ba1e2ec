"""What a row is: a question to two runs, and how its answer is made."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sized

import numpy as np

from npucmp.errors import NpucmpError, raise_in_tests
from npucmp.model.prechecked import Status, Told
from npucmp.precheck.both import Both

# that a row raises on a dump which it does not expect
UNEXPECTED = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
              ValueError)  # fmt: skip


class Row(NamedTuple):
    """One row: `hold` holds the two runs against each other.

    severity  of a difference, unless `hold` says otherwise
    asks      what is held against what, in a few words; remedy, what to do about a difference
    of_dumps  False where it reads files beside the dumps, and needs none
    """

    name: str
    severity: str
    asks: str
    remedy: str
    hold: "Callable[[Both], Told]"
    of_dumps: bool = True

    def held(self, both: Both) -> Told:
        """The row's answer. Trouble of any kind is its own: it then is unknown, and says why."""
        try:
            with np.errstate(all="ignore"):  # dumps hold what they hold
                found = self.hold(both)
        except NpucmpError as error:
            found = unknown(str(error))
        except UNEXPECTED as error:  # a row that fails costs itself
            raise_in_tests(error)
            found = unknown(f"row failed: {type(error).__name__}: {error}")
        own = both.given.settings.rows.get(self.name)
        if own is not None and own.severity:
            found = found._replace(severity="note" if own.severity == "hint" else own.severity)
        remedy = found.remedy or (self.remedy if found.status is Status.DIFFERS else "")
        both.found[self.name] = found._replace(row=self.name, severity=found.severity or self.severity, remedy=remedy)
        return both.found[self.name]


def many(some: "Sized | int", word: str) -> str:
    """ "1 operator", "1,200 operators"."""
    count = some if isinstance(some, int) else len(some)
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def same(because: str = "", **more: Any) -> Told:
    return Told("", Status.SAME, "", because, **more)


def close(because: str, **more: Any) -> Told:
    return Told("", Status.CLOSE, "", because, **more)


def differs(because: str, severity: str = "", **more: Any) -> Told:
    return Told("", Status.DIFFERS, severity, because, **more)


def unknown(because: str, **more: Any) -> Told:
    """`because` says what would tell."""
    return Told("", Status.UNKNOWN, "", because, **more)


def not_applicable(because: str, **more: Any) -> Told:
    return Told("", Status.NOT_APPLICABLE, "", because, **more)


def either(target: "Optional[str]", golden: "Optional[str]", what: str) -> Told:
    """Two words that should be equal; None where a side does not tell."""
    if target is None or golden is None:
        return unknown(f"no dump tells {what} of both sides", target=target or "", golden=golden or "")
    if target == golden:
        return same(target, target=target, golden=golden)
    return differs(f"{what}: {target} against {golden}", target=target, golden=golden)
