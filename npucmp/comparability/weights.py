"""Rows of parameters: names and shapes, initial values, frozen and shared parameters, running statistics."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, Iterable, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.comparability.answers import RANDOM_SHARE, AlignedStep, close, differs, not_applicable, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.data_relation import HARMLESS, ROUNDED, SAME_BITS, SAME_STATISTICS
from npucmp.comparability.inputs import known_values, relate_inputs
from npucmp.comparability.run_pair import MatchedParameter, RunPair
from npucmp.comparability.settings import compare_setups
from npucmp.health.facts import Health, Op, Parameter, Step, Tensor
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.model import Pair, TensorRef, first_of
from npucmp.model.dtypes import is_short
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_output, is_parameter, mark_of, running_statistics, weights_of

REPEATED_CALL = re.compile(r"\.forward\.[1-9]\d*$")  # suffix of a module's record from its second call on
NOTHING = "the dumps hold no data of it"
STATISTICS, CONSTANTS = "running statistics", "buffers and constants"
HIDDEN = -1e4  # chosen: the least number of float16 is -65504, scores are no larger than hundreds
MOST_READ = 200  # most differing parameters whose values are read again


def parameters(both: RunPair) -> ItemResult:
    """Parameters by name and shape."""
    twins = both.weights
    if not twins:
        return unknown("neither dump holds parameters")
    for side in ("target", "golden"):
        if all(getattr(one, side) is None for one in twins):
            return unknown(f"{side} records no parameters")
    unmatched = {side: [one for one in twins if getattr(one, other) is None]
             for side, other in (("target", "golden"), ("golden", "target"))}  # fmt: skip
    odd = [one for one in twins if one.target and one.golden and one.target.shape != one.golden.shape]
    words = [f"{len(parameters_alone)} only in {side} ({first_of([one.name for one in parameters_alone], 2)})"
             for side, parameters_alone in unmatched.items() if parameters_alone]  # fmt: skip
    words += [_shape_words(odd)] if odd else []
    count = sum(map(len, unmatched.values())) + len(odd)
    if not count:
        return same(f"{len(twins)} parameters", places=len(twins))
    named = {health.has_names for parameters_alone in both.healths for health in parameters_alone}
    if len(named) > 1 and not odd:
        return close(f"{len(twins) - count} of {len(twins)} are known in both, at different levels", places=count)
    first = (odd or unmatched["target"] or unmatched["golden"])[0].name
    return differs("; ".join(words), "" if True in named or odd else "warning", places=count, first=first)


def _shape_words(odd: list[MatchedParameter]) -> str:
    one = odd[0]
    assert one.target is not None and one.golden is not None
    a, b = one.target.shape, one.golden.shape
    words = f"{one.name} has shape {list(a)} against {list(b)}"
    padded = [size for size in (*a[:1], *b[:1]) if size % 64 == 0]
    if a[1:] == b[1:] and a and b and a[0] != b[0] and max(a[0], b[0]) in padded and abs(a[0] - b[0]) < 256:
        words += f" (rows padded to {max(a[0], b[0])})"
    if a == b[::-1] and len(a) == 2:
        words += " (transposed)"
    return words + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")


class ParameterPair(NamedTuple):
    """A parameter at the first common step, and the kind of relation between both sides."""

    name: str
    kind: str
    words: str
    is_constant: bool


def weights(both: RunPair) -> ItemResult:
    """Parameters at the first common step; without dumps, their figures in the files."""
    if not both.targets:
        return compare_setups(both, "weights")
    found = [*_weights(both)]
    known = [one for one in found if one.kind != "unknown"]
    if not found:
        return unknown("no parameter is known in both dumps")
    lost = [one for one in found if one.kind == "unknown" and one.words != NOTHING]
    if not known or (lost and all(one.kind in HARMLESS for one in known)):
        return unknown(f"{(lost or found)[0].name}: {(lost or found)[0].words}")
    random = [one for one in known if not one.is_constant]
    odd = [one for one in known if one.kind not in HARMLESS]
    rounded = [one for one in odd if one.kind == "rounded"]
    if not odd:
        exact = sum(one.kind == SAME_BITS for one in known)
        how = "bit for bit" if exact == len(known) else "by their figures"
        constant = len(known) - len(random)
        more = f" ({constant} {'is' if constant == 1 else 'are'} constant)" if constant else ""
        return same(f"{len(known)} parameters {how}{more}", places=len(known))
    if len(rounded) == len(odd):
        words = f"{len(odd)} of {len(known)} hold {odd[0].words}"
        details: dict[str, Any] = {"places": len(odd), "first": odd[0].name}
        number = both.first.target.step or 0
        if number and all("one side" in one.words and "to" not in one.words for one in odd):
            return close(f"{len(odd)} of {len(known)} differ by no more than {number} steps may cause", **details)
        if _is_short(both, odd[0].name):
            return close(words, **details)
        return differs(words, "warning", remedy="load the weights in one dtype on both sides", **details)
    odd = [one for one in odd if one.kind != "rounded"]
    names = first_of([one.name for one in odd], 3)
    moved = [one for one in odd if one.kind == "permuted"]
    details = {"places": len(odd), "first": odd[0].name, "value": len(odd) / len(known)}
    if moved and len(moved) == len(odd):
        words = f"{len(moved)} hold the same values in another order ({names}): {moved[0].words}"
        return differs(words, remedy="convert the layouts with the checkpoint", **details)
    share = sum(not one.is_constant for one in odd) / len(random) if random else 0.0
    if share >= RANDOM_SHARE and len(random) > 1:
        words = f"{len(odd)} of {len(known)} differ, {share:.0%} of all but constants: another seed or checkpoint"
        return differs(words, remedy="load one checkpoint or use one seed on both sides", **details)
    words = f"{len(odd)} of {len(known)} differ ({names}): {odd[0].words}"
    return differs(words, remedy="check how these are loaded or mapped; the others are equal", **details)


def _is_short(both: RunPair, name: str) -> bool:
    """Whether a side stores the parameter in 16 bits."""
    one = next(one for one in both.weights if one.name == name)
    return any(tensor is not None and is_short(tensor.dtype) for tensor in one.first)


def _weights(both: RunPair) -> Iterable[ParameterPair]:
    read = 0
    for one in both.weights:
        target, golden = one.first
        if target is None or golden is None:
            continue
        constant = target.figures.constant is not None or golden.figures.constant is not None
        kind, words = _relation_by_figures(target, golden)
        if kind == "differs" and read < MOST_READ:
            read += 1
            kind, words = _compare_values(both, target, golden, words)
        yield ParameterPair(one.name, kind, words, constant)


def _relation_by_figures(target: Tensor, golden: Tensor) -> tuple[str, str]:
    """Compare two tensors without reading values: by bits, else by figures."""
    x, y = target.figures, golden.figures
    if x.problem or y.problem:
        return "unknown", f"it cannot be read: {x.problem or y.problem}"
    if target.shape != golden.shape:
        return "differs", "their shapes differ"
    if x.bits and y.bits and x.counted == y.counted and target.dtype == golden.dtype and len(x.bits) == len(y.bits):
        return (SAME_BITS, "") if x.bits == y.bits else ("differs", "their bits differ")
    if not (x.bits or y.bits) and equal_by_record(target.ref, golden.ref) is False:
        return "differs", "their checksums differ"
    known = [(a, b) for a, b in zip(_figures(target), _figures(golden)) if a is not None and b is not None]
    if not known:
        return "unknown", NOTHING
    if all(a == b for a, b in known):
        return SAME_STATISTICS, ""
    if target.ref.file and golden.ref.file and target.dtype != golden.dtype:
        return "differs", "their dtypes differ"
    scale = max(abs(value) for pair in known for value in pair)
    difference = max(abs(a - b) for a, b in known) / (scale or 1.0)
    short = is_short(target.dtype) or is_short(golden.dtype)
    if difference < (ROUNDED if short else 1e-6):
        return ("rounded", "rounded on one side") if short else ("close", "")
    return "differs", "their figures differ"


def _figures(tensor: Tensor) -> tuple[Optional[float], ...]:
    found = tensor.figures
    return found.maximum, found.minimum, found.mean, found.rms


def _compare_values(both: RunPair, target: Tensor, golden: Tensor, words: str) -> tuple[str, str]:
    """Compare values: rounded, in another order, or by how much they differ."""
    x, y = known_values(target, both.context), known_values(golden, both.context)
    if x is None or y is None or not x.size:
        return "differs", words
    if x.shape == y.shape:
        found = relate_inputs(target, golden, both.context)
        if found.kind in (*HARMLESS, "rounded"):
            return found.kind, found.words or words
    if x.size == y.size and target.figures.constant is None and np.array_equal(np.sort(x, None), np.sort(y, None)):
        transposed = x.ndim == 2 and x.shape == y.shape[::-1] and np.array_equal(x, y.T)
        rows = x.shape == y.shape and x.ndim > 1 and sorted(map(bytes, x)) == sorted(map(bytes, y))
        return "permuted", "transposed" if transposed else "its rows are in another order" if rows else "permuted"
    if x.shape != y.shape:
        return "differs", words
    size = float(np.linalg.norm(y))
    return "differs", f"rel_l2 {float(np.linalg.norm(x - y)) / size:.2g}" if size else words


def start(both: RunPair) -> ItemResult:
    """Whether one side starts from random weights and the other from a checkpoint."""
    starts = [{health.starts for health in kinds} - {"unknown"} for kinds in both.healths]
    if not all(starts):
        return unknown("no norms show whether the weights are fresh")
    here, there = ("trained" if "trained" in kinds else "fresh" for kinds in starts)
    words = {"fresh": "random weights", "trained": "trained weights"}
    if here == there:
        return same(words[here], target=here, golden=there)
    return differs(f"target starts from {words[here]}, golden from {words[there]}", target=here, golden=there)


def buffers(both: RunPair) -> ItemResult:
    """Running statistics before the first step, and further tensors that an operator reads and none writes: constants,
    biases of routers, tables of sines. Later calls of a module within the step have updated running statistics."""
    odd, count, unread = list[str](), Counter[str](), 0
    for one, here, there in both.steps[:1]:
        averaging = {op.operator.order: op for op in here.forward if op.type.has("averages")}
        constants = {id(pair) for pair in _constants(both, one, here, there)}
        for pair in one.pairs:
            op = averaging.get(pair.target_op.order) if pair.target_op is not None else None
            is_statistic = op is not None and pair.slot in running_statistics(op.operator)
            if not is_statistic and id(pair) not in constants:
                continue
            if pair.target is None or pair.golden is None or (is_statistic and op is not None and _is_called_again(op)):
                continue
            target, golden = both.facts.get(id(pair.target)), both.facts.get(id(pair.golden))
            if target is None or golden is None:  # a view of another operator's tensor
                continue
            kind, because = _relation_by_figures(target, golden)
            if kind == "differs":
                kind, because = _compare_values(both, target, golden, because)
            if kind == "rounded" and not is_statistic and target.dtype != golden.dtype:
                kind = HARMLESS[-1]  # the row of precisions names another type
            count[STATISTICS if is_statistic else CONSTANTS] += kind != "unknown"
            unread += kind == "unknown" and is_statistic
            odd += [f"{pair.operator.name} {pair.slot}: {because}"] if kind not in (*HARMLESS, "unknown") else []
    known = [f"{number} {what}" for what, number in count.items() if number]
    if not known:
        return unknown("running statistics are not known") if unread else not_applicable("no buffers")
    if not odd:
        return same(" and ".join(known), places=sum(count.values()))
    words = f"{len(odd)} of {' and '.join(known)} differ (first: {odd[0]})"
    return differs(words, places=len(odd), first=odd[0].partition(":")[0])


def _constants(both: RunPair, one: AlignedStep, here: Step, there: Step) -> Iterator[Pair]:
    """Yield the tensors of both runs that a forward operator reads, no recorded operator writes, and that are neither
    parameters nor inputs of the network, before the first difference of outputs. A tensor of as many elements as an
    earlier one may be made from that by code that was not dumped: it counts if all before are equal."""
    known = [{id(tensor.ref) for tensor in step.inputs} for step in (here, there)]
    weights = [weight.weight[1] for run in (one.target, one.golden) for weight in weights_of(run).values()]
    written: set[object] = {None, *map(mark_of, weights)}
    sizes = {math.prod(tensor.shape) for step in (here, there) for tensor in step.inputs}
    are_equal = True
    for pair in sorted(one.pairs, key=lambda pair: (pair.order, is_output(pair))):
        target, golden = pair.target, pair.golden
        if target is None or golden is None or is_gradient(pair.operator):
            continue
        marks = {mark_of(target), mark_of(golden)}
        if is_output(pair):
            if both.agree(pair) is False:
                return
            are_equal = are_equal and both.are_equal(pair) is True
            written |= marks
            sizes.add(math.prod(target.shape))
            continue
        size = math.prod(target.shape)
        is_known = id(target) in known[0] or id(golden) in known[1] or is_parameter(pair) or marks & written
        if is_known or target.shape != golden.shape or size < 2 or (size in sizes and not are_equal):
            continue
        if not _is_mask(both, target):
            yield pair


def _is_mask(both: RunPair, tensor: TensorRef) -> bool:
    """Whether a tensor is a mask that is added to scores: its hidden places have any large negative number."""
    least = both.facts[id(tensor)].figures.minimum if id(tensor) in both.facts else None
    return least is None or not least > HIDDEN


def _is_called_again(op: Op) -> bool:
    """Whether it belongs to a repeated call of its module in the step."""
    return bool(REPEATED_CALL.search(op.operator.name if op.is_module else op.operator.scope))


def frozen_parameters(both: RunPair) -> ItemResult:
    """Parameters that are trained on one side only."""
    twins = [one for one in both.weights if one.target is not None and one.golden is not None]
    known = [(one.name, one.target.trainable, one.golden.trainable) for one in twins if one.target and one.golden
             and one.target.trainable is not None and one.golden.trainable is not None]  # fmt: skip
    if not known:
        return unknown("the dumps do not record which parameters are trained")
    odd = [(name, here) for name, here, there in known if here != there]
    count = sum(not here for _, here, _ in known)
    if not odd:
        return same(f"{count} frozen" if count else "no frozen parameters", places=count)
    words = []
    for side, is_frozen in (("target", False), ("golden", True)):
        names = [name for name, here in odd if here is is_frozen]
        words += [f"frozen only in {side}: {first_of(names, 3)}"] if names else []
    return differs("; ".join(words), places=len(odd), first=odd[0][0])


def shared_parameters(both: RunPair) -> ItemResult:
    """Parameters that share one tensor on one side only."""
    if not both.ranks or not all(health.has_bits for healths in both.healths for health in healths):
        return unknown("needs values or checksums")
    twins = {one.target.name: one.golden.name for one in both.weights if one.target and one.golden}
    for here, there in both.ranks:
        steps = _common(here, there)
        mine = {frozenset(twins.get(name, name) for name in group) for group in _groups(here, steps[0])}
        theirs = {frozenset(group) for group in _groups(there, steps[1])}
        for side, unmatched in (("target", mine - theirs), ("golden", theirs - mine)):
            if unmatched:
                names = " and ".join(sorted(min(unmatched, key=sorted)))
                return differs(f"{names} share a tensor only in {side}", places=len(unmatched), first=names)
    return same(f"{len(mine)} groups of equal parameters" if mine else "no shared parameters", places=len(mine))


def _common(here: Health, there: Health) -> tuple[list[int], list[int]]:
    """Indices of the common steps."""
    found = [(a.index, b.index) for a in here.steps for b in there.steps
             if a.number == b.number or (None in (a.number, b.number))]  # fmt: skip
    return [a for a, _ in found], [b for _, b in found]


def _groups(health: Health, steps: list[int]) -> list[list[str]]:
    """Names of parameters with equal bits in each of these steps; constants are skipped."""
    found: dict[object, list[str]] = {}
    for one in health.parameters:
        bits = _bits(one, steps)
        if bits and all(bits) and one.first.figures.constant is None:
            found.setdefault((one.dtype, one.shape, bits), []).append(one.name)
    return [names for names in found.values() if len(names) > 1]


def _bits(one: Parameter, steps: list[int]) -> tuple[str, ...]:
    recorded = [one.weights[at] for at in steps]
    return tuple(weight.figures.bits if weight is not None else "" for weight in recorded)


def same_start(both: RunPair) -> bool:
    """Whether the rows of inputs or tokens and of weights are the same or close."""
    return (both.is_same("input") or both.is_same("tokens")) and both.is_same("weights")


ROWS = (
    CheckItem("network.parameters", "error", "parameters by name and shape", "build both models from one configuration",
        parameters),
    CheckItem("weights", "error", "parameters at the first step", "load one checkpoint on both sides", weights, False),
    CheckItem("weights.start", "error", "random or trained weights", "load the checkpoint on both sides", start),
    CheckItem("buffers", "error", "running statistics, buffers and constants",
        "load them with the checkpoint on both sides", buffers),
    CheckItem("frozen", "error", "frozen parameters", "freeze the same parameters on both sides", frozen_parameters),
    CheckItem("sharing", "error", "shared parameters", "tie the same parameters on both sides", shared_parameters),
)  # fmt: skip
