"""The pages of rules, and their text as `npucmp rule` prints it: the list of all rules, and the pages asked for."""

from __future__ import annotations

from itertools import groupby
from typing import Iterator, NamedTuple, Sequence

from npucmp.report.answer import Row

KINDS = {
    "limit": "rounding alone may make an error of this size; the largest bound is the limit",
    "explanation": "the errors of the inputs may make an error of this size",
    "accusation": "a fault exists although the error is small or explained",
    "fact": "a property of a tensor or an operator, on which the search acts",
}
LETTERS = (
    "e: error (rel_l2) of the inputs · u: unit round-off of the working precision · n: number of elements · "
    "K: number of terms · s: share of elements"
)


class Constant(NamedTuple):
    """A numeric constant of a module, whose name has no "npucmp.". The first word of the source is its kind."""

    module: str
    name: str
    value: str
    unit: str
    source: str


class RulePage(NamedTuple):
    """One rule.

    command   the command that applies it
    kind      limit, explanation, accusation or fact; a severity; or the decision that a module makes
    sentence  the rule in a sentence
    text      when it applies, its reasons and its evidence, as the code states them
    facts     further facts by name, such as the advice for a finding
    """

    name: str
    command: str
    kind: str
    sentence: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()
    constants: tuple[Constant, ...] = ()


def rule_list(pages: Sequence[RulePage]) -> Iterator[str]:
    """Yield the lines of the list: a heading for each command and kind, and a line for each rule."""
    for (command, kind), group in groupby(pages, _heading):
        rows = [*group]
        width = max(len(page.name) for page in rows)
        yield "  ".join(filter(None, ["npucmp", command, kind, KINDS.get(kind, "")]))
        yield from (f"  {page.name:<{width}}  {page.sentence}" for page in rows)
        yield ""
    yield "npucmp rule NAME prints the reasons, limits and constants of a rule"


def _heading(page: RulePage) -> tuple[str, str]:
    """Return command and kind; rules of check and precheck are sorted by subject, not by severity."""
    return page.command, "" if page.command in ("check", "precheck") else page.kind


def rule_text(page: RulePage) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a page, and whether each is a message, which may be translated."""
    yield "  ".join([page.name, page.command, page.kind]), False
    yield page.sentence, True
    if page.text:
        yield "", False
        yield from ((line, False) for line in page.text.splitlines())
    if page.facts:
        yield "", False
    for name, text in page.facts:
        yield f"{name}  {text}", True
    if page.constants:
        yield "", False
        width = max(len(one.name) for one in page.constants)
        for one in page.constants:
            yield f"{one.name:<{width}}  {one.value}  {one.unit}: {one.source}", False
    yield "", False


def rules_object(pages: Sequence[RulePage]) -> Row:
    """Return the pages as objects."""
    return {
        "rules": [
            {
                **page._asdict(),
                "facts": dict(page.facts),
                "constants": [one._asdict() for one in page.constants],
            }
            for page in pages
        ]
    }
