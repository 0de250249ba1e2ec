"""MindSpore's own dumps: what names, folders, tables and graphs tell, and what broken files become."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import npucmp
from npucmp import Limits, open_runs
from npucmp.dump.formats import mindspore
from npucmp.dump.limits import ReadContext
from npucmp.model import DeviceTask, Statistics
from npucmp.model.stack import source_line
from tests.contracts import FormatContract
from tests.dump.formats.three import second_is_first, three

SHARED = Path(__file__).parents[4] / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared dumps are not beside this checkout")

NEW = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value"
IR = """
subgraph @kernel_graph0() {
  %0(out) = PrimFunc_LayerNorm(%para1_x, Tensor(shape=[2], dtype=Float32, value=[1]), I64(-1), F32(1e-07), Bool(1)) {}
      : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (2, 3)>)
      # Fullname with scope: (Default/network-Net/ln-LayerNorm/LayerNorm-op0)
      # In file /site-packages/mindspore/nn/wrap/cell_wrapper.py:121~123, 4~40/    def construct(self, data, label):/
      # In file /home/user/net.py:13~15, 4~59/    def construct(self,x):/
      # In file /home/user/net.py:15, 10~17/        x=self.ln(x)/
      # In file /home/user/net.py:15, 10~15/        x=self.ln(x)/<~~This line of code can be shared by multiple nodes.
      # In file /site-packages/mindspore/nn/layer/normalization.py:810~812, 4~16/    def construct(self, input_x):/
      # In file /site-packages/mindspore/nn/layer/normalization.py:811, 18~19/        y = self.layer_norm(input_x)/
  %1(other) = Add(%0, %0)
      : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (2, 3)>)
      # Fullname with scope: (Default/Add-op1)
}
"""


def touch(folder: Path, *names: str, values=None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        np.save(folder / name, np.zeros((2, 3), np.float32) if values is None else values)
    return folder


def table(folder: Path, header: str, *rows: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "statistic.csv").write_text("\n".join((header, *rows)) + "\n")
    return folder


def opened(path: Path):
    (run,) = mindspore.open_runs(path)
    return run


def names(run) -> list[str]:
    return [operator.name for operator in run.operators]


def kernel(name: str, time: int, slot: str = "output.0", tail: str = ".DefaultFormat.Float32") -> str:
    return f"{name.rpartition('_')[2].partition('-')[0]}.{name}.0.0.{time}.{slot}{tail}.npy"


class TestFiles(FormatContract):
    module = mindspore

    def write(self, folder):
        leaf = folder / "dump" / "rank_0" / "Net" / "0" / "0"
        touch(
            leaf, *(kernel(f"Default_network_MatMul-op{n}", 100 + n, slot) for n in range(3) for slot in ("input.0",))
        )
        touch(leaf, kernel("Default_network_MatMul-op0", 105), "Parameter.w.0.0.200.output.0.DefaultFormat.Float32.npy")
        return folder / "dump"


class TestStatistics(FormatContract):
    module = mindspore

    def write(self, folder):
        rows = [f'Sub,Default_Sub-op{n},0,0,{100 + n},input,0,24,float32,"(2, 3)",3,-1,4,' for n in range(3)]
        return table(folder / "d" / "rank_3" / "Net" / "0" / "7", NEW, *rows)


class TestConverted(FormatContract):
    module = mindspore

    def write(self, folder):
        return touch(folder / "d", *(f"Add.a_{n}.1.5.16{n:014d}.output.0.2x3.npy" for n in range(4)))


@pytest.mark.parametrize(
    "folder, step, rank",
    [
        ("rank_3/Net/0/7", 7, 3),
        ("Net/0/7", 7, None),
        ("20230914123456/2/net_1/11/5", 5, 2),
        ("4/20230914123456/2/net_1/11/0", 4, 2),
        ("rank_1/20230914123456/step_9", 9, 1),
        ("rank_1/20230914123456/step_9/20230914123456/0/net/1/0", 9, 1),
        ("plain", None, None),
    ],
)
def test_step_and_rank(tmp_path, folder, step, rank):
    leaf = touch(tmp_path / "d" / folder, kernel("a-op0", 1))
    for path in (tmp_path / "d", leaf, leaf.parent):
        assert (opened(path).step, opened(path).rank) == (step, rank)
        assert mindspore.sniff(path)


def test_runs_by_step_and_rank(tmp_path):
    for rank, step in ((0, 0), (0, 1), (1, 0)):
        touch(tmp_path / f"rank_{rank}" / "Net" / "0" / str(step), kernel("a-op0", 1))
    assert sorted((run.rank, run.step) for run in mindspore.open_runs(tmp_path)) == [(0, 0), (0, 1), (1, 0)]


def test_iterations_of_one_step_folder_are_steps(tmp_path):
    for iteration in (0, 1):
        touch(tmp_path / "4" / "20230914123456" / "0" / "net" / "1" / str(iteration), kernel("a-op0", 1))
    assert sorted(run.step for run in mindspore.open_runs(tmp_path)) == [0, 1]


def test_graphs_of_one_step_are_one_run(tmp_path):
    touch(tmp_path / "rank_0" / "Net" / "1" / "0", kernel("b-op0", 1))
    touch(tmp_path / "rank_0" / "Net" / "0" / "0", kernel("a-op0", 2))
    run = opened(tmp_path)
    assert (names(run), run.step, run.rank) == (["b-op0", "a-op0"], 0, 0)


def test_companions_are_no_operators(tmp_path):
    for folder in ("constants", "graphs", ".dump_metadata", "execution_order"):
        touch(tmp_path / "rank_0" / "Net" / "0" / folder, "Parameter.data-1.0.0.5.output.0.DefaultFormat.npy")
    assert not mindspore.sniff(tmp_path) and mindspore.open_runs(tmp_path) == []
    touch(tmp_path / "rank_0" / "Net" / "0" / "0", kernel("a-op0", 1))
    assert names(opened(tmp_path)) == ["a-op0"]


def test_raw_files_are_left_to_their_format(tmp_path):
    folder = table(tmp_path / "d", NEW, "Add,a,0,0,1,input,0,4,float32,(),1,1,1")
    (folder / "Add.a.0.0.1").write_bytes(b"\0" * 16)
    assert mindspore.sniff(folder) is False
    touch(folder, kernel("a-op0", 1))
    assert mindspore.sniff(folder) is True


def test_depth_is_bounded_and_links_are_not_followed(tmp_path):
    touch(tmp_path.joinpath("d", *"123456789"), kernel("a-op0", 1))
    touch(tmp_path / "other", kernel("a-op0", 1))
    (tmp_path / "d" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    assert mindspore.sniff(tmp_path / "d") is False and mindspore.open_runs(tmp_path / "d") == []


def test_one_file_is_a_run(tmp_path):
    folder = touch(tmp_path / "d", kernel("a-op0", 1), kernel("b-op0", 2))
    assert mindspore.sniff(folder / kernel("a-op0", 1))
    assert names(opened(folder / kernel("a-op0", 1))) == ["a-op0"]
    table(folder, NEW, "Add,c,0,0,1,input,0,4,float32,(),1,1,1")
    assert mindspore.sniff(folder / "statistic.csv") and names(opened(folder / "statistic.csv")) == ["c"]


def test_files_of_one_operator_are_together(tmp_path):
    slots = ("output.0", "input.10", "input.2", "input.0")
    (operator,) = opened(touch(tmp_path, *(kernel("a-op0", time, slot) for time, slot in enumerate(slots)))).operators
    assert [tensor.slot for tensor in operator.tensors] == ["input:0", "input:2", "input:10", "output:0"]
    assert (operator.op_type, operator.reads_recorded) == ("a", True)


def test_executions_are_counted_from_the_newest(tmp_path):
    touch(tmp_path, kernel("a-op0", 10), kernel("b-op0", 20), kernel("a-op0", 30), kernel("a-op0", 29, "input.0"))
    run = opened(tmp_path)
    assert names(run) == ["a-op0", "b-op0", "a-op0"]
    assert [len(operator.tensors) for operator in run.operators] == [1, 1, 2]
    assert all(operator.unique for operator in run.operators)


def test_names_with_neighbours_hold_an_index_that_shifts(tmp_path):
    touch(tmp_path, kernel("n_ReLU-op0", 1), kernel("n_ReLU-op1", 2), kernel("m_ReLU-op0", 3))
    found = {operator.name: (operator.kind, operator.unique) for operator in opened(tmp_path).operators}
    assert found == {
        "n_ReLU-op0": ("n_ReLU", False),
        "n_ReLU-op1": ("n_ReLU", False),
        "m_ReLU-op0": ("m_ReLU", True),
    }


def test_phases(tmp_path):
    touch(tmp_path, kernel("Default_MatMul-op0", 1), kernel("Gradients_Default_MatMul-op0", 2))
    assert [operator.phase for operator in opened(tmp_path).operators] == ["", "backward"]


def test_parameters_are_read_when_the_step_is_over(tmp_path):
    touch(tmp_path, "Parameter.w.0.0.1.output.0.DefaultFormat.Float32.npy", kernel("a-op0", 5), kernel("b-op0", 4))
    run = opened(tmp_path)
    assert names(run) == ["b-op0", "a-op0", "w"]
    assert [(tensor.slot, tensor.is_output) for tensor in run.operators[-1].tensors] == [("input:0", False)]


def test_no_times(tmp_path):
    run = opened(touch(tmp_path, kernel("b-op0", 0), kernel("a-op0", 0)))
    assert (names(run), run.ordered) == (["a-op0", "b-op0"], False)
    assert "no" in run.notes[0]


ORDER = "Default/n/C-op0", "Default/n/A-op3", "Default/m/B-op0"


def ordered(tmp_path, *files: str, lines=ORDER) -> list[str]:
    folder = tmp_path / "rank_0" / "execution_order"
    folder.mkdir(parents=True)
    (folder / "ms_execution_order_graph_2.csv").write_text(
        "\n".join(("NodeExecutionOrder-FullNameWithScope", *lines, ""))
    )
    touch(tmp_path / "rank_0" / "Net" / "2" / "0", *files)
    return names(opened(tmp_path))


@pytest.mark.parametrize(
    "some",
    [
        ("Default_m_B-op0", "Default_n_A-op3", "Default_n_C-op0"),
        ("B-op0", "A-op3", "C-op0"),
        ("Default_m_B-op7", "Default_n_A-op0", "Default_n_C-op0"),
    ],
    ids=["full names", "last parts", "counted anew"],
)
def test_recorded_order(tmp_path, some):
    files = [kernel(name, time) for time, name in enumerate(some, 1)]
    assert ordered(tmp_path, *files, "Parameter.w.0.0.1.output.0.X.npy") == [*reversed(some), "w"]


@pytest.mark.parametrize(
    "some",
    [
        ("Default_m_B-op0", "Default_n_Unknown-op3", "Default_n_C-op0"),
        ("Default_m_B-op0", "Default_n_C-op0", "Default_m_B-op0"),
    ],
    ids=["incomplete", "a loop"],
)
def test_times_decide_where_the_recorded_order_cannot(tmp_path, some):
    assert ordered(tmp_path, *(kernel(name, time) for time, name in enumerate(some, 1))) == list(some)


def test_ambiguous_last_parts_are_no_order(tmp_path):
    lines = ("Default/n/A-op0", "Default/m/A-op0", "Default/m/B-op0")
    assert ordered(tmp_path, kernel("B-op0", 1), kernel("A-op0", 2), lines=lines) == ["B-op0", "A-op0"]


def test_broken_companions_cost_a_note(tmp_path):
    touch(tmp_path / "rank_0" / "Net" / "0" / "0", kernel("a-op0", 1))
    for name in ("execution_order/ms_execution_order_graph_0.csv", "graphs/ms_output_trace_code_graph_0.ir"):
        file = tmp_path / "rank_0" / name
        file.parent.mkdir()
        file.write_bytes(b"\xff\xfe\x00" * 100)
    run = opened(tmp_path)
    assert names(run) == ["a-op0"] and len(run.notes) == 2 and all("UTF-8" in note for note in run.notes)


class TestGraph:
    NAME = "Default_network-Net_ln-LayerNorm_LayerNorm-op0"

    def operator(self, tmp_path, text=IR):
        graphs = tmp_path / "rank_0" / "graphs"
        graphs.mkdir(parents=True)
        (graphs / "ms_output_trace_code_graph_0.ir").write_text(text)
        leaf = touch(tmp_path / "rank_0" / "Net" / "0" / "0", kernel(self.NAME, 1, "input.0"), kernel(self.NAME, 1))
        touch(leaf, kernel(self.NAME, 1, "input.2", ".DefaultFormat.Int64"), values=np.int64(-1))
        touch(leaf, kernel(self.NAME, 1, "input.3"), values=np.float32(1e-7))
        touch(leaf, kernel(self.NAME, 1, "input.4"), values=np.float32(1))
        (operator,) = opened(leaf).operators
        return operator

    def test_constants_are_arguments_where_a_scalar_of_that_type_was_dumped(self, tmp_path):
        operator = self.operator(tmp_path)
        assert operator.arguments == {"input:2": -1, "input:3": 1e-07}
        assert [t.slot for t in operator.tensors] == ["input:0", "input:2", "input:3", "input:4", "output:0"]

    def test_stack(self, tmp_path):
        operator = self.operator(tmp_path)
        assert source_line(operator) == "net.py:15  x=self.ln(x)"
        assert operator.stack == (
            "File /site-packages/mindspore/nn/layer/normalization.py, line 811, in construct, \n "
            "y = self.layer_norm(input_x)",
            "File /home/user/net.py, line 15, in construct, \n x=self.ln(x)",
        )


@pytest.mark.parametrize(
    "tail, stored, dtype",
    [
        (".DefaultFormat.Float32", "float32", "float32"),
        (".DefaultFormat.BFloat16", "float32", "bfloat16"),
        (".ND.BF16", "float32", "bfloat16"),
        (".ND.FLOAT16", "float16", "float16"),
        (".ND.int4", "int8", "int8"),
        (".ND.uint1", "uint8", "uint8"),
        (".ND.float32", "float16", "float16"),
        (".ND.unheard_of", "int16", "int16"),
        (".ND", "float64", "float64"),
        ("", "complex64", "complex64"),
    ],
)
def test_dtypes(tmp_path, tail, stored, dtype):
    touch(tmp_path, kernel("a-op0", 1, "output.0", tail), values=np.zeros((2, 3), stored))
    assert opened(tmp_path).operators[0].tensors[0].dtype == dtype


@pytest.mark.parametrize(
    "word, shape, layout",
    [
        ("NC1HWC0", (1, 1, 2, 2, 16), "NC1HWC0"),
        ("NC1HWC0", (1, 16, 2, 2), ""),
        ("NCHW", (1, 1, 1, 1, 1), ""),
        ("FRACTAL_NZ", (1, 1, 16, 16), "FRACTAL_NZ"),
        ("DefaultFormat", (2,), ""),
    ],
)
def test_layouts(tmp_path, word, shape, layout):
    touch(tmp_path, kernel("a-op0", 1, "output.0", f".{word}"), values=np.zeros(shape, np.float16))
    (tensor,) = opened(tmp_path).operators[0].tensors
    assert (tensor.layout, tensor.shape) == (layout, shape)


def test_long_names(tmp_path):
    folder = touch(tmp_path / "d", "1" * 32 + ".npy", "2" * 32 + ".npy", "3" * 32 + ".npy")
    (folder / ("3" * 32 + ".npy")).rename(folder / ("3" * 32))
    rows = [
        (f"{digit * 32}{end}", kernel(f"long{digit}-op0", 1)) for digit, end in (("1", ".npy"), ("2", ""), ("3", ""))
    ]
    (folder / "mapping.csv").write_text("".join(f"{a},{b}\n" for a, b in [("hash name", "original"), *rows]))
    assert mindspore.sniff(folder)
    assert names(opened(folder)) == ["long1-op0", "long2-op0", "long3-op0"]
    assert opened(folder).operators[0].tensors[0].file == str(folder / ("1" * 32 + ".npy"))


@pytest.mark.parametrize(
    "row", ["../../secret.npy,{long}", "/etc/passwd,{long}", "1.npy,../../../{long}", '"', "1.npy"]
)
def test_mapping_leads_nowhere(tmp_path, row):
    folder = touch(tmp_path / "d", "1.npy", kernel("a-op0", 1))
    (folder / "mapping.csv").write_text(row.format(long=kernel("b-op0", 2)) + "\n")
    run = opened(folder)
    assert all(os.path.dirname(t.file) == str(folder) for op in run.operators for t in op.tensors)
    assert "1.npy" in run.notes[-1] or len(run.operators) == 2


def numbered(name: str, task: int, stream: int, slot: str = "output.0", more: str = "") -> str:
    return f"{name}.{name}-op0.{task}.{stream}.{100 + task}{more}.{slot}.ND.npy"


@pytest.mark.parametrize(
    "files, tasks",
    [
        ([numbered("a", 7, 3), numbered("a", 7, 3, "input.0")], (DeviceTask(7, 3),)),
        ([numbered("a", 7, 3), numbered("a", 8, 3, "input.0")], (DeviceTask(8, 3), DeviceTask(7, 3))),
        ([numbered("a", 0, 3, more=".4.1.2.0")], (DeviceTask(0, 3, 1, 2),)),
        (["a.a-op0.327.1619347786532995.output.0.npy"], (DeviceTask(327),)),
        ([numbered("a", 0, 0), numbered("b", 1, 0)], (DeviceTask(0, 0),)),
        ([numbered("a", 0, 0), numbered("b", 0, 0)], ()),
        ([numbered("a", 65535, 65535)], ()),
    ],
)
def test_tasks(tmp_path, files, tasks):
    assert opened(touch(tmp_path, *files)).operators[0].tasks == tasks


def test_parameters_are_no_tasks(tmp_path):
    run = opened(touch(tmp_path, "Parameter.w.0.0.1.output.0.ND.npy", numbered("a", 7, 3)))
    assert [operator.tasks for operator in run.operators] == [(DeviceTask(7, 3),), ()]


def test_tasks_of_rows(tmp_path):
    run = opened(table(tmp_path, NEW, "Sub,s,7,3,5,input,0,4,float32,(),1,1,1"))
    assert run.operators[0].tasks == (DeviceTask(7, 3),)


RECORD = "Opdebug.Node_OpDebug.1.2.1700000000000000.output.0.json"


def record(folder: Path, name: str = RECORD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('{"AI Core": {"stream_id": 3, "task_id": 7, "status": 32}}')
    return folder / name


def test_overflow_records_are_neither_operators_nor_notes(tmp_path):
    leaf = touch(tmp_path / "rank_0" / "Net" / "0" / "4", kernel("a-op0", 1))
    file = record(leaf)
    (run,) = open_runs(tmp_path)
    assert (names(run), run.records, run.notes) == (["a-op0"], (str(file),), ())


def test_records_alone_are_a_run(tmp_path):
    file = record(tmp_path / "rank_1" / "Net" / "0" / "4")
    for path in (tmp_path, file.parent, file):
        (run,) = open_runs(path)
        assert (run.format, run.operators, run.records) == ("mindspore", (), (str(file),))
        assert (run.step, run.rank, run.problem, run.detail) == (4, 1, "", "Net")


@pytest.mark.parametrize("folder", ["rank_0/debug_files/4", "rank_0/Net/1/4"])
def test_records_of_other_folders_belong_to_the_step(tmp_path, folder):
    touch(tmp_path / "rank_0" / "Net" / "0" / "4", kernel("a-op0", 1))
    touch(tmp_path / "rank_0" / "Net" / "0" / "5", kernel("a-op0", 1))
    file = record(tmp_path / folder)
    assert [(run.step, run.records) for run in open_runs(tmp_path)] == [(4, (str(file),)), (5, ())]


def test_records_beside_a_broken_table(tmp_path):
    file = record(table(tmp_path, "a,b"))
    (run,) = open_runs(file.parent)
    assert run.records == (str(file),) and "statistic.csv" in run.notes[0]


def test_records_among_raw_files_are_left_to_their_format(tmp_path):
    (record(tmp_path).parent / "Add.a.1.2.1700000000000000").write_bytes(b"\0" * 16)
    assert {run.format for run in open_runs(tmp_path)} == {"cann"}


@pytest.mark.parametrize("name", ["Opdebug.json", "Opdebug.Node_OpDebug.1.json", RECORD[2:], RECORD + ".txt"])
def test_no_records(tmp_path, name):
    assert mindspore.sniff(record(tmp_path, name)) is False and mindspore.sniff(tmp_path) is False


def test_other_files_are_told(tmp_path):
    run = opened(touch(tmp_path, kernel("a-op0", 1), "weights.npy"))
    assert names(run) == ["a-op0"] and "weights.npy" in run.notes[0]


RAW = ("Cast.a-op0", "Tanh.b-op0", "Add.c-op0")
WORDS = {ml_dtypes.bfloat16: "BF16", np.float32: "FLOAT", np.float16: "FLOAT16"}


def write_raw(folder, wrong=False, dtype=ml_dtypes.bfloat16, ending="", layout="ND", shown=lambda values: values):
    """As msprobe writes what NPY has no type for: the bytes alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, one) in enumerate(zip(RAW, three(wrong))):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for index, values in enumerate(arrays):
                file = f"{name}.10.10.{1735011096427368 + number}.{role}.{index}.{layout}.{WORDS[dtype]}{ending}"
                (folder / file).write_bytes(shown(values).astype(dtype).tobytes())
    return folder


