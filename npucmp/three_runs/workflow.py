"""A comparison with the truth: `npucmp compare TARGET GOLDEN --truth DUMP`."""

from __future__ import annotations

import os
from collections import Counter
from typing import Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.measure.executor import default_jobs
from npucmp.model import Report, StoredComparisons, first_of
from npucmp.model.three_runs import BETTER, GOLDEN, SAME, UNDECIDED, WORSE, ErrorRatio, ThreeRunRow, ThreeRuns
from npucmp.report.phrases import count_of
from npucmp.three_runs.alignment import truth_runs
from npucmp.three_runs.judgement import ALARM, FEWEST, NOTICE, TruthDeparture, departure, judged_rows
from npucmp.three_runs.operator_errors import ErrorRequest, OperatorErrors, errors_of_steps
from npucmp.three_runs.sums import GG, TT
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import RECOMPUTE, Options

MOST_ALIKE = 0.5  # of the outputs with errors: chosen: a truth with more of them in the golden's precision is none


def three_runs(report: Report, truth: StrPath, options: Options, context: ReadContext) -> ThreeRuns:
    """Return the errors of both runs of a report against the truth. Raises UsageError if it is none."""
    if report.weights is not None:
        raise UsageError("--truth is for dumps of operators, not for checkpoints")
    if truth == RECOMPUTE:
        found = errors_of_steps(ErrorRequest(None, context, True), report)
        what, notes = "float64 of the inputs that each run recorded", []
    else:
        is_open = not isinstance(report.comparisons, StoredComparisons)  # else tasks of their own measure each step
        jobs = (options.jobs or default_jobs()) if is_open else 1
        runs = truth_runs(truth, report, options, context)
        found = errors_of_steps(ErrorRequest(runs, context, options.recompute != "none", jobs), report)
        _require_precision(truth, found.operators)
        what, notes = runs.what, [*runs.notes]
    notes += [f"truth: {count_of(count, 'tensor')} left out: {reason}" for reason, count in found.problems.items()]
    left = Counter(operator.op_type for operator in found.operators if truth == RECOMPUTE and not operator.own)
    if left:
        kinds = first_of([f"{count} {kind}" for kind, count in left.most_common()])
        notes.append(f"truth: {count_of(sum(left.values()), 'operator')} not recomputed: {kinds}")
    rows = judged_rows(found.operators)
    if not any(row.verdict != UNDECIDED for row in rows):
        raise UsageError(f"--truth {os.fspath(truth)}: no output has values in all three runs")
    cleared = truth != RECOMPUTE and not found.unmeasured and all(map(_is_cleared, found.operators))
    return _result(os.fspath(truth), what, rows, notes, cleared, departure(found.operators))


def _is_cleared(operator: OperatorErrors) -> bool:
    """Return whether each tensor in which the target differs from the golden is about as near to the truth."""
    for slot in operator.differing:
        sums = operator.outputs.get(slot) or operator.inputs.get(slot)
        if sums is None or sums.odd[0] > sums.odd[1] or sums.error(TT) > ALARM * sums.error(GG):
            return False
    return True


def _require_precision(truth: StrPath, operators: Sequence[OperatorErrors]) -> None:
    """Raise UsageError if the values of the truth are no more precise than the golden's."""
    outputs = [sums for one in operators for sums in one.outputs.values() if sums.total[GG] or sums.total[TT]]
    coarse = [sums for sums in outputs if sums.bits[1] <= sums.bits[0]]
    if not outputs:
        outputs = [sums for one in operators for sums in one.outputs.values()]
        if outputs and all(sums.bits[1] <= sums.bits[0] for sums in outputs):
            raise UsageError(f"--truth {truth}: it has the numbers of the golden, so there is nothing to decide")
    elif len(coarse) > MOST_ALIKE * len(outputs):
        bits = Counter(sums.bits[1] for sums in coarse).most_common(1)[0][0]
        word = {8: "bfloat16", 11: "float16", 24: "float32", 53: "float64"}[bits]
        raise UsageError(
            f"--truth {truth}: {len(coarse)} of {len(outputs)} outputs are {word} numbers, no more precise than the "
            "golden's; record the truth in float32 or float64, or pass --truth recompute"
        )


def _result(
    truth: str, what: str, rows: list[ThreeRunRow], notes: list[str], cleared: bool, apart: Optional[TruthDeparture]
) -> ThreeRuns:
    worse = tuple(place for place, row in enumerate(rows) if row.verdict == WORSE)
    golden = tuple(place for place, row in enumerate(rows) if row.verdict == GOLDEN)
    whole = _whole(rows)
    if worse:
        first = rows[worse[0]]
        verdict, because = WORSE, f"first at {first.op} {first.slot}: {first.because}"
    elif apart is not None:
        verdict, cleared = UNDECIDED, False
        because = (
            f"both runs depart from the truth alike at {apart.op} {apart.slot}, by {apart.error:.2e}; check that it "
            "has their weights, inputs and settings"
        )
    elif whole is not None and whole.high < 1.0 / NOTICE:
        verdict, because = BETTER, f"its error at the end is {whole.value:.3g} times the golden's"
    elif whole is not None and whole.low > ALARM:
        verdict, because = (
            WORSE,
            f"its error at the end is {whole.value:.3g} times the golden's; no operator stands out",
        )
    else:
        end = f", at the end {whole.value:.3g} times the golden's" if whole is not None else ""
        because = f"no operator adds more error than the golden's{end}"
        if truth == RECOMPUTE:
            because = f"none of {count_of(len(rows), 'recomputed output')} has more error than the golden's"
        verdict = SAME
    if golden and verdict != WORSE:
        first = rows[golden[0]]
        because += f"; the golden is worse at {first.op} {first.slot}: {first.because}"
    return ThreeRuns(truth, what, verdict, because, rows, worse, golden, whole, cleared, tuple(notes))


def _whole(rows: Sequence[ThreeRunRow]) -> Optional[ErrorRatio]:
    """Return the ratio at the end of the network: of the last output with enough elements."""
    last = (row for row in reversed(rows) if row.elements >= FEWEST and row.ratio.value == row.ratio.value)
    return next((row.ratio for row in last), None)
