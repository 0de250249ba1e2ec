"""Folders of .npy files: what names tell, in which order operators stand, and what broken files become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import open_runs
from npucmp.dump.formats import npy
from npucmp.errors import DumpError
from tests.contracts import ODD_PATHS, FormatContract


def save(folder: Path, **files) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in files.items():
        np.save(folder / name.replace("__", "."), np.asarray(values))
    return folder


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        np.save(folder / name, np.zeros((2, 3), np.float32))
    return folder


def opened(folder: Path):
    (run,) = npy.open_runs(folder)
    return run


class TestTimedNames(FormatContract):
    module = npy

    def write(self, folder):
        return touch(folder / "d", *(f"layer{n}_MatMul_{n}.{out}.16{n:014d}.npy" for n in range(4) for out in range(2)))


class TestPlainNames(FormatContract):
    module = npy

    def write(self, folder):
        return save(folder / "d", a=np.ones((2, 3)), b=np.float16(1), c=np.zeros((0, 4), np.int8), d=[True], e=[1j])


class TestSlottedNames(FormatContract):
    module = npy

    def write(self, folder):
        names = (
            f"Functional.linear.{n}.forward.{slot}.npy" for n in range(3) for slot in ("input.0", "input.1", "output.0")
        )
        return touch(folder / "d", *names)


@pytest.mark.parametrize(
    "name, operator, slot, time",
    [
        ("conv1.0.1619494134703053.npy", "conv1", "output:0", 1619494134703053),
        ("a.b.Conv2D.12.1619494134703053.npy", "a.b.Conv2D", "output:12", 1619494134703053),
        ("conv1.0.123456789.npy", "conv1.0.123456789", "output:0", 0),
        ("Functional.linear.0.forward.input.1.npy", "Functional.linear.0.forward", "input:1", 0),
        ("Module.a.Blk.forward.0.output.0.top.1.npy", "Module.a.Blk.forward.0", "output:0.top.1", 0),
        ("plain.npy", "plain", "output:0", 0),
        ("input.0.npy", "input.0", "output:0", 0),
        (".npy", "", "output:0", 0),
        ("a b;ü.npy", "a b;ü", "output:0", 0),
    ],
)
def test_names(name, operator, slot, time):
    found = npy.parse_npy_name(Path("somewhere", name))
    assert (found.operator, found.slot, found.time) == (operator, slot, time)


@given(st.text(max_size=20).filter(lambda text: "/" not in text and "\0" not in text))
def test_any_name_is_some_operator(text):
    found = npy.parse_npy_name(Path("somewhere") / f"{text}.npy")
    assert found.slot.partition(":")[0] in ("input", "output") and found.time >= 0


def test_files_of_one_operator_are_together(tmp_path):
    run = opened(touch(tmp_path / "d", "x.input.0.npy", "x.output.0.npy", "x.input.10.npy", "x.input.2.npy"))
    (operator,) = run.operators
    assert [tensor.slot for tensor in operator.tensors] == ["input:0", "input:2", "input:10", "output:0"]
    assert operator.reads_recorded


def test_time_orders_operators(tmp_path):
    times = {"z": 1000000000001, "a": 1000000000003, "m": 1000000000002}
    run = opened(touch(tmp_path / "d", *(f"{name}.0.{time}.npy" for name, time in times.items())))
    assert [operator.name for operator in run.operators] == ["z", "m", "a"]
    assert run.notes == () and not run.operators[0].reads_recorded


def test_names_order_operators_without_time(tmp_path):
    run = opened(touch(tmp_path / "d", "layer10.npy", "layer9.npy", "layer1.npy", "conv.npy", "7.npy"))
    assert [operator.name for operator in run.operators] == ["7", "conv", "layer1", "layer9", "layer10"]
    assert "no time" in run.notes[0]


def test_several_times_are_several_executions(tmp_path):
    names = [f"a.{out}.{time}.npy" for out in (0, 1) for time in (1000000000001, 1000000000005)]
    run = opened(touch(tmp_path / "d", *names, "b.0.1000000000003.npy"))
    assert [operator.name for operator in run.operators] == ["a", "b", "a"]
    assert [len(operator.tensors) for operator in run.operators] == [2, 1, 2]


@pytest.mark.parametrize("name", ["²", "1²2", "a²", "①", "٣", "१.0.१०००००००००", "-1", "1e5", "0" * 200, "9" * 200])
def test_odd_digits_in_names(tmp_path, name):
    run = opened(touch(tmp_path / "d", f"{name}.npy", "a1.npy", "1a.npy"))
    assert len(run.operators) == 3


def test_headers_are_the_tensors(tmp_path):
    (tensor,) = opened(save(tmp_path / "d", x=np.zeros((3, 1, 2), ">i2"))).operators[0].tensors
    assert (tensor.dtype, tensor.shape, tensor.slot, tensor.label) == ("int16", (3, 1, 2), "output:0", "x.npy")
    assert (tensor.file, tensor.encoding) == (str(tmp_path / "d" / "x.npy"), "npy")


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("gone"), lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_an_unreadable_tensor(tmp_path, make):
    folder = touch(tmp_path / "d", "good.npy")
    make(folder / "odd.npy")
    assert [bool(operator.tensors[0].problem) for operator in opened(folder).operators] == [False, True]


def test_every_prefix_is_an_unreadable_tensor(tmp_path):
    folder = touch(tmp_path / "d", "x.npy")
    data = (folder / "x.npy").read_bytes()
    for size in range(0, len(data), 7):
        (folder / "x.npy").write_bytes(data[:size])
        assert opened(folder).operators[0].tensors[0].problem


def test_one_file_is_a_run(tmp_path):
    folder = touch(tmp_path / "d", "x.npy", "y.npy")
    assert npy.sniff(folder / "x.npy")
    assert [operator.name for operator in opened(folder / "x.npy").operators] == ["x"]


def test_only_files_directly_below_count(tmp_path):
    touch(tmp_path / "d", "x.npy")
    assert npy.sniff(tmp_path) is False
    assert npy.sniff(tmp_path / "d") is True


def test_files_that_are_no_npy_are_counted_and_one_is_named(tmp_path):
    """Raw bytes beside .npy and folders are tensors that nobody compares; texts and graphs are none."""
    folder = touch(tmp_path / "d", "x.0.1619494134703053.npy")
    touch(folder / "below", "y.npy")
    (folder / "empty").mkdir()
    for name in ("a.0.1619494134703053.raw", "b.ND.BF16", "notes.txt", "graph.pbtxt", "mapping.csv", ".hidden"):
        (folder / name).write_bytes(b"")
    run = opened(folder)
    words = "2 files have unknown names and are skipped, for example a.0.1619494134703053.raw"
    assert [operator.name for operator in run.operators] == ["x"]
    assert run.notes == (f"{folder}: {words}", f"{folder}: folders next to the files are not read: below")


def test_a_terabyte_opens_at_once(tmp_path):
    (tmp_path / "d").mkdir()
    with open(tmp_path / "d" / "x.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|i1", "fortran_order": False, "shape": (2**40,)})
        stream.truncate(stream.tell() + 2**40)
    (tensor,) = opened(tmp_path / "d").operators[0].tensors
    assert (tensor.shape, tensor.problem) == ((2**40,), "")


@pytest.mark.parametrize("make", ODD_PATHS.values(), ids=ODD_PATHS)
def test_what_no_format_knows_is_told(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path / "odd")
    assert str(tmp_path / "odd") in str(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000], ids=["NUL", "too long"])
def test_an_impossible_path_is_told(tmp_path, name):
    with pytest.raises(DumpError):
        open_runs(tmp_path / name)


@pytest.mark.parametrize(
    "name, op_type",
    [
        ("layer1_MatMul_3", "MatMul"),
        ("bert_encoder_Softmax", "Softmax"),
        ("gradients_MatMul_1_grad_MatMul", "MatMul"),
        ("7", "7"),
    ],
)
def test_op_type(tmp_path, name, op_type):
    (operator,) = opened(touch(tmp_path / "d", f"{name}.0.1619494134703053.npy")).operators
    assert operator.op_type == op_type


def test_names_and_slots_of_thousands_of_digits(tmp_path):
    """Python turns no such text into a number."""
    folder = touch(tmp_path / "d", "a.0.1619494134703053.npy")
    long = "9" * 5000
    for number, name in enumerate((f"b{long}.npy", f"c.input.{long}.npy", f"c.output.{long}.npy")):
        np.save(folder / f"{number}.npy", np.zeros(2))
        with (folder / "mapping.csv").open("a") as rows:
            rows.write(f"{number}.npy,{name}\n")
    assert {operator.name for operator in opened(folder).operators} == {"a", f"b{long}", "c"}
