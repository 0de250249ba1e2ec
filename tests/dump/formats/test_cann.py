"""Raw dumps of an Ascend device: names, folders, executions, slices and layouts; broken files are rows of their own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import open_runs
from npucmp.dump.formats import cann
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from npucmp.model import Statistics
from tests.contracts import FormatContract
from tests.dump.readers import craft_cann as craft
from tests.dump.readers.craft_cann import FRACTAL_NZ, FRACTAL_Z, NC1HWC0, ND, NHWC, TIME, save, tensor

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float16)
SMALL = craft.v2([tensor(X)], [tensor(Y)])
HEADER = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count"
STATISTICS = f"{HEADER}\nInput,0,24,DT_FLOAT,ND,2x3,5,0,2.5,6,0\nOutput,0,8,DT_FLOAT16,ND,4,3,0,1.5,4,0\n".encode()


def opened(path: Path):
    (run,) = cann.open_runs(path)
    return run


def names(run) -> list:
    return [operator.name for operator in run.operators]


def file(name: str, order: int = 0, op_type: str = "Add", tail: str = "") -> str:
    return f"{op_type}.{name}.{order}.5.{TIME + order}{tail}"


# ---- the contract ----


class TestValues(FormatContract):
    module = cann

    def write(self, folder):
        where = folder / "d" / "20231114221320" / "0" / "net" / "1" / "7"
        save(where, **{file(name, order): SMALL for order, name in enumerate("abcd")})
        return folder / "d"

    def test_opening_needs_no_payload(self, tmp_path):
        where = self.write(tmp_path)
        before = cann.open_runs(where)
        for path in where.rglob("Add.*"):
            path.write_bytes(path.read_bytes()[:-32] + bytes(32))
        assert cann.open_runs(where) == before


class TestStatistics(FormatContract):
    module = cann

    def write(self, folder):
        return save(folder / "d", **{file(name, order, tail=".csv"): STATISTICS for order, name in enumerate("abc")})


class TestFirstGeneration(FormatContract):
    module = cann

    def write(self, folder):
        return save(folder / "d", **{f"Add.{name}.3.{TIME}": craft.v1([], [tensor(X)], name) for name in "abc"})


class TestNano(FormatContract):
    module = cann

    def write(self, folder):
        data = craft.nano([craft.as_ge(tensor(X))], [craft.as_ge(tensor(Y))])
        return save(folder / "d", **{file(name): data for name in "abc"})


# ---- names ----

NAMES = [  # type, name, task, stream, time, context, thread, csv
    ("TransData.trans_TransData_1170.327.1619347786532995",
     ("TransData", "trans_TransData_1170", 327, -1, 1619347786532995, -1, -1, False)),
    ("Pooling.pool1.1.5.1732082705016774", ("Pooling", "pool1", 1, 5, 1732082705016774, -1, -1, False)),
    ("Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.2.0",
     ("Add", "sgt_graph_0_Add", 0, 3, 1673383728093446, 1, 2, False)),
    ("Add.add.7.1673383728093446.4.1.2.0", ("Add", "add", 7, -1, 1673383728093446, 1, 2, False)),
    ("Pooling.pool1.1.5.1732082705016774.csv", ("Pooling", "pool1", 1, 5, 1732082705016774, -1, -1, True)),
    ("Add.a.0.3.1673383728093446.4.1.2.0.csv", ("Add", "a", 0, 3, 1673383728093446, 1, 2, True)),
    ("ConcatV2D.concatv2.0.0.550288648", ("ConcatV2D", "concatv2", 0, 0, 550288648, -1, -1, False)),
    ("Cast.a-b_c.65535.65535.170000000000000", ("Cast", "a-b_c", 65535, 65535, 170000000000000, -1, -1, False)),
    ("Opdebug.Node_OpDebug.0.3.1673383728093391.4.1.0.0",
     ("Opdebug", "Node_OpDebug", 0, 3, 1673383728093391, 1, 0, False)),
    (f"A.a.1.2.{'9' * 255}", ("A", "a", 1, 2, int("9" * 255), -1, -1, False)),
]  # fmt: skip


@pytest.mark.parametrize("name, parts", NAMES, ids=[name[:40] for name, _ in NAMES])
def test_names(name, parts):
    assert cann.parse_cann_name(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "conv1.0.1619494134703053.npy",
        "a.0.1619494134703053",
        "a.b.0.16194941",
        "ge_proto_00012.txt",
        "ge_proto_00000012_graph_1_Build.txt",
        "Conv2D.Conv2D-op107.2.2.1623124369613540.output.0.DefaultFormat.Float32.npy",
        "dump.json",
        "mapping.csv",
        "statistic.csv",
        "0.1.2.3.4",
        "127.0.0.1.1619494134703053",
        "Add.a.1.2.3.9.1.0.0",
        "Add.a.1.2.3.4.1.0",
        "Add.a.1.2.1619494134703053.pb",
        "Add.a b.1.2.1619494134703053",
        "Add.ü.1.2.1619494134703053",
        "Add.a.1.2.²",
        f"A.a.1.2.{'9' * 256}",
        "",
    ],
)
def test_names_of_something_else(name):
    assert cann.parse_cann_name(name) is None


@given(st.text(st.sampled_from("aZ_-.0149²٣ ü\n/")) | st.text() | st.from_regex(cann._NAME))
def test_any_name_can_be_parsed(text):
    found = cann.parse_cann_name(text)
    assert found is None or (found.op_type and found.op_name and found.time >= 0)


def test_numbers_of_kernels_are_positions_unless_there_is_one_only(tmp_path):
    kernels = ["net/Mul-op0", "net/Mul-op1", "net/Add-op0", "net/add_1"]
    raw = {file(name.replace("/", "_"), n): craft.v2([tensor(X)], [tensor(Y)]) for n, name in enumerate(kernels)}
    save(tmp_path / "d" / "1", **raw)
    told = {one.name: (one.kind, one.unique) for one in opened(tmp_path / "d").operators}
    assert told == {
        "net_Mul-op0": ("net_Mul", False),
        "net_Mul-op1": ("net_Mul", False),
        "net_Add-op0": ("net_Add", True),
        "net_add_1": ("net_add_1", True),
    }


def test_overflow_records_are_no_operators(tmp_path):
    save(tmp_path, **{file("a"): SMALL, f"Opdebug.Node_OpDebug.0.3.{TIME}.4.1.0.0": SMALL})
    assert names(opened(tmp_path)) == ["a"]


def test_files_of_other_tools_beside_are_left_alone(tmp_path):
    save(tmp_path, **{file("a"): SMALL, "ge_proto_00012.txt": b"", "a.0.1619494134703053.npy": b"", "readme": b""})
    assert names(opened(tmp_path)) == ["a"]


@pytest.mark.parametrize("name", [f"Transpose.4.{TIME + 1}", f"TransData.TransData_1.1.42.6.{TIME + 1}"])
def test_a_dump_of_an_unusual_name_is_read_by_its_bytes(tmp_path, name):
    save(tmp_path, **{file("a"): SMALL, name: craft.v2([], [tensor(Y)], "net/x_1")})
    run = opened(tmp_path)
    assert [(one.name, one.op_type) for one in run.operators] == [("a", "Add"), ("net/x_1", name.split(".")[0])]
    assert run.notes == ()


@pytest.mark.parametrize("name", [f"Transpose.4.{TIME}", "weights.bin", "blob"])
def test_a_name_that_is_not_understood_is_told(tmp_path, name):
    save(tmp_path, **{file("a"): SMALL, name: b"no dump", "fusion_result.json": b"", "ge_proto_1.txt": b""})
    run = opened(tmp_path)
    words = f"1 file has an unknown name and is skipped: {name}"
    assert names(run) == ["a"] and run.notes == (f"{tmp_path}: {words}",)


def test_files_of_a_folder_that_holds_no_tensor_are_told(tmp_path):
    save(tmp_path / "net", **{file("a"): SMALL})
    save(tmp_path / "weights", **{"w.bin": b"no dump", "w.txt": b""})
    words = "1 file has an unknown name and is skipped: weights/w.bin"
    assert opened(tmp_path).notes == (f"{tmp_path}: {words}",)


def test_one_file_is_a_run(tmp_path):
    save(tmp_path, **{file("a"): SMALL, "renamed.bin": SMALL, "other": b"words"})
    assert names(opened(tmp_path / file("a"))) == ["a"]
    assert cann.sniff(tmp_path / "renamed.bin") and names(opened(tmp_path / "renamed.bin")) == ["renamed"]
    assert not cann.sniff(tmp_path / "other") and opened(tmp_path / "other").operators[0].tensors[0].problem


# ---- names that were too long ----

LONG = "block_" * 60
DIGITS = "12345678901234567890123456789012"


@pytest.mark.parametrize(
    "stored, row, data",
    [
        (DIGITS, f"{DIGITS},{file(LONG)}", SMALL),
        (DIGITS, f"{DIGITS},{file('x')}\n{DIGITS},{file(LONG)}\n{DIGITS},{file(LONG)}", SMALL),
        (f"{DIGITS}.csv", f"{DIGITS},{file(LONG)}", STATISTICS),
        (f"{DIGITS}.csv", f"{DIGITS}.csv,{file(LONG)}.csv", STATISTICS),
        (f"{DIGITS}.csv", f"{DIGITS},{file(LONG)}.csv", STATISTICS),
        (f"{DIGITS}.csv", f"{DIGITS}.csv,{file(LONG)}", STATISTICS),
    ],
)
def test_mapping_tells_long_names(tmp_path, stored, row, data):
    save(tmp_path, **{file("a"): SMALL, stored: data, "mapping.csv": row.encode()})
    run = opened(tmp_path)
    assert set(names(run)) == {"a", LONG} and run.notes == ()
    long = next(operator for operator in run.operators if operator.name == LONG)
    assert [(one.slot, one.shape, one.problem) for one in long.tensors] == [
        ("input:0", (2, 3), ""), ("output:0", (4,), "")
    ]  # fmt: skip


def test_a_number_that_nothing_names_is_told(tmp_path):
    """Its header may still tell the name of the operator."""
    save(tmp_path, **{file("a"): SMALL, DIGITS: craft.v2([], [tensor(X)], "net/long"), "77": b"no dump"})
    run = opened(tmp_path)
    assert set(names(run)) == {"a", "net/long"} and "2 numbered files" in run.notes[0]


def test_numbered_files_alone_are_recognised_deep_in_a_dump(tmp_path):
    leaf = tmp_path / "20261121093000" / "0" / "model" / "1" / "0"
    leaf.mkdir(parents=True)
    save(
        leaf,
        **{
            "12345678901234567890123456789012": SMALL,
            "mapping.csv": f"12345678901234567890123456789012,{file('a')}\n".encode(),
        },
    )
    assert cann.sniff(tmp_path) and [one.name for one in opened(tmp_path).operators] == ["a"]


def test_a_broken_mapping_is_told(tmp_path):
    save(tmp_path, **{file("a"): SMALL, "mapping.csv": b"\xff\xfe\0"})
    assert "mapping.csv" in opened(tmp_path).notes[0]


# ---- folders ----

T = "20200808163566"  # 66 seconds: it is no date
TREES = [  # folder, step, rank
    (f"{T}/0/npu_cluster_0/11/7", 7, 0),
    (f"{T}/3/ge_default_20210420113943_71/11/0", 0, 3),
    (f"{T}/3", None, 3),  # single operators have neither model nor step
    (f"{T}/1/11/4", 4, 1),  # MindSpore without a name of the model
    (f"5/{T}/1/11/4", 4, 1),
    ("rank_0/20231114221320/step_3", 3, 0),
    (f"rank_2/20231114221320/step_3/{T}/0/net/1/0", 3, 2),
    ("rank_2/net/0/5", 5, 2),
    ("0/net/1/5", 5, 0),
    ("net/1/5", 5, None),
    ("step12", 12, None),
    ("anything", None, None),
]


@pytest.mark.parametrize("folder, step, rank", TREES, ids=[folder for folder, _, _ in TREES])
def test_folders_tell_step_and_rank(tmp_path, folder, step, rank):
    where = save(tmp_path / "dump" / folder, **{file("a"): SMALL})
    for path in (tmp_path, *reversed([where, *list(where.parents)[: len(Path(folder).parts)]])):
        run = opened(path)
        assert (run.step, run.rank, names(run)) == (step, rank, ["a"]), path


def test_devices_and_steps_are_runs(tmp_path):
    for device in (0, 1):
        for step in (2, 10):
            save(tmp_path / T / str(device) / "net" / "1" / str(step), **{file("a"): SMALL})
    assert [(run.step, run.rank) for run in open_runs(tmp_path)] == [(2, 0), (2, 1), (10, 0), (10, 1)]


def test_models_of_one_step_are_one_run(tmp_path):
    save(tmp_path / T / "0" / "train" / "1" / "0", **{file("a", 1): SMALL, file("c", 3): SMALL})
    save(tmp_path / T / "0" / "eval" / "2" / "0", **{file("b", 2): SMALL})
    run = opened(tmp_path)
    assert (names(run), run.detail, run.path) == (["a", "b", "c"], "eval · train", str(tmp_path / T))


@pytest.mark.parametrize(
    "folders",
    [
        (f"{T}/0/net/1/0", "20200808163601/0/net/1/0"),
        (f"step_3/{T}/0/net/1/0", "step_3/20200808163601/0/net/1/0"),
        ("rank_0/20231114221320/step_3", "rank_0/20231114221399/step_3"),
        ("rank_0/a", "rank_0/b"),
        ("a", "b"),
        ("a/1/0", "b/net/1/0"),
    ],
)
def test_two_dumps_of_one_step_are_refused(tmp_path, folders):
    for folder in folders:
        save(tmp_path / folder, **{file("a"): SMALL})
    with pytest.raises(DumpError, match="several dumps"):
        open_runs(tmp_path)
    assert len(open_runs(tmp_path / folders[0])) == 1


def test_linked_folders_are_not_followed(tmp_path):
    save(tmp_path / "elsewhere", **{file("b"): SMALL})
    save(tmp_path / "d", **{file("a"): SMALL})
    (tmp_path / "d" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    assert names(opened(tmp_path / "d")) == ["a"]


def test_a_linked_file_is_read(tmp_path):
    save(tmp_path / "elsewhere", data=SMALL)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / file("a")).symlink_to(tmp_path / "elsewhere" / "data")
    assert opened(tmp_path / "d").operators[0].tensors[0].problem == ""


# ---- operators ----


def test_time_orders_operators(tmp_path):
    save(tmp_path, **{f"A.z.9.5.{TIME}": SMALL, f"A.a.1.5.{TIME + 2}": SMALL, f"A.m.2.5.{TIME + 1}": SMALL})
    assert names(opened(tmp_path)) == ["z", "m", "a"]


def test_executions_of_one_operator_are_separate(tmp_path):
    for n, time in enumerate((5, 1, 3)):
        save(tmp_path, **{f"Add.a.{n}.5.{TIME + time}": craft.v2([], [tensor(np.float32(time))])})
    save(tmp_path, **{f"Add.b.7.5.{TIME + 2}": SMALL})
    run = opened(tmp_path)
    assert names(run) == ["a", "b", "a", "a"]
    assert [float(craft.values(run.operators[i].tensors[0])) for i in (0, 2, 3)] == [1, 3, 5]


def test_the_unescaped_name_is_preferred(tmp_path):
    save(tmp_path, **{file("net_a_b"): craft.v2([], [tensor(X)], "net/a.b"), file("net_c", 1): SMALL})
    assert [(one.name, one.op_type, one.kind) for one in opened(tmp_path).operators] == [
        ("net/a.b", "Add", "net/a.b"), ("net_c", "Add", "net_c")
    ]  # fmt: skip


def test_operators_whose_escaped_names_are_equal_stay_apart(tmp_path):
    both = {file("net_a", n): craft.v2([], [tensor(X)], name) for n, name in enumerate(("net/a", "net.a"))}
    assert names(opened(save(tmp_path, **both))) == ["net/a", "net.a"]


@pytest.mark.parametrize(
    "name, expected",
    [("Default_Add-op1.aclnnAdd", "aclnnAdd"), ("Add.Default_Add-op1", "Add"), ("Add.Add", "Add")],
)
def test_the_newer_operator_library_swaps_name_and_type(tmp_path, name, expected):
    op_name = "Add" if name == "Add.Add" else "Default/Add-op1"
    save(tmp_path, **{f"{name}.1.5.{TIME}": craft.v2([], [tensor(X)], op_name)})
    assert [(one.name, one.op_type) for one in opened(tmp_path).operators] == [(op_name, expected)]


def test_what_the_compiler_put_in_is_known_by_its_type(tmp_path):
    save(tmp_path, **{file("trans", op_type="TransData"): SMALL, file("add", 1): SMALL})
    assert [one.inserted for one in opened(tmp_path).operators] == [True, False]


def test_operators_tell_what_they_read(tmp_path):
    save(tmp_path, **{file("a"): SMALL, file("b", 1): craft.v2([], [tensor(X)])})
    a, b = opened(tmp_path).operators
    assert (a.reads_recorded, b.reads_recorded) == (True, False)
    assert [one.label for one in a.tensors] == [f"{file('a')}:input.0", f"{file('a')}:output.0"]


def test_a_folder_with_the_name_of_a_dump_is_no_file(tmp_path):
    save(tmp_path, **{file("a"): SMALL})
    (tmp_path / file("b", 1)).mkdir()
    assert names(opened(tmp_path)) == ["a"]


# ---- statistics ----


def test_statistics_instead_of_values(tmp_path):
    (operator,) = opened(save(tmp_path, **{file("a", tail=".csv"): STATISTICS})).operators
    x, y = operator.tensors
    assert (operator.name, operator.reads_recorded) == ("a", True)
    assert (x.slot, x.dtype, x.shape, x.statistics) == ("input:0", "float32", (2, 3), Statistics(5, 0, 2.5))
    assert (y.slot, y.dtype, y.shape, y.payload) == ("output:0", "float16", (4,), None)


def test_values_are_preferred_to_statistics(tmp_path):
    save(tmp_path, **{file("a", tail=".csv"): STATISTICS, file("a"): SMALL})
    (operator,) = opened(tmp_path).operators
    assert all(one.payload for one in operator.tensors)


def test_statistics_of_slices_are_not_those_of_the_whole(tmp_path):
    save(tmp_path, **{file("a", tail=f".4.1.{thread}.0.csv"): STATISTICS for thread in (0, 1)})
    (operator,) = opened(tmp_path).operators
    assert len(operator.tensors) == 2 and all("2 slices" in one.problem for one in operator.tensors)


# ---- layouts ----


def padded(array, shape):
    made = np.full(shape, 7, array.dtype)  # what the padding holds is nobody's business
    made[tuple(slice(n) for n in array.shape)] = array
    return made


def five(nchw, c0=16):
    """NC1HWC0."""
    n, c, h, w = nchw.shape
    c1 = -(-c // c0)
    return padded(nchw, (n, c1 * c0, h, w)).reshape(n, c1, c0, h, w).transpose(0, 1, 3, 4, 2)


def fractal_z(nchw, c0=16):
    n, c, h, w = nchw.shape
    c1, n1 = -(-c // c0), -(-n // 16)
    blocked = padded(nchw, (n1 * 16, c1 * c0, h, w)).reshape(n1, 16, c1, c0, h, w)
    return blocked.transpose(2, 4, 5, 0, 1, 3).reshape(c1 * h * w, n1, 16, c0)


def fractal_nz(array):
    *batch, h, w = array.shape
    h1, w1 = -(-h // 16), -(-w // 16)
    blocked = padded(array, (*batch, h1 * 16, w1 * 16)).reshape(*batch, h1, 16, w1, 16)
    return np.moveaxis(blocked, -2, -4)


def numbers(*shape, dtype=np.float16):
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


IMAGE = numbers(2, 20, 3, 5)  # NCHW
LAYOUTS = {
    "NCHW": (five(IMAGE), NC1HWC0, IMAGE, "NCHW"),
    "NHWC": (five(IMAGE), NC1HWC0, IMAGE.transpose(0, 2, 3, 1), "NHWC"),
    "C0 of 32": (five(IMAGE, 32), NC1HWC0, IMAGE, "NCHW"),
    "C0 of 8": (five(IMAGE.astype(np.float32), 8), NC1HWC0, IMAGE.astype(np.float32), "NCHW"),
    "weights, HWCN": (fractal_z(IMAGE), FRACTAL_Z, IMAGE.transpose(2, 3, 1, 0), "HWCN"),
    "weights, NCHW": (fractal_z(IMAGE), FRACTAL_Z, IMAGE, "NCHW"),
    "matrix": (fractal_nz(numbers(20, 33)), FRACTAL_NZ, numbers(20, 33), "ND"),
    "matrices": (fractal_nz(numbers(2, 3, 17, 16)), FRACTAL_NZ, numbers(2, 3, 17, 16), "ND"),
}


@pytest.mark.parametrize("stored, layout, logical, origin", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_are_read_logically(tmp_path, stored, layout, logical, origin):
    save(tmp_path, **{file("a"): craft.v2([tensor(X)], [tensor(stored, layout, logical.shape)])})
    one = opened(tmp_path).operators[0].tensors[1]
    assert (one.shape, one.problem, one.payload.device.origin) == (logical.shape, "", origin)
    np.testing.assert_array_equal(craft.values(one), logical)


@pytest.mark.parametrize(
    "stored, layout, original",
    [
        (five(IMAGE), NC1HWC0, (2, 20, 3, 6)),
        (five(IMAGE), NC1HWC0, (2, 300)),
        (fractal_z(IMAGE), FRACTAL_Z, (20, 2, 3, 5)),
        (fractal_nz(numbers(20, 33)), FRACTAL_NZ, (33, 20)),
    ],
)
def test_a_shape_that_its_layout_cannot_hold_is_told(tmp_path, stored, layout, original):
    save(tmp_path, **{file("a"): craft.v2([], [tensor(stored, layout, original)])})
    (one,) = opened(tmp_path).operators[0].tensors
    assert "cannot hold" in one.problem and one.shape == original and one.payload is None


def test_an_order_of_axes_that_nothing_tells_is_left_open(tmp_path):
    cube = numbers(2, 16, 16, 16)
    save(tmp_path, **{file("a"): craft.v2([], [tensor(five(cube), NC1HWC0, cube.shape)])})
    (one,) = opened(tmp_path).operators[0].tensors
    assert (one.problem, one.shape, one.payload.device.origin) == ("", cube.shape, "")
    chosen = one.payload._replace(device=one.payload.device._replace(origin="NCHW"))
    np.testing.assert_array_equal(np.concatenate(list(blocks(chosen))), cube.reshape(-1))


def test_without_a_logical_shape_the_layout_is_kept(tmp_path):
    save(tmp_path, **{file("a"): craft.v2([], [tensor(five(IMAGE), NC1HWC0)])})
    (one,) = opened(tmp_path).operators[0].tensors
    assert (one.problem, one.layout, one.shape, one.payload.device.origin) == ("", "NC1HWC0", (2, 2, 3, 5, 16), "")


@pytest.mark.parametrize("layout, word", [(ND, "ND"), (NHWC, "NHWC"), (38, "FRACTAL_ZN_LSTM"), (77, "format 77")])
@pytest.mark.parametrize("original, expected", [((6,), (6,)), ((3, 2), (3, 2)), ((5,), (2, 3)), (None, (2, 3))])
def test_layouts_without_a_conversion_keep_the_order_of_the_file(tmp_path, layout, word, original, expected):
    save(tmp_path, **{file("a"): craft.v2([], [tensor(X, layout, original)])})
    (one,) = opened(tmp_path).operators[0].tensors
    assert (one.layout, one.shape, one.payload.device) == (word, expected, None)
    np.testing.assert_array_equal(craft.values(one), X.reshape(expected))


# ---- slices ----


def slices(folder, arrays, facts, layout=ND, original=None, name="a") -> Path:
    """One file per slice, as FFTS+ writes them: the whole input, a part of the output."""
    for thread, array in enumerate(arrays):
        attributes = [("slices", json.dumps(facts))] if facts is not None else []
        data = craft.v2([tensor(X)], [tensor(array, layout, original)], attributes=attributes)
        save(folder, **{file(name, tail=f".4.1.{thread}.0"): data})
    return folder


def outputs(*bounds):
    """output_tensor_slice of one output of two axes."""
    return [[[{"lower": low, "higher": high} for low, high in one]] for one in bounds]


WHOLE = numbers(4, 6)
FACTS = {"threadMode": 1, "slice_instance_num": 2, "input_tensor_slice": [[[]], [[]]]}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("told", ["cut list", "ranges"])
def test_slices_are_joined_along_the_cut(tmp_path, axis, told):
    parts = np.split(WHOLE, [1], axis=axis)
    edges = [((0, 1), (0, 6)), ((1, 4), (0, 6))] if axis == 0 else [((0, 4), (0, 1)), ((0, 4), (1, 6))]
    cut = {"outputCutList": [[2, 1] if axis == 0 else [1, 2]]}
    facts = {**FACTS, **(cut if told == "cut list" else {"output_tensor_slice": outputs(*edges)})}
    (operator,) = opened(slices(tmp_path, parts, facts)).operators
    x, y = operator.tensors
    assert (y.shape, y.problem, len(y.payload.parts), x.payload.parts) == ((4, 6), "", 2, ())
    np.testing.assert_array_equal(craft.values(y), WHOLE)
    np.testing.assert_array_equal(craft.values(x), X)


def test_ten_slices_are_in_order_of_their_numbers(tmp_path):
    slices(
        tmp_path, np.split(numbers(12, 2), 12), {"threadMode": 1, "slice_instance_num": 12, "outputCutList": [[12, 1]]}
    )
    y = opened(tmp_path).operators[0].tensors[-1]
    np.testing.assert_array_equal(craft.values(y), numbers(12, 2))


def test_slices_in_a_layout_are_joined_and_converted(tmp_path):
    stored = five(IMAGE)
    facts = {**FACTS, "outputCutList": [[1, 1, 2, 1, 1]]}
    slices(tmp_path, np.split(stored, [1], axis=2), facts, NC1HWC0, IMAGE.shape)
    y = opened(tmp_path).operators[0].tensors[1]
    assert (y.shape, y.problem, y.payload.device.shape) == (IMAGE.shape, "", stored.shape)
    np.testing.assert_array_equal(craft.values(y), IMAGE)


def test_a_missing_slice_is_told(tmp_path):
    facts = {**FACTS, "slice_instance_num": 3, "outputCutList": [[3, 1]]}
    run = opened(slices(tmp_path, np.split(WHOLE, [1]), facts))
    assert "2 of 3 slices" in run.notes[0] and run.operators[0].tensors[1].shape == (4, 6)
    assert run.operators[0].tensors[1].problem == "only 2 of 3 slices contain it"  # its shape is no difference to blame


def test_of_all_slices_but_one_missing_that_is_told_too(tmp_path):
    run = opened(slices(tmp_path, [WHOLE], {**FACTS, "outputCutList": [[2, 1]]}))
    assert "1 of 2 slices" in run.notes[0] and run.operators[0].tensors[1].problem == "only 1 of 2 slices contain it"


@pytest.mark.parametrize(
    "arrays, facts, words",
    [
        ((WHOLE[:, :2], WHOLE), {**FACTS, "outputCutList": [[2, 1]]}, "do not fit"),
        ((WHOLE, WHOLE.astype(np.float32)), {**FACTS, "outputCutList": [[2, 1]]}, "do not fit"),
        ((WHOLE, WHOLE), {**FACTS, "outputCutList": [[1, 1, 2]]}, "do not fit"),
        ((WHOLE, WHOLE), FACTS, "does not record"),
        ((WHOLE, WHOLE), None, "does not record"),
    ],
)
def test_slices_that_cannot_be_joined_are_told(tmp_path, arrays, facts, words):
    y = opened(slices(tmp_path, arrays, facts)).operators[0].tensors[1]
    assert words in y.problem and y.payload is None


def test_a_broken_slice_is_told(tmp_path):
    slices(tmp_path, np.split(WHOLE, 2), {**FACTS, "outputCutList": [[2, 1]]})
    (tmp_path / file("a", tail=".4.1.1.0")).write_bytes(SMALL[:30])
    (operator,) = opened(tmp_path).operators
    assert [bool(one.problem) for one in operator.tensors] == [True]


def test_a_slice_without_one_of_the_tensors_is_told(tmp_path):
    """Nor does its lack shift the files that the other tensors are read from."""
    parts = np.split(numbers(6, 2), 3)
    slices(tmp_path, parts, {**FACTS, "slice_instance_num": 3, "outputCutList": [[3, 1], [3, 1]]})
    for thread in (0, 2):
        attributes = [("s", json.dumps({**FACTS, "slice_instance_num": 3, "outputCutList": [[3, 1], [3, 1]]}))]
        data = craft.v2([tensor(X)], [tensor(parts[thread]), tensor(parts[thread])], attributes=attributes)
        save(tmp_path, **{file("a", tail=f".4.1.{thread}.0"): data})
    _, y, z = opened(tmp_path).operators[0].tensors
    assert "only 2 of 3 slices" in z.problem
    np.testing.assert_array_equal(craft.values(y), numbers(6, 2))


def test_slices_that_are_operators_of_their_own_are_one(tmp_path):
    facts = {"threadMode": 0, "slice_instance_num": 2, "outputCutList": [[2, 1]]}
    for n, half in enumerate(np.split(WHOLE, 2)):
        data = craft.v2([], [tensor(half)], attributes=[("s", json.dumps(facts))])
        save(tmp_path, **{file(f"net_sgt_graph_0_conv_lxslice{n}", n, tail=".4.1.0.0"): data})
    (operator,) = opened(tmp_path).operators
    assert operator.name == "conv"
    np.testing.assert_array_equal(craft.values(operator.tensors[0]), WHOLE)


def test_executions_in_slices_are_counted_from_the_newest(tmp_path):
    facts = {"threadMode": 1, "slice_instance_num": 2, "outputCutList": [[2, 1]]}
    for turn in (0, 1):
        for thread, half in enumerate(np.split(WHOLE + 100 * turn, 2)):
            data = craft.v2([], [tensor(half)], attributes=[("s", json.dumps(facts))])
            save(tmp_path, **{file("a", 10 * turn + thread, tail=f".4.1.{thread}.0"): data})
    first, second = opened(tmp_path).operators
    np.testing.assert_array_equal(craft.values(first.tensors[0]), WHOLE)
    np.testing.assert_array_equal(craft.values(second.tensors[0]), WHOLE + 100)


def test_one_slice_alone_is_a_tensor(tmp_path):
    (operator,) = opened(slices(tmp_path, [WHOLE], {**FACTS, "slice_instance_num": 1})).operators
    np.testing.assert_array_equal(craft.values(operator.tensors[1]), WHOLE)
