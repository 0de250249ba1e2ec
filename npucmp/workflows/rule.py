"""Describe the rules by name: those of compare, overflow, rerun-diff, check, precheck and parity, with their constants.

The sentences, reasons and constants are those of the modules that apply the rules: docstrings, comments of constants.
"""

from __future__ import annotations

import dis
import inspect
import textwrap
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, Callable, Iterator, Optional, Sequence

from npucmp.errors import UsageError, nearest
from npucmp.localise.rules import RULES
from npucmp.report.rule_page import Constant, RulePage
from npucmp.workflows.constants import WORK, ModuleText

WIDTH = 120
NEAR = 0.6  # likeness of a suggestion
DECISIONS = (  # command, what they decide, and the modules that decide it beside the rules
    ("compare", "pairs of operators", (
        "npucmp.align npucmp.align.name npucmp.align.order npucmp.align.content_match npucmp.align.content_hash "
        "npucmp.align.updates npucmp.align.fused npucmp.align.pairing_coverage npucmp.align.shape_match"
    ).split()),
    ("compare", "frameworks", (
        "npucmp.relations.frameworks.by_flow npucmp.relations.frameworks.rank_sequence "
        "npucmp.relations.frameworks.by_name.alignment npucmp.relations.frameworks.by_name.slots "
        "npucmp.relations.frameworks.by_name.weight_match npucmp.relations.frameworks.turned_axes "
        "npucmp.relations.frameworks.contents.axis_orders npucmp.relations.frameworks.contents.block_orders "
        "npucmp.relations.frameworks.contents.matches "
        "npucmp.relations.frameworks.contents.content npucmp.relations.frameworks.contents.content_alignment "
        "npucmp.relations.frameworks.contents.content_graph npucmp.relations.frameworks.contents.content_pairs "
        "npucmp.relations.frameworks.contents.learned_types "
        "npucmp.relations.frameworks.contents.operator_pairs "
        "npucmp.relations.frameworks.contents.operator_draft "
        "npucmp.relations.frameworks.contents.similarity npucmp.relations.frameworks.contents.slices "
        "npucmp.relations.frameworks.contents.structure_match npucmp.relations.frameworks.contents.value_match "
        "npucmp.relations.frameworks.contents.weight_anchors"
    ).split()),
    ("compare", "precision of a tensor", (
        "npucmp.judge.precision npucmp.judge.tolerance npucmp.localise.effective_precision "
        "npucmp.judge.products npucmp.measure.own_products npucmp.measure.equal_steps "
        "npucmp.measure.constant_rows npucmp.measure.hidden_masks npucmp.model.moments"
    ).split()),
    ("compare", "producers of tensors", (
        "npucmp.flow.edges npucmp.flow.contents npucmp.flow.execution_order npucmp.localise.golden_graph "
        "npucmp.localise.sources"
    ).split()),
    ("compare", "the search", (
        "npucmp.localise.search npucmp.localise.gaps npucmp.localise.explanations npucmp.localise.intervals "
        "npucmp.localise.conditioning npucmp.localise.parameter_drift npucmp.localise.thresholds "
        "npucmp.localise.autograd_nodes npucmp.localise.golden_weights npucmp.localise.recomputation "
        "npucmp.localise.evidence npucmp.localise.gap_evidence npucmp.localise.alignment_confidence "
        "npucmp.localise.rule_context npucmp.localise.seen_errors npucmp.localise.explained_rows"
    ).split()),
    ("compare", "coverage", (
        "npucmp.localise.coverage npucmp.localise.next_dump"
    ).split()),
    ("compare", "evidence", (
        "npucmp.localise.element_order npucmp.localise.overwritten_memory npucmp.localise.root_values "
        "npucmp.relations.tokens.token_origin npucmp.judge.routing"
    ).split()),
    ("compare", "weights", (
        "npucmp.relations.weights.weight_roots npucmp.relations.weights.weight_faults "
        "npucmp.relations.weights.next_update npucmp.localise.update_roots npucmp.localise.updated_parameters "
        "npucmp.relations.weights.element_ranks npucmp.relations.weights.expert_order npucmp.relations.weights.pairing "
        "npucmp.relations.weights.free_numbers npucmp.relations.weights.limits npucmp.relations.weights.low_rank "
        "npucmp.relations.weights.parts npucmp.relations.weights.role npucmp.relations.weights.sample "
        "npucmp.relations.weights.training_states"
    ).split()),
    ("compare", "statistics", (
        "npucmp.localise.stat_columns npucmp.localise.stat_test npucmp.measure.recorded_stats"
    ).split()),
    ("compare", "ranks", (
        "npucmp.flow.collectives npucmp.localise.root_order npucmp.localise.remote_inputs "
        "npucmp.localise.rank_digest npucmp.relations.ranks.placement npucmp.relations.frameworks.rank_names "
        "npucmp.relations.ranks.part_errors npucmp.relations.ranks.rank_facts npucmp.relations.ranks.rank_factor "
        "npucmp.relations.ranks.rank_origin "
        "npucmp.relations.held_values npucmp.relations.common_sequence "
        "npucmp.relations.ranks.assembled_run npucmp.relations.ranks.batch_rows "
        "npucmp.relations.ranks.cache_blocks npucmp.relations.ranks.lane_match npucmp.relations.ranks.layer_mates "
        "npucmp.relations.ranks.placement_choice npucmp.relations.ranks.placement_search "
        "npucmp.relations.ranks.rank_partners npucmp.relations.ranks.rank_shares npucmp.relations.ranks.row_order "
        "npucmp.relations.ranks.split_updates npucmp.relations.ranks.batch_size"
    ).split()),
    ("compare", "tokens", (
        "npucmp.relations.tokens.token_axes npucmp.relations.tokens.token_chains "
        "npucmp.relations.tokens.token_evidence npucmp.relations.tokens.token_index "
        "npucmp.relations.tokens.token_lengths npucmp.relations.tokens.token_padding"
    ).split()),
    ("compare", "three runs", (
        "npucmp.three_runs.judgement npucmp.three_runs.sums"
    ).split()),
    ("overflow", "overflows", (
        "npucmp.overflows.events"
    ).split()),
    ("rerun-diff", "repeated runs", (
        "npucmp.judge.bitwise npucmp.reruns.causes npucmp.reruns.table "
        "npucmp.reruns.pattern"
    ).split()),
)  # fmt: skip
CANDIDATES = (
    "temperature truncation other_token other_number divided seen_tokens biased_tokens context experts free"
).split()  # modules of npucmp.token_parity.candidates


