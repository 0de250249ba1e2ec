"""Log-probabilities of sampled tokens, as engines and trainers write them: a file, or folders of steps and ranks.

    {root}/[step_{N}/][rank_{M}/]{name}.npy | {name}.pt       verl: an array a file, by name
    {root}/[step_{N}/]{any}[_{N}][_{M}].npz | .pt             a batch a file: verl, slime and miles
    {root}/[step_{N}/]{any}[_{N}].json | .jsonl               answers of SGLang, vLLM and OpenAI's interface, records,
    {root}/[step_{N}/]{any}[_{N}].sse                         or the events of a streamed answer, "data: {…}"

Batches of several ranks of one step are joined in the order of ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.log_probs import field_names as names
from npucmp.dump.log_probs.event_stream import event_lines, is_stream, joined_events
from npucmp.dump.log_probs.json_requests import NumberedRequest, requests_of
from npucmp.dump.log_probs.saved_values import read_npy, read_npz, read_pt
from npucmp.dump.log_probs.table_requests import inner_table, is_table, requests_of_table
from npucmp.dump.readers.names import natural
from npucmp.dump.readers.text import json_value, read_bytes, text_of
from npucmp.errors import DumpError
from npucmp.model.token_batch import TokenBatch, TokenRecording, TokenRequest

ENDINGS = (".npy", ".npz", ".pt", ".pth", ".json", ".jsonl", ".sse")
_DEPTH = 6
_DIGITS = 20  # of an integer
_MOST_FILES = 100_000
_STEP = re.compile(r"(?:global_|train_)?(?:step|steps|iter|iteration|rollout|rollout_id)[_\-=]?([0-9]{1,9})", re.ASCII)
_RANK = re.compile(r"(?:rank|dp)[_\-=]?([0-9]{1,9})", re.ASCII)
_NUMBERS = re.compile(r"(?:(.*?)[_\-.])??([0-9]{1,9})(?:[_\-.](?:rank)?[_\-]?([0-9]{1,9}))?", re.ASCII)
_PREFIX = re.compile(r"(?:step|iter)[_\-]?([0-9]{1,9})[_\-.](.+)", re.ASCII)


class LocatedFile(NamedTuple):
    """A file of a recording: its folder's group, step and rank from its path, and its name without numbers."""

    path: str
    folder: str
    stem: str
    step: Optional[int]
    rank: int


class _Reading(NamedTuple):
    """The requests of one file or of the arrays of a folder, by step and rank."""

    rank: int
    path: str
    found: list[NumberedRequest]


@dataclass
class _Side:
    """The requests of one side while files are read; `lost` counts records without log-probabilities among others."""

    name: str
    readings: list[_Reading] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    skipped: int = 0
    lost: int = 0
    because: str = ""

    def add(self, value: Any, file: LocatedFile, path: str, files: int) -> None:
        """Add the requests of a value, which is of so many files."""
        try:
            every, why = _requests(value, self.name, file)
        except ValueError as error:
            self.problems.append((path, str(error)))
            return
        found = [one for one in every if one is not None]
        self.because = self.because or why
        if found:
            self.readings.append(_Reading(file.rank, path, found))
            self.lost += len(every) - len(found)
        else:
            self.skipped += files


def read_recordings(path: str, sides: Sequence[str], context: ReadContext) -> tuple[TokenRecording, ...]:
    """Return the recording below a path of each side, "rollout" or "trainer": its batches, one for each step.

    Raises DumpError if no file has log-probabilities; a file that cannot be read is a problem of the recording.
    """
    if not os.path.exists(path):
        raise DumpError(path, "no such file or folder")
    problems: list[tuple[str, str]] = []
    found = [_Side(name) for name in sides]
    size = skipped = 0
    groups: dict[tuple[str, Optional[int], int], dict[str, Any]] = {}
    is_alone = os.path.isfile(path)
    for file in _files(path, problems):
        if file.path.endswith(".npy") and file.stem not in names.KNOWN:
            if not is_alone:
                skipped += 1
                continue
            file = file._replace(stem=names.OF_EITHER_SIDE[0])  # the user names one array: no other can be meant
        try:
            size += os.path.getsize(file.path)
            value = _read(file.path, context)
            if isinstance(value, np.ndarray):
                arrays = groups.setdefault((file.folder, file.step, file.rank), {"": file})
                if arrays.setdefault(file.stem, value) is not value:
                    raise DumpError(file.path, f"{file.stem} of the same step and rank is in another file")
                continue
        except (DumpError, ValueError, OSError) as error:
            problems.append((file.path, getattr(error, "because", str(error))))
            continue
        for side in found:
            side.add(value, file, file.path, 1)
    for arrays in groups.values():
        file = arrays.pop("")
        for side in found:
            side.add(arrays, file, os.path.dirname(file.path), len(arrays))
    return tuple(_recording(path, side, problems, skipped, size) for side in found)


def _recording(path: str, side: _Side, problems: list[tuple[str, str]], skipped: int, size: int) -> TokenRecording:
    every = (*problems, *side.problems)
    if not side.readings:
        both = ", ".join(name for one in (names.ROLLOUT, names.TRAINER) for name in names.LOG_PROBS[one][:2])
        because = f"holds no log-probabilities: none of {both}, … in {', '.join(ENDINGS)}"
        raise DumpError(*(every[0] if every else (path, side.because or because)))
    readings = _of_side(side.readings, side.name)
    used = tuple(dict.fromkeys(one.name for reading in readings for one in reading.found))
    return TokenRecording(path, _batches(readings), used, every, skipped + side.skipped, size, side.lost)


