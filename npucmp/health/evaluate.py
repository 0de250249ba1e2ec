"""Apply all rules to all ranks: a Symptom per finding, and a RuleDecision per rule, also for rules that could not run.

A finding that follows from another finding is listed below its cause, so that the first line is the one to fix.
FOLLOWS lists, for each rule, the rules that explain it if both report the same rank; the first match is the cause.
A hint explains only hints: a setting that may be intended does not excuse an error. Exception: scale hints in `RAISED`
may be as severe as their consequences.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.errors import raise_in_tests
from npucmp.health.facts import Health, Op, Parameter, Tensor
from npucmp.health.rule import Found, Rule
from npucmp.health.settings import CheckSettings, RuleSettings
from npucmp.model.check_finding import SEVERITIES, RuleDecision, Symptom

INPUT_NONFINITE = ("input.nonfinite", "weight.nonfinite", "divide.zero", "overflow.summary")
NONFINITE = (*INPUT_NONFINITE, "grad.nonfinite")
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
    "loss.nonfinite": (*INPUT_NONFINITE, "label.none", "loss.not_log_probabilities"),
    "overflow.summary": ("input.nonfinite", "weight.nonfinite", "divide.zero", "label.none", *STEP),
    "grad.nonfinite": (*INPUT_NONFINITE, "loss.nonfinite"),
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
    "curve.spike": (*STEP, "tensor.spike"),
    "grad.zero": (*NONFINITE, *DATA, *START, *DEAD, *LOST, "loss.zero", "loss.softmax_twice"),
    "grad.vanishing": (*NONFINITE, *START, *DEAD, *LOST, *STEP, "loss.softmax_twice"),
    "grad.exploding": (*NONFINITE, *DATA, *START, "activation.growth", "loss.sum", *STEP),
    "tensor.spike": (*CRASH,),
    "grad.norm_jump": (*CRASH, "tensor.spike"),
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


def order_symptoms(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Return the symptoms in order: roots by severity, each followed by its consequences. `place` and `follows` are
    set."""
    causes = [_cause(one, symptoms) for one in symptoms]
    symptoms = _raise_hints(symptoms, causes)
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


def _raise_hints(symptoms: Sequence[Symptom], causes: Sequence[Optional[int]]) -> list[Symptom]:
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


NAMED = 100  # places that one finding names


class RunExamination(NamedTuple):
    symptoms: tuple[Symptom, ...]
    decisions: tuple[RuleDecision, ...]


def examine(
    healths: Sequence[Health], rules: Sequence[Rule], settings: CheckSettings = CheckSettings()
) -> RunExamination:
    """Apply all rules to all ranks. A rule that raises loses only its own row."""
    symptoms: list[Symptom] = []
    decisions = []
    for rule in rules:
        found, decision = _evaluate_rule(rule, healths, settings)
        symptoms += found
        decisions.append(decision)
    return RunExamination(tuple(order_symptoms(symptoms)), tuple(decisions))


def _evaluate_rule(
    rule: Rule, healths: Sequence[Health], settings: CheckSettings
) -> tuple[list[Symptom], RuleDecision]:
    own = settings.of(rule)
    limit = rule.limit if own.limit is None else own.limit
    start = RuleDecision(rule.name, own.severity or rule.severity, "no", limit=limit, source=rule.source)
    start = start._replace(limit_from="default" if own.limit is None else settings.origin)
    left_out = settings.wants(rule)
    if left_out:
        return [], start._replace(why_not=left_out)
    about = healths[:1] if {"ranks", "curve"} & {*rule.needs} else healths  # the first has log and ranks
    reasons = {one.rank: why for one in about if (why := rule.why_not(one))}
    symptoms: list[Symptom] = []
    looked_at = 0
    for health in about:
        if health.rank in reasons:
            continue
        try:
            hits = [one for one in rule.find(health, settings.limit(rule)) if own.wants(_name_of(one.at))]
            symptoms += _symptoms(rule, own, limit, health, hits)
            looked_at += rule.looks_at(health)
        except Exception as error:  # a user's rule raises anything; other rules still run
            raise_in_tests(error)
            reasons[health.rank] = f"rule failed: {type(error).__name__}: {error}"
            start = start._replace(failed=True)
    done = len(about) - len(reasons)
    why = next(iter(reasons.values()), "")
    decided = "no" if not done else "in part" if reasons else "yes"
    return symptoms, start._replace(
        decided=decided, why_not=why, looked_at=looked_at, found=sum(s.places for s in symptoms)
    )


def _symptoms(
    rule: Rule, own: RuleSettings, limit: Optional[float], health: Health, found: Sequence[Found]
) -> Iterator[Symptom]:
    """Yield one Symptom per severity; the first finding represents the group, and the others are listed in `also`."""
    with_severity = [(own.severity or one.severity or rule.severity, one) for one in found]
    with_severity.sort(key=lambda item: -SEVERITIES.index(item[0]))
    for severity, group in groupby(with_severity, key=lambda item: item[0]):
        members = [one for _, one in group]
        first = members[0]
        operator, step = first.at.operator if isinstance(first.at, (Op, Tensor, Parameter)) else None, _step_of(first)
        others = (*first.also, *(_name_of(one.at) for one in members[1:]))
        yield Symptom(
            0,
            severity,
            rule.name,
            first.because,
            first.remedy or rule.remedy,
            says=rule.says,
            step=health.number(step) if step is not None else None,
            rank=health.rank,
            operator=operator,
            slot=first.at.slot if isinstance(first.at, Tensor) else "",
            parameter=first.at.name if isinstance(first.at, Parameter) else "",
            order=first.at.order if isinstance(first.at, Parameter) else operator.order if operator else -1,
            places=sum(one.places for one in members),
            also=tuple(dict.fromkeys(filter(None, others)))[:NAMED],
            value=first.value,
            limit=limit if first.limit is None else first.limit,
            unit=first.unit,
        )


def _step_of(found: Found) -> Optional[int]:
    if found.step is not None:
        return found.step
    return found.at.step if isinstance(found.at, Op) else None


def _name_of(at: object) -> str:
    if isinstance(at, (Op, Parameter)):
        return at.name
    return f"{at.operator.name} {at.slot}" if isinstance(at, Tensor) else ""
