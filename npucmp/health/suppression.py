"""Which findings follow from which. A consequence is listed below its cause, so that the first line is the one to fix.

FOLLOWS lists, for each rule, the rules that explain it if both report the same rank; the first match is the cause.
A hint explains only hints: a setting that may be intended does not excuse an error. Exception: scale hints in `RAISED`
may be as severe as their consequences.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import Mapping, Optional, Sequence

from npucmp.model.check_finding import SEVERITIES, Symptom

CAME_IN = ("input.nonfinite", "weight.nonfinite", "divide.zero", "overflow.summary")
NONFINITE = (*CAME_IN, "grad.nonfinite")
DATA = ("input.constant", "input.same_samples", "input.raw_pixels", "input.scale", "input.feature_scales", "label.*",
        "embedding.index_range", "input.mask_empty")  # fmt: skip
START = ("weight.zero", "weight.constant", "weight.scale_large", "weight.scale_small", "weight.unlike_peers")
FLAT = ("relu.dead", "activation.saturated")
DEAD = (*FLAT, "relu.dead_channels", "activation.growth")
LOST = ("grad.missing", "output.same_for_all", "tensor.zero", "tensor.constant", "loss.one_class", "label.none")
SCALES = ("input.raw_pixels", "input.scale", "input.feature_scales")
STEP = ("optimizer.uphill", "weights.change_large", "weight.change_large", "loss.negated")
CRASH = (*NONFINITE, *STEP)

FOLLOWS: Mapping[str, Sequence[str]] = {  # rule → rules that explain it, in order of priority
    "weight.nonfinite": ("grad.nonfinite",),
    "loss.nonfinite": (*CAME_IN, "label.none", "loss.not_log_probabilities"),
    "overflow.summary": ("input.nonfinite", "weight.nonfinite", "divide.zero", "label.none", *STEP),
    "grad.nonfinite": (*CAME_IN, "loss.nonfinite"),
    "relu.dead": (*NONFINITE, *DATA, *START, *STEP),
    "relu.dead_channels": (*NONFINITE, *DATA, *START, "relu.dead", "output.same_for_all", *STEP),
    "activation.saturated": (*DATA, *START, *STEP),
    "activation.growth": (*NONFINITE, *DATA, *START, *STEP),
    "tensor.zero": (*DATA, *START, "relu.dead"),
    "tensor.constant": (*DATA, *START, *FLAT),
    "output.same_for_all": (
        *DATA,
        *START,
        "relu.dead",
        "activation.saturated",
        "tensor.zero",
        "tensor.constant",
        *STEP,
    ),
    "output.ignores_input": (*NONFINITE, *DATA, *START, *DEAD, "output.same_for_all"),
    "loss.zero": ("loss.one_class", "label.none", "label.single", *START),
    "loss.negative": ("loss.negated", "loss.not_log_probabilities"),
    "loss.above_chance": (*NONFINITE, *DATA, *START, *DEAD, "loss.sum", *STEP),
    "label.single": ("loss.one_class",),
    "batchnorm.never_updated": ("batchnorm.eval_in_training",),
    "dropout.off_in_training": ("batchnorm.eval_in_training",),
    "dropout.in_eval": ("batchnorm.train_in_eval",),
    "batchnorm.drift": (*DATA,),
    "curve.nonfinite": (*CRASH, "loss.nonfinite"),
    "curve.flat": (*DEAD, *LOST, "grad.zero", "weights.none_change", "weights.change_small"),
    "curve.rising": (*STEP,),
    "curve.spike": (*STEP,),
    "grad.zero": (*NONFINITE, *DATA, *START, *DEAD, *LOST, "loss.zero", "loss.softmax_twice"),
    "grad.vanishing": (*NONFINITE, *START, *DEAD, *LOST, *STEP, "loss.softmax_twice"),
    "grad.exploding": (*NONFINITE, *DATA, *START, "activation.growth", "loss.sum", *STEP),
    "grad.norm_jump": (*CRASH,),
    "grad.underflow16": ("lossscale.missing", "grad.vanishing"),
    "weight.change_large": ("weights.change_large", "optimizer.uphill", *SCALES, *START),
    "weights.change_large": ("optimizer.uphill", *SCALES, *START),
    "weight.below_resolution": ("weights.change_small",),
    "weights.none_change": ("grad.zero", *LOST, "loss.zero"),
    "weights.change_small": ("grad.vanishing", "grad.zero", *DEAD, *LOST),
    "weight.equal_then_apart": ("weight.constant",),
    "weight.unlike_peers": ("weight.zero", "weight.constant", "weight.scale_large", "weight.scale_small"),
}


LATER = ("weight.nonfinite",)  # its cause lies in an earlier step
RAISED = ("weight.scale_large", "weight.scale_small", *SCALES)  # hints that may explain more severe findings


def explained(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Return the symptoms in order: roots by severity, each followed by its consequences. `place` and `follows` are
    set."""
    causes = [_cause(one, symptoms) for one in symptoms]
    symptoms = _raised(symptoms, causes)
    roots = [at for at, cause in enumerate(causes) if cause is None]
    roots.sort(key=lambda at: (-_gravity(symptoms[at]), _depth(symptoms[at].rule), symptoms[at].order, at))
    ordered = [one for root in roots for one in _family(root, causes, symptoms)]
    places = {at: place for place, at in enumerate(ordered, 1)}
    made = []
    for at in ordered:
        cause = causes[at]
        made.append(symptoms[at]._replace(place=places[at], follows=0 if cause is None else places[_root(at, causes)]))
    return made


