"""Operators that propagate the error of a root, as columns of recorded statistics show: they need no decision.

The first input of such an operator differs by a proven error of unknown size that descends from a root, which explains
any error of its outputs. `propagate` records of it what `RootSearch.visit` would record, without its other tensors.
"""

from __future__ import annotations

import math
from typing import Sequence

from npucmp.flow.operators import OperatorRows
from npucmp.judge.tolerance import Limit
from npucmp.localise.evidence import WorstInput, passed_reasons
from npucmp.localise.root_cause import propagated_root, with_explanation
from npucmp.localise.seen_errors import learn_shape
from npucmp.localise.sources import learn_source
from npucmp.localise.stat_columns import StatColumns
from npucmp.localise.sweep import Sweep, TensorSource

ANY_ERROR = Limit(math.inf, "growth")  # the explanation by an incoming error of unknown size


def propagate(sweep: Sweep, columns: StatColumns, at: int) -> bool:
    """Record an operator, given by its number, whose first input has an error that explains those of its outputs; False
    if that error does not descend from a root, or if other facts may decide."""
    rows, apart = sweep.nodes.rows[at], columns.is_apart
    if not _is_plain(sweep) or not _do_inputs_descend(sweep, rows, apart):
        return False
    if rows.operator.path and not _has_tainted_output(sweep, rows, apart):
        return False
    asked = (*rows.inputs, *(row for row in rows.extra_inputs if not apart[row]))
    sweep.rows_read.update(sweep.edges.sources[row] for row in asked)
    sweep.reached = max(sweep.reached, *rows.inputs)  # a later row never reads an input that was written before
    outputs = [sweep.findings[row] for row in rows.outputs]
    for finding in outputs:
        learn_source(sweep, TensorSource(finding, tainted=True))
    sweep.descending.update(finding.row for finding in outputs)
    differing = [finding for row, finding in zip(rows.outputs, outputs) if apart[row]]
    for finding in differing:
        sweep.revised[finding.row] = with_explanation(finding, ANY_ERROR)
        learn_shape(sweep, finding)
    worst = WorstInput(math.inf, sweep.findings[rows.inputs[0]], differs=True)
    reasons = passed_reasons(differing[0], worst)
    sweep.roots.append(propagated_root(sweep.findings[rows.at].pair, differing[0], ANY_ERROR, reasons))
    for container in columns.network.containers[at]:
        sweep.inside.setdefault(container, rows.operator.name)
    return True


def _is_plain(sweep: Sweep) -> bool:
    """Whether nothing but values in columns and descent from roots decides about operators so far."""
    state = (sweep.unrecorded, sweep.instead, sweep.residues, sweep.entered, sweep.changed_choice_share)
    is_open = any(state) or sweep.any_flipped or sweep.is_told or sweep.any_meaningless
    rules = sweep.rules
    by_growth = rules.uses("growth") and not rules.uses("reduced_alike")
    return sweep.by_round_off and not sweep.is_recomputed and by_growth and not is_open


def _do_inputs_descend(sweep: Sweep, rows: OperatorRows, apart: Sequence[bool]) -> bool:
    """Whether a recorded operator wrote each input, and the errors of those that differ descend from a root."""
    for row in rows.inputs:
        written = sweep.edges.sources[row]
        if written < 0 or row + sweep.first_row in sweep.revised:
            return False
        known = sweep.sources.get(written + sweep.first_row)
        if apart[row] and (known is None or not known.tainted):
            return False
    return True


def _has_tainted_output(sweep: Sweep, rows: OperatorRows, apart: Sequence[bool]) -> bool:
    """Whether an operator inside this module wrote the first output that differs, which descends from a root."""
    written = sweep.edges.sources[next(row for row in rows.outputs if apart[row])]
    known = sweep.sources.get(written + sweep.first_row)
    return written >= 0 and known is not None and known.tainted
