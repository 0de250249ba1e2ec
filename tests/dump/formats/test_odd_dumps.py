"""What real dumps hold beside the plain case: records, names and tables that tools write now and then."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp import open_runs
from npucmp.dump.formats.msprobe import calls
from npucmp.dump.readers import header
from npucmp.dump.readers.values import blocks
from npucmp.model import RankGroup
from tests.dump.formats.pt_files import pt_file
from tests.reports import screen

TIME = 1735011096427368


def leaf(shape=(2,), dtype="torch.float32", figures=(1.0, 0.0, 0.5, 2.0), **more):
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape),
            **dict(zip(("Max", "Min", "Mean", "Norm"), figures)), **more}  # fmt: skip


def dump(folder: Path, *leaves, task="statistics", name="dump.json", records=None) -> Path:
    """A dump.json with one operator that writes the leaves, or with these records."""
    one = {"Torch.x.0.forward": {"input_args": [], "input_kwargs": {}, "output": [*leaves]}}
    whole = {"task": task, "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({**whole, "data": one if records is None else records}))
    return folder


def tensors(path):
    return {tensor.slot: tensor for run in open_runs(path) for one in run.operators for tensor in one.tensors}


def test_what_onnx_nodes_read_is_an_input_of_theirs(tmp_path):
    for n, name in enumerate(("input_Add_100.0", "input_Add_100.1", "Add_100.0", "input_Mul.0", "Mul.0")):
        np.save(tmp_path / f"{name}.{TIME + n}.npy", np.ones(3))
    (run,) = open_runs(tmp_path)
    slots = {one.name: [tensor.slot for tensor in one.tensors] for one in run.operators}
    assert slots == {"Add_100": ["input:0", "input:1", "output:0"], "Mul": ["input:0", "output:0"]}
    assert run.detail == "" and all(one.reads_recorded for one in run.operators)


def test_one_operator_among_many_whose_name_begins_with_input_is_one(tmp_path):
    for n, name in enumerate(("dense", "input_dense", "a", "b", "c")):
        np.save(tmp_path / f"{name}.0.{TIME + n}.npy", np.ones(3))
    assert [one.name for run in open_runs(tmp_path) for one in run.operators] == ["dense", "input_dense", "a", "b", "c"]


def test_operators_without_tensors_are_told_without_talk_of_options(tmp_path):
    path = dump(tmp_path / "a")
    with pytest.raises(npucmp.NpucmpError, match="no operator of the dumps holds a tensor"):
        npucmp.compare(path, path)


P2P = {"class_type": "torch.distributed.P2POp", "op": "isend", "tensor": leaf(), "peer": 1, "tag": 0, "group_id": "7"}
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "7"}


def sent(folder, peer, largest=1.0):
    written = leaf(figures=(largest, 0.0, 0.5, 2.0))
    record = {"input_args": [[{**P2P, "peer": peer}]], "input_kwargs": {"group": GROUP}, "output": [written]}
    return dump(folder, records={"Distributed.batch_isend_irecv.0.forward": record})


def test_peers_and_groups_are_arguments(tmp_path):
    ((one,),) = (run.operators for run in open_runs(sent(tmp_path / "a", 1)))
    assert one.arguments == {
        "input:0.0.op": "isend",
        "input:0.0.peer": 1,
        "input:0.0.tag": 0,
        "input:0.0.group_id": "7",
        "input:group": RankGroup([0, 1]),
    }
    assert [tensor.slot for tensor in one.tensors] == ["input:0.0.tensor", "output:0"]
    report = npucmp.compare(sent(tmp_path / "b", 0, 9.0), tmp_path / "a", trust_statistics=True)
    assert "argument input:0.0.peer is 0 in the target, 1 in the golden" in screen(report)


TYPES = {
    "torch.float8_e8m0fnu": ("float8_e8m0", (2, 3)),
    "torch.float4_e2m1fn_x2": ("float4_e2m1", (2, 6)),  # two elements count as one
    "torch_npu.HiFloat8Tensor": ("hifloat8", (2, 3)),
}


@pytest.mark.parametrize("word", TYPES)
def test_types_of_few_bits_are_known(tmp_path, word):
    (tensor,) = tensors(dump(tmp_path / "a", leaf((2, 3), word))).values()
    assert (tensor.dtype, tensor.shape) == TYPES[word]


@pytest.mark.parametrize(
    "word, data, values",
    [("float8_e8m0fnu", [127, 128, 126], [1, 2, 0.5]), ("float4_e2m1fn_x2", [0x21, 0x7F], [0.5, 1, -6, 6])],
)
def test_files_of_few_bits_are_read(tmp_path, word, data, values):
    torch = pytest.importorskip("torch")
    torch.save(torch.tensor(data, dtype=torch.uint8).view(getattr(torch, word)), tmp_path / "a.pt")
    read = np.concatenate([*blocks(header("torch_pt", str(tmp_path / "a.pt")))])
    assert read.astype(float).tolist() == values


def test_arrays_of_text_are_arguments(tmp_path):
    name = "Torch.x.0.forward.output"
    text = leaf(dtype="<U3", figures=(None,) * 4, type="numpy.ndarray", data_name=f"{name}.1.npy")
    path = dump(tmp_path / "a", leaf(data_name=f"{name}.0.npy"), text, task="tensor")
    (path / "dump_tensor_data").mkdir()
    np.save(path / "dump_tensor_data" / f"{name}.0.npy", np.ones(2, np.float32))
    np.save(path / "dump_tensor_data" / f"{name}.1.npy", np.array(["abc", "de"]))
    (run,) = open_runs(path)
    assert (list(tensors(path)), run.operators[0].arguments, run.notes) == (
        ["output:0"],
        {"output:1": "text <U3 [2]"},
        (f"{path / 'dump.json'}: arrays of text are compared only by type and shape: {name}.1.npy",),
    )
    assert [*calls(run)] == ["Torch.x.0.forward"]
    assert npucmp.compare(path, path).exit_status == 0


def test_an_empty_name_of_a_file_is_none(tmp_path):
    (tensor,) = tensors(dump(tmp_path / "a", leaf(data_name=""))).values()
    assert (tensor.file, tensor.problem, tensor.statistics.max) == ("", "", 1.0)


def test_what_was_saved_is_read_where_nothing_was_dumped(tmp_path):
    dump(tmp_path / "a", records={})
    dump(tmp_path / "a", name="debug.json", records={"loss.0.debug": leaf()})
    assert [one.name for run in open_runs(tmp_path / "a") for one in run.operators] == ["loss.0.debug"]
    dump(tmp_path / "a", leaf())
    assert [one.name for run in open_runs(tmp_path / "a") for one in run.operators] == ["Torch.x.0.forward"]


def test_without_the_folder_of_tensors_the_records_stand_in(tmp_path):
    """Users pass dump.json alone on; one file that is missing is still unreadable."""
    name = "Torch.x.0.forward.output.0.pt"
    bad, good = (
        leaf(figures=figures, data_name=name) for figures in ((np.inf, 0.0, np.inf, np.inf), (1.0, 0.0, 0.5, 2.0))
    )
    one, other = dump(tmp_path / "a", bad, task="tensor"), dump(tmp_path / "b", good, task="tensor")
    assert [event.operator.name for event in npucmp.overflow(one).events] == ["Torch.x.0.forward"]
    assert npucmp.compare(one, other).exit_status == 1
    report = npucmp.compare(other, other)
    assert report.exit_status == 2 and "no such folder; statistics of dump.json are compared instead" in screen(report)
    (other / "dump_tensor_data").mkdir()
    (other / "dump_tensor_data" / "else.pt").write_bytes(pt_file(np.ones(2, np.float32)))
    assert "no such file" in screen(npucmp.compare(other, other, trust_statistics=True))


def table(folder: Path, shape: str) -> Path:
    folder.mkdir()
    head = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value"
    )
    row = f"Add,Default/Add-op4,0,0,{TIME},output,0,16384,float32,{shape},1,0,2"
    (folder / "statistic.csv").write_text(f"{head}\n{row}\n")
    return folder


@pytest.mark.parametrize(
    "shape, read, problem",
    [("(4096)", (4096,), ""), ("-4096", (4096,), ""), ("-", (), ""), ("--4", (), "the shape '--4'")],
)
def test_shapes_that_a_spreadsheet_negated(tmp_path, shape, read, problem):
    (tensor,) = tensors(table(tmp_path / "a", shape)).values()
    assert tensor.shape == read and (problem in tensor.problem if problem else not tensor.problem)


def test_names_with_an_empty_time(tmp_path):
    for slot in ("input.0", "output.0"):
        np.save(tmp_path / f"Add.Add-op4.0.0..{slot}.DefaultFormat.npy", np.ones(3))
    (run,) = open_runs(tmp_path)
    assert (run.format, [one.name for one in run.operators], list(tensors(tmp_path))) == (
        "mindspore", ["Add-op4"], ["input:0", "output:0"]
    )  # fmt: skip
    assert any("some tensors have no time" in note for note in run.notes)


def test_what_msprobe_failed_to_collect_is_told(tmp_path):
    path = dump(tmp_path / "a", leaf())
    assert open_runs(path)[0].notes == ()
    (path / "dump_error_info.log").write_text("RuntimeError")
    assert open_runs(path)[0].notes == (
        f"{path / 'dump_error_info.log'}: msprobe could not collect all requested data",
    )
