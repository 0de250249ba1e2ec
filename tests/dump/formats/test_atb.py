"""Dumps of ATB: headers, folders, links, tables, damage, and a fault that is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import npucmp
from npucmp import open_runs
from npucmp.dump.formats import atb
from npucmp.dump.readers.atb import read_atb
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from tests.contracts import FormatContract
from tests.dump.formats.three import second_is_first, three

NAMES = ("0_LinearOperation", "1_ActivationOperation", "2_ElewiseOperation")
TREE = "atb_dump_data/data/0_39943/0/2_Prefill_layer"
NUMBERS = {
    np.float32: 0, np.float16: 1, np.int8: 2, np.int32: 3, np.int64: 9, np.bool_: 12, ml_dtypes.bfloat16: 27,
}  # fmt: skip
HEADER = (
    "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,Max,Min,Mean,Norm,"
    "Tensor Path\n"
)


def content(values, data=True) -> bytes:
    """A file as the writer makes it: version, count, length, attributes, objects, end, values."""
    raw = values.tobytes()
    dims = ",".join(map(str, values.shape))
    lines = ["$Version=1.0", f"$Object.Count={int(data is True)}", f"$Object.Length={len(raw) if data is True else 0}"]
    lines += ["format=2", f"dtype={NUMBERS[values.dtype.type]}", f"dims={dims}"]
    lines += [f"$Object.data=0,{len(raw)}"] if data is True else [f"data={data}"]
    return "\n".join([*lines, "$End=1", ""]).encode() + (raw if data is True else b"")


def put(folder, name, values, data=True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content(values, data))


def write_atb(folder, wrong=False, tree=TREE, layer=True) -> Path:
    """Three operations in a layer, which reads what the first reads and writes what the last writes."""
    ops = three(wrong)
    for name, one in zip(NAMES, ops):
        for role, arrays, when in (("intensor", one.inputs, "before"), ("outtensor", one.outputs, "after")):
            for index, values in enumerate(arrays):
                put(Path(folder, tree, name, when), f"{role}{index}.bin", values)
        Path(folder, tree, name, "op_param.json").write_text(json.dumps({"transposeA": False, "axes": [1]}))
    if layer:
        put(Path(folder, tree, "before"), "intensor0_hidden.bin", ops[0].inputs[0])
        put(Path(folder, tree, "after"), "outtensor0.bin", ops[-1].outputs[0])
    return Path(folder)


def write_table(folder, wrong=False) -> Path:
    """The same as statistics alone, with the decimals of the writer."""
    place = Path(folder, TREE).parent
    place.mkdir(parents=True)
    rows = []
    for name, one in zip(NAMES, three(wrong)):
        number, _, word = name.partition("_")
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for index, values in enumerate(arrays):
                x = values.astype(np.float64)
                figures = ",".join(f"{f:.6f}" for f in (x.max(), x.min(), x.mean(), np.sqrt((x * x).sum())))
                shape = "x".join(map(str, values.shape))
                rows.append(
                    f"0_39943,0,Prefill_layer/{word},{word},2_{number},{role},{index}_x,float,nd,{shape},{figures},N/A"
                )
    (place / "statistic.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return Path(folder)


def opened(folder):
    (run,) = open_runs(folder)
    return run


class TestAtb(FormatContract):
    module = atb

    def write(self, folder):
        return write_atb(folder / "d")


class TestAtbStatistics(FormatContract):
    module = atb

    def write(self, folder):
        return write_table(folder / "d")


def test_the_fault_is_born_in_the_operation_and_not_in_the_layer(tmp_path):
    report = second_is_first(write_atb(tmp_path / "t", wrong=True), write_atb(tmp_path / "g"))
    assert report.roots[0].pair.operator.name == "2_Prefill_layer/1_ActivationOperation"
    layer = [root for root in report.roots if root.pair.operator.name == "2_Prefill_layer"]
    assert [root.cause.value for root in layer] == ["PROPAGATED"]


def test_statistics_alone_tell_the_fault(tmp_path):
    golden = write_table(tmp_path / "g")
    report = npucmp.compare(write_table(tmp_path / "t", wrong=True), golden)
    assert (report.roots[0].pair.operator.order, report.exit_status) == (1, 1)
    assert npucmp.compare(golden, golden).exit_status == 2


def test_values_are_held_against_statistics(tmp_path):
    values = write_atb(tmp_path / "v", layer=False)
    report = npucmp.compare(values, write_table(tmp_path / "s"), trust_statistics=True)
    assert (report.roots, report.exit_status) == ((), 0)
    assert npucmp.compare(write_atb(tmp_path / "t", wrong=True), tmp_path / "s").roots[0].pair.operator.order == 1


def test_operators_stand_as_they_ended_and_know_what_is_around_them(tmp_path):
    run = opened(write_atb(tmp_path / "d"))
    assert [(op.name, op.scope) for op in run.operators] == [
        *((f"2_Prefill_layer/{name}", "2_Prefill_layer") for name in NAMES),
        ("2_Prefill_layer", ""),
    ]
    assert [op.op_type for op in run.operators] == ["Linear", "Activation", "Elewise", "Prefill_layer"]
    assert run.operators[0].arguments == {"transposeA": False}
    assert (run.step, run.rank) == (0, 0)


@pytest.mark.parametrize(
    "given", ["", "atb_dump_data", "atb_dump_data/data/0_39943", TREE, f"{TREE}/{NAMES[0]}/before"]
)
def test_any_part_of_the_tree_is_read(tmp_path, given):
    run = opened(write_atb(tmp_path / "d") / given)
    assert (run.step, run.rank, run.operators[0].name) == (0, 0, f"2_Prefill_layer/{NAMES[0]}")


def test_executions_and_devices_are_runs(tmp_path):
    for device in (0, 1):
        for execution in (0, 10):
            write_atb(tmp_path / "d", tree=f"msit_dump_x/tensors/{device}_7{device}/{execution}/0_Layer", layer=False)
    assert [(run.step, run.rank) for run in open_runs(tmp_path / "d")] == [(0, 0), (0, 1), (10, 0), (10, 1)]


def test_ids_are_numbers_and_layers_of_one_kind_positions(tmp_path):
    for number in (2, 10, 1):
        write_atb(tmp_path / "d", tree=f"data/0_1/0/{number}_Decoder_layer", layer=False)
    operators = opened(tmp_path / "d").operators
    assert [op.name.partition("_")[0] for op in operators[::3]] == ["1", "2", "10"]
    assert {op.unique for op in operators} == {False}


def test_inputs_that_were_kept_afterwards_are_second_choice(tmp_path):
    place = tmp_path / "d" / "0_AddOperation"
    for when, value in (("before", 1), ("after", 2)):
        put(place / when, "intensor0.bin", np.full(3, value, np.float32))
        put(place / when, "intensor1.bin" if when == "after" else "outtensor0.bin", np.full(3, 3, np.float32))
    put(place / "after", "outtensor0.bin", np.full(3, 4, np.float32))
    tensors = opened(tmp_path / "d").operators[0].tensors
    assert {one.slot: next(blocks(one.payload))[0] for one in tensors} == {"input:0": 1, "input:1": 3, "output:0": 4}


def test_a_link_is_the_tensor_that_it_names(tmp_path):
    """Kernels hold what their operation holds already; a name alone tells nothing."""
    place = write_atb(tmp_path / "d") / TREE
    kernel = place / NAMES[1] / "0_TanhKernel"
    bent = three()[1].outputs[0]
    put(kernel / "after", "outtensor0.bin", bent, data="2_1_outtensor0.bin")
    put(kernel / "before", "intensor0.bin", bent, data="intensor0.bin")
    put(kernel / "before", "intensor1.bin", bent, data="../../../../etc/passwd")
    put(kernel / "before", "intensor2.bin", bent[:2], data="2_1_outtensor0.bin")
    operator = next(op for op in opened(tmp_path / "d").operators if op.name.endswith("Kernel"))
    found = {one.label.rpartition("/")[2]: one for one in operator.tensors}
    assert np.array_equal(next(blocks(found["outtensor0.bin"].payload)), bent.reshape(-1))
    assert [found[f"intensor{n}.bin"].file for n in (0, 1)] == ["", ""]
    assert "which contains float32 [6, 8]" in found["intensor2.bin"].problem


@pytest.mark.parametrize("dtype", NUMBERS)
def test_types(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    (tmp_path / "x.bin").write_bytes(content(values))
    with open_regular(str(tmp_path / "x.bin")) as file:
        found = read_atb(file)
    assert (found.shape, found.link) == ((2, 3), "")
    assert np.array_equal(np.concatenate([*blocks(found.payload)]), values.reshape(-1))


def test_a_single_file_of_msit(tmp_path):
    """Its own writer tells type and shape alone."""
    for side, last in (("t", 2.0), ("g", 2.5)):
        head = b"dtype=1\ndims=1,1,2\n$End=1\n" if side == "t" else content(np.float16([[[1, last]]]))[:-4]
        (tmp_path / side).mkdir()
        (tmp_path / side / "outtensor0.bin").write_bytes(head + np.float16([1.0, last]).tobytes())
    assert [run.operators[0].tensors[0].shape for run in open_runs(tmp_path / "t" / "outtensor0.bin")] == [(1, 1, 2)]
    report = npucmp.compare(tmp_path / "t" / "outtensor0.bin", tmp_path / "g" / "outtensor0.bin")
    assert report.exit_status == 1


def test_every_prefix_is_an_error(tmp_path):
    data = content(np.arange(6, dtype=np.float16).reshape(2, 3))
    for end in range(len(data)):
        (tmp_path / "x.bin").write_bytes(data[:end])
        with pytest.raises(DumpError), open_regular(str(tmp_path / "x.bin")) as file:
            read_atb(file)


BAD = {
    "type": (b"dtype=0", b"dtype=999"),
    "no number": (b"dtype=0", b"dtype=x"),
    "text": (b"dtype=0", b"dtype=13"),
    "negative": (b"dims=2,3", b"dims=-2,3"),
    "no shape": (b"dims=2,3", b"dims=2;3"),
    "huge": (b"dims=2,3", b"dims=999999999999999999,999999999999999999"),
    "many": (b"dims=2,3", b"dims=" + b"1," * 70 + b"6"),
    "more": (b"dims=2,3", b"dims=2,4"),
    "twice": (b"dims=2,3", b"dims=2,3\ndims=2,3"),
    "no line": (b"format=2", b"format"),
    "signs": (b"format=2", b"for\xffmat=2"),
    "digits": (b"dims=2,3", "dims=٢,3".encode()),
    "length": (b"Length=24", b"Length=23"),
    "beyond": (b"data=0,24", b"data=8,24"),
    "endless": (b"format=2", b"format=" + b"2" * 5000),
    "no dims": (b"dims=2,3\n", b""),
}


@pytest.mark.parametrize("was, now", BAD.values(), ids=BAD)
def test_headers_that_lie_are_unreadable_tensors(tmp_path, was, now):
    place = write_atb(tmp_path / "d") / TREE / NAMES[0] / "after" / "outtensor0.bin"
    data = content(np.zeros((2, 3), np.float32))
    assert was in data
    place.write_bytes(data.replace(was, now))
    (tensor,) = [one for one in opened(tmp_path / "d").operators[0].tensors if one.problem]
    assert tensor.slot == "" and tensor.file == str(place)


def test_more_bytes_than_the_shape_needs_are_padding(tmp_path):
    put(tmp_path / "0_A" / "after", "outtensor0.bin", np.zeros(8, np.float32))
    file = tmp_path / "0_A" / "after" / "outtensor0.bin"
    file.write_bytes(file.read_bytes().replace(b"dims=8", b"dims=7"))
    assert opened(tmp_path).operators[0].tensors[0].shape == (7,)


def test_what_is_none_is_told(tmp_path):
    place = write_atb(tmp_path / "d") / TREE
    (place / NAMES[0] / "op_param.json").write_text("[" * 5000)
    (place / NAMES[0] / "before" / "other.raw").write_bytes(b"1")
    (place.parent / "statistic.csv").write_text(HEADER + "0_1,0,A/B,B,2,input,0,float,nd,1,1,1,1,1,x\n")
    notes = opened(tmp_path / "d").notes
    assert sum("op_param.json: ignored" in note for note in notes) == 1
    assert (
        sum("1 file has an unknown name" in note for note in notes)
        == sum("1 rows name no tensor" in note for note in notes)
        == 1
    )


@pytest.mark.parametrize("shape", ["99999999999999999999", "1x" * 70 + "1", "-1", "2,3"])
def test_shapes_of_a_table_that_are_none(tmp_path, shape):
    (tmp_path / "statistic.csv").write_text(HEADER + f'0_1,0,A,A,2,input,0,float,nd,"{shape}",1,1,1,1,x\n')
    assert "gives it the shape" in opened(tmp_path).operators[0].tensors[0].problem


def test_a_link_that_leads_out_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(content(np.zeros(3, np.float32)))
    place = tmp_path / "d" / "0_A" / "after"
    place.mkdir(parents=True)
    os.symlink(tmp_path / "x.bin", place / "outtensor0.bin")
    assert "links_out" in opened(tmp_path / "d").operators[0].tensors[0].problem
