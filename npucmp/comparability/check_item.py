"""Define a row: a check of two runs that answers one question."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from npucmp.comparability.answers import unknown
from npucmp.comparability.run_pair import RunPair
from npucmp.errors import NpucmpError, raise_in_tests
from npucmp.model.item_result import ItemResult, Status

# exceptions of a row on a dump of unexpected content
UNEXPECTED = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
              ValueError)  # fmt: skip


class CheckItem(NamedTuple):
    """One row; `hold` compares the two runs.

    severity  of a difference, unless `hold` returns another
    asks      the compared property in a few words; remedy is the advice for a difference
    of_dumps  False if it reads files beside the dumps and works without dumps
    """

    name: str
    severity: str
    asks: str
    remedy: str
    compare: Callable[[RunPair], ItemResult]
    of_dumps: bool = True

    def evaluate(self, both: RunPair) -> ItemResult:
        """Return the row's answer. If the row fails, the answer is unknown, with the reason."""
        try:
            with np.errstate(all="ignore"):  # dumps may contain any values
                found = self.compare(both)
        except NpucmpError as error:
            found = unknown(str(error))
        except UNEXPECTED as error:  # a failing row must not stop the others
            raise_in_tests(error)
            found = unknown(f"row failed: {type(error).__name__}: {error}")
        own = both.user_input.settings.rows.get(self.name)
        if own is not None and own.severity:
            found = found._replace(severity="note" if own.severity == "hint" else own.severity)
        remedy = found.remedy or (self.remedy if found.status is Status.DIFFERS else "")
        both.found[self.name] = found._replace(row=self.name, severity=found.severity or self.severity, remedy=remedy)
        return both.found[self.name]
