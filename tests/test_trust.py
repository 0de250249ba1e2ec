"""What a dump may make npucmp do: be read, or refused in words. Nothing named in it is imported, run or opened."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

from npucmp import Limits, open_runs
from npucmp.dump.formats import FORMATS
from npucmp.dump.graphs import load_graphs as load_graph
from npucmp.dump.limits import NAMES, ReadContext
from npucmp.dump.readers import cann_raw, fusion_result, hdf5, header, overflow_records, statistics_csv
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError, UsageError
from tests import fuzz
from tests.command import npucmp as run
from tests.dump.readers.craft import integers, tensor
from tests.dump.readers.test_torch_pt_hostile import HOSTILE, legacy_variants, pt
from tests.synthetic import chain, write_run

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_dumps"
GUARD = str(Path(__file__).parent / "guard.py")
CORPUS = ROOT.parent / "shared" / "data" / "hostile"  # of others, not in this repository; see docs/reliability.md


def guarded(commands, folders, output, cwd):
    """What the audit of these command lines told, in a process of their own that stands in `cwd`."""
    words = [sys.executable, "-I", "-B", GUARD, ":".join(map(str, folders)), str(output), json.dumps(commands)]
    got = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, timeout=300)
    lines = got.stdout.splitlines()
    assert lines and lines[-1] == f"'done' {len(commands)}", (got.returncode, lines[-5:])
    return lines[:-1]


TRAPS = ("posix", "torch", "torch_npu", "tensorflow", "mindspore", "h5py", "numpy", "npucmp", "google", "yaml", "json")


@pytest.fixture
def place(tmp_path):
    """A folder to stand in that is full of modules nobody may import."""
    (tmp_path / "here").mkdir()
    for name in TRAPS:
        (tmp_path / "here" / f"{name}.py").write_text(f"open({str(tmp_path / 'MARKER')!r}, 'w').write('{name}')\n")
    yield tmp_path
    assert not (tmp_path / "MARKER").exists()


def everything(target, golden, output):
    words = [str(target), str(golden)]
    return [
        ["compare", *words, "-o", str(output), "--no-progress"],
        ["check", words[0], "-o", str(output), "--no-plugins"],  # which stand in what is installed
        ["precheck", *words, "-o", str(output)],
        ["overflow", words[0], "--golden", words[1], "-o", str(output)],
        ["rerun-diff", *words, "-o", str(output)],
        ["fusion-diff", *words, "-o", str(output)],
        ["show", words[0], "*"],
        ["show", words[0], "--fit", "precheck"],
        ["plan", "compare", "--framework", "pytorch", "--from", words[0], "-o", f"{output}/plan", "--force"],
    ]


SAMPLED = ("cann_fusion_pass", "mindspore_layer_norm", "msprobe_bfloat16", "tfdbg_batch_norm")  # in sample_dumps
ONE_EACH = (*SAMPLED, "monitor", "hdf5", "fx", "atb", "saved", "pt", "npz", "safetensors")


def test_valid_dumps_cause_nothing_but_reading(place):
    """Every command on dumps of one format; those that read all tensors on every format."""
    made = [one for one in fuzz.dumps(place) if one[0].parent.name in ONE_EACH]
    commands = [words for target, golden in made for words in everything(target, golden, place / "out")[:2]]
    commands += everything(*made[0], place / "out")
    found = {run.format for both in made for side in both for run in open_runs(side)}
    assert found == set(FORMATS)
    assert guarded(commands, [place], place / "out", place / "here") == []


def test_the_guard_notices(place):
    """The counter-check: reading elsewhere, writing elsewhere, a socket, an import, a program, a status."""
    assert guarded([["show", "/bin"]], [place], place / "out", place / "here") == []  # below /usr
    home = place.parent / f"{place.name}-elsewhere"
    home.mkdir(exist_ok=True)
    told = guarded(
        [["compare", str(home), str(home), "-o", str(home / "o")]], [place / "x"], place / "x", place / "here"
    )
    assert any("'reads'" in line for line in told)
    write_run(place / "t", chain())
    told = guarded(
        [["compare", str(place / "t"), str(place / "t"), "-o", str(home)]], [place / "t"], place / "x", place / "here"
    )
    assert any("'writes'" in line for line in told)


def test_hostile_pickles_in_a_dump(place):
    """The hostile table of the reader's tests, each as the payload of a tensor of a dump."""
    target, golden = place / "target", place / "golden"
    for folder in (target, golden):
        shutil.copytree(SAMPLES / "msprobe_softmax" / "golden", folder)
    files = sorted(target.rglob("*.pt"))
    bodies = [data for body, _ in HOSTILE.values() for data in (pt(body), legacy_variants(body)[0])]
    for at, data in enumerate(bodies):
        files[at % len(files)].write_bytes(data)
    assert guarded(everything(target, golden, place / "out"), [place], place / "out", place / "here") == []
    verdicts = json.loads((place / "out" / "summary.json").read_text())
    assert verdicts


