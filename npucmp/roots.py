"""Findings in graph order → which operator bears the error, which passes it on.

The question is asked operator by operator, in execution order: do its inputs agree? If not, does what was
dumped before explain that? Do its outputs differ by more than its inputs explain? docs/localisation.md tells the
rules with the evidence for each number.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp import metrics
from npucmp.dtypes import lookup
from npucmp.evidence import WHOLE_SCALE, gap_words, own_words, passed_words, unknown_words
from npucmp.judge import FACTOR
from npucmp.links import Producers, fingerprint
from npucmp.model import Cause, Finding, Operator, Pair, Root, Verdict

GROWTH = 8.0  # an operator may turn an input error e into 8 e
KINKED_GROWTH = 4.0  # one with a kink or a choice into 4 √e: a mask bit that flips moves a whole element
SCALED = 4.0  # round-offs by which rounding may scale a tensor as a whole; also growth of such a factor
SCALED_NOISE = 2.0  # the factor must stand out of the error that comes in
BACKGROUND = 0.95  # quantile of the errors seen so far that an input of unknown origin is held against

KINKED = re.compile(
    r"relu|hardtanh|hardswish|hardsigmoid|(?<!soft)max|(?<!soft)min|clamp|clip|topk|sort|argm|where|mask|"
    r"^_*(eq|ne|gt|ge|lt|le|sign|round|floor|ceil|bool|any|all|not|invert)_*$|dropout",
    re.IGNORECASE,
)
SUMS = re.compile(r"^_*(i?add|i?sub|rsub|sum|mean|cumsum|lerp)_*$")
IN_PLACE = re.compile(r"[a-z0-9]_$|^__i[a-z]+__$|^__setitem__$")
PARAMETERS = {  # positional inputs that are parameters, of functional operators; modules say param: themselves
    "linear": (1, 2), "conv1d": (1, 2), "conv2d": (1, 2), "conv3d": (1, 2), "conv_transpose2d": (1, 2),
    "embedding": (1,), "layer_norm": (2, 3), "batch_norm": (1, 2, 3, 4), "group_norm": (2, 3),
    "instance_norm": (1, 2, 3, 4), "rms_norm": (2,), "prelu": (1,), "bilinear": (2, 3),
}  # fmt: skip

RANK = {Cause.BORN: 0, Cause.GAP: 0, Cause.WORSENED: 1, Cause.UNKNOWN: 2, Cause.PROPAGATED: 3}


class Source(NamedTuple):
    """Where an input comes from: the finding of the same tensor seen earlier, and whether it descends from a root."""

    finding: Finding
    tainted: bool


@dataclass
class Node:
    """One matched operator: its findings, and what the search has made of it."""

    pair: Pair
    inputs: list[Finding]
    outputs: list[Finding]
    context: list[Finding] = field(default_factory=list)  # forward tensors that a backward operator also reads
    tainted: bool = False

    @property
    def operator(self) -> Operator:
        return self.pair.operator


def find_roots(findings: Sequence[Finding], by_round_off: bool = True) -> tuple[list[Finding], list[Root]]:
    """(findings with `diverged` taken back where inputs explain the error, roots in the order of places).

    by_round_off is False when the user's own rules decide; then nothing is taken back.
    """
    nodes = _nodes(findings)
    search = _Search(by_round_off, {node.operator.name: node.operator.scope for node in nodes if node.operator.scope})
    for node in nodes:
        search.visit(node)
    roots = sorted(search.roots, key=lambda root: (RANK[root.cause], root.pair.order))
    final = [search.revised.get(id(finding), finding) for finding in findings]
    return final, [replace(root, place=place) for place, root in enumerate(roots, 1)]


def error_of(finding: Finding) -> Optional[float]:
    """The error that a rule sees; None if nothing is known. Differing checksums are an error of unknown size."""
    if finding.error is None:
        return None
    return math.inf if math.isnan(finding.error) else finding.error


def _nodes(findings: Sequence[Finding]) -> list[Node]:
    """Matched operators in graph order; gradients of parameters read what their module's backward reads."""
    nodes = []
    for _, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        pair = rows[0].pair
        if pair.target_op is None or pair.golden_op is None:
            continue
        outputs = [row for row in rows if _is_output(row.pair)]
        nodes.append(Node(pair, [row for row in rows if not _is_output(row.pair)], outputs))
    forward = {node.operator.call: node for node in nodes if node.operator.phase == "forward"}
    backward = _by_module(node for node in nodes if node.operator.phase == "backward")
    for node in nodes:
        if node.operator.phase == "backward":
            partner = forward.get(node.operator.call)
            node.context += partner.inputs + partner.outputs if partner else []
            if ".parameters_grad" in node.operator.name:
                for other in backward.get(node.operator.call, ()):
                    node.inputs += other.inputs
    return nodes


