"""Compare checkpoints: two folders or files of parameters, of any convention → runs in the golden's names → pipeline →
verdicts and places of parameters.

    open_checkpoint ──► structure_of ──► paired_weights ──► two Runs ──► pipeline ──► judged ──► weight_roots
    names               counting         free numbers       payloads     one pass     elements    places
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.checkpoint_files import CheckpointFiles, open_checkpoint
from npucmp.errors import UsageError
from npucmp.localise.coverage import coverage_of
from npucmp.model import Comparison, Finding, Operator, Report, Run, TensorRef, first_of
from npucmp.model.optypes import is_weight
from npucmp.model.relation import WeightFacts, WeightRelation
from npucmp.model.table import Table
from npucmp.relations.layout_sizes import LayoutSizes, stated_layout
from npucmp.relations.weights.checkpoint_pair import CheckpointPair, JudgedWeight, PairedWeights
from npucmp.relations.weights.element_ranks import ranks_of_files
from npucmp.relations.weights.free_numbers import DeclaredLayout
from npucmp.relations.weights.next_update import UpdateFinder
from npucmp.relations.weights.pairing import paired_weights
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import is_buffer, named_role
from npucmp.relations.weights.structure import CheckpointStructure, structure_of
from npucmp.relations.weights.training_states import (
    PairedStates,
    lost_state,
    number_findings,
    paired_states,
    state_roots,
)
from npucmp.relations.weights.weight_faults import FaultFinder
from npucmp.relations.weights.weight_roots import judged, weight_roots
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides

KNOWN = 0.8  # share of tensors: chosen: names of parameters; activations of a dump have other names
CONVENTIONS = ("meta", "transformers")  # orders of rotary embedding that --layout names
FEW = 0.25  # share of parameters: chosen: more that have a type on one side alone are narrowed as a kind
UNSHARDED = 0.5  # share of parameters of another shape: chosen: shards are missing, or the networks differ


class _Pairs(NamedTuple):
    """The pairs by the operator and slot of the report."""

    found: PairedWeights
    by_key: Mapping[tuple[str, str], CheckpointPair]
    structures: tuple[CheckpointStructure, CheckpointStructure]


class CheckpointRelation:
    """How the parameters of two checkpoints correspond; the runs of both sides are in the golden's names."""

    def __init__(
        self,
        sides: Sequence[CheckpointFiles],
        pairs: _Pairs,
        states: PairedStates,
        options: Options,
        context: ReadContext,
    ) -> None:
        self._sides, self._pairs, self._states = sides, pairs, states
        self._options, self._context = options, context

    def plan(self) -> Sequence[str]:
        """Return the relations of the parameters in words."""
        found = self._pairs.found
        return [*dict.fromkeys(found.lines)] or [f"{len(found.pairs)} parameters of two checkpoints, by their roles"]

    def apply(self, sides: Sides) -> Sides:
        """Return the sides with a run of each checkpoint."""
        runs = [_run(self._pairs, one, at) for at, one in enumerate(self._sides)]
        changes = {"recompute": "none", "align": "auto"}
        return sides._replace(targets=runs[:1], goldens=runs[1:], changes=changes)

    def explain(self, report: Report) -> Report:
        """Return the report with verdicts by single elements and the places of wrong parameters."""
        updates = UpdateFinder(self._sides[0].state, self._sides[1].state, self._context)
        comparisons = tuple(
            _with_verdicts(one, self._pairs, self._states, updates, self._options, self._context)
            for one in report.comparisons
        )
        found = self._pairs.found
        facts = WeightFacts(tuple(dict.fromkeys(found.lines)), tuple(found.only_target), self._states.compared)
        return replace(report, comparisons=comparisons, weights=facts, rules=(), disk=None)


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[CheckpointRelation]:
    """Return how the parameters of two checkpoints correspond; None if a path holds none.

    Raises UsageError if the ranks of a checkpoint are not complete, or the declared layout contradicts them.
    """
    found = []
    for path in (sides.target_path, sides.golden_path):
        one = open_checkpoint(path, context.confine(path))
        if one is None or not _holds_weights(one):
            return None
        found.append(one)
    declared, sizes = _declared(options)
    structures = structure_of(found[0], "target"), structure_of(found[1], "golden")
    for name, stated, structure in zip(("layout", "golden-layout"), sizes, structures):
        _require_sizes(name, stated, structure)
    paired = paired_weights(*structures, declared, context)
    pairs = _Pairs(paired, _by_key(paired.pairs), structures)
    _require_one_network(pairs, str(sides.target_path), str(sides.golden_path))
    states = paired_states(found[0].state, found[1].state, context)
    pairs = pairs._replace(by_key=_by_key((*paired.pairs, *states.pairs)))
    return CheckpointRelation(found, pairs, states, options, context)


