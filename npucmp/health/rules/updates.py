"""Rules of updates: how parameters change from one dumped step to the next."""

from __future__ import annotations

from fnmatch import fnmatchcase
from statistics import median
from typing import Iterator, Optional, Sequence

from npucmp.health.facts import Health, Parameter
from npucmp.health.rule import Found, rule
from npucmp.health.rules.weights import step_words
from npucmp.model.dtypes import lookup

Finds = Iterator[Found]


def is_unchanged(one: Parameter) -> Optional[bool]:
    """Whether a parameter is equal in all dumped steps: by values or checksums, else by its four figures, which makes
    it likely only (see `is_proven`). None if unknown."""
    known = one.same_bits()
    if known is not None:
        return known
    figures = [weight.figures for weight in one.weights if weight is not None]
    kinds = {(x.minimum, x.maximum, x.mean, x.rms) for x in figures}
    if len(figures) < 2 or any(None in values for values in kinds):
        return None
    return len(kinds) == 1


def is_proven(one: Parameter) -> bool:
    return one.same_bits() is not None


def _moved(health: Health) -> list[Parameter]:
    return [one for one in health.parameters if is_unchanged(one) is False]


def _has_gradient(one: Parameter) -> bool:
    """Whether it has a nonzero gradient in a step whose update a later dumped step shows."""
    last = max(step for step, weight in enumerate(one.weights) if weight is not None)
    early = [gradient for gradient in one.gradients[: last or 1] if gradient is not None]
    return any(gradient.figures.rms for gradient in early)


def _too_small(one: Parameter, moved: Sequence[Parameter]) -> Optional[str]:
    """The reason why its updates are lost in rounding, estimated from the updates of other parameters; None if they are
    not."""
    row = lookup(one.dtype)
    if row is None or row.kind != "f":
        return None
    if not is_proven(one) or not one.moves:
        return f"is {one.dtype} and does not change" if row.itemsize == 2 else None
    step, _, still = one.moves[0]
    steps = [move.moved for other in moved for at, _, move in other.moves if at == step and move.moved]
    per_gradient = [
        move.moved / rms
        for other in moved
        for at, _, move in other.moves
        if at == step and move.moved and (rms := _gradient(other, step))
    ]
    own = _gradient(one, step)
    likely = [median(steps)] if steps else []
    likely += [median(per_gradient) * own] if per_gradient and own is not None else []
    least = row.round_off / 2 * still.size
    if likely and min(likely) <= least:
        return f"its updates (about {min(likely):.2g}) are below half a unit of {one.dtype} at its size ({least:.2g})"
    return None


def _gradient(one: Parameter, step: int) -> Optional[float]:
    gradient = one.gradients[step]
    return gradient.figures.rms if gradient is not None else None


@rule(
    "weight.not_changed",
    "error",
    "figures, changes, backward, parameters",
    says="a parameter has a gradient but does not change, while others do",
    remedy="the optimizer lacks it, or its update was lost: check the parameter groups, and writes into strided memory",
    source="MindInsight weight_not_changed, SageMaker UnchangedTensor, TrainCheck",
)
def not_changed(health: Health, limit: Optional[float]) -> Finds:
    """Report a parameter with equal bits in all dumped steps and a nonzero gradient, if another parameter moved. Bits
    decide, not the published allclose, which fires in 15 of 64 clean runs. With statistics only, equal figures give a
    warning, and only for float32. Updates below the resolution of the type are left to weight.below_resolution."""
    moved = _moved(health)
    for one in health.parameters if moved else ():
        if not is_unchanged(one) or one.trainable is False or not _has_gradient(one) or _too_small(one, moved):
            continue
        count = sum(weight is not None for weight in one.weights)
        if is_proven(one):
            yield Found(one, f"has the same bits in {count} steps, although it has a gradient and others change")
        elif one.dtype == "float32":
            yield Found(one, f"has the same figures in {count} steps, although others change", severity="warning")


