"""Explain or accuse a tensor, by the errors of its inputs or by a rule, and revise its finding.

An error above the limit that the inputs explain and that descends from no root is no divergence: the tensor is a
`match`, and `because` gives the reason. A tensor that a rule accuses is `diverged`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Callable, Mapping, Optional, Sequence

from npucmp.flow.contents import is_few, is_vector
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.tolerance import Limit
from npucmp.localise.evidence import WorstInput, argument_reasons, worst_of
from npucmp.localise.intervals import Intervals, OperatorReads, differs
from npucmp.localise.recomputation import NAME as RECOMPUTED
from npucmp.localise.root_cause import OwnError, with_explanation
from npucmp.localise.rule_context import RuleContext, error_size
from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.accusations import is_step
from npucmp.localise.rules.explanations import share_of_rows
from npucmp.localise.seen_errors import SeenErrors, is_alike
from npucmp.localise.sources import Sources
from npucmp.localise.thresholds import mark_in_place
from npucmp.model import Evidence, Finding, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.roles import containers, is_output, names_of

EXPLAINED = {  # the words for the explanation, by rule; for other rules the incoming errors explain it
    "constant_rows": "rounding in rows that are constant in its input",
    "cancellation": "the errors of the terms of its sum",
}


class GradualGrowth:
    """The growth of errors that was excused.

    steepest  the largest growth, with its operator and tensor
    hopeless  the first error that is too large although no operator made it grow much
    """

    def __init__(self, is_hopeless: Callable[[RuleContext], bool]) -> None:
        self.steepest: Optional[tuple[float, OperatorFindings, Finding]] = None
        self.hopeless: Optional[Finding] = None
        self._is_hopeless = is_hopeless

    def learn(self, node: OperatorFindings, excused: Sequence[Finding], read: float) -> None:
        """Add the outputs of an operator that were excused; `read` is the error that it read."""
        for finding in excused if read else ():
            case = RuleContext(finding, node, read, grew_stepwise=True)
            if not is_step(case):
                continue
            growth = error_size(finding) / case.input_error
            if self.steepest is None or growth > self.steepest[0]:
                self.steepest = growth, node, finding
            if self.hopeless is None and self._is_hopeless(case):
                self.hopeless = finding


class Explanations:
    """The explanations of one step and rank. by_round_off is False if the user's own rules decide; then no finding
    changes.

    revised         the findings that changed, by row
    downcast_share  share of the operators that begin a coarser type than the golden's
    growth          the growth of errors that were excused
    """

    def __init__(
        self,
        rules: Rulebook,
        by_round_off: bool,
        sources: Sources,
        seen: SeenErrors,
        intervals: Intervals,
        downcast_share: float,
        scopes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.downcast_share = downcast_share
        self.growth = GradualGrowth(lambda case: rules.holds("gradual", case))
        self.revised: dict[int, Finding] = {}
        self._rules, self._by_round_off = rules, by_round_off
        self._sources, self._seen, self._intervals = sources, seen, intervals
        self._known: dict[tuple[int, float], Optional[Limit]] = {}  # of the operator that is visited
        self._scopes = scopes  # the module around each record
        self._flipped: set[str] = set()  # modules around operators with an error that a flipped choice explains
        self._any_flipped = False

    def latest(self, finding: Finding) -> Finding:
        """The current version of the finding."""
        return self.revised.get(finding.row, finding)

    # Explanations

    def begin(self) -> None:
        """Forget the explanations of the operator before."""
        self._known.clear()

    def set(self, output: Finding, by: Limit) -> None:
        """Explain the error of an output of the operator that is visited."""
        self._known[output.row, self._seen.changed_choice_share] = by

    def of(self, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Optional[Limit]:
        """The explanation of an output's error; None if there is none. Behind a root, inputs below the limit count as
        at the limit."""
        key = finding.row, self._seen.changed_choice_share
        if key not in self._known:
            self._known[key] = self._of_output(node, finding, reads)
        return self._known[key]

    def _of_output(self, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Optional[Limit]:
        before = self._intervals.incoming_error(node, finding, reads).high
        changed = self._seen.changed_choice_share
        # behind a root, inputs that may have an error do not agree
        agree = not (before and self._intervals.any_tainted) and self._intervals.agree(node, reads)
        if not before and agree:
            changed = 0.0  # what agrees explains nothing
        elif reads.error is not None:
            before = max(before, self._intervals.behind_a_root(node, finding).high)
        flipped = self._flipped and not self._flipped.isdisjoint(names_of(node.operator))
        case = RuleContext(
            finding,
            node,
            before,
            changed_choice_share=changed,
            inputs_agree=agree and not self._intervals.any_tainted,
            flipped_inside=bool(flipped),
        )
        by = self.of_case(case)
        return by or (self.inside(finding) if node.operator.path else None)

    def inside(self, finding: Finding) -> Optional[Limit]:
        """The explanation of the error of the same tensor for the operator inside this module that wrote it."""
        source = self._sources.of(finding)
        if source is None or source.tainted or error_size(finding) != error_size(source.finding):
            return None
        seen = self.latest(source.finding)
        return Limit(seen.explained_limit, seen.explained_by) if seen.explained_by else None

    def of_case(self, case: RuleContext) -> Optional[Limit]:
        """The explanation of a case. If the user's own rules decide, inputs that agree by them explain nothing; nor do
        they explain that each rank has its own part of a sum that agrees."""
        relation = case.pair.target.relation if case.pair.target is not None else None
        if getattr(relation, "unreduced", False):
            return None
        return self._rules.explanation(case) if self._by_round_off or case.input_error > 0 else None

    def excuse(self, finding: Finding, by: Optional[Limit]) -> None:
        """Excuse an error above the limit that the inputs explain and that does not descend from a root."""
        if by is None:
            return
        if by.rule == "cancellation" and is_vector(finding):
            self._seen.mark_residue(finding)
        if by.rule == "choice":
            self._seen.changed_choice_share = max(self._seen.changed_choice_share, RuleContext(finding).share_changed)
        if self._by_round_off and finding.verdict is Verdict.SHAPE:
            self._seen.changed_choice_share = max(self._seen.changed_choice_share, share_of_rows(finding))
            because = f"{finding.because}; a choice upstream differs"
            self.revised[finding.row] = with_explanation(finding._replace(verdict=Verdict.UNKNOWN, because=because), by)
        elif self._by_round_off and finding.verdict is Verdict.DIVERGED and finding.metric == "rel_l2":
            reads = "the errors of its inputs" if is_output(finding.pair) else "upstream errors"
            because = f"{finding.because}; explained by {EXPLAINED.get(by.rule, reads)}"
            known = finding.measurement.moments is not None  # statistics give only a lower bound of an error
            verdict = Verdict.MATCH if known else Verdict.UNKNOWN
            self.revised[finding.row] = with_explanation(finding._replace(verdict=verdict, because=because), by)

    def excuse_all(self, node: OperatorFindings, diverged: Sequence[Finding], reads: OperatorReads) -> None:
        """Excuse outputs that differ by no more than the inputs explain, and inputs that the operator overwrote."""
        for output in diverged:
            by = self.of(node, output, reads)
            self.excuse(output, by)
            if by is not None and by.rule == "non_smooth":
                self._flipped.update(containers(node.operator, self._scopes))
                self._any_flipped = True
            if reads.error is None and is_few(output):  # possibly the rest of a sum that cancels
                self._seen.mark_residue(output)
        for finding in node.inputs:
            # an overwritten input holds the output
            if differs(finding) and self._intervals.is_overwritten(node, finding) and not node.writes_to(finding):
                by = self.of(node, finding, reads)
                self.excuse(finding, by)
                if by is None:
                    self.revised[finding.row] = mark_in_place(finding)
        if not (self._any_flipped or self._intervals.is_cancellation_residue(node)):  # a flip is no slow growth
            self.growth.learn(node, diverged, reads.error or 0.0)

    # Inputs after explained errors were reverted

    def reads_what_differs(self, node: OperatorFindings) -> bool:
        """Whether a tensor that its forward read or wrote descends from a root and still differs, or whether the error
        of a tensor that the operator reads may descend from one, although statistics agree."""
        if not self._intervals.any_tainted:
            return False
        if any(differs(self.latest(one)) for one in node.extra_inputs):
            return True
        return any(map(self._intervals.may_have_moved, (*node.inputs, *node.extra_inputs)))

    def worst_input(self, node: OperatorFindings) -> WorstInput:
        """The input with the largest difference, as far as it can reach the outputs."""
        apart = [(self._reach(node, one, saved), one, saved) for one, saved in self._disagreeing(node)]
        own = [] if apart else [*node.inputs, *node.extra_inputs]
        read = [one for one in own if not self._intervals.is_overwritten(node, one)]
        return worst_of(apart, [*map(self._intervals.producer_finding, read)])

    def _disagreeing(self, node: OperatorFindings) -> list[tuple[Finding, bool]]:
        """The inputs that still differ, and whether each is not an input of the operator itself; as written by the
        producer if only that output was compared."""
        read = [(one, False) for one in node.inputs] + [(one, True) for one in node.extra_inputs]
        written = [(self._intervals.producer_finding(one), saved) for one, saved in read]
        apart = [(now, one, saved) for one, saved in written if differs(now := self.latest(one))]
        return [(one, saved) for now, one, saved in apart if not self._intervals.is_overwritten(node, now)]

    def _reach(self, node: OperatorFindings, finding: Finding, saved: bool) -> float:
        """The error of an input as far as it can reach the outputs; `saved`: it is not an input of the operator
        itself."""
        if saved and node.op.has("saves nothing"):
            return 0.0
        error, share = error_size(finding), self._intervals.share_of(node, finding)
        return error * share if error and share else 0.0

    def is_argued(self, node: OperatorFindings) -> bool:
        """Whether an argument differs, and the inputs have statistics that agree: then the argument causes the
        difference that statistics prove of the output."""
        read = [self._intervals.producer_finding(one) for one in node.inputs]
        agree = all(is_alike(one) or one.verdict is Verdict.MATCH for one in read) and node.reads_recorded
        is_comparable = any(map(is_alike, (*read, *node.outputs))) or any(one.measurement.bound for one in node.outputs)
        return agree and is_comparable and not self._intervals.any_tainted and bool(argument_reasons(node.pair))

    # Accusations

    def accuse(self, *cases: RuleContext, only: str = "") -> Optional[OwnError]:
        """The tensor with the words of an accusation, of several that with the largest error; None if no rule accuses
        one, or if the user's own rules decide. `only` names a single rule to try."""
        found = [self._rules.accusation(case, only) for case in cases] if self._by_round_off else []
        worst = max(filter(None, found), key=error_size, default=None)
        if worst is None:
            return None
        self.revised[worst.row] = worst
        return OwnError(worst, worst.rule)

    def accuse_recomputed(self, finding: Finding, reasons: Sequence[Evidence]) -> OwnError:
        """Mark an output that recomputation accuses as differing, even if its error is below the limit."""
        if not differs(finding):
            because = f"{finding.because}; {reasons[0].sentence()}".removeprefix("; ")
            finding = finding._replace(verdict=Verdict.DIVERGED, because=because, rule=RECOMPUTED)
            self.revised[finding.row] = finding
        return OwnError(finding, RECOMPUTED)

    def own_error(self, node: OperatorFindings, reads: OperatorReads) -> Optional[OwnError]:
        """The output whose error exceeds what the inputs explain, otherwise an output that is accused; the largest
        error of several."""
        unexplained = [one for one in node.outputs if differs(one) and not self.of(node, one, reads)]
        if unexplained:
            worst = max(unexplained, key=error_size)
            return OwnError(worst, worst.rule)
        is_bounded = not any(map(self._intervals.may_have_moved, (*node.inputs, *node.extra_inputs)))
        is_bounded = is_bounded and reads.error is not None
        cases = [
            RuleContext(
                one,
                node,
                self._intervals.incoming_error(node, one, reads).high,
                downcast_share=self.downcast_share,
                changed_choice_share=self._seen.changed_choice_share,
            )
            for one in node.outputs
            if (is_bounded or one.measurement.moments)  # the rules below are for values
            and one.rule != OTHER_NODE
            and not self._is_rounding_alone(node, one, reads)
        ]
        if is_bounded:
            return self.accuse(*cases)
        if found := self.accuse(*cases, only="law"):  # it does not depend on the inputs of an operator
            return found
        # nor do single elements that are wrong, nor one factor that scales a tensor while no root exists upstream
        rules = ["single_element"] if self._intervals.any_tainted else ["single_element", "scaled"]
        accused = (self.accuse(case, only=name) for case in cases for name in rules)
        return next(filter(None, accused), None)

    def _is_rounding_alone(self, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> bool:
        """Whether some rows of an output hold only rounding, which accusations do not consider."""
        is_candidate = finding.measurement.settled is not None and differs(finding)
        by = self.of(node, finding, reads) if is_candidate else None
        return by is not None and by.rule == "constant_rows"