def _by_module(nodes: Iterable[Node]) -> "Mapping[str, list[Node]]":
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.operator.call.rpartition(".")[0], []).append(node)
    return found


def _is_output(pair: Pair) -> bool:
    tensor = pair.target or pair.golden
    return tensor is not None and tensor.is_output


class _Search:
    """Walks the operators once, in order, remembering which tensors descend from a root."""

    def __init__(self, by_round_off: bool, scopes: Mapping[str, str]) -> None:
        self.by_round_off = by_round_off
        self.roots: list[Root] = []
        self.revised: dict[int, Finding] = {}
        self._producers: Producers[Source] = Producers()
        self._errors: list[float] = []
        self._any_tainted = False
        self._last_agreeing: Optional[Finding] = None
        self._scopes = scopes
        self._inside: dict[str, str] = {}  # container → the first operator in it that has the error

    def visit(self, node: Node) -> None:
        """Decides one operator and what follows from it for the tensors it wrote."""
        gap, inherits = self._inputs(node)
        own = None if gap else self._own(node)
        diverged = [output for output in node.outputs if self._differs(output)]
        if gap:
            self._add(node, Cause.GAP, gap, gap_words(gap, self._last_agreeing, _is_parameter(gap.pair)))
        elif own and self._culprit(node):
            self._add(node, Cause.PROPAGATED, own, f"contains {self._culprit(node)}, which has the error")
        elif own:
            self._add(node, self._cause(node, own), own, self._words(node, own))
        elif inherits and diverged:
            worst = max(diverged, key=_size)
            self._add(node, Cause.PROPAGATED, worst, passed_words(self._input_error(node), worst))
        else:
            self._excuse(diverged)
        node.tainted = bool(gap or own or (inherits and diverged))
        self._remember(node)

    def _culprit(self, node: Node) -> str:
        """An operator inside this module that has the error already; "" if there is none."""
        operator = node.operator
        return self._inside.get(operator.name) or self._inside.get(f"{operator.phase} {operator.path}", "")

    def _inputs(self, node: Node) -> tuple[Optional[Finding], bool]:
        """(the input that differs although everything upstream agrees, whether an error is inherited)."""
        gap: Optional[Finding] = None
        inherits = False
        for finding in node.inputs:
            source = self._producers.find(fingerprint(finding))
            if source is not None and source.tainted:
                inherits = True
            if not self._differs(finding) or self._overwritten(node, finding):
                continue
            if self._is_gap(node, finding, source):
                gap = gap or finding
            elif source is None and self._any_tainted:
                inherits = True
            elif not (source and source.tainted):
                self._excuse([finding])
        return gap, inherits

    def _is_gap(self, node: Node, finding: Finding, source: Optional[Source]) -> bool:
        if source is not None:
            return not self._explained(finding, _size(source.finding)) and not source.tainted
        if _is_parameter(finding.pair):
            return True
        return not self._any_tainted and not self._explained(finding, self._background())

    def _own(self, node: Node) -> Optional[Finding]:
        """The output whose error is more than what the inputs explain; the largest, if there are several."""
        known = self._input_error(node)
        diverged = [finding for finding in node.outputs if self._differs(finding)]
        unexplained = [finding for finding in diverged if not self._inherited(node, finding, known)]
        if unexplained:
            return max(unexplained, key=_size)
        scaled = [finding for finding in node.outputs if known is not None and self._scaled(node, finding, known)]
        return self._promote(max(scaled, key=_size)) if scaled else None

    def _inherited(self, node: Node, finding: Finding, known: Optional[float]) -> bool:
        """Whether an output's error is explained; behind a root, inputs below the limit count as at the limit."""
        if known is None:
            return self._explained(finding, self._background(), node)
        return self._explained(finding, max(known, finding.limit) if self._any_tainted else known, node)

    def _explained(self, finding: Finding, before: float, node: Optional[Node] = None) -> bool:
        """Whether an operator may turn an error `before` into this one."""
        error = _size(finding)
        if not self.by_round_off and before <= 0:
            return False
        bar = GROWTH * before
        if node is not None:
            bar = max(bar, GROWTH * max(before, finding.limit / FACTOR) * cancellation(node, finding))
            if before > 0 and _is_kinked(node, finding):
                bar = max(bar, KINKED_GROWTH * math.sqrt(before), _one_flip(finding))
        return error <= bar or math.isinf(before)

    def _scaled(self, node: Node, finding: Finding, known: float) -> bool:
        """Whether the whole output is off by one factor, far beyond what rounding and the inputs give.

        Rounding errors cancel in Σxy/Σy², a wrong factor does not: this sees a 2 % fault under bfloat16.
        """
        moments = finding.measurement.moments
        if not self.by_round_off or moments is None or not moments.max_abs or finding.metric != "rel_l2":
            return False
        factor = abs(metrics.gain(moments))
        if factor < WHOLE_SCALE * _size(finding):
            return False
        inherited = max((abs(_gain(other)) for other in [*node.inputs, *node.context]), default=0.0)
        return factor > max(SCALED * finding.limit / FACTOR, SCALED * inherited, SCALED_NOISE * known)

    def _promote(self, finding: Finding) -> Finding:
        """A finding below the limit of rel_l2 that is diverged for another reason."""
        assert finding.measurement.moments is not None
        factor = metrics.gain(finding.measurement.moments)
        limit = SCALED * finding.limit / FACTOR
        because = f"scaled by {1 + factor:.4g} as a whole, limit ±{limit:.1e}"
        found = replace(finding, verdict=Verdict.DIVERGED, because=because, metric="gain", limit=limit)
        self.revised[id(finding)] = found
        return found

    def _cause(self, node: Node, own: Finding) -> Cause:
        known = self._input_error(node)
        if known is None:
            return Cause.UNKNOWN
        return Cause.WORSENED if self._disagreeing(node) else Cause.BORN

    def _disagreeing(self, node: Node) -> list[Finding]:
        """What the operator reads that differs, after errors that are explained were taken back."""
        read = [self.revised.get(id(finding), finding) for finding in (*node.inputs, *node.context)]
        return [finding for finding in read if self._differs(finding) and not self._overwritten(node, finding)]

    def _words(self, node: Node, own: Finding) -> str:
        known = self._input_error(node)
        if known is None:
            return unknown_words(own)
        return own_words(node.pair, own, known, bool(node.inputs), not self._disagreeing(node))

    def _input_error(self, node: Node) -> Optional[float]:
        """Largest error among all that the operator reads; None when that is not known.

        A tensor that cannot be compared here may have been compared where it was written.
        """
        errors = []
        for finding in node.inputs:
            if self._overwritten(node, finding):
                continue
            error = self._error(finding)
            if error is None:
                source = self._source(finding)
                error = self._error(source.finding) if source else None
            if error is None and finding.verdict is not Verdict.MISSING:
                return None
            errors.append(error or 0.0)
        if not errors and not node.operator.reads_recorded:
            return None
        errors += [error for finding in node.context if (error := self._error(finding)) is not None]
        return max(errors, default=0.0)

    def _error(self, finding: Finding) -> Optional[float]:
        error = error_of(finding)
        if self.by_round_off or error is None:
            return error
        return error if self._differs(finding) else 0.0

    def _source(self, finding: Finding) -> Optional[Source]:
        return self._producers.find(fingerprint(finding))

    def _differs(self, finding: Finding) -> bool:
        return finding.verdict in (Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE)

    def _overwritten(self, node: Node, finding: Finding) -> bool:
        """An in-place operator whose recorded input is its output says nothing about what it read."""
        if node.operator.phase == "backward" or not IN_PLACE.search(node.operator.op_type):
            return False
        mark = fingerprint(finding)
        return mark is not None and any(
            other is not None and mark.agrees(other) for other in map(fingerprint, node.outputs)
        )

    def _background(self) -> float:
        return self._errors[int(BACKGROUND * (len(self._errors) - 1))] if self._errors else 0.0

    def _excuse(self, findings: Iterable[Finding]) -> None:
        """Above the limit, but no more than the inputs explain and no descendant of a root: harmless."""
        for finding in findings:
            if self.by_round_off and finding.verdict is Verdict.DIVERGED and finding.metric == "rel_l2":
                because = f"{finding.because}; explained by the errors of its inputs"
                self.revised[id(finding)] = replace(finding, verdict=Verdict.MATCH, because=because)

    def _add(self, node: Node, cause: Cause, finding: Finding, evidence: str) -> None:
        known = self._input_error(node)
        outputs = [e for e in map(error_of, node.outputs) if e is not None]
        self.roots.append(
            Root(
                place=0,
                pair=node.pair,
                cause=cause,
                slot=finding.pair.slot,
                metric=finding.metric or finding.verdict.value,
                value=_shown(finding),
                limit=finding.limit,
                input_error=known,
                output_error=max(outputs, default=None),
                evidence=evidence,
            )
        )

    def _remember(self, node: Node) -> None:
        for finding in node.inputs:
            mark = fingerprint(finding)
            if mark is not None and self._producers.find(mark) is None:
                self._producers.add(mark, Source(finding, node.tainted and self._differs(finding)))
        for finding in node.outputs:
            self._producers.add(fingerprint(finding), Source(finding, node.tainted and self._differs(finding)))
        if node.tainted:
            self._any_tainted = True
            for container in containers(node.operator, self._scopes):
                self._inside.setdefault(container, node.operator.name)
        else:
            for finding in [*node.inputs, *node.outputs]:
                error = error_of(finding) if finding.error is not None else finding.measurement.bound
                if error is not None and math.isfinite(error):
                    insort(self._errors, error)
            if node.outputs:
                self._last_agreeing = node.outputs[0]


