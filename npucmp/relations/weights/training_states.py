"""Pairs of the states of two trainings: tensors by name, and numbers that differ; and the places of what differs, one
for each of optimizer, scheduler, scaler and counter.

A golden state has no partner if the target is a training that lost it. If the target holds no state at all, it is a
file of parameters alone: nothing is lost, and a note says so.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.training_state import Number, TrainingState
from npucmp.model import DIFFERS, Cause, Evidence, Finding, Operator, Pair, Root, TensorRef, Verdict, first_of
from npucmp.model.cause import Fact
from npucmp.model.finding import Measurement
from npucmp.relations.weights.checkpoint_pair import CheckpointPair, JudgedWeight
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import only_value
from npucmp.relations.weights.weight_faults import DIFFERS as UNDESCRIBED
from npucmp.relations.weights.weight_faults import FaultFinder
from npucmp.relations.weights.weight_roots import RULE, size_reasons

EQUAL = 1e-9  # relative difference of two numbers: chosen: text and float64 of one number
_PARAMETER = re.compile(r"(.*?)\.([0-9]{1,9})\.(.+)")  # state.12.exp_avg


class StateNumber(NamedTuple):
    """A number of the state that differs; None on a side that lacks it."""

    name: str
    target: Optional[Number]
    golden: Optional[Number]


class PairedStates(NamedTuple):
    """Tensors of both states and of the golden's alone, numbers that differ, notes, and the number of what was
    compared."""

    pairs: tuple[CheckpointPair, ...] = ()
    numbers: tuple[StateNumber, ...] = ()
    notes: tuple[str, ...] = ()
    compared: int = 0


def paired_states(target: TrainingState, golden: TrainingState, context: ReadContext) -> PairedStates:
    """Pair two states by the names of their tensors and numbers. One-element tensors are numbers if the other side
    holds a number of that name."""
    if bool(target.heads) is not bool(golden.heads):
        where, missing, held = ("golden", "target", golden) if golden.heads else ("target", "golden", target)
        words = f"state of the training ({first_of([*held.heads])}) only in {where}: the {missing} holds none"
        return PairedStates(notes=(words,))
    numbers: list[dict[str, Number]] = [{**state.numbers} for state in (target, golden)]
    tensors: list[dict[str, TensorRef]] = [{**state.tensors} for state in (target, golden)]
    for at, other in ((0, 1), (1, 0)):
        for key in [*tensors[at]]:
            if key in numbers[other]:
                value = only_value(tensors[at].pop(key), context)
                if value is not None:
                    numbers[at][key] = value
    here, there = tensors
    pairs = tuple(_pair(name, here.get(name), ref) for name, ref in there.items())
    alone = [name for name in here if name not in there]
    notes = (f"only in target: {len(alone)} tensors of the training's state, the first: {alone[0]}",) if alone else ()
    odd = [StateNumber(name, numbers[0].get(name), value) for name, value in numbers[1].items()
           if not _is_same(numbers[0].get(name), value)]  # fmt: skip
    return PairedStates(pairs, tuple(odd), notes, len(pairs) + len(numbers[1]))


def _is_same(a: Optional[Number], b: Number) -> bool:
    return a is not None and (a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=EQUAL))


def _pair(name: str, target: Optional[TensorRef], golden: TensorRef) -> CheckpointPair:
    match = _PARAMETER.fullmatch(name)
    role = Role(int(match[2]), f"={match[1]}.#.{match[3]}", "") if match else Role(None, f"={name}", "")
    sides = [None if ref is None else _part(role, name, ref) for ref in (target, golden)]
    here, there = sides
    assert there is not None
    if here is None:
        return CheckpointPair(role, None, there, is_state=True, note="lost: only in the golden")
    return CheckpointPair(role, here, there, limit_of(here, there), is_state=True)


def _part(role: Role, name: str, ref: TensorRef) -> Part:
    return Part(role, ref.payload, name, ref.file, ref.dtype, problem=ref.problem)


FEW = 4  # members of a key that are described: work
NUMBERS = 4  # numbers: work: readers of the evidence need no more
LOST = "lost: only in the golden"


class StateNumbers(NamedTuple):
    """The findings of numbers that differ, by the word with which their names begin."""

    findings: tuple[Finding, ...]
    by_head: Mapping[str, Sequence[StateNumber]]


def number_findings(numbers: Sequence[StateNumber], order: int) -> StateNumbers:
    """Return a finding for each number that differs. `order` is the place of the first in the network's order."""
    by_head: dict[str, list[StateNumber]] = defaultdict(list)
    findings = []
    for at, number in enumerate(numbers):
        by_head[_head(number.name)].append(number)
        ref = TensorRef("output:0", "float64", (), label=number.name)
        operator = Operator(number.name, "state", number.name, "", order + at, (ref,), reads_recorded=False)
        pair = Pair(order + at, "output:0", operator, operator, ref, ref, "name", 1.0)
        words = f"{number.target!r} against {number.golden!r}"
        if number.target is None:
            pair = pair._replace(target_op=None, target=None, via="", confidence=0.0)
            words = f"{LOST}, {number.golden!r}"
        findings.append(Finding(Measurement(pair), Verdict.DIVERGED, words, math.nan, rule=RULE))
    return StateNumbers(tuple(findings), by_head)


