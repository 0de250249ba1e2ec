"""The relation of ranks with the names of another framework: operators of the ranks get the names of their partners in
the golden, so that ranks can be put together (relations/ranks/).

One rank is aligned with the golden as any two runs of two frameworks: by names, or by the values of tensors that the
rank holds whole and of parts of them. All ranks run the same operators, so the partners hold for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Hashable, Iterator, Mapping, Optional, Sequence

from npucmp.align import DifferentNetworks, align
from npucmp.align.framework_names import function_prefix
from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Operator, Report, Run
from npucmp.model.optypes import op_type_of
from npucmp.relations.held_values import RankOperator, Values
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, most_ranks

LEAST = 0.3  # share of the golden's operators: chosen: with fewer partners the networks differ


class NamedRanks:
    """The golden partner of each operator of the ranks, by name; `of_target`: the ranks are the target's."""

    def __init__(self, partners: Mapping[str, Operator], of_target: bool, by: Mapping[str, int]) -> None:
        self._partners, self._of_target, self._by = partners, of_target, by
        self._phase = next(iter(partners.values())).phase  # of an inference, whose operators have one phase

    def plan(self) -> Sequence[str]:
        """Return how many operators of a rank have partners, and by what."""
        by = ", ".join(f"{count} by {name}" for name, count in self._by.items())
        side = "target" if self._of_target else "golden"
        return [f"names of two frameworks: {len(self._partners)} operators of a rank of the {side} are renamed ({by})"]

    def apply(self, sides: Sides) -> Sides:
        """Return the sides in which the ranks have the names of the other side's operators."""
        targets, goldens = sides.readable
        if self._of_target:
            return sides.with_runs(map(self._run, targets), goldens)
        return sides.with_runs(targets, map(self._run, goldens))

    def explain(self, report: Report) -> Report:
        """Return the report with a note on the names."""
        return replace(report, notes=(*report.notes, *self.plan()))

    def _run(self, run: Run) -> Run:
        return replace(run, operators=tuple(map(self._operator, run.operators)))

    def _operator(self, operator: Operator) -> Operator:
        partner = self._partners.get(operator.name)
        if partner is None:
            return operator if operator.phase else operator._replace(phase=self._phase)
        return operator._replace(
            name=partner.name, kind=partner.kind, op_type=partner.op_type, path=partner.path, call=partner.call,
            phase=partner.phase,
            unique=partner.unique, scope=partner.scope, own_name=operator.name,
        )  # fmt: skip


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[NamedRanks]:
    """Return the partners of the operators of the ranks; None if the networks differ."""
    targets, goldens = sides.readable
    of_target = most_ranks(targets) > 1
    many, few = (targets[0], goldens[0]) if of_target else (goldens[0], targets[0])
    try:
        alignment = align(many, few, options.names(), context)
    except DifferentNetworks:
        return None
    if len(alignment.matches) < LEAST * len(few.operators):
        return None
    partners = dict(_partners(alignment.matches, many, few, Values(context)))
    return NamedRanks(partners, of_target, alignment.matched) if partners else None


def _partners(matches: Sequence[Match], many: Run, few: Run, values: Values) -> Iterator[tuple[str, Operator]]:
    """Yield the names of operators and their partners, each once: modules for modules, functions for functions. An
    operator whose partner is of the other kind, or taken, gets the one that wrote the same tensor."""
    by_name = {operator.name: operator for operator in few.operators}
    alike: dict[Hashable, list[Operator]] = {}
    for operator in few.operators:
        alike.setdefault(_content(operator, values), []).append(operator)
    taken: set[str] = set()
    found: dict[str, Operator] = {}
    for match in sorted(matches, key=lambda match: bool(match.target.path) is not bool(match.golden.path)):
        if op_type_of(match.target).has("collective") or match.golden.name not in by_name:
            continue
        own = by_name[match.golden.name]
        written = _content(own, values)
        others = (own, *(alike.get(written, ()) if written is not None else ()))
        for other in others:
            if other.name not in taken and bool(other.path) is bool(match.target.path):
                taken.add(other.name)
                found[match.target.name] = other
                break
    yield from found.items()
    for operator in many.operators:  # terms of sums, and what only a rank computes, have no partner by values
        prefix = function_prefix(operator.name)
        if operator.name in found or not prefix:
            continue
        rest = operator.name.partition(".")[2]
        name = f"{prefix}.{rest}"
        if name in by_name and name not in taken:
            taken.add(name)
            yield operator.name, by_name[name]


def _content(operator: Operator, values: Values) -> Hashable:
    """The key of the first output's values; None without values."""
    outputs = RankOperator(operator, 0, values).outputs
    return outputs[0].content if outputs else None
