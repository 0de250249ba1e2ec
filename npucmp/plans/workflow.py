"""Plan the dump that answers a question (`npucmp plan`), and list what a dump lacks for one (`npucmp show --fit`)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Optional, Sequence

from npucmp.dump.formats import heads, open_head
from npucmp.errors import NpucmpError, UsageError, nearest
from npucmp.model import Run
from npucmp.model.relation import ranks_in_words
from npucmp.plans.dump_config import LEVELS, recorded_operators
from npucmp.plans.frameworks import framework as framework_of
from npucmp.plans.frameworks import names as framework_names
from npucmp.plans.option_fields import PlanFields
from npucmp.plans.plan_result import Planned, Size, estimate_size, fit_to_disk, make_plan
from npucmp.plans.plan_template import Framework
from npucmp.plans.request import DETECTION, QUESTIONS, DumpRequest, Question, Ranges
from npucmp.plans.sufficiency import MissingData, missing
from npucmp.relations.layout_sizes import LayoutSizes, stated_layout
from npucmp.workflows.graphs import with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_three, of_two
from npucmp.workflows.select_runs import RunSelection
from npucmp.workflows.selectors import in_bytes, parse_numbers

WEIGHTS = "weights"  # a question whose records are no dump of operators
MOST = 8  # runs of an earlier dump that are read; the largest of them represents all


@dataclass(frozen=True)
class PlanOptions(PlanFields):
    """The options of a plan."""


def question_of(name: str) -> Question:
    """Return the question of that name. Raises UsageError with the nearest names."""
    if name not in QUESTIONS:
        raise UsageError(f"no question {name!r:.60}", nearest(name, [*QUESTIONS, WEIGHTS]) or [*QUESTIONS])
    return QUESTIONS[name]


@of_three(PlanOptions)
def plan(question: str, framework: str, folder: StrPath, options: PlanOptions) -> Planned:
    """Return the files, lines and commands for a dump that answers a question; nothing is written. Raises UsageError
    for an unknown word, or if the framework cannot make such a dump."""
    if question == WEIGHTS:
        from npucmp.plans.weights_plan import weights_plan

        return weights_plan(framework, os.fspath(folder))
    asks, module = question_of(question), framework_of(framework)
    kind = _kind(asks, module, options)
    ops = (options.ops,) if isinstance(options.ops, str) else tuple(options.ops)
    layout = _layout(asks, module, options)
    steps, (ranks, notes) = _steps(asks, module, kind, options), _ranks(layout, options)
    asks = asks._replace(level=_level(asks, module, options))
    request = DumpRequest(
        asks, options.side, os.fspath(folder), kind, steps, ranks, (), options.model, options.layout or ""
    )
    again = _again(options, ops)
    disk = in_bytes("disk", options.disk)
    if options.before is None:
        if disk is not None:
            raise UsageError("--disk needs --from DUMP, an earlier dump of the same network, of values or statistics")
        planned = make_plan(replace(request, names=module.named(ops)), module, again, None, ())
        return replace(planned, notes=(*planned.notes, *notes))
    runs = _earlier(options, module, request)
    names = _names(runs, ops, os.fspath(options.before)) if ops else ()
    size, names, steps, warnings = _estimate(runs, request, names, disk)
    planned = make_plan(replace(request, names=names, steps=steps), module, again, size, warnings)
    return replace(planned, notes=(*planned.notes, *notes))


@of_two(RunSelection)
def fit(question: str, dump: StrPath, choice: RunSelection) -> tuple[Run, list[MissingData]]:
    """Return what a dump lacks for a question, and the run that was examined: the first selected one, since a dump is
    made with one configuration.

        run, lacks = npucmp.fit("compare", "npu_dump")
        print(run, *(one.words for one in lacks))
    """
    asks = question_of(question)
    context = choice.context(dump)
    known = choice.heads(dump, context)
    run = open_head(known[0], context)
    if "graph" in asks.needs.split() and not run.problem:
        (run,) = with_graphs(dump, [run], dump, (), context)
    return run, missing(asks, run, {head.step for head in known})


def lacks(question: str, dumps: Sequence[StrPath], choice: RunSelection) -> list[str]:
    """Return what dumps lack for a question, one line for all dumps that lack the same. Dumps that lack nothing are
    skipped, and unreadable dumps, which are reported elsewhere."""
    found: dict[str, list[str]] = {}
    for dump in dumps if question in QUESTIONS else ():
        try:
            words = "; ".join(one.words for one in fit(question, dump, choice)[1])
        except NpucmpError:
            continue
        found.setdefault(words, []).append(os.fspath(dump))
    return [
        f"{' and '.join(names)} {'lack' if len(names) > 1 else 'lacks'} data for {question}: {words}"
        for words, names in found.items()
        if words
    ]


def _kind(asks: Question, module: Framework, options: PlanOptions) -> str:
    """Return the kind of data to record. Raises UsageError if the framework cannot record it."""
    if asks.name in module.REFUSED:
        raise UsageError(f"{module.NAME} has no dump for {asks.name}: {module.REFUSED[asks.name]}")
    if options.side not in ("target", "golden"):
        raise UsageError(f"side is {options.side!r:.60}", ["target", "golden"])
    of_reference = options.side == "golden" and asks.name != "fusion-diff"
    known = [kind for kind in asks.kinds if kind in (module.REFERENCE if of_reference else module.KINDS)]
    if options.kind is None:
        watches = asks.name == "overflow" and DETECTION in module.KINDS and not of_reference
        return DETECTION if watches else known[0]
    if options.kind not in asks.kinds:
        raise UsageError(f"{asks.name} needs more than {options.kind}", [f"--{kind}" for kind in asks.kinds])
    if options.kind not in module.KINDS:
        raise UsageError(f"{module.NAME} does not record {options.kind}", [f"--{kind}" for kind in known])
    return options.kind if options.kind in known else known[0]  # the golden of the framework records another kind


def _steps(asks: Question, module: Framework, kind: str, options: PlanOptions) -> Ranges:
    if kind == DETECTION:  # recorded at any step
        return ()
    if options.step is None:
        first, last = asks.steps
        return ((first, max(last, 2 if module.SERVES else 0)),)  # the first pass of a service may be a warm-up
    return parse_numbers("steps", options.step).ranges


def _level(asks: Question, module: Framework, options: PlanOptions) -> str:
    """Return msprobe's level: the stated one, mix with a layout. Raises UsageError if the plan has no such level."""
    if options.level is None:
        return asks.level if options.layout is None else "mix"  # parameters and their gradients have names
    if module.FORMAT != "msprobe":
        raise UsageError(f"{module.NAME} has no levels: --level is an option of msprobe's configuration")
    if options.level not in LEVELS:
        raise UsageError(f"--level is {options.level!r:.60}", [*LEVELS])
    if options.layout is not None and options.level != "mix":
        raise UsageError(f"--layout needs --level mix, not {options.level}: parameters need names")
    return options.level


