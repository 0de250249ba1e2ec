"""The library that computes a call: numpy by a formula of call_table.py, or torch by its own function, if it is
installed. Graph operators are computed by numpy alone."""

from __future__ import annotations

from importlib.util import find_spec

from npucmp.recompute.call_table import CallFormula, formula_of
from npucmp.recompute.table import STOPPED, CallRow, row_of
from npucmp.recompute.task import Task

LIBRARIES = ("numpy", "torch")


def has_torch() -> bool:
    """Return whether torch is installed."""
    return find_spec("torch") is not None


def libraries_of(task: Task, wanted: str = "") -> list[str]:
    """Return what can compute a call, in the order in which it is asked. `wanted` is the only library to use."""
    call = task.called
    row, formula = row_of(call), formula_of(call)
    found = []
    if formula is not None and (not task.is_backward or formula.backward is not None):
        found.append("numpy")
    if row is not None and row.kind not in (*STOPPED, "npu", "dropout") and has_torch():
        found.append("torch")
    chosen = [one for one in found if wanted in ("", one)]
    return chosen or found if row is not None and row.kind in ("npu", "dropout") else chosen


def formula_by(library: str, row: CallRow, task: Task) -> CallFormula:
    """Return the formula of a call. Raises NotInTable if this torch lacks the function."""
    formula = formula_of(task.called) if library == "numpy" else None
    if formula is None:
        from npucmp.recompute.torch_functions import formula_of_row

        formula = formula_of_row(row)
    return formula
