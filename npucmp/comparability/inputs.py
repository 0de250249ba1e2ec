"""Rows of the data: network inputs and their relation, labels, tokens. Their values come from an earlier pass, or are
read again.
"""

from __future__ import annotations

import math
from typing import Iterator, NamedTuple, Optional

import numpy as np

from npucmp.comparability.answers import AlignedStep, close, differs, not_applicable, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.data_relation import HARMLESS, same_values
from npucmp.comparability.metadata import WEIGHTS_ALONE
from npucmp.comparability.operators import own_difference
from npucmp.comparability.run_pair import RunPair
from npucmp.comparability.settings import compare_setups
from npucmp.comparability.tensors import TensorSummary, readable_values, relation_of
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array
from npucmp.health.facts import Step, Tensor
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.model import Operator, Statistics
from npucmp.model.dtypes import DTYPES
from npucmp.model.item_result import ItemResult, Status
from npucmp.model.optypes import holds_weights_alone, op_type_of
from npucmp.model.precheck_result import InputRelation, InputRow
from npucmp.model.roles import forward_of, is_layer, mark_of


def known_values(one: Tensor, context: ReadContext) -> Optional[Array]:
    """Return the values kept by an earlier pass; otherwise read them, bounded. None if they are not readable."""
    values = one.found.get("whole")
    if values is not None:
        return np.asarray(values)
    return readable_values(one.ref, context)


FLOATS = frozenset(row.name for row in DTYPES.values() if row.kind == "f")
MADE = "the network may derive them from its own outputs, which already differ"
INPUT, LABELS, TOKENS = "input", "labels", "tokens"
REMEDIES = {
    "normalised": "use the same mean and deviation on both sides",
    "shuffled": "disable shuffling, or use the same seed and order on both sides",
    "channels reversed": "use the same channel order of images on both sides",
    "layout": "use the same layout on both sides",
    "mirrored": "disable augmentation for the comparison",
    "rounded": "store the inputs in the dtype that the network reads",
    "shape": "use the same batch size, length and image size",
}


class InputPair(NamedTuple):
    """A network input of both sides in one step.

    certain  False for floats behind an operator that differs although it reads the same, and for integers behind one
             that computed different integers from floats, as argmax does: the network may have made them
    """

    together: AlignedStep
    target: Tensor
    golden: Tensor
    role: str
    certain: bool = True


def pairings(both: RunPair) -> Iterator[InputPair]:
    """Yield the network inputs that both sides read at the same place, with their role: input, labels or tokens."""
    for one, here, there in both.steps:
        partner = {id(pair.target): pair.golden for pair in one.pairs if pair.target is not None}
        places = {id(pair.target): pair.order for pair in one.pairs}
        mine, others = ([*step.inputs, *_labels(step)] for step in (here, there))
        theirs = {id(tensor.ref): tensor for tensor in others}
        labels = {id(tensor.ref) for tensor in here.labels}
        last, own = _chosen_from(both, one), own_difference(both, one)
        seen = set()
        for tensor in mine:
            golden = theirs.get(id(partner.get(id(tensor.ref))))
            if golden is None or id(tensor.ref) in seen:
                continue
            seen.add(id(tensor.ref))
            is_float = tensor.dtype in FLOATS
            certain = places[id(tensor.ref)] <= own if is_float else tensor.operator.order <= last
            yield InputPair(one, tensor, golden, _role(tensor, id(tensor.ref) in labels, here), certain)


def _labels(step: Step) -> list[Tensor]:
    """Labels of losses that come from the data: integers, and floats that the network read as inputs. Other floats are
    computed from the network's own outputs."""
    input_contents = {_content(one) for one in step.inputs}
    return [one for one in step.labels if one.dtype not in FLOATS or _content(one) in input_contents]


def _content(tensor: Tensor) -> object:
    return tensor.figures.bits or mark_of(tensor.ref)


def _chosen_from(both: RunPair, one: AlignedStep) -> float:
    """The position of the first target operator that computed integers from floats and whose outputs differ from the
    golden run; infinite if none does. If only modules were dumped, such operators have no record, and layers with
    different outputs count too."""
    calls = forward_of(one.target)
    has_calls = any(not call.path for call in calls)
    places = {call.order for call in calls if _chooses(call) or (not has_calls and is_layer(op_type_of(call)))}
    odd = (pair.target_op.order for pair in one.pairs if pair.target_op is not None and pair.slot.startswith("output:")
           and pair.target_op.order in places and both.are_equal(pair) is False)  # fmt: skip
    return min(odd, default=math.inf)


def _chooses(operator: Operator) -> bool:
    """Whether it computes integers or booleans from floats."""
    read = [one.dtype in FLOATS for one in operator.tensors if not one.is_output]
    return any(read) and any(one.dtype not in FLOATS for one in operator.tensors if one.is_output)


def _role(tensor: Tensor, is_label: bool, step: Step) -> str:
    if is_label:
        return LABELS
    looked_up = op_type_of(tensor.operator).has("looks up")
    return TOKENS if looked_up and tensor.dtype.startswith(("int", "uint")) and len(tensor.shape) > 1 else INPUT