def _layout(asks: Question, module: Framework, options: PlanOptions) -> Optional[LayoutSizes]:
    """Return the stated layout. Raises UsageError if the question or the framework has no plan for it."""
    sizes = stated_layout("layout", options.layout)
    if sizes is None:
        return None
    if asks.name != "compare":
        raise UsageError(f"{asks.name} does not put ranks together: --layout is an option of plan compare")
    if module.FORMAT != "msprobe":
        of_msprobe = [name for name in framework_names() if framework_of(name).FORMAT == "msprobe"]
        raise UsageError(f"{module.NAME} has no plan for --layout", of_msprobe)
    return sizes


def _ranks(sizes: Optional[LayoutSizes], options: PlanOptions) -> tuple[Ranges, list[str]]:
    """Return the ranks to dump, and notes: with a layout, the target's ranks of one data-parallel replica unless the
    user selects others."""
    selected = parse_numbers("ranks", options.rank).ranges
    if sizes is None:
        return selected, []
    if options.side == "golden":
        return (), ["--ranks selects ranks of the target; all ranks of the golden are recorded"] if selected else []
    if sizes.ranks == 1:
        return selected, []
    ranges = selected or parse_numbers("ranks", ranks_in_words(sizes.replica(0))).ranges
    replicas = _whole_replicas(sizes, ranges)
    count = sizes.size("dp")
    if replicas is None:
        words = f"--ranks {_ranges_text(ranges)}: no whole data-parallel replicas of {sizes.words}"
        return ranges, [f"{words}; tensors that need other ranks remain unknown"]
    if replicas < count:
        words = f"{replicas} of {count} data-parallel replicas: tensors of which the others hold parts remain unknown"
        return ranges, [f"{words}; --ranks 0-{sizes.ranks - 1} records all"]
    return ranges, []


