"""Rows of a training step (randomness, loss, loss scale, update of the optimizer) and of logged curves (the loss, and
other figures in both logs).
"""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.comparability.answers import close, differs, not_applicable, same, unknown
from npucmp.comparability.arguments import alike
from npucmp.comparability.check_item import CheckItem
from npucmp.comparability.inputs import known_values
from npucmp.comparability.network import rate_of
from npucmp.comparability.run_pair import Curves, MatchedParameter, RunPair
from npucmp.comparability.weights import same_start
from npucmp.dump.readers.values import Array
from npucmp.health.curves.curve import Curve
from npucmp.health.curves.curve_pair import CurveComparison, compare_curves
from npucmp.health.curves.log_reader import read_log
from npucmp.health.facts import Op, Parameter, Step
from npucmp.localise.update_roots import loss_scale_words, spelled_factor
from npucmp.model import Pair, first_of
from npucmp.model.item_result import ItemResult
from npucmp.model.optypes import op_type_of

EQUAL, NEAR = 1e-6, 1e-2  # relative difference of a loss; 1 % in the vendor's guide
CALLED = 0.02  # largest deviation from 1 of the median ratio of |dw| for equal steps
ALONG = 0.99  # least cosine of two steps of equal direction
SPREAD = 0.01  # relative range of the 5 to 95 % quantiles of the ratios, if one factor (learning rate) explains them
MATRICES = 48  # most matrices whose steps are read
CAUSES = ("network.operators", "network.arguments", "labels", "tokens", "input", "dropout", "loss.reduction", "random",
          "frozen", "sharing", "buffers")  # fmt: skip


def dropout(both: RunPair) -> ItemResult:
    """Whether elements are dropped on one side or on both."""
    rates = {}
    seen = False
    for side, runs in (("target", both.targets), ("golden", both.goldens)):
        found = [(rate, one) for run in runs for one in run.operators if (rate := rate_of(one)) is not None]
        seen = seen or bool(found)
        rates[side] = max(found, key=lambda item: item[0], default=None)
    here, there = (rates[side][0] if rates[side] else 0.0 for side in ("target", "golden"))  # type: ignore[index]
    words = {"target": f"p {here:g}", "golden": f"p {there:g}"}
    if not seen:
        has_arguments = any(one.arguments for run in both.targets for one in run.operators)
        return not_applicable("no dropout is in the dumps") if has_arguments else unknown(
            "the dumps record no arguments: dump level L1 or mix")  # fmt: skip
    if not here and not there:
        return same("off on both sides", **words)
    if alike(here, there):
        examined, odd = _random_operators(both, "drops")
        if examined and not odd:
            return same(f"on in both (p {here:g}): {len(examined)} drop the same elements", **words)
        return differs(f"on in both (p {here:g}): they drop different elements", "warning", **words)
    first = next(rates[side][1].name for side in rates if rates[side] and rates[side][0] == max(here, there))  # type: ignore[index]
    states = [f"on in {side} (p {rate:g})" if rate else f"off in {side}" for side, rate in (("target", here),
            ("golden", there))]  # fmt: skip
    return differs(" and ".join(states), "error", first=first, value=max(here, there), **words)


def random(both: RunPair) -> ItemResult:
    """Whether random operators with equal inputs have equal outputs."""
    examined, odd = _random_operators(both, "random", but="drops" if both.first_trouble("dropout") else "")
    if odd:
        words = f"{len(odd)} of {len(examined)} random operators generated different values (first: {odd[0]})"
        return differs(words, places=len(odd), first=odd[0])
    if examined:
        return same(f"{len(examined)} random operators generated the same values", places=len(examined))
    return not_applicable("no random operator reads equal inputs")