def naughty_names(place):
    """A dump whose operators have naughty strings as names."""
    strings = [text for text in json.loads((CORPUS / "blns" / "blns.json").read_text()) if text]
    write_run(place / "names", {"X.0.forward": {"in": [np.ones(2)], "out": [np.ones(2)]}})
    file = place / "names" / "step0" / "proc1" / "dump.json"
    top = json.loads(file.read_text())
    top["data"] = {f"{text}.{at}.forward": top["data"]["X.0.forward"] for at, text in enumerate(strings)}
    file.write_text(json.dumps(top))
    return everything(place / "names", place / "names", place / "out")


def broken_archives(place):
    """A dump whose tensors are the broken archives of libzip."""
    zips = place / "zips" / "target"
    shutil.copytree(SAMPLES / "msprobe_softmax" / "golden", zips)
    payloads = sorted(zips.rglob("*.pt"))
    for at, file in enumerate(sorted((CORPUS / "libzip").rglob("*.zip"))):
        shutil.copy(file, payloads[at])
    return everything(zips, SAMPLES / "msprobe_softmax" / "golden", place / "out")


def odd_hdf5(place):
    """The odd HDF5 files of jhdf, each as both sides."""
    files = sorted((CORPUS / "jhdf").glob("*.hdf5"))
    return [["compare", str(file), str(file), "-o", str(place / "out")] for file in files]


@pytest.mark.few(2)
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus of others is not here")
@pytest.mark.parametrize("commands", [naughty_names, odd_hdf5, broken_archives])
def test_the_corpus_of_others(place, commands):
    assert guarded(commands(place), [place, CORPUS, SAMPLES], place / "out", place / "here") == []


ELSEWHERE = [
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "fifo",
    "link.npy",
    "a/../../x.npy",
    "\0.npy",
    "C:\\x.npy",
    "",
]


def test_a_dump_names_no_file_outside(place):
    """A data_name of dump.json that leads elsewhere is a row, and nothing is opened."""
    commands = []
    for number, name in enumerate(ELSEWHERE):
        target, golden = (place / str(number) / one for one in ("target", "golden"))
        for side in (target, golden):
            write_run(side, chain())
        data = next(target.rglob("dump_tensor_data"))
        os.mkfifo(data / "fifo")
        (data / "link.npy").symlink_to("/etc/passwd")
        file = next(target.rglob("dump.json"))
        top = json.loads(file.read_text())
        top["data"]["Functional.linear.1.forward"]["output"][0]["data_name"] = name
        file.write_text(json.dumps(top))
        commands.append(["compare", str(target), str(golden), "-o", str(place / "out" / str(number))])
    (place / "out").mkdir()
    assert guarded(commands, [place], place / "out", place / "here") == []
    for number, name in enumerate(ELSEWHERE):
        summary = json.loads((place / "out" / str(number) / "summary.json").read_text())
        assert summary["verdicts"]["match"] == 17 and summary["exit_status"] == 2, name


# --- the HDF5 library in its own process


h5py = pytest.importorskip("h5py")


@pytest.fixture
def file(tmp_path):
    from tests.dump.formats.test_hdf5 import damaged_base

    hdf5._listing.cache_clear()
    damaged_base(tmp_path / "x.h5")
    return tmp_path / "x.h5"


def test_both_ways_tell_the_same(file, monkeypatch):
    far = hdf5.entries_of(str(file))
    monkeypatch.setattr(hdf5, "ISOLATED", False)
    near = hdf5.entries_of(str(file))
    assert repr(far) == repr(near) and len(far.entries) > 5


