"""Raw dumps of the TensorFlow debugger: names, folders, Events written by the protobuf runtime, damage, a real dump."""

from __future__ import annotations

import functools
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.formats import npy, tfdbg
from npucmp.dump.graphs.graph import merge_graphs
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from npucmp.model.dtypes import numpy_dtype
from tests.contracts import FormatContract

REAL = Path(__file__).parents[4] / "shared" / "data" / "tf" / "golden"
DEVICE = "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0"
OTHER_DEVICE = DEVICE.replace("CPU", "GPU")
TIME = 1795254505853561

# The public messages, as far as a dump of values uses them: (name, number, type or message, repeated)
SCHEMA = {
    "Dim": [("size", 1, "INT64", False), ("name", 2, "STRING", False)],
    "Shape": [("dim", 2, "Dim", True), ("unknown_rank", 3, "BOOL", False)],
    "Tensor": [
        ("dtype", 1, "INT32", False),
        ("tensor_shape", 2, "Shape", False),
        ("version_number", 3, "INT32", False),
        ("tensor_content", 4, "BYTES", False),
        ("float_val", 5, "FLOAT", True),
        ("double_val", 6, "DOUBLE", True),
        ("int_val", 7, "INT32", True),
        ("string_val", 8, "BYTES", True),
        ("scomplex_val", 9, "FLOAT", True),
        ("int64_val", 10, "INT64", True),
        ("bool_val", 11, "BOOL", True),
        ("dcomplex_val", 12, "DOUBLE", True),
        ("half_val", 13, "INT32", True),
    ],
    "Metadata": [("display_name", 2, "STRING", False)],
    "Value": [
        ("tag", 1, "STRING", False),
        ("node_name", 7, "STRING", False),
        ("tensor", 8, "Tensor", False),
        ("metadata", 9, "Metadata", False),
    ],
    "Summary": [("value", 1, "Value", True)],
    "Event": [
        ("wall_time", 1, "DOUBLE", False),
        ("step", 2, "INT64", False),
        ("graph_def", 4, "BYTES", False),
        ("summary", 5, "Summary", False),
        ("log_message", 6, "STRING", False),
    ],
}


@functools.cache
def messages() -> dict:
    """The classes that the protobuf runtime makes of SCHEMA."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            made.type = made.TYPE_MESSAGE if kind in SCHEMA else getattr(made, f"TYPE_{kind}")
            if kind in SCHEMA:
                made.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = {name: pool.FindMessageTypeByName(f"t.{name}") for name in SCHEMA}
    if hasattr(message_factory, "GetMessageClass"):
        return {name: message_factory.GetMessageClass(one) for name, one in described.items()}
    return {name: message_factory.MessageFactory(pool).GetPrototype(one) for name, one in described.items()}


def event(dtype: int, shape=(), content: bytes = b"", unknown_rank=False, **values) -> bytes:
    """One Event with one tensor, as the debugger writes it."""
    made = messages()["Event"](wall_time=1.5)
    value = made.summary.value.add(tag="n", node_name="n:0:DebugIdentity")
    value.metadata.display_name = "x" * 100
    value.tensor.dtype = dtype
    value.tensor.tensor_shape.unknown_rank = unknown_rank
    for size in shape:
        value.tensor.tensor_shape.dim.add(size=size)
    value.tensor.tensor_content = content
    for name, items in values.items():
        getattr(value.tensor, name).extend(items)
    return made.SerializeToString()


def floats(*items: float) -> bytes:
    return event(1, (len(items),), np.array(items, np.float32).tobytes())


def dump(root: Path, names, data: bytes = b"", run="run_1_0", device=DEVICE) -> Path:
    """Writes one Event under each name below a device's folder; returns the root."""
    folder = root / run / device
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data or floats(1, 2))
    (root / run / f"_tfdbg_core_metadata_sessionrun0_{TIME}").touch()
    return root


def opened(path: Path):
    (run,) = tfdbg.open_runs(path)
    return run


def only(path: Path):
    """The one tensor of a dump."""
    (operator,) = opened(path).operators
    (tensor,) = operator.tensors
    return tensor