def _random_operators(both: RunPair, trait: str, but: str = "") -> tuple[list[str], list[str]]:
    """Operators of a trait with equal inputs on both sides, and those among them with different outputs."""
    examined, odd = list[str](), list[str]()
    for one in both.aligned_steps:
        for pairs in _by_operator(one.pairs).values():
            operator = pairs[0].operator
            if operator.path or operator.phase == "backward" or not op_type_of(operator).has(trait):
                continue
            if but and op_type_of(operator).has(but):
                continue
            if rate_of(operator) == 0.0:
                continue
            read = [pair for pair in pairs if not pair.slot.startswith("output")]
            wrote = [pair for pair in pairs if pair.slot.startswith("output")]
            if not wrote or any(both.are_equal(pair) is not True for pair in read):
                continue
            equal = [both.are_equal(pair) for pair in wrote]
            examined += [operator.name] if None not in equal else []
            odd += [operator.name] if False in equal else []
    return examined, odd


def _by_operator(pairs: tuple[Pair, ...]) -> dict[int, list[Pair]]:
    found: dict[int, list[Pair]] = {}
    for pair in pairs:
        if pair.target is not None and pair.golden is not None:
            found.setdefault(pair.order, []).append(pair)
    return found


def _losses(both: RunPair) -> Iterator[tuple[Step, Op, Op]]:
    """The losses of corresponding steps."""
    for _, here, there in both.steps:
        for a, b in zip(here.losses, there.losses):
            yield here, a, b


def loss(both: RunPair) -> ItemResult:
    """Compare the loss of the first step that records it on both sides; later losses also depend on the optimizer."""
    for step, a, b in _losses(both):
        here, there = (one.outputs[0].figures.mean if one.outputs and one.outputs[0] else None for one in (a, b))
        if here is None or there is None:
            continue
        relative = abs(here - there) / (abs(there) or 1.0)
        number = 0 if step.number is None else step.number
        words = f"step {number}: {here:.6g} against {there:.6g} ({100 * relative:.2g} %)"
        more = {"value": relative, "limit": NEAR, "target": repr(here), "golden": repr(there), "first": a.name}
        if relative <= EQUAL:
            return same(f"step {number}: {here:.6g}", **more)
        if relative <= NEAR:
            return close(words, **more)
        severity = "error" if same_start(both) and not both.first_trouble(*CAUSES) else "note"
        return differs(words, severity, remedy="find the first operator that differs with npucmp compare"
                       if severity == "error" else "the rows above explain it", **more)  # fmt: skip
    return unknown("no loss is in both dumps")


def scale(both: RunPair) -> ItemResult:
    """The gradient that enters the loss: the loss scale."""
    found = []
    for here, a, b in _losses(both):
        there = next(step for _, one, step in both.steps if one is here)
        values = [_entering(step, op) for step, op in ((here, a), (there, b))]
        if None not in values:
            found.append((values[0], values[1], a.name))
    if not found:
        return unknown("no gradient of a loss is in both dumps")
    odd = [(x, y, name) for x, y, name in found if not math.isclose(x or 0.0, y or 0.0, rel_tol=EQUAL)]
    if not odd:
        return same(f"loss scale {found[0][0]:g}", places=len(found))
    x, y, name = odd[0]
    return differs(f"loss scale {x:g} against {y:g}", places=len(odd), first=name, target=f"{x:g}", golden=f"{y:g}")


def _entering(step: Step, op: Op) -> Optional[float]:
    for one in step.backward.get(op.operator.call, ()):
        constants = [tensor for tensor in one.inputs if tensor.figures.constant is not None]
        if constants and not one.is_module:
            return constants[0].figures.constant
    return None


class MoveComparison(NamedTuple):
    """The moves of a matrix on both sides: ratio of mean |dw|, 0 if the target does not move it; cosine of the moves,
    and cosine of the gradients."""

    name: str
    ratio: float
    cosine: float
    gradients: Optional[float]