@rule(
    "weights.none_change",
    "warning",
    "figures, changes, backward, parameters",
    says="no parameter changes",
    remedy="causes: learning rate 0, optimizer not called, steps skipped by the loss scaler, or gradients accumulated",
    source="TrainCheck; guides of MindSpore",
)
def none_change(health: Health, limit: Optional[float]) -> Finds:
    """Report a run whose parameters of known state are all equal in all dumped steps. With two steps it is a hint: a
    warm-up starts at 0."""
    known = [one for one in health.parameters if one.trainable is not False and is_unchanged(one) is not None]
    if known and all(map(is_unchanged, known)):
        steps = len(health.steps)
        words = f"none of {len(known)} parameters changes in {steps} steps"
        yield Found(None, words, severity="warning" if steps > 2 else "hint")


@rule(
    "weight.below_resolution",
    "hint",
    "figures, changes, backward, parameters",
    says="the updates of a parameter are lost in rounding",
    remedy="keep master weights in float32",
    source="measured: 6 of 6 sound runs of pure bfloat16",
)
def below_resolution(health: Health, limit: Optional[float]) -> Finds:
    """Report a parameter that does not move and whose estimated update is at most half a unit of its type at its size.
    The estimate is the median step of the others, or their step per gradient times its own gradient. With statistics
    only, report every 16-bit weight that does not move."""
    moved = _moved(health)
    for one in health.parameters if moved else ():
        because = _too_small(one, moved) if is_unchanged(one) and one.trainable is not False else None
        if because and (_has_gradient(one) or not any(one.gradients)):
            yield Found(one, because)


@rule(
    "weight.frozen",
    "hint",
    "backward, parameters",
    says="parameters are frozen",
    remedy="list intended ones in expect.frozen",
    source="guides of MindSpore: weight freeze",
)
def frozen(health: Health, limit: Optional[float]) -> Finds:
    """Report requires_grad = False in a run with a backward pass. With expect.frozen or expect.trained (globs), only
    parameters that differ from the expectation are reported, as errors."""
    wanted, trained = health.expect.get("frozen", ()), health.expect.get("trained", ())
    known = [one for one in health.parameters if one.trainable is not None]
    for one in known:
        meant = any(fnmatchcase(one.name, glob) for glob in wanted)
        if meant and one.trainable:
            yield Found(one, "requires a gradient, but expect.frozen lists it", severity="error", remedy="freeze it")
        elif not one.trainable and (any(fnmatchcase(one.name, glob) for glob in trained) or (wanted and not meant)):
            yield Found(one, "is frozen, but should not be", severity="error", remedy="set requires_grad = True")
    if not wanted and not trained:
        count = sum(not one.trainable for one in known)
        for one in known:
            if not one.trainable:
                yield Found(one, f"requires no gradient, as do {count} of {len(known)} parameters" if count > 1 else
                            "requires no gradient")  # fmt: skip


def _ratios(health: Health) -> Iterator[tuple[Parameter, int, float]]:
    """The relative move of each matrix in each step. Matrices that start at zero have no size to compare with and are
    skipped."""
    for one in health.matrices:
        if not one.first.figures.is_zero:
            yield from ((one, step, move.ratio) for step, _, move in one.moves)


@rule(
    "weight.change_large",
    "warning",
    "values, backward, moves",
    limit=1.0,
    says="a weight changes by more than its own size in one step",
    remedy="lower the learning rate, or clip gradients",
    source="MindInsight weight_change_too_large (0.1, recommended 1), SageMaker (10)",
)
def change_large(health: Health, limit: Optional[float]) -> Finds:
    """Report mean |w' - w| over mean |w| of a matrix. Clean runs have at most 0.61, so the published 0.1 would fire on
    sound networks; so would 1 for parameters that start at zero."""
    worst: dict[str, tuple[Parameter, int, float]] = {}
    for one, step, ratio in _ratios(health):
        if limit is not None and ratio > limit and ratio > worst.get(one.name, (one, 0, 0.0))[2]:
            worst[one.name] = one, step, ratio
    for one, step, ratio in sorted(worst.values(), key=lambda item: -item[2]):
        words = f"changes by {ratio:.3g} times its own size after {step_words(health, step)}"
        yield Found(one, words, ratio, step=step, unit="times")