def relate_inputs(target: Tensor, golden: Tensor, context: ReadContext) -> InputRelation:
    """The relation of two inputs, by the best data known of both."""
    problem = target.figures.problem or golden.figures.problem
    if problem:
        return InputRelation("unknown", f"it cannot be read: {problem}")
    return relation_of(
        TensorSummary(target.ref, _figures(target), lambda: known_values(target, context)),
        TensorSummary(golden.ref, _figures(golden), lambda: known_values(golden, context)),
        _same_bits(target, golden),
    )


def _same_bits(target: Tensor, golden: Tensor) -> Optional[bool]:
    """Whether the bits are equal, by values or records; None if unknown."""
    x, y = target.figures, golden.figures
    comparable = target.dtype == golden.dtype and target.shape == golden.shape and x.counted == y.counted
    if not comparable:
        return None
    if not x.bits and not y.bits:
        return equal_by_record(target.ref, golden.ref)
    return x.bits == y.bits if len(x.bits) == len(y.bits) else None


def _figures(tensor: Tensor) -> tuple[Optional[float], ...]:
    """The figures max, min, mean and norm; None if unknown."""
    recorded = tensor.ref.statistics
    if recorded is not None:
        return tuple(recorded)
    found = tensor.figures
    norm = None if found.rms is None else found.rms * found.elements**0.5
    return tuple(Statistics(found.maximum, found.minimum, found.mean, norm))


def input_rows(both: RunPair) -> list[InputRow]:
    """Every network input with its relation, computed once."""
    if not both.inputs:
        for one in pairings(both):
            found = relate_inputs(one.target, one.golden, both.context)
            run = one.together.target
            shapes, dtypes = (one.target.shape, one.golden.shape), (one.target.dtype, one.golden.dtype)
            at = one.target.operator.name, one.target.slot
            row = InputRow(run.step, run.rank, *at, one.role, shapes, dtypes, found, one.certain)
            both.inputs.append(row)
    return both.inputs


def _of(both: RunPair, role: str) -> ItemResult:
    rows = [row for row in input_rows(both) if row.role == role]
    if not rows and role == INPUT and not both.inputs:
        if all(map(holds_weights_alone, (*both.targets, *both.goldens))):
            return not_applicable(WEIGHTS_ALONE)
        return unknown("no network input is known in both dumps; dump its values or statistics")
    if not rows:
        return not_applicable(f"the inputs are {both.inputs[0].role}" if role == INPUT else f"no {role} are known")
    known = [row for row in rows if row.relation.kind != "unknown"]
    odd = [row for row in known if row.relation.kind not in HARMLESS]
    if len(known) < len(rows) and not odd:
        return unknown(next(row.relation.words for row in rows if row.relation.kind == "unknown"))
    if not odd:
        kinds = {row.relation.kind for row in known}
        words = ", ".join(f"{sum(row.relation.kind == kind for row in known)} of the {kind}" for kind in HARMLESS
                          if kind in kinds and kind != "close")  # fmt: skip
        if "close" in kinds:
            return close(next(row.relation.words for row in known if row.relation.kind == "close"), places=len(known))
        return same(words, places=len(known))
    first = next((row for row in odd if row.certain), odd[0])
    found = first.relation
    where = f"{first.op} {first.slot}" + (f" in step {first.step}" if first.step and len(both.steps) > 1 else "")
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    if not first.certain:
        return unknown(f"{where}: {found.words}{more}; {MADE}")
    severity = "warning" if all(row.relation.kind == "rounded" or not row.certain for row in odd) else "error"
    return differs(
        f"{where}: {found.words}{more}",
        severity,
        places=len(odd),
        first=f"{first.op} {first.slot}",
        value=found.residual,
        remedy=REMEDIES.get(found.kind, ""),
    )


def inputs(both: RunPair) -> ItemResult:
    """Network inputs; without dumps, their figures in the files."""
    if not both.targets:
        return compare_setups(both, "inputs")
    return _of(both, INPUT)


def labels(both: RunPair) -> ItemResult:
    """Labels of the loss, with the share that differs."""
    found = _of(both, LABELS)
    if found.status is not Status.DIFFERS:
        return found
    for one in pairings(both):
        if one.role != LABELS:
            continue
        x, y = known_values(one.target, both.context), known_values(one.golden, both.context)
        if x is not None and y is not None and x.shape == y.shape and not same_values(x, y):
            share = float(np.count_nonzero(x != y)) / max(1, x.size)
            shuffled = np.array_equal(np.sort(x, axis=None), np.sort(y, axis=None))
            words = f"labels differ in {share:.0%}" + (", which are the same in another order" if shuffled else "")
            words += f" ({one.target.operator.name})"
            return found._replace(because=words, value=share)
    return found


def tokens(both: RunPair) -> ItemResult:
    """Token ids: the first difference, and the padding of each side."""
    return _of(both, TOKENS)


ROWS = (
    CheckItem(
        "input",
        "error",
        "network inputs",
        "give both networks the same samples with the same preprocessing",
        inputs,
        False,
    ),
    CheckItem("labels", "error", "labels of the loss", "give both the same labels", labels),
    CheckItem("tokens", "error", "token ids", "use one tokenizer, length and padding side", tokens),
)
