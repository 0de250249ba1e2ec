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

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Mapping, NamedTuple, Optional, Sequence

from msgspec import Meta, ValidationError, convert

from npucmp.dump.readers.text import load_toml, read_text
from npucmp.errors import UsageError, nearest
from npucmp.health.rule import SEVERITIES, Rule

# The accepted values of a setting that is one word.
WORDS = {"fail_on": SEVERITIES, "start": ("auto", "fresh", "trained"), "phase": ("auto", "train", "eval")}


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
        for name, known in WORDS.items():
            word = getattr(self, name)
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
                near = nearest(glob, names)
                where = "" if near else "; npucmp check --list lists all rules"
                raise UsageError(f"no rule is called {glob!r}{where}", near)


LARGEST = 1 << 20  # bytes of a file


class _Kind(NamedTuple):
    """The type of a value, which msgspec checks, and its description for messages."""

    type: Any
    words: str


def _one_of(known: Sequence[str]) -> _Kind:
    return _Kind(Literal[tuple(known)], f"one of {', '.join(known)}")


TABLE = _Kind(dict[str, Any], "a table")
NUMBER = _Kind(Annotated[float, Meta(ge=-1e300, le=1e300)], "a number")  # neither NaN nor infinite
NAMES = _Kind(tuple[str, ...], "a list of names")
GROUPS = _Kind(tuple[tuple[str, ...], ...], "a list of lists of names")
TRUTH = _Kind(bool, "true or false")

FILE = {"skip": NAMES, "only": NAMES, "rule": TABLE, "row": TABLE, "expect": TABLE}
FILE.update((name, _one_of(known)) for name, known in WORDS.items())
RULE = {"limit": NUMBER, "severity": _one_of(SEVERITIES), "include": NAMES, "exclude": NAMES}
ROW = {"limit": NUMBER, "severity": _one_of(SEVERITIES), "ignore": NAMES}
EXPECT = {"frozen": NAMES, "trained": NAMES, "shared": GROUPS, "only": GROUPS, "repeated_input": TRUTH}


def load_settings(
    path: str | PathLike[str], rules: Sequence[Rule], rows: Optional[Sequence[str]] = None
) -> CheckSettings:
    """Read the settings of a file. Raise DumpError if it is unreadable, UsageError for an unknown word or a bad value.

    If `rows` is None, any name of a row is accepted, because check reads the same file as precheck.
    """
    where = Path(path)
    found = _read(str(where), load_toml(where, read_text(where, LARGEST)), FILE)
    by_name = {one.name: one for one in rules}
    for word in ("skip", "only"):
        for glob in found.get(word, ()):
            check_glob(f"{where}: {word}", glob, [*by_name, *(rows or ())], rows is None)
    own, of_rows = found.pop("rule", {}), found.pop("row", {})
    own = _read(f"{where}: [rule]", own, dict.fromkeys(by_name, TABLE), "rule")
    of_rows = _read(f"{where}: [row]", of_rows, dict.fromkeys(of_rows if rows is None else rows, TABLE), "row")
    found["own"] = {name: _rule(f'{where}: [rule."{name}"]', by_name[name], one) for name, one in own.items()}
    found["rows"] = {name: _row(f'{where}: [row."{name}"]', one) for name, one in of_rows.items()}
    found["expect"] = _read(f"{where}: [expect]", found.get("expect", {}), EXPECT)
    return CheckSettings(**found)


def _rule(where: str, rule: Rule, table: Mapping[str, Any]) -> RuleSettings:
    known = {**dict.fromkeys(rule.words, NUMBER), **RULE}
    if rule.limit is None:
        del known["limit"]
    found = _read(where, table, known)
    more = {word: found.pop(word) for word in rule.words if word in found}
    return RuleSettings(**found, more=more)


def _row(where: str, table: Mapping[str, Any]) -> RuleSettings:
    found = _read(where, table, ROW)
    ignored = found.pop("ignore", ())
    return RuleSettings(**found, more={"ignore": ignored})


def _read(where: str, table: Mapping[str, Any], known: Mapping[str, _Kind], what: str = "word") -> dict[str, Any]:
    """Return the converted values of a table. Raise UsageError for an unknown name or a value of another kind."""
    found = {}
    for name, value in table.items():
        if name not in known:
            near = nearest(name, known) or (known if what == "word" else ())
            raise UsageError(f"{where}: unknown {what} {name!r:.60}", [*near])
        try:
            found[name] = convert(value, known[name].type)
        except ValidationError:
            raise UsageError(f"{where}: {name}: expected {known[name].words}, not {value!r:.60}") from None
    return found


def check_glob(where: str, glob: str, names: Sequence[str], others: bool = False) -> None:
    """Raise UsageError for a glob without a match. If `others` is true, raise only if a similar name exists."""
    if any(fnmatchcase(name, glob) for name in names):
        return
    near = nearest(glob, names)
    if near or not others:
        raise UsageError(f"{where}: unknown rule {glob!r:.60}", near)
