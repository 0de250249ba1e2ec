"""safetensors files: what their headers tell, and what becomes of headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from npucmp import Limits, compare, open_runs
from npucmp.dump.formats import safetensors
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.safetensors import entries
from npucmp.dump.readers.values import stored_values
from npucmp.errors import DumpError
from tests.contracts import FormatContract
from tests.dump.formats.three import three

WORDS = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "uint8": "U8", "complex64": "C64"}


def packed(arrays, words=WORDS, **more) -> bytes:
    """A file as the format's document says it."""
    place, header, data = 0, dict(more), b""
    for name, values in arrays.items():
        piece = np.ascontiguousarray(values).tobytes()
        offsets = [place, place + len(piece)]
        header[name] = {"dtype": words[values.dtype.name], "shape": list(values.shape), "data_offsets": offsets}
        place, data = place + len(piece), data + piece
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def arrays_of(wrong=False):
    found = {}
    for number, one in enumerate(three(wrong)):
        found.update({f"model.layers.{number}.input.{n}": values for n, values in enumerate(one.inputs)})
        found.update({f"model.layers.{number}.output.{n}": values for n, values in enumerate(one.outputs)})
    return found


def write_safetensors(folder: Path, wrong=False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "acts.safetensors").write_bytes(packed(arrays_of(wrong), __metadata__={"format": "pt"}))
    return folder


class TestSafetensors(FormatContract):
    module = safetensors

    def write(self, folder):
        return write_safetensors(folder / "d")


def test_one_file_is_a_run(tmp_path):
    file = write_safetensors(tmp_path) / "acts.safetensors"
    (run,) = open_runs(file)
    assert [operator.name for operator in run.operators] == [f"model.layers.{n}" for n in range(3)]
    assert compare(file, file).exit_status == 0


def test_pipeline_are_one_run_and_names_in_several_files_go_by_their_file(tmp_path):
    x = np.ones(3, np.float32)
    for number, name in ((1, "a"), (2, "b")):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(packed({name: x}))
    assert [operator.name for operator in open_runs(tmp_path)[0].operators] == ["a", "b"]
    (tmp_path / "other.safetensors").write_bytes(packed({"b": x}))
    names = [operator.name for operator in open_runs(tmp_path)[0].operators]
    assert names == ["model-00001-of-00002/a", "model-00002-of-00002/b", "other/b"]


def test_steps_and_ranks_are_runs(tmp_path):
    for step in (0, 1):
        write_safetensors(tmp_path / f"step_{step}" / "rank3")
    assert [(run.step, run.rank) for run in open_runs(tmp_path)] == [(0, 3), (1, 3)]


@pytest.mark.parametrize("dtype", WORDS)
def test_values_come_back(tmp_path, dtype):
    values = {"a": np.ones(3, np.uint8), "b": np.arange(6).reshape(2, 3).astype(dtype), "c": np.ones((), dtype)}
    (tmp_path / "x.safetensors").write_bytes(packed(values))
    with open_regular(str(tmp_path / "x.safetensors")) as file:
        found = entries(file)
    for name, expected in values.items():
        assert found[name].shape == expected.shape and np.array_equal(
            stored_values(found[name]).reshape(-1), expected.ravel()
        )


def test_types_of_8_and_16_bits_and_unknown_ones(tmp_path):
    words = {"uint16": "BF16", "uint8": "F8_E4M3", "int8": "F4"}
    arrays = {"a": np.array([0x3F80], np.uint16), "b": np.zeros(2, np.uint8), "c": np.zeros(2, np.int8)}
    (tmp_path / "x.safetensors").write_bytes(packed(arrays, words))
    (run,) = open_runs(tmp_path)
    a, b, c = (operator.tensors[0] for operator in run.operators)
    assert (a.dtype, b.dtype) == ("bfloat16", "float8_e4m3fn") and "F4" in c.problem


def test_every_prefix_and_a_byte_more_is_a_typed_error(tmp_path):
    data = packed({"a": np.ones(3, np.float32), "b": np.ones((2, 2), np.float16)})
    for changed in [data[:size] for size in range(len(data))] + [data + b"\0"]:
        (tmp_path / "x.safetensors").write_bytes(changed)
        with pytest.raises(DumpError), open_regular(str(tmp_path / "x.safetensors")) as file:
            entries(file)
    (run,) = open_runs(tmp_path)
    assert run.operators[0].tensors[0].problem


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


LIES = {
    "not an object": [],
    "not JSON": "{",
    "an entry that is none": {"a": 1},
    "another key": {"a": {**entry(), "x": 1}},
    "a type that is no text": {"a": entry(1)},
    "a negative size": {"a": entry(shape=(-1,))},
    "a size that is none": {"a": entry(shape=(True,))},
    "a fraction": {"a": entry(shape=(1.0,))},
    "places the other way": {"a": entry(offsets=(4, 0))},
    "a gap": {"a": entry(), "b": entry(offsets=(8, 12))},
    "an overlap": {"a": entry(), "b": entry(offsets=(0, 4))},
    "behind the end": {"a": entry(offsets=(0, 2**60))},
    "a long number": '{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 4]}}',
    "a name twice": '{"a": 1, "a": 2}',
    "nested": "[" * 100000,
}


@pytest.mark.parametrize("header", LIES.values(), ids=LIES)
def test_headers_that_lie(tmp_path, header):
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    (run,) = open_runs(tmp_path)
    assert run.operators[0].tensors[0].problem


@pytest.mark.parametrize("shape", [(2,), (10**17, 10**17), (1,) * 65])
def test_a_shape_that_does_not_fit_costs_one_row(tmp_path, shape):
    text = json.dumps({"a": entry(shape=shape), "b": entry(offsets=(4, 8))}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    (run,) = open_runs(tmp_path)
    assert [bool(operator.tensors[0].problem) for operator in run.operators] == [True, False]


def test_a_header_that_promises_more_than_the_limit_is_not_read(tmp_path):
    file = tmp_path / "x.safetensors"
    with open(file, "wb") as stream:
        stream.write(struct.pack("<Q", 2**40))
        stream.truncate(2**40 + 8)
    (run,) = open_runs(file)
    assert "table_bytes" in run.operators[0].tensors[0].problem and Limits().table_bytes < 2**40


@pytest.mark.large
def test_twenty_thousand_tensors(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(packed({f"l.{n}.output": np.ones(2, np.float32) for n in range(20000)}))
    (run,) = open_runs(tmp_path)
    assert len(run.operators) == 20000 and run.operators[10].name == "l.10"