@rule(
    "weights.change_large",
    "warning",
    "values, backward, moves",
    limit=0.2,
    says="the median weight changes too much in one step",
    remedy="the learning rate is too large",
    source="measured: clean at most 0.118",
)
def all_change_large(health: Health, limit: Optional[float]) -> Finds:
    """Report the median over the matrices of their relative moves, in the worst step."""
    steps: dict[int, list[float]] = {}
    for _, step, ratio in _ratios(health):
        steps.setdefault(step, []).append(ratio)
    found = [(median(ratios), step) for step, ratios in steps.items()]
    if limit is not None and found and max(found)[0] > limit:
        ratio, step = max(found)
        words = f"the median matrix changes by {ratio:.0%} of its size after {step_words(health, step)}"
        yield Found(None, words, ratio, step=step)


@rule(
    "weights.change_small",
    "hint",
    "values, backward, moves",
    limit=1e-6,
    says="all weights change very little",
    remedy="the learning rate is far too small, or this is the end of a schedule",
    source="MindInsight weight_change_too_small (1e-4 fires in 26 of 64 clean runs), SageMaker (1e-8)",
)
def all_change_small(health: Health, limit: Optional[float]) -> Finds:
    """Report the largest relative move of any matrix. Fine-tuning with 2e-5 has 1.3e-3, a converged network 8e-8; hence
    a hint."""
    ratios = [ratio for _, _, ratio in _ratios(health)]
    if limit is not None and ratios and 0 < max(ratios) < limit:
        yield Found(None, f"no matrix changes by more than {max(ratios):.1g} of its size in a step", max(ratios))


@rule(
    "optimizer.uphill",
    "error",
    "values, changes, backward, names, moves",
    limit=0.0,
    says="parameters move along their gradients, not against them",
    remedy="the sign of the update or of the learning rate is wrong",
    source="TheDeepChecker; clean: cosine with the gradient at most -0.16",
)
def uphill(health: Health, limit: Optional[float]) -> Finds:
    """Report if the first dumped move of more than half of the matrices has a cosine ≥ 0 with its gradient. Adam has
    about -0.2 to -0.8, SGD without momentum -1."""
    moves = [(one, one.moves[0]) for one in health.matrices if one.moves and one.moves[0][2].along is not None]
    first = min((step for _, (step, _, _) in moves), default=0)
    along = [(one, -(move.along or 0.0)) for one, (step, _, move) in moves if step == first]
    wrong = [(one, cosine) for one, cosine in along if limit is not None and cosine >= limit]
    if len(wrong) * 2 > len(along):
        one, cosine = wrong[0]
        words = f"moves along its gradient (cosine {cosine:.2f}) after {step_words(health, first)}"
        words += f", as do {len(wrong)} of {len(along)} matrices"
        yield Found(one, words, cosine, step=first, places=len(wrong), also=tuple(w.name for w, _ in wrong[1:]))


@rule(
    "optimizer.arithmetic",
    "warning",
    "values, updates",
    limit=8.0,
    says="the update of an optimizer is not w - rate · moment",
    remedy="compare its operator with a reference: check the moment, the gradient and the computing dtype",
    source="measured: 0.0 in sound dumps of MindSpore",
)
def arithmetic(health: Health, limit: Optional[float]) -> Finds:
    """Report the distance of the dumped result from w - rate · moment, relative to w, in round-offs of its type. Only
    momentum and plain descent are judged, because other optimizers have other formulas."""
    for one in health.parameters:
        row = lookup(one.dtype)
        for update in one.updates:
            if limit is None or update.residual is None or row is None or not row.round_off:
                continue
            units = update.residual / row.round_off
            if units > limit:
                words = f"its update is off by {units:.3g} round-offs of {one.dtype} (learning rate {update.rate:.4g})"
                yield Found(one, words, units, step=update.step, unit="round-offs")
