"""The plan of a comparison: which relations put both sides into one arrangement, what proves them, how many tensors
each has, and what will be measured. No tensor is measured; relations read the values that prove them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.measure.pairs import payload_bytes
from npucmp.report.phrases import count_of, in_bytes
from npucmp.workflows.options import Options
from npucmp.workflows.relation_queue import Related
from npucmp.workflows.select_runs import PairedRuns, pair_runs

MOST = 64  # steps and ranks: work: all have alike pairs, and so many show them


class ComparisonPlan(NamedTuple):
    """The steps of a comparison.

    relations  a line for each relation, in the order in which they are applied; () if both sides are arranged alike
    runs       pairs of steps and ranks; `planned` of them were aligned
    operators  operators of these by the matcher that paired them
    tensors    pairs of tensors to compare, `size`: the bytes of their values
    paired     the pairs of tensors of the steps and ranks that were aligned
    problem    why nothing can be compared, "" otherwise
    """

    relations: tuple[str, ...]
    runs: int
    planned: int
    operators: dict[str, int]
    tensors: int
    size: int
    problem: str = ""
    paired: tuple[PairedRuns, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The plan in words."""
        relations = [f"{number}. {words}" for number, words in enumerate(self.relations, 1)]
        found = relations or ["both sides are arranged alike: no relation"]
        if self.problem:
            return [*found, self.problem]
        if not self.planned:
            return found
        by = ", ".join(f"{count:,} by {matcher}" for matcher, count in self.operators.items()) or "none"
        part = f" (the first {self.planned} of {self.runs} steps and ranks)" if self.planned < self.runs else ""
        return [*found, f"operators {by}; {count_of(self.tensors, 'tensor')} to compare, {in_bytes(self.size)}{part}"]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan_of(related: Related, options: Options, context: ReadContext) -> ComparisonPlan:
    """Return the plan for sides in one arrangement."""
    from npucmp.workflows.rank_tasks import paired_runs

    options = replace(options, **related.sides.changes)
    words = tuple(line for relation in related.found for line in relation.plan())
    together, _ = pair_runs(*related.sides.readable, options.partners())
    try:
        paired = tuple(paired_runs(options, *both, context) for both in together[:MOST])
        for one in paired:
            if one.refused is not None:
                raise one.refused
    except UsageError as error:
        return ComparisonPlan(words, len(together), 0, {}, 0, 0, str(error))
    operators = sum((Counter(one.alignment.matched) for one in paired), Counter[str]())
    compared = [pair for one in paired for pair in one.todo if pair.target is not None and pair.golden is not None]
    size = sum(map(payload_bytes, compared))
    return ComparisonPlan(words, len(together), len(paired), operators, len(compared), size, paired=paired)
