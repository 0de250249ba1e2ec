"""Every format with the same damages: a file that was cut, replaced, changed or lost is refused, or costs its own rows,
and never agrees.

The questions go to `open_runs` and `compare`. Parsers are asked byte by byte in tests/dump/readers, and tests/fuzz.py
draws further damages.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npucmp
from npucmp import open_runs
from npucmp.dump.readers import hdf5 as hdf5_reader
from npucmp.errors import DumpError, NpucmpError
from npucmp.measure.pairs import measure
from npucmp.model import Pair, Verdict
from npucmp.model.dtypes import size_of
from tests import fuzz
from tests.command import npucmp as command_line
from tests.dump.formats import test_cann as cann
from tests.dump.formats import test_tfdbg as tfdbg
from tests.dump.formats.test_every_format import STATISTICS, WRITERS
from tests.dump.formats.test_mindspore import write_raw
from tests.synthetic import chain, write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
EVERY = {**WRITERS, "raw bytes": write_raw}
GARBAGE = random.Random(1).getrandbits(8 * 4096).to_bytes(4096, "big")
SHORTER = {
    "empty": lambda data: b"",
    "40 % of it": lambda data: data[: int(0.4 * len(data))],
    "half of it": lambda data: data[: len(data) // 2],
    "90 % of it": lambda data: data[: int(0.9 * len(data))],
    "two bytes lost": lambda data: data[:-2],
    "garbage": lambda data: (GARBAGE * (1 + len(data) // 4096))[: len(data)],
}


@pytest.fixture
def near(monkeypatch):
    """The HDF5 library works in this process, as each other process takes a second."""
    monkeypatch.setattr(hdf5_reader, "ISOLATED", False)


def largest(folder: Path) -> Path:
    return max((one for one in folder.rglob("*") if one.is_file()), key=lambda one: (one.stat().st_size, one))


@pytest.mark.few(5)
@pytest.mark.parametrize("name", EVERY)
def test_a_damaged_file_agrees_with_nothing(tmp_path, name, near):
    """The largest file of the target: a typed error, an unreadable row, another shape or a missing partner. If a table
    was cut inside its last cell, no reader can know."""
    for side in ("target", "golden"):
        EVERY[name](tmp_path / side, False)
    file = largest(tmp_path / "target")
    data = file.read_bytes()
    for damage, change in SHORTER.items():
        if name == "monitor" and damage == "two bytes lost":
            continue
        file.write_bytes(change(data))
        try:
            report = npucmp.compare(tmp_path / "target", tmp_path / "golden", trust_statistics=name in STATISTICS)
        except NpucmpError as error:
            assert str(file) in str(error) or str(tmp_path / "target") in str(error), damage
            assert "\n" not in str(error), damage
        else:
            assert report.exit_status != 0, damage


@pytest.mark.parametrize("damage", ["a byte lost", "empty", "garbage", "lost"])
def test_a_damaged_tensor_that_a_record_lists_is_unreadable(tmp_path, damage):
    target, golden = write_run(tmp_path / "target", chain()), write_run(tmp_path / "golden", chain())
    file = next(target.glob("step0/*/dump_tensor_data/*linear.3.forward.output.0.npy"))
    content = file.read_bytes()
    file.unlink()
    if damage != "lost":
        file.write_bytes({"a byte lost": content[:-1], "empty": b"", "garbage": os.urandom(len(content))}[damage])
    report = npucmp.compare(target, golden)
    place = ("Functional.linear.3.forward", "output:0")
    found = [one.verdict for one in report.findings if (one.pair.operator.name, one.pair.slot) == place]
    assert found == [Verdict.UNREADABLE] and report.exit_status != 0


def test_the_command_line_reports_a_broken_file_as_a_row_without_slot(tmp_path):
    for side in ("target", "golden"):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "conv.0.1795254505853561.npy", np.ones(5))
        np.save(tmp_path / side / "relu.0.1795254505853562.npy", np.ones(5))
    (tmp_path / "target" / "conv.0.1795254505853561.npy").write_bytes(b"no header")
    assert (
        command_line("compare", tmp_path / "target", tmp_path / "golden", "-q", "-o", tmp_path / "out").returncode == 2
    )
    with open(tmp_path / "out" / "tensors.csv", newline="", encoding="utf-8") as stream:
        found = [(row["op"], row["slot"], row["verdict"]) for row in csv.DictReader(stream)]
    assert found == [("conv", "", "unreadable"), ("relu", "output:0", "match")]


# --- a file that holds something else


def cann_statistics(folder: Path, wrong: bool) -> None:
    folder.mkdir()
    cann.save(folder, **{cann.file("a", tail=".csv"): cann.STATISTICS, cann.file("good", 1): cann.SMALL})


BY_FILE = {name: WRITERS[name] for name in ("cann", "mindspore", "tfdbg", "fx", "atb", "saved", "npy", "pt")}
BY_FILE["statistics of cann"] = cann_statistics
OTHERS = [b"", b"\0", bytes(64), b"words\n", b"\xff\xfe", GARBAGE[:300], b"PK\x03\x04", b"PK\x03\x04" + bytes(200),
          b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff{'descr'", b"\x09" + bytes(8), b"\x32\x01x", b"\x2a\x00",
          b"\x2a\x02\x0a\x00", cann.SMALL[:40], cann.HEADER.encode()]  # fmt: skip


def replaced(name: str, folder: Path) -> Path:
    """The file of one tensor or operator in a dump of a format."""
    BY_FILE[name](folder, False)
    return next(folder.rglob("*.csv")) if name == "statistics of cann" else largest(folder)


@pytest.mark.parametrize("name", BY_FILE)
def test_a_broken_file_is_one_unreadable_tensor(tmp_path, name):
    """It has no slot, as nothing tells which; no other tensor of the dump is harmed."""
    file = replaced(name, tmp_path / "d")
    before = tensors(tmp_path / "d")
    assert not [one for one in before if one.problem]
    for data in OTHERS:
        file.write_bytes(data)
        found = tensors(tmp_path / "d")
        assert [(one.slot, one.is_output) for one in found if one.problem] == [("", True)], data
        unharmed = [one.label for one in before if not lies_in(one, file)]
        assert sorted(one.label for one in found if not one.problem) == sorted(unharmed), data


@pytest.mark.parametrize("name", BY_FILE)
def test_a_link_to_nothing_is_one_unreadable_tensor(tmp_path, name):
    file = replaced(name, tmp_path / "d")
    file.unlink()
    file.symlink_to("gone")
    assert [(one.slot, one.is_output) for one in tensors(tmp_path / "d") if one.problem] == [("", True)]


def tensors(folder: Path) -> list:
    return [one for run in open_runs(folder) for operator in run.operators for one in operator.tensors]


def lies_in(one, file: Path) -> bool:
    place = one.file or (one.payload.file if one.payload else "")
    return place == str(file) if place else one.label.startswith(file.name)


# --- a file that is shorter or longer

SAMPLED = ("cann_fusion_pass", "mindspore_layer_norm", "msprobe_bfloat16", "tfdbg_batch_norm")
LENGTHS = (lambda data: data[:-1], lambda data: data[: len(data) // 2], lambda data: data + b"\0")


@pytest.mark.few(3)
@pytest.mark.parametrize("sample", ["npy_batch_norm", *SAMPLED])
def test_a_file_of_another_length_is_never_a_match(sample, tmp_path):
    """Where a file holds several tensors, those that are whole may be compared. Raw CANN dumps may go on behind the
    payloads that npucmp knows of, as newer writers know more."""
    shutil.copytree(SAMPLES / sample, tmp_path / "d")
    target, golden = tmp_path / "d" / "target", tmp_path / "d" / "golden"
    report = npucmp.compare(target, golden, jobs=1)
    good = {one.pair.target.file for one in report.findings if one.verdict is Verdict.MATCH and one.pair.target.file}
    for file in sorted(good)[:2]:
        data = Path(file).read_bytes()
        for damaged in (change(data) for change in LENGTHS):
            Path(file).write_bytes(damaged)
            findings = npucmp.compare(target, golden, jobs=1).findings
            found = [one for one in findings if one.pair.target and one.pair.target.file == file]
            longer = "cann" in sample and len(damaged) > len(data)
            assert longer or Verdict.UNREADABLE in {one.verdict for one in found}
            whole = [one.pair.target.payload for one in found if one.verdict is not Verdict.UNREADABLE]
            assert all(one and one.offset + size_of(one.dtype, one.shape) <= len(damaged) for one in whole)
        Path(file).write_bytes(data)


def test_every_prefix_of_a_tensorflow_event_is_an_unreadable_tensor(tmp_path):
    for whole in EVENTS:
        for size in range(len(whole)):
            tensor = tfdbg.only(tfdbg.write_one(tmp_path, whole[:size]))
            assert tensor.problem and tensor.slot == "" and tensor.payload is None


EVENTS = (tfdbg.floats(1, 2, 3), tfdbg.event(1, (2,), float_val=[1, 2]), tfdbg.event(9, (2, 1), bytes(16)),
          tfdbg.event(20, (), b"abc"), tfdbg.event(7, (), string_val=[b"a"]))  # fmt: skip


# --- bytes that changed: rows or DumpError, nothing else


def drained(path: Path) -> None:
    """Open a dump and read all of it: each tensor has values or a problem."""
    try:
        runs = open_runs(path)
    except DumpError as error:
        assert str(path) in str(error) and "\n" not in str(error) and len(error.because) < 300
        return
    for operator in (operator for run in runs for operator in run.operators):
        for found in operator.tensors:
            if path.suffix == ".h5":
                assert bool(found.problem) != bool(found.payload)
            measure(Pair(0, found.slot, operator, None, found, None))


CHANGED = [0, 1, 0x7F, 0x80, 0xFF]


def spoilt(data: bytes, chance: random.Random, used: list[int]) -> bytes:
    """One to four bytes that hold something are zeroed, flipped in one bit, or set."""
    changed = bytearray(data)
    for place in chance.sample(used, min(len(used), chance.randint(1, 4))):
        changed[place] = chance.choice([*CHANGED, changed[place] ^ 1 << chance.randrange(8)])
    return bytes(changed)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [name for name in EVERY if name != "hdf5"])
def test_changed_bytes_are_read_or_told(tmp_path, name, near):
    EVERY[name](tmp_path / "d", False)
    file = largest(tmp_path / "d")
    data, chance = file.read_bytes(), random.Random(name)
    used = [place for place, byte in enumerate(data) if byte or place < 200]
    for _ in range(30):
        file.write_bytes(spoilt(data, chance, used))
        drained(tmp_path / "d")


@given(st.data())
def test_a_damaged_tensorflow_event_is_a_row(tmp_path_factory, data):
    whole = data.draw(st.sampled_from(EVENTS))
    changed = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    check_any_event(tmp_path_factory, bytes(changed))


@given(st.binary(max_size=60))
@example(b"\x2a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
@example(b"\x0b" * 50)
def test_random_bytes_are_no_tensorflow_event(tmp_path_factory, data):
    check_any_event(tmp_path_factory, data)


def check_any_event(tmp_path_factory, data: bytes) -> None:
    """One row at most; if it has no problem, its values can be read."""
    folder = tfdbg.write_one(tmp_path_factory.getbasetemp(), data)
    for operator in tfdbg.opened(folder).operators:
        (tensor,) = operator.tensors
        assert bool(tensor.problem) != (tensor.payload is not None)
        if not tensor.problem:
            assert tfdbg.values(tensor).shape == tensor.shape


def test_a_little_fuzzing(tmp_path):
    found = fuzz.search(float(os.environ.get("NPUCMP_FUZZ", "1.5")), int(time.time()) // 86400, tmp_path)
    assert found.failed == [], found.chance
    assert sum(found.tried.values()) > 100


# --- HDF5: one file with chunks, filters and checksums

h5py = pytest.importorskip("h5py")


def damaged_base(path: Path) -> bytes:
    from tests.dump.formats import test_hdf5

    return test_hdf5.damaged_base(path)


def test_every_prefix_of_an_hdf5_file_is_refused(tmp_path, near):
    raw = damaged_base(tmp_path / "x.h5")
    for size in range(0, len(raw), 37):
        (tmp_path / "x.h5").write_bytes(raw[:size])
        with pytest.raises(DumpError):
            open_runs(tmp_path / "x.h5", "hdf5")


@pytest.mark.few(2)
@pytest.mark.skipif(h5py.version.hdf5_version_tuple < (1, 14), reason="that library ends the process on some of them")
@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_of_an_hdf5_file_are_read_or_told(tmp_path, seed, near):
    raw = damaged_base(tmp_path / "x.h5")
    chance = random.Random(seed)
    used = [place for place, byte in enumerate(raw) if byte or place < 200]
    for _ in range(100):
        (tmp_path / "x.h5").write_bytes(spoilt(raw, chance, used))
        drained(tmp_path / "x.h5")


def test_a_damaged_dataset_costs_only_itself(tmp_path, near):
    raw = damaged_base(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        place = file["z"].id.get_chunk_info(3).byte_offset
    (tmp_path / "x.h5").write_bytes(raw[: place + 2] + b"\xff" * 8 + raw[place + 10 :])
    (run,) = open_runs(tmp_path / "x.h5")
    rows = {one.label: (operator, one) for operator in run.operators for one in operator.tensors}
    measured = {label: measure(Pair(0, one.slot, op, None, one, None)) for label, (op, one) in rows.items()}
    assert [label for label, found in measured.items() if found.problem] == ["/z"]
    assert "cannot be unpacked" in measured["/z"].problem
