"""Read overflow records of the device: Opdebug files, binary or converted to JSON by the vendor's tools.

A binary file is a version 2 dump (cann_raw.py) whose outputs are records, or the bare record. Two layouts:

    old    offset  bytes  content                                 exactly 2048 bytes
           0       128    DHA Atomic Add: model_id stream_id task_id task_type pc_start para_base, uint64 each
           128     128    L2 Atomic Add, the same
           256     256    AI Core, the same
           512     256    DHA status, uint64 at its start
           768     256    L2 status, uint64 at its start
           1024    1024   AI Core: kernel_code block_idx status, uint64 each

    new    offset  bytes  content
           0       4      5A 5A 5A 5A
           4       4      version
           8       …      entries: valid (1) kind rsv data_len, uint32 each, and data_len bytes of uint64
                            kind 0 AIC, 1 AIV   model_id stream_id task_id task_type context_id thread_id pc_start
                                                para_base core_id block_id status; in version 1 four words of status
                            kind 2 AICPU        model_id stream_id task_id task_type context_id cpu_id thread_id status
                            kind 3 SDMA         model_id stream_id task_id task_type context_id thread_id src_addr
                                                dst_addr channel_id status
           …       …      bytes that do not begin with valid = 1 end the list: padding of a buffer

    JSON   {"DHA Atomic Add": {…}, "L2 Atomic Add": {…}, "AI Core": {…}}, each with the names above and status, or
           {"magic": "0x5a5a5a5a", "version": …, "acc_list": {"valid", "acc_type": "AIC", …, "data": {…}}} or a list

The vendor's tool reads only the first entry and ignores a wrong data_len. This module reads all entries; a wrong
data_len raises DumpError.
Source: public msaccucmp and the CANN overflow page (meaning of the AI Core bits); precision_tool (atomic codes).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import cann_raw
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.text import json_object, read_text
from npucmp.errors import DumpError

DEBUG = "Opdebug"  # prefix of the names of such files
OLD_LAYOUT = 2048  # bytes
MAGIC = 0x5A5A5A5A

_DHA, _L2, _CORE, _VECTOR = "DHA Atomic Add", "L2 Atomic Add", "AI Core", "AI Vector"
_OLD = {_DHA: (0, 512), _L2: (128, 768), _CORE: (256, 1024)}  # offsets of ids and status
_OLD_FIELDS = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
_IDS = ("model_id", "stream_id", "task_id", "task_type", "context_id")
_CORE_FIELDS = (*_IDS, "thread_id", "pc_start", "para_base", "core_id", "block")
_KINDS = {  # number → its name in the JSON, unit, fields before the status
    0: ("AIC", _CORE, _CORE_FIELDS),
    1: ("AIV", _VECTOR, _CORE_FIELDS),
    2: ("AICPU", "AI CPU", (*_IDS, "cpu_id", "thread_id")),
    3: ("SDMA", "SDMA", (*_IDS, "thread_id", "src_addr", "dst_addr", "channel_id")),
}
_UNITS = {word: unit for word, unit, _ in _KINDS.values()}
_DETAILS = (
    "pc_start", "para_base", "kernel_code", "block", "core_id", "src_addr", "dst_addr", "channel_id", "cpu_id",
)  # fmt: skip
_SPELLED = {"block_id": "block", "block_idx": "block"}
_VALID = b"\1\0\0\0"
_ALL_ONES = (1 << 64) - 1
_NO_THREAD = 65535  # of context_id and thread_id: the task was not cut into slices
_INTEGER = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")

_CORE_BITS = {
    0x8: "negation of the smallest signed integer",
    0x10: "integer add, subtract, multiply or multiply-add overflow",
    0x20: "floating point overflow",
    0x80: "negative float converted to unsigned",
    0x100: "float32 or int32 to float16 overflow",
    0x400: "cube accumulate overflow",
}
_ATOMIC = ("overflow", "underflow", "source is NaN", "destination is NaN", "source and destination are NaN")
_CODES = {  # lowest bit of the code, its mask there, meanings
    _DHA: (8, 0xFF, dict(enumerate(_ATOMIC, 9))),
    _L2: (16, 0b111, dict(enumerate(_ATOMIC, 1))),
}


class DeviceRecord(NamedTuple):
    """An overflow record of one unit of the device; the ids are those of the task that overflowed.

    unit       "AI Core", "AI Vector", "AI CPU", "SDMA", "DHA Atomic Add" or "L2 Atomic Add"
    …_id       -1 if not recorded; task_id may be the true one modulo 65536 (see same_task)
    task_type  a number of the device, -1 if not recorded
    status     one word, or four for AI Core and AI Vector in version 1 of the new layout; all 0: no overflow
    path       the file of the record
    detail     further facts as (name, value): addresses, block, core_id, channel_id, cpu_id; never an id or status
    """

    unit: str
    model_id: int
    stream_id: int
    task_id: int
    task_type: int
    context_id: int
    thread_id: int
    status: tuple[int, ...]
    path: str
    detail: tuple[tuple[str, int], ...] = ()


def overflow_records(folder: str, names: Sequence[str]) -> list[str]:
    """Return the record files of a folder, without the JSON of a binary file in the same folder."""
    mine = [name for name in names if name.startswith(f"{DEBUG}.") and not name.endswith(".csv")]
    binary = [name for name in mine if not name.endswith(".json")]
    alone = [name for name in mine if name.endswith(".json") and not any(name.startswith(one + ".") for one in binary)]
    return [os.path.join(folder, name) for name in sorted(binary + alone)]


def has_overflow(record: DeviceRecord) -> bool:
    """Return whether the unit flagged an overflow: any status word above 0."""
    return any(word > 0 for word in record.status)


def status_words(record: DeviceRecord) -> str:
    """Return the status in words, joined by "; "; every set bit is named, "bit 0x2000, unknown" if no source explains
    it.

    The first word of a four-word status is decoded like a single one. This is an assumption, no public source confirms
    it. The bits of the other words are unknown.
    """
    several = len(record.status) > 1
    named = [
        f"word {index}: {name}" if several else name
        for index, word in enumerate(record.status)
        for name in _bit_names(record.unit if index == 0 else "", word)
    ]
    return "; ".join(named) or "nothing flagged"


def _bit_names(unit: str, word: int) -> Iterator[str]:
    if unit in _CODES:
        shift, mask, meanings = _CODES[unit]
        code = word >> shift & mask
        if code in meanings:
            yield f"{meanings[code]} (code {code:#x})"
        elif code:
            yield f"code {code:#x}, unknown"
        word &= ~(mask << shift)
    bits = _CORE_BITS if unit in (_CORE, _VECTOR) else {}
    for bit in (1 << place for place in range(word.bit_length()) if word >> place & 1):
        yield f"{bits[bit]} ({bit:#x})" if bit in bits else f"bit {bit:#x}, unknown"


def same_task(record: DeviceRecord, task_id: int, stream_id: Optional[int]) -> bool:
    """Return whether the record is of this task: both ids agree modulo 65536, because some producers truncate them.

    A stream_id of None (file names of old generations have none) agrees with every stream, and so does a record without
    a stream (-1). A record without a task agrees with no task: -1 is not task 65535.
    """
    if record.task_id < 0 or (record.task_id - task_id) % 65536:
        return False
    return stream_id is None or record.stream_id < 0 or (record.stream_id - stream_id) % 65536 == 0


def read_records(path: str, context: ReadContext = ANYWHERE) -> tuple[DeviceRecord, ...]:
    """Return all records of an Opdebug file, in its order; a file name that ends in .json is read as JSON.

    The old layout has one record for each of its three units, even if a unit flagged nothing. DumpError for every file
    that is damaged, cut short, larger than 1 MiB or of another kind.
    """
    if path.lower().endswith(".json"):
        text = read_text(path, "record_bytes", context)
        return tuple(_from_json(path, json_object(text, path, "an overflow record", digits=20)))
    with open_regular(path, context) as file:
        file.limits.require(path, "record_bytes", file.size, "has {:,} bytes")
        return tuple(record for start, size in _payloads(file) for record in _Bytes(file, start, size).records())


def _payloads(file: RegularFile) -> list[tuple[int, int]]:
    """Return (offset, bytes) of the records: the outputs of a dump, or the whole file."""
    whole = [(0, file.size)]
    if file.size >= 4 and file.read(0, 4) == struct.pack("<I", MAGIC):
        return whole
    try:
        dump = cann_raw.read_raw(file)
    except DumpError:
        if file.size == OLD_LAYOUT:
            return whole
        raise
    outputs = [(tensor.offset, tensor.size) for tensor in dump.tensors if tensor.role == "output"]
    if not outputs and file.size == OLD_LAYOUT:  # its first bytes look like the header of an empty dump
        return whole
    if not outputs:
        raise DumpError(file.path, "a dump without an output: not an overflow record")
    return outputs


class _Bytes:
    """One binary record, of either layout."""

    def __init__(self, file: RegularFile, start: int, size: int) -> None:
        self.path = file.path
        self.start = start
        self.data = file.read(start, size)

    def records(self) -> Iterator[DeviceRecord]:
        if self.data[:4] == struct.pack("<I", MAGIC):
            return self._new()
        if len(self.data) == OLD_LAYOUT:
            return self._old()
        raise self._damage(
            f"an overflow record of {len(self.data)} bytes, neither {OLD_LAYOUT} nor the magic number", 0
        )

    def _old(self) -> Iterator[DeviceRecord]:
        for unit, (ids, status) in _OLD.items():
            values = dict(zip(_OLD_FIELDS, self._longs(ids, len(_OLD_FIELDS))))
            if unit == _CORE:
                values["kernel_code"], values["block"], word = self._longs(status, 3)
            else:
                (word,) = self._longs(status, 1)
            yield _record(self.path, unit, values, (word,))

    def _new(self) -> Iterator[DeviceRecord]:
        if len(self.data) < 24:
            raise self._damage(f"ended early: {len(self.data)} bytes of an overflow record", 0)
        (version,) = struct.unpack_from("<I", self.data, 4)
        if self.data[8:12] != _VALID:
            raise self._damage("its first entry is not marked as valid", 8)
        at = 8
        while self._is_entry(at):
            if len(self.data) - at < 16:
                raise self._damage("ended early: half an entry", at)
            _, kind, _, length = struct.unpack_from("<4I", self.data, at)
            if kind not in _KINDS:
                raise self._damage(f"unknown kind of accelerator {kind}", at + 4)
            word, unit, fields = _KINDS[kind]
            count = 4 if version == 1 and kind in (0, 1) else 1  # words of status
            needed = 8 * (len(fields) + count)
            if length != needed:
                raise self._damage(f"{length} bytes of {word} data, version {version} has {needed}", at + 12)
            if length > len(self.data) - at - 16:
                raise self._damage(f"ended early: {length} bytes of {word} data in {len(self.data) - at - 16}", at + 16)
            numbers = self._longs(at + 16, len(fields) + count)
            yield _record(self.path, unit, dict(zip(fields, numbers)), numbers[-count:])
            at += 16 + length

    def _is_entry(self, at: int) -> bool:
        """Return whether an entry begins here, even a truncated one."""
        mark = self.data[at : at + 4]
        return bool(mark) and _VALID.startswith(mark)

    def _longs(self, at: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self.data, at)

    def _damage(self, because: str, at: int) -> DumpError:
        return DumpError(self.path, because, self.start + at)


def _record(path: str, unit: str, values: Mapping[str, int], status: tuple[int, ...]) -> DeviceRecord:
    def number_of(name: str, *absent: int) -> int:
        value = values.get(name, -1)
        return -1 if value == _ALL_ONES or value in absent else value

    return DeviceRecord(
        unit,
        model_id=number_of("model_id"),
        stream_id=number_of("stream_id"),
        task_id=number_of("task_id"),
        task_type=number_of("task_type"),
        context_id=number_of("context_id", _NO_THREAD),
        thread_id=number_of("thread_id", _NO_THREAD),
        status=status,
        path=path,
        detail=tuple((name, values[name]) for name in _DETAILS if name in values),
    )


def _from_json(path: str, tree: dict[str, Any]) -> Iterator[DeviceRecord]:
    if "acc_list" not in tree:
        found = [unit for unit in _OLD if unit in tree]
        if not found:
            raise DumpError(path, "not an overflow record: neither a unit nor acc_list in it")
        for unit in found:
            yield _from_names(path, unit, tree[unit])
        return
    if "magic" in tree and _number(path, "magic", tree["magic"]) != MAGIC:
        raise DumpError(path, "not an overflow record: another magic number")
    entries = tree["acc_list"] if isinstance(tree["acc_list"], list) else [tree["acc_list"]]
    for index, entry in enumerate(entries or [{}]):
        if not isinstance(entry, dict) or "acc_type" not in entry:
            raise DumpError(path, f"entry {index} of acc_list has no acc_type")
        if _number(path, "valid", entry.get("valid", 1)) != 1:
            if index:
                return
            raise DumpError(path, "its first entry is not marked as valid")
        yield _from_names(path, _unit(path, entry["acc_type"]), entry.get("data"))


def _unit(path: str, kind: object) -> str:
    if isinstance(kind, str) and not _INTEGER.fullmatch(kind):
        if kind not in _UNITS:
            raise DumpError(path, f"unknown kind of accelerator {kind[:20]!r}")
        return _UNITS[kind]
    number = _number(path, "acc_type", kind)
    if number not in _KINDS:
        raise DumpError(path, f"unknown kind of accelerator {number}")
    return _KINDS[number][1]


def _from_names(path: str, unit: str, named: object) -> DeviceRecord:
    """Return the record of a JSON object; stream, task and status are required, other fields vary by product."""
    if not isinstance(named, dict):
        raise DumpError(path, f"the data of {unit} is not an object")
    missing = [name for name in ("stream_id", "task_id", "status") if name not in named]
    if missing:
        raise DumpError(path, f"{missing[0]} of {unit} is missing")
    values = {}
    for name, value in named.items():
        name = _SPELLED.get(name, name)
        if name in _DETAILS:
            values[name] = _number(path, name, value)
        elif name in (*_IDS, "thread_id"):
            values[name] = _number(path, name, value, least=-1)
    status = named["status"] if isinstance(named["status"], list) else [named["status"]]
    if len(status) not in (1, 4):
        raise DumpError(path, f"a status of {len(status)} words; 1 or 4 are known")
    return _record(path, unit, values, tuple(_number(path, "status", word) for word in status))


def _number(path: str, name: str, value: object, least: int = 0) -> int:
    """Return an integer of at most 64 bits, given as a number or as decimal or hexadecimal text."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value, 16 if value[:2] in ("0x", "0X") else 10)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DumpError(path, f"{name} is not an integer")
    if not least <= value <= _ALL_ONES:
        raise DumpError(path, f"{name} is {value}, not from {least} to 2^64 - 1")
    return value