def checkpoint_runs(path: StrPath, context: ReadContext) -> Optional[list[Run]]:
    """Return the ranks of a checkpoint as runs in the names of its own tensors; None if a path holds none."""
    one = open_checkpoint(path, context.confine(path))
    if one is None or not _holds_weights(one):
        return None
    runs = []
    for number, rank in enumerate(one.ranks):
        tensors = {f"chunk{at}.{name}" if at else name: ref
                   for at, chunk in enumerate(rank.every) for name, ref in chunk.items()}  # fmt: skip
        operators = tuple(
            Operator(name, _type(name), name, "", order, (ref,), reads_recorded=False)
            for order, (name, ref) in enumerate(sorted(tensors.items(), key=lambda both: _in_network(both[0])))
        )
        own = number if len(one.ranks) > 1 else None
        file = next((ref.file for ref in tensors.values() if ref.file), one.path)
        where = one.path if own is None else os.path.dirname(file)
        runs.append(Run(where, one.format, operators, rank=own, detail="weights only", notes=one.notes))
    return runs


def _in_network(name: str) -> tuple[object, ...]:
    role = named_role(name).role
    return (*role.position, role.kind, name)


def _holds_weights(one: CheckpointFiles) -> bool:
    """Return whether most tensors have names of parameters."""
    every = [(name, ref) for rank in one.ranks for chunk in rank.every for name, ref in chunk.items()]
    named = [(name, ref) for name, ref in every if ref.slot]
    known = sum(_is_parameter(name, ref) for name, ref in named)
    return bool(named) and known >= KNOWN * len(named)


def _is_parameter(name: str, ref: TensorRef) -> bool:
    if named_role(name).convention is not None or is_buffer(name, ref.shape):
        return True
    operator = Operator(name, "", name, "", 0, (ref,), reads_recorded=False)
    return is_weight(operator)


def _declared(options: Options) -> tuple[DeclaredLayout, tuple[Optional[LayoutSizes], Optional[LayoutSizes]]]:
    """Return what the options declare: conventions and orders, and the sizes of both layouts."""
    words = {"target": None, "golden": None}  # type: dict[str, Optional[str]]
    left = []
    for item in (options.layout or "").replace(" ", "").split(","):
        name, _, value = item.partition("=")
        if name in words and value:
            if value.lower() not in CONVENTIONS:
                raise UsageError(f"--layout {item}: the order of rotary embedding is one of {', '.join(CONVENTIONS)}")
            words[name] = value
        elif item:
            left.append(item)
    sizes = stated_layout("layout", ",".join(left) or None), stated_layout("golden-layout", options.golden_layout)
    up_first = None if options.fc1 is None else options.fc1 == "up,gate"
    return DeclaredLayout(words["target"], words["golden"], up_first, options.kv_heads, options.lora_scale), sizes


def _require_sizes(option: str, stated: Optional[LayoutSizes], one: CheckpointStructure) -> None:
    known = {"tp": one.sizes.shard, "ep": one.sizes.group, "pp": one.sizes.stage}
    for axis, size in known.items():
        if stated is not None and stated.size(axis) != size:
            raise UsageError(f"--{option} {stated.words} contradicts the checkpoint, whose ranks count as "
                             f"{', '.join(f'{name}={count}' for name, count in known.items())}")  # fmt: skip


def _by_key(pairs: Sequence[CheckpointPair]) -> dict[tuple[str, str], CheckpointPair]:
    """Return the pairs by the operator and slot of their rows; a name that occurs again gets its own slot."""
    found: dict[tuple[str, str], CheckpointPair] = {}
    for pair in pairs:
        part = pair.golden or pair.target
        slot = ".".join(filter(None, ["output:0", part.slot if part is not None else ""]))
        slot = f"{slot}.copy{pair.copy}" if pair.copy else slot
        while (pair.name, slot) in found:
            slot += "+"
        found[pair.name, slot] = pair
    return found


def _require_one_network(pairs: _Pairs, target: str, golden: str) -> None:
    """Raise UsageError if most parameters have no partner of their shape: another network, or missing shards."""
    whole = [
        pair for pair in pairs.found.pairs if not pair.copy and pair.golden is not None and not pair.golden.problem
    ]
    alone = sum(pair.target is None for pair in whole)
    if whole and alone > KNOWN * len(whole):
        words = f"{alone} of {len(whole)} parameters of the golden have no partner by their names"
        raise UsageError(f"{target} and {golden} look like different networks: {words}")
    both = [(pair.target, pair.golden) for pair in whole if pair.target is not None and pair.golden is not None]
    ratios = Counter(
        tuple(b / a if a else 0.0 for a, b in zip(x.shape, y.shape))
        for x, y in both
        if len(x.shape) == len(y.shape) == 2
    )
    parts = sum(
        count for ratio, count in ratios.items() if sorted(ratio)[0] == 1.0 and ratio[0] * ratio[1] in (2, 4, 8, 16)
    )
    if sum(ratios.values()) and parts > UNSHARDED * sum(ratios.values()):
        words = f"{parts} of {len(both)} parameters of the target are a part of the golden's"
        raise UsageError(f"{words}: ranks of the target are missing")


