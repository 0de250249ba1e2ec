"""HDF5 files: the hierarchy of PyTorch 1.5 for Ascend, plain files, and what hostile and damaged ones become."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from npucmp import Limits
from npucmp.align import align, pairs
from npucmp.dump.formats import hdf5
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import hdf5 as reader
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError, MissingExtra
from npucmp.measure.pairs import measure
from npucmp.model import TensorRef
from tests.contracts import FormatContract

h5py = pytest.importorskip("h5py")

CPU, GPU, NPU = 0, 1, 10
CODES = {"float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10}
STORED = {"uint8": "i1", "bool": "i1", "float16": "f4"}  # as DumpUtils.cpp writes them


def tensor(file, path, values, device=NPU, stride=None):
    """A tensor as DumpUtils.cpp writes it."""
    values = np.asarray(values)
    if values.dtype.name in ("uint8", "bool"):
        data = values.view("i1")
    else:
        data = values.astype(STORED.get(values.dtype.name, values.dtype))
    dataset = file.create_dataset(path, data=data)
    dataset.attrs.create("DeviceType", device, dtype="<i4")
    dataset.attrs.create("DataType", CODES[values.dtype.name], dtype="<i4")
    dataset.attrs.create("FormatType", 3 if device == NPU else 0, dtype="<i4")
    dataset.attrs.create("Type", 0, dtype="<i4")
    strides = [step // values.itemsize for step in values.strides] if stride is None else stride
    dataset.attrs.create("Stride", strides, dtype="<i8")
    return dataset


def value(file, path, kind, content, dtype="<i8"):
    file.create_dataset(path, data=np.asarray(content, dtype)).attrs.create("Type", kind, dtype="<i4")


def ramp(*shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def torch_dump(path, device):
    """A small backward pass, in the words of the device."""
    convolution, image = {NPU: ("NpuConvolutionBackward", "input"), GPU: ("CudnnConvolutionBackward", "self")}[device]
    norm, epsilon = {NPU: ("NativeBatchNormBackward", "eps"), GPU: ("CudnnBatchNormBackward", "epsilon")}[device]
    with h5py.File(path, "w") as file:
        for seq in (1, 2):
            tensor(file, f"/batch_norm/{seq}/input/input", ramp(2, 3) * seq, device)
            tensor(file, f"/batch_norm/{seq}/output/result", ramp(2, 3) + seq, device)
        tensor(file, "/AddmmBackward/3/input/mat1", ramp(4, 2), device)
        tensor(file, "/AddmmBackward/3/input/grads/grad_0", ramp(4, 3).astype("f2"), device)
        tensor(file, "/AddmmBackward/3/output/grad_inputs/result_0", ramp(2, 3), device)
        for seq in (4, 9, 11):
            tensor(file, f"/{convolution}/{seq}/input/{image}", ramp(1, seq, 2, 2), device)
            tensor(file, f"/{convolution}/{seq}/input/weight", ramp(3, 3), device)
            value(file, f"/{convolution}/{seq}/input/groups", 3, 1)
            value(file, f"/{convolution}/{seq}/input/stride", 2, [1, 1])
            if device == GPU:
                value(file, f"/{convolution}/{seq}/input/benchmark", 4, 1, "i1")
            tensor(file, f"/{convolution}/{seq}/output/result/result_0", ramp(1, seq, 2, 2), device)
        tensor(file, f"/{norm}/10/input/input", ramp(2, 2), device)
        value(file, f"/{norm}/10/input/{epsilon}", 5, 1e-5, "<f8")
        tensor(file, f"/{norm}/10/output/result/result_0", ramp(2, 2), device)
    return path


def opened(path):
    (run,) = hdf5.open_runs(path)
    return run


def made(path, write):
    """The run of a file that `write` fills."""
    with h5py.File(path, "w") as file:
        write(file)
    return opened(path)


def only(run) -> TensorRef:
    ((found,),) = (operator.tensors for operator in run.operators)
    return found


def read(found: TensorRef):
    assert not found.problem and found.payload
    parts = list(blocks(found.payload, 7))
    whole = np.concatenate(parts) if parts else np.empty(0)
    return whole.reshape(found.shape)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The library works in this process, which is quicker; tests/test_trust.py has the other."""
    monkeypatch.setattr(reader, "ISOLATED", False)


