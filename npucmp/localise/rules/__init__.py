"""The rules about errors, one per file. localise/rule_context.py defines their form and what they may read.

    limit        the largest error that rounding alone may make: the largest bound of the rules that apply
    explanation  the largest error that incoming errors may make: the largest bound of the rules that apply
    accusation   a fault although the error is small or explained: one rule is enough
    fact         a property of a tensor or an operator; localise/search.py and multi_rank.py act on it

No rule calls another. The order of RULES is the order of the list, and decides which of several accusations is named;
nothing else depends on it. --skip-rule switches a rule off.
"""

from __future__ import annotations

import difflib
from typing import Iterable, Optional

from npucmp.errors import UsageError
from npucmp.judge.tolerance import Limit
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules import (
    arguments,
    broadcast,
    cancellation,
    choice,
    coarser,
    collective,
    common_factor,
    condition,
    constant_rows,
    copy,
    equal_bits,
    facts,
    given,
    gradual,
    growth,
    inherited,
    law,
    long_sums,
    lost_tile,
    non_smooth,
    overwritten,
    quantised,
    reduced,
    round_off,
    routed,
    scaled,
    single_element,
    subnormal,
    untied,
)

RULES: tuple[ErrorRule, ...] = (
    round_off.RULE,
    long_sums.RULE,
    subnormal.RULE,
    reduced.RULE,
    quantised.RULE,
    growth.RULE,
    condition.RULE,
    constant_rows.RULE,
    non_smooth.RULE,
    choice.RULE,
    cancellation.RULE,
    reduced.ALIKE,
    inherited.RULE,
    routed.RULE,
    collective.RULE,
    coarser.RULE,
    common_factor.RULE,
    untied.RULE,
    scaled.RULE,
    arguments.RULE,
    equal_bits.RULE,
    copy.RULE,
    lost_tile.RULE,
    single_element.RULE,
    law.RULE,
    given.RULE,
    gradual.RULE,
    overwritten.RULE,
    broadcast.RULE,
    *facts.FACTS,
)


class Rulebook:
    """The rules in force; `reduced_alike` is among them if products keep 11 bits on both sides. Raises UsageError for
    an unknown name in `skip`."""

    def __init__(self, skip: Iterable[str] = (), alike: bool = False) -> None:
        names = [rule.name for rule in RULES]
        for name in skip:
            if name not in names:
                raise UsageError(f"no rule {name!r:.60}", difflib.get_close_matches(name, names))
        left_out = {*skip, *(() if alike else (reduced.ALIKE_NAME,))}
        self.rules = tuple(rule for rule in RULES if rule.name not in left_out)
        self._of = {kind: [rule for rule in self.rules if rule.kind == kind] for kind in KINDS}
        self._named = {rule.name: rule for rule in self.rules}

    def uses(self, name: str) -> bool:
        """Whether a rule is in force."""
        return name in self._named

    def limit(self, case: RuleContext) -> Limit:
        """The largest error that rounding alone may make; 0 if no rule applies."""
        return max((Limit(rule.bound(case), rule.name) for rule in self._of["limit"] if rule.applies(case)),
                   key=lambda limit: limit.value, default=Limit(0.0))  # fmt: skip

    def explanation(self, case: RuleContext) -> Optional[Limit]:
        """The smallest bound that contains the error, and its rule; None if no rule explains the error."""
        bounds = [Limit(rule.bound(case), rule.name) for rule in self._of["explanation"] if rule.applies(case)]
        return min((one for one in bounds if case.error <= one.value), key=lambda one: one.value, default=None)

    def accusation(self, case: RuleContext, only: str = "") -> Optional[ErrorRule]:
        """The first rule in the list that accuses; None if no rule does. `only` names a single rule to try."""
        rules = [rule for rule in self._of["accusation"] if only in ("", rule.name)]
        return next((rule for rule in rules if rule.applies(case)), None)

    def holds(self, name: str, case: RuleContext) -> bool:
        """Whether a fact or an accusation applies; False for a rule that is switched off."""
        rule = self._named.get(name)
        return rule is not None and rule.applies(case)


KINDS = ("limit", "explanation", "accusation", "fact")