def rule(names: str | Sequence[str] = ()) -> tuple[RulePage, ...]:
    """Return the pages of the rules whose names match a name or glob; all without one. Raise UsageError for a name that
    no rule has.

    [page.sentence for page in npucmp.rule("growth")]
    """
    every = [
        page for describe in (_of_compare, _of_modules, _of_check, _of_precheck, _of_parity) for page in describe()
    ]
    asked = (names,) if isinstance(names, str) else tuple(names)
    for name in asked:
        if not any(_fits(page, name) for page in every):
            near = nearest(name, [page.name for page in every], cutoff=NEAR)
            last = [page.name for page in every if name.lower() in page.name.lower()]
            raise UsageError(f"no rule {name!r:.60}", near or last[:3])
    return tuple(page for page in every if not asked or any(_fits(page, name) for name in asked))


def _fits(page: RulePage, name: str) -> bool:
    return fnmatchcase(page.name, name)


def _of_compare() -> Iterator[RulePage]:
    for one in RULES:
        text = inspect.cleandoc(one.text or one.decide.__doc__ or "")
        if "\n" not in one.text:  # one with lines of its own has a table
            text = "\n\n".join(textwrap.fill(paragraph, WIDTH) for paragraph in text.split("\n\n"))
        read = [constant for part in (one.decide, one.when) for constant in _constants(part.__module__, part)]
        for module, name in (stated.rsplit(".", 1) for stated in one.states):
            read += [constant for own, constant in _of_text(f"npucmp.{module}").items() if own == name]
        yield RulePage(one.name, "compare", one.kind, one.why, text, (), tuple(dict.fromkeys(read)))


