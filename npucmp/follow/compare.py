"""Compare runs that are still going: a step is compared once it is complete on both sides.

Each step is compared together with the step before it, which the search reads. The journal holds all measurements, so
a tensor is measured once. The report at the end is that of a plain comparison of all complete steps. Steps of the
golden that were not compared are not covered, unless --until ended the run.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Optional

from npucmp.errors import DumpError, NpucmpError, UsageError
from npucmp.follow.step_findings import StepFindings
from npucmp.follow.step_watch import CompleteStep, Number, StepWatch, step_order
from npucmp.follow.workflow import complete_steps, reasons, require_times
from npucmp.measure import checkpoint
from npucmp.model import Report, Run, StoredComparisons
from npucmp.model.comparison import where_of
from npucmp.workflows.compare import compare
from npucmp.workflows.option_fields import FollowFields, StrPath
from npucmp.workflows.options import Options, of_two

VERDICTS = ("DIVERGED", "SUSPECTED", "UNDECIDED", "AGREES")


@dataclass(frozen=True)
class FollowCompareOptions(FollowFields, Options):
    """The options of a comparison of runs that are still going."""


@of_two(FollowCompareOptions)
def follow_compare(target: StrPath, golden: StrPath, options: FollowCompareOptions) -> Report:
    """Compare two dumps, one or both of which a run still writes, and return the report of all complete steps.

    `found` is called with the findings of each step. Ends if a step has a verdict of `until`, if no dump changes for
    `timeout` seconds, if all steps of a golden that rests were compared, or with Ctrl-C (`partial`). Raises NpucmpError
    if no step was complete on both sides.
    """
    require_times(options)
    for word in options.until:
        if word.upper() not in VERDICTS:
            raise UsageError(f"--until {word}: no verdict is called so", VERDICTS)
    started = time.monotonic()
    context = options.context(target, golden)
    watches = [StepWatch(target, options, options, context, has_partner=True),
               StepWatch(golden, options, options, context, all_steps=bool(options.pair))]  # fmt: skip
    plain = Options(**{one.name: getattr(options, one.name) for one in fields(Options)})
    folder = None if options.journal is not None else tempfile.mkdtemp(prefix="npucmp-")
    if options.journal is not None and not options.resume:
        checkpoint.remove(os.fspath(options.journal))
    plain = replace(plain, journal=options.journal if folder is None else folder, resume=True, reuse=True)
    try:
        report = _FollowedPair(target, golden, plain, options).run(watches)
    except BaseException:
        _remove(folder)
        raise
    if isinstance(report.comparisons, StoredComparisons):
        weakref.finalize(report.comparisons, _remove, folder)  # its scratch folder is in the journal
    else:
        _remove(folder)
    return replace(report, seconds=time.monotonic() - started)


def _remove(folder: Optional[str]) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class _FollowedPair:
    """The steps that were compared. `met` is the word of --until that was found."""

    def __init__(self, target: StrPath, golden: StrPath, plain: Options, options: FollowCompareOptions) -> None:
        self.paths, self._plain, self._options = (target, golden), plain, options
        self._partners: dict[Number, Number] = {
            one.target.step: one.golden.step for one in options.partners() if one.target.step is not None
        }
        self._words = {word.upper(): word for word in options.until}
        self._steps: list[Number] = []
        self._goldens: set[Number] = set()  # steps of the golden that they were compared with
        self._whole: Optional[Report] = None
        self._differing: Optional[Report] = None  # the first step that differs
        self.met = ""

    def run(self, watches: Sequence[StepWatch]) -> Report:
        """Compare steps until the end, and return the whole report."""
        partial = False
        try:
            for step, other in complete_steps(watches, self._options, self._partner):
                if self._read(step, other, watches) and self.met:
                    break
        except KeyboardInterrupt:
            partial = True
        if not self._steps:
            if partial:
                raise KeyboardInterrupt
            self._raise_nothing(watches)
        report = self._whole if self.met and self._whole is not None else self._compared_again()
        if self.met:
            note = f"--until {self.met} was met; later steps were not compared"
            return replace(report, excluded=f"--until {self.met}", notes=(*report.notes, note))
        notes = [f"{side}: {line}" for side, watch in zip(("target", "golden"), watches)
                 for line in reasons({step: why for step, why in watch.undone.items() if why})]  # fmt: skip
        unpaired = () if partial else self._uncompared(watches)
        excluded = self._options.exclusion_words()
        return replace(report, partial=partial or report.partial, excluded=excluded,
                       unpaired=(*report.unpaired, *unpaired), notes=(*report.notes, *notes))  # fmt: skip

    def _partner(self, step: Number) -> Number:
        """Return the step of the golden that a step is compared with."""
        return self._partners.get(step, step)

    def _read(self, step: CompleteStep, other: CompleteStep, watches: Sequence[StepWatch]) -> bool:
        """Compare a step together with the step before it; False if a file has changed meanwhile."""
        former = [one for one in self._steps if step_order(one) < step_order(step.number)][-1:]
        report = self._compared([*former, step.number], precheck=False)
        if report.partial:
            raise KeyboardInterrupt
        if not all(watch.is_unchanged(one) for watch, one in zip(watches, (step, other))):
            report.close()
            return False
        for watch, one in zip(watches, (step, other)):
            watch.mark_read(one)
        self._goldens.add(other.number)
        self._steps = sorted({*self._steps, step.number}, key=step_order)
        alone = _of_step(report, step)
        if alone.differs and self._differing is None:
            self._differing = alone
        self.met = self._word_met(alone)
        if self._options.found is not None:
            self._options.found(StepFindings(step.number, step.again, report=alone, met=self.met))
        report.close()
        gc.collect()  # the command line pauses the collector, and a training may last for days
        return True

    def _word_met(self, report: Report) -> str:
        """Return the word of --until that a step meets. The report of all steps must have this verdict too."""
        word = self._words.get(report.verdict, "")
        if word:
            self._whole = self._compared_again()
            if self._whole.verdict != word.upper():
                self._whole.close()
                return ""
        return word

    def _compared(self, steps: Sequence[Number], **more: Any) -> Report:
        """Return the report of a plain comparison of some steps."""
        numbers = [step for step in steps if step is not None] or None
        pairs = [one.text for one in self._plain.partners() if one.target.step in (None, *steps)]
        return compare(*self.paths, replace(self._plain, step=numbers, pair=pairs, **more))

    def _compared_again(self) -> Report:
        """Return the report of all steps that were compared. Steps that were removed since are runs that cannot be
        read; the first step that differs stays in the report."""
        try:
            report = self._compared(self._steps)
        except NpucmpError:
            if self._differing is None:
                raise
            report = replace(self._differing, comparisons=())
        if self._steps == [None]:
            return report
        there = {where.step for where in where_of(report.comparisons)} | {run.step for _, run in report.broken}
        gone = [step for step in self._steps if step not in there]
        lost = tuple(("target", Run(str(self.paths[0]), "", (), step, problem=f"step {step} was removed after it was "
                                    "compared; the report does not cover it")) for step in gone)  # fmt: skip
        report = replace(report, broken=(*report.broken, *lost))
        first = self._differing
        if first is None or not {where.step for where in where_of(first.comparisons)} & {*gone}:
            return report
        offset = max((root.place for root in report.roots), default=0)
        kept = [replace(one, roots=tuple(replace(root, place=root.place + offset) for root in one.roots))
                for one in first.comparisons]  # fmt: skip
        return replace(report, comparisons=(*report.comparisons, *kept))

    def _raise_nothing(self, watches: Sequence[StepWatch]) -> None:
        """Raise DumpError with the reason why no step was compared."""
        waited = f"after {self._options.timeout:g} seconds"
        for watch in watches:
            if not watch.path.exists():
                raise DumpError(watch.path, f"does not exist {waited}")
        for watch in watches:
            known = {step: why for step, why in watch.undone.items() if why}
            if not watch.done and known:
                raise DumpError(watch.path, f"no step can be compared {waited}: {reasons(known)[0]}")
        target, golden = (", ".join(map(str, watch.steps)) or "none" for watch in watches)
        words = f"the target has {target}, the golden {golden}; --pair step1=step0 pairs steps of other numbers"
        raise UsageError(f"no step is in both dumps {waited}: {words}")

    def _uncompared(self, watches: Sequence[StepWatch]) -> Iterator[tuple[str, Run]]:
        """Yield the steps and ranks of the golden that were not compared."""
        golden = watches[1]
        compared = self._goldens
        if golden.steps == [None]:
            return
        for step in golden.steps:
            if step not in compared and (not self._partners or step in self._partners.values()):
                for rank in golden.ranks(step):
                    yield "golden", Run(str(golden.path), "", (), step, rank)


def _of_step(report: Report, step: CompleteStep) -> Report:
    """Return the part of a report that is about one step."""
    wanted = {run.step for run in step.runs}
    numbers = [at for at, where in enumerate(where_of(report.comparisons)) if where.step in wanted]
    if len(numbers) == len(report.comparisons) or step.number is None:
        return replace(report, comparisons=tuple(report.comparisons), excluded="")
    unpaired = tuple((side, run) for side, run in report.unpaired if run.step in wanted)
    kept = tuple(report.comparisons[at] for at in numbers)
    return replace(report, comparisons=kept, unpaired=unpaired, looks=(), accused=(), excluded="")