def _cause(one: Symptom, symptoms: Sequence[Symptom]) -> Optional[int]:
    """The index of the symptom that explains this one: the first match of its rule's row on the same rank; else a more
    severe finding of the same rule. None if neither exists."""
    for glob in FOLLOWS.get(one.rule, ()):
        for at, other in enumerate(symptoms):
            if other is one or other.rule == one.rule or other.rank != one.rank or not fnmatchcase(other.rule, glob):
                continue
            excused = other.severity != "hint" or one.severity == "hint" or other.rule in RAISED
            if excused and _was_there(other, one):
                return at
    return next((at for at, other in enumerate(symptoms) if _is_graver(other, one)), None)


def _raised(symptoms: Sequence[Symptom], causes: Sequence[Optional[int]]) -> list[Symptom]:
    """Return the symptoms with each hint that explains a warning or an error raised to a warning."""
    graver = {cause for one, cause in zip(symptoms, causes) if cause is not None and one.severity != "hint"}
    return [
        one._replace(severity="warning") if at in graver and one.severity == "hint" else one
        for at, one in enumerate(symptoms)
    ]


def _is_graver(other: Symptom, one: Symptom) -> bool:
    """Whether the other symptom is a more severe finding of the same rule on the same rank."""
    return other.rule == one.rule and other.rank == one.rank and _gravity(other) > _gravity(one)


def _was_there(cause: Symptom, one: Symptom) -> bool:
    """Whether the steps allow this cause. For rules in LATER the cause must lie in a known earlier step, for others not
    in a later one."""
    if cause.step is None or one.step is None:
        return one.rule not in LATER
    return cause.step < one.step if one.rule in LATER else cause.step <= one.step


def _root(at: int, causes: Sequence[Optional[int]]) -> int:
    seen = {at}
    while (cause := causes[at]) is not None and cause not in seen:
        seen.add(cause)
        at = cause
    return at


def _family(root: int, causes: Sequence[Optional[int]], symptoms: Sequence[Symptom]) -> list[int]:
    """A root and all its consequences: the most severe first, then by distance from the root."""
    below = [at for at, cause in enumerate(causes) if cause is not None and _root(at, causes) == root]
    below.sort(key=lambda at: (-_gravity(symptoms[at]), _depth(symptoms[at].rule), at))
    return [root, *below]


def _gravity(one: Symptom) -> int:
    return SEVERITIES.index(one.severity)


@cache
def _depth(rule: str) -> int:
    """The length of the longest chain of explainable causes above a rule; 0 for rules in LATER."""
    causes = {other for glob in FOLLOWS.get(rule, ()) for other in FOLLOWS if fnmatchcase(other, glob)}
    return 0 if rule in LATER else 1 + max(map(_depth, causes - {rule}), default=-1)
