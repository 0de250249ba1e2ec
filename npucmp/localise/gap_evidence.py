"""Words and figures of the evidence of a GAP.

The last agreeing tensor is the tensor with the input's content in either run, otherwise the latest that agrees. The
evidence names later operators of one run, first those that write as many elements as the input has. If the producer is
known and its output was not dumped, the evidence names it: check that operator first. If the golden's writer comes
after the reader in the target, or the reader before an operator that the golden runs first, the evidence names the two:
a call may be missing, or another call may be the partner.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

from npucmp.localise.evidence import argument_reasons, first_names, pattern_reasons, reason, tensor_fact
from npucmp.localise.sources import Writer
from npucmp.measure.recorded_stats import has_equal_xor
from npucmp.model import Evidence, Finding, Pair, Side
from npucmp.model.arguments import by_name
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_output, is_parameter, running_statistics


class Around(NamedTuple):
    """Facts about the path to an input that differs.

    last       the last tensor that agrees; tainted: an earlier operator bears an error already
    writer     the output that it comes from, if that is known and was not dumped
    alone      operators of one run that may have written it
    left_out   earlier operators that the user excluded
    displaced  the operator that wrote it in the golden, whose partner the target runs later
    overtaken  an operator that the golden runs after the reader, the target before it
    unlike     backward calls between, of which the two runs recorded different autograd nodes
    nearest    the last tensor that agrees and has the content of the input, or as many elements: code that was not
               dumped may have made the input from it
    is_origin  whether `last` has the content of the input in one of the runs
    module     the innermost module around the reader that does not read the tensor; is_given: the outermost, if all do
    instead    the outputs whose figures the input has in the target and in the golden, if these are two outputs
    """

    last: Optional[Finding] = None
    tainted: bool = False
    writer: Optional[Writer] = None
    alone: Sequence[Pair] = ()
    left_out: Sequence[Pair] = ()
    displaced: Optional[Pair] = None
    overtaken: Optional[Pair] = None
    nearest: Optional[Finding] = None
    unlike: Sequence[Pair] = ()
    is_origin: bool = True
    instead: Optional[tuple[Finding, Finding]] = None
    module: str = ""
    is_given: bool = False


def gap_reasons(gap: Finding, around: Around) -> list[Evidence]:
    """Return the evidence of an input that differs although everything dumped upstream agrees."""
    before, writer, alone, left_out = around.last, around.writer, around.alone, around.left_out
    numbers = _numbers(gap)
    slot, because = gap.pair.slot, tensor_fact(gap.because, gap)
    if numbers:
        if is_argument(gap):
            return [_argument_reason(gap, *numbers)]
        return [_number_reason(gap, *numbers), *([_alone_reason("preceding operators: {}", alone)] if alone else ())]
    more, so_far = [*argument_reasons(gap.pair), *pattern_reasons(gap)], _before_words(around)
    parameter = is_parameter(gap.pair)
    if not left_out and (parameter or before is None):
        is_statistic = parameter and slot in running_statistics(gap.pair.operator)
        what = (
            "a running statistic"
            if is_statistic
            else "a parameter"
            if parameter
            else "an input of the network or of the dumped part"
        )
        words = f"{what} already differs: {{slot}}, {{because}}{so_far}"
        return [reason("fed", words, slot=slot, because=because), *more]
    words = f"{{slot}} differs ({{because}}){so_far}"
    reasons = [reason("gap", words, slot=slot, because=because)]
    if writer:
        between = _writer_reason(writer)
    elif around.displaced is not None or around.overtaken is not None:
        between = _order_reason(around.displaced, around.overtaken)
    elif left_out:
        names = first_names([pair.operator.name for pair in left_out])
        words = "operators upstream were excluded by --include or --exclude ({names}): the error may start there"
        between = reason("left out", words, names=names)
    elif around.unlike:
        names = first_names([pair.operator.name for pair in around.unlike])
        words = (
            "the gradients of {names} were not compared, because the two runs recorded different autograd nodes of the "
            "call: the error starts there or behind it"
        )
        between = reason("left out", words, names=names)
    elif around.instead:
        between = _instead_reason(slot, *around.instead)
    elif alone and before is not None and alone[0].order > before.pair.order:
        between = _alone_reason("operators between these two tensors: {}", alone)
    elif alone:
        between = _alone_reason(
            "operators of one run before it: {}; code that was not dumped may read their outputs", alone
        )
    elif before is not None and not _tells_outputs(before.pair):
        words = (
            "the error starts upstream: in an operator whose outputs were not dumped, or in code that was not dumped"
        )
        between = reason("between", words)
    else:
        before = around.nearest
        between = _unwritten_reason(gap, around)
    if before is not None:
        last = before.pair
        reasons.append(
            reason("last agreeing", "last matching tensor: {op} {slot}", op=last.operator.name, slot=last.slot)
        )
    return [*reasons, between, *more]


def _unwritten_reason(gap: Finding, around: Around) -> Evidence:
    """Return the evidence of an input that no recorded operator wrote."""
    before = around.nearest
    if before is not None and around.is_origin and is_output(before.pair):
        return reason("between", "the error starts between these two tensors, in code that was not dumped")
    if around.is_given:
        words = (
            "no recorded operator wrote this tensor, and {module} reads it: it is an input, or code before this module "
            "made it"
        )
        return reason("between", words, module=around.module)
    if around.module:
        words = (
            "no recorded operator wrote this tensor, and {module} does not read it: it is a buffer or a constant of "
            "this module, or code that was not dumped made it"
        )
        return reason("between", words, module=around.module)
    if before is None:
        words = (
            "no recorded operator wrote this tensor or one of its size: it is an input, a buffer or a constant, or "
            "code that was not dumped made it"
        )
    elif around.is_origin:
        words = (
            "no recorded operator wrote this tensor, which has the values of the last matching tensor in one run: it "
            "is an input, a buffer or a constant, or code that was not dumped made it"
        )
    elif is_gradient(gap.pair.operator):  # the backward pass reads no buffers
        words = (
            "the error starts in code that was not dumped, which made this tensor, perhaps from the last matching "
            "tensor of its size"
        )
    else:
        words = (
            "the error starts in code that was not dumped, which made this tensor, perhaps from the last matching "
            "tensor of its size; or the tensor is an input, a buffer or a constant"
        )
    return reason("between", words)


def update_reason(update: Pair) -> Evidence:
    """Return the evidence of a parameter that a call of one run alone updated in the step before."""
    words = "in the step before, {name} (only in the golden) updated it"
    if update.target_op:
        words = "in the step before, {name} (only in the target) updated it"
    return reason("update", words, name=update.operator.name)


def _before_words(around: Around) -> str:
    """Return the words on the tensors that were dumped before an input that differs; "" if none was, or some differ."""
    if around.last is None or around.tainted:
        return ""
    if around.left_out:
        return ", but all compared upstream tensors match"
    if around.last.error is None and has_equal_xor(around.last.pair):
        return ", but no tensor dumped upstream is proven to differ"
    return ", but all tensors dumped upstream match"


def _order_reason(displaced: Optional[Pair], overtaken: Optional[Pair]) -> Evidence:
    """Return the evidence of an input whose writer, or whose reader, the two runs execute in another order."""
    if displaced is not None and displaced.target_op is not None and displaced.golden_op is not None:
        words = (
            "in the golden, {golden} writes this tensor; in the target, its partner {target} runs later: "
            "a call may be missing"
        )
        return reason("order", words, golden=displaced.golden_op.name, target=displaced.target_op.name)
    name = overtaken.operator.name if overtaken is not None else ""
    words = "the golden runs this operator before {name}, the target after it: its partner may be another call"
    return reason("order", words, name=name)


def _number_reason(gap: Finding, target: float, golden: float) -> Evidence:
    """The evidence of a scalar input, with its two values and their quotient."""
    words = "scalar {slot} already differs: target {target}, golden {golden}"
    facts = {"slot": by_name(gap.pair.operator, gap.pair.slot), "target": f"{target:g}", "golden": f"{golden:g}"}
    factor = target / golden if golden else 0.0
    if math.isfinite(factor) and factor:
        return reason("fed", f"{words}, factor {{factor}}", **facts, factor=f"{factor:g}")
    return reason("fed", words, **facts)


def is_argument(finding: Finding) -> bool:
    """Whether a tensor that no operator wrote is an argument of its reader by the reader's signature (eps), which the
    dump holds as a scalar."""
    operators = finding.pair.target_op, finding.pair.golden_op
    return _numbers(finding) is not None and all(
        op and by_name(op, finding.pair.slot) != finding.pair.slot for op in operators
    )


def _argument_reason(finding: Finding, target: float, golden: float) -> Evidence:
    """The evidence of an argument that differs, with its two values."""
    words = "argument {slot} is {target} in the target, {golden} in the golden"
    slot = by_name(finding.pair.operator, finding.pair.slot)
    return reason("argument", words, slot=slot, target=f"{target:g}", golden=f"{golden:g}")


def _numbers(finding: Finding) -> Optional[tuple[float, float]]:
    """The two values of a scalar tensor, from its values or recorded statistics."""
    moments, recorded = finding.measurement.moments, finding.measurement.statistics
    if finding.pair.golden is None or finding.pair.golden.shape != ():
        return None
    if moments is not None:
        return _only_value(moments.target), _only_value(moments.golden)
    values = [one.max if one else None for one in recorded]
    return None if None in values else (float(values[0] or 0), float(values[1] or 0))


def _only_value(side: Side) -> float:
    """The value of a tensor with one element: its minimum covers finite values alone."""
    return math.inf if side.posinf else -math.inf if side.neginf else side.minimum


def _alone_reason(words: str, alone: Sequence[Pair]) -> Evidence:
    """The evidence that names operators of one run; their names replace the braces in `words`."""
    shown = [
        f"{{name{n}}} (only in {'the target' if pair.target_op else 'the golden'})" for n, pair in enumerate(alone)
    ]
    named = {f"name{n}": pair.operator.name for n, pair in enumerate(alone[:3])}
    return reason("between", words.format(first_names(shown)), **named)


def _tells_outputs(pair: Pair) -> bool:
    """Whether either run recorded an output of an operator."""
    return any(tensor.is_output for one in (pair.target_op, pair.golden_op) if one for tensor in one.tensors)


def unwritten_reasons(read: Finding, writer: Writer) -> list[Evidence]:
    """Return the evidence of an input that differs and comes from an output that was not compared."""
    because = tensor_fact(read.because, read)
    differs = reason("inputs differ", "{slot} differs ({because})", slot=read.pair.slot, because=because)
    return [differs, _writer_reason(writer), *pattern_reasons(read)]


def _instead_reason(slot: str, written: Finding, expected: Finding) -> Evidence:
    """The evidence that the target reads another recorded tensor than the golden, by their figures."""
    words = "{slot} has the statistics of {writer} in the target, of {producer} in the golden: another tensor was read"
    names = (f"{one.pair.operator.name} {one.pair.slot}" for one in (written, expected))
    return reason("instead", words, slot=slot, writer=next(names), producer=next(names))


def made_reason(read: Finding, made: Pair) -> Evidence:
    """The evidence that an operator of one run made what its reader takes for a parameter, such as a cast."""
    words = "in the golden, {name} made {slot}; the target has no such operator"
    if made.target_op is not None:
        words = "in the target, {name} made {slot}; the golden has no such operator"
    return reason("made", words, name=made.operator.name, slot=read.pair.slot)


def _writer_reason(writer: Writer) -> Evidence:
    """The operator to check first."""
    words = "this tensor is {writer}, which {why}: check that operator first"
    return reason("writer", words, writer=writer.name, why=writer.why)
