"""JUnit XML of every command, with whatever names dumps have."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from npucmp.model import Report
from npucmp.report import answer_of, junit
from tests.reports import named

HOSTILE = "\x00\x1b[31m\ud800\ufffe\u202e]]><failure/>&amp;\"'\r\n=1"


def suite(answer):
    data = junit.content(answer)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", data.decode("utf-8"))
    return ElementTree.fromstring(data).find("testsuite")


def counts(found):
    return {name: int(found.get(name)) for name in ("tests", "failures", "errors", "skipped")}


def test_names_and_reasons_stay_text():
    found = suite(answer_of(named(HOSTILE, because=HOSTILE, stack=HOSTILE)))
    shown = r"\x00\x1b[31m\ud800\ufffe\u202e]]><failure/>&amp;" + "\"'" + r"\x0d\x0a=1"
    assert [case.get("name") for case in found] == [f"{shown} output:0"]
    assert found.find("testcase/failure").get("message") == f"BORN: {shown}"
    assert counts(found) == {"tests": 1, "failures": 1, "errors": 0, "skipped": 0}


def test_the_verdict_where_nothing_else_tells_it():
    """Nothing was found, nothing could be decided, it was interrupted, or what differs is no suspect's."""
    for result, told in (
        (Report(("a", "b")), ["error"]),
        (Report(("a", "b"), partial=True), ["error"]),
        (replace(named("op"), known=True, comparisons=()), ["error"]),
        (Report(("a", "b"), strict=True, unpaired=(("target", named("op").comparisons[0].target),)), ["failure"]),
    ):
        found = suite(answer_of(result))
        assert [(case.get("name"), [one.tag for one in case]) for case in found] == [("verdict", told)]
