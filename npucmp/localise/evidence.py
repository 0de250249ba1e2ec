"""The sentences that say why an operator is suspected, with the figures that decided."""

from __future__ import annotations

import math
import re
from typing import Optional, Sequence

from npucmp.localise.explain import GROWTH, WHOLE_SCALE
from npucmp.localise.nodes import differing_arguments, is_parameter
from npucmp.measure import metrics
from npucmp.model import Cause, Evidence, Fact, Finding, Pair, brief

FED = "fed"  # the kind of evidence that something comes in from outside
Reasons = tuple[Evidence, ...]
RANDOM = re.compile(r"dropout|bernoulli|multinomial|^_*rand|random|normal_$|uniform_$|exponential_$", re.IGNORECASE)


def own_words(pair: Pair, own: Finding, input_error: float, reads: bool, agree: bool) -> Reasons:
    """Of an operator that bears error: inputs, output, and what stands out besides."""
    figure = "bit for bit" if input_error == 0 else f"largest rel_l2 {brief(input_error)}"
    how = "differ" if not agree else "agree" if input_error <= own.limit else "differ no more than is explained"
    inputs = f"inputs {how} ({figure})" if reads else "it reads no tensor"
    words = [_said(f"inputs {how}", inputs), _said("own", f"{own.pair.slot}: {own.because}")]
    words += [*argument_words(pair), *pattern_words(own)]
    if RANDOM.search(pair.operator.op_type):
        words.append(_said("random", "a random operator: it differs unless both runs share its seed and generator"))
        words.append(_said("random", "switch it off"))
    return tuple(words)


def gap_words(gap: Finding, before: Optional[Finding], writer: str, between: Sequence[Pair]) -> Reasons:
    """Of an input that differs although everything dumped upstream agrees; `writer` is the output that it comes from,
    where that is known and could not be compared."""
    parameter = is_parameter(gap.pair)
    words = [f"{gap.pair.slot} differs ({gap.because}) although everything dumped before it agrees"]
    numbers = _numbers(gap)
    if numbers:
        target, golden = numbers
        number = "a number that it was given already differs: {slot} is {target:g}, in the golden {golden:g}"
        return (Evidence(FED, number, {"slot": Fact(gap.pair.slot), "target": Fact(target), "golden": Fact(golden)}),)
    if parameter or before is None:
        what = "a parameter" if parameter else "an input of the network"
        return (_said(FED, f"{what} already differs: {words[0]}"), *argument_words(gap.pair), *pattern_words(gap))
    words.append(f"last agreeing: {before.pair.operator.name} {before.pair.slot}")
    if writer:
        words.append(f"it is {writer}, which was not dumped or cannot be compared: look there first")
    elif between:
        sides = [f"{pair.operator.name} (only in the {'target' if pair.target_op else 'golden'})" for pair in between]
        words.append(f"between the two: {', '.join(sides[:3])}{' …' if len(sides) > 3 else ''}")
    else:
        words.append("the error is born between the two, in code that was not dumped")
    return (*(_said("gap", one) for one in words), *argument_words(gap.pair), *pattern_words(gap))


def is_fed(cause: Cause, evidence: Reasons) -> bool:
    """Whether it is an input of the network or a parameter that differs."""
    return cause is Cause.GAP and any(one.kind == FED for one in evidence)


def _numbers(finding: Finding) -> "Optional[tuple[float, float]]":
    """The two values of a tensor that is a number, from its values or from what was recorded of them."""
    moments, recorded = finding.measurement.moments, finding.measurement.statistics
    if finding.pair.golden is None or finding.pair.golden.shape != ():
        return None
    if moments is not None:
        return moments.target.minimum, moments.golden.minimum
    values = [one.max if one else None for one in recorded]
    return None if None in values else (float(values[0] or 0), float(values[1] or 0))


