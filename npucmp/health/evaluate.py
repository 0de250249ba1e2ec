"""Apply all rules to all ranks: a Symptom per finding, and a Decision per rule, also for rules that could not run."""

from __future__ import annotations

from itertools import groupby
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.errors import raise_in_tests
from npucmp.health.facts import Health, Op, Parameter, Tensor
from npucmp.health.rule import SEVERITIES, Found, Rule
from npucmp.health.settings import CheckSettings, RuleSettings
from npucmp.health.suppression import explained
from npucmp.model import Operator
from npucmp.model.check_finding import Decision, Symptom

NAMED = 100  # places that one finding names


class Examined(NamedTuple):
    symptoms: tuple[Symptom, ...]
    decisions: tuple[Decision, ...]


def examine(healths: Sequence[Health], rules: Sequence[Rule], settings: CheckSettings = CheckSettings()) -> Examined:
    """Apply all rules to all ranks. A rule that raises loses only its own row."""
    symptoms: list[Symptom] = []
    decisions = []
    for rule in rules:
        found, decision = _evaluated(rule, healths, settings)
        symptoms += found
        decisions.append(decision)
    return Examined(tuple(explained(symptoms)), tuple(decisions))


def _evaluated(rule: Rule, healths: Sequence[Health], settings: CheckSettings) -> tuple[list[Symptom], Decision]:
    own = settings.of(rule)
    limit = rule.limit if own.limit is None else own.limit
    start = Decision(rule.name, own.severity or rule.severity, "no", limit=limit, source=rule.source)
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
            some = [one for one in rule.find(health, settings.limit(rule)) if own.wants(_name_of(one.at))]
            symptoms += _symptoms(rule, own, limit, health, some)
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
        some = [one for _, one in group]
        first = some[0]
        operator, step = _operator_of(first.at), _step_of(first)
        others = (*first.also, *(_name_of(one.at) for one in some[1:]))
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
            places=sum(one.places for one in some),
            also=tuple(dict.fromkeys(filter(None, others)))[:NAMED],
            value=first.value,
            limit=limit if first.limit is None else first.limit,
            unit=first.unit,
        )


def _operator_of(at: object) -> Optional[Operator]:
    return at.operator if isinstance(at, (Op, Tensor, Parameter)) else None


def _step_of(found: Found) -> Optional[int]:
    if found.step is not None:
        return found.step
    return found.at.step if isinstance(found.at, Op) else None


def _name_of(at: object) -> str:
    if isinstance(at, (Op, Parameter)):
        return at.name
    return f"{at.operator.name} {at.slot}" if isinstance(at, Tensor) else ""