def _whole_replicas(sizes: LayoutSizes, ranges: Ranges) -> Optional[int]:
    """Return the number of data-parallel replicas that these ranks are; None if they are other ranks."""
    if any(high >= sizes.ranks for _, high in ranges):
        return None
    ranks = {rank for low, high in ranges for rank in range(low, high + 1)}
    chosen = {sizes.at(rank).get("dp", 0) for rank in ranks}
    return len(chosen) if len(ranks) * sizes.size("dp") == len(chosen) * sizes.ranks else None


def _again(options: PlanOptions, ops: tuple[str, ...]) -> list[str]:
    """Return the options that the plan of the other side needs too."""
    words = [f"--{options.kind}"] if options.kind else []
    for name, selected in (("steps", options.step), ("ranks", options.rank)):
        if selected is not None:
            words += [f"--{name}", _ranges_text(parse_numbers(name, selected).ranges)]
    words += ["--layout", options.layout] if options.layout is not None else []
    words += ["--level", options.level] if options.level is not None else []
    words += [word for glob in ops for word in ("--ops", glob)]
    words += ["--from", os.fspath(options.before)] if options.before is not None else []
    words += ["--disk", str(options.disk)] if options.disk is not None else []
    return words + (["--model", options.model] if options.model != PlanOptions.model else [])


def _ranges_text(ranges: Ranges) -> str:
    """Return ranges as the user writes them."""
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def _earlier(options: PlanOptions, module: Framework, request: DumpRequest) -> list[Run]:
    """Return the runs of the earlier dump with the requested steps and ranks; all runs if it has none of them."""
    assert options.before is not None
    choice = RunSelection(format=options.format, limits=options.limits)
    context = choice.context(options.before)
    known = heads(options.before, options.format, context)
    if not known:
        raise UsageError(f"{os.fspath(options.before)}: has no run")
    meant = [one for one in known if _has(request.steps, one.step) and _has(request.ranks, one.rank)]
    runs = [open_head(one, context) for one in (meant or known)[:MOST]]
    strange = next((run.format for run in runs if run.format != module.FORMAT), "")
    if strange:
        raise UsageError(
            f"{os.fspath(options.before)}: {strange}, which {module.NAME} does not write; its dumps are {module.FORMAT}"
        )
    return runs


def _has(ranges: Ranges, number: Optional[int]) -> bool:
    return not ranges or any(low <= (number or 0) <= high for low, high in ranges)


def _names(runs: Sequence[Run], globs: Sequence[str], dump: str) -> tuple[str, ...]:
    """Return the operators that match the globs, by the names that the tool expects."""
    found: dict[str, None] = {}
    known = [one for run in runs if (one := recorded_operators(run)) is not None]
    if not known:
        raise UsageError(f"--ops: npucmp cannot request single operators of {runs[0].format}")
    for one in known:
        for operator in one.run.operators:
            if any(fnmatchcase(operator.name, glob) for glob in globs):
                found.setdefault(one.selecting_name(operator))
    names = tuple(name for name in found if name)
    if not names:
        every = [operator.name for operator in runs[0].operators]
        raise UsageError(f"{dump}: no operator fits --ops {' '.join(globs)}", nearest(globs[0], every))
    return names


def _estimate(
    runs: Sequence[Run], request: DumpRequest, names: tuple[str, ...], disk: Optional[int]
) -> tuple[Size, tuple[str, ...], Ranges, tuple[str, ...]]:
    """Return size, names, steps and warnings."""
    steps = _count(request.steps) or len({run.step for run in runs})
    ranks = _count(request.ranks) or len({run.rank for run in runs})
    if disk is None:
        return estimate_size(runs, request.kind, steps, ranks, names), names, request.steps, ()
    found = fit_to_disk(runs, request.kind, steps, ranks, names, disk, 1)
    few = request.steps if found.steps is None else _first(request.steps, found.steps)
    return found.size, found.names, few, found.warnings


def _count(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)


def _first(ranges: Ranges, number: int) -> Ranges:
    """Return the first `number` of these steps; if all steps are requested, the steps from 0."""
    found: list[tuple[int, int]] = []
    for low, high in ranges or ((0, number - 1),):
        left = number - _count(tuple(found))
        if left > 0:
            found.append((low, min(high, low + left - 1)))
    return tuple(found)