def test_a_file_that_makes_the_library_loop(file):
    """One byte changed: HDF5 2.0 runs in a circle over a group's symbol table, and allocates."""
    if h5py.version.hdf5_version_tuple[:2] < (2, 0):
        pytest.skip("made for HDF5 2.0")
    raw = bytearray(file.read_bytes())
    raw[3473] = 0
    file.write_bytes(raw)
    (run,) = open_runs(file, context=ReadContext(Limits(hdf5_seconds=1)))
    problems = [tensor.problem for operator in run.operators for tensor in operator.tensors]
    assert any("more than the limit hdf5_seconds of 1" in problem for problem in problems)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "deed, because",
    [
        ("import ctypes; ctypes.string_at(0)", "crashed (SIGSEGV)"),
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("while True: pass", "hdf5_seconds"),
        ("x = [bytearray(1 << 28) for _ in range(1000)]", "hdf5_memory"),
        ("import os; os._exit(3)", "exit status 3"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_whatever_the_library_does_is_told(file, monkeypatch, tmp_path, deed, because, late):
    """Before it told anything: DumpError. Later: what it told is kept, and a row says where it was."""
    context = ReadContext(Limits(hdf5_seconds=1 if "while" in deed else 10, hdf5_memory=1 << 30))
    (tmp_path / "plug").mkdir()
    real = "import sys; sys.path.pop(0); del sys.modules['h5py']; import h5py as real; sys.modules['h5py'] = real"
    count = 4 if late else 0
    (tmp_path / "plug" / "h5py.py").write_text(
        f"""{real}
from npucmp.dump.readers import hdf5_walk
step, place = iter(range(100)), hdf5_walk.{"_address" if late else "h5py_errors"}
def bad(*a):
    if next(step) >= {count}:
        {deed}
    return place(*a)
hdf5_walk.{"_address" if late else "h5py_errors"} = bad
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path / "plug"))
    if not late:
        with pytest.raises(DumpError) as error:
            hdf5.entries_of(str(file), context)
        assert because in error.value.because
        return
    entries = list(hdf5.entries_of(str(file), context).entries.values())
    assert len(entries) > 1 and because in entries[-1].problem


def test_a_plug_in_folder_is_left_alone(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HDF5_PLUGIN_PATH", str(tmp_path))
    (tmp_path / "libbad.so").write_bytes(b"\x7fELF")
    assert len(hdf5.entries_of(str(file)).entries) > 5


# --- limits


def test_every_limit_can_be_raised():
    for name in NAMES:
        assert getattr(Limits(**{name: 1}).changed([f"{name}=3K"]), name) == 3072


@pytest.mark.parametrize(
    "text, number", [("32T", 32 << 40), ("5", 5), (" 7 M ", 7 << 20), ("2GiB", 2 << 30), ("1kb", 1024)]
)
def test_amounts(text, number):
    assert Limits().changed(["ndim=5", f"tensor_bytes={text}"]) == Limits(ndim=5, tensor_bytes=number)


@pytest.mark.parametrize(
    "text",
    ["", "x", "tensor_bytes", "tensor_bytes=", "tensor_bytes=0", "ndim=-1", "ndim=1.5", "ndim=x", "ndims=5", "ndim=²"],
)
def test_limits_that_are_none(text):
    with pytest.raises(UsageError):
        Limits().changed([text])


def npy_header(folder, length):
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}".ljust(length - 1) + b"\n"
    (folder / "op.0.1795254505853561.npy").write_bytes(
        b"\x93NUMPY\x02\0" + length.to_bytes(4, "little") + text + bytes(8)
    )


def test_a_refusal_names_the_limit_that_the_option_raises(tmp_path):
    for side in ("target", "golden"):
        (tmp_path / side).mkdir()
        npy_header(tmp_path / side, 70_000)
    words = ["compare", tmp_path / "target", tmp_path / "golden"]
    refused = run(*words)
    assert refused.returncode == 2 and "limit npy_header_bytes of 65,536" in refused.stdout
    assert run(*words, "--limit", "npy_header_bytes=100K").returncode == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["compare", "check", "precheck", "overflow", "rerun-diff", "fusion-diff", "show"])
def test_every_command_has_the_option(command):
    got = run(command, "--limit", "nothing=1", "a", "b")
    assert got.returncode == 2 and "no limit 'nothing'" in got.stderr


# --- limits: each is used, refuses by its name, and lets through what it is raised for


def fresh(folder: Path, data: bytes, name: str = "x") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def through(path: str, context: ReadContext) -> None:
    with open_regular(path, context) as file:
        (cann_raw.read_nano if cann_raw.is_nano(file) else cann_raw.read_raw)(file)


def one(pattern: str) -> str:
    return str(next(SAMPLES.glob(pattern)))


def h5(folder: Path, context: ReadContext) -> None:
    from tests.dump.formats.test_hdf5 import damaged_base

    damaged_base(folder / "x.h5")
    for entry in hdf5.entries_of(str(folder / "x.h5"), context).entries.values():
        if entry.problem:
            raise DumpError(entry.name, entry.problem)


NPY = "npy_batch_norm/golden/*.npy"
RAW = "cann_clean/target/**/Cast*"
WIDE = pt(tensor(integers(99, 99), integers(0, 0)))
STATISTICS = b"Input/Output,Index,Shape,Data Type\nInput,0,2,DT_FLOAT\n"
EFFECTS = b'{"graph_fusion": {}}'
GRAPH = b'graph { name: "g" op { name: "a" type: "Add" } op { name: "b" } }'
Ask = Callable[[Path, ReadContext], object]
BEYOND: dict[str, tuple[int, Ask]] = {  # a value that is too little, and what asks for more
    "tensor_bytes": (10, lambda _, context: header("npy", one(NPY), context)),
    "expanded_bytes": (
        1000,
        lambda folder, context: header("torch_pt", fresh(folder, WIDE), context),
    ),
    "ndim": (1, lambda _, context: header("npy", one(NPY), context)),
    "header_bytes": (10, lambda folder, context: header("torch_pt", fresh(folder, pt()), context)),
    "npy_header_bytes": (10, lambda _, context: header("npy", one(NPY), context)),
    "cann_header_bytes": (10, lambda _, context: through(one(RAW), context)),
    "members": (1, lambda folder, context: header("torch_pt", fresh(folder, pt()), context)),
    "pickle_bytes": (10, lambda folder, context: header("torch_pt", fresh(folder, pt()), context)),
    "pickle_opcodes": (3, lambda folder, context: header("torch_pt", fresh(folder, pt()), context)),
    "pickle_depth": (1, lambda folder, context: header("torch_pt", fresh(folder, pt()), context)),
    "protobuf_fields": (1, lambda _, context: through(one(RAW), context)),
    "text_bytes": (2, lambda _, context: through(one(RAW), context)),
    "json_bytes": (10, lambda _, context: open_runs(SAMPLES / "msprobe_clean" / "golden", context=context)),
    "statistics_bytes": (
        10,
        lambda folder, context: statistics_csv.read_statistics(fresh(folder, STATISTICS), context),
    ),
    "table_bytes": (
        10,
        lambda folder, context: fusion_result.read_effects(Path(fresh(folder, b'{"graph_fusion": {}}')), context),
    ),
    "record_bytes": (10, lambda folder, context: overflow_records.read_records(fresh(folder, bytes(2048)), context)),
    "graph_bytes": (10, lambda folder, context: load_graph(fresh(folder, GRAPH), context)),
    "graph_values": (2, lambda folder, context: load_graph(fresh(folder, GRAPH), context)),
    "graph_depth": (1, lambda folder, context: load_graph(fresh(folder, GRAPH), context)),
    "hdf5_objects": (2, h5),
    "hdf5_name_bytes": (2, h5),
    "hdf5_depth": (1, h5),
    "hdf5_chunk_bytes": (8, h5),
}
TOLD_ELSEWHERE = {
    "hdf5_memory",
    "hdf5_seconds",
    "hdf5_ratio",
    "links_out",
    "report_bytes",
}  # here, test_hdf5.py, test_diff.py


def test_no_limit_is_forgotten():
    assert BEYOND.keys() | TOLD_ELSEWHERE == set(NAMES)


def test_the_page_names_each_limit_and_its_default():
    told = {}
    for line in (ROOT / "docs" / "reliability.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        names = cells[0].split("`, `")
        if set(names) <= set(NAMES):
            told.update(zip(names, cells[1].split(", ")))
    amounts = {name: re.fullmatch("([0-9]+)([KMGT]?)", text) for name, text in told.items()}
    powers = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
    assert {name: int(found[1]) << powers[found[2]] for name, found in amounts.items()} == asdict(Limits())


@pytest.mark.parametrize("name", BEYOND)
def test_each_limit_refuses_by_its_name_and_can_be_raised(name, tmp_path, monkeypatch):
    little, ask = BEYOND[name]
    monkeypatch.setattr(hdf5, "ISOLATED", False)
    ask(tmp_path, ReadContext())
    limits = Limits(**{name: little})
    with pytest.raises(DumpError) as refused:
        ask(tmp_path, ReadContext(limits))
    assert f"more than the limit {name} of {little:,}; raise it with --limit {name}=…" in str(refused.value)
    raised = limits.changed([f"{name}={Limits.__dataclass_fields__[name].default}"])
    assert raised == Limits()
    ask(tmp_path, ReadContext(raised))
