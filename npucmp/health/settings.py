"""Settings of check and precheck: which rules run, with which limits and severities, and which properties are intended.

They are read from one TOML file that the user names; no dump provides settings:

    fail_on = "warning"                     the lowest severity that makes a run unhealthy
    skip = ["input.repeated", "curve.*"]    rules to skip; `only` skips all others
    start = "trained"                       fresh, trained or auto: whether initial weights are judged
    phase = "train"                         train, eval or auto: whether modes are judged as in training

    [rule."weight.change_large"]            limit, severity; include and exclude are globs over parameters and operators
    [rule."tensor.range"]                   its own words, which enable it: those of MindInsight's watchpoints
    [expect]                                intended properties: frozen, trained, shared, only, repeated_input
    [row."hyperparameters"]                 rows of precheck: severity, limit, ignore

The command line overrides the file, the file overrides the defaults.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from npucmp.dump.readers.text import load_toml, read_text
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


LARGEST = 1 << 20  # bytes of a file


def load_settings(
    path: str | PathLike[str], rules: Sequence[Rule], rows: Optional[Sequence[str]] = None
) -> CheckSettings:
    """Read the settings of a file. Raise DumpError if it is unreadable, UsageError for an unknown word or a bad value.

    If `rows` is None, any name of a row is accepted, because check reads the same file as precheck.
    """
    where = Path(path)
    table = load_toml(where, read_text(where, LARGEST))
    by_name = {one.name: one for one in rules}
    known = _Table(where, "", table)
    found = {
        "fail_on": known.take("fail_on", _one_of(*SEVERITIES)),
        "skip": known.take("skip", _globs(by_name, rows)),
        "only": known.take("only", _globs(by_name, rows)),
        "start": known.take("start", _one_of("auto", "fresh", "trained")),
        "phase": known.take("phase", _one_of("auto", "train", "eval")),
        "own": {name: _rule(where, by_name[name], one) for name, one in known.tables("rule", by_name)},
        "rows": {name: _row(where, name, one) for name, one in known.tables("row", rows)},
        "expect": _expect(where, known.take("expect", _table) or {}),
    }
    known.end()
    return CheckSettings(**{name: value for name, value in found.items() if value is not None})


def _rule(path: Path, rule: Rule, given: object) -> RuleSettings:
    table = _Table(path, f'rule."{rule.name}"', given)
    words = {word: table.take(word, _number) for word in rule.words}
    found = RuleSettings(
        table.take("limit", _number) if rule.limit is not None else None,
        table.take("severity", _one_of(*SEVERITIES)) or "",
        table.take("include", _texts) or (),
        table.take("exclude", _texts) or (),
        more={word: value for word, value in words.items() if value is not None},
    )
    table.end()
    return found


def _row(path: Path, name: str, given: object) -> RuleSettings:
    table = _Table(path, f'row."{name}"', given)
    limit, severity = table.take("limit", _number), table.take("severity", _one_of(*SEVERITIES)) or ""
    found = RuleSettings(limit, severity, more={"ignore": table.take("ignore", _texts) or ()})
    table.end()
    return found


def _expect(path: Path, given: object) -> dict[str, Any]:
    table = _Table(path, "expect", given)
    found = {name: table.take(name, _texts) for name in ("frozen", "trained")}
    found.update({name: table.take(name, _groups) for name in ("shared", "only")})
    found["repeated_input"] = table.take("repeated_input", _truth)
    table.end()
    return {name: value for name, value in found.items() if value is not None}


class _Table:
    """A table of the file. Each word is taken once; `end` raises for any word that was not taken."""

    def __init__(self, path: Path, name: str, given: object) -> None:
        self.at = f"{path}: [{name}]" if name else str(path)
        if not isinstance(given, dict):
            raise UsageError(f"{self.at}: expected a table")
        self._given = given
        self._known: list[str] = []

    def take(self, word: str, reads: Callable[[str, Any], Any]) -> Any:
        """Return the converted value of a word; None if the table lacks it."""
        self._known.append(word)
        return reads(f"{self.at}: {word}", self._given[word]) if word in self._given else None

    def tables(self, word: str, known: Optional[Sequence[str] | Mapping[str, Any]]) -> list[tuple[str, Any]]:
        """Return the tables below a word as (name, table) pairs; raise UsageError for an unknown name."""
        found = self.take(word, _table) or {}
        for name in found:
            if known is not None and name not in known:
                raise UsageError(f"{self.at}: unknown {word} {name!r:.60}", get_close_matches(name, [*known]))
        return [*found.items()]

    def end(self) -> None:
        for word in self._given:
            if word not in self._known:
                near = get_close_matches(word, self._known) or self._known
                raise UsageError(f"{self.at}: unknown word {word!r:.60}", near)


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table, not {value!r:.60}")
    return value


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e300:
        raise UsageError(f"{where}: expected a number, not {value!r:.60}")
    return float(value)


def _truth(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where}: expected true or false, not {value!r:.60}")
    return value


def _texts(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{where}: expected a list of names, not {value!r:.60}")
    return tuple(value)


def _groups(where: str, value: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected a list of groups of names, not {value!r:.60}")
    return tuple(_texts(where, one) for one in value)


def _one_of(*words: str) -> Callable[[str, object], str]:
    def reads(where: str, value: object) -> str:
        if value not in words:
            raise UsageError(f"{where}: unknown value {value!r:.60}; expected one of {', '.join(words)}")
        return str(value)

    return reads


def _globs(rules: Mapping[str, Rule], rows: Optional[Sequence[str]]) -> Callable[[str, object], tuple[str, ...]]:
    """Return a reader of globs over names of rules and rows; it rejects a glob that looks like a misspelling."""

    def reads(where: str, value: object) -> tuple[str, ...]:
        for glob in _texts(where, value):
            check_glob(where, glob, [*rules, *(rows or ())], rows is None)
        return _texts(where, value)

    return reads


def check_glob(where: str, glob: str, names: Sequence[str], others: bool = False) -> None:
    """Raise UsageError for a glob without a match. If `others` is true, raise only if a similar name exists."""
    if any(fnmatchcase(name, glob) for name in names):
        return
    near = get_close_matches(glob, names)
    if near or not others:
        raise UsageError(f"{where}: unknown rule {glob!r:.60}", near)
