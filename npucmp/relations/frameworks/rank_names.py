"""The relation of ranks with the names of another framework: operators of the ranks get the names of their partners in
the golden, so that ranks can be put together (relations/ranks/).

One rank is aligned with the golden as any two runs of two frameworks: by names, or by the values of tensors that the
rank holds whole and of parts of them. All ranks run the same operators, so the partners hold for each.

If one framework merges batch and sequence into one axis, activations of the ranks are viewed in the axes of the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Hashable, Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.align import DifferentNetworks, align
from npucmp.align.framework_names import function_prefix
from npucmp.dump.limits import ReadContext
from npucmp.model import Match, Operator, Report, Run, TensorRef
from npucmp.model.arguments import tensor_name
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_activation, is_read_parameter
from npucmp.relations.frameworks.by_name.slots import reshape_leading
from npucmp.relations.held_values import RankOperator, Values
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, most_ranks

LEAST = 0.3  # share of the golden's operators: chosen: with fewer partners the networks differ


class NamedRanks:
    """The golden partner of each operator of the ranks, by name; `of_target`: the ranks are the target's. `axes`: the
    lengths of leading axes of the ranks, and those of the other side, which hold the same rows."""

    def __init__(
        self, partners: Mapping[str, Operator], of_target: bool, by: Mapping[str, int], axes: tuple[Dims, Dims],
        context: ReadContext,
    ) -> None:  # fmt: skip
        self._partners, self._of_target, self._by = partners, of_target, by
        self._axes, self._context = axes, context
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
        operator = operator._replace(tensors=tuple(self._viewed(operator, one) for one in operator.tensors))
        partner = self._partners.get(operator.name)
        if partner is None:
            return operator if operator.phase else operator._replace(phase=self._phase)
        slots = _slots(operator, partner)
        return operator._replace(
            tensors=tuple(one.in_slot(slots[one.slot]) for one in operator.tensors),
            name=partner.name, kind=partner.kind, op_type=partner.op_type, path=partner.path, call=partner.call,
            phase=partner.phase, unique=partner.unique, scope=partner.scope, own_name=operator.name,
        )  # fmt: skip

    def _viewed(self, operator: Operator, tensor: TensorRef) -> TensorRef:
        """A tensor in the leading axes of the other side; unchanged if it has others."""
        own, other = self._axes
        if (
            not own
            or not is_activation(tensor)
            or is_read_parameter(operator, tensor)
            or tensor.shape[: len(own)] != own
        ):
            return tensor
        return reshape_leading(tensor, (*other, *tensor.shape[len(own) :]), self._context)


Dims = tuple[int, ...]


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
    axes = _leading_axes(
        (operator, partners[operator.name]) for operator in many.operators if operator.name in partners
    )
    return NamedRanks(partners, of_target, alignment.matched, axes, context) if partners else None


def _slots(operator: Operator, partner: Operator) -> dict[str, str]:
    """The partner's slot of each tensor, by the signatures: kernels of norms read no shape before their weight."""
    names = {tensor_name(partner, one.slot): one.slot for one in partner.tensors}
    found = {one.slot: names.get(tensor_name(operator, one.slot), one.slot) for one in operator.tensors}
    return found if len({*found.values()}) == len(found) else {slot: slot for slot in found}


def _leading_axes(pairs: Iterable[tuple[Operator, Operator]]) -> tuple[Dims, Dims]:
    """The leading axes of activations that most partners have in their stead: one for two, or two for one; () and ()
    if they have equal ones."""
    found: Counter[tuple[Dims, Dims]] = Counter()
    for operator, partner in pairs:
        shapes = {one.slot: one.shape for one in partner.tensors}
        for one in operator.tensors:
            shape, other = one.shape, shapes.get(one.slot, ())
            if not is_activation(one) or is_read_parameter(operator, one) or len(shape) < 1 or not other:
                continue
            if len(other) == len(shape) + 1 and shape[0] == other[0] * other[1]:
                found[shape[:1], other[:2]] += 1
            elif len(shape) == len(other) + 1 and other[0] == shape[0] * shape[1]:
                found[shape[:2], other[:1]] += 1
            else:
                found[(), ()] += len(shape) == len(other) and len(shape) > 1
    return found.most_common(1)[0][0] if found else ((), ())


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