def containers(operator: Operator, scopes: Mapping[str, str]) -> Iterator[str]:
    """Records and paths of the modules around an operator, as construct.json or the module paths tell."""
    name, seen = scopes.get(operator.name, ""), {operator.name}
    while name and name not in seen:
        seen.add(name)
        yield name
        name = scopes.get(name, "")
    path = operator.path.rpartition(".")[0]
    while path:
        yield f"{operator.phase} {path}"
        path = path.rpartition(".")[0]


def cancellation(node: Node, finding: Finding) -> float:
    """How much smaller an output is than the terms it was summed from; 0 where its operator is no plain sum.

    The gradient of a bias that softmax makes irrelevant is zero in exact arithmetic: both runs hold rounding noise
    there, and rel_l2 says 1 or more. The error is then to be seen against the terms, not against their sum.
    """
    reads = [(rms, count) for rms, count in map(_golden_rms, node.inputs) if count]
    size, count = _golden_rms(finding)
    if not reads or not count:
        return 0.0
    if node.operator.phase == "backward":  # of a broadcast operand: summed over what it was broadcast over
        rms, most = max(reads, key=lambda read: read[1])
        terms = rms * math.sqrt(most / count) if count < most else 0.0
    else:
        terms = max(rms for rms, _ in reads) if SUMS.search(node.operator.op_type) else 0.0
    return terms / size if size else (math.inf if terms else 0.0)


