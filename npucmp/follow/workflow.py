"""Follow dumps that runs still write: yield each step once it is complete. check and compare do the rest."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Optional

from npucmp.errors import UsageError
from npucmp.follow.step_watch import CompleteStep, Number, StepWatch
from npucmp.workflows.option_fields import FollowFields

LONGEST_PAUSE = 1.0  # seconds between two listings of a dump
RELIST = 10  # listings of a dump, one of which includes the steps that were read
SHARE = 9  # pause between listings, as a multiple of the time that one takes


def require_times(times: FollowFields) -> None:
    """Raise UsageError for a time that is no number from 0."""
    for name in ("settle", "idle", "timeout"):
        value = getattr(times, name)
        if not 0.0 <= value < float("inf"):
            raise UsageError(f"--{name} {value!r}: needs a number of seconds from 0")


def complete_steps(
    watches: Sequence[StepWatch], times: FollowFields, partner: Callable[[Number], Number] = lambda step: step
) -> Iterator[tuple[CompleteStep, ...]]:
    """Yield each step when it is complete in all dumps; `partner` gives the step of the other dumps. The caller
    marks what it has read. Ends if the dumps do not change for `timeout` seconds, or if a second dump rests for so
    long and all of its steps were read."""
    for number in itertools.count():
        began = time.monotonic()
        for watch in watches:
            watch.scan_new() if number % RELIST else watch.scan()
        took = time.monotonic() - began
        if is_over := _is_over(watches, times):
            for watch in watches:
                watch.scan()  # a step that was read may have changed
            is_over = _is_over(watches, times)
        for step in watches[0].ready():
            found = _opened(watches, step, partner)
            if found is not None:
                yield found
                is_over = False
        if is_over:
            return
        time.sleep(max(min(LONGEST_PAUSE, times.settle / 2), SHARE * took, 0.01))


def _opened(
    watches: Sequence[StepWatch], step: Number, partner: Callable[[Number], Number]
) -> Optional[tuple[CompleteStep, ...]]:
    """Return a step, opened in all dumps; None if one of them does not have it complete. A step that another dump has
    read is complete there."""
    first, *others = watches
    numbers = [_partner_in(watch, partner(step)) for watch in others]
    for watch, number in zip(others, numbers):
        if number not in watch.done and not watch.is_ready(number):
            return None
    found = [one for watch, number in zip(others, numbers) if (one := watch.open(number)) is not None]
    opened = first.open(step, [run for one in found for run in one.runs]) if len(found) == len(others) else None
    return None if opened is None else (opened, *found)


def _partner_in(watch: StepWatch, step: Number) -> Number:
    """Return the number of a step in another dump. A dump without numbers has it as its only step; a step without a
    number is any step."""
    return watch.steps[0] if watch.steps and None in (watch.steps[0], step) else step


def _is_over(watches: Sequence[StepWatch], times: FollowFields) -> bool:
    if all(watch.steps for watch in watches) and any(watch.may_settle() for watch in watches):
        return False
    if any(watch.is_done and watch.rests_for() >= times.timeout for watch in watches[1:]):
        return True
    return time.monotonic() - max(watch.changed for watch in watches) >= times.timeout


def reasons(undone: Mapping[Number, str]) -> list[str]:
    """Describe steps that were not complete."""
    return [f"{'the dump' if step is None else f'step {step}'} was not complete: {why}" for step, why in undone.items()]
