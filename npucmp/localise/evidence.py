"""The sentences that say why an operator is suspected, with the figures that decided."""

from __future__ import annotations

import math
import re
from typing import Optional, Sequence

from npucmp.localise.explain import GROWTH, WHOLE_SCALE
from npucmp.localise.nodes import differing_arguments, is_parameter
from npucmp.measure import metrics
from npucmp.model import Cause, Finding, Pair

FED = "already differs"  # of what comes in from outside
RANDOM = re.compile(r"dropout|bernoulli|multinomial|^_*rand|random|normal_$|uniform_$|exponential_$", re.IGNORECASE)


def own_words(pair: Pair, own: Finding, input_error: float, reads: bool, agree: bool) -> str:
    """Of an operator that bears error: inputs, output, and what stands out besides."""
    figure = "bit for bit" if input_error == 0 else f"largest rel_l2 {brief(input_error)}"
    how = "differ" if not agree else "agree" if input_error <= own.limit else "differ no more than is explained"
    inputs = f"inputs {how} ({figure})" if reads else "it reads no tensor"
    words = [inputs, f"{own.pair.slot}: {own.because}"]
    words += [*argument_words(pair), *pattern_words(own)]
    if RANDOM.search(pair.operator.op_type):
        words.append("a random operator: it differs unless both runs share its seed and generator; switch it off")
    return "; ".join(words)


def gap_words(gap: Finding, before: Optional[Finding], writer: str, between: Sequence[Pair]) -> str:
    """Of an input that differs although everything dumped upstream agrees; `writer` is the output that it comes from,
    where that is known and could not be compared."""
    parameter = is_parameter(gap.pair)
    words = [f"{gap.pair.slot} differs ({gap.because}) although everything dumped before it agrees"]
    numbers = _numbers(gap)
    if numbers:
        target, golden = numbers
        return f"a number that it was given {FED}: {gap.pair.slot} is {target:g}, in the golden {golden:g}"
    if parameter or before is None:
        what = "a parameter" if parameter else "an input of the network"
        return "; ".join([f"{what} {FED}: {words[0]}", *argument_words(gap.pair), *pattern_words(gap)])
    words.append(f"last agreeing: {before.pair.operator.name} {before.pair.slot}")
    if writer:
        words.append(f"it is {writer}, which was not dumped or cannot be compared: look there first")
    elif between:
        sides = [f"{pair.operator.name} (only in the {'target' if pair.target_op else 'golden'})" for pair in between]
        words.append(f"between the two: {', '.join(sides[:3])}{' …' if len(sides) > 3 else ''}")
    else:
        words.append("the error is born between the two, in code that was not dumped")
    return "; ".join(words + argument_words(gap.pair) + pattern_words(gap))


def is_fed(cause: Cause, words: str) -> bool:
    """Whether it is an input of the network or a parameter that differs, by the words of `gap_words`."""
    return cause is Cause.GAP and FED in words


def _numbers(finding: Finding) -> "Optional[tuple[float, float]]":
    """The two values of a tensor that is a number, from its values or from what was recorded of them."""
    moments, recorded = finding.measurement.moments, finding.measurement.statistics
    if finding.pair.golden is None or finding.pair.golden.shape != ():
        return None
    if moments is not None:
        return moments.target.minimum, moments.golden.minimum
    values = [one.max if one else None for one in recorded]
    return None if None in values else (float(values[0] or 0), float(values[1] or 0))


def unknown_words(own: Finding, unseen: Sequence[Finding]) -> str:
    """Of an operator whose inputs nobody knows: which of them, and what wrote them, where a graph tells."""
    named = []
    for finding in unseen:
        source = next((tensor.source for tensor in (finding.pair.target, finding.pair.golden) if tensor), "")
        named.append(f"{finding.pair.slot} from {source}" if source else finding.pair.slot)
    which = f" ({', '.join(named[:3])}{' …' if len(named) > 3 else ''})" if named else ""
    return f"{own.pair.slot}: {own.because}; its inputs were not dumped or cannot be compared{which}"


def passed_words(input_error: Optional[float], worst: Finding) -> str:
    """Of an operator that passes on what it got."""
    got = "unknown" if input_error is None else f"{input_error:.1e}"
    return f"inputs differ ({got}); {worst.pair.slot}: {worst.because}"


def gradual_words(steepest: Finding, growth: float, worst: Finding) -> str:
    """Of a run whose errors grow step by step, no operator being to blame alone."""
    return (
        f"no operator turns its inputs' error into more than {GROWTH:g} times as much, yet errors grow to "
        f"{brief(worst.error)} at {worst.pair.operator.name} {worst.pair.slot}; "
        f"the steepest growth is here: {growth:.1f} times; {steepest.pair.slot}: {steepest.because}"
    )


def argument_words(pair: Pair) -> list[str]:
    """Non-tensor arguments that differ: nothing convinces more."""
    if pair.target_op is None or pair.golden_op is None:
        return []
    return [
        f"argument {slot} is {_show(target)} in the target, {_show(golden)} in the golden"
        for slot, target, golden in differing_arguments(pair.target_op, pair.golden_op)
    ]


def pattern_words(finding: Finding) -> list[str]:
    """What the error looks like, where one pass over the tensor shows it."""
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or not moments.yy:
        return []
    scale = metrics.gain(moments)
    error = math.sqrt(moments.sum_dd / moments.yy)
    if abs(scale) > WHOLE_SCALE * error and moments.compared > 1 and abs(scale + 1) > 1e-12:
        factor = f"{1 + scale:.6g}" if abs(scale) >= 1e-4 else f"1{scale:+.1e}"
        return [f"the target is {factor} times the golden as a whole"]
    return []


def fused_words(pair: Pair) -> str:
    """What a fused operator is made of and by which passes, "" for others."""
    operator = pair.target_op
    if operator is None or (len(operator.originals) < 2 and not operator.passes):
        return ""
    names = ", ".join(operator.originals[:6]) + (" …" if len(operator.originals) > 6 else "")
    made = f"fused of {names}" if len(operator.originals) > 1 else "made"
    return f"; {made}" + (f" by {', '.join(operator.passes[:4])}" if operator.passes else "")


def follower_words(pair: Pair, after: Optional[Pair]) -> str:
    """Of an operator of a graph that is known by its name alone: what the other run has right after it, of the same
    shape, may be fused into it here."""
    target, golden = pair.target_op, after.golden_op if after is not None and after.target_op is None else None
    if target is None or target.phase or target.originals or golden is None:
        return ""
    if [t.shape for t in target.tensors if t.is_output] != [t.shape for t in golden.tensors if t.is_output]:
        return ""
    return f"; the golden run goes on with {golden.name}, which the target lacks: fused in here? --graph would tell"


def _show(value: object) -> str:
    return f"{value!r:.60}"


def brief(error: Optional[float]) -> str:
    """An error in a sentence."""
    return "unknown" if error is None else "inf" if math.isinf(error) else f"{error:.1e}"