def write_npy(folder, wrong=False):
    folder.mkdir(parents=True)
    for number, (name, one) in enumerate(zip(RAW, three(wrong))):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for index, values in enumerate(arrays):
                np.save(folder / f"{name}.0.0.{1735011096427368 + number}.{role}.{index}.ND.float32.npy", values)
    return folder


class TestRawBytes(FormatContract):
    module = mindspore

    def write(self, folder):
        return write_raw(folder / "rank_0" / "20250101000000" / "step_0")


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("ending", ["", ".bin"])
def test_the_fault_is_born_among_bytes_without_a_header(tmp_path, dtype, ending):
    target, golden = (write_raw(tmp_path / side, side == "t", dtype, ending) for side in "tg")
    assert second_is_first(target, golden).roots[0].pair.operator.name == "b-op0"


@pytest.mark.parametrize("raw_is_target", [True, False])
def test_a_partner_tells_the_shape(tmp_path, raw_is_target):
    raw, npy = write_raw(tmp_path / "raw", raw_is_target, np.float32), write_npy(tmp_path / "npy", not raw_is_target)
    report = npucmp.compare(*((raw, npy) if raw_is_target else (npy, raw)))
    assert [root.pair.operator.name for root in report.roots if root.cause.value == "BORN"] == ["b-op0"]
    assert {one.pair.target.shape == one.pair.golden.shape for one in report.findings} == {True}
    assert npucmp.compare(write_raw(tmp_path / "same", dtype=np.float32), write_npy(tmp_path / "n")).exit_status == 0


