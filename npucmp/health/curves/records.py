"""Records of a log (names and numbers), the curves made of them, and the parsers of text logs and event files.

A record without a step has the step of the record before. If no record has one, records are numbered. Steps that
restart in each epoch are made continuous.

Text logs have names followed by numbers, in the formats of several frameworks:

    Megatron    iteration       12/     500 | … | lm loss: 2.310000E+00 | loss scale: 1.0 | grad norm: 1.23 |
    Trainer     {'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.5}
    MindSpore   epoch: 1 step: 12, loss is 2.31
    MindFormers { Epoch:[  1/  2], step:[   10/ 4031], loss: 10.652, loss_scale: 65536.0, global_norm: [1.23]}
    ImageNet    Epoch: [0][ 10/500]  Loss 2.3100e+00 (2.4000e+00)
    tqdm        12%|█▏        | 12/100 [00:03<00:20, loss=2.31]

Lines are cut at LONGEST characters and names have at most three words, so the time per line is linear in its length.

Event files of TensorBoard and summary files of MindSpore have scalars by tag and step. Neither package is needed:

    offset  bytes  content of each record
    0       8      length, little endian
    8       4      checksum of the length
    12      *      an Event
    *       4      checksum of the Event

    Event    1 wall_time (double) · 2 step (varint) · 5 Summary
    Summary  1 Value, repeated
    Value    1 tag · 2 simple_value (TensorBoard, float) · 3 scalar_value (MindSpore, float) · 8 tensor (TensorBoard)
    Tensor   1 dtype (1 float, 2 double) · 4 content · 5 float values · 6 double values

Field 3 of TensorBoard is bytes (an old histogram), that of MindSpore a float: the wire type distinguishes them. A file
that ends within a record is still being written and is read up to that record.

Sources: tensorflow/core/util/event.proto, summary.proto; mindspore/ccsrc/utils/summary.proto.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Optional

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.protobuf import Cursor, WireField, to_signed
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.errors import DumpError
from npucmp.health.curves.curve import Curve, Log

Record = Mapping[str, float]

STEPS = ("step", "global_step", "iteration", "iter", "it", "steps", "iterations", "batch")
EPOCHS = ("epoch", "epochs")
CLOCKS = ("time", "timestamp", "wall_time", "walltime", "_timestamp", "_runtime", "date", "relative")
LARGEST = 1 << 53  # limit of a step; float64 is exact below it
MOST_CURVES = 1000  # most curves of a log


def log_of(path: str, records: Iterable[Record], notes: tuple[str, ...] = ()) -> Log:
    """Return the curves of records. Raise DumpError if there are none."""
    numbered = _with_steps([record for record in records if record])
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for step, record in numbered:
        for name, value in record.items():
            if _word(name) not in (*STEPS, *EPOCHS, *CLOCKS):
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
        if len(columns) > MOST_CURVES:
            raise DumpError(path, f"holds more than {MOST_CURVES} curves: it is not a training log")
    curves, again = {}, 0
    for name, (steps, values) in columns.items():
        curves[name], twice = Curve.of(name, steps, values)
        again = max(again, twice)
    if not curves:
        raise DumpError(
            path, 'holds no curve: neither a number after a name, as in "loss: 2.31", nor a column of numbers'
        )
    if again:
        notes = (*notes, f"{path}: {again:,} steps were logged repeatedly (a resumed run?); the last value counts")
    return Log(path, curves, notes)


def _with_steps(records: list[Record]) -> list[tuple[int, Record]]:
    """Return records with steps. A record without a step has that of the record before; if no record has a step, its
    index."""
    own = [_whole_number(record, STEPS) for record in records]
    if all(step is None for step in own):
        return [*enumerate(records)]
    epochs = [_whole_number(record, EPOCHS) for record in records]
    step, epoch, places = 0, 0, []
    for mine, its in zip(own, epochs):
        step, epoch = step if mine is None else mine, epoch if its is None else its
        places.append((epoch, step))
    counted = [place for place, mine in zip(places, own) if mine is not None]
    if any(b[0] > a[0] and b[1] <= a[1] for a, b in zip(counted, counted[1:])):
        steps = [step for _, step in counted]
        each = max(steps) + (min(steps) == 0)
        places = [(epoch, (epoch - counted[0][0]) * each + step) for epoch, step in places]
    return [(step, record) for (_, step), record in zip(places, records)]


def _whole_number(record: Record, names: tuple[str, ...]) -> Optional[int]:
    """The integer under the first of these names that exists; None if it is missing or not an integer."""
    words = {_word(name): value for name, value in record.items()}
    value = next((words[name] for name in names if name in words), None)
    return int(value) if value is not None and abs(value) < LARGEST and value == int(value) else None


@lru_cache(maxsize=4096)
def _word(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


LONGEST = 8192  # characters of a line that are read
NUMBER = r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|inf(?:inity)?)"
_VALUE = re.compile(
    rf"(?:[:=]|(?<=\s)is(?=\s))\s{{0,16}}(?:tensor\()?\[?\s{{0,16}}(?P<number>{NUMBER})(?![A-Za-z0-9_])", re.IGNORECASE
)
_WORD = re.compile("[A-Za-z_][A-Za-z0-9_/.-]{0,40}")
WORDS, ROOM = 3, 160  # words of a name; characters before a value that are searched for it
_BARE = re.compile(
    rf"(?<![A-Za-z0-9_/.-])(?P<name>loss|epoch|(?:global_)?step|iter(?:ation)?)\s{{1,16}}\[?\s{{0,8}}"
    rf"(?P<number>{NUMBER})(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_NESTED = re.compile(
    r"epoch\b[: ]{0,4}\[ {0,8}(?P<epoch>[0-9]{1,9}) {0,8}(?:/[0-9 ]{1,12})?\] {0,4}"
    r"\[ {0,8}(?P<step>[0-9]{1,12}) {0,8}/",
    re.IGNORECASE,
)
_PROGRESS = re.compile(r"(?<![0-9/.])(?P<step>[0-9]{1,12})/[0-9]{1,12}\s{1,4}[\[-]")
_UNTRAINED = re.compile(r"(?<![\w/.-])(?:val|valid|validation|eval|evaluation|test|testing)(?![\w/.-])", re.IGNORECASE)
_OF_LOSS = {"lm", "total", "train", "training", "average", "avg"}  # words before "loss" that are part of its name


def records_of_text(lines: Iterable[str]) -> Iterator[Record]:
    """Yield a record for each line that has a number after a name."""
    for line in lines:
        found = _record(line[:LONGEST])
        if found:
            yield found


def _record(line: str) -> dict[str, float]:
    found = {pair["name"]: float(pair["number"]) for pair in _BARE.finditer(line)}
    end = 0
    for pair in _VALUE.finditer(line):
        name = _name(line[max(end, pair.start() - ROOM) : pair.start()])
        end = pair.end()
        if name:
            found[name] = float(pair["number"])
    if not found:
        return found
    nested, phase = _NESTED.search(line), _UNTRAINED.search(line)
    if nested:
        found.update(epoch=float(nested["epoch"]), step=float(nested["step"]))
    elif not {name.lower() for name in found} & {"step", "global_step", "iteration", "iter"}:
        progress = _PROGRESS.search(line)
        found.update({"step": float(progress["step"])} if progress else {})
    word = phase.group() if phase else ""
    return {_curve_name(name, word): value for name, value in found.items()}


@lru_cache(maxsize=4096)  # lines repeat the same text
def _name(before: str) -> str:
    """The last words before a value; "" if they are not a name."""
    words: list[str] = []
    for word in reversed(before.split()[-WORDS:]):
        plain = word.strip("'\"") if not words else word
        if not _WORD.fullmatch(plain):
            plain = plain.lstrip("'\"{[(<|,;")
            return " ".join([plain, *words] if _WORD.fullmatch(plain) else words)
        words.insert(0, plain)
    return " ".join(words)


@lru_cache(maxsize=4096)
def _curve_name(name: str, phase: str) -> str:
    """A name without the words of a sentence before "loss"; prefixed with the word that marks a validation loss."""
    words = name.split(" ")
    lower = [word.lower() for word in words]
    if "loss" not in lower or _UNTRAINED.search(name):
        return name
    at = lower.index("loss")
    name = " ".join(words[at - (at > 0 and lower[at - 1] in _OF_LOSS) :])
    return f"{phase.lower()} {name}" if phase else name


_FILE = re.compile(r".*(?:\.tfevents\.|\.events\.summary\.).*")
_DEPTH = 4  # folders below a path


def is_events(path: Path) -> bool:
    """Whether the path is a folder, or a file with the name of an event file."""
    return path.is_dir() or _FILE.fullmatch(path.name) is not None


def read_events(path: Path, context: ReadContext) -> Log:
    """Read the scalars of one file, or of all event files in a folder, sorted by path; file names contain their
    times."""
    files = [path]
    if path.is_dir():
        every = (Path(folder, name) for folder, names in folders(path, _DEPTH) for name in names)
        files = sorted(file for file in every if _FILE.fullmatch(file.name))
        if not files:
            raise DumpError(path, "holds no event file (*.tfevents.*, *.events.summary.*): name one file of a curve")
    notes: list[str] = []
    several = len({file.parent for file in files}) > 1
    found: list[Record] = []
    for file in files:
        prefix = f"{file.parent.relative_to(path)}/" if several and file.parent != path else ""
        with open_regular(str(file), context) as opened:
            found += ({"step": step, f"{prefix}{tag}": value} for step, tag, value in _scalars(opened, notes))
    return log_of(str(path), found, tuple(notes))


def _scalars(file: RegularFile, notes: list[str]) -> Iterator[tuple[int, str, float]]:
    file.limits.require(file.path, "table_bytes", file.size, "has {:,} bytes")
    cursor, at = Cursor(file), 0
    while at + 16 <= file.size:
        (length,) = struct.unpack("<Q", cursor.bytes(at, 8))
        if length > file.size - at - 16:
            break
        yield from _of_event(cursor, at + 12, at + 12 + length)
        at += 16 + length
    if not at:
        raise DumpError(file.path, "not an event file")
    if at < file.size:
        notes.append(f"{file.path}: ends within a record; the records before it were read")


def _of_event(cursor: Cursor, start: int, end: int) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for field in cursor.fields(start, end):
        if field.number == 2 and field.wire == 0:
            step = to_signed(field.value)
        elif field.number == 5 and field.wire == 2:
            summaries.append(field)
    if abs(step) >= LARGEST:
        raise DumpError(cursor.file.path, f"step {step} is too large", start)
    for summary in summaries:
        for value in cursor.fields(summary.start, summary.end):
            if value.number == 1 and value.wire == 2:
                tag, number = _of_value(cursor, value)
                if tag and number is not None:
                    yield step, tag, number


def _of_value(cursor: Cursor, value: WireField) -> tuple[str, Optional[float]]:
    tag, number = "", None
    for field in cursor.fields(value.start, value.end):
        if field.number == 1 and field.wire == 2:
            tag = cursor.text(field)
        elif field.number in (2, 3) and field.wire == 5:
            number = _float(field.value)
        elif field.number == 8 and field.wire == 2:
            number = _of_tensor(cursor, field)
    return tag, number


def _of_tensor(cursor: Cursor, tensor: WireField) -> Optional[float]:
    """The value of a tensor with one float or double; None for other tensors."""
    found: list[float] = []
    for field in cursor.fields(tensor.start, tensor.end):
        size, form = field.end - field.start, {4: "<f", 8: "<d"}
        if field.number in (4, 5, 6) and field.wire == 2 and size in form:
            found += struct.unpack(form[size], cursor.bytes(field.start, size))
        elif field.number == 5 and field.wire == 5:
            found.append(_float(field.value))
        elif field.number == 6 and field.wire == 1:
            found += struct.unpack("<d", field.value.to_bytes(8, "little"))
    return found[0] if len(found) == 1 else None


def _float(word: int) -> float:
    found: float = struct.unpack("<f", word.to_bytes(4, "little"))[0]
    return found