class TestTorch(FormatContract):
    module = hdf5

    def write(self, folder):
        return torch_dump(folder / "npu.h5", NPU)


class TestPlain(FormatContract):
    module = hdf5

    def write(self, folder):
        (folder / "d").mkdir()
        with h5py.File(folder / "d" / "x.hdf5", "w") as file:
            file["a"] = ramp(2, 3)
            file["b/c/output/0"] = np.float16(1)
            file.create_dataset("d/input", data=[True, False], chunks=(1,), compression="gzip")
            file["e"] = np.zeros((0, 4), np.int8)
        return folder / "d"


# --- PyTorch 1.5


def test_operators_stand_in_the_order_of_their_numbers(tmp_path):
    run = opened(torch_dump(tmp_path / "x.h5", NPU))
    names = ["batch_norm:0", "batch_norm:1", "AddmmBackward:0", "NpuConvolutionBackward:0"]
    names += ["NpuConvolutionBackward:1", "NativeBatchNormBackward:0", "NpuConvolutionBackward:2"]
    assert [operator.name for operator in run.operators] == names
    assert [operator.phase for operator in run.operators] == ["forward"] * 2 + ["backward"] * 5
    assert run.ordered and run.detail == "PyTorch 1.5 · NPU" and run.notes == ()
    assert not any(operator.unique for operator in run.operators)


def test_equal_numbers_of_several_operators_are_no_order(tmp_path):
    """A number that counts the calls of each operator says nothing about the order of the run."""

    def write(file):
        for path in ("/matmul/0/output/result", "/add/0/output/result", "/add/1/output/result"):
            tensor(file, path, ramp(2))

    run = made(tmp_path / "x.h5", write)
    assert [operator.name for operator in run.operators] == ["add:0", "matmul:0", "add:1"]
    assert not run.ordered and run.notes[0].startswith("order: guessed, several operators have the same number")


def test_slots_and_arguments(tmp_path):
    addmm, convolution = opened(torch_dump(tmp_path / "x.h5", NPU)).operators[2:4]
    assert [one.slot for one in addmm.tensors] == ["input:grads.grad_0", "input:mat1", "output:grad_inputs.result_0"]
    assert addmm.tensors[1].label == "/AddmmBackward/3/input/mat1"
    assert [one.slot for one in convolution.tensors] == ["input:self", "input:weight", "output:result.result_0"]
    assert convolution.arguments == {"input:groups": 1, "input:stride": [1, 1]}
    assert convolution.reads_recorded and convolution.op_type == "NpuConvolutionBackward"


def test_families_meet(tmp_path):
    target, golden = opened(torch_dump(tmp_path / "n.h5", NPU)), opened(torch_dump(tmp_path / "g.h5", GPU))
    alignment = align(target, golden)
    assert not alignment.only_target and not alignment.only_golden
    assert alignment.matched == {"name": 3, "order": 4}
    found = list(pairs(target, golden, alignment))
    assert all(pair.target and pair.golden and pair.target.slot == pair.golden.slot for pair in found)
    assert all(pair.target_op.order == pair.golden_op.order for pair in found)
    assert all(pair.target_op.arguments == pair.golden_op.arguments for pair in found)
    assert all(measure(pair).moments.sum_dd == 0 for pair in found)


