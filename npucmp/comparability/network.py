"""Rows of the network: its operators, their order and the shapes of their outputs; arguments, and the drop rate of a
dropout; precision, which is the dtypes of operators and products that are rounded more coarsely than their dtype.
"""

from __future__ import annotations

from collections import Counter
from typing import AbstractSet, Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.comparability.answers import differs, not_applicable, same, unknown
from npucmp.comparability.arguments import arguments, reduction
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.operators import is_output, operators, shapes
from npucmp.comparability.run_pair import RunPair
from npucmp.judge.products import are_reduced, votes_of
from npucmp.localise.effective_precision import with_value_types
from npucmp.model import Operator, Pair
from npucmp.model.arguments import named_arguments
from npucmp.model.dtypes import lookup
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import is_gradient, op_type, op_type_of
from npucmp.report.phrases import count_of

MEASURED = 256  # outputs: work: outputs whose values show the type of a run

ROWS = (
    CheckItem("network.operators", "error", "operators by type, name and order",
        "compare model code and versions of both", operators),
    CheckItem("network.shapes", "error", "shapes of outputs",
        "run both with the same batch size, length and configuration", shapes),
)  # fmt: skip


def rate_of(operator: Operator) -> Optional[float]:
    """The drop rate of a dropout, 0 if it is off. None for other operators, and if the arguments are not recorded."""
    if operator.phase == "backward" or operator.path or not op_type_of(operator).has("random"):
        return None
    values = named_arguments(operator)
    rate = values.get("p", values.get("dropout_p"))
    if not isinstance(rate, (int, float)) or "training" not in values:
        return None
    return float(rate) if values["training"] else 0.0


ARGUMENTS_ROWS = (
    CheckItem("network.arguments", "error", "scalar arguments of matched operators",
        "give both the same arguments; defaults differ between frameworks", arguments),
    CheckItem("loss.reduction", "error", "reduction of the loss", "give both losses the same arguments", reduction),
)  # fmt: skip


