"""The page of a rule, as `npucmp rule` prints it."""

from __future__ import annotations

from typing import NamedTuple


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
