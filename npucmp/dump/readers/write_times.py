"""The order in which files were written, by the times that the file system keeps: a guess at the order of execution.

A tool that copies or unpacks files may give them times of its own. The times count only if they are mostly distinct,
if they are not those of a walk through the names, and if each operator was written after all that comes before it for
certain: a module after the modules that it holds, a later call after an earlier one. A clock ticks in milliseconds, so
that neighbours may share a time; they keep their order.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.readers.names import natural

NOTE = "order: guessed by the times at which the files were written"
_FEWEST = 8  # operators of which the times show an order
_DISTINCT = 0.5  # share of the operators that must have a time of their own


class WrittenOperator(NamedTuple):
    """The files of an operator; the dotted path of its module; what else two operators of one module share, and the
    number of the call."""

    files: Sequence[str]
    module: str
    kind: object = ""
    call: int = -1


def write_order(operators: Sequence[WrittenOperator]) -> Optional[list[int]]:
    """The operators by the time of their last file, as indices; None where the times cannot be trusted."""
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
    """Pairs of operators of which the first ran before the second ended."""
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
