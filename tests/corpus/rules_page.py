"""The reference page of rules and constants: `python -m tests.corpus.rules_page > docs/rules.md`.

The page consists of the docstrings of npucmp/localise/rules/ and of the modules that decide beside them, and of the
constants with their units and sources (constants.py).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from itertools import groupby
from typing import Iterator, Optional, Sequence

import click

from npucmp.localise.rule_context import ErrorRule
from npucmp.localise.rules import RULES
from tests.corpus.constants import KINDS, ROOT, SOURCES, Constant, constants, measured, pairs_measured

PAGE = ROOT / "docs" / "rules.md"
HEAD = """# Rules and constants

This page is generated from the code by `python -m tests.corpus.rules_page > docs/rules.md`. It lists the rules that set
the limit of a tensor, explain an error or accuse an operator, the modules that decide beside them, and every numeric
constant that decides a verdict. [localisation.md](localisation.md) describes the search that applies them.
`npucmp compare --list-rules` prints the sentence of each rule. `--skip-rule NAME` (repeatable) runs without a rule, and
a note names it. Rules classify an operator by its traits (`npucmp/model/optypes.py`), never by its name, so that one
operator gets the same verdict under the names of every framework.

In formulas, e is the largest error (rel_l2) of the tensors that an operator reads, u the unit round-off of the working
precision, n a number of elements and K a number of terms. "Clean" pairs are dumps of two runs without a fault.
"""
RULE_KINDS = {
    "limit": ("Limits", "Rounding alone may make an error of this size. The largest bound is the limit of the tensor."),
    "explanation": (
        "Explanations",
        "The errors of the inputs may make an error of this size. An error within any bound is explained; the report\n"
        "names the rule with the smallest bound that suffices.",
    ),
    "accusation": (
        "Accusations",
        "A fault exists although the error is small or explained. One rule is enough: the tensor is `diverged`.",
    ),
    "fact": ("Facts", "A property of a tensor or an operator, on which the search acts."),
}
MODULES = {
    "Pairs of operators": "align.name align.order align.content_match align.updates align.fused",
    "Precision of a tensor": "judge.precision judge.tolerance localise.effective_precision localise.value_types "
    "judge.products measure.own_products measure.equal_steps measure.constant_rows measure.hidden_masks",
    "Producers of tensors": "flow.edges flow.contents flow.execution_order localise.dead_ends localise.sources",
    "The search": "localise.search localise.gaps localise.explanations localise.intervals localise.conditioning "
    "localise.parameter_drift localise.thresholds localise.autograd_nodes localise.golden_weights "
    "localise.recomputation localise.evidence localise.gap_evidence",
    "Coverage": "localise.coverage localise.next_dump",
    "Statistics": "localise.stat_shift localise.stat_test localise.stat_suspects",
    "Ranks": "flow.collectives localise.multi_rank localise.remote_inputs localise.rank_digest "
    "localise.rank_coordinates",
    "Overflows": "overflow_events.events overflow_events.masked_infinity",
    "Repeated runs": "judge.bitwise localise.rerun.causes localise.rerun.table",
}
EFFECTS = (
    "The columns *at half* and *at twice* show the effect of another value on {faults} pairs with a fault and {clean} "
    "clean ones: `-2 right`, two faults less whose operator and cause are named; `+1 alarms`, one more clean pair that "
    "is not silent; `others`, one wrong answer for another. With so few pairs, `nothing` does not show that a constant "
    "decides nothing. `python -m tests.corpus --sensitivity NAME` measures one constant on more pairs."
)
WIDTH = 120
COLUMNS = re.compile(r"^\s{2,}|\S {3,}\S")  # an indented line, or a line of two columns


def page(rows: Optional[Sequence[Constant]] = None) -> str:
    """The page in Markdown, with the constants as they stand in the code."""
    text = "\n".join([HEAD, *_rules(), *_modules(), *_constants(constants() if rows is None else rows)])
    return re.sub(r"\n{3,}", "\n\n", text)


def _rules() -> Iterator[str]:
    known: dict[str, str] = {}  # docstring → the first rule that has it
    for kind, (title, words) in RULE_KINDS.items():
        chosen = [rule for rule in RULES if rule.kind == kind]
        yield from (f"## {title}", "", words, "", "| rule | in a sentence |", "|---|---|")
        yield from (_row(f"`{rule.name}`", rule.why) for rule in chosen)
        yield ""
        for rule in chosen:
            text = _docstring_of(rule)
            first = known.setdefault(text, rule.name)
            text = text if first == rule.name else f"See [`{first}`](#{first})."
            yield from (f"### `{rule.name}`", "", *_markdown(text), "")


def _docstring_of(rule: ErrorRule) -> str:
    """The docstring of the module of a rule; of a module with a list of rules, the entry of this rule."""
    text = _docstring(rule.applies.__module__)
    entry = re.search(rf"^{rule.name} +(.*(?:\n +.*)*)", text, re.MULTILINE)
    return textwrap.fill(f"{entry[1][0].upper()}{' '.join(entry[1].split())[1:]}.", WIDTH) if entry else text


def _modules() -> Iterator[str]:
    for title, names in MODULES.items():
        yield from (f"## {title}", "")
        for name in names.split():
            yield from (f"### `{name.replace('.', '/')}.py`", "", *_markdown(_docstring(f"npucmp.{name}")), "")


def _docstring(module: str) -> str:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _markdown(docstring: str) -> Iterator[str]:
    """A docstring with its indented lines and its lines of columns in fences."""
    for is_fenced, lines in groupby(docstring.split("\n"), lambda line: bool(COLUMNS.search(line))):
        block = "\n".join(lines).strip("\n")
        yield f"\n```text\n{textwrap.dedent(block)}\n```\n" if is_fenced else block


def _constants(some: Sequence[Constant]) -> Iterator[str]:
    rows = [one for one in some if one.kind != "work"]
    said = measured(rows)
    counts, changes = Counter(one.kind for one in rows), Counter(said[one].kind for one in rows)
    faults, clean = pairs_measured()
    yield from ("## Constants", "", f"{len(rows)} numbers decide something. The first word of a source shows its kind:")
    yield from ("", "| source | constants | meaning |", "|---|---|---|")
    yield from (_row(kind, str(counts[kind]), why) for kind, why in SOURCES.items() if kind != "work")
    yield from ("", textwrap.fill(EFFECTS.format(faults=faults, clean=clean), WIDTH), "")
    yield from ("| constants | at half and at twice the value |", "|---|---|")
    yield from (_row(str(changes[kind]), why) for kind, why in KINDS.items())
    yield from ("", "| constant | value | unit | at half | at twice | source |", "|---|---|---|---|---|---|")
    for one in rows:
        yield _row(f"`{one.module}.{one.name}`", f"`{one.value}`", one.unit, *said[one], one.source)
    yield ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    click.echo(page(), nl=False)