def _run(pairs: _Pairs, side: CheckpointFiles, at: int) -> Run:
    """Return one side as a run in the golden's names. A parameter of one side alone is in its run."""
    operators: dict[str, list[TensorRef]] = {}
    names: dict[str, str] = {}
    for (name, slot), pair in pairs.by_key.items():
        part = (pair.target, pair.golden)[at]
        if part is None:
            continue
        operators.setdefault(name, []).append(_ref(part, slot, pair if at == 0 else None))
        names.setdefault(name, ";".join(dict.fromkeys(own for _, own in part.names)) or part.name)
    every = dict.fromkeys(name for name, _ in pairs.by_key)
    made = [
        Operator(name, _type(name), name, "", order, tuple(operators[name]), reads_recorded=False,
                 own_name=names[name] if names[name] != name else "")
        for order, name in enumerate(every)
        if name in operators
    ]  # fmt: skip
    ranks = f"{len(side.ranks)} ranks" if len(side.ranks) > 1 else ""
    detail = " · ".join(filter(None, ["weights only", ranks]))
    return Run(side.path, side.format, tuple(made), detail=detail, notes=side.notes)


def _type(name: str) -> str:
    found = named_role(name)
    return found.role.kind if found.convention is not None else name.rpartition(".")[2]


def _ref(part: Part, slot: str, pair: Optional[CheckpointPair]) -> TensorRef:
    """Return the tensor of a part. The target's has the relation, by which single elements are counted."""
    relation = None
    if pair is not None:
        relation = WeightRelation(pair.words, part.names, pair.limit.rtol, pair.limit.atol)
    if part.payload is None:
        return TensorRef(slot, part.dtype, (), part.file, problem=part.problem or "without values", label=part.name,
                         relation=relation)  # fmt: skip
    return TensorRef(slot, part.dtype, part.shape, part.file, payload=part.payload, label=part.name, relation=relation)


def _with_verdicts(
    one: Comparison,
    pairs: _Pairs,
    states: PairedStates,
    updates: UpdateFinder,
    options: Options,
    context: ReadContext,
) -> Comparison:
    """Return the comparison with verdicts by single elements, and the places of wrong parameters."""
    keeps = not options.decides().by_round_off  # the user's limits decide
    rows = [*_judged(one.findings, pairs, keeps, context)]
    numbers = number_findings(states.numbers, len(pairs.by_key))
    compared = [row.finding for row in rows]
    rows = [*map(lost_state, rows)]
    findings = [row.finding for row in rows]
    findings += [finding._replace(row=len(rows) + at) for at, finding in enumerate(numbers.findings)]
    by_role = sum(operator.own_name != "" for operator in one.target.operators)
    counts = {"name": sum(one.matched.values()) - by_role, "weights": by_role}
    shards = max(side.shards for side in pairs.structures)
    finder = FaultFinder(pairs.found.pairs, shards, context, ranks_of_files(pairs.structures[0]))
    roots = weight_roots([row for row in rows if not row.pair.is_state], finder, updates)
    of_states = state_roots([row for row in rows if row.pair.is_state], numbers, finder, len(roots))
    left = pairs.found.only_target
    notes = [f"only in target: {len(left)} parameters, the first: {left[0]}"] if left else []
    notes += _odd_types(pairs.found.pairs)
    return replace(
        one,
        findings=Table(findings),
        roots=(*roots, *of_states),
        matched={name: count for name, count in counts.items() if count},
        coverage=coverage_of(compared, one.left_out, context),
        incomplete=(),
        notes=(*notes, *states.notes),
    )


def _odd_types(pairs: Sequence[CheckpointPair]) -> Iterator[str]:
    """Yield the types that a few parameters have on one side alone, if most have others. Codes have a scale instead."""
    named: dict[tuple[str, str], list[str]] = {}
    whole = [(pair.name, pair.target, pair.golden) for pair in pairs if not pair.copy and not pair.is_slot]
    for name, target, golden in whole:
        if target is not None and golden is not None and not any(side.is_codes for side in (target, golden)):
            types = (target.dtype, golden.dtype) if target.dtype != golden.dtype else ("", "")
            named.setdefault(types, []).append(name)
    count = sum(map(len, named.values()))
    for (target_type, golden_type), names in named.items():
        if target_type and len(names) <= FEW * count:
            words = f"{len(names)} of {count} parameters are {target_type} in the target and"
            yield f"{words} {golden_type} in the golden, unlike most: {first_of([*dict.fromkeys(names)])}"


def _with_matcher(finding: Finding) -> Finding:
    """Return a finding whose tensors have other names as matched by their roles."""
    pair = finding.pair
    if pair.target_op is None or pair.golden_op is None or not pair.target_op.own_name:
        return finding
    return finding._replace(measurement=finding.measurement._replace(pair=pair._replace(via="weights")))


def _judged(findings: Sequence[Finding], pairs: _Pairs, keeps: bool, context: ReadContext) -> Iterator[JudgedWeight]:
    for at, finding in enumerate(findings):
        pair = pairs.by_key[finding.pair.operator.name, finding.pair.slot]
        row = judged(_with_matcher(finding), pair, context)
        if keeps and row.finding.rule not in ("scale_missing",):
            row = JudgedWeight(_with_matcher(finding), pair, row.share)
        yield row._replace(finding=row.finding._replace(row=at))