def optimizer(both: RunPair) -> ItemResult:
    """The first step of the optimizer, with equal weights before it."""
    trouble = both.first_trouble(*CAUSES)
    if trouble:
        return not_applicable(f"requires that {trouble} is the same")
    if not same_start(both):
        return not_applicable("requires the same inputs and weights")
    lost, found = list[str](), list[MoveComparison]()
    for move in _moves(both):
        if move.ratio:
            found.append(move)
        else:
            lost.append(move.name)
    if lost:
        words = f"{len(lost)} of {len(lost) + len(found)} matrices are not updated in the target ({first_of(lost)})"
        remedy = "the optimizer lacks them, or their update was lost: npucmp compare shows the first"
        return differs(words, remedy=remedy, places=len(lost), first=lost[0], value=0.0)
    if not found:
        return unknown("needs the values of parameters in two steps of both")
    gradients = [one.gradients for one in found if one.gradients is not None]
    ratios, cosine = np.array([one.ratio for one in found]), float(np.median([one.cosine for one in found]))
    ratio = float(np.median(ratios))
    low, high = (float(one) for one in np.quantile(ratios, (0.05, 0.95)))
    more: dict[str, Any] = {"places": len(found), "value": ratio, "first": found[0].name}
    if abs(ratio - 1) <= CALLED and cosine > ALONG:
        return same(f"the updates of {len(found)} matrices agree (ratio {ratio:.3f}, cosine {cosine:.4f})", **more)
    if gradients and float(np.median(gradients)) < ALONG:
        return not_applicable("the gradients differ before the optimizer: run npucmp compare", **more)
    if cosine > ALONG and high - low <= SPREAD * ratio:
        scales = (step.loss_scale for healths in both.healths[1:] for health in healths for step in health.steps[:1])
        scale = next((known for known in scales if known is not None), None)
        by_scale = loss_scale_words(ratio, scale).format(scale=f"{scale or 0.0:g}")
        spelled = spelled_factor(ratio, scale)
        words = f"updates of target are {spelled} times as large, in the same direction (cosine {cosine:.4f})"
        causes = by_scale or "another learning rate, or gradients that are scaled, averaged or clipped another way"
        remedy = "compare the learning rates, and where gradients are unscaled, averaged and clipped"
        return differs(f"{words}: {causes}", remedy=remedy, **more)
    if not both.is_same("precision.types") and cosine > 0:
        return not_applicable("the runs compute in different precisions, which changes the updates", **more)
    words = f"updates of target are {ratio:.3g} times as large ({low:.3g} to {high:.3g}), cosine {cosine:.2f}"
    return differs(f"{words}: another optimizer, weight decay or learning rate per group", **more)


def _moves(both: RunPair) -> Iterator[MoveComparison]:
    done = 0
    for one in both.weights:
        if done >= MATRICES:
            return
        if one.target is not None and one.golden is not None and one.target.is_matrix:
            found = _one_step(both, one, one.target, one.golden)
            if found is not None:
                done += 1
                yield found


def _one_step(both: RunPair, twins: MatchedParameter, target: Parameter, golden: Parameter) -> Optional[MoveComparison]:
    """Compare the moves from the first common step to the next."""
    a, b = twins.at
    if a + 1 >= len(target.weights) or b + 1 >= len(golden.weights) or target.shape != golden.shape:
        return None
    weights = target.weights[a], golden.weights[b], target.weights[a + 1], golden.weights[b + 1]
    if any(one is None for one in weights):
        return None
    x0, y0, x1, y1 = (known_values(one, both.context) for one in weights if one is not None)
    if x0 is None or y0 is None or x1 is None or y1 is None or len({x0.shape, y0.shape, x1.shape, y1.shape}) > 1:
        return None
    dx, dy = (np.asarray(after - before, np.float64).ravel() for before, after in ((x0, x1), (y0, y1)))
    size = float(np.abs(dy).mean()), float(np.abs(dx).mean())
    if not size[0] or not np.isfinite(sum(size)):
        return None
    steep = target.gradients[a], golden.gradients[b]
    cosine = None
    if steep[0] is not None and steep[1] is not None:
        g, h = (known_values(one, both.context) for one in steep if one is not None)
        cosine = _cosine(g.ravel(), h.ravel()) if g is not None and h is not None and g.shape == h.shape else None
    return MoveComparison(twins.name, size[1] / size[0], _cosine(dx, dy), cosine)