def tensor_of(root: Path, data: bytes):
    return only(dump(root, [f"scope/node_3_DebugIdentity_{TIME}"], data))


def values(tensor):
    return np.concatenate([np.empty(0, numpy_dtype(tensor.dtype)), *blocks(tensor.payload)]).reshape(tensor.shape)


class TestRoot(FormatContract):
    module = tfdbg

    def write(self, folder):
        names = [f"net/layer_{n}/MatMul_{slot}_DebugIdentity_{TIME + n}" for n in range(4) for slot in range(2)]
        return dump(folder / "d", names)


class TestRun(TestRoot):
    def write(self, folder):
        return super().write(folder) / "run_1_0"


class TestDevice(TestRoot):
    def write(self, folder):
        return super().write(folder) / "run_1_0" / DEVICE


class TestWithoutDevices(FormatContract):
    module = tfdbg

    def write(self, folder):
        return dump(folder / "d", [f"a/b{n}_0_DebugIdentity_{TIME + n}" for n in range(3)], device=".")


class TestSeveralRuns(TestRoot):
    def write(self, folder):
        for count in range(2):
            dump(folder / "d", [f"n{n}_0_DebugIdentity_{TIME + n}" for n in range(3)], run=f"run_5_{count}")
        return folder / "d"


# --- names


@pytest.mark.parametrize(
    "name, node, slot, op, time, again",
    [
        ("relu_0_DebugIdentity_1795254505914644", "relu", 0, "DebugIdentity", 1795254505914644, 0),
        ("MatMul_1_2_DebugIdentity_17", "MatMul_1", 2, "DebugIdentity", 17, 0),
        ("_arg_input_0_0_0_DebugIdentity_17", "_arg_input_0_0", 0, "DebugIdentity", 17, 0),
        ("a_0_DebugIdentity_17-1", "a", 0, "DebugIdentity", 17, 1),
        ("a_0_DebugIdentity_17-12", "a", 0, "DebugIdentity", 17, 12),
        ("a-b.c_0_DebugNanCount_17", "a-b.c", 0, "DebugNanCount", 17, 0),
        ("a_0_DebugIdentityV2_17", "a", 0, "DebugIdentityV2", 17, 0),
        ("a_0_DebugIdentity_17_1_DebugIdentity_18", "a_0_DebugIdentity_17", 1, "DebugIdentity", 18, 0),
        ("a__0_DebugIdentity_17", "a_", 0, "DebugIdentity", 17, 0),
        ("ü b\n_0_DebugIdentity_17", "ü b\n", 0, "DebugIdentity", 17, 0),
    ],
)
def test_names(name, node, slot, op, time, again):
    assert tfdbg.parse_tfdbg_name(name)[:5] == (node, slot, op, time, again)
    assert tfdbg.parse_tfdbg_name(name, "s/t/").node == f"s/t/{node}"


@pytest.mark.parametrize(
    "name",
    ["", "a", "a_0", "a_0_DebugIdentity", "_0_DebugIdentity_17", "a_DebugIdentity_17", "a_0_DebugIdentity_17-",
     "a_0_DebugIdentity_-1", "a_0_DebugIdentity_17.npy", "a_0_DebugIdentity_١٧", "a_²_DebugIdentity_17",
     "a_0_DebugIdentity_" + "9" * 21, "a_0__17", "a_1234567_DebugIdentity_17", "a_0_DebugIdentity_17\n"],
)  # fmt: skip
def test_no_names(name):
    assert tfdbg.parse_tfdbg_name(name) is None


@given(
    st.text(min_size=1),
    st.integers(0, 999999),
    st.from_regex(r"[A-Za-z][A-Za-z0-9]*", fullmatch=True),
    st.integers(0, 10**20 - 1),
    st.integers(0, 999),
)
def test_what_is_joined_comes_apart(base, slot, op, time, again):
    name = f"{base}_{slot}_{op}_{time}" + (f"-{again}" if again else "")
    assert tfdbg.parse_tfdbg_name(name)[:5] == (base, slot, op, time, again)


@given(st.text())
def test_any_name_is_a_file_or_none(text):
    found = tfdbg.parse_tfdbg_name(text)
    assert found is None or (found.node and found.slot >= 0 and found.time >= 0)


