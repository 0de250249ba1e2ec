"""Guess the order of execution from the write times of files.

A tool that copies or unpacks files may set new times. The times count only if they are mostly distinct, if they do not
follow the order of names, and if each operator was written after its certain predecessors: a module after the modules
that it contains, a later call after an earlier one. Clocks tick in milliseconds, so neighbours may share a time; they
keep their order.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.readers.name_rules import natural

NOTE = "order: guessed from the write times of the files"
_FEWEST = 8  # minimum number of operators for an order by times
_DISTINCT = 0.5  # minimum share of operators with distinct times


class WrittenOperator(NamedTuple):
    """The files of an operator, the dotted path of its module, another key of its calls, and the call number."""

    files: Sequence[str]
    module: str
    kind: object = ""
    call: int = -1


def write_order(operators: Sequence[WrittenOperator]) -> Optional[list[int]]:
    """Return the operators, as indices, by the time of their last file; None if the times are not reliable."""
    if len(operators) < _FEWEST:
        return None
    try:
        times = [max(os.stat(file).st_mtime_ns for file in one.files) for one in operators]
    except OSError:
        return None
    order = sorted(range(len(times)), key=times.__getitem__)
    modules = [operators[at].module for at in order]
    if len({*times}) <= _DISTINCT * len(times) or modules in (sorted(modules), sorted(modules, key=natural)):
        return None
    return order if all(times[first] <= times[then] for first, then in _certain(operators)) else None


def _certain(operators: Sequence[WrittenOperator]) -> list[tuple[int, int]]:
    """Return pairs of operators of which the first must be written before the second."""
    found: list[tuple[int, int]] = []
    by_name = {(one.module, one.kind, one.call): at for at, one in enumerate(operators)}
    for at, one in enumerate(operators):
        above = one.module.rpartition(".")[0]
        while above and (above, one.kind, one.call) not in by_name:
            above = above.rpartition(".")[0]
        if above:
            found.append((at, by_name[above, one.kind, one.call]))
        if (before := by_name.get((one.module, one.kind, one.call - 1))) is not None:
            found.append((before, at))
    return found
