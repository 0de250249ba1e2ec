"""The state of a search for root causes: what is known of one step and rank at the operator that is visited.

The modules beside this one answer questions about it: sources.py, seen_errors.py, intervals.py, explanations.py and
gaps.py. search.py asks them in order and records the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, AbstractSet, NamedTuple, Optional, Sequence, Union

from npucmp.flow.edges import Edges
from npucmp.flow.operators import Nodes, OperatorFindings
from npucmp.judge.tolerance import Limit
from npucmp.localise.explained_rows import explained
from npucmp.model import Evidence, Finding, Pair, Root
from npucmp.model.table import ChangedRows

if TYPE_CHECKING:
    from npucmp.localise.golden_weights import GoldenWeights
    from npucmp.localise.modules import Modules
    from npucmp.localise.parameter_drift import Updates
    from npucmp.localise.recomputation import Recomputation
    from npucmp.localise.rules import Rulebook
    from npucmp.localise.stat_columns import StatColumns
    from npucmp.localise.updated_parameters import UpdatedParameters

# an operator without an error of a root: its number in columns, or itself with its inputs that count
Passed = Union[int, "tuple[OperatorFindings, Sequence[Finding]]"]


class TensorSource(NamedTuple):
    """The earlier row of the tensor that an input holds. `tainted`: its error descends from a root; `meaningless`: it
    is memory that no operator wrote; `is_residue`: it is the rest of a sum that cancels."""

    finding: Finding
    tainted: bool
    meaningless: bool = False
    is_residue: bool = False


class WrittenSizes(NamedTuple):
    """The outputs of one operator: the largest error, the largest rms, the largest rms times elements, and the numbers
    of elements."""

    error: float
    rms: float
    sum: float
    elements: AbstractSet[int]


@dataclass(eq=False)
class Sweep:
    """The facts of one step and rank, and the state of its search.

    findings             the rows before the search; `first_row` is the number of the first of them
    nodes                the operators that are visited; `edges` are those of the findings
    rules                the rules in force; by_round_off: False if the user's own rules decide
    updates              the facts of the previous step about parameters
    ordered              both dumps record the order of execution
    columns              the rows in columns, if no values were compared
    recomputation        recomputes operators, if an estimator is there (`is_recomputed`)
    left_out             the operators that the user excluded, by place; `unpaired`: those of one run
    meaningless          rows of memory that no operator wrote, counted from the first
    any_unreadable       whether a tensor could not be read
    rounded              rows of parameters that one run rounded, and the evidence of that
    downcast_share       share of the operators that begin a coarser type than the golden's
    scopes               the module around each record

    revised              the findings that changed, by row
    explained_rows       rows whose error one of unknown size explains (unlimited_errors.py), each with its kind
    propagated           the operators that propagate such an error: number, first row, the rows of the output and of
                         the input that differ, counted from the first
    sources              the result of the search for rows; `tainted`: rows whose error descends from a root
    instead              by content: the first row to which it applies, and the source that replaces its own
    rows_read            rows of tensors that an operator has read, counted from the first
    reached              the latest row that the search has reached, counted from the first
    any_meaningless      whether an operator handed on memory that no operator wrote
    any_tainted          whether the error of any tensor descends from a root
    descending           rows of outputs that descend from a root, also within their limits
    behind               the error of outputs without a partner inside a fused operator, by row: that of the inputs
                         they are made of, None if unknown
    explained            the explanations of the operator that is visited, by row and changed_choice_share
    flipped              modules around operators with an error that a flipped choice explains; `any_flipped`: any
                         operator has one
    steepest             the largest growth of an excused error, with its operator and tensor
    hopeless             the first error that is too large although no operator made it grow much

    passed               operators whose errors were not added yet
    errors               the errors of tensors that descend from no root, sorted
    latest               the outputs of the latest operators
    gradients            the norms of the latest gradients; `largest_gradient`: the largest rms of any
    unread               the largest errors of gradients that no operator reads, by their elements
    agreeing             the latest tensor that agrees
    shapes               rows and errors of the latest outputs of each shape, in order
    residues             rows of tensors that are the rest of a sum that cancels
    largest_left         the largest error of these; 0.0 without any
    left_of_zero         the largest value of those that are zero in the golden, and have no relative error
    changed_choice_share the largest share of a choice that flipped, as near ties do

    uncompared           the outputs before the operator that could not be compared or were excluded, by elements and
                         type; `named`: by side and by the tensor's name in a graph
    other_nodes          backward calls of which the runs recorded different autograd nodes
    unrecorded           the operators of which only the inputs were recorded, with the error that each read, by name;
                         `unclaimed`: the names of the latest, to which no input was assigned
    is_told              whether the first of the rounded parameters was reported

    roots                the roots so far; `argued`: calls whose forward was BORN and has another argument or input
    is_behind_draw       whether a root drew random numbers
    inside               by module: the first operator in it that has the error
    entered              modules of which an input was reported when an operator in them was visited
    carriers             of an error from another rank: by the operator that reads it first, that by which it arrived,
                         whose outputs were not recorded; `carrier`: one whose output was not read yet
    golden_weights       the weights that only the golden recorded
    """

    findings: ChangedRows
    nodes: Nodes
    edges: Edges
    rules: Rulebook
    updates: Updates
    by_round_off: bool
    first_row: int
    ordered: bool
    columns: Optional[StatColumns]
    recomputation: Recomputation
    is_recomputed: bool
    left_out: dict[int, Pair]
    unpaired: dict[int, Pair]
    meaningless: AbstractSet[int]
    any_unreadable: bool
    rounded: tuple[AbstractSet[int], Sequence[Evidence]]
    downcast_share: float
    scopes: dict[str, str]
    any_meaningless: bool
    revised: dict[int, Finding] = field(default_factory=dict)
    explained_rows: dict[int, int] = field(default_factory=dict)
    propagated: list[tuple[int, int, int, int]] = field(default_factory=list)
    sources: dict[int, TensorSource] = field(default_factory=dict)
    tainted: set[int] = field(default_factory=set)
    instead: dict[int, tuple[int, TensorSource]] = field(default_factory=dict)
    rows_read: set[int] = field(default_factory=set)
    reached: int = -1
    any_tainted: bool = False
    descending: set[int] = field(default_factory=set)
    behind: dict[int, Optional[float]] = field(default_factory=dict)
    explained: dict[tuple[int, float], Optional[Limit]] = field(default_factory=dict)
    flipped: set[str] = field(default_factory=set)
    any_flipped: bool = False
    steepest: Optional[tuple[float, OperatorFindings, Finding]] = None
    hopeless: Optional[Finding] = None
    passed: list[Passed] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    latest: list[WrittenSizes] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    largest_gradient: float = 0.0
    unread: dict[int, float] = field(default_factory=dict)
    agreeing: Optional[Finding] = None
    shapes: dict[tuple[int, ...], list[tuple[int, float]]] = field(default_factory=dict)
    residues: set[int] = field(default_factory=set)
    largest_left: float = 0.0
    left_of_zero: float = 0.0
    changed_choice_share: float = 0.0
    uncompared: dict[tuple[int, str], list[Pair]] = field(default_factory=dict)
    named: dict[tuple[str, str], Pair] = field(default_factory=dict)
    other_nodes: list[Pair] = field(default_factory=list)
    unrecorded: dict[str, tuple[OperatorFindings, float]] = field(default_factory=dict)
    unclaimed: list[str] = field(default_factory=list)
    is_told: bool = False
    roots: list[Root] = field(default_factory=list)
    argued: set[str] = field(default_factory=set)
    is_behind_draw: bool = False
    inside: dict[str, str] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    carriers: dict[int, int] = field(default_factory=dict)
    carrier: Optional[int] = None
    golden_weights: Optional[GoldenWeights] = None

    def now(self, finding: Finding) -> Finding:
        """The current version of a finding."""
        row = finding.row
        kind = self.explained_rows.get(row)
        if kind is not None and row not in self.revised:
            return explained(self.findings[row - self.first_row], kind)
        return self.revised.get(row, finding)

    @cached_property
    def is_read(self) -> frozenset[int]:
        """The rows of tensors that a recorded operator reads, counted from the first."""
        return frozenset(self.edges.sources)

    @cached_property
    def modules(self) -> Modules:
        from npucmp.localise.modules import Modules

        return Modules(self.nodes, self.scopes)

    @cached_property
    def parameters(self) -> UpdatedParameters:
        """The operators that read each parameter which an optimizer updates."""
        from npucmp.localise.updated_parameters import UpdatedParameters

        return UpdatedParameters(self.nodes)
