"""Operators that read an error of unknown size, as columns of recorded statistics show: it explains all errors of their
outputs.

If the error descends from a root, the operator propagates it; otherwise its outputs, and the inputs that hold the error
of an earlier tensor, are excused. `explain` records what `RootSearch.visit` would record, by numbers of rows. Findings
and roots of these operators are made on request.
"""

from __future__ import annotations

import math
from typing import Sequence

from npucmp.flow.operators import OperatorRows
from npucmp.localise.explained_rows import DESCENDS, READ, WRITTEN
from npucmp.localise.seen_errors import learn_shape
from npucmp.localise.stat_columns import StatColumns
from npucmp.localise.sweep import Sweep


def explain(sweep: Sweep, columns: StatColumns, at: int) -> bool:
    """Record an operator, given by its number, whose first input has an error that explains those of its outputs; False
    if other facts may decide."""
    rows, first, apart = sweep.nodes.rows[at], sweep.first_row, columns.is_apart
    if not _is_plain(sweep) or not _have_writers(sweep, rows, apart):
        return False
    sources, asked, differing = sweep.edges.sources, rows.inputs, [row for row in rows.outputs if apart[row]]
    if sweep.any_tainted:
        if rows.operator.path and sources[differing[0]] + first not in sweep.tainted:
            return False  # an operator inside this module may have written the output
        asked = (*asked, *(row for row in rows.extra_inputs if not apart[row]))
        written = [row + first for row in rows.outputs]
        sweep.tainted.update(written)
        sweep.descending.update(written)
        sweep.explained_rows.update(dict.fromkeys([row + first for row in differing], DESCENDS))
        sweep.propagated.append((at, rows.at, differing[0], rows.inputs[0]))
        for row in differing:
            learn_shape(sweep, sweep.findings.network.pairs[row].golden_shape, row + first, math.inf)
        for container in columns.network.containers[at]:
            sweep.inside.setdefault(container, rows.operator.name)
    else:
        sweep.explained_rows.update(dict.fromkeys([row + first for row in rows.inputs if apart[row]], READ))
        sweep.explained_rows.update(dict.fromkeys([row + first for row in differing], WRITTEN))
        sweep.passed.append(at)
    sweep.rows_read.update([sources[row] for row in asked])
    sweep.reached = max(sweep.reached, *rows.inputs, *rows.outputs)
    return True


def _is_plain(sweep: Sweep) -> bool:
    """Whether nothing but values in columns and descent from roots decides about operators so far."""
    state = (sweep.unrecorded, sweep.instead, sweep.residues, sweep.entered, sweep.changed_choice_share)
    is_open = any(state) or sweep.any_flipped or sweep.is_told or sweep.any_meaningless
    rules = sweep.rules
    by_growth = rules.uses("growth") and not rules.uses("reduced_alike")
    return sweep.by_round_off and not sweep.is_recomputed and by_growth and not is_open


def _have_writers(sweep: Sweep, rows: OperatorRows, apart: Sequence[bool]) -> bool:
    """Whether a recorded operator wrote each input, and those that differ were written with an error of unknown size;
    if a root exists, with one that descends from it."""
    for row in rows.inputs:
        written, own = sweep.edges.sources[row], row + sweep.first_row
        if written < 0 or own in sweep.revised or (sweep.any_tainted and own in sweep.explained_rows):
            return False
        if apart[row] and not (written + sweep.first_row in sweep.tainted if sweep.any_tainted else apart[written]):
            return False
    return sweep.any_tainted or not sweep.descending
