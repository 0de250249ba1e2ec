"""What a user decides of rules: which are asked, with which limits and severities, and what is meant to be so."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Mapping, Optional, Sequence

from npucmp.errors import UsageError
from npucmp.health.rule import SEVERITIES, Rule


@dataclass(frozen=True)
class Own:
    """What a user changed of one rule; globs of include and exclude are over parameters and operators.

    more  further words of its table: the numbers that a rule has instead of a limit, what a row is to ignore
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
class Settings:
    """Command line and file together; the command line is stronger.

    only, skip  globs over names of rules; a rule that is off is asked where `only` names it in full, or `own` has it
    phase       "train", "eval", or "auto": by whether there is a backward pass
    start       "fresh", "trained", or "auto": by the weights of norms
    own, rows   what is changed of rules, and of rows of precheck, by name
    origin      where limits and severities of `own` come from, for reports
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    own: Mapping[str, Own] = field(default_factory=dict)
    rows: Mapping[str, Own] = field(default_factory=dict)
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
                raise UsageError(f"{word!r} is none of {', '.join(known)}")

    def of(self, rule: Rule) -> Own:
        return self.own.get(rule.name, Own())

    def limit(self, rule: Rule) -> Any:
        """What a rule is handed: its limit, or the numbers of one that has words of its own."""
        own = self.of(rule)
        return own.more if rule.words else rule.limit if own.limit is None else own.limit

    def wants(self, rule: Rule) -> str:
        """Why a rule is not asked, "" if it is."""
        if any(fnmatchcase(rule.name, glob) for glob in self.skip):
            return "left out by --skip"
        if self.only and not any(fnmatchcase(rule.name, glob) for glob in self.only):
            return "left out by --only"
        if rule.off and rule.name not in self.only and rule.name not in self.own:
            return "off: ask for it with --only, or set it in --rules"
        return ""

    def require_known(self, rules: Sequence[Rule]) -> None:
        """UsageError for a name that no rule has, or a glob that fits none."""
        names = [rule.name for rule in rules]
        for glob in (*self.only, *self.skip, *self.own):
            if not any(fnmatchcase(name, glob) for name in names):
                near = difflib.get_close_matches(glob, names)
                where = "" if near else "; npucmp check --list tells them all"
                raise UsageError(f"no rule is called {glob!r}{where}", near)
