"""The relation of ranks with the names of another framework: operators of the ranks get the names of their partners in
the golden, so that ranks can be put together (relations/ranks/).

One rank shows the partners (rank_sequence.py). All ranks run the same operators, so the partners hold for each.

If one framework merges batch and sequence into one axis, or has heads in another place, activations of the ranks are
viewed in the axes of the other. Tensors that the partner does not have are left out: heads that are repeated before
attention, what is added up to a product.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any, Iterable, Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.model import Operator, Report, Run, TensorRef
from npucmp.model.arguments import argument_name, named_arguments, tensor_name
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_activation, is_read_parameter
from npucmp.relations.frameworks.by_name.slots import open_payload, reshape_leading
from npucmp.relations.frameworks.rank_sequence import RankSequence
from npucmp.relations.held_values import Values
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, most_ranks

BEFORE, BEHIND, WITHIN = "before", "behind", "within"  # the sequence stands behind heads, before them, or has them
LEAD = 2  # axes: definition: batch and sequence
Dims = tuple[int, ...]
LEAST = 0.3  # share of the golden's operators: chosen: with fewer partners the networks differ


class NamedRanks:
    """The golden partner of each operator of the ranks, by name; `of_target`: the ranks are the target's. `axes`: the
    lengths of leading axes of the ranks, and those of the other side, which hold the same rows; `lead`: the lengths of
    batch and sequence on the other side, () if it has one axis."""

    def __init__(
        self, sequence: RankSequence, of_target: bool, axes: tuple[Dims, Dims], lead: Dims, context: ReadContext
    ) -> None:
        self._sequence, self._partners, self._of_target = sequence, dict(sequence.partners()), of_target
        self._composites = {name: (partner, sources) for name, partner, sources in sequence.composites()}
        renamed = (one.op for one in sequence.own if one.name in self._partners and one.op.call)
        self._calls = {one.call: self._partners[one.name].call for one in renamed}
        self._axes, self._lead, self._context = axes, lead, context
        self._phase = next(iter(self._partners.values())).phase  # of an inference, whose operators have one phase

    def plan(self) -> Sequence[str]:
        """Return how many operators of a rank have partners, and by what."""
        by = ", ".join(f"{count} by {name}" for name, count in self._sequence.by.items())
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
        by_name = {operator.name: operator for operator in run.operators}
        composites = {name: self._composite(name, by_name) for name in self._composites if name in by_name}
        operators = (composites.get(operator.name) or self._operator(operator) for operator in run.operators)
        return replace(run, operators=tuple(operators))

    def _composite(self, name: str, by_name: Mapping[str, Operator]) -> Operator:
        """An operator with the tensors of several, as the partner of the module that they are."""
        partner, sources = self._composites[name]
        tensors = {(one.name, tensor.slot): (one, tensor) for one in by_name.values() for tensor in one.tensors}
        both = [(tensors[source[:2]], source.golden) for source in sources if source[:2] in tensors]
        own = [(self._viewed(*found), found[1], slot) for found, slot in both]
        return self._renamed(by_name[name], partner, own)

    def _operator(self, operator: Operator) -> Operator:
        partner = self._partners.get(operator.name)
        tensors = [self._viewed(operator, one) for one in operator.tensors]
        if partner is None:
            call = self._calls.get(operator.call, operator.call)  # of the forward, which a backward follows
            return operator._replace(tensors=tuple(tensors), phase=operator.phase or self._phase, call=call)
        slots = _slots(operator, partner)
        own = [(one, own, slots[one.slot]) for one, own in zip(tensors, operator.tensors) if one.slot in slots]
        return self._renamed(operator, partner, own)

    def _renamed(
        self, operator: Operator, partner: Operator, tensors: Sequence[tuple[TensorRef, TensorRef, str]]
    ) -> Operator:
        """An operator with the name of its partner, and tensors in the slots of the partner: each one in a view, as
        it was recorded, and its slot."""
        others = {one.slot: one for one in partner.tensors}
        kept = [
            self._in_axes_of(others[slot], one, one.shape != own.shape).in_slot(slot)
            for one, own, slot in tensors
            if self._may_be_part(one, others[slot])
        ]
        return operator._replace(
            tensors=tuple(kept), name=partner.name, kind=partner.kind, op_type=partner.op_type, path=partner.path,
            call=partner.call, phase=partner.phase, unique=partner.unique, scope=partner.scope, own_name=operator.name,
            arguments=_arguments(operator, partner),
        )  # fmt: skip

    def _may_be_part(self, tensor: TensorRef, other: TensorRef) -> bool:
        """Whether a tensor may be a part of the partner's by its size."""
        sizes = math.prod(tensor.shape), math.prod(other.shape)
        return sizes[0] == sizes[1] or (sizes[0] > 0 and sizes[1] // sizes[0] <= self._sequence.ranks)

    def _in_axes_of(self, other: TensorRef, tensor: TensorRef, is_merged: bool) -> TensorRef:
        """A tensor with the heads where its partner has them. `is_merged`: its first axis was batch and sequence."""
        own, wanted = _head_axes(tensor.shape, self._lead, is_merged), _head_axes(other.shape, self._lead)
        width = other.shape[-1] if wanted in (BEFORE, BEHIND) else tensor.shape[-1]
        if own == wanted or "" in (own, wanted) or math.prod(tensor.shape[2:]) % width:
            return tensor
        batch, places = self._lead
        heads = math.prod(tensor.shape) // (batch * places * width)
        steps = (places * width, width) if own == BEFORE else (width, heads * width)  # of heads and of places
        shape = (batch, heads, places, width) if wanted == BEFORE else (batch, places, heads, width)
        strides = (heads * places * width, *(steps if wanted == BEFORE else steps[::-1]), 1)
        found = open_payload(tensor, self._context)
        if found is None:
            is_bare = not tensor.file and tensor.payload is None
            return (
                tensor._replace(shape=shape if wanted != WITHIN else (*self._lead, heads * width))
                if is_bare
                else tensor
            )
        if found.strides or found.parts or found.dataset or found.device:
            return tensor
        found = found._replace(shape=shape, strides=strides)
        if wanted == WITHIN:
            whole = batch, places, heads * width
            found = found._replace(shape=whole, parts=(found,), strides=(), axis=0)
        return tensor._replace(shape=found.shape, payload=found)

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


def _head_axes(shape: Dims, lead: Dims, is_behind: bool = False) -> str:
    """Where a tensor with these axes of batch and sequence has heads; "" if it has other axes. `is_behind`: an axis of
    heads stands behind them."""
    if len(lead) < LEAD or not 1 <= len(shape) - LEAD <= LEAD:
        return ""
    if len(shape) == LEAD + 1:
        return WITHIN if shape[:LEAD] == lead else ""
    if (shape[0], shape[LEAD]) == lead and not is_behind:
        return BEFORE
    return BEHIND if shape[:LEAD] == lead else ""


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[NamedRanks]:
    """Return the partners of the operators of the ranks; None if the networks differ."""
    targets, goldens = sides.readable
    of_target = most_ranks(targets) > 1
    many, few = (targets[0], goldens[0]) if of_target else (goldens[0], targets[0])
    names = options.names()
    ranks = max(most_ranks(targets), most_ranks(goldens))
    sequence = RankSequence(many, few, ranks, Values(context), names if isinstance(names, Mapping) else {})
    if len(sequence.pairs) < LEAST * len(few.operators):
        return None
    partners = dict(sequence.partners())
    axes = _leading_axes(
        (operator, partners[operator.name]) for operator in many.operators if operator.name in partners
    )
    return NamedRanks(sequence, of_target, axes, _lead(few), context)


def _lead(run: Run) -> Dims:
    """The lengths of batch and sequence of most activations with three axes."""
    activations = (
        one
        for operator in run.operators
        for one in operator.tensors
        if is_activation(one) and not is_read_parameter(operator, one)
    )
    found = Counter(one.shape[:LEAD] for one in activations if len(one.shape) == LEAD + 1)
    return found.most_common(1)[0][0] if found else ()


def _slots(operator: Operator, partner: Operator) -> dict[str, str]:
    """The partner's slot of each tensor that it has, by the signatures: kernels of norms read no shape before their
    weight. Attention in a module reads queries, keys and values in the order of the function; a mask may mark what is
    seen or what is hidden. An operator that adds the bias of a product shares the outputs alone."""
    others = {one.slot for one in partner.tensors}
    tensors = [one for one in operator.tensors if one.dtype != "bool" or operator.op_type == partner.op_type]
    outputs = {one.slot: one.slot for one in tensors if one.is_output and one.slot in others}
    if op_type_of(operator).has("sums") and not op_type_of(partner).has("sums"):
        return outputs
    if bool(operator.path) is not bool(partner.path):
        sides = [[one.slot for one in side if _is_float_input(one)] for side in (tensors, partner.tensors)]
        return {**dict(zip(*sides)), **outputs}
    names = {tensor_name(partner, one.slot): one.slot for one in partner.tensors}
    found = {one.slot: names.get(tensor_name(operator, one.slot), one.slot) for one in tensors}
    found = found if len({*found.values()}) == len(found) else {slot: slot for slot in found}
    return {slot: other for slot, other in found.items() if other in others}


def _arguments(operator: Operator, partner: Operator) -> dict[str, Any]:
    """The partner's arguments with the numbers of the operator. An argument that it does not have is spelled otherwise,
    or was not recorded, as in dumps of kernels."""
    own = named_arguments(operator)
    found = {slot: (value, own.get(argument_name(partner, slot))) for slot, value in partner.arguments.items()}
    numbers = int, float
    return {
        slot: number if isinstance(number, numbers) and isinstance(value, numbers) else value
        for slot, (value, number) in found.items()
    }


def _is_float_input(tensor: TensorRef) -> bool:
    kind = lookup(tensor.dtype)
    return tensor.slot.startswith("input") and kind is not None and kind.kind == "f"


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
