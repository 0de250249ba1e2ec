"""Check the health of one run: load → one pass → rules → CheckResult."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError
from npucmp.health.curves.curve import Log
from npucmp.health.curves.log_reader import read_log
from npucmp.health.evaluate import RunExamination, examine
from npucmp.health.facts import Health
from npucmp.health.gather import ReadFacts, build
from npucmp.health.measured_run import measured_tensors, run_network
from npucmp.health.option_fields import CheckFields
from npucmp.health.rule import Rule, own_rules
from npucmp.health.rules import RULES
from npucmp.health.rules.activations import range_
from npucmp.health.rules.locations import range_in
from npucmp.health.settings import CheckSettings, load_settings
from npucmp.health.table import notes_of, parameter_rows, spreads
from npucmp.measure.executor import default_jobs
from npucmp.model import ImageBatch, Run
from npucmp.model.check_finding import CheckResult, RuleWords
from npucmp.model.dtypes import size_of
from npucmp.model.tensor_detail import image_axes
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_one
from npucmp.workflows.select_runs import ProgressMeter, RunSelection
from npucmp.workflows.unused_options import unfit_globs


@dataclass(frozen=True)
class CheckOptions(CheckFields, RunSelection):
    """The options of a check."""

    def all_rules(self) -> tuple[Rule, ...]:
        """Return the rules of npucmp, then the user's own rules."""
        return (*RULES, *own_rules(self.plugin, self.plugins, RULES))

    def settings(self, rules: Sequence[Rule]) -> CheckSettings:
        found = CheckSettings() if self.rules is None else load_settings(self.rules, rules)
        values = {name: getattr(self, name) for name in ("phase", "start", "fail_on")}
        values = {name: value for name, value in values.items() if value is not None}
        found = replace(found, only=tuple(self.only) or found.only, skip=(*found.skip, *self.skip), **values)
        found.require_known(rules)
        return found

    def log(self) -> Optional[Log]:
        """Return the curves of the file `loss`, with the training loss identified."""
        if self.loss is None:
            return None
        found = read_log(self.loss, ReadContext(self.limits))
        return found.with_loss(self.column)


@of_one(CheckOptions)
def check(dump: StrPath, options: CheckOptions) -> CheckResult:
    """Evaluate all rules on a dump, with all its steps and ranks.

    Raises NpucmpError if there is nothing to check. Errors of single tensors and rules are in the result.
    """
    rules = options.all_rules()
    settings, log = options.settings(rules), options.log()
    started = time.monotonic()
    context = options.context(dump)
    opened = options.runs(dump, context)
    runs = [run for run in opened if not run.problem]
    runs = with_graphs(dump, runs, dump, load_named_graphs(options.graph, runs, context), context)
    notes = unfit_globs(options, runs)
    healths: tuple[Health, ...] = ()
    partial = False
    try:
        healths = healths_of(dump, runs, options, settings, context)
    except KeyboardInterrupt:
        partial = True
    if not partial and not any(step.operators for one in healths for step in one.steps):
        raise UsageError(f"nothing to check: {options.nothing()}")
    healths = (*(replace(one, log=log) for one in healths[:1]), *healths[1:])
    found = examine(healths, rules, settings) if not partial else RunExamination((), ())
    result = check_result(dump, healths, found, settings, log)
    return replace(
        result,
        broken=tuple(("dump", run) for run in opened if run.problem),
        notes=(*notes, *dict.fromkeys(note for run in runs for note in run.notes), *result.notes),
        images=_images(healths, context) if not partial else None,
        seconds=time.monotonic() - started,
        partial=partial,
    )


def check_result(
    dump: StrPath,
    healths: Sequence[Health],
    found: RunExamination,
    settings: CheckSettings,
    log: Optional[Log],
) -> CheckResult:
    """Return the result of an examination of the facts of all ranks."""
    tensors = [tensor for one in healths for tensor in one.tensors()]
    lost = [one for one in tensors if one.figures.problem]
    measured, unmeasured = measured_tensors(healths)
    return CheckResult(
        paths=(str(dump),),
        notes=(*(log.notes if log else ()), *notes_of(healths)),
        bytes_read=sum(size_of(one.dtype, one.shape) for one in tensors if one.figures.counted),
        runs=tuple(run for one in healths for run in one.runs),
        symptoms=found.symptoms,
        decisions=found.decisions,
        parameters=tuple(row for one in healths for row in parameter_rows(one)),
        spreads=tuple(row for one in healths for row in spreads(one)),
        unreadable=tuple(f"{one.operator.name} {one.slot or one.ref.label}: {one.figures.problem}" for one in lost),
        tensors=sum(one.figures.extremes is not None for one in tensors),
        training=any(one.training for one in healths),
        starts=healths[0].starts if healths else "unknown",
        fail_on=settings.fail_on,
        measured=measured,
        unmeasured=unmeasured,
        network=run_network(healths[0]) if healths else None,
        curves=tuple(one.drawn_points() for one in (log.loss, log.validation) if one is not None) if log else (),
    )


def _images(healths: Sequence[Health], context: ReadContext) -> Optional[ImageBatch]:
    """Return pictures of the first input that looks like a batch of images; three channels come before one."""
    held = (tensor for health in healths[:1] for step in health.steps[:1] for one in step.operators
            if not one.is_gradient for tensor in one.inputs)  # fmt: skip
    images = [
        one for one in held if one.ref.file and image_axes(one.dtype, one.shape) and not one.slot.startswith("param")
    ]
    if not images:
        return None
    from npucmp.measure.images import image_batch

    first = next((one for one in images if 3 in (one.shape[1], one.shape[3])), images[0])
    found = image_batch([first.ref], ["dump"], context)
    return None if found is None else found._replace(op=first.operator.name, slot=first.slot)


def healths_of(
    dump: StrPath,
    runs: Sequence[Run],
    options: RunSelection,
    settings: CheckSettings,
    context: ReadContext,
    facts: Optional[ReadFacts] = None,
) -> tuple[Health, ...]:
    """Return the facts of runs, rank by rank, in one pass over their tensors; the user's settings override them. With
    `facts` of earlier passes, only new runs are read."""
    total = sum(
        size_of(t.dtype, t.shape) for run in runs for op in options.operators_of(run) for t in op.tensors if t.file
    )
    meter = ProgressMeter(options.progress, total)
    made = build(
        str(dump),
        runs,
        options.wants,
        options.jobs or default_jobs(),
        context,
        meter.add,
        settings.expect,
        range_in(settings.of(range_).more),  # the only rule whose settings change the counts of the pass
        facts,
    )
    known: dict[str, object] = {}
    if settings.phase != "auto":
        known["training"] = settings.phase == "train"
    if settings.start != "auto":
        known["starts"] = settings.start
    made = tuple(replace(one, **known) for one in made)  # type: ignore[arg-type]
    return tuple(replace(one, ranks=made) for one in made)


def rules_of(options: CheckOptions = CheckOptions()) -> list[RuleWords]:
    """Return all rules of a check, as `npucmp check --list` shows them.

    [rule.name for rule in npucmp.check_rules() if rule.severity == "error"]
    """
    every = options.all_rules()
    return [RuleWords(one.name, one.severity, one.limit, ", ".join(one.needs), one.says, one.off) for one in every]
