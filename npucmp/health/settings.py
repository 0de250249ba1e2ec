"""Settings of rules: which rules run, with which limits and severities, and which properties are intended."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Mapping, Optional, Sequence

from npucmp.errors import UsageError
from npucmp.health.rule import SEVERITIES, Rule


@dataclass(frozen=True)
class RuleSettings:
    """User settings of one rule; include and exclude are globs over parameters and operators.

    more  further words of its table: the numbers of a rule without a limit, or the entries that a row ignores
    """

    limit: Optional[float] = None
    severity: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        if self.include and not any(fnmatchcase(name, glob) for glob in self.include):
            return False
        return not any(fnmatchcase(name, glob) for glob in self.exclude)


@dataclass(frozen=True)
class CheckSettings:
    """Merged settings of command line and file; the command line takes precedence.

    only, skip  globs over names of rules; a rule that is off runs only if `only` has its full name or `own` has it
    phase       "train", "eval", or "auto": by whether a backward pass exists
    start       "fresh", "trained", or "auto": by the weights of norms
    own, rows   settings of rules and of rows of precheck, by name
    origin      where limits and severities of `own` come from, for reports
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    own: Mapping[str, RuleSettings] = field(default_factory=dict)
    rows: Mapping[str, RuleSettings] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "auto"
    start: str = "auto"
    fail_on: str = "warning"
    origin: str = "file"

    def __post_init__(self) -> None:
        for word, known in (
            (self.phase, ("auto", "train", "eval")),
            (self.start, ("auto", "fresh", "trained")),
            (self.fail_on, SEVERITIES),
        ):
            if word not in known:
                raise UsageError(f"unknown word {word!r}; expected one of {', '.join(known)}")

    def of(self, rule: Rule) -> RuleSettings:
        return self.own.get(rule.name, RuleSettings())

    def limit(self, rule: Rule) -> Any:
        """The argument of a rule: its limit, or the user's numbers for a rule with `words`."""
        own = self.of(rule)
        return own.more if rule.words else rule.limit if own.limit is None else own.limit

    def wants(self, rule: Rule) -> str:
        """The reason why a rule is skipped; "" if it runs."""
        if any(fnmatchcase(rule.name, glob) for glob in self.skip):
            return "skipped by --skip"
        if self.only and not any(fnmatchcase(rule.name, glob) for glob in self.only):
            return "not selected by --only"
        if rule.off and rule.name not in self.only and rule.name not in self.own:
            return "off by default: name it with --only, or set it in --rules"
        return ""

    def require_known(self, rules: Sequence[Rule]) -> None:
        """Raise UsageError for a name or glob that matches no rule."""
        names = [rule.name for rule in rules]
        for glob in (*self.only, *self.skip, *self.own):
            if not any(fnmatchcase(name, glob) for name in names):
                near = difflib.get_close_matches(glob, names)
                where = "" if near else "; npucmp check --list lists all rules"
                raise UsageError(f"no rule is called {glob!r}{where}", near)
