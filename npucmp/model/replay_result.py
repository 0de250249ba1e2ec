"""The result of a replay: each output of a dump compared with a float64 recomputation from its operator's inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from npucmp.model.cause import Root
from npucmp.model.dump import Operator, Run
from npucmp.model.replayed_output import ReplayedOutput, ReplayVerdict
from npucmp.model.result import Result


class EdgeVerdict(str, Enum):
    """The verdict on a gradient between two dumped operators."""

    CLEAN = "CLEAN"  # the sum of the gradients that its consumers return
    BROKEN = "BROKEN"  # a different value: code between them changed it
    UNKNOWN = "UNKNOWN"  # not all consumers are known, or none can be computed


class Edge(NamedTuple):
    """A gradient that reached an output, compared with the float64 gradients of the consumers of that output.

    order, slot   the backward record that reads it
    consumers     the backward records whose gradients must add up to it, by order
    via           how their inputs follow from the output: "bit-equal", or the functions
    ratio         its error over the expected rounding, rms over rms; rel_l2_u the relative one in unit round-offs
    """

    order: int
    slot: str
    verdict: EdgeVerdict = EdgeVerdict.UNKNOWN
    consumers: tuple[int, ...] = ()
    via: str = ""
    ratio: Optional[float] = None
    rel_l2_u: Optional[float] = None
    explanation: str = ""


class Gap(NamedTuple):
    """An input that no dumped operator wrote, and the function that produces it from earlier outputs.

    order, slot   of the input
    writers       outputs that it follows from: order and slot; empty if none is found
    function      the function of these outputs, "" if no known function fits
    ratio         its error over the expected rounding; `equal` if every element is the rounded float64 result
    others        further functions that fit
    differs       other functions at the same place in other layers, if one of them occurs at least as often as this one
    """

    order: int
    slot: str
    writers: tuple[tuple[int, str], ...] = ()
    function: str = ""
    ratio: Optional[float] = None
    equal: bool = False
    others: tuple[str, ...] = ()
    differs: str = ""


@dataclass(frozen=True)
class Replay:
    """The replay of one run: a row per output, in order of execution. `peers` are the kinds of operators that all
    exceed their budget alike, `settings` those of them that a setting of the device explains, `golden` further results
    of a replay of `golden_run`, all in words. `edges` are the gradients between backward operators, `gaps` the inputs
    between forward operators."""

    run: Run
    rows: tuple[ReplayedOutput, ...]
    peers: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    golden: tuple[str, ...] = ()
    golden_run: Optional[Run] = None
    settings: tuple[str, ...] = ()

    @property
    def operators(self) -> dict[int, Operator]:
        return {operator.order: operator for operator in self.run.operators}

    @property
    def guilty(self) -> tuple[ReplayedOutput, ...]:
        return tuple(row for row in self.rows if row.verdict is ReplayVerdict.GUILTY)

    @property
    def broken_edges(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.verdict is EdgeVerdict.BROKEN)


@dataclass(frozen=True, repr=False)
class ReplayResult(Result):
    """The result of `npucmp replay`. Paths are the dump and the golden dump, if there is one. If `strict`, any output
    that could not be replayed leaves the result undecided."""

    command = "replay"

    replays: tuple[Replay, ...] = ()
    strict: bool = False

    @property
    def rows(self) -> tuple[ReplayedOutput, ...]:
        return tuple(row for one in self.replays for row in one.rows)

    @property
    def verdicts(self) -> Counter[ReplayVerdict]:
        return Counter(row.verdict for row in self.rows)

    @property
    def roots(self) -> tuple[Root, ...]:
        """Empty: a replay evaluates each operator alone."""
        return ()

    @property
    def differs(self) -> bool:
        return bool(self.verdicts[ReplayVerdict.GUILTY]) or any(
            one.broken_edges or one.settings for one in self.replays
        )

    @property
    def is_decided(self) -> bool:
        """Whether at least one output was evaluated. Outputs that cannot be replayed are reported, but are not
        errors."""
        decided = [row.verdict is not ReplayVerdict.UNKNOWN for row in self.rows]
        return not self.broken and (all(decided) if self.strict else any(decided))