def unknown_words(own: Finding, unseen: Sequence[Finding]) -> Reasons:
    """Of an operator whose inputs nobody knows: which of them, and what wrote them, where a graph tells."""
    named = []
    for finding in unseen:
        source = next((tensor.source for tensor in (finding.pair.target, finding.pair.golden) if tensor), "")
        named.append(f"{finding.pair.slot} from {source}" if source else finding.pair.slot)
    which = f" ({', '.join(named[:3])}{' …' if len(named) > 3 else ''})" if named else ""
    words = f"{own.pair.slot}: {own.because}", f"its inputs were not dumped or cannot be compared{which}"
    return tuple(_said("unknown", one) for one in words)


def passed_words(input_error: Optional[float], worst: Finding) -> Reasons:
    """Of an operator that passes on what it got."""
    got = "unknown" if input_error is None else f"{input_error:.1e}"
    return _said("inputs differ", f"inputs differ ({got})"), _said("own", f"{worst.pair.slot}: {worst.because}")


def contained_words(culprit: str) -> Reasons:
    """Of a module that contains what has the error."""
    return (_said("contains", f"contains {culprit}, which has the error"),)


def gradual_words(steepest: Finding, growth: float, worst: Finding) -> Reasons:
    """Of a run whose errors grow step by step, no operator being to blame alone."""
    words = (
        f"no operator turns its inputs' error into more than {GROWTH:g} times as much, yet errors grow to "
        f"{brief(worst.error)} at {worst.pair.operator.name} {worst.pair.slot}",
        f"the steepest growth is here: {growth:.1f} times",
        f"{steepest.pair.slot}: {steepest.because}",
    )
    return tuple(_said("gradual", one) for one in words)


def argument_words(pair: Pair) -> Reasons:
    """Non-tensor arguments that differ: nothing convinces more."""
    if pair.target_op is None or pair.golden_op is None:
        return ()
    words = "argument {slot} is {x} in the target, {y} in the golden"
    return tuple(
        Evidence("argument", words, {"slot": Fact(slot), "x": Fact(_show(target)), "y": Fact(_show(golden))})
        for slot, target, golden in differing_arguments(pair.target_op, pair.golden_op)
    )


def pattern_words(finding: Finding) -> Reasons:
    """What the error looks like, where one pass over the tensor shows it."""
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or not moments.yy:
        return ()
    scale = metrics.gain(moments)
    error = math.sqrt(moments.sum_dd / moments.yy)
    if abs(scale) > WHOLE_SCALE * error and moments.compared > 1 and abs(scale + 1) > 1e-12:
        factor = f"{1 + scale:.6g}" if abs(scale) >= 1e-4 else f"1{scale:+.1e}"
        return (Evidence("scaled", "the target is {factor} times the golden as a whole", {"factor": Fact(factor)}),)
    return ()


def fused_words(pair: Pair) -> Reasons:
    """What a fused operator is made of and by which passes, nothing for others."""
    operator = pair.target_op
    if operator is None or (len(operator.originals) < 2 and not operator.passes):
        return ()
    names = ", ".join(operator.originals[:6]) + (" …" if len(operator.originals) > 6 else "")
    made = f"fused of {names}" if len(operator.originals) > 1 else "made"
    return (_said("fused", made + (f" by {', '.join(operator.passes[:4])}" if operator.passes else "")),)


def follower_words(pair: Pair, after: Optional[Pair]) -> Reasons:
    """Of an operator of a graph that is known by its name alone: what the other run has right after it, of the same
    shape, may be fused into it here."""
    target, golden = pair.target_op, after.golden_op if after is not None and after.target_op is None else None
    if target is None or target.phase or target.originals or golden is None:
        return ()
    if [t.shape for t in target.tensors if t.is_output] != [t.shape for t in golden.tensors if t.is_output]:
        return ()
    words = f"the golden run goes on with {golden.name}, which the target lacks: fused in here? --graph would tell"
    return (_said("follower", words),)


def _show(value: object) -> str:
    return f"{value!r:.60}"


def _said(kind: str, text: str) -> Evidence:
    """A sentence whose facts were not told apart yet."""
    return Evidence(kind, "{text}", {"text": Fact(text)})
