"""Write SARIF 2.1.0, which code hosts and editors show at the source line: a result for each suspect.

A rule is the cause (BORN, GAP …), or the rule of a check. A result has the level `error` if it causes exit status 1,
`warning` if it does not, and a suppression if the baseline contains it. An undecided or interrupted run is a
notification of the invocation. Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Optional

from npucmp.report.answer import Answer, Row, Suspect
from npucmp.report.json import strict
from npucmp.report.sanitise import visible
from npucmp.report.source_place import source_place
from npucmp.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"  # the base of relative paths: the checkout


def content(answer: Answer) -> bytes:
    """Return the log file with one run."""
    result = answer.result
    rules = sorted({_rule(one) for one in answer.suspects.first})
    found = {
        "results": [_result(one, answer, rules) for one in answer.suspects.first],
        "properties": {"command": result.command, "outcome": answer.word, "sentence": visible(answer.sentence)},
    }
    descriptions = [_description(one, answer) for one in rules]
    return _log(result.exit_status, f"{answer.word}: {answer.sentence}", descriptions, found).encode()


def error(command: str, message: str, status: int) -> str:
    """Return the log file of a command that failed."""
    return _log(status, message, [], {"results": [], "properties": {"command": command}})


def _log(status: int, words: str, rules: list[Row], found: Row) -> str:
    """Return a log file with one run; `words` are a notification unless the run decided."""
    invocation: Row = {"executionSuccessful": status in (0, 1), "exitCode": status}
    if status not in (0, 1):
        message = {"text": visible(words)}
        invocation["toolExecutionNotifications"] = [{"level": "error", "message": message}]
    driver = {"name": "npucmp", "version": __version__, "semanticVersion": _semantic(__version__), "rules": rules}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "columnKind": "unicodeCodePoints", **found}
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(strict(log), indent=1, ensure_ascii=True) + "\n"


def _semantic(version: str) -> str:
    """Return a version of PEP 440 as Semantic Versioning 2.0 spells it: 0.2.0.dev0 is 0.2.0-dev0."""
    numbers = version.split(".")
    plain = [one for one in numbers if one.isdigit()][:3]
    more = ".".join(one for one in numbers if not one.isdigit())
    return ".".join([*plain, "0", "0"][:3]) + (f"-{more}" if more else "")


def _rule(one: Suspect) -> str:
    return one.rule or one.cause or one.word


def _description(rule: str, answer: Answer) -> Row:
    meaning = answer.meaning.get(rule, "")
    return {"id": rule, **({"shortDescription": {"text": visible(meaning)}} if meaning else {})}


def _result(one: Suspect, answer: Answer, rules: list[str]) -> Row:
    reasons = "; ".join(evidence.sentence() for evidence in one.evidence)
    name = " ".join(filter(None, (one.op, one.slot)))
    causes_failure = answer.result.exit_status == 1 and not one.known and not one.excused
    found: Row = {
        "ruleId": _rule(one),
        "ruleIndex": rules.index(_rule(one)),
        "level": "error" if causes_failure else "warning",
        "message": {"text": visible(f"{one.word} {name}: {reasons}" if reasons else f"{one.word} {name}")},
        "locations": [_location(one)],
        "partialFingerprints": {"npucmp/v1": _fingerprint(_rule(one), one.op, one.slot)},
        "properties": {
            "place": one.place,
            "where": one.where,
            "op_type": visible(one.op_type),
            "golden": visible(one.golden),
        },
    }
    if one.known:
        found["suppressions"] = [{"kind": "external", "justification": "the baseline contains it"}]
    return found


def _location(one: Suspect) -> Row:
    named = {
        "name": visible(one.op.rpartition("/")[2] or one.op),
        "fullyQualifiedName": visible(one.op),
        "kind": "function",
    }
    location: dict[str, Any] = {"logicalLocations": [named]} if one.op else {}
    place = source_place(one)
    if place is not None:
        artifact: dict[str, Optional[str]] = {"uri": place.uri, **({"uriBaseId": ROOT} if place.is_relative else {})}
        location["physicalLocation"] = {"artifactLocation": artifact, "region": {"startLine": place.line}}
    return location


def _fingerprint(*words: str) -> str:
    """Return a hash that stays the same from run to run, by which a code host recognises a result."""
    return sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]
