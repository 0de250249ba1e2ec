"""Compare the log-probabilities of the same tokens from two engines: read → pair → rules → ParityResult."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Optional, Union

from npucmp.dump.limits import Limits, ReadContext
from npucmp.dump.log_probs import read_recordings
from npucmp.dump.log_probs.field_names import OF_ONE_SIDE, ROLLOUT, TRAINER
from npucmp.dump.readers.text import json_object, read_text
from npucmp.errors import UsageError
from npucmp.model.parity_result import ParityResult
from npucmp.model.token_batch import TokenBatch, TokenRecording
from npucmp.token_parity.judgement import judge
from npucmp.token_parity.noise import DEFAULT_FLOOR
from npucmp.token_parity.option_fields import ParityFields
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_two
from npucmp.workflows.selectors import parse_numbers

HIGHEST_FLOOR = 100.0
LOWEST_FLOOR = 1e-6  # of a pair with equal bits
_PICKLE_BYTES = 256 << 20  # a rollout of 256 requests of 8,000 tokens has 30 MB of numbers
_PICKLE_OPCODES = 50_000_000
_MEMBERS = 200_000  # a tensor for each list of a request
_DIRECTORY_BYTES = 64 << 20


@dataclass(frozen=True)
class ParityOptions(ParityFields):
    """The options of parity."""


@of_two(ParityOptions)
def parity(
    rollout: StrPath, trainer: Optional[StrPath] = None, options: ParityOptions = ParityOptions()
) -> ParityResult:
    """Compare the log-probabilities of a rollout engine with those of a trainer, token by token.

    Paths are files or folders; without a trainer, the files of the rollout hold both. Raises DumpError if a side has no
    log-probabilities, UsageError for wrong options. Files that cannot be read are in the result.
    """
    started = time.monotonic()
    paths = tuple(dict.fromkeys(os.fspath(one) for one in (rollout, trainer) if one is not None))
    context = ReadContext(_wide(options.limits)).confine(*paths)
    if len(paths) == 1:
        one, other = read_recordings(paths[0], (ROLLOUT, TRAINER), context)
    else:
        (one,), (other,) = (read_recordings(*each, context) for each in zip(paths, ((ROLLOUT,), (TRAINER,))))
    common = {*one.names} & {*other.names}
    if common and _overlap(*paths):
        names = ", ".join(sorted(common))
        raise UsageError(
            f"{paths[0]} has only {names}: give the files of the trainer as second path, or a file with both"
        )
    notes = _exchanged(one, other)
    one, other = (_selected(recording, options) for recording in (one, other))
    floor = _floor_of(options.floor, options.limits)
    found = judge(one, other, floor)
    return ParityResult(
        paths=paths,
        notes=(*found.notes, *notes),
        seconds=time.monotonic() - started,
        bytes_read=one.bytes_read + (other.bytes_read if len(paths) > 1 else 0),
        steps=found.steps,
        findings=found.findings,
        figures=found.figures,
        open=found.open,
        trend=found.trend,
        floor=floor,
        names=(", ".join(one.names), ", ".join(other.names)),
        batches=(_describe(one), _describe(other)),
    )


def _overlap(first: str, second: Optional[str] = None) -> bool:
    """Return whether two paths are the same, or one is below the other: numbers would be compared with themselves."""
    both = [os.path.realpath(one) for one in (first, second or first)]
    return os.path.commonpath(both) in both


def _exchanged(one: TokenRecording, other: TokenRecording) -> tuple[str, ...]:
    """Return a note if the first path has names of a trainer alone and the second those of a rollout."""
    if {*one.names} <= OF_ONE_SIDE[TRAINER] and {*other.names} <= OF_ONE_SIDE[ROLLOUT]:
        names = f"{', '.join(one.names)} in {one.path}, {', '.join(other.names)} in {other.path}"
        return (f"the paths seem to be exchanged, the rollout is the first: {names}",)
    return ()


def _floor_of(value: Union[float, StrPath, None], limits: Limits) -> float:
    """Return the declared floor: a number, or the noise of a logit of the report of a clean pair."""
    if value is None:
        return DEFAULT_FLOOR
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    try:
        floor = float(text)
    except ValueError:
        return _floor_of_report(str(text), limits)
    if not 0.0 < floor < HIGHEST_FLOOR:
        raise UsageError(f"floor is {text!r}, it must be a number greater than 0: the noise of a logit")
    return floor


def _floor_of_report(path: str, limits: Limits) -> float:
    """Return the noise of a logit that a report of `parity` measured. Raises UsageError unless its pair is clean."""
    file = os.path.join(path, "summary.json") if os.path.isdir(path) else path
    if not os.path.exists(file):
        raise UsageError(f"floor is {path!r}: neither a number nor a report")
    summary = json_object(read_text(file, "table_bytes", ReadContext(limits)), file, "a report", 400)
    figures = summary.get("figures")
    floor = figures.get("floor") if isinstance(figures, dict) else None
    if summary.get("command") != "parity" or summary.get("class") != "clean":
        raise UsageError(f"{file} is not the report of a clean pair: its class is {str(summary.get('class'))[:40]!r}")
    if type(floor) is not float or not 0.0 <= floor < HIGHEST_FLOOR:
        raise UsageError(f"{file} has no noise of a logit: its pair has too few unsure tokens")
    return max(floor, LOWEST_FLOOR)


def _wide(limits: Limits) -> Limits:
    """Return limits for files with a number per token: a file of torch.save is otherwise one tensor."""
    return replace(
        limits,
        pickle_bytes=max(limits.pickle_bytes, _PICKLE_BYTES),
        pickle_opcodes=max(limits.pickle_opcodes, _PICKLE_OPCODES),
        members=max(limits.members, _MEMBERS),
        header_bytes=max(limits.header_bytes, _DIRECTORY_BYTES),
    )


def _selected(recording: TokenRecording, options: ParityOptions) -> TokenRecording:
    steps = parse_numbers("step", options.step)
    batches = tuple(one for one in recording.batches if steps.has(one.step or 0))
    if not batches:
        held = ", ".join("-" if one.step is None else str(one.step) for one in recording.batches[:8])
        raise UsageError(f"{recording.path} has no step {options.step}; it holds steps {held}")
    return replace(recording, batches=batches)


def _describe(recording: TokenRecording) -> str:
    """Return the content of a recording in one line."""
    requests = sum(len(one.requests) for one in recording.batches)
    tokens = sum(_tokens(one) for one in recording.batches)
    steps = "" if len(recording.batches) == 1 else f"{len(recording.batches)} steps, "
    return f"{', '.join(recording.names)} · {steps}{requests:,} requests, {tokens:,} positions"


def _tokens(batch: TokenBatch) -> int:
    return sum(len(one.log_probs) for one in batch.requests)
