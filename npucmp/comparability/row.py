"""What a row is: a question to two runs, and how its answer is made."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from npucmp.comparability.both import Both
from npucmp.errors import NpucmpError, raise_in_tests
from npucmp.model.prechecked import Status, Told
from npucmp.run_differences.answers import unknown

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
    hold: Callable[[Both], Told]
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
