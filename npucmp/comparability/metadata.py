"""Rows of dump metadata: framework, level, task, steps, ranks, completeness."""

from __future__ import annotations

from collections import Counter
from typing import Optional, Sequence

from npucmp.comparability.answers import close, compare_words, differs, not_applicable, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.run_pair import RunPair
from npucmp.model import Run
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import holds_weights_alone

LEVELS = ("L0", "L1", "L2", "mix", "debug")
WEIGHTS_ALONE = "the dumps hold only weights"
PROVES = ("tensor", "checksums", "statistics", "XOR checksums")  # strongest proof first


def _framework(run: Run) -> str:
    """The framework that the dump names, else its format."""
    first = run.detail.partition(" · ")[0]
    return first if first in ("pytorch", "mindspore") else run.format


def _level(run: Run) -> Optional[str]:
    word = run.detail.rpartition(" · ")[2].partition(" ")[0]
    return word if word in LEVELS else None


def _task(run: Run) -> str:
    """The kind of data that the dump recorded of tensors."""
    tensors = [tensor for operator in run.operators for tensor in operator.tensors]
    if any(tensor.file or tensor.payload for tensor in tensors):
        return PROVES[0]
    if any(tensor.digest for tensor in tensors):
        return PROVES[1]
    return PROVES[3] if any(tensor.has_xor for tensor in tensors) else PROVES[2]


def framework(both: RunPair) -> ItemResult:
    return compare_words(_framework(both.targets[0]), _framework(both.goldens[0]), "framework")


def level(both: RunPair) -> ItemResult:
    here, there = _level(both.targets[0]), _level(both.goldens[0])
    if here is None and there is None:
        return not_applicable("dumps of this format have no levels")
    return compare_words(here, there, "level")


def task(both: RunPair) -> ItemResult:
    here, there = _task(both.targets[0]), _task(both.goldens[0])
    if here != there and PROVES[0] in (here, there):
        return close(f"{here} against {there}: a weaker proof", target=here, golden=there)
    return compare_words(here, there, "task")


def steps(both: RunPair) -> ItemResult:
    return _numbers(both, "step")


def ranks(both: RunPair) -> ItemResult:
    return _numbers(both, "rank")


def _numbers(both: RunPair, name: str) -> ItemResult:
    here, there = ({getattr(run, name) for run in runs} for runs in (both.targets, both.goldens))
    words = {"target": _list_values(here), "golden": _list_values(there)}
    if None in here or None in there:
        return same(f"a dump without {name}s matches any", **words)
    if here == there:
        return same(f"{name}s {_list_values(here)}" if len(here) > 1 else f"{name} {_list_values(here)}", **words)
    count = len(here ^ there)
    difference = f"{name}s {words['target']} against {words['golden']}"
    if here & there:
        return differs(difference, "warning", places=count, **words)
    return differs(difference, "error", places=count, **words)


def _list_values(numbers: set[Optional[int]]) -> str:
    known = sorted(number for number in numbers if number is not None)
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]}-{known[-1]}"
    return ", ".join(map(str, known[:8])) + (f" and {len(known) - 8} more" if len(known) > 8 else "")


def incomplete(both: RunPair) -> ItemResult:
    """Phases that one side lacks, and phases in which only one side recorded the inputs of operators."""
    here, there = _reads(both.targets), _reads(both.goldens)
    phases = sorted(here.keys() | there.keys())
    if not phases:
        return unknown("the dumps hold no operators")
    if all(map(holds_weights_alone, (*both.targets, *both.goldens))):
        return same(WEIGHTS_ALONE)
    for phase in phases:
        word = phase or "all"
        if (phase in here) != (phase in there) and phase:
            lacking = "golden" if phase in here else "target"
            return differs(f"{lacking} has no {word} pass", first=word)
        shares = here.get(phase, 0.0), there.get(phase, 0.0)
        if min(shares) < 0.1 <= 0.5 <= max(shares):
            lacking = "target" if shares[0] < shares[1] else "golden"
            note = "note" if both.targets[0].format != both.goldens[0].format else ""
            return differs(f"{lacking} recorded no inputs in the {word} pass", note, first=word)
    return same(f"{' and '.join(phase or 'all' for phase in phases)}: inputs on both sides or on neither")


def _reads(runs: Sequence[Run]) -> dict[str, float]:
    """The share of operators with recorded inputs, by phase."""
    counts: Counter[str] = Counter()
    with_inputs: Counter[str] = Counter()
    for run in runs:
        for operator in run.operators:
            counts[operator.phase] += 1
            with_inputs[operator.phase] += any(tensor.slot.startswith("input") for tensor in operator.tensors)
    return {phase: with_inputs[phase] / count for phase, count in counts.items()}


ROWS = (
    CheckItem("dump.framework", "warning", "framework", "operators and defaults differ between frameworks", framework),
    CheckItem("dump.level", "warning", "level of the dump", "dump both with the same settings", level),
    CheckItem("dump.task", "warning", "recorded data of tensors", "dump both with the same settings", task),
    CheckItem("dump.steps", "error", "steps", "dump the same steps of both, or select them with --step", steps),
    CheckItem("dump.ranks", "error", "ranks", "use the same partition, or select ranks with --rank", ranks),
    CheckItem(
        "dump.incomplete", "warning", "phases, inputs", "dump inputs and outputs, forward and backward", incomplete
    ),
)