def _cosine(x: Array, y: Array) -> float:
    length = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(x @ y) / length if length else 0.0


ROWS = (
    CheckItem("dropout", "error", "whether elements are dropped", "set p = 0 on both sides for a comparison", dropout),
    CheckItem("random", "error", "outputs of random operators", "use one seed on the CPU, or load recorded numbers",
        random),
    CheckItem("loss.value", "error", "the loss of the first step", "", loss),
    CheckItem("loss.scale", "warning", "the gradient that enters the loss", "use one loss scale on both sides", scale),
    CheckItem("optimizer.step", "error", "size and direction of weight updates", "use one optimizer with one set of "
        "arguments", optimizer),
)  # fmt: skip


METRICS = 50  # most further curves that are compared
LAST = 0.01  # relative difference of a metric's last value: the vendor's limit


def curves_loss(both: RunPair) -> ItemResult:
    """Compare the curve of the loss, or of --column, window by window."""
    if both.user_input.curve is None:
        return unknown("give --curve with two logs of the training")
    logs = [read_log(path, both.context) for path in both.user_input.curve]
    target, golden = (log.column(both.user_input.column) for log in logs)
    repeat: Optional[Curve] = None
    if both.user_input.repeat_curve is not None:
        repeat = read_log(both.user_input.repeat_curve, both.context).column(both.user_input.column)
    found = compare_curves(target, golden, repeat)
    both.curves.append(Curves(golden.name, target, golden, found))
    return _curve_result(golden.name, found)


def _curve_result(name: str, found: CurveComparison) -> ItemResult:
    words = f"{name}: {found.because}"
    more: dict[str, Any] = {
        "places": found.common,
        "value": found.mean if found.mean == found.mean else None,
        "limit": LAST,
    }
    if found.status == "unknown":
        return unknown(words)
    if found.status == "same":
        return same(words, **more)
    if found.status == "close":
        return close(words, **more)
    where = "" if found.first_step is None else f"; the curves differ from step {found.first_step} on"
    first = "" if found.first_step is None else str(found.first_step)
    return differs(f"{words}{where}", first=first, **more)


def metric(both: RunPair) -> ItemResult:
    """Compare the last values of other curves in both logs. They have few points, so a difference is only a note."""
    if both.user_input.curve is None:
        return unknown("give --curve with two logs of the training")
    here, there = (read_log(path, both.context) for path in both.user_input.curve)
    taken = {one.name for one in both.curves}
    odd, known = list[str](), 0
    for name in [name for name in here.curves if name in there.curves and name not in taken][:METRICS]:
        target, golden = here.curves[name], there.curves[name]
        if not len(target.values) or not len(golden.values) or target.steps[-1] != golden.steps[-1]:
            continue
        known += 1
        a, b = float(target.values[-1]), float(golden.values[-1])
        if not (a == b or abs(a - b) <= LAST * abs(b)) and not (a != a and b != b):
            odd.append(f"{name} ends at {a:.4g} against {b:.4g}")
    if not known:
        return unknown("the logs have no other curve in common that ends at the same step")
    if odd:
        return differs(first_of(odd, 3), places=len(odd), first=odd[0].partition(" ends")[0])
    return same(f"{known} other curves agree in their last values", places=known)


CURVES_ROWS = (
    CheckItem("curve.loss", "error", "the curve of the loss",
        "resolve the rows above, then dump the step from which the curves differ", curves_loss, False),
    CheckItem("curve.metric", "note", "other curves", "", metric, False),
)  # fmt: skip
