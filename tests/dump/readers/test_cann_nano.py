"""Nano dumps: the one real file that is public, and what its kind may hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from npucmp import open_runs
from npucmp.dump.formats import cann
from npucmp.dump.readers import cann_raw
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError
from tests.dump.readers import craft_cann as craft

REAL = Path(__file__).parents[4] / "shared" / "data" / "cann" / "ConcatV2D.nano_dump.bin"
real = pytest.mark.skipif(not REAL.is_file(), reason="the real file is not beside this checkout")
ON_DISK = "ConcatV2D.concatv2.0.0.550288648"

X = craft.as_ge(craft.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)))


def read(path: Path, data: bytes):
    path.write_bytes(data)
    with open_regular(str(path)) as file:
        assert cann_raw.is_nano(file)
        return cann_raw.read_nano(file)


def check_concatenation(path: Path):
    (run,) = open_runs(path)
    (operator,) = run.operators
    a, b, whole = operator.tensors
    assert [one.shape for one in operator.tensors] == [(1, 14652), (1, 30), (1, 14682)]
    assert {one.dtype for one in operator.tensors} == {"float16"} and {one.layout for one in operator.tensors} == {
        "NHWC"
    }
    assert whole.origin == "concatv2:0"
    joined = np.concatenate([craft.values(a), craft.values(b)], axis=1)
    np.testing.assert_array_equal(joined, craft.values(whole))
    assert np.count_nonzero(joined) > 10_000
    return operator


@real
def test_the_real_file_holds_a_concatenation():
    check_concatenation(REAL)


@real
def test_the_real_file_in_its_folder(tmp_path):
    shutil.copy(REAL, tmp_path / ON_DISK)
    operator = check_concatenation(tmp_path)
    assert (operator.name, operator.op_type) == ("concatv2", "ConcatV2D")


@real
def test_prefixes_of_the_real_file(tmp_path):
    data = REAL.read_bytes()
    for size in (*range(0, 400, 7), 29_635, 29_636, 29_695, 29_696, len(data) - 1):
        (tmp_path / ON_DISK).write_bytes(data[:size])
        tensors = cann.open_runs(tmp_path)[0].operators[0].tensors
        assert tensors[-1].problem and (size > 29_635 or tensors[0].problem)


GE_TYPES = [(0, "float32"), (1, "float16"), (2, "int8"), (3, "int32"), (4, "uint8"), (6, "int16"), (7, "uint16"),
            (8, "uint32"), (9, "int64"), (10, "uint64"), (11, "float64"), (12, "bool"), (16, "complex64"),
            (17, "complex128"), (27, "bfloat16"), (29, "int4"), (30, "uint1")]  # fmt: skip


@pytest.mark.parametrize("code, name", GE_TYPES)
def test_types_have_the_numbers_of_ge(tmp_path, code, name):
    (one,) = read(tmp_path / "a", craft.nano([], [X._replace(code=code, shape=(1,))])).tensors
    assert (one.dtype, one.problem) == (name, "")


@pytest.mark.parametrize("code, word", [(5, "5"), (99, "99"), (-1, "-1"), (13, "string"), (14, "dual_sub_int8")])
def test_other_types_are_named(tmp_path, code, word):
    (one,) = read(tmp_path / "a", craft.nano([], [X._replace(code=code)])).tensors
    assert word in one.problem and word in one.dtype


def test_absent_shapes(tmp_path):
    bare, both = read(tmp_path / "a", craft.nano([X._replace(shape=None)], [X._replace(original=(3, 2))])).tensors
    assert (bare.shape, bare.original, bare.problem) == ((6,), None, "")
    assert (both.shape, both.original) == ((2, 3), (3, 2))


def test_padding_is_stepped_over(tmp_path):
    padded = X._replace(data=X.data + bytes(8))
    (tmp_path / f"A.a.1.1.{craft.TIME}").write_bytes(craft.nano([padded], [X]))
    for one in cann.open_runs(tmp_path)[0].operators[0].tensors:
        assert craft.values(one).tobytes() == X.data


def test_unknown_blocks_are_passed_over(tmp_path):
    data = craft.nano([X], [X])
    more = craft.tlv(9, b"words")
    length = int.from_bytes(data[:8], "little") + len(more)
    data = length.to_bytes(8, "little") + data[8:16] + more + data[16:]
    assert [one.problem for one in read(tmp_path / "a", data).tensors] == ["", ""]


@pytest.mark.parametrize("cut, words", [(20, "half a block"), (24, "without its count"), (40, "announced")])
def test_headers_that_end_inside_themselves(tmp_path, cut, words):
    """The length of the header and of its first block say so, the file goes on."""
    data = bytearray(craft.nano([X], []))
    data[:8] = (cut - 8).to_bytes(8, "little")
    data[20:24] = max(0, cut - 24).to_bytes(4, "little")
    with pytest.raises(DumpError, match=words):
        read(tmp_path / "a", bytes(data))


def test_a_header_of_megabytes_is_refused(tmp_path):
    with pytest.raises(DumpError, match="a header of"):
        read(tmp_path / "a", craft.nano([], [X._replace(shape=(1,) * 200_000)]))


def test_a_header_without_tensors_is_no_dump(tmp_path):
    with pytest.raises(DumpError, match="no tensor"):
        read(tmp_path / "a", craft.nano([], []))