def _floats(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Outputs with float dtypes on both sides."""
    for pair in pairs:
        if is_output(pair) and pair.target is not None and pair.golden is not None:
            kinds = [lookup(one.dtype) for one in (pair.target, pair.golden)]
            if all(kind is not None and kind.kind == "f" for kind in kinds):
                yield pair


def _types(pair: Pair) -> tuple[str, str]:
    assert pair.target is not None and pair.golden is not None
    return pair.target.dtype, pair.golden.dtype


def types(both: RunPair) -> ItemResult:
    """Float dtypes of the outputs of matched operators."""
    every = [pair for one in both.aligned_steps for pair in _floats(one.pairs)]
    if not every:
        return unknown("no operator with float outputs is matched")
    by_values = _value_types(both)
    every = [*by_values.retyped, *(pair for pair in every if id(pair) not in by_values.replaced)]
    odd = [pair for pair in every if len({*_types(pair)}) > 1]
    severity = "note" if both.user_input.mixed else "warning"
    if not odd and by_values.quantised:
        return differs("; ".join(by_values.notes), severity, places=len(every), first=every[0].operator.name)
    if not odd:
        kinds = Counter(_types(pair)[0] for pair in every)
        return same(", ".join(kind for kind, _ in kinds.most_common()), places=len(every))
    (here, there), _ = Counter(map(_types, odd)).most_common(1)[0]
    operators = {(id(pair.target_op), pair.order): pair.operator for pair in odd}
    kinds = Counter(op_type(one.op_type).name or one.op_type for one in operators.values())
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))
    words = f"{count_of(len(operators), 'operator')} in {here} against {there} ({most}){_precision_words(both)}"
    words = "; ".join([words, *by_values.notes])
    return differs(words, severity, places=len(operators), first=odd[0].operator.name, target=here, golden=there)


class _ValueTypes(NamedTuple):
    """Pairs of the first step whose values are numbers of a coarser type than their files say, with that type; the
    identities of the pairs that they replace, whether a side holds steps of 8 bits, and notes."""

    retyped: Sequence[Pair]
    replaced: AbstractSet[int]
    quantised: bool
    notes: Sequence[str]


def _value_types(both: RunPair) -> _ValueTypes:
    pairs = [
        pair
        for pair in _floats(both.first.pairs)
        if "float32" in _types(pair) and all(one and (one.file or one.payload) for one in (pair.target, pair.golden))
    ][:MEASURED]
    found = with_value_types(both.measure(pairs), both.context)
    retyped = [row.pair for row in found.measurements]
    return _ValueTypes(retyped, {*map(id, pairs)}, bool(found.quantised), found.notes)


def _precision_words(both: RunPair) -> str:
    """Words for a side in mixed precision (float32 weights, 16-bit products) or only in 16 bits; "" for
    neither."""
    for side, runs in (("target", both.targets), ("golden", both.goldens)):
        weights, products = set[str](), set[str]()
        for operator in (one for run in runs[:1] for one in run.operators if not is_gradient(one)):
            found = op_type_of(operator)
            places = {f"input:{place}" for place in found.parameters}
            weights |= {t.dtype for t in operator.tensors if t.slot.startswith("param:") or t.slot in places}
            if found.has("contracts"):
                products |= {t.dtype for t in operator.tensors if t.slot.startswith("output")}
        if "float32" in weights and products & {"bfloat16", "float16"}:
            return f"; {side} is in mixed precision (weights float32, products 16 bits)"
        if weights and weights <= {"bfloat16", "float16"}:
            return f"; {side} uses only {'/'.join(sorted(weights))}"
    return ""


def islands(both: RunPair) -> ItemResult:
    """Operators that networks keep in float32 within a 16-bit run."""
    traits = ("exponential", "norm", "normalises", "loss")
    every = [
        pair for one in both.aligned_steps for pair in _floats(one.pairs) if op_type_of(pair.operator).has(*traits)
    ]
    short = {"bfloat16", "float16"}
    if not any(short & {*_types(pair)} for pair in every):
        return not_applicable("no softmax, norm or loss computes in 16 bits")
    sides = Counter(_types(pair) for pair in every)
    odd = [pair for pair in every if len(short & {*_types(pair)}) == 1 and "float32" in _types(pair)]
    whole = all("float32" not in {pair[at] for pair in sides} for at in (0,)) and all(
        pair[1] == "float32" for pair in sides
    )
    if not odd:
        return same(f"{len(every):,} outputs", places=len(every))
    if whole:
        return not_applicable("one run uses only float32: see precision.types")
    (here, there), _ = Counter(map(_types, odd)).most_common(1)[0]
    kinds = Counter(op_type(pair.operator.op_type).name or pair.operator.op_type for pair in odd)
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))
    severity = "note" if both.user_input.mixed else "warning"
    words = f"{count_of(len(odd), 'output')} in {here} against {there} ({most})"
    return differs(words, severity, places=len(odd), first=odd[0].operator.name, target=here, golden=there)


def products(both: RunPair) -> ItemResult:
    """Whether float32 products have 11-bit precision on one side. Values prove it; no dump records the switch."""
    pairs = [pair for pair in both.first.pairs if op_type_of(pair.operator).has("contracts")
            and not is_gradient(pair.operator) and pair.target is not None and pair.golden is not None]  # fmt: skip
    if not pairs:
        return not_applicable("no matrix products")
    if all(one.dtype != "float32" for pair in pairs for one in (pair.target, pair.golden) if one is not None):
        return not_applicable("no matrix product in float32")
    if not all(one.file or one.payload for pair in pairs for one in (pair.target, pair.golden) if one is not None):
        return unknown("needs values: dump with task tensor")
    if are_reduced(votes_of(both.measure(pairs))):
        return differs("float32 products keep 11 bits on one side, as HF32 and TF32 do", first=pairs[0].operator.name)
    return same("no sign of HF32 or TF32", places=len(pairs))


PRECISION_ROWS = (
    CheckItem("precision.types", "warning", "output dtypes of operators",
        "run both in one precision, or pass --mixed", types),
    CheckItem("precision.islands", "warning", "softmax, norms and losses in mixed runs",
        "keep the same operators in float32 on both sides", islands),
    CheckItem("precision.matmul", "warning", "HF32 and TF32 products", "switch off torch.npu.matmul.allow_hf32 and "
        "torch.backends.cuda.matmul.allow_tf32", products),
)  # fmt: skip