@pytest.mark.parametrize(
    "node, op_type",
    [
        ("net/bn2/FusedBatchNormV3", "FusedBatchNormV3"),
        ("net/bn2/ReadVariableOp_1", "ReadVariableOp"),
        ("gradients/MatMul_1_grad/MatMul", "MatMul"),
        ("7", "7"),
    ],
)
def test_op_type(tmp_path, node, op_type):
    (operator,) = opened(dump(tmp_path, [f"{node}_0_DebugIdentity_17"])).operators
    assert (operator.name, operator.kind, operator.call, operator.op_type) == (node, node, node, op_type)
    assert operator.unique and not operator.reads_recorded


# --- folders


def test_outputs_of_one_node_are_together(tmp_path):
    (operator,) = opened(dump(tmp_path, [f"a/x_{n}_DebugIdentity_{30 - n}" for n in (0, 10, 2)])).operators
    assert [tensor.slot for tensor in operator.tensors] == ["output:0", "output:2", "output:10"]
    assert operator.tensors[0].label == "a/x_0_DebugIdentity_30"


def test_time_orders_operators(tmp_path):
    run = opened(dump(tmp_path, [f"{name}_0_DebugIdentity_{time}" for name, time in (("z", 9), ("a", 10), ("m", 11))]))
    assert [operator.name for operator in run.operators] == ["z", "a", "m"]
    assert (run.notes, run.ordered, run.detail, run.step, run.rank) == ((), True, "outputs only", None, None)


def test_several_times_are_several_executions(tmp_path):
    names = [f"loop/a_{slot}_DebugIdentity_{time}" for slot in (0, 1) for time in (10, 50)]
    run = opened(dump(tmp_path, [*names, "loop/a_2_DebugIdentity_51", "b_0_DebugIdentity_30"]))
    assert [operator.name for operator in run.operators] == ["loop/a", "b", "loop/a"]
    assert [len(operator.tensors) for operator in run.operators] == [2, 1, 3]  # counted from the newest


def test_files_of_one_microsecond(tmp_path):
    run = opened(dump(tmp_path, ["a_0_DebugIdentity_17-10", "a_0_DebugIdentity_17-2", "a_0_DebugIdentity_17"]))
    labels = [operator.tensors[0].label for operator in run.operators]
    assert labels == ["a_0_DebugIdentity_17", "a_0_DebugIdentity_17-2", "a_0_DebugIdentity_17-10"]


def test_devices_are_merged(tmp_path):
    dump(tmp_path, ["a/x_0_DebugIdentity_1", "c_0_DebugIdentity_3"])
    run = opened(dump(tmp_path, ["a/b_0_DebugIdentity_2", "c_1_DebugIdentity_4"], device=OTHER_DEVICE))
    assert [operator.name for operator in run.operators] == ["a/x", "a/b", "c", "c"]  # c is two nodes, one per device
    assert run.path == str(tmp_path / "run_1_0")


def test_runs_are_steps_in_order_of_time(tmp_path):
    for name in ("run_100_2", "run_99_1", "run_100_10"):
        dump(tmp_path, ["a_0_DebugIdentity_17"], run=name)
    (tmp_path / "run_5_5").mkdir()  # no dump
    (tmp_path / "run_6_6").touch()
    runs = tfdbg.open_runs(tmp_path)
    assert [(os.path.basename(run.path), run.step) for run in runs] == [
        ("run_99_1", 0),
        ("run_100_2", 1),
        ("run_100_10", 2),
    ]


def test_one_of_several_runs_has_no_step(tmp_path):
    for name in ("run_1_0", "run_2_1"):
        dump(tmp_path, ["a_0_DebugIdentity_17"], run=name)
    assert opened(tmp_path / "run_2_1").step is None


def test_other_debug_ops_and_strangers_are_noted(tmp_path):
    names = ["a_0_DebugIdentity_1", "a_0_DebugNanCount_2", "b_0_DebugNumericSummary_3", "readme.txt", "s/_tfdbg_x"]
    run = opened(dump(tmp_path, names))
    assert [operator.name for operator in run.operators] == ["a"]
    assert "2 files" in run.notes[0] and "DebugNanCount, DebugNumericSummary" in run.notes[0]
    assert "2 files" in run.notes[1]


