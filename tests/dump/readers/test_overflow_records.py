"""Overflow records of the device: both binary layouts and their JSON give equal records, damage is a DumpError."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.dump.readers.overflow_records import DeviceRecord, has_overflow, read_records, same_task, status_words
from npucmp.errors import DumpError

FLAGS = {"DHA Atomic Add": 0x900, "L2 Atomic Add": 0x10000, "AI Core": 272}
CORE = "model_id stream_id task_id task_type context_id thread_id pc_start para_base core_id block_id status"
NAMES = {  # number, word, unit, fields in the order of the file
    "AIC": (0, "AI Core", CORE),
    "AIV": (1, "AI Vector", CORE),
    "AICPU": (2, "AI CPU", "model_id stream_id task_id task_type context_id cpu_id thread_id status"),
    "SDMA": (
        3,
        "SDMA",
        "model_id stream_id task_id task_type context_id thread_id src_addr dst_addr channel_id status",
    ),
}
HEX = {"pc_start", "para_base", "kernel_code", "src_addr", "dst_addr"}
VALUES = {
    **{"model_id": 514, "stream_id": 563, "task_id": 57, "task_type": 2, "context_id": 4, "thread_id": 1},
    **{"pc_start": 0x1008005B0000, "para_base": 0x100800297000, "kernel_code": 0x1008005AE000, "block_idx": 3},
    **{"block_id": 6, "core_id": 7, "src_addr": 0x12C041200000, "dst_addr": 0x12C041400000, "channel_id": 11},
    **{"cpu_id": 5, "status": 32},
}
IDS = ("model_id", "stream_id", "task_id", "task_type")


def old(**flags: int) -> bytes:
    """The 2048 bytes of the old layout; keywords dha, l2 and core are the status words."""
    data = bytearray(2048)
    base = [VALUES[name] for name in (*IDS, "pc_start", "para_base")]
    for unit, ids, status in (("dha", 0, 512), ("l2", 128, 768)):
        if flags.get(unit):
            data[ids : ids + 48] = struct.pack("<6Q", *base)
            data[status : status + 8] = struct.pack("<Q", flags[unit])
    if flags.get("core"):
        data[256:304] = struct.pack("<6Q", *base)
        data[1024:1048] = struct.pack("<3Q", VALUES["kernel_code"], VALUES["block_idx"], flags["core"])
    return bytes(data)


def entry(kind: str, *status: int, valid: int = 1, longer: int = 0, number: int = -1, **values: int) -> bytes:
    default, _, fields = NAMES[kind]
    numbers = [{**VALUES, **values}[name] for name in fields.split()[:-1]] + list(status or (32,))
    head = struct.pack("<4I", valid, default if number < 0 else number, 0, 8 * len(numbers) + longer)
    return head + struct.pack(f"<{len(numbers)}Q", *numbers)


def new(*entries: bytes, version: int = 0) -> bytes:
    return b"ZZZZ" + struct.pack("<I", version) + b"".join(entries)


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value > 0x7F else bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def dump(*payloads: bytes, role: int = 3) -> bytes:
    """A version 2 dump around the payloads; role 3 are outputs, 4 inputs."""
    header = message(1, b"2.0") + b"\x10\x01"
    for payload in payloads:
        shape = message(3, message(1, varint(len(payload))))
        header += message(
            role, b"\x08\x04\x10\x02" + shape + (b"\x30" if role == 3 else b"\x28") + varint(len(payload))
        )
    header += message(6, b"Node_OpDebug")
    return struct.pack("<Q", len(header)) + header + b"".join(payloads)


def shown(name: str, value: int) -> object:
    return hex(value) if name in HEX else value


def old_json(block: str = "block_idx", **flags: int) -> dict[str, dict[str, object]]:
    tree = {}
    for key, unit in (("dha", "DHA Atomic Add"), ("l2", "L2 Atomic Add"), ("core", "AI Core")):
        on = flags.get(key, 0)
        names = [*IDS, "pc_start", "para_base"] + ["kernel_code", "block_idx"] * (key == "core")
        tree[unit] = {name: shown(name, VALUES[name] if on else 0) for name in names}
        tree[unit]["status"] = on
    tree["AI Core"][block] = tree["AI Core"].pop("block_idx")
    return tree


def entry_json(kind: str, *status: int, **values: int) -> dict[str, object]:
    names = NAMES[kind][2].split()[:-1]
    data: dict[str, object] = {name: shown(name, {**VALUES, **values}[name]) for name in names}
    data["status"] = list(status) if len(status) > 1 else (status or (32,))[0]
    return {"valid": 1, "acc_type": kind, "rsv": 0, "data_len": 8 * (len(names) + max(1, len(status))), "data": data}


def new_json(acc_list: object, version: int = 0) -> dict[str, object]:
    return {"magic": "0x5a5a5a5a", "version": version, "acc_list": acc_list}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("opdebug")


def written(folder, data: object) -> str:
    """Bytes as a binary file, anything else as JSON."""
    path = folder / ("Opdebug.Node_OpDebug.1.5.173" if isinstance(data, bytes) else "Opdebug.1.5.173.output.0.json")
    return fresh(path, data if isinstance(data, bytes) else json.dumps(data, indent=4).encode())


def fresh(path, data: bytes) -> str:
    path.unlink(missing_ok=True)  # a file cut to nothing and written again is flushed to the disk: slow
    path.write_bytes(data)
    return str(path)


def records(folder, data: object) -> tuple[DeviceRecord, ...]:
    """As read, without the path: what twins have in common."""
    path = written(folder, data)
    found = read_records(path)
    assert all(record.path == path for record in found)
    return tuple(record._replace(path="") for record in found)


@pytest.mark.parametrize("wrap", [bytes, dump], ids=["raw", "dump"])
@pytest.mark.parametrize(
    "flags", [{"dha": 0x900}, {"l2": 0x10000}, {"core": 272}, {"dha": 1, "l2": 2, "core": 3}, {}], ids=str
)
def test_old_layout(folder, flags, wrap):
    found = records(folder, wrap(old(**flags)))
    assert [record.unit for record in found] == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]
    assert [record.status for record in found] == [(flags.get(key, 0),) for key in ("dha", "l2", "core")]
    assert [has_overflow(record) for record in found] == [key in flags for key in ("dha", "l2", "core")]
    assert [record.task_id for record in found] == [57 * (key in flags) for key in ("dha", "l2", "core")]
    assert found == records(folder, old_json(**flags)) == records(folder, old_json("block_id", **flags))


def test_fields_of_the_old_layout(folder):
    record = records(folder, old(core=272))[2]
    detail = tuple((name.replace("_idx", ""), VALUES[name]) for name in ("pc_start", "para_base", "kernel_code"))
    assert record == ("AI Core", 514, 563, 57, 2, -1, -1, (272,), "", (*detail, ("block", 3)))


@pytest.mark.parametrize("wrap", [bytes, dump], ids=["raw", "dump"])
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("kind", NAMES)
def test_new_layout(folder, kind, version, wrap):
    status = (0, 0x20, 0, 5) if version == 1 and kind in ("AIC", "AIV") else (40,)
    (record,) = found = records(folder, wrap(new(entry(kind, *status), version=version)))
    names = [name for name in NAMES[kind][2].split() if name not in (*IDS, "context_id", "thread_id", "status")]
    assert record[:8] == (NAMES[kind][1], 514, 563, 57, 2, 4, 1, status)
    assert dict(record.detail) == {
        name.replace("_id", "") if name == "block_id" else name: VALUES[name] for name in names
    }
    for twin in (entry_json(kind, *status), [entry_json(kind, *status)]):
        assert found == records(folder, new_json(twin, version))


def test_the_number_of_a_kind_in_json(folder):
    assert records(folder, new_json({**entry_json("AIV"), "acc_type": 1})) == records(folder, new(entry("AIV")))


def test_all_entries_of_the_list(folder):
    data = new(entry("AIC", 1, 0, 0, 0), entry("SDMA", 2), entry("AIV", 0, 0, 0, 3), version=1)
    found = records(folder, data)
    assert [(record.unit, sum(record.status)) for record in found] == [("AI Core", 1), ("SDMA", 2), ("AI Vector", 3)]
    twins = [entry_json("AIC", 1, 0, 0, 0), entry_json("SDMA", 2), entry_json("AIV", 0, 0, 0, 3)]
    assert found == records(folder, new_json(twins, 1))


@pytest.mark.parametrize("rest", [bytes(1), bytes(1936), b"\xff" * 9, entry("SDMA", valid=0), entry("AIC", valid=257)])
def test_what_is_no_entry_ends_the_list(folder, rest):
    assert len(records(folder, dump(new(entry("AIC"), rest)))) == 1


def test_an_invalid_entry_ends_the_list_in_json(folder):
    twins = [entry_json("AIC"), {**entry_json("SDMA"), "valid": 0}]
    assert records(folder, new_json(twins)) == records(folder, new(entry("AIC"), entry("SDMA", valid=0)))


def test_records_of_all_outputs(folder):
    found = records(folder, dump(old(core=32), new(entry("SDMA"))))
    assert [record.unit for record in found if has_overflow(record)] == ["AI Core", "SDMA"]


def test_ids_that_tell_nothing(folder):
    """65535 in context and thread: not cut into slices. All ones: -1."""
    unknown = {"context_id": 65535, "thread_id": 65535, "stream_id": 2**64 - 1}
    (record,) = found = records(folder, new(entry("AIC", **unknown)))
    assert (record.context_id, record.thread_id, record.stream_id, record.task_id) == (-1, -1, -1, 57)
    assert found == records(folder, new_json(entry_json("AIC", **{**unknown, "stream_id": -1})))
    assert records(folder, new(entry("AIC", task_id=65535)))[0].task_id == 65535


@pytest.mark.parametrize("form", [str, hex, lambda value: f"0X{value:X}"], ids=["decimal", "hex", "upper"])
def test_numbers_as_text(folder, form):
    tree = old_json(core=272)
    texts = {unit: {name: form(int(str(value), 0)) for name, value in data.items()} for unit, data in tree.items()}
    assert records(folder, texts) == records(folder, tree)
    listed = entry_json("AIC", 1, 2, 3, 4)
    listed["data"]["status"] = [form(word) for word in (1, 2, 3, 4)]  # type: ignore[index]
    assert records(folder, new_json(listed))[0].status == (1, 2, 3, 4)


def test_json_of_other_products(folder):
    """Only some units, no ids but stream and task, further names."""
    tree = {"AI Core": {"stream_id": 5, "task_id": 6, "context_id": 7, "status": 8, "new_name": "text"}, "other": []}
    assert records(folder, tree) == (("AI Core", -1, 5, 6, -1, 7, -1, (8,), "", ()),)


def test_where_a_text_begins(folder):
    path = folder / "a.JSON"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(old_json(core=32)).encode())
    assert [has_overflow(record) for record in read_records(str(path))] == [False, False, True]


MEANINGS = [
    ("AI Core", 0, "nothing flagged"),
    ("AI Core", 0x8, "negation of the smallest signed integer (0x8)"),
    ("AI Vector", 32, "floating point overflow (0x20)"),
    ("AI Core", 0x80, "negative float converted to unsigned (0x80)"),
    ("AI Core", 0x400, "cube accumulate overflow (0x400)"),
    (
        "AI Core",
        272,
        "integer add, subtract, multiply or multiply-add overflow (0x10); float32 or int32 to float16 overflow (0x100)",
    ),
    ("AI Core", 0x2020, "floating point overflow (0x20); bit 0x2000, unknown"),
    ("AI Core", 1 << 63, "bit 0x8000000000000000, unknown"),
    ("DHA Atomic Add", 0x900, "overflow (code 0x9)"),
    ("DHA Atomic Add", 0xA00, "underflow (code 0xa)"),
    ("DHA Atomic Add", 0xB00, "source is NaN (code 0xb)"),
    ("DHA Atomic Add", 0xC00, "destination is NaN (code 0xc)"),
    ("DHA Atomic Add", 0x10D01, "source and destination are NaN (code 0xd); bit 0x1, unknown; bit 0x10000, unknown"),
    ("DHA Atomic Add", 0x800, "code 0x8, unknown"),
    ("DHA Atomic Add", 32, "bit 0x20, unknown"),
    ("L2 Atomic Add", 0x10000, "overflow (code 0x1)"),
    ("L2 Atomic Add", 0x20000, "underflow (code 0x2)"),
    ("L2 Atomic Add", 0x30000, "source is NaN (code 0x3)"),
    ("L2 Atomic Add", 0x40000, "destination is NaN (code 0x4)"),
    ("L2 Atomic Add", 0xD0000, "source and destination are NaN (code 0x5); bit 0x80000, unknown"),
    ("L2 Atomic Add", 0x60000, "code 0x6, unknown"),
    ("AI CPU", 0x20, "bit 0x20, unknown"),
    ("SDMA", 3, "bit 0x1, unknown; bit 0x2, unknown"),
]


def record(unit: str, *status: int) -> DeviceRecord:
    return DeviceRecord(unit, 1, 2, 3, 0, -1, -1, status, "a")


@pytest.mark.parametrize("unit, status, text", MEANINGS)
def test_status_in_words(unit, status, text):
    assert status_words(record(unit, status)) == text
    assert has_overflow(record(unit, status)) == (status > 0)


def test_four_words_of_status():
    assert status_words(record("AI Core", 0, 0, 0, 0)) == "nothing flagged"
    assert not has_overflow(record("AI Core", 0, 0, 0, 0)) and has_overflow(record("AI Vector", 0, 0, 0, 1))
    text = "word 0: floating point overflow (0x20); word 2: bit 0x20, unknown; word 3: bit 0x1, unknown"
    assert status_words(record("AI Vector", 0x20, 0, 0x20, 1)) == text


WORD = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.sampled_from(["AI Core", "AI Vector", "AI CPU", "SDMA", *FLAGS, "other"]), st.lists(WORD, max_size=4))
def test_every_set_bit_is_named(unit, status):
    text = status_words(record(unit, *status))
    codes = {"DHA Atomic Add": (8, 0xFF), "L2 Atomic Add": (16, 7)}
    for index, word in enumerate(status):
        start = f"word {index}: " if len(status) > 1 else ""
        named = [part[len(start) :] for part in text.split("; ") if part.startswith(start)]
        shift, mask = codes.get(unit, (0, 0)) if index == 0 else (0, 0)
        bits = [1 << place for place in range(64) if word >> place & 1 and not mask << shift >> place & 1]
        expected = [f"code {word >> shift & mask:#x}"] * bool(word >> shift & mask) + [f"{bit:#x}" for bit in bits]
        assert len(named) == len(expected) or not any(status)
        assert all(name in part for name, part in zip(expected, named))


@pytest.mark.parametrize(
    "task, stream, asked, expected",
    [
        (57, 563, (57, 563), True),
        (57, 563, (58, 563), False),
        (57, 563, (57, 564), False),
        (57, 563, (57, None), True),
        (57, 563, (58, None), False),
        (57, 0, (57, 0), True),
        (57, 563, (57, 0), False),
        (4464, 3, (70_000, 3), True),
        (70_000, 3, (4464, 3), True),
        (70_000, 3, (70_000, 3), True),
        (57, 65_539, (57, 3), True),
        (57, -1, (57, 3), True),
        (-1, 3, (65_535, 3), False),
        (-1, 3, (-1, 3), False),
    ],
)
def test_same_task(task, stream, asked, expected):
    assert same_task(record("AI Core", 1)._replace(task_id=task, stream_id=stream), *asked) is expected


DAMAGE = {
    "empty": (b"", "ended early"),
    "not 2048": (dump(old()[:-1]), "2047 bytes, neither 2048 nor the magic"),
    "more than 2048": (dump(old() + b"\0"), "2049 bytes, neither"),
    "256 bytes": (dump(old()[:256]), "256 bytes, neither"),
    "no payload": (dump(b""), "0 bytes, neither"),
    "no output": (dump(), "without an output"),
    "an input": (dump(old(core=1), role=4), "without an output"),
    "payload cut": (dump(old(core=1))[:-1], "ended early"),
    "larger than 1 MiB": (bytes((1 << 20) + 1), "more than the limit record_bytes of 1,048,576"),
    "magic only": (b"ZZZZ", "ended early: 4 bytes"),
    "no list": (new(), "ended early: 8 bytes"),
    "no entry": (new(bytes(16)), "not marked as valid"),
    "first entry invalid": (new(entry("AIC", valid=0)), r"not marked as valid \(at byte 8\)"),
    "unknown kind": (new(entry("AIC", number=4)), r"unknown kind of accelerator 4 \(at byte 12\)"),
    "too long by a word": (new(entry("AIC", longer=8) + bytes(8)), r"96 bytes of AIC data, .* has 88 \(at byte 20\)"),
    "too long by a byte": (new(entry("SDMA", longer=1) + bytes(8)), "81 bytes of SDMA data, version 0 has 80"),
    "too short": (new(entry("AICPU", longer=-8)), "56 bytes of AICPU data, version 0 has 64"),
    "one word in version 1": (new(entry("AIC"), version=1), "88 bytes of AIC data, version 1 has 112"),
    "four words in version 0": (new(entry("AIV", 1, 2, 3, 4)), "112 bytes of AIV data, version 0 has 88"),
    "four words of SDMA": (new(entry("SDMA", 1, 2, 3, 4), version=1), "104 bytes of SDMA data, version 1 has 80"),
    "cut": (new(entry("AIC"))[:-1], r"ended early: 88 bytes of AIC data in 87 \(at byte 24\)"),
    "second cut": (new(entry("AIC"), entry("SDMA")[:-1]), r"80 bytes of SDMA data in 79 \(at byte 128\)"),
    "second has half a head": (new(entry("AIC"), entry("SDMA")[:9]), "ended early: half an entry"),
    "second is damaged": (new(entry("AIC"), entry("SDMA", number=9)), "unknown kind of accelerator 9"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(folder, kind):
    data, why = DAMAGE[kind]
    with pytest.raises(DumpError, match=why):
        read_records(written(folder, data))


def test_offsets_are_those_of_the_file(folder):
    data = dump(new(entry("AIC", number=4)))
    with pytest.raises(DumpError) as caught:
        read_records(written(folder, data))
    assert caught.value.offset == data.index(b"ZZZZ") + 12


CORE_JSON = old_json(core=32)["AI Core"]
ODD = entry_json("AIC")
OTHER_SHAPES = {
    "a list": ([], "not an object"),
    "a number": (1, "not an object"),
    "empty": ({}, "neither a unit nor acc_list"),
    "statistics": ({"data": {}}, "neither a unit nor acc_list"),
    "unit is a list": ({"AI Core": []}, "the data of AI Core is not an object"),
    "unit is null": ({"AI Core": None}, "the data of AI Core is not an object"),
    "no status": ({"AI Core": {"task_id": 1, "stream_id": 1}}, "status of AI Core is missing"),
    "no task": ({"L2 Atomic Add": {"stream_id": 1, "status": 1}}, "task_id of L2 Atomic Add is missing"),
    "status is text": ({"AI Core": {**CORE_JSON, "status": "much"}}, "status is not an integer"),
    "status is empty": ({"AI Core": {**CORE_JSON, "status": ""}}, "status is not an integer"),
    "status is a fraction": ({"AI Core": {**CORE_JSON, "status": 32.5}}, "status is not an integer"),
    "status is true": ({"AI Core": {**CORE_JSON, "status": True}}, "status is not an integer"),
    "status is null": ({"AI Core": {**CORE_JSON, "status": None}}, "status is not an integer"),
    "status is infinite": ({"AI Core": {**CORE_JSON, "status": float("inf")}}, "status is not an integer"),
    "status is negative": ({"AI Core": {**CORE_JSON, "status": -1}}, "status is -1, not from 0"),
    "status of 65 bits": ({"AI Core": {**CORE_JSON, "status": 2**64}}, "status is 18446744073709551616"),
    "status of 65 bits as text": ({"AI Core": {**CORE_JSON, "status": "0x1" + "0" * 16}}, "status is not an integer"),
    "status in other digits": ({"AI Core": {**CORE_JSON, "status": "٣٢"}}, "status is not an integer"),
    "status of 2 words": ({"AI Core": {**CORE_JSON, "status": [1, 2]}}, "a status of 2 words"),
    "status of no word": ({"AI Core": {**CORE_JSON, "status": []}}, "a status of 0 words"),
    "status of lists": ({"AI Core": {**CORE_JSON, "status": [[1]]}}, "status is not an integer"),
    "task is -2": ({"AI Core": {**CORE_JSON, "task_id": -2}}, "task_id is -2, not from -1"),
    "address is text": ({"AI Core": {**CORE_JSON, "pc_start": "pc"}}, "pc_start is not an integer"),
    "address is negative": ({"AI Core": {**CORE_JSON, "pc_start": -1}}, "pc_start is -1"),
    "absurd number": ({"AI Core": {**CORE_JSON, "status": 10**4000}}, "a number of 4001 digits"),
    "absurd number elsewhere": ({"a": 10**21, "AI Core": CORE_JSON}, "a number of 22 digits"),
    "other magic": ({**new_json(ODD), "magic": "0x5a5a5a5b"}, "another magic number"),
    "magic is text": ({**new_json(ODD), "magic": "ZZZZ"}, "magic is not an integer"),
    "acc_list is null": (new_json(None), "entry 0 of acc_list has no acc_type"),
    "acc_list is text": (new_json("AIC"), "entry 0 of acc_list has no acc_type"),
    "acc_list is empty": (new_json([]), "entry 0 of acc_list has no acc_type"),
    "acc_list is an empty object": (new_json({}), "entry 0 of acc_list has no acc_type"),
    "acc_list of numbers": (new_json([ODD, 1]), "entry 1 of acc_list has no acc_type"),
    "unknown word": (new_json({**ODD, "acc_type": "AIX" * 50}), "unknown kind of accelerator 'AIXAIX"),
    "unknown kind": (new_json({**ODD, "acc_type": 4}), "unknown kind of accelerator 4"),
    "kind is null": (new_json({**ODD, "acc_type": None}), "acc_type is not an integer"),
    "kind is a list": (new_json({**ODD, "acc_type": []}), "acc_type is not an integer"),
    "invalid": (new_json({**ODD, "valid": 0}), "its first entry is not marked as valid"),
    "valid is text": (new_json({**ODD, "valid": "yes"}), "valid is not an integer"),
    "no data": (new_json({"valid": 1, "acc_type": "AIC"}), "the data of AI Core is not an object"),
    "data are a list": (new_json({**ODD, "data": [1]}), "the data of AI Core is not an object"),
}


@pytest.mark.parametrize("kind", OTHER_SHAPES)
def test_json_of_other_shape(folder, kind):
    data, why = OTHER_SHAPES[kind]
    with pytest.raises(DumpError, match=why):
        read_records(written(folder, data))


TEXTS = {
    "empty": (b"", "not JSON: line 1"),
    "binary": (old(core=1), "not UTF-8"),
    "not UTF-8": (b'{"AI Core": "\xff"}', "not UTF-8"),
    "deep": (b"[" * 100_000, "nested too deep"),
    "deep objects": (b'{"AI Core":' * 50_000, "nested too deep"),
    "larger than 1 MiB": (b" " * ((1 << 20) + 1), "more than the limit record_bytes of 1,048,576"),
    "two": (b"{}{}", "not JSON: line 1"),
    "digits": (b"1" * 1_000_000, "a number of 1000000 digits"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_that_are_no_json(folder, kind):
    data, why = TEXTS[kind]
    path = folder / "a.json"
    path.write_bytes(data)
    with pytest.raises(DumpError, match=why):
        read_records(str(path))


def test_what_is_not_a_file(folder):
    (folder / "b.json").mkdir(exist_ok=True)
    paths = [(folder, "a directory"), (folder / "b.json", "a directory"), (folder / "none", "no such file")]
    for path, why in (
        *paths,
        (folder / "none.json", "no such file"),
        ("/dev/zero", "a device"),
        ("a\0b", "not a file"),
    ):
        with pytest.raises(DumpError, match=why):
            read_records(str(path))


WHOLE = {
    "old": old(dha=0x900, core=272),
    "old in a dump": dump(old(dha=0x900, core=272)),
    "new": new(entry("AIC")),
    "new in a dump": dump(new(entry("AIV", 1, 2, 3, 4), version=1)),
    "two entries": new(entry("AIC"), entry("SDMA")),
    "two entries in a dump": dump(new(entry("AIC"), entry("SDMA"))),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_every_prefix_is_an_error(folder, kind):
    """But for a bare list of two entries that is cut exactly between them."""
    read_records(written(folder, WHOLE[kind]))
    for length in range(len(WHOLE[kind])):
        if kind == "two entries" and length == len(new(entry("AIC"))):
            continue
        with pytest.raises(DumpError):
            read_records(written(folder, WHOLE[kind][:length]))


def test_every_prefix_of_json_is_an_error(folder):
    path = folder / "a.json"
    for tree in (old_json(core=32), new_json(entry_json("AIC", 1, 2, 3, 4))):
        text = json.dumps(tree)
        for length in range(len(text)):
            with pytest.raises(DumpError):
                read_records(fresh(path, text[:length].encode()))


@pytest.mark.parametrize("kind", [*WHOLE, "old.json", "new.json"])
def test_flipped_bits(folder, kind):
    """A DumpError, or records whose status can still be put into words."""
    twins = {"old.json": old_json(core=32), "new.json": new_json([entry_json("AIC"), entry_json("SDMA")])}
    whole = json.dumps(twins[kind]).encode() if kind in twins else WHOLE[kind]
    path = folder / f"flipped {kind}"
    rng = random.Random(kind)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 400))] ^= 1 << rng.randrange(8)
        try:
            found = read_records(fresh(path, data))
        except DumpError:
            continue
        assert found and all(status_words(one) for one in found)