def _golden_rms(finding: Finding) -> tuple[float, int]:
    """(root mean square, elements) of the golden side, (0, 0) if unknown."""
    golden = finding.pair.golden
    count = math.prod(golden.shape) if golden is not None else 0
    moments = finding.measurement.moments
    if moments is not None and count:
        return math.sqrt(moments.golden.squares / count), count
    if golden is not None and golden.statistics is not None and golden.statistics.norm is not None and count:
        return golden.statistics.norm / math.sqrt(count), count
    return 0.0, 0


def _is_parameter(pair: Pair) -> bool:
    role, _, key = pair.slot.partition(":")
    if role == "param":
        return True
    return key.isdigit() and int(key) in PARAMETERS.get(pair.operator.op_type, ()) and pair.operator.phase != "backward"


def _is_kinked(node: Node, finding: Finding) -> bool:
    """A choice that flips: in a backward, or in an output that is a choice itself (a mask, an index)."""
    golden = lookup(finding.pair.golden.dtype) if finding.pair.golden else None
    chosen = golden is not None and golden.kind in "biu"
    return (chosen or node.operator.phase == "backward") and bool(KINKED.search(node.operator.op_type))


def _one_flip(finding: Finding) -> float:
    """The error that two elements give which are there on one side only; small tensors cannot err by less."""
    moments = finding.measurement.moments
    if moments is None or not moments.yy:
        return 0.0
    largest = max(abs(moments.golden.minimum), abs(moments.golden.maximum))
    return math.sqrt(2.0) * largest / math.sqrt(moments.yy)


def _shown(finding: Finding) -> Optional[float]:
    """The figure of a row: what was measured, or a proven lower bound."""
    if finding.metric == "gain" and finding.measurement.moments is not None:
        return metrics.gain(finding.measurement.moments)
    if finding.error is None or math.isnan(finding.error):
        return finding.measurement.bound
    return finding.error


def _gain(finding: Finding) -> float:
    moments = finding.measurement.moments
    return metrics.gain(moments) if moments is not None else 0.0


def _size(finding: Finding) -> float:
    error = error_of(finding)
    return 0.0 if error is None else error