def lost_state(row: JudgedWeight) -> JudgedWeight:
    """Return the verdict on a tensor of the state that the target lost."""
    if not row.pair.is_state or row.pair.target is not None or row.finding.verdict is not Verdict.MISSING:
        return row
    return row._replace(finding=row.finding._replace(verdict=Verdict.DIVERGED, because=LOST, error=math.nan, rule=RULE))


def state_roots(rows: Sequence[JudgedWeight], numbers: StateNumbers, finder: FaultFinder, place: int) -> list[Root]:
    """Return a root for each part of the state that differs, after the `place` roots of parameters."""
    wrong = [row for row in rows if row.finding.verdict in DIFFERS]
    by_head: dict[str, list[JudgedWeight]] = defaultdict(list)
    for row in wrong:
        by_head[_head(row.pair.name)].append(row)
    roots: list[Root] = []
    for head in dict.fromkeys([*by_head, *numbers.by_head]):
        members, odd = by_head.get(head, []), numbers.by_head.get(head, [])
        first = members[0].finding if members else next(
            one for one in numbers.findings if one.pair.operator.name == odd[0].name
        )  # fmt: skip
        reasons = [*_lost(head, members, odd), *_differing(members, rows, finder), *_numbers(odd)]
        roots.append(Root(place + len(roots) + 1, first.pair, Cause.GAP, first.pair.slot, "rel_l2", None, 0.0, None,
                          None, tuple(reasons), RULE))  # fmt: skip
    return roots


def _lost(head: str, members: Sequence[JudgedWeight], odd: Sequence[StateNumber]) -> list[Evidence]:
    """Return the evidence of what the golden alone holds."""
    lost = [row for row in members if row.pair.target is None]
    keys = dict.fromkeys(row.pair.role.kind.rpartition(".")[2].lstrip("=") for row in lost)
    numbers = [number for number in odd if number.target is None]
    keys.update(dict.fromkeys(number.name.rpartition(".")[2] for number in numbers))
    if not keys:
        return []
    parameters = {row.pair.role.layer for row in lost if row.pair.role.layer is not None}
    facts = {"head": Fact(head), "keys": Fact(first_of([*keys], NUMBERS))}
    words = "the state of the {head} is lost: only the golden holds {keys}"
    if parameters:
        words = "the state of the {head} is lost: of {count} parameters, only the golden holds {keys}"
        facts["count"] = Fact(len(parameters))
    return [Evidence("lost state", words, facts)]


def _differing(members: Sequence[JudgedWeight], rows: Sequence[JudgedWeight], finder: FaultFinder) -> list[Evidence]:
    """Return how the tensors of each key differ."""
    families: dict[str, list[JudgedWeight]] = defaultdict(list)
    for row in members:
        if row.pair.target is not None:
            families[row.pair.role.kind].append(row)
    reasons = []
    for kind, own in families.items():
        every = sum(row.pair.role.kind == kind for row in rows)
        faults = [finder.fault(row.pair) for row in own[:FEW]]
        fault = faults[0] if len({one.label for one in faults}) == 1 else UNDESCRIBED
        facts = {name: Fact(value) for name, value in fault.facts.items()}
        key = kind.lstrip("=").rpartition(".#.")[2]
        words = (
            f"{{key}} of {{count}} of {{every}} parameters: {fault.words}"
            if ".#." in kind
            else f"{{key}}: {fault.words}"
        )
        facts.update({"key": Fact(key), "count": Fact(len(own)), "every": Fact(every)})
        reasons += [Evidence("state", words, facts), *size_reasons(own, fault)]
    return reasons


def _numbers(odd: Sequence[StateNumber]) -> list[Evidence]:
    """Return the numbers that differ."""
    known = [number for number in odd if number.target is not None]
    reasons = []
    for number in known[:NUMBERS]:
        facts = {"name": Fact(number.name), "target": Fact(repr(number.target)), "golden": Fact(repr(number.golden))}
        words = "{name} is {target} in the target, {golden} in the golden"
        reasons.append(Evidence("state number", words, facts))
    if len(known) > NUMBERS:
        facts = {"count": Fact(len(known) - NUMBERS)}
        reasons.append(Evidence("state number", "{count} further numbers differ", facts))
    return reasons


def _head(name: str) -> str:
    """Return "optimizer" of optimizer.state.0.exp_avg, "rank0.optimizer" of a rank's."""
    words = name.split(".")
    return ".".join(words[: 2 if re.match(r"rank\d", words[0]) else 1])
