"""Differences of arguments of matched operators: epsilon, momentum, probabilities, modes, reductions.

model/arguments.py gives arguments their names, so that a positional and a keyword argument match. An argument that only
one side records is not a difference: the other side has its default, which a dump does not record.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Iterator, NamedTuple

from npucmp.comparability.answers import AlignedRuns, differs, same, unknown
from npucmp.model import Match, Scalar
from npucmp.model.arguments import named_arguments
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import op_type_of
from npucmp.report.phrases import count_of

FATAL = frozenset(("eps", "training", "p", "dropout_p", "use_input_stats"))  # these change all numbers
REDUCTIONS = frozenset(("reduction", "ignore_index", "label_smoothing", "size_average", "reduce"))
EXCLUDED = frozenset(  # depend on the environment, belong to another row, or do not affect numbers
    "inplace device dtype generator out memory_format layout non_blocking pin_memory requires_grad group async_op seed "
    "use_cache return_dict output_attentions output_hidden_states".split()
)
TINY = 1e-2  # upper limit of an epsilon that keeps a divisor from 0
ROUNDED = 1e-6  # relative: 1e-5 as float32 and as float64
_DEVICE = re.compile(r"(cpu|npu|cuda|gpu|ascend)(:\d+)?", re.IGNORECASE)


class ArgumentPair(NamedTuple):
    """An argument that both sides record, with both values."""

    match: Match
    name: str
    target: Scalar
    golden: Scalar


def compare_arguments(both: AlignedRuns) -> Iterator[ArgumentPair]:
    """Yield the arguments of matched operators with equal output shapes; other shapes belong to network.shapes."""
    for one in both.aligned_steps:
        for match in one.matches:
            if not match.target.arguments or not match.golden.arguments or match.via == "fused":
                continue
            if not _same_shapes(match):
                continue
            here, there = named_arguments(match.target), named_arguments(match.golden)
            for name in here.keys() & there.keys():
                if name.partition(".")[0] not in EXCLUDED:
                    yield ArgumentPair(match, name, here[name], there[name])


def _same_shapes(match: Match) -> bool:
    here, there = ([t.shape for t in one.tensors if t.slot.startswith("output")] for one in match[:2])
    return here == there


def alike(a: Scalar, b: Scalar) -> bool:
    """Whether two arguments are equal. Numbers are compared as numbers, None matches any value, a device name matches
    any device name, and values of different types are not compared."""
    if a is None or b is None:
        return True
    numbers = [one for one in (a, b) if isinstance(one, (int, float))]
    if len(numbers) == 2:
        x, y = map(float, numbers)
        return x == y or math.isclose(x, y, rel_tol=ROUNDED) or (x != x and y != y)
    if isinstance(a, str) and isinstance(b, str):
        return a == b or bool(_DEVICE.fullmatch(a) and _DEVICE.fullmatch(b))
    return bool(a == b) or type(a) is not type(b)


def arguments(both: AlignedRuns) -> ItemResult:
    count, odd = 0, list[ArgumentPair]()
    for one in compare_arguments(both):
        if one.name in REDUCTIONS and op_type_of(one.match.target).has("loss"):
            continue
        count += 1
        if not alike(one.target, one.golden):
            odd.append(one)
    if not count:
        return unknown("the dumps record no arguments of matched operators; dump level L1 or mix")
    if not odd:
        return same(f"{count:,} arguments", places=count)
    odd.sort(key=lambda one: (not _is_fatal(one), one.match.target.order))
    first = odd[0]
    names = Counter(one.name for one in odd)
    examples = ", ".join(f"{name} in {count_of(count, 'operator')}" for name, count in names.most_common(4))
    words = f"{first.name} is {first.target} against {first.golden} in {first.match.target.name}"
    severity = "error" if _is_fatal(first) else "warning"
    return differs(
        f"{words}; {examples}" if len(odd) > 1 else words,
        severity,
        places=len(odd),
        first=first.match.target.name,
        target=f"{first.name} = {first.target}",
        golden=f"{first.name} = {first.golden}",
    )


def of_a_kind(both: AlignedRuns) -> bool:
    """Whether an argument that changes all numbers differs in most operators of its type, and in at least two. A single
    operator may differ on purpose."""
    total, odd = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in compare_arguments(both):
        key = op_type_of(one.match.target).name or one.match.target.op_type, one.name
        total[key] += 1
        odd[key] += not alike(one.target, one.golden) and _is_fatal(one)
    return any(count > 1 and 2 * count > total[key] for key, count in odd.items())


def _is_fatal(one: ArgumentPair) -> bool:
    """Whether the argument changes all numbers: by its name, or because it is a small addend, such as an epsilon."""
    kind, values = op_type_of(one.match.target), (one.target, one.golden)
    small = [isinstance(x, float) and 0 < x < TINY for x in values]
    return one.name in FATAL or (all(small) and kind.has("sums")) or (any(small) and kind.has("normalises"))


def reduction(both: AlignedRuns) -> ItemResult:
    """Reduction arguments of losses: mean or sum, ignored labels, label smoothing."""
    found = [
        one for one in compare_arguments(both) if one.name in REDUCTIONS and op_type_of(one.match.target).has("loss")
    ]
    if not found:
        return unknown(_no_reduction(both))
    odd = [one for one in found if not alike(one.target, one.golden)]
    if not odd:
        return same(", ".join(f"{one.name} {one.target}" for one in found[:3]), places=len(found))
    first = odd[0]
    return differs(
        f"{first.name} is {first.target} against {first.golden} in {first.match.target.name}",
        places=len(odd),
        first=first.match.target.name,
        target=str(first.target),
        golden=str(first.golden),
    )


def _no_reduction(both: AlignedRuns) -> str:
    """Why no reduction can be compared: a loss without recorded arguments has the default of its framework."""
    losses = [match for one in both.aligned_steps for match in one.matches if op_type_of(match.target).has("loss")]
    for match in losses:
        sides = [REDUCTIONS & named_arguments(one).keys() for one in match[:2]]
        if any(sides):
            side = "target" if sides[0] else "golden"
            return (
                f"{match.target.name} records {min(sides[0] or sides[1])} only in the {side}: the other has its default"
            )
    if losses and next(compare_arguments(both), None) is not None:
        return f"{losses[0].target.name} records none on either side: both have the default of their framework"
    return "no loss with recorded arguments is in both dumps; dump level L1 or mix"
