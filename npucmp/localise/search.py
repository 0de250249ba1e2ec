"""Search for root causes in graph-ordered Findings: which operator bears an error, and which operators propagate it.

Operators are evaluated in execution order. Do the inputs of an operator agree? If not, do upstream tensors explain the
difference (gaps.py)? Do its outputs differ by more than its inputs explain (explanations.py, intervals.py)? Does a
recomputation accuse or acquit it (recomputation.py)? localise/rules/ decides what explains and what accuses; this
module has the search itself: the order of these questions, and descent from a root. `RootSearch.visit` decides about
one operator, and `_cause` between BORN, WORSENED and UNKNOWN; sweep.py has the state between two operators.

An operator is UNKNOWN if an input comes from an output that was not compared (localise/sources.py). A backward operator
is UNKNOWN if its forward was not recorded, cannot be read, or ran again on one side only with other values
(checkpointing); sums, views and copies save nothing and are exempt. A collective or a receive whose own inputs agree is
UNKNOWN if not all ranks of its group are compared: inputs of the other ranks may be wrong. Operators behind an UNKNOWN
operator are PROPAGATED. Weights that only the target's graph has, because a compiler folded others into them, are
exempt: the error is BORN "in this operator or in its folded weights".

Once an error descends from a root, inputs below their limit may have an error of the limit, so that operators behind a
normalisation are not BORN again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from npucmp.flow.contents import content_of, contents_of
from npucmp.flow.edges import Edges
from npucmp.flow.operators import Nodes, OperatorFindings, numbered
from npucmp.judge.tolerance import Limit
from npucmp.localise import evidence
from npucmp.localise.alignment_confidence import begins_upstream, uncertain_cause
from npucmp.localise.explained_rows import ExplainedRows
from npucmp.localise.explanations import (
    accuse_recomputed,
    excuse_all,
    explanation_inside,
    explanation_of,
    is_argued,
    own_error,
    reads_what_differs,
    worst_input,
)
from npucmp.localise.gaps import find_gap, gap_cause, input_of_module
from npucmp.localise.intervals import (
    WORDS,
    OperatorReads,
    incoming_error,
    is_cancellation_residue,
    is_half_known,
    is_overwritten,
    is_residue,
    is_saved_known,
    may_have_moved,
    reads_of,
    uncompared_saved_tensors,
)
from npucmp.localise.parameter_drift import Updates, rounded_parameters
from npucmp.localise.recomputation import NAME as RECOMPUTED
from npucmp.localise.recomputation import Estimator, Recomputation, RecomputedRows
from npucmp.localise.root_cause import OwnError, root_of, with_explanation
from npucmp.localise.rule_context import RuleContext, differs, error_size, is_still
from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.accusations import downcast_share
from npucmp.localise.rules.explanations import GROWTH
from npucmp.localise.seen_errors import is_alike, learn_shapes
from npucmp.localise.sources import (
    add_uncompared,
    excluded_forward,
    is_marked,
    learn_source,
    learn_unrecorded,
    meaningless_rows,
    remember_uncompared,
    reordering_writers,
    source_of,
    unpaired_operators,
)
from npucmp.localise.sweep import Sweep, TensorSource
from npucmp.localise.thresholds import disregard
from npucmp.model import Cause, Evidence, Finding, Operator, Pair, Root, Verdict
from npucmp.model.arguments import draws_numbers
from npucmp.model.dtypes import SUM_ROUNDING
from npucmp.model.finding import DIFFERS, OTHER_NODE
from npucmp.model.network import SearchRows, by_network
from npucmp.model.roles import containers, is_folded, is_parameter, names_of
from npucmp.model.table import ChangedRows, rows_of_verdicts, with_changes

if TYPE_CHECKING:
    from npucmp.localise.stat_columns import StatColumns


@by_network
def _have_other_types(pairs: Sequence[Pair]) -> bool:
    """Whether a tensor has another type than its partner."""
    return any(
        one.target is not None and one.golden is not None and one.target.dtype != one.golden.dtype for one in pairs
    )


def _with_meaningless(findings: SearchRows, rules: Rulebook) -> ChangedRows:
    """The rows, of which those that differ and hold memory that no operator wrote are disregarded."""
    differing = meaningless_rows(findings).intersection(rows_of_verdicts(findings, DIFFERS))
    rows = [row for row in sorted(differing) if rules.holds("meaningless", RuleContext(findings[row]))]
    return ChangedRows(findings, {row: disregard(findings[row]) for row in rows})


def _columns(rows: SearchRows) -> Optional[StatColumns]:
    """The rows in columns, if no values were compared."""
    if len(rows.columns.moments):
        return None
    from npucmp.localise.stat_columns import StatColumns, likely_error, movement_of_row

    columns = StatColumns(rows)
    rows.cache.fill(movement_of_row, columns)
    rows.cache.fill(likely_error, columns.likely_errors)
    rows.cache.fill(content_of, contents_of(rows))
    return columns


def _downcast_share(nodes: Nodes, findings: ChangedRows) -> float:
    return downcast_share(nodes) if _have_other_types(findings) else float(_has_one_operator(findings))


def _operators(pairs: Sequence[Pair]) -> list[Operator]:
    """The operators of both runs, in graph order."""
    both = (pair for pair in pairs if pair.target_op is not None and pair.golden_op is not None)
    return [*{pair.order: pair.operator for pair in both}.values()]


@by_network
def _has_one_operator(pairs: Sequence[Pair]) -> bool:
    operators = _operators(pairs)
    return len([operator for operator in operators if not operator.path] or operators) == 1


@by_network
def _scopes(pairs: Sequence[Pair]) -> dict[str, str]:
    return {operator.name: operator.scope for operator in _operators(pairs) if operator.scope}


class RootSearch(Sweep):
    """The search through one run, operator by operator, for callers that search several runs side by side.

    Visit each of `nodes` in order; then `results` returns the findings, with `diverged` reverted where inputs explain
    the error, and the roots in that order. by_round_off is False if the user's own rules decide; then no finding is
    reverted. Rows are numbered from `first_row`. `estimator` recomputes operators of both runs (recomputation.py);
    without it bounds alone decide.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        by_round_off: bool = True,
        rules: Optional[Rulebook] = None,
        updates: Optional[Updates] = None,
        left_out: Sequence[Pair] = (),
        first_row: int = 0,
        rank: Optional[int] = None,
        estimator: Optional[Estimator] = None,
        ordered: bool = True,
    ) -> None:
        rows, rules, updates = numbered(findings, first_row), rules or Rulebook(), updates or Updates()
        found, columns = _with_meaningless(rows, rules), _columns(rows)
        updates.decide(found)
        nodes, meaningless = Nodes(found), meaningless_rows(found)
        super().__init__(
            findings=found,
            nodes=nodes,
            edges=Edges(found, rank),
            rules=rules,
            updates=updates,
            by_round_off=by_round_off,
            first_row=first_row,
            ordered=ordered,
            columns=columns,
            recomputation=Recomputation(estimator if by_round_off else None),
            is_recomputed=estimator is not None and by_round_off,
            left_out={pair.order: pair for pair in left_out},
            unpaired=unpaired_operators(found),
            meaningless=meaningless,
            any_meaningless=bool(meaningless),
            any_unreadable=bool(rows_of_verdicts(found, (Verdict.UNREADABLE,))),
            rounded=rounded_parameters(found if by_round_off and columns is None else ()),
            downcast_share=_downcast_share(nodes, found),
            scopes=_scopes(found),
        )
        for pair in left_out:
            add_uncompared(self, pair)

    def results(self) -> tuple[ChangedRows, list[Root]]:
        """The findings and roots of all operators; errors that grew step by step beyond the limit of rule `gradual` are
        a root if there is no other."""
        if (
            self.by_round_off
            and not (self.roots or self.propagated)
            and self.hopeless is not None
            and self.steepest is not None
        ):
            times, node, finding = self.steepest
            for one in (finding, self.hopeless):
                self.revised.pop(one.row, None)
            reasons = evidence.gradual_reasons(finding, times, GROWTH, self.hopeless)
            self._add(node, Cause.WORSENED, OwnError(finding, "gradual"), reasons, reads_of(self, node))
        revised = {row - self.first_row: finding for row, finding in self.revised.items()}
        if self.explained_rows:
            rows, changed = self.findings.rows, {row - self.first_row for row in self.explained_rows}
            assert isinstance(rows, SearchRows)
            columns = self.explained_result().in_columns(rows.columns)
            return ChangedRows(rows.with_columns(columns, changed), {**self.findings.changes, **revised}), self.roots
        return with_changes(self.findings, revised), self.roots

    def explained_result(self, clock: Callable[[int], int] = int) -> ExplainedRows:
        """Return the rows that errors of unknown size explain, and the operators that propagate them. `clock` returns
        the clock of an operator by its number."""
        rows = ((row - self.first_row, kind) for row, kind in self.explained_rows.items())
        return ExplainedRows.of(rows, ((clock(at), *of_rows) for at, *of_rows in self.propagated))

    # The decision on one operator

    def pass_by(self, at: int) -> bool:
        """Pass an operator, given by its number, that needs no decision; False if `visit` is to decide. No tensor of
        another rank reaches it."""
        if self.columns is None or self.is_recomputed or self.unrecorded or self.instead:
            return False
        if not self.columns.quiet[at]:
            return False
        rows, tainted = self.nodes.rows[at], self.any_tainted
        if (self.residues and not rows.inputs) or (tainted and not self.columns.network.reads_recorded[at]):
            return False
        read = (*rows.inputs, *rows.extra_inputs) if tainted else ()
        if not all(map(self._is_untainted, read)):
            return False
        self.rows_read.update(self.edges.sources[row] for row in read)
        if self.any_meaningless and any(is_marked(self, self.findings[row]) for row in rows.inputs):
            return False
        if self.descending:
            sources, first = self.edges.sources, self.first_row
            if any(sources[row] + first in self.descending for row in rows.inputs if sources[row] >= 0):
                self.descending.update(row + first for row in rows.outputs)
        self.passed.append(at)
        self.reached = max(self.reached, rows.outputs[-1])
        return True

    def _is_untainted(self, row: int) -> bool:
        """Whether a row agrees and no error of a root reaches it, as far as columns show."""
        columns = self.columns
        assert columns is not None
        if columns.differs_by_verdict[row] or row + self.first_row in self.revised:
            return False
        written, is_told = self.edges.sources[row], bool(self.edges.contents[row])
        at = (written if written >= 0 else row) + self.first_row
        if written >= 0 or (is_told and (at in self.tainted or at in self.sources or row in self.rows_read)):
            return at not in self.tainted
        return bool(columns.network.is_parameter[row]) or not columns.differs[row]

    def explain(self, at: int) -> bool:
        """Record an operator, given by its number, whose input has an error of unknown size, as columns show; False if
        `visit` is to decide. No tensor of another rank reaches it."""
        if self.columns is None or not self.columns.reads_unlimited[at]:
            return False
        from npucmp.localise.unlimited_errors import explain  # values need no columns

        return explain(self, self.columns, at)

    def visit(self, node: OperatorFindings) -> None:
        """Judge one operator, and record the consequences for the tensors that it wrote."""
        if self._is_quiet(node) and not self.recomputation.is_sampled(node):
            self._pass_descent(node)
            self.passed.append((node, self._counted_inputs(node)))
            self.reached = max(self.reached, node.outputs[-1].row - self.first_row)
            return
        self.explained.clear()
        if self._hands_on_nothing(node):
            self.revised.update((one.row, disregard(one)) for one in (*node.inputs, *node.outputs))
            for finding in node.outputs:
                learn_source(self, TensorSource(finding, tainted=False, meaningless=True))
            return

        # What does it read?
        node.inputs, node.outputs = (
            [self._as_written(finding) if finding.verdict is Verdict.MATCH else finding for finding in side]
            for side in (node.inputs, node.outputs)
        )
        gap, inherits = find_gap(self, node)
        if gap and (entered := input_of_module(self, node, gap.finding)):
            self._add_input_of_module(node, *entered)
            gap, inherits = find_gap(self, node)
        inherits |= node.error_from_other_rank or reads_what_differs(self, node) or is_half_known(self, node)
        reads = reads_of(self, node)

        # Do its outputs differ by more? Does a recomputation accuse or acquit it?
        diverged = [output for output in node.outputs if differs(output)]
        culprit = self._culprit(node)
        inherits |= bool(diverged and culprit)
        own = None if gap else own_error(self, node, reads)
        known = None if gap else self._recompute(node, own, diverged, reads)
        guilty = self._guilty(node, own, known) if known and not culprit else None
        far = None if gap or own or guilty or culprit else self.recomputation.small_values(node)
        if far is not None:
            own = accuse_recomputed(self, *far)
            known = known or self.recomputation.of(node)
        if (
            own and known and not (guilty or far) and not begins_upstream(node)
            and known.is_innocent(node, own.rule, own.finding, self._are_all_known(node, reads))
        ):  # fmt: skip
            self.revised.pop(own.finding.row, None)  # revert the words of an accusation
            own = None
            for output in diverged:
                self.explained[output.row, self.changed_choice_share] = Limit(error_size(output), RECOMPUTED)
        if inherits and node.operator.path and not (gap or own or guilty):
            inherits = not diverged or any(explanation_inside(self, one) is None for one in diverged)

        if own and inherits and not (guilty or far) and self._has_no_upper_bound(node, own, diverged, reads):
            own = None
        if diverged and self.any_tainted and not (gap or own or guilty):
            inherits |= self._marks_descent(node, diverged)

        # The first answer that applies
        if node.pair.order in self.entered:
            pass
        elif gap:
            cause, reasons = gap_cause(self, node, gap.finding)
            self._add(node, cause, gap, reasons, reads)
        elif guilty and self.recomputation.follows(node):
            words = "the forward pass of this call produces the error"
            self._add(node, Cause.PROPAGATED, guilty[0], [evidence.reason("forward", words), *guilty[1]], reads)
        elif guilty and known:
            self.recomputation.blame(node)
            self._add(node, Cause.BORN, *self._with_bounds(node, own, *guilty, known, reads), reads)
        elif own and node.is_gradient and node.operator.call in self.argued:
            words = "the forward pass of this call has another argument or input"
            reasons = [evidence.reason("forward", words), evidence.tensor_reason(own.finding)]
            self._add(node, Cause.PROPAGATED, own, reasons, reads)
        elif own and culprit:
            reasons = [evidence.reason("container", "contains {name}, which has the error", name=culprit)]
            self._add(node, Cause.PROPAGATED, OwnError(own.finding, "container"), reasons, reads)
        elif own and far:
            side = known.less_accurate(far[0]) if known else []
            self._add(node, Cause.BORN, own, [*side, *far[1]], reads)
        elif own:
            self._add(node, *self._recomputed_cause(node, own, known, reads), reads)
        elif inherits and diverged:
            self._add(node, Cause.PROPAGATED, *self._propagated_output(node, diverged, known, reads), reads)
        elif carried := self._remote_error(node):
            self._add(node, Cause.PROPAGATED, carried, [evidence.tensor_reason(carried.finding)], reads)
        else:
            excuse_all(self, node, diverged, reads)

        node.inherits = inherits
        unread = any(one.error is None for one in node.outputs) or (node.error_from_other_rank and not node.outputs)
        node.tainted = bool(gap or own or guilty or (inherits and (diverged or unread)))
        self._remember(node, reads)

    def _cause(self, node: OperatorFindings, own: Finding, reads: OperatorReads) -> tuple[Cause, list[Evidence]]:
        """The cause of an error that the inputs do not explain, with the evidence."""
        pair, worst = node.pair, worst_input(self, node)
        by_argument = is_argued(self, node)
        if node.remote_inputs_missing and not worst.differs:
            return Cause.BORN if by_argument else Cause.UNKNOWN, evidence.unheard_reasons(own, bool(node.inputs))
        if by_argument:
            alike = evidence.WorstInput(alike=evidence.BY_STATISTICS)
            return Cause.BORN, evidence.own_reasons(pair, own, alike, bool(node.inputs))
        if not node.inputs and node.op.name == "rand" and own.measurement.moments is not None:  # it depends on no input
            return Cause.BORN, [evidence.tensor_reason(own), *evidence.argument_reasons(pair)]
        if not reads.is_known or (not worst.differs and is_half_known(self, node)):
            open_reads = [read.finding for read in reads.inputs if not read.interval.is_known]
            reasons = evidence.unknown_reasons(own, open_reads)
            return Cause.UNKNOWN, reasons + self._interval_reasons(node, own, reads)
        if not is_saved_known(self, node):
            left_out = excluded_forward(self.left_out, node)
            reasons = evidence.unsaved_reasons(
                own, uncompared_saved_tensors(self, node), left_out, node.recomputed, node.is_rerun_lost
            )
            return Cause.UNKNOWN, reasons + self._interval_reasons(node, own, reads)
        by_statistics = not worst.differs and worst.alike == evidence.BY_STATISTICS
        if by_statistics and (reordered := self.reordered_reasons(node, most=1)):
            return Cause.SUSPECT, [*reordered, evidence.tensor_reason(own), *evidence.argument_reasons(pair)]
        reasons = evidence.own_reasons(pair, own, worst, bool(node.inputs) or node.has_remote_inputs)
        reasons += evidence.alone_reasons(node.inputs)
        reasons += evidence.folded_reasons(node.inputs)
        reasons += evidence.uncompared_weights(self._golden_weights_of(pair.order))
        reasons += evidence.follower_reasons(pair, self.unpaired.get(pair.order + 1))
        return Cause.WORSENED if worst.differs else Cause.BORN, reasons

    def _are_all_known(self, node: OperatorFindings, reads: OperatorReads) -> bool:
        """Whether an operator reads an error, and all that it reads was compared."""
        is_error = reads.error != 0.0 or any(map(_is_number_elsewhere, node.inputs))
        is_known = is_error and reads.is_known and is_saved_known(self, node)
        return is_known and not any(is_folded(one.pair) for one in node.inputs)  # they were compared with nothing

    def _has_no_upper_bound(
        self, node: OperatorFindings, own: OwnError, diverged: Sequence[Finding], reads: OperatorReads
    ) -> bool:
        """Whether an output beyond its limit reads a tensor that descends from a root and has no figure but statistics:
        these bound no error from above, and no argument of the operator differs."""
        if not any(own.finding is one for one in diverged) or evidence.argument_reasons(node.pair):
            return False
        return any(may_have_moved(self, finding) for finding in (one.finding for one in (*reads.inputs, *reads.saved)))

    def _golden_weights_of(self, order: int) -> list[str]:
        """The names of the weights of an operator that only the golden recorded."""
        if self.golden_weights is None:
            missing = (self.findings[row] for row in rows_of_verdicts(self.findings, (Verdict.MISSING,)))
            if not any(one.pair.target is None for one in missing):
                return []
            from npucmp.localise.golden_weights import GoldenWeights  # few runs lack weights

            self.golden_weights = GoldenWeights(self.findings)
        return self.golden_weights.of_reader(order)

    def reordered_reasons(self, node: OperatorFindings, most: int = 2) -> list[Evidence]:
        """The evidence of inputs whose statistics agree and whose elements an operator of one run may have moved; of
        each run with `most` 2."""
        alike = [read for read in node.inputs if is_alike(read)]
        writers = [(read, reordering_writers(self.unpaired, read)) for read in alike]
        return [evidence.reordered_reason(read, alone) for read, alone in writers if 0 < len(alone) <= most]

    def _add(
        self, node: OperatorFindings, cause: Cause, own: OwnError, reasons: list[Evidence], reads: OperatorReads
    ) -> None:
        uncertain = uncertain_cause(node, cause, own.finding)
        if uncertain is not None:
            cause, more = uncertain
            reasons = [*more, *reasons]
        if cause is Cause.BORN and node.operator.call and _differs_as_call(node):
            self.argued.add(node.operator.call)
        self.roots.append(root_of(node, cause, own, reasons, reads.error))
        self.is_behind_draw |= draws_numbers(node.operator)

    def _add_input_of_module(self, node: OperatorFindings, module: OperatorFindings, finding: Finding) -> None:
        """Add a root for an input of the module around an operator: dumps list a module behind the operators in it, and
        it read the tensor before they ran."""
        own, reads = OwnError(finding, finding.rule), reads_of(self, module)
        cause, reasons = gap_cause(self, module, finding, node.row)
        self._add(module, cause, own, reasons, reads)
        self.entered.add(module.pair.order)
        self.any_tainted = True

    # Operators that need no decision

    def _is_quiet(self, node: OperatorFindings) -> bool:
        """Whether an operator needs no decision, and later operators need only its errors: no tensor of it differs or
        can be accused, and no error reaches it."""
        if node.error_from_other_rank or node.unequal or self.unrecorded or not node.outputs:
            return False
        if self.residues and not node.inputs:
            return False
        if not (all(map(is_still, node.outputs)) and all(map(is_still, node.inputs))):
            return False
        if is_half_known(self, node) or reads_what_differs(self, node):
            return False
        if any(output.pair.golden is None and output.pair.is_inside for output in node.outputs):
            return False
        marks = self.any_tainted or self.any_meaningless
        return not (marks and any(is_marked(self, finding) for finding in node.inputs))

    def _as_written(self, finding: Finding) -> Finding:
        """One tensor has one verdict: a match that differs where it was written, because of a root, also differs where
        its reader has a wider limit."""
        source = source_of(self, finding)
        if source is None or not source.tainted or finding.error is None:
            return finding
        error, written = error_size(finding), self.now(source.finding)
        is_same = math.isclose(error, error_size(written), rel_tol=SUM_ROUNDING)
        if not differs(written) or written.metric != finding.metric or not is_same or error <= written.limit:
            return finding
        return self._as_diverged(finding, written.limit)

    def _as_diverged(self, finding: Finding, limit: float) -> Finding:
        found = finding._replace(verdict=Verdict.DIVERGED, limit=limit, rule="behind_root")
        found = found._replace(because=f"rel_l2 {error_size(found):.2e}, limit {found.limit:.2e}")
        self.revised[finding.row] = found
        return found

    def _marks_descent(self, node: OperatorFindings, diverged: Sequence[Finding]) -> bool:
        """Whether outputs beyond their limits descend from a root through inputs within a wider limit. These inputs
        differ too: what descends from a root does not agree."""
        least = min((one.limit for one in diverged if one.metric == "rel_l2"), default=math.inf)
        rows = [at for at, one in enumerate(node.inputs) if one.verdict is Verdict.MATCH and one.metric == "rel_l2"
                and error_size(one) > least and self._may_descend(one)]  # fmt: skip
        for at in rows:
            node.inputs[at] = self._as_diverged(node.inputs[at], least)
        return bool(rows)

    def _may_descend(self, finding: Finding) -> bool:
        """Whether a tensor descends from a root, or no recorded operator wrote it while a root exists."""
        source = source_of(self, finding)
        if source is None:
            return not is_parameter(finding.pair)
        return source.tainted or source.finding.row in self.descending

    def _hands_on_nothing(self, node: OperatorFindings) -> bool:
        """Whether an operator only copies or views memory that no operator wrote."""
        if not node.inputs or not node.op.has("copies", "hands on", "views"):
            return False
        return all(
            source is not None and source.meaningless
            for source in (source_of(self, finding) for finding in node.inputs)
        )

    def _remote_error(self, node: OperatorFindings) -> Optional[OwnError]:
        """An input that differs because of an error from another rank, which an operator without recorded outputs
        received; None for all but the first consumer."""
        apart = [one for one in node.inputs if differs(one)] if self.carrier is not None and not node.outputs else []
        if not apart or self.carrier is None:
            return None
        self.carriers[node.pair.order], self.carrier = self.carrier, None
        return OwnError(max(apart, key=error_size), "collective")

    def _interval_reasons(self, node: OperatorFindings, own: Finding, reads: OperatorReads) -> list[Evidence]:
        came = incoming_error(self, node, own, reads)
        return evidence.interval_reasons(WORDS.get(came.source, ""), came.high)

    def _culprit(self, node: OperatorFindings) -> str:
        """The operator inside this module that has the error already; "" if there is none."""
        names = names_of(node.operator) if node.outputs and self.rules.uses("container") else ()
        return next(filter(None, map(self.inside.get, names)), "")

    def _propagated_output(
        self, node: OperatorFindings, diverged: Sequence[Finding], known: Optional[RecomputedRows], reads: OperatorReads
    ) -> tuple[OwnError, list[Evidence]]:
        """The output with the largest error that came in, and the evidence."""
        worst = max(diverged, key=error_size)
        for output in diverged:
            self.revised[output.row] = with_explanation(output, explanation_of(self, node, output, reads))
        reasons = evidence.passed_reasons(worst, worst_input(self, node))
        reasons += known.cause(node, Cause.PROPAGATED, worst)[1] if known else []
        return OwnError(worst, self.revised[worst.row].explained_by), reasons

    # Recomputation

    def _recompute(
        self, node: OperatorFindings, own: Optional[OwnError], diverged: Sequence[Finding], reads: OperatorReads
    ) -> Optional[RecomputedRows]:
        """Recompute an operator in float64 if it is suspected or sampled, if its errors have a direction, if a coarser
        type upstream hides them, if it lies behind an operator that drew other random numbers, or if a rule other than
        growth explains an error above the limit."""
        if not self.recomputation.applies(node):
            return None
        by = [explanation_of(self, node, one, reads) for one in diverged]
        excused = any(one is not None and one.rule != "growth" for one in by)
        is_hidden = self.recomputation.is_directed(node) or self.recomputation.is_finer(node)
        is_drawn = self.is_behind_draw and bool(diverged)  # what lies behind other random numbers is judged on these
        if own is not None or excused or is_hidden or is_drawn or self.recomputation.is_sampled(node):
            return self.recomputation.of(node)
        return None

    def _guilty(
        self, node: OperatorFindings, own: Optional[OwnError], known: RecomputedRows
    ) -> Optional[tuple[OwnError, list[Evidence]]]:
        """The output that shows that an operator bears an error, with the evidence. If the forward of a call bears an
        error, its gradient counts only if it differs."""
        found = known.guilty(node.outputs, own is not None)
        if found is None or (self.recomputation.follows(node) and not differs(found[0])):
            return None
        forward = self.recomputation.forward_of(node)
        if forward is not None:
            self._blame_forward(*forward)
        reasons = found[1]
        if evidence.argument_reasons(node.pair):
            words = "this holds with the run's own arguments: the differing argument does not explain it"
            reasons = [*reasons, evidence.reason(RECOMPUTED, words)]
        return accuse_recomputed(self, found[0], reasons), reasons

    def _blame_forward(self, forward: OperatorFindings, finding: Finding, reasons: list[Evidence]) -> None:
        """Add a root for a forward whose error its gradient revealed. The forward was visited before with a small
        error."""
        self.recomputation.blame(forward)
        if all(root.pair.order != forward.pair.order for root in self.roots):
            own = accuse_recomputed(self, self.now(finding), reasons)
            reasons = [*reasons, evidence.tensor_reason(own.finding)]
            self._add(forward, Cause.BORN, own, reasons, reads_of(self, forward))

    def _with_bounds(
        self,
        node: OperatorFindings,
        own: Optional[OwnError],
        guilty: OwnError,
        reasons: list[Evidence],
        known: RecomputedRows,
        reads: OperatorReads,
    ) -> tuple[OwnError, list[Evidence]]:
        """The output and the evidence of a guilty operator, with the evidence from bounds; that comes first if the
        bounds also give BORN, unless the golden is the guilty side."""
        if known.blames_golden:
            reasons = [*known.less_accurate(guilty.finding), *reasons]
        if own is None:
            return guilty, [*reasons, evidence.tensor_reason(guilty.finding)]
        cause, bounds = self._cause(node, own.finding, reads)
        if cause is Cause.BORN and not known.blames_golden:
            return own, [*bounds, *reasons]
        return guilty, [*reasons, *bounds]

    def _recomputed_cause(
        self, node: OperatorFindings, own: OwnError, known: Optional[RecomputedRows], reads: OperatorReads
    ) -> tuple[Cause, OwnError, list[Evidence]]:
        """The cause of an error that the inputs do not explain, after a recomputation if there was one."""
        cause, reasons = self._cause(node, own.finding, reads)
        if not known or begins_upstream(node):
            return cause, own, reasons
        if _differs_as_call(node):
            return cause, own, [*reasons, *known.own_argument_reasons()]
        after, found = known.cause(node, cause, own.finding)
        ordered = [*reasons, *found] if draws_numbers(node.operator) else [*found, *reasons]
        return after, own if after is cause else OwnError(own.finding, RECOMPUTED), ordered

    # The facts that later operators need

    def _remember(self, node: OperatorFindings, reads: OperatorReads) -> None:
        hidden = [output for output in node.outputs if output.pair.is_inside and output.pair.golden is None]
        self.behind.update((output.row, reads.error) for output in hidden)
        if node.error_from_other_rank and not node.outputs and not self.any_tainted:
            self.carrier = node.pair.order
        wanders = is_cancellation_residue(self, node)
        for finding in node.inputs:
            left = differs(finding) and (wanders or is_residue(self, finding))
            learn_source(
                self, TensorSource(finding, (node.tainted or node.inherits) and differs(finding), is_residue=left)
            )
        self._pass_descent(node)
        for finding in node.outputs:
            tainted = node.tainted and (differs(finding) or finding.error is None)
            left = finding.row in self.residues or (wanders and differs(finding))
            meaningless = finding.row - self.first_row in self.meaningless
            learn_source(self, TensorSource(finding, tainted, meaningless, left))
        learn_shapes(self, node)
        if node.tainted:
            self.any_tainted = True
            for container in containers(node.operator, self.scopes):
                self.inside.setdefault(container, node.operator.name)
        else:
            self.passed.append((node, [] if wanders else self._counted_inputs(node)))
        remember_uncompared(self, node)
        is_other = any(one.rule == OTHER_NODE for one in node.outputs) and all(
            one.error is None for one in node.outputs
        )
        if node.inputs and (is_other or not node.outputs):
            learn_unrecorded(self, node, reads.error or 0.0)

    def _pass_descent(self, node: OperatorFindings) -> None:
        """Record that all that an operator wrote descends from a root, if what it read does."""
        if not (node.tainted or node.inherits):
            read = filter(None, (source_of(self, finding) for finding in node.inputs)) if self.descending else ()
            if not any(source.finding.row in self.descending for source in read):
                return
        self.descending.update(one.row for one in node.outputs)

    def _counted_inputs(self, node: OperatorFindings) -> list[Finding]:
        """The inputs whose errors count among the errors seen."""
        return [one for one in node.inputs if not is_overwritten(self, node, one)]


def _differs_as_call(node: OperatorFindings) -> bool:
    """Whether the runs pass other arguments to an operator, or a tensor that the other run does not pass."""
    return bool(evidence.argument_reasons(node.pair) or evidence.alone_reasons(node.inputs))


def _is_number_elsewhere(finding: Finding) -> bool:
    """Whether an input is a tensor in one run and a number in the other."""
    pair = finding.pair
    operator = pair.golden_op if pair.golden is None else pair.target_op
    if finding.verdict is not Verdict.MISSING or operator is None:
        return False
    return isinstance(operator.arguments.get(pair.slot), (int, float))