def _of_side(readings: list[_Reading], side: str) -> list[_Reading]:
    """Return the readings without requests of names that only the other side writes, if others are left."""
    other = names.OF_ONE_SIDE[names.TRAINER if side == names.ROLLOUT else names.ROLLOUT]
    own = [one._replace(found=[found for found in one.found if found.name not in other]) for one in readings]
    return own if any(one.found for one in own) else readings


def _files(path: str, problems: list[tuple[str, str]]) -> Iterator[LocatedFile]:
    """Yield the files of a recording in natural order, with step and rank of their paths. A link to a folder, a folder
    that is too deep and one that cannot be read are problems."""
    if os.path.isfile(path):
        yield _located(path, "", None, 0)
        return
    waiting: list[tuple[str, str, Optional[int], int, int]] = [(path, "", None, 0, 0)]
    count = 0
    while waiting:
        folder, group, step, rank, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                here = sorted(entries, key=lambda one: natural(one.name))
        except OSError as error:
            problems.append((folder, str(error)))
            continue
        below = []
        for entry in here:
            if os.path.isdir(entry.path):
                if entry.is_symlink() or depth == _DEPTH:
                    because = "a link to a folder" if entry.is_symlink() else f"below {_DEPTH} folders"
                    problems.append((entry.path, f"{because} is not read"))
                else:
                    at, own = _STEP.fullmatch(entry.name), _RANK.fullmatch(entry.name)
                    number = int(at[1]) if at else int(entry.name) if _is_number(entry.name) and step is None else step
                    below.append((entry.path, entry.path, number, int(own[1]) if own else rank, depth + 1))
            elif entry.name.endswith(ENDINGS):
                count += 1
                if count > _MOST_FILES:
                    raise DumpError(path, f"has more than {_MOST_FILES:,} files")
                yield _located(entry.path, group, step, rank)
        waiting.extend(reversed(below))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10


def _located(path: str, group: str, step: Optional[int], rank: int) -> LocatedFile:
    stem = os.path.splitext(os.path.basename(path))[0]
    alone = _STEP.fullmatch(stem)
    if alone:
        return LocatedFile(path, group, "", int(alone[1]) if step is None else step, rank)
    before = _PREFIX.fullmatch(stem)
    numbers = _NUMBERS.fullmatch(stem)
    if before:
        return LocatedFile(path, group, before[2], int(before[1]), rank)
    if numbers:
        own = int(numbers[2]) if step is None else step
        return LocatedFile(path, group, numbers[1] or "", own, int(numbers[3]) if numbers[3] else rank)
    return LocatedFile(path, group, stem, step, rank)


def _read(path: str, context: ReadContext) -> Any:
    """Return the value of a file: an array, a dict of values, or a list of JSON values."""
    if path.endswith(".npy"):
        return read_npy(path, context)
    if path.endswith(".npz"):
        return read_npz(path, context)
    if path.endswith((".pt", ".pth")):
        return read_pt(path, context)
    text = text_of(path, read_bytes(path, "json_bytes", context))
    if is_stream(text):
        return joined_events(json_value(line, path, _DIGITS, number) for number, line in event_lines(text))
    lines = enumerate(text.split("\n") if path.endswith(".jsonl") else [text], 1)
    return [json_value(line, path, _DIGITS, number) for number, line in lines if line.strip()]


def _requests(value: Any, side: str, file: LocatedFile) -> tuple[list[Optional[NumberedRequest]], str]:
    """Return the requests of a value with their steps, None for a record without one, and why there are none."""
    found: list[Optional[NumberedRequest]] = []
    because = ""
    for one in value if isinstance(value, list) else [value]:
        table = inner_table(one)
        number = _number(table)
        if is_table(table, side):
            rows, name = requests_of_table(table, side)
            found += [NumberedRequest(row, number, name) for row in rows]
            continue
        found += requests_of(one, side)
        if isinstance(one, Mapping) and any(names.METRIC in str(key) for key in one):
            because = (
                "holds metrics of verl, not log-probabilities of tokens; rollout_probs_diff_valid=0 means that the "
                "metrics were not computed"
            )
    steps = [one if file.step is None or one is None else one._replace(step=file.step) for one in found]
    return steps, because


def _number(table: Any) -> Optional[int]:
    value = names.first_of(table, names.STEPS) if isinstance(table, Mapping) else None
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return int(value) if isinstance(value, (int, np.integer)) and value >= 0 else None


def _batches(readings: list[_Reading]) -> tuple[TokenBatch, ...]:
    steps: dict[Optional[int], list[TokenRequest]] = {}
    paths: dict[Optional[int], str] = {}
    for reading in sorted(readings, key=lambda one: one.rank):
        for one in reading.found:
            steps.setdefault(one.step, []).append(one.request)
            paths.setdefault(one.step, reading.path)
    ordered = sorted(steps, key=lambda step: -1 if step is None else step)
    return tuple(TokenBatch(step, tuple(steps[step]), paths[step]) for step in ordered)
