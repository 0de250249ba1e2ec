"""Make a Finding of each Measurement: compare each tensor by itself with the limit that the rules give for rounding."""

from __future__ import annotations

import math
from itertools import groupby
from typing import AbstractSet, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import Precision, is_counted, round_off_of
from npucmp.judge.tolerance import Limit, Tolerances, judge, judge_bound
from npucmp.localise.autograd_nodes import undecided_nodes
from npucmp.localise.effective_precision import work_in_other_types, working_precisions
from npucmp.localise.rule_context import RuleContext
from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.limits import REDUCED_ROUND_OFF
from npucmp.model import Finding, Measurement, Verdict
from npucmp.model.network import SearchRows
from npucmp.model.roles import is_output
from npucmp.model.table import Table, rows_of_verdicts

_UNSEARCHED = [*Finding._field_defaults.values()][Finding._fields.index("row") - len(Finding._fields) + 1 :]
_Operand = tuple[object, ...]  # verdict, operator type, slot, shapes


def make_findings(
    measurements: Sequence[Measurement],
    tolerances: Tolerances,
    rules: Rulebook,
    reduced: bool = False,
    quantised: AbstractSet[int] = frozenset(),
) -> Table:
    """One Finding per Measurement, in the same order, which must be graph order; each tensor is judged by itself.

    reduced: float32 products of these runs were computed with HF32 or TF32. quantised: rows whose floats are steps of 8
    bits.
    """
    found: list[Finding] = []
    of_records: dict[Precision, Limit] = {}  # without values, a limit depends on the precision alone
    precisions = working_precisions(measurements, reduced, quantised)
    for row, (measurement, (held, through)) in enumerate(zip(measurements, precisions)):
        if measurement.moments is not None:
            limit = limit_of(measurement, held, rules)
        else:
            limit = of_records.get(held) or of_records.setdefault(held, limit_of(measurement, held, rules))
            is_bounded = measurement.same is None and not measurement.problem and not measurement.unlike
            if is_bounded and (bound := measurement.bound) is not None and bound < math.inf:
                fields = judge_bound(bound, tolerances, limit)
                found.append(Finding._make((measurement, *fields, "", 0.0, through.round_off, row, *_UNSEARCHED)))
                continue
        working = max(through.round_off, REDUCED_ROUND_OFF if through.reduced else 0.0)
        found.append(judge(measurement, tolerances, limit)._replace(working=working, row=row))
    if any(one.metric == "checksum" for one in found) and work_in_other_types(measurements):
        found = [_as_unproven(one) if one.metric == "checksum" else one for one in found]
    table = Table(found)
    table = table.replaced(undecided_nodes(SearchRows(table)))
    shapes = {at: table[at] for at in rows_of_verdicts(table, (Verdict.SHAPE,))}
    repeated = _repeated_operands(table, rules) if shapes else ()
    return table.replaced({at: _without_partners(one) for at, one in shapes.items() if _operand(one) in repeated})


def limit_of(measurement: Measurement, held: Precision, rules: Rulebook) -> Limit:
    """The limit of a tensor whose precision is `held`."""
    if is_counted(measurement, held.round_off):
        held = Precision(round_off_of(measurement.pair))
    return rules.limit(RuleContext(Finding(measurement, Verdict.UNKNOWN, ""), precision=held))


def _repeated_operands(found: Sequence[Finding], rules: Rulebook) -> set[_Operand]:
    """Operands that one side repeats along some axes, proven by an operator whose output agrees: operators of this type
    repeat the operand in all layers."""
    proven = set()
    for _, group in groupby(found, lambda one: one.pair.order):
        findings = [*group]
        outputs = [one for one in findings if is_output(one.pair)]
        for one in findings:
            if one.verdict is Verdict.SHAPE and rules.holds("broadcast", RuleContext(one, _node(findings, outputs))):
                proven.add(_operand(one))
    return proven


def _node(findings: list[Finding], outputs: list[Finding]) -> OperatorFindings:
    return OperatorFindings(findings[0].pair, [one for one in findings if not is_output(one.pair)], outputs)


def _operand(finding: Finding) -> _Operand:
    shapes = (one.shape if one is not None else None for one in (finding.pair.target, finding.pair.golden))
    return (finding.verdict, finding.pair.operator.op_type, finding.pair.slot, *shapes)


def _without_partners(finding: Finding) -> Finding:
    because = f"{finding.because}: one side repeats the tensor along these axes"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule="broadcast")


def _as_unproven(finding: Finding) -> Finding:
    """Checksums of runs that round differently differ nearly everywhere, so they decide nothing."""
    because = f"{finding.because}, as expected between runs with different dtypes"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because)


def disregard(finding: Finding) -> Finding:
    """Mark a difference in uninitialised memory or a workspace as UNKNOWN."""
    if finding.verdict not in (Verdict.DIVERGED, Verdict.NONFINITE):
        return finding
    because = f"uninitialised memory or a workspace, whose content has no meaning ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule="meaningless")


def mark_in_place(finding: Finding) -> Finding:
    """Mark a tensor that an operator overwrites in place, before or while it is recorded, as UNKNOWN."""
    because = "the operator overwrites this tensor in place; its checksum was taken at an unknown time"
    if finding.metric != "checksum":
        because = f"the operator overwrites this tensor in place, possibly before it was recorded ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None, rule="overwritten")