def test_handles_are_noted(tmp_path):
    dump(tmp_path, ["var_0_DebugIdentity_1"], event(20, (), b"\x0a\x01x"))
    run = opened(dump(tmp_path, ["a_0_DebugIdentity_2"]))
    assert [operator.name for operator in run.operators] == ["a"]
    assert "1 outputs are left out: handles" in run.notes[0]


def test_scopes_may_be_deep(tmp_path):
    deep, deeper = "/".join("s" * 40), "/".join("s" * 41)
    run = opened(dump(tmp_path, [f"{deep}/a_0_DebugIdentity_1", f"{deeper}/b_0_DebugIdentity_2"]))
    assert [operator.name for operator in run.operators] == [f"{deep}/a"]
    assert "1 folders are left out: more than 40" in run.notes[0]


def test_links_to_folders_are_not_followed(tmp_path):
    dump(tmp_path / "d", ["s/a_0_DebugIdentity_1"])
    device = tmp_path / "d" / "run_1_0" / DEVICE
    (device / "loop").symlink_to(device)
    (device.parent / OTHER_DEVICE).symlink_to(device)
    (device / "b_0_DebugIdentity_1").symlink_to(device)
    (tmp_path / "d" / "run_2_0").symlink_to(device.parent)
    run = opened(tmp_path / "d")
    assert [operator.name for operator in run.operators] == ["s/a"]
    assert run.notes == ("3 folders are left out: links are not followed",)


def test_the_path_itself_may_be_a_link(tmp_path):
    dump(tmp_path / "d", ["s/a_0_DebugIdentity_1"])
    (tmp_path / "link").symlink_to("d")
    assert tfdbg.sniff(tmp_path / "link") and len(opened(tmp_path / "link").operators) == 1


@pytest.mark.parametrize("names", [["run_1_0/a_0_DebugIdentity_1"], ["a.npy"], ["x/run_1_0/_tfdbg_graph_1"], ["run_1"]])
def test_not_recognised(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert tfdbg.sniff(tmp_path) is False
    with pytest.raises(DumpError, match="no dump of the TensorFlow debugger"):
        tfdbg.open_runs(tmp_path)


# --- Events


NUMBERS = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    11: "int8", 12: "uint8", 13: "int32", 14: "bfloat16", 15: "int16", 16: "uint16", 17: "uint16", 18: "complex128",
    19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn",
}  # fmt: skip


@pytest.mark.parametrize("number, name", NUMBERS.items())
def test_content(tmp_path, number, name):
    for reference, shape in product([0, 100], [(2, 3), (), (1500, 2)]):
        array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(numpy_dtype(name))
        tensor = tensor_of(tmp_path, event(number + reference, shape, array.tobytes()))
        assert (tensor.slot, tensor.dtype, tensor.shape, tensor.problem) == ("output:3", name, shape, "")
        assert tensor.label == f"scope/node_3_DebugIdentity_{TIME}" and tensor.file == tensor.payload.path
        assert values(tensor).tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_tensors(tmp_path, shape):
    tensor = tensor_of(tmp_path, event(1, shape))
    assert (tensor.shape, tensor.problem, values(tensor).shape) == (shape, "", shape)


@pytest.mark.parametrize(
    "number, field, items, expected",
    [
        (1, "float_val", [1.5, -2.0], np.array([1.5, -2], np.float32)),
        (2, "double_val", [0.1, 7.0], np.array([0.1, 7])),
        (8, "scomplex_val", [1.0, 2.0, 3.0, -4.0], np.array([1 + 2j, 3 - 4j], np.complex64)),
        (18, "dcomplex_val", [1.0, 2.0, 3.0, -4.0], np.array([1 + 2j, 3 - 4j])),
    ],
)
def test_raw_values(tmp_path, number, field, items, expected):
    tensor = tensor_of(tmp_path, event(number, (2,), **{field: items}))
    assert tensor.problem == "" and values(tensor).tobytes() == expected.tobytes()
    short = tensor_of(tmp_path, event(number, (3,), **{field: items}))
    assert "bytes of values" in short.problem and short.slot == "output:3" and short.shape == (3,)


