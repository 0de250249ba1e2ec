"""Rows of the executed code: source lines of operators, passes of compilers, arguments of the optimizer."""

from __future__ import annotations

import math
import re
from typing import Any

from npucmp.comparability.answers import differs, not_applicable, same, unknown
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.run_pair import RunPair
from npucmp.comparability.settings import OPTIMIZER, equal, parameters_of, word_of
from npucmp.model import Operator, first_of
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import op_type_of
from npucmp.model.stack import source_line
from npucmp.report.phrases import count_of

EQUAL = 1e-6  # relative: float32 against its float64 source
_PLACE = re.compile(r"^(?P<file>[^:]*):\d+\s*(?P<code>.*)$", re.DOTALL)


def scripts(both: RunPair) -> ItemResult:
    """Whether matched operators come from different source lines: compares file and code, not line numbers."""
    odd, known = list[str](), 0
    for one in both.aligned_steps:
        for match in one.matches:
            here, there = _line(match.target), _line(match.golden)
            if here and there:
                known += 1
                odd += [f"{match.target.name}: {here} against {there}"] if here != there else []
    if not known:
        return unknown("no matched operator has a call stack in both dumps")
    if odd:
        return differs(f"{count_of(len(odd), 'operator')} from different lines (first: {odd[0]:.200})", places=len(odd),
                       first=odd[0].partition(":")[0])  # fmt: skip
    return same(f"{known:,} lines", places=known)


def _line(operator: Operator) -> str:
    """ "model.py  x = f(x)", without the folder and the line number."""
    found = _PLACE.match(source_line(operator))
    return f"{found['file'].rpartition('/')[2]}  {found['code'].strip()}" if found else ""


def fusion(both: RunPair) -> ItemResult:
    """Graph compiler passes that took effect on one side only."""
    sides = [{name for run in runs for one in run.operators for name in one.passes} for runs in
             (both.targets, both.goldens)]  # fmt: skip
    fused = [sum(len(one.originals) > 1 for run in runs for one in run.operators) for runs in
             (both.targets, both.goldens)]  # fmt: skip
    if not any(sides) and not any(fused):
        return not_applicable("no graph records fused operators")
    odd = sorted(sides[0] ^ sides[1])
    words = f"{fused[0]} fused operators in target, {fused[1]} in golden"
    if odd or bool(fused[0]) != bool(fused[1]):
        passes = f": {first_of(odd, 3)} on one side" if odd else ""
        return differs(f"{words}{passes}", places=len(odd) or max(fused), first=odd[0] if odd else "")
    return same(words, places=fused[0])


def optimizer(both: RunPair) -> ItemResult:
    """Scalar inputs of the optimizer, if its operators are recorded; else its parameters in the configurations."""
    odd, known = list[str](), 0
    for one in both.aligned_steps:
        for pair in one.pairs:
            if pair.target is None or pair.golden is None or pair.target_op is None or pair.slot.startswith("output"):
                continue
            if not op_type_of(pair.target_op).has("updates") or math.prod(pair.target.shape) != 1:
                continue
            a, b = (both.facts[id(tensor)].figures.constant for tensor in (pair.target, pair.golden))
            if a is not None and b is not None:
                known += 1
                if not math.isclose(a, b, rel_tol=EQUAL, abs_tol=0.0):
                    odd.append(f"{pair.target_op.name} {pair.slot}: {a:.6g} against {b:.6g}")
    if not known:
        return _optimizer_settings(both)
    if odd:
        return differs(first_of(odd, 2), places=len(odd), first=odd[0].partition(":")[0])
    return same(f"{known} numbers", places=known)


def _optimizer_settings(both: RunPair) -> ItemResult:
    sides: list[dict[str, Any]] = []
    for side in (0, 1):
        parameters = parameters_of(both, side) or {}
        sides.append(
            {OPTIMIZER[word_of(name)]: value for name, value in parameters.items() if word_of(name) in OPTIMIZER}
        )
    known = sorted(sides[0].keys() & sides[1].keys())
    if not known:
        return unknown("needs kernel dumps with the optimizer, or --config of both")
    odd = [f"{name} is {sides[0][name]} against {sides[1][name]}" for name in known
           if not equal(sides[0][name], sides[1][name])]  # fmt: skip
    if odd:
        return differs(first_of(odd, 3), places=len(odd), first=odd[0].partition(" ")[0])
    return same(", ".join(f"{name} {sides[0][name]}" for name in known[:4]), places=len(known))


ROWS = (
    CheckItem("optimizer.arguments", "error", "arguments of the optimizer", "give both optimizers the same arguments",
        optimizer),
    CheckItem("scripts", "note", "lines that call operators", "compare the model code of both", scripts),
    CheckItem("fusion", "note", "passes of graph compilers", "run npucmp fusion-diff, or disable fusion on both sides",
        fusion),
)  # fmt: skip
