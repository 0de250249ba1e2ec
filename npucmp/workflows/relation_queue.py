"""The queue of relations: each one finds how one side arranges its numbers otherwise, and puts both sides into one
arrangement. The next relation, and at last the pipeline, see what the one before left.

A relation is a module with `find(sides, options, context, in_doubt)`, which returns None if both sides are arranged
alike. `in_doubt`: a comparison showed that the runs read different inputs, perhaps the same ones in another order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Callable, NamedTuple, Optional, Protocol, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Report
from npucmp.workflows.layout_detection import (
    may_be_weights,
    may_have_other_batches,
    may_have_other_names,
    may_have_other_ranks,
    may_hold_other_tokens,
)
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides


class FoundRelation(Protocol):
    """How two sides are related."""

    def plan(self) -> Sequence[str]:
        """Return in lines what was found, by what, and for how many tensors."""

    def apply(self, sides: Sides) -> Sides:
        """Return the sides in one arrangement, in the names of the golden. Their tensors are views of recorded ones."""

    def explain(self, report: Report) -> Report:
        """Return the report of these sides, in which roots and notes name ranks, samples and tokens as recorded."""


class RelationModule(NamedTuple):
    """A relation: its module, and whether the headers of two sides allow it (which loads no module)."""

    module: str
    is_possible: Callable[[Sides, Options, bool], bool]


OF_FILES = (RelationModule("npucmp.relations.weights.workflow", may_be_weights),)  # they open both sides themselves
OF_RUNS = (
    RelationModule("npucmp.relations.stated.workflow", lambda sides, options, in_doubt: options.mapping is not None),
    RelationModule("npucmp.relations.frameworks.rank_names", may_have_other_names),
    RelationModule("npucmp.relations.ranks.batch_size", may_have_other_batches),
    RelationModule("npucmp.relations.tokens.token_places", may_have_other_ranks),
    RelationModule("npucmp.relations.tokens.workflow", may_hold_other_tokens),
    RelationModule("npucmp.relations.ranks.workflow", may_have_other_ranks),
)


class Related(NamedTuple):
    """Both sides in one arrangement, and the relations that led there."""

    sides: Sides
    found: Sequence[FoundRelation] = ()

    def explained(self, report: Report) -> Report:
        """Return the report of the sides in the words of all relations, the last one first."""
        for relation in reversed(self.found):
            report = relation.explain(report)
        return report


class RelationQueue:
    """The relations in a row, each of which is asked once for the same sides."""

    def __init__(self, options: Options, context: ReadContext) -> None:
        self._options, self._context = options, context
        self._made: dict[tuple[int, int], Sides] = {}
        self._asked: dict[tuple[str, int, bool], tuple[Sides, Optional[FoundRelation]]] = {}

    def related(self, sides: Sides, relations: Sequence[RelationModule] = OF_RUNS, in_doubt: bool = False) -> Related:
        """Return both sides in one arrangement."""
        found = list[FoundRelation]()
        for relation in relations:
            step = self._find(relation, sides, in_doubt)
            if step is not None:
                sides = self._applied(step, sides)
                found.append(step)
        return Related(sides, found)

    def _applied(self, step: FoundRelation, sides: Sides) -> Sides:
        """Return the sides that a relation makes, the same ones each time, so that no relation is asked again."""
        key = id(step), id(sides)
        if key not in self._made:
            self._made[key] = step.apply(sides)
        return self._made[key]

    def _find(self, relation: RelationModule, sides: Sides, in_doubt: bool) -> Optional[FoundRelation]:
        known = self._asked.get((relation.module, id(sides), False))
        if in_doubt and known is not None and known[1] is not None:
            return known[1]
        if not relation.is_possible(sides, self._options, in_doubt):
            return None
        key = relation.module, id(sides), in_doubt
        if key not in self._asked:
            module = import_module(relation.module)
            self._asked[key] = sides, module.find(sides, self._options, self._context, in_doubt)
        return self._asked[key][1]