def test_a_scalar_among_raw_values(tmp_path):
    assert values(tensor_of(tmp_path, event(1, (), float_val=[2.5]))) == np.float32(2.5)


@pytest.mark.parametrize(
    "data, problem",
    [
        ({"dtype": 1, "shape": (4,)}, "uninitialised when it was dumped"),
        ({"dtype": 1}, "uninitialised when it was dumped"),
        ({"dtype": 3, "shape": (2,), "int_val": [1, 2]}, "numbers of varying length"),
        ({"dtype": 9, "shape": (1,), "int64_val": [-1]}, "numbers of varying length"),
        ({"dtype": 10, "shape": (2,), "bool_val": [True, False]}, "numbers of varying length"),
        ({"dtype": 19, "shape": (2,), "half_val": [15360, 0]}, "numbers of varying length"),
        ({"dtype": 7, "shape": (2,), "string_val": [b"a", b"b"]}, "text, not numbers"),
        ({"dtype": 107, "shape": (), "content": b"\x01a"}, "text, not numbers"),
        ({"dtype": 1, "shape": (2,), "content": bytes(7)}, "holds 7 bytes of values, a shape of [2] needs 8"),
        ({"dtype": 1, "shape": (2,), "content": bytes(9)}, "holds 9 bytes"),
        ({"dtype": 1, "shape": (0,), "content": bytes(4)}, "holds 4 bytes"),
        ({"dtype": 29, "shape": (2,), "content": bytes(2)}, "elements of type int4: not read"),
        ({"dtype": 99, "shape": (2,), "content": bytes(8)}, "number 99"),
        ({"dtype": 0, "shape": (2,), "content": bytes(8)}, "number 0"),
        ({"dtype": -1, "shape": (2,), "content": bytes(8)}, "unknown type"),
    ],
)
def test_what_is_not_read_is_told(tmp_path, data, problem):
    tensor = tensor_of(tmp_path, event(**data))
    assert problem in tensor.problem
    assert (tensor.slot, tensor.shape, tensor.payload) == ("output:3", data.get("shape", ()), None)


@pytest.mark.parametrize(
    "data, problem",
    [
        ({"dtype": 1, "shape": (-1,)}, "negative"),
        ({"dtype": 1, "shape": (2**62, 2)}, "more than the limit"),
        ({"dtype": 1, "shape": (2**40, 2**40)}, "more than"),
        ({"dtype": 1, "shape": (1,) * 65, "content": bytes(4)}, "65 dimensions"),
        ({"dtype": 1, "shape": (1,) * 40000, "content": bytes(4)}, "40000 dimensions, more than the limit ndim of 64;"),
        ({"dtype": 1, "unknown_rank": True}, "unknown rank"),
    ],
)
def test_impossible_shapes_are_broken_files(tmp_path, data, problem):
    tensor = tensor_of(tmp_path, event(**data))
    assert problem in tensor.problem and (tensor.slot, tensor.dtype, tensor.shape) == ("", "", ())


def test_several_pieces_of_values(tmp_path):
    whole = messages()["Tensor"].FromString
    assert list(whole(b"\x2d" + bytes(4) + b"\x2d" + bytes(4)).float_val) == [0, 0]  # unpacked: a tag before each
    tensor = b"\x08\x01" + field(2, field(2, b"\x08\x02")) + b"\x2d" + bytes(4) + b"\x2d" + bytes(4)
    assert "several pieces" in tensor_of(tmp_path, field(5, field(1, field(8, tensor)))).problem


def write_one(root: Path, data: bytes) -> Path:
    folder = root / DEVICE
    folder.mkdir(exist_ok=True)
    (folder / "a_0_DebugIdentity_1").write_bytes(data)
    return folder


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("gone"), lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_an_unreadable_tensor(tmp_path, make):
    dump(tmp_path, ["b_0_DebugIdentity_2"])
    make(tmp_path / "run_1_0" / DEVICE / "a_0_DebugIdentity_1")
    assert [bool(operator.tensors[0].problem) for operator in opened(tmp_path).operators] == [True, False]