@pytest.mark.parametrize(
    "op_type, kind",
    [
        ("NpuConvolutionBackward", "ConvolutionBackward"),
        ("CudnnConvolutionBackward", "ConvolutionBackward"),
        ("ThnnConvDepthwise2DBackward", "ConvolutionBackward"),
        ("CudnnBatchNormBackward", "BatchNormBackward"),
        ("NativeBatchNormBackward", "BatchNormBackward"),
        ("ThnnConvDilated2DBackward", "ConvDilated2DBackward"),
        ("npu_format_cast", "format_cast"),
        ("AddmmBackward", "AddmmBackward"),
        ("Npu", "Npu"),
        ("npu_", "npu_"),
        ("Cudnnfoo", "Cudnnfoo"),
    ],
)
def test_kind(op_type, kind):
    assert hdf5.family_kind(op_type) == kind


def test_a_name_that_is_taken_is_not_given_twice(tmp_path):
    def write(file):
        for name in ("input", "self"):
            tensor(file, f"/NpuConvolutionBackward/1/input/{name}", ramp(2))

    assert [one.slot for one in made(tmp_path / "x.h5", write).operators[0].tensors] == ["input:input", "input:self"]


@pytest.mark.parametrize("dtype", CODES)
def test_types_of_tensors(tmp_path, dtype):
    values = np.array([0, 1, 100, 0], dtype) if dtype != "uint8" else np.array([0, 1, 200, 255], dtype)
    found = made(tmp_path / "x.h5", lambda file: tensor(file, "/op/1/output/result", values)).operators[0].tensors[0]
    assert found.dtype == dtype
    assert found.payload.dtype == ("float32" if dtype == "float16" else dtype)
    assert read(found).tolist() == values.tolist()


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 99])
def test_plain_values_are_arguments(tmp_path, kind):
    run = made(tmp_path / "x.h5", lambda file: value(file, "/op/1/input/n", kind, 7))
    assert run.operators[0].arguments == {"input:n": 7} and run.operators[0].tensors == ()


@pytest.mark.parametrize(
    "kind, content, dtype, expected",
    [
        (4, 1, "i1", True),
        (4, 5, "i1", 5),
        (5, 1e-5, "<f8", 1e-5),
        (2, [3, 4], "<i8", [3, 4]),
        (2, range(100), "<i8", "100 values"),
        (2, [], "<i8", []),
        (3, b"text", "S4", "unreadable: unsupported: elements of type string of 4 bytes"),
    ],
)
def test_plain_values(tmp_path, kind, content, dtype, expected):
    run = made(tmp_path / "x.h5", lambda file: value(file, "/op/1/input/n", kind, content, dtype))
    assert run.operators[0].arguments == {"input:n": expected}


def test_a_call_without_datasets_is_kept(tmp_path):
    def write(file):
        file.create_group("/op/1/input")
        tensor(file, "/op/2/output/result", ramp(2))

    run = made(tmp_path / "x.h5", write)
    assert [(operator.name, len(operator.tensors)) for operator in run.operators] == [("op:0", 0), ("op:1", 1)]
    assert run.detail.endswith("outputs only")


def test_what_is_outside_the_hierarchy_stands_after_it(tmp_path):
    def write(file):
        file["about"] = [1]
        file["op/text/input"] = [2]
        tensor(file, "/op/2/output/result", ramp(2))

    run = made(tmp_path / "x.h5", write)
    assert [operator.name for operator in run.operators] == ["op:0", "about", "op/text"]
    assert not run.ordered and "follow the others" in run.notes[0]


@pytest.mark.parametrize("name", ["9" * 30, "²", "1e3", "-1", ""])
def test_odd_numbers_are_no_calls(tmp_path, name):
    assert made(tmp_path / "x.h5", lambda file: tensor(file, f"/op/{name}x/input/a", ramp(2))).operators[0].unique


# --- strides of PyTorch 1.5


def strided(tmp_path, device, stride, shape=(2, 3)):
    data = np.arange(6, dtype=np.float32).reshape(shape)
    return only(made(tmp_path / "x.h5", lambda file: tensor(file, "/op/1/output/r", data, device, stride)))


