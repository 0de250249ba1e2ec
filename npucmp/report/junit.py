"""Write JUnit XML for continuous integration: a test case for each suspect and for each rule that was evaluated.

A suspect is a failure. A suspect in the baseline is skipped, and so is a rule that could not be decided. If no case
explains an exit status other than 0, a case named "verdict" does. Source: the schema that Jenkins and GitLab accept.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from npucmp.report.answer import Answer, Suspect
from npucmp.report.sanitise import visible

_FORBIDDEN = re.compile("[\ufffe\uffff]")  # by XML 1.0; control characters are already made visible
KINDS = ("failure", "error", "skipped")


def content(answer: Answer) -> bytes:
    """Return the file, one test suite."""
    result = answer.result
    suite = ElementTree.Element("testsuite", name=f"npucmp {result.command}", time=f"{result.seconds:.3f}")
    for one in answer.suspects.first:
        name = "  ".join(filter(None, (one.rule, f"{one.op} {one.slot}".strip(), one.where)))
        kind = "skipped" if one.known or one.excused else "failure"
        known = "known: in the baseline; " if one.known else ""
        _case(suite, result.command, name or one.word, kind, f"{known}{one.word}: {_reasons(one, '; ')}", _body(one))
    accused = {one.rule for one in answer.suspects.first}
    for case in answer.cases():
        if case.name not in accused:
            _case(suite, result.command, case.name, "skipped" if case.skipped else "", case.skipped)
    failing = suite.find("testcase/failure") is not None
    status = result.exit_status
    if not len(suite) or (status == 1 and not failing) or status not in (0, 1):
        kind = {0: "", 1: "failure"}.get(status, "error")
        _case(suite, result.command, "verdict", kind, f"{answer.word}: {answer.sentence}")
    return _document(suite)


def error(command: str, message: str, status: int) -> str:
    """Return the file of a command that failed: one test case."""
    suite = ElementTree.Element("testsuite", name=f"npucmp {command}", time="0.000")
    _case(suite, command, "verdict", "error", message)
    return _document(suite).decode()


def _document(suite: ElementTree.Element) -> bytes:
    """Return the file of one test suite, with the number of its cases."""
    counts = {f"{kind}s" if kind != "skipped" else kind: len(suite.findall(f"testcase/{kind}")) for kind in KINDS}
    for name, count in {"tests": len(suite), **counts}.items():
        suite.set(name, str(count))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(suite: ElementTree.Element, command: str, name: str, kind: str, message: str, body: str = "") -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"npucmp.{command}", name=_text(name))
    if kind:
        element = ElementTree.SubElement(case, kind, message=_text(message))
        element.text = _text(body, lines=True) or None


def _reasons(one: Suspect, between: str) -> str:
    return between.join(evidence.sentence() for evidence in one.evidence)


def _body(one: Suspect) -> str:
    return "\n".join(visible(words) for words in (_reasons(one, "; "), one.line) if words)


def _text(words: str, lines: bool = False) -> str:
    """Make control characters and lone surrogates visible, as on the screen, and escape what XML forbids."""
    shown = "\n".join(map(visible, words.split("\n"))) if lines else visible(words)
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", shown)