def test_a_gigabyte_opens_at_once(tmp_path):
    """The lengths are written by hand: the runtime would hold the values."""
    size = 2**30
    shape = field(2, field(2, b"\x08" + varint(size)))
    tensor = b"\x08\x04" + shape + field(4, behind=size)
    head = field(5, field(1, field(8, tensor, size), size), size)
    folder = write_one(tmp_path, head)
    with open(folder / "a_0_DebugIdentity_1", "ab") as stream:
        stream.truncate(len(head) + size)
    tensor = only(folder)
    assert (tensor.problem, tensor.dtype, tensor.shape, tensor.payload.offset) == ("", "uint8", (size,), len(head))


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def field(number: int, head: bytes = b"", behind: int = 0) -> bytes:
    """Tag, length and first bytes of a field of which `behind` bytes follow."""
    return varint(number << 3 | 2) + varint(len(head) + behind) + head


# --- the graph


def test_own_graphs(tmp_path):
    node = b"\x0a\x04\x0a\x02" + b"n%d"  # node { name }
    event = messages()["Event"]
    data, other = (event(wall_time=2, graph_def=node % i).SerializeToString() for i in (1, 2))
    dump(tmp_path, ["a_0_DebugIdentity_1", "_tfdbg_graph_hash5_17", "b/_tfdbg_graph_hash5_17"], data)
    dump(tmp_path, ["_tfdbg_graph_hash6_17"], data[:-1], device=OTHER_DEVICE)  # cut short
    dump(tmp_path, ["_tfdbg_graph_17"], other, run="run_2_1", device=".")
    notes = []
    found = tfdbg.stored_graphs(tmp_path, notes)
    assert [node.name for graph in found for node in graph.nodes] == ["n1", "n2"]
    assert len(notes) == 1 and "graph ignored, ended early" in notes[0]
    assert (
        tfdbg.stored_graphs(tmp_path / "run_1_0", [])
        == tfdbg.stored_graphs(tmp_path / "run_1_0" / DEVICE, [])
        == found[:1]
    )


@pytest.mark.parametrize("name", ["gone", "a\0b", "x" * 5000])
def test_graphs_of_nothing(tmp_path, name):
    assert tfdbg.stored_graphs(tmp_path / name, []) == tfdbg.stored_graphs(tmp_path, []) == []


# --- a real dump, beside the same tensors as .npy files


real = pytest.mark.skipif(not REAL.is_dir(), reason="the shared dumps are not beside this checkout")


@real
@pytest.mark.parametrize("deeper", [".", "run_*", "run_*/_tfdbg_device_*"])
def test_a_real_dump(deeper):
    (path,) = (REAL / "tfdbg_raw").glob(deeper) if deeper != "." else (REAL / "tfdbg_raw",)
    assert tfdbg.sniff(path)
    mine, theirs = opened(path), npy.open_runs(REAL / "npy")[0]
    assert [op.name.replace("/", "_") for op in mine.operators] == [op.name for op in theirs.operators]
    assert {op.op_type for op in mine.operators} >= {"Conv2D", "FusedBatchNormV3", "ReadVariableOp", "AddV2", "Const"}
    for ours, other in zip(mine.operators, theirs.operators):
        outputs = [tensor for tensor in ours.tensors if tensor.is_output]
        assert [(t.slot, t.dtype, t.shape, t.problem) for t in outputs] == [
            (t.slot, t.dtype, t.shape, "") for t in other.tensors
        ]
        for tensor, saved in zip(outputs, other.tensors):
            assert values(tensor).tobytes() == np.load(saved.file).tobytes()
    assert sum(t.is_output for op in mine.operators for t in op.tensors) == 103
    assert "37 outputs are left out: handles" in mine.notes[0]


@real
def test_the_graph_of_a_real_dump():
    (graph,) = tfdbg.stored_graphs(REAL / "tfdbg_raw", [])
    assert merge_graphs([graph]).by_name.get("resnet/conv1/weights").op_type == "VarHandleOp"