def _of_modules() -> Iterator[RulePage]:
    for command, kind, modules in DECISIONS:
        for module in modules:
            yield _of_module(module, command, kind)


def _of_module(module: str, command: str, kind: str, name: str = "") -> RulePage:
    text = _docstring(module)
    sentence, _, rest = text.partition("\n\n")
    first, _, second = " ".join(sentence.split()).partition(". ")
    text = "\n\n".join(filter(None, [textwrap.fill(second, WIDTH), rest]))
    name = name or module.removeprefix("npucmp.")
    return RulePage(name, command, kind, first.rstrip("."), text, (), _constants(module))


def _of_check() -> Iterator[RulePage]:
    from npucmp.health.rules import RULES as CHECK_RULES

    for one in CHECK_RULES:
        facts = {
            "limit": "" if one.limit is None else f"{one.limit:g}",
            "needs": ", ".join(one.needs),
            "advice": one.remedy,
            "source": one.source,
            "settings": ", ".join(one.words),
            "off": "runs only with --only, or a row of --rules" if one.off else "",
        }
        yield _with_facts(one.name, "check", one.severity, one.says, one.find, facts)


def _of_precheck() -> Iterator[RulePage]:
    from npucmp.comparability.registry import ROWS

    for row in ROWS:
        yield _with_facts(row.name, "precheck", row.severity, row.asks, row.compare, {"advice": row.remedy})


def _with_facts(
    name: str, command: str, kind: str, sentence: str, function: Callable[..., Any], facts: dict[str, str]
) -> RulePage:
    told = tuple((word, text) for word, text in facts.items() if text)
    text = inspect.getdoc(function) or "" if isinstance(function, FunctionType) else ""
    return RulePage(name, command, kind, sentence, text, told, _constants(function.__module__, function))


def _of_parity() -> Iterator[RulePage]:
    from npucmp.token_parity.rules import RULES as FACTS

    for name in FACTS:
        yield _of_module(f"npucmp.token_parity.rules.{name}", "parity", "fact of the records", f"parity.{name}")
    for name in CANDIDATES:
        yield _of_module(f"npucmp.token_parity.candidates.{name}", "parity", "candidate", f"parity.{name}")


def _docstring(module: str) -> str:
    return inspect.getdoc(import_module(module)) or ""


def _constants(module: str, function: Optional[Callable[..., Any]] = None) -> tuple[Constant, ...]:
    """Return the constants of a module that decide, and those that it imports; with a function, those that it reads."""
    found = _of_text(module)
    read = None if function is None else _names_read(function)
    return tuple(
        one for name, one in found.items() if not one.source.startswith(WORK) and (read is None or name in read)
    )


@cache
def _of_text(module: str) -> dict[str, Constant]:
    """Return the constants of a module by their names in it; {} if its text is not installed."""
    try:
        text = ModuleText(module, inspect.getsource(import_module(module)))
    except OSError:
        return {}
    found = {name: Constant(*text.constant(name, value, statement)) for name, value, statement in text.statements}
    for origin, name, own in text.imports:
        if imported := _of_text(origin).get(name):
            found[own] = imported
    return found


def _names_read(function: Callable[..., Any]) -> set[str]:
    """Return the global names that a function reads, and the functions of its module that it calls."""
    read: set[str] = set()
    calls = [function]
    while calls:
        called = calls.pop()
        code = getattr(called, "__code__", None)
        new = _names(code) - read if isinstance(code, CodeType) else set()
        read |= new
        around = getattr(called, "__globals__", {})
        calls += [around[name] for name in new if isinstance(around.get(name), FunctionType)
                  and around[name].__module__ == function.__module__]  # fmt: skip
    return read


def _names(code: CodeType) -> set[str]:
    """Return the global names of a function and of the functions inside it, without those of attributes."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}.union(*inner)
