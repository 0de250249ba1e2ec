"""The steps of a dump that a run still writes: which are complete.

A step is complete if a later step exists on all of its ranks and its files rest for `settle` seconds; the last step,
if the whole dump rests for `idle` seconds. If no other step was read, nothing shows how much the last step will hold:
then it must have all tensors of its partner in the other dump, or the dump must rest for `timeout` seconds. A step
needs all ranks of earlier steps. A step that cannot be opened is not complete: a record that is not whole JSON, tensors
without their record, no stack.json where the step before has one; for the last step also fewer tensors than the step
before, all of which that step has. A tensor that cannot be opened delays its step until the dump rests, then it is a
row of the report.

The files of a step are listed before and after it is read; if they differ, what was read is discarded. If they differ
later, the step is read again. Files that are only removed change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple, Optional

from npucmp.dump.formats import early_heads, format_at, open_head, open_runs
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.names import place_of
from npucmp.dump.step_files import RECORDS, SIDECARS, RankFiles, StepFiles, files_by_step, folder_labels
from npucmp.errors import NpucmpError
from npucmp.model import Run
from npucmp.workflows.option_fields import FollowFields, StrPath
from npucmp.workflows.select_runs import RunSelection
from npucmp.workflows.selectors import parse_numbers

Number = Optional[int]  # of a step or rank; None if the dump has no numbers
TensorNames = frozenset[tuple[str, str]]  # operator, slot


class CompleteStep(NamedTuple):
    """A step whose files are complete, with its runs by rank. `again`: it was read before, and its files changed."""

    number: Number
    runs: tuple[Run, ...]
    files: StepFiles
    again: bool = False


class _Seen(NamedTuple):
    """The files of a step, the time since when they were seen unchanged, and since when their own times say so."""

    files: StepFiles
    since: float
    rests: float


class StepWatch:
    """The steps of one dump: which are new, complete or read. `changed` is the latest time at which the dump changed;
    times are those of time.monotonic."""

    def __init__(
        self,
        path: StrPath,
        selection: RunSelection,
        times: FollowFields,
        context: ReadContext,
        all_steps: bool = False,
        has_partner: bool = False,
    ) -> None:
        self.path, self._selection, self._times, self._context = Path(path), selection, times, context
        self._steps = parse_numbers("step", None if all_steps else selection.step)
        self._ranks = parse_numbers("rank", None if all_steps else selection.rank)
        self._seen: dict[Number, _Seen] = {}
        self._done: dict[Number, StepFiles] = {}
        self._again: set[Number] = set()
        self._failed: dict[Number, tuple[StepFiles, int]] = {}  # steps that could not be opened in this state
        self._names: dict[Number, TensorNames] = {}  # by rank, of the latest step that was read
        self._latest: Number = None
        self._has_partner = has_partner  # another dump shows which tensors a step has
        self._labels = folder_labels
        self._format = selection.format
        self._reasons: dict[Number, str] = {}
        self.changed = time.monotonic()

    def scan(self, only: Optional[Callable[[Number], bool]] = None) -> None:
        """List the files of the dump; `only` selects steps."""
        if not self._done:
            module = format_at(self.path, self._selection.format, self._context)
            self._format = module.NAME if module is not None else None
            self._labels = getattr(module, "labels", folder_labels)
        now, wall = time.monotonic(), time.time()
        wanted = only or (lambda step: True)
        found = {step: files for step, files in self._listed(wanted) if files}
        if any(step is not None for step in (*found, *self._seen)):
            found.pop(None, None)  # files beside the steps
        for step, files in found.items():
            old = self._seen.get(step)
            if old is not None and old.files == files:
                continue
            age = max(0.0, wall - max(one.latest for one in files.values()))
            self._seen[step] = _Seen(files, now, now - (age if old is None else 0.0))
            self.changed = now
            if step in self._done and not _is_reduced(files, self._done[step]):
                del self._done[step]
                self._again.add(step)
        for step in [step for step in self._seen if step not in found and (step is None or wanted(step))]:
            del self._seen[step]

    def scan_new(self) -> None:
        """List the files of steps that were not read."""
        self.scan(lambda step: step not in self._done)

    def _listed(self, wanted: Callable[[Number], bool]) -> Iterator[tuple[Number, StepFiles]]:
        for step, files in files_by_step(self.path, self._labels, wanted).items():
            if self._steps.has(step or 0):
                yield step, {rank: one for rank, one in files.items() if self._ranks.has(rank or 0)}

    @property
    def steps(self) -> list[Number]:
        """The steps that the dump has, in order."""
        return sorted(self._seen, key=step_order)

    @property
    def done(self) -> Set[Number]:
        """The steps that were read."""
        return self._done.keys()

    @property
    def undone(self) -> dict[Number, str]:
        """The steps that were not read, each with its reason."""
        return {
            step: self._why_not(step) or self._reasons.get(step, "") for step in self.steps if step not in self._done
        }

    def ranks(self, step: Number) -> list[Number]:
        """The ranks that have files of a step."""
        return [*self._seen[step].files] if step in self._seen else []

    @property
    def is_done(self) -> bool:
        """Whether the dump has steps, and all of them were read."""
        return bool(self._seen) and all(step in self._done for step in self._seen)

    def ready(self) -> list[Number]:
        """Return the steps that may be opened now, in order."""
        return [step for step in self.steps if self.is_ready(step)]

    def is_ready(self, step: Number) -> bool:
        """Return whether a step exists, was not read, and may be opened now."""
        if step in self._done or step not in self._seen or self._why_not(step):
            return False
        return self._failed.get(step) != (self._seen[step].files, self._rest())

    def may_settle(self) -> bool:
        """Return whether a step may become complete without a further change of the dump."""
        return len(self._done) < len(self._seen) and not self._rests()

    def rests_for(self) -> float:
        """Return the seconds since the last change of the dump, by the times of its files."""
        return time.monotonic() - max((one.rests for one in self._seen.values()), default=self.changed)

    def _rests(self) -> bool:
        """Return whether the whole dump is unchanged for so long that its last step may be complete."""
        return self._rest() >= (1 if self._names or self._has_partner else 2)

    def _rest(self) -> int:
        """Return whether the whole dump is unchanged for `timeout` seconds (2), for `idle` seconds (1), or not (0)."""
        observed = time.monotonic() - max((one.since for one in self._seen.values()), default=self.changed)
        rests, times = self.rests_for(), self._times
        if observed < times.settle or rests < times.idle:
            return 0
        return 2 if rests >= times.timeout else 1

    def _why_not(self, step: Number) -> str:
        """Return the reason why the files of a step are not complete; "" if they may be."""
        files, since, _ = self._seen[step]
        former = self._former(step)
        missing = sorted(rank for rank in self._expected(step) if rank is not None and rank not in files)
        if missing and None not in files:
            return f"rank {missing[0]} has no files of it"
        if any(one.unrecorded and not one.sidecars.intersection(RECORDS) for one in files.values()):
            return "its tensors have no dump.json"
        before = self._seen[former].files if former in self._seen and former != step else {}
        for rank, one in files.items():
            lacking = sorted(before.get(rank, RankFiles()).sidecars.intersection(SIDECARS) - one.sidecars)
            if lacking:
                return f"it has no {lacking[0]}, unlike step {former}"
        if time.monotonic() - since < self._times.settle:
            return "its files change"
        if not self._is_passed(step) and not self._rests():
            return "no later step exists on all of its ranks"
        return ""

    def _former(self, step: Number) -> Number:
        """Return the nearest earlier step; the step itself if it is the first."""
        return max((one for one in self._seen if step_order(one) < step_order(step)), key=step_order, default=step)

    def _expected(self, step: Number) -> set[Number]:
        """Return the ranks that a step needs: those of all earlier steps; for the first step, all ranks of the dump."""
        earlier = [seen for one, seen in self._seen.items() if step_order(one) < step_order(step)]
        return {rank for seen in earlier or self._seen.values() for rank in seen.files}

    def _is_passed(self, step: Number) -> bool:
        """Return whether each rank of a step has files of a later step."""
        later = {rank for one in self._seen if step_order(one) > step_order(step) for rank in self._seen[one].files}
        return all(rank in later for rank in self._seen[step].files)

    def open(self, step: Number, partners: Sequence[Run] = ()) -> Optional[CompleteStep]:
        """Open the runs of a step; None if it proves not to be complete. `partners` are the runs of the same step in
        the other dump."""
        if step not in self._seen:
            return None
        files, rest = self._seen[step].files, self._rest()
        try:
            runs = self._runs(step)
            why = self._unfit(step, runs, rest) or self._unlike(step, runs, partners, rest)
        except (NpucmpError, OSError) as error:
            runs, why = [], str(error)
        self.scan(lambda other: other == step)
        if step not in self._seen or self._seen[step].files != files:
            return None
        if why:
            self._failed[step], self._reasons[step] = (files, rest), why
            return None
        return CompleteStep(step, tuple(runs), files, step in self._again)

    def _unlike(self, step: Number, runs: Sequence[Run], partners: Sequence[Run], rest: int) -> str:
        """Return the reason why the only step of a dump may lack tensors that its partner has."""
        if self._names or rest == 2 or self._is_passed(step):
            return ""
        names, wanted = ({one for run in side for one in _tensor_names(run)} for side in (runs, partners))
        return "" if wanted and wanted <= names else "it lacks tensors of its partner, and no other step was read"

    def _unfit(self, step: Number, runs: Sequence[Run], rest: int) -> str:
        """Return the reason why opened runs are not those of a complete step."""
        broken = next((run.problem for run in runs if run.problem), "")
        if broken or not any(run.operators or run.records for run in runs):
            return broken or "no operator is in it"
        if not rest:
            return next((one.problem for run in runs for op in run.operators for one in op.tensors if one.problem), "")
        for run in runs if not self._is_passed(step) and step_order(self._latest) < step_order(step) else ():
            names, before = _tensor_names(run), self._names.get(run.rank, frozenset())
            if names < before:
                return f"it has {len(names)} of the {len(before)} tensors of step {self._latest}"
        return ""

    def _runs(self, step: Number) -> list[Run]:
        """Open the runs of a step; where folders name steps, only its own folders are read."""
        known = early_heads(self.path, self._format, self._context)
        if known is not None:
            wanted = [head for head in known if head.step == step]
            return self._of_ranks([open_head(head, self._context) for head in wanted])
        folders = [self.path] if self._labels is not folder_labels or step is None else self._step_folders(step)
        runs = [run for folder in folders for run in open_runs(folder, self._format, self._context)]
        return self._of_ranks([run for run in runs if run.step == step or step is None])

    def _of_ranks(self, runs: Sequence[Run]) -> list[Run]:
        return [run for run in runs if self._ranks.has(run.rank or 0)]

    def _step_folders(self, step: int) -> list[Path]:
        """Return the folders that name a step, nearest to the root of the dump; the root if none below it does."""
        found: list[Path] = []
        level = [self.path] if self.path.is_dir() else []
        while level:
            below = sorted(one for above in level for one in above.iterdir() if one.is_dir() and not one.is_symlink())
            level = []
            for folder in below:
                number = place_of([folder.parent.name, folder.name]).step
                if number == step:
                    found.append(folder)
                elif number is None:
                    level.append(folder)
        return found or [self.path]

    def is_unchanged(self, one: CompleteStep) -> bool:
        """Return whether a step has its files of when it was opened, except removed ones. If not, results are void."""
        self.scan(lambda other: other == one.number)
        seen = self._seen.get(one.number)
        return seen is None or seen.files == one.files or _is_reduced(seen.files, one.files)

    def mark_read(self, one: CompleteStep) -> None:
        """Mark a step as read."""
        self._done[one.number] = one.files
        self._again.discard(one.number)
        if self._latest is None or step_order(one.number) >= step_order(self._latest):
            self._latest = one.number
            self._names.update((run.rank, _tensor_names(run)) for run in one.runs)


def step_order(step: Number) -> int:
    """Return the sort key of a step."""
    return -1 if step is None else step


def _is_reduced(files: StepFiles, before: StepFiles) -> bool:
    """Return whether files were removed, and no other has changed."""
    if {*files} - {*before}:
        return False
    pairs = [(files.get(rank, RankFiles()), old) for rank, old in before.items()]
    return all(new == old or new.lost_files(old) for new, old in pairs)


def _tensor_names(run: Run) -> TensorNames:
    return frozenset((operator.name, tensor.slot) for operator in run.operators for tensor in operator.tensors)
