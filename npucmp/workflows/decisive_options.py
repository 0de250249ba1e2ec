"""The options that decide a verdict, as they stand in summary.json.

Two reports are compared by the options that decide a verdict. Options that name data (golden, graph, also), control the
execution (jobs, resume) or add output (metrics, disk) decide nothing. An option at its default is omitted. A file is
compared by its content.
"""

from __future__ import annotations

import json
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from npucmp.errors import NpucmpError, UsageError
from npucmp.judge.tolerance import DEFAULT_RULES, load_noise, load_tolerances
from npucmp.workflows.selectors import parse_numbers

if TYPE_CHECKING:
    from npucmp.model.saved_report import SavedReport

KEY = "settings"  # of summary.json
SCOPE = frozenset(("step", "rank", "pair"))  # options in which merged reports may differ
_NOT_DECISIVE = frozenset(
    (
        "format graph jobs progress limits disk also replay precheck journal resume executor strict golden on_graph "
        "off_graph explain loss column env config curve repeat_curve repeat limit_memory until settle idle timeout "
        "found reuse announce truth"
    ).split()
)
_SPELLED = {"skip_rules": "skip-rule"}
_SWITCHES = frozenset(("--trust-statistics", "--noise"))  # in `argv`; reports of earlier versions have nothing else
_SHOWN = 60  # characters of a value in a message


def settings_of(options: Any) -> dict[str, Any]:
    """Return the options that decide a verdict and are not at their default, by their names on the command line."""
    found = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name in _NOT_DECISIVE or value is None or value == one.default or value == ():
            continue
        found[_SPELLED.get(one.name, one.name.replace("_", "-"))] = _plain(one.name, value)
    return found


def _plain(name: str, value: Any) -> Any:
    """Return a value for JSON, equal for all spellings of the same choice."""
    try:
        if name in ("step", "rank"):
            return [list(ends) for ends in sorted(parse_numbers(name, value).ranges)]
        if name == "tolerances":
            rows = load_tolerances(Path(value)) if isinstance(value, (str, PathLike)) else value
            return _digest([(row.metric, row.limit, row.dtype, row.op_type) for row in rows])
        if name == "noise":
            return _digest(sorted(load_noise(Path(value)).items()))
    except NpucmpError:  # the file no longer exists
        return str(value)
    if name == "mapping" and isinstance(value, Mapping):
        return _digest(sorted(value.items()))
    if isinstance(value, PathLike) or (isinstance(value, str) and name in ("mapping", "rules", "budget_from")):
        return _content(Path(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sorted(_content(Path(one)) if name == "plugin" else str(one) for one in value)
    return value if isinstance(value, (bool, int, float, str)) else _digest(repr(value))


def _content(path: Path) -> str:
    """Return the hash of a file, or the name of a folder."""
    try:
        return _digest(path.read_bytes())
    except OSError:
        return path.name


def _digest(value: Any) -> str:
    from hashlib import sha256  # few options need it, and it loads OpenSSL

    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return f"sha256 {sha256(data).hexdigest()[:16]}"


def other_settings(before: SavedReport, after: SavedReport) -> str:
    """Describe the first deciding option in which two reports differ; "" if their options are equal."""
    here, there = _shared_settings(before, after), _shared_settings(after, before)
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            return f"{_words(name, here)} in {before.path}, {_words(name, there)} in {after.path}"
    return ""


def require_settings(baseline: SavedReport, kind: Any, parameters: Mapping[str, Any]) -> None:
    """Raise UsageError if a report was made with other deciding options than `parameters`, by name, of this kind."""
    from npucmp.model.saved_report import SavedReport

    options = kind(**{one.name: parameters[one.name] for one in fields(kind) if one.name in parameters})
    stored = baseline.summary.get(KEY)
    this = SavedReport("this run", baseline.command, {KEY: settings_of(options)}, {}, {})
    if isinstance(stored, dict) and (words := other_settings(baseline, this)):
        raise UsageError(refusal(words))


def refusal(words: str) -> str:
    """Return the sentence for two reports that differ in an option."""
    return f"the rules differ: {words}; make both reports with the same options"


def _shared_settings(one: SavedReport, other: SavedReport) -> dict[str, Any]:
    """Return the settings of a report; if one of the reports is of an earlier version, the settings that both versions
    recorded."""
    ours, theirs = one.summary.get(KEY), other.summary.get(KEY)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours
    return _from_rules(one.summary)


def _from_rules(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings derived from the rules, notes and command line of a report."""
    rules, notes, words = (summary.get(name) for name in ("rules", "notes", "argv"))
    own = [row for row in rules if _is_own(row)] if isinstance(rules, list) else []
    found: dict[str, Any] = {"rules": [str(row.get("why")) or str(row) for row in own]} if own else {}
    for note in notes if isinstance(notes, list) else ():
        if str(note).startswith("judged without"):
            found["skip-rule"] = str(note)
    switches = {str(word).partition("=")[0] for word in words} if isinstance(words, list) else set()
    return {**found, **{word[2:]: True for word in switches & _SWITCHES}}


def _is_own(row: Any) -> bool:
    """Return whether a row of rules is not a default rule of npucmp."""
    return isinstance(row, dict) and row.get("why") not in {rule.why for rule in DEFAULT_RULES}


def _words(name: str, settings: Mapping[str, Any]) -> str:
    value, option = settings.get(name), f"--{name[:_SHOWN]}"
    if name not in settings:
        return f"no {option}" if name != "rules" else "no rules of a user"
    if name == "rules":
        return f"rules: {'; '.join(map(str, value if isinstance(value, list) else [value]))[:_SHOWN]}"
    if value is True:
        return option
    if name in ("step", "rank") and isinstance(value, list):
        value = ",".join("-".join(map(str, dict.fromkeys(ends))) for ends in value if isinstance(ends, list))
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{option} {text[:_SHOWN]}"