def fractal(values):
    """A matrix as FRACTAL_NZ stores it, in blocks of 16 by 16; other shapes as they are."""
    if values.ndim != 2:
        return values
    h, w = (-(-size // 16) for size in values.shape)
    padded = np.zeros((h * 16, w * 16), values.dtype)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded.reshape(h, 16, w, 16).transpose(2, 0, 1, 3)


def test_a_layout_is_undone_by_the_shape_of_the_partner(tmp_path):
    raw = write_raw(tmp_path / "t", dtype=np.float16, layout="FRACTAL_NZ", shown=fractal)
    report = npucmp.compare(raw, write_npy(tmp_path / "g"))
    verdicts = {(one.pair.operator.name, one.pair.slot): one.verdict.value for one in report.findings}
    assert verdicts.pop(("c-op0", "input:1")) == "unreadable"  # a vector is no matrix
    assert set(verdicts.values()) == {"match"}
    faulty = write_raw(tmp_path / "f", True, np.float16, layout="FRACTAL_NZ", shown=fractal)
    assert npucmp.compare(faulty, tmp_path / "g").roots[0].pair.operator.name == "b-op0"


def test_a_size_that_does_not_fit_the_partner_is_told(tmp_path):
    raw = write_raw(tmp_path / "t", dtype=np.float32)
    golden = write_npy(tmp_path / "g")
    file = next(raw.glob("Tanh*output*"))
    data = file.read_bytes()
    for end in range(0, len(data), 11):
        file.write_bytes(data[:end])
        (found,) = [
            one
            for one in npucmp.compare(raw, golden).findings
            if one.pair.slot in ("", "output:0") and one.pair.operator.name == "b-op0"
        ]
        words = f"shape [{end // 4}] against [6, 8]" if end % 4 == 0 else f"cut short: {end} bytes"
        assert words in found.because


def test_a_table_tells_the_shape_or_that_bytes_are_missing(tmp_path):
    line = "Tanh,b-op0,10,10,1735011096427369,{io},0,192,float32,{shape},1,1,1"
    folder = write_raw(tmp_path / "d", dtype=np.float32)
    table(folder, NEW, line.format(io="output", shape='"(6, 8)"'), line.format(io="input", shape='"(6, 9)"'))
    read, wrote = opened(folder).operators[1].tensors
    assert (wrote.shape, wrote.problem, wrote.is_unshaped) == ((6, 8), "", False)
    assert "192 bytes, statistic.csv gives it shape [6, 9], 216 bytes" in read.problem


@pytest.mark.parametrize("word", ["", ".ND", ".ND.STRING", ".ND.DT_NEVER", "." + "x" * 150])
def test_bytes_of_no_known_type_are_unreadable_rows(tmp_path, word):
    folder = touch(tmp_path, kernel("a-op0", 1))
    (folder / f"Sub.b-op0.0.0.2.output.0{word}").write_bytes(bytes(12))
    (tensor,) = opened(folder).operators[1].tensors
    assert tensor.slot == "output:0" and "no file records their type" in tensor.problem


def test_bytes_under_a_number_for_a_name(tmp_path):
    number = "0123456789" * 3 + "01.BF16"
    (tmp_path / number).write_bytes(bytes(12))
    (tmp_path / "mapping.csv").write_text(f"{number},Sub.b-op0.0.0.2.output.0.ND.BF16\n")
    (operator,) = opened(tmp_path).operators
    assert mindspore.sniff(tmp_path) and (operator.name, operator.tensors[0].shape) == ("b-op0", (6,))


def test_bytes_beyond_the_limit_and_links_out_are_unreadable_rows(tmp_path):
    folder = write_raw(tmp_path / "d")
    file = next(folder.glob("Tanh*output*"))
    context = ReadContext(Limits(tensor_bytes=90))
    (tensor,) = [one for one in open_runs(folder, context=context)[0].operators[1].tensors if one.label == file.name]
    assert "tensor_bytes" in tensor.problem
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    (tensor,) = [one for one in open_runs(folder)[0].operators[1].tensors if one.label == file.name]
    assert "links_out" in tensor.problem and tensor.slot == ""


def test_bytes_that_were_converted_too_are_one_tensor(tmp_path):
    folder = touch(tmp_path, kernel("a-op0", 1), "Sub.b-op0.0.0.2.output.0.2x3.npy")
    (folder / "Sub.b-op0.0.0.2.output.0.ND.BF16").write_bytes(bytes(12))
    assert [len(operator.tensors) for operator in opened(folder).operators] == [1, 1]


@pytest.mark.parametrize("other", ["Add.c.0.0.3", "tensor.dat"])
def test_other_files_are_counted_and_one_is_named(tmp_path, other):
    folder = touch(tmp_path, kernel("a-op0", 1), "weights.npy")
    (folder / other).write_bytes(bytes(12))
    (note,) = opened(folder).notes
    assert note == f"{folder}: 2 files have unknown names and are skipped, for example {min(other, 'weights.npy')}"


def test_files_of_a_folder_that_holds_no_tensor_are_told(tmp_path):
    touch(tmp_path / "rank_0" / "Net" / "0" / "0", kernel("a-op0", 1))
    touch(tmp_path / "rank_0" / "Net" / "0" / "more", "weights.npy")
    (tmp_path / "rank_0" / "notes.txt").write_text("")
    (note,) = opened(tmp_path).notes
    assert note == f"{tmp_path}: 1 file has an unknown name and is skipped: rank_0/Net/0/more/weights.npy"


class TestTables:
    @pytest.mark.parametrize("text", ["", "\n", NEW, NEW + '\n"' + "x" * 200_000, NEW + "\n\0\0,,,,", "a,b\n1,2"])
    def test_a_table_without_rows_is_a_run_that_cannot_be_read(self, tmp_path, text):
        (tmp_path / "statistic.csv").write_text(text)
        run = opened(tmp_path)
        assert run.operators == () and "statistic.csv" in run.problem

    def test_files_and_rows_of_one_tensor(self, tmp_path):
        touch(tmp_path, kernel("a-op0", 10), kernel("a-op0", 30), kernel("b-op0", 20))
        rows = [
            f'a,{name},0,0,{time},output,0,24,float32,"(9, 9)",{time},0,1'
            for name, time in (("a-op0", 10), ("a-op0", 30), ("b-op0", 19), ("c-op0", 5))
        ]
        operators = opened(table(tmp_path, NEW, *rows)).operators
        found = [(op.name, bool(t.file), t.shape, t.statistics.max) for op in operators for t in op.tensors]
        assert found == [
            ("c-op0", False, (9, 9), 5.0),
            ("a-op0", True, (2, 3), 10.0),
            ("b-op0", True, (2, 3), 19.0),
            ("a-op0", True, (2, 3), 30.0),
        ]


@shared
class TestRealDumps:
    def test_a_training_step(self):
        run = opened(SHARED / "mindspore" / "A")
        assert (run.step, run.rank, run.detail, run.notes) == (0, 0, "LeNet · tensor", ())
        assert (len(run.operators), run.tensors, run.ordered) == (61, 187, True)
        assert [operator.op_type for operator in run.operators[:4]] == ["Conv2D", "ReLU", "MaxPool", "Conv2D"]
        assert {operator.op_type for operator in run.operators[40:]} == {"Parameter"}
        (norm,) = [operator for operator in run.operators if operator.op_type == "LayerNorm"]
        assert norm.name == "Default_network-WithLossCell__backbone-Net_ln-LayerNorm_LayerNorm-op0"
        assert norm.arguments == {"input:3": -1, "input:4": -1, "input:5": 1e-07}
        assert source_line(norm).startswith("net.py:15  x=self.ln(")

    def test_the_planted_constant(self):
        leaf = SHARED / "mindspore" / "B" / "rank_0" / "LeNet" / "0" / "0"
        (norm,) = [operator for operator in opened(leaf).operators if operator.op_type == "LayerNorm"]
        assert norm.arguments["input:5"] == 0.1

    def test_parameters_hold_what_the_optimizer_left(self):
        tensors = {t.label.rpartition(".0.0.")[0]: t for op in opened(SHARED / "mindspore" / "A").operators
                   for t in op.tensors if op.op_type == "Parameter"}  # fmt: skip
        run = opened(SHARED / "mindspore" / "A")
        files = {(op.name.rpartition("_")[2], op.order, t.slot): t.file for op in run.operators for t in op.tensors}
        weights = np.load(tensors["Parameter.c1_weight"].file)
        assert (weights != np.load(files["Conv2D-op0", 0, "input:1"])).any()
        assert (weights == np.load(files["ApplyMomentum-op7", 39, "output:0"])).all()

    @pytest.mark.parametrize("name", ["framework/mindspore/test_csv_content.csv", "cann/mindspore_statistic.csv"])
    def test_a_table_with_trailing_commas(self, tmp_path, name):
        (tmp_path / "statistic.csv").write_bytes((SHARED / name).read_bytes())
        run = opened(tmp_path)
        assert names(run) == [f"Default_{op}-op0" for op in ("Sub", "Add", "Cast", "Div", "Mul")]
        assert run.operators[3].tensors[2].statistics == Statistics(0.5, 0.5, None, 0.5)
        assert run.operators[2].tensors[2].dtype == "bool" and run.notes == ()