@pytest.mark.parametrize(
    "device, stride, expected",
    [
        (CPU, [3, 1], [[0, 1, 2], [3, 4, 5]]),
        (CPU, [1, 2], [[0, 2, 4], [1, 3, 5]]),
        (GPU, [1, 2], [[0, 2, 4], [1, 3, 5]]),
        (NPU, [1, 2], [[0, 1, 2], [3, 4, 5]]),  # an NPU's tensor is made contiguous when it is fetched
        (CPU, [0, 1], [[0, 1, 2], [0, 1, 2]]),
        (GPU, [0, 1], [[0, 1, 2], [3, 4, 5]]),  # and so is one of a GPU that is not dense
        (GPU, [6, 2], [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_strides(tmp_path, device, stride, expected):
    assert read(strided(tmp_path, device, stride)).tolist() == expected


def test_a_dimension_of_one_may_have_any_stride(tmp_path):
    assert read(strided(tmp_path, GPU, [77, 1], (1, 6))).tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("stride", [[6, 2], [-1, 1], [1], [2**40, 1]])
def test_strides_that_reach_beyond_what_was_kept(tmp_path, stride):
    assert "strides" in strided(tmp_path, CPU, stride).problem


# --- plain files


@pytest.mark.parametrize(
    "path, operator, slot",
    [
        ("a", "a", "output:0"),
        ("net/conv1/output/0", "net/conv1", "output:0"),
        ("net/conv1/inputs/12", "net/conv1", "input:12"),
        ("net/conv1/output", "net/conv1", "output:0"),
        ("net/conv1/input_3", "net/conv1", "input:3"),
        ("net/conv1/output.1", "net/conv1", "output:1"),
        ("net/conv1/input2", "net/conv1", "input:2"),
        ("net/conv1/outputs", "net/conv1", "output:0"),
        ("output", "output", "output:0"),
        ("output/0", "output/0", "output:0"),
        ("net/weights", "net/weights", "output:0"),
        ("net/input_ids", "net/input_ids", "output:0"),
        ("a/inputss/1", "a/inputss/1", "output:0"),
    ],
)
def test_names_of_plain_files(path, operator, slot):
    assert hdf5.split_name(tuple(path.split("/"))) == (operator, slot)


def test_tensors_of_one_operator_are_together(tmp_path):
    def write(file):
        for name in ("conv2/output_0", "conv10/input_0", "conv2/input_10", "conv2/input_9", "conv10/output_0"):
            file[name] = ramp(2)

    run = made(tmp_path / "x.h5", write)
    assert [operator.name for operator in run.operators] == ["conv2", "conv10"]
    assert [one.slot for one in run.operators[0].tensors] == ["input:9", "input:10", "output:0"]
    assert not run.ordered and "sorted by name" in run.notes[0]


def test_the_order_of_creation_is_kept(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w", track_order=True) as file:
        for name in ("z", "a", "m"):
            file.create_group(name, track_order=True)["output"] = ramp(2)
    run = opened(tmp_path / "x.h5")
    assert [operator.name for operator in run.operators] == ["z", "a", "m"] and run.ordered and run.notes == ()


def test_bytes_lie_where_the_payload_says(tmp_path):
    found = only(made(tmp_path / "x.h5", lambda file: file.create_dataset("a", data=np.arange(5, dtype=">i4"))))
    assert (found.payload.dataset, found.payload.byteorder) == ("", ">")
    raw = (tmp_path / "x.h5").read_bytes()
    assert struct.unpack_from(">5i", raw, found.payload.offset) == (0, 1, 2, 3, 4)
    assert read(found).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("block", [512, 1024, 2048])
def test_user_blocks(tmp_path, block):
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=block) as file:
        file["a"] = ramp(3)
    assert hdf5.sniff(tmp_path / "x.h5")
    assert np.array_equal(read(only(opened(tmp_path / "x.h5"))), ramp(3))


def test_a_folder_is_a_run_per_file(tmp_path):
    for rank in (1, 0):
        torch_dump(tmp_path / f"npu_rank{rank}.h5", NPU)
    (tmp_path / "npu_step7_rank2.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "other.txt").touch()
    runs = hdf5.open_runs(tmp_path)
    assert [(run.step, run.rank, bool(run.problem)) for run in runs] == [
        (None, 0, False),
        (None, 1, False),
        (7, 2, True),
    ]
    assert runs[0].notes == ()
    (tmp_path / "weights.npy").touch()
    words = "1 file has an unknown name and is skipped: weights.npy"
    assert [run.notes for run in hdf5.open_runs(tmp_path)] == [(f"{tmp_path}: {words}",), (), ()]


def test_without_h5py_it_is_told(tmp_path, monkeypatch):
    torch_dump(tmp_path / "x.h5", NPU)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtra, match="h5py"):
        hdf5.open_runs(tmp_path / "x.h5")


# --- hostile files


def other_file(folder):
    (folder / "secret").write_bytes(bytes(64))
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = np.arange(4.0)


def virtual(file, name, source):
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(source, "x", (4,))
    file.create_virtual_dataset(name, layout)


HOSTILE = {
    "external link": (lambda file: file.__setitem__("a", h5py.ExternalLink("other.h5", "/x")), "refused"),
    "external storage": (lambda file: file.create_dataset("a", (4,), "f8", external=[("secret", 0, 32)]), "refused"),
    "virtual": (lambda file: virtual(file, "a", "other.h5"), "refused"),
    "text": (lambda file: file.__setitem__("a", "text"), "unsupported"),
    "fixed text": (lambda file: file.__setitem__("a", np.array(b"text")), "unsupported"),
    "vlen": (lambda file: file.create_dataset("a", (2,), h5py.vlen_dtype("f4")), "unsupported"),
    "compound": (lambda file: file.create_dataset("a", data=np.zeros(2, [("x", "f4"), ("y", "i4")])), "unsupported"),
    "enumeration": (lambda file: file.create_dataset("a", (2,), h5py.enum_dtype({"X": 1, "Y": 2})), "unsupported"),
    "array": (lambda file: file.create_dataset("a", (2,), np.dtype(("f4", (3,)))), "unsupported"),
    "opaque": (lambda file: file.create_dataset("a", data=np.zeros(2, "V3")), "unsupported"),
    "reference": (lambda file: file.create_dataset("a", (1,), h5py.ref_dtype), "unsupported"),
    "long double": (lambda file: file.create_dataset("a", data=np.ones(2, np.longdouble)), "unsupported"),
    "null": (lambda file: file.__setitem__("a", h5py.Empty("f4")), "null"),
    "never written": (lambda file: file.create_dataset("a", (4,), "f4"), "never written"),
    "hole of 40 TB": (lambda file: file.create_dataset("a", (10**13,), "f4", chunks=(2**20,)), "more than"),
    "hole of 4 TB": (lambda file: file.create_dataset("a", (10**12,), "f4", chunks=(2**20,)), "never written"),
    "half written": (lambda file: file.create_dataset("a", (8,), "f4", chunks=(4,)).__setitem__(0, 1), "1 of 2 chunks"),
}  # fmt: skip


@pytest.mark.parametrize("write, because", HOSTILE.values(), ids=HOSTILE)
def test_refused(tmp_path, write, because):
    other_file(tmp_path)
    found = only(made(tmp_path / "x.h5", write))
    assert because in found.problem and found.payload is None


@pytest.mark.parametrize("kind", ["link", "virtual", "endless virtual", "storage"])
def test_no_other_file_is_opened(tmp_path, kind):
    """A FIFO would never come back."""
    os.mkfifo(tmp_path / "fifo")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if kind == "link":
            file["a"] = h5py.ExternalLink("fifo", "/x")
        elif kind == "storage":
            file.create_dataset("a", (4,), "f8", external=[("fifo", 0, 32)])
        elif kind == "virtual":
            virtual(file, "a", "fifo")
        else:
            layout = h5py.VirtualLayout((4,), "f8", maxshape=(None,))
            layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource("fifo", "x", (4,), maxshape=(None,))[: h5py.h5s.UNLIMITED]
            file.create_virtual_dataset("a", layout)
    assert "refused" in only(opened(tmp_path / "x.h5")).problem


def test_soft_links_are_passed_by(tmp_path):
    def write(file):
        file["a"] = ramp(2)
        file["b"] = h5py.SoftLink("/a")
        file["loop"] = h5py.SoftLink("/loop")

    run = made(tmp_path / "x.h5", write)
    assert only(run).label == "/a" and any("2 soft links" in note for note in run.notes)


def test_circles_end(tmp_path):
    def write(file):
        file["g/a"] = ramp(2)
        file["g/again"] = file["/"]
        file["g/b/up"] = file["g"]
        file["h"] = file["g/a"]

    run = made(tmp_path / "x.h5", write)
    assert [operator.name for operator in run.operators] == ["g/a", "h"]
    assert any("2 additional names of groups" in note for note in run.notes)


def test_depth_is_bounded(tmp_path):
    run = made(tmp_path / "x.h5", lambda file: file.__setitem__("/".join("g" * 100), ramp(2)))
    assert "more than the limit hdf5_depth of 32" in only(run).problem


def test_objects_are_bounded(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "abcdef":
            file[name] = ramp(1)
    with pytest.raises(DumpError, match="more than the limit hdf5_objects of 5"):
        hdf5.open_runs(tmp_path / "x.h5", ReadContext(Limits(hdf5_objects=5)))


def test_odd_names(tmp_path):
    def write(file):
        for name in (b"\xff\xfe", "ü", "..", "a b"):
            file[name] = ramp(2)

    run = made(tmp_path / "x.h5", write)
    assert [operator.name for operator in run.operators] == ["..", "a b", "ü", "\udcff\udcfe"]
    assert all(np.array_equal(read(operator.tensors[0]), ramp(2)) for operator in run.operators)


@pytest.mark.parametrize("name, because", [(b"ext/x", "a name that is a path"), (b".", "a name that is a path")])
def test_a_name_that_is_a_path_leads_nowhere(tmp_path, name, because):
    """The library would look "ext/x" up through an external link "ext"."""
    with h5py.File(tmp_path / "x.h5", "w") as file:  # of the old form, which has no checksums
        file["N" * len(name)] = ramp(2)
    raw = (tmp_path / "x.h5").read_bytes()
    at = raw.index(b"N" * len(name) + b"\0")
    (tmp_path / "x.h5").write_bytes(raw[:at] + name + raw[at + len(name) :])
    assert because in only(opened(tmp_path / "x.h5")).problem


# --- damaged files


def damaged_base(path):
    with h5py.File(path, "w") as file:
        tensor(file, "/MulBackward/1/input/self", ramp(4, 3), CPU, [1, 4])
        value(file, "/MulBackward/1/input/alpha", 5, 0.5, "<f8")
        file.create_dataset("z", data=ramp(20, 10), chunks=(7, 3), compression="gzip", shuffle=True, fletcher32=True)
        file.create_dataset("y", data=np.arange(40), chunks=(8,), maxshape=(None,))
        file["b"] = [True, False]
    return path.read_bytes()


def test_errors_are_quiet(tmp_path, capfd):
    """HDF5 prints its stack of errors unless told not to, in each thread."""
    from concurrent.futures import ThreadPoolExecutor

    raw = damaged_base(tmp_path / "x.h5")
    (tmp_path / "x.h5").write_bytes(raw[:-100])
    with ThreadPoolExecutor(1) as pool, pytest.raises(DumpError):
        pool.submit(hdf5.open_runs, tmp_path / "x.h5").result()
    assert capfd.readouterr() == ("", "")
