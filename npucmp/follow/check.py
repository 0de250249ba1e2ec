"""Check a run that is still going: each complete step is read once, and all rules see the steps so far.

The facts of earlier steps are kept, not their values. Only parameters and gradients of the step before a new one are
read again, because the rules of updates compare their values. Facts of the first FIRST and the latest steps are kept,
KEPT in all. A finding in a step that is no longer kept stays in the result.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Optional

from npucmp.dump.limits import ReadContext
from npucmp.errors import DumpError, NpucmpError, UsageError
from npucmp.follow.step_findings import StepFindings
from npucmp.follow.step_watch import CompleteStep, Number, StepWatch, step_order
from npucmp.follow.workflow import complete_steps, reasons, require_times
from npucmp.health.curves.curve import Log
from npucmp.health.evaluate import RunExamination, examine, order_symptoms
from npucmp.health.facts import Health
from npucmp.health.gather import ReadFacts
from npucmp.health.rule import SEVERITIES, Rule
from npucmp.health.workflow import CheckOptions, check_result, healths_of
from npucmp.model import Run
from npucmp.model.check_finding import CheckResult, Symptom
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import FollowFields, StrPath
from npucmp.workflows.options import of_one
from npucmp.workflows.unused_options import unfit_globs

FIRST, KEPT = 4, 32  # steps: chosen; rules of starts read the first, rules of changes neighbours


@dataclass(frozen=True)
class FollowCheckOptions(FollowFields, CheckOptions):
    """The options of a check of a run that is still going."""


@of_one(FollowCheckOptions)
def follow_check(dump: StrPath, options: FollowCheckOptions) -> CheckResult:
    """Check a dump that a run still writes, step by step, and return the result of all complete steps.

    `found` is called with the findings of each step. Ends if `until` is met, if the dump does not change for `timeout`
    seconds, or with Ctrl-C (`partial`). Steps that were not complete by then are `broken`. Raises NpucmpError if no
    step was complete.
    """
    require_times(options)
    followed = _FollowedRun(dump, options)
    _require_known(options.until, followed.rules)
    started, partial = time.monotonic(), False
    watch = StepWatch(dump, options, options, followed.context)
    try:
        for (step,) in complete_steps([watch], options):
            followed.read(step)
            if watch.is_unchanged(step):
                watch.mark_read(step)
                followed.keep()
                if followed.met:
                    break
            else:
                followed.discard()
    except KeyboardInterrupt:
        partial = True
        followed.discard()
    undone = {} if followed.met else watch.undone
    if not followed.steps and not partial:
        _raise_nothing(watch, options, undone)
    result = followed.result()
    if not partial and not any(run.operators for run in result.runs):
        raise UsageError(f"nothing to check: {options.nothing()}")
    return replace(
        result,
        broken=(*result.broken, *(() if partial else _unread(watch, undone))),
        seconds=time.monotonic() - started,
        partial=partial,
    )


def _raise_nothing(watch: StepWatch, options: FollowCheckOptions, undone: dict[Number, str]) -> None:
    if not watch.path.exists():
        raise DumpError(watch.path, f"does not exist after {options.timeout:g} seconds")
    why = reasons(undone)[0] if undone else "no file of a step is in it"
    raise DumpError(watch.path, f"no step was complete within {options.timeout:g} seconds: {why}")


def _unread(watch: StepWatch, undone: dict[Number, str]) -> list[tuple[str, Run]]:
    """Return the steps that were not complete as runs that cannot be read."""
    path = str(watch.path)
    return [
        ("dump", Run(path, "", (), step, problem=f"{path}: {words}")) for step, words in zip(undone, reasons(undone))
    ]


def _require_known(until: Sequence[str], rules: Sequence[Rule]) -> None:
    """Raise UsageError for a word of --until that is no severity and matches no rule."""
    for word in until:
        if word.lower() not in SEVERITIES and not any(fnmatchcase(rule.name, word) for rule in rules):
            words = ", ".join(SEVERITIES)
            raise UsageError(
                f"--until {word}: no rule is called so, and it is no severity ({words}); npucmp check --list"
            )


class _FollowedRun:
    """The steps that were read, their facts and findings. `met` is the word of --until that was found."""

    def __init__(self, dump: StrPath, options: FollowCheckOptions) -> None:
        self.dump, self.options = dump, options
        self.context: ReadContext = options.context(dump)
        self.rules = options.all_rules()
        self.settings = options.settings(self.rules)
        self.steps: dict[Number, tuple[Run, ...]] = {}  # whose facts are kept
        self.met = ""
        self._facts = ReadFacts()
        self._known: dict[tuple[str, Number], dict[str, str]] = {}  # rule, rank → place → severity
        self._earlier: list[Symptom] = []  # findings in steps that are no longer kept
        self._dropped = 0
        self._log: Optional[Log] = None
        self._log_problem = ""
        self._now: Optional[tuple[CompleteStep, tuple[Run, ...], tuple[Health, ...], RunExamination]] = None
        self._latest: tuple[tuple[Health, ...], RunExamination] = ((), RunExamination((), ()))

    def read(self, step: CompleteStep) -> None:
        """Read a complete step, and examine all steps; the results count once they are kept."""
        self._drop_old(step.number)
        runs = self._opened(step)
        if not self.steps:
            unfit_globs(self.options, runs)  # raises for an --include without an operator, before hours have passed
        others = {number: known for number, known in self.steps.items() if number != step.number}
        if step.number in self.steps:
            for run in self.steps.pop(step.number):
                self._facts.forget(run)
        every = [run for known in (*others.values(), runs) for run in known]
        self._now = step, runs, (), RunExamination((), ())  # so that an interrupted pass is discarded
        healths = healths_of(self.dump, every, self.options, self.settings, self.context, self._facts)
        self._log = self._read_log()
        healths = (*(replace(one, log=self._log) for one in healths[:1]), *healths[1:])
        self._now = step, runs, healths, examine(healths, self.rules, self.settings)
        gc.collect()  # the command line pauses the collector, and a training may last for days

    def _opened(self, step: CompleteStep) -> tuple[Run, ...]:
        graphs = load_named_graphs(self.options.graph, step.runs, self.context)
        return tuple(with_graphs(self.dump, list(step.runs), self.dump, graphs, self.context))

    def _read_log(self) -> Optional[Log]:
        """Return the log of the training; the former one while it cannot be read."""
        try:
            found, self._log_problem = self.options.log(), ""
        except (NpucmpError, OSError) as error:
            found, self._log_problem = self._log, str(error)
        return found

    def discard(self) -> None:
        """Remove what was read of a step that proved not to be complete."""
        if self._now is not None:
            for run in self._now[1]:
                self._facts.forget(run)
            self._now = None

    def keep(self) -> None:
        """Add the step that was read, hand its findings to the caller, and drop the facts of older steps."""
        assert self._now is not None
        step, runs, healths, found = self._now
        self._now, self.steps[step.number] = None, runs
        self._latest = healths, found
        self.met = self._word_met(found.symptoms)
        fresh = tuple(symptom for each in found.symptoms if (symptom := self._new_part(each)) is not None)
        if self.options.found is not None:
            self.options.found(StepFindings(step.number, step.again, fresh, met=self.met))

    def _word_met(self, symptoms: Sequence[Symptom]) -> str:
        """Return the first word of --until that a finding meets."""
        for word in self.options.until:
            least = SEVERITIES.index(word.lower()) if word.lower() in SEVERITIES else None
            for one in symptoms:
                if fnmatchcase(one.rule, word) if least is None else SEVERITIES.index(one.severity) >= least:
                    return word
        return ""

    def _new_part(self, one: Symptom) -> Optional[Symptom]:
        """Return a symptom with the places that no earlier step showed, or that are graver now; None without any."""
        known = self._known.setdefault((one.rule, one.rank), {})
        places = dict.fromkeys((one.where, *one.also))
        new = [place for place in places if _gravity(known.get(place)) < _gravity(one.severity)]
        known.update(dict.fromkeys(new, one.severity))
        if not new or one.where in new:
            return one if new else None
        return one._replace(also=tuple(new), places=len(new))

    def _drop_old(self, new: Number) -> None:
        """Drop the facts of the oldest step behind the first ones, if a new step would be one too many."""
        numbers = sorted(self.steps, key=step_order)
        if len(numbers) < KEPT or new in self.steps:
            return
        oldest = numbers[FIRST]
        self._earlier += [one for one in self._latest[1].symptoms if one.step is not None and one.step == oldest]
        for run in self.steps.pop(oldest):
            self._facts.forget(run)
        self._dropped += 1

    def result(self) -> CheckResult:
        """Return the result of all steps that were read."""
        healths, found = self._latest
        same = {(one.rule, one.rank, one.step, one.where) for one in found.symptoms}
        earlier = [one for one in self._earlier if (one.rule, one.rank, one.step, one.where) not in same]
        if earlier:
            symptoms = order_symptoms([*(one._replace(follows=0) for one in found.symptoms), *earlier])
            found = found._replace(symptoms=tuple(symptoms))
        result = check_result(self.dump, healths, found, self.settings, self._log)
        runs = [run for known in self.steps.values() for run in known]
        lost = [Run(str(self.options.loss), "", (), problem=self._log_problem)] if self._log_problem else []
        broken = tuple(("dump", run) for run in lost)
        return replace(result, met=self.met, broken=broken, notes=(*self._notes(runs), *result.notes))

    def _notes(self, runs: Sequence[Run]) -> list[str]:
        notes = [f"--until {self.met} was met; later steps were not read"] if self.met else []
        if self._dropped:
            notes.append(f"rules over steps see the first {FIRST} and the latest {KEPT - FIRST} steps; "
                         f"{self._dropped} others were checked when they were read")  # fmt: skip
        return [*notes, *unfit_globs(self.options, runs), *dict.fromkeys(note for run in runs for note in run.notes)]


def _gravity(severity: Optional[str]) -> int:
    return -1 if severity is None else SEVERITIES.index(severity)
