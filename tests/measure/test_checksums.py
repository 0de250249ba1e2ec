"""Checksums that one side recorded, against the values that the other kept."""

import hashlib
import struct
import zlib

import ml_dtypes
import numpy as np
import pytest

from npucmp.measure import pairs
from npucmp.measure.pairs import measure
from npucmp.model import Payload
from tests.measure.test_pairs import pair, recorded, tensor

random = np.random.default_rng(3)
VALUES = random.standard_normal((37, 11)).astype(np.float32)
OTHERS = np.where(np.arange(37)[:, None] == 36, np.nextafter(VALUES, np.float32(9)), VALUES)
HALVES = VALUES.astype(ml_dtypes.bfloat16)


def crc32(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def xor(data: bytes) -> str:
    word = 0
    for (each,) in struct.iter_unpack("<Q", data + bytes(-len(data) % 8)):
        word ^= each
    return f"0x{word:016x}"


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch):
    monkeypatch.setattr(pairs, "READ", 5)  # no whole number of words of most types


def same(folder, values, checksum, dtype=None):
    """What is found, with the values on either side."""
    kept = tensor(folder, "x", values)
    kept = kept._replace(dtype=dtype or kept.dtype)
    told = recorded(kept.shape, kept.dtype, checksum=checksum)
    found = [measure(pair(*sides)) for sides in ((kept, told), (told, kept))]
    assert (found[0].same, found[0].problem) == (found[1].same, "")
    return found[0].same


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "bool", "complex64"])
@pytest.mark.parametrize("kind, own, others", [(crc32, True, False), (xor, None, False), (md5, True, None)])
def test_equality_is_proven_and_difference_known(tmp_path, kind, own, others, dtype):
    """But MD5, of which no dump with values was at hand, proves no difference, and an XOR no equality."""
    values = np.maximum(8 * VALUES, 0).astype(dtype)
    other = values.copy()
    other[5, 5] = not other[5, 5]
    assert same(tmp_path, values, kind(values.tobytes())) is own
    assert same(tmp_path, values, kind(other.tobytes())) is others


def test_case_and_order_in_memory_do_not_matter(tmp_path):
    assert same(tmp_path, np.asfortranarray(VALUES), crc32(VALUES.tobytes()).upper()) is True
    assert same(tmp_path, VALUES.astype(">f4"), crc32(VALUES.tobytes())) is True


@pytest.mark.parametrize("bytes_of", [HALVES.tobytes(), HALVES.astype(np.float32).tobytes()], ids=["raw", "widened"])
@pytest.mark.parametrize("kind", [crc32, xor])
def test_bfloat16_is_known_in_16_bits_and_in_32(tmp_path, kind, bytes_of):
    assert same(tmp_path, HALVES.astype(np.float32), kind(bytes_of), "bfloat16") is (True if kind is crc32 else None)
    assert same(tmp_path, -HALVES.astype(np.float32), kind(bytes_of), "bfloat16") is False


@pytest.mark.parametrize("bytes_of", [HALVES.tobytes(), HALVES.astype(np.float32).tobytes()], ids=["raw", "widened"])
def test_bfloat16_that_is_stored_in_16_bits(tmp_path, bytes_of):
    (tmp_path / "x").write_bytes(HALVES.tobytes())
    kept = recorded(HALVES.shape, "bfloat16", payload=Payload(str(tmp_path / "x"), "bfloat16", HALVES.shape, 0))
    assert measure(pair(kept, recorded(HALVES.shape, "bfloat16", checksum=crc32(bytes_of)))).same is True
    assert measure(pair(kept, recorded(HALVES.shape, "bfloat16", checksum=crc32(bytes_of[1:])))).same is False


@pytest.mark.parametrize("checksum", ["", "724f369", "724f369g", "0x724f369b", "724f369b" * 5, "=cmd()"])
def test_what_is_no_known_checksum_tells_nothing(tmp_path, checksum):
    assert same(tmp_path, VALUES, checksum) is None


def test_the_xor_of_a_number_alone_proves_nothing(tmp_path):
    assert same(tmp_path, np.float32(2.5), xor(np.float32(2.5).tobytes())) is None
    assert same(tmp_path, np.float32(2.5), xor(np.float32(2.6).tobytes())) is None
    assert same(tmp_path, np.float32(2.5), crc32(np.float32(2.6).tobytes())) is False


def test_another_type_tells_nothing(tmp_path):
    told = recorded(VALUES.shape, "bfloat16", checksum=crc32(VALUES.tobytes()))
    assert measure(pair(tensor(tmp_path, "x", VALUES), told)).same is None


def test_types_that_do_not_lie_in_memory_as_in_the_file_tell_nothing(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(12)))
    kept = recorded((24,), "int4", payload=Payload(str(tmp_path / "x"), "int4", (24,), 0))
    assert measure(pair(kept, recorded((24,), "int4", checksum="724f369b"))).same is None


def test_one_bit_of_the_last_row_is_seen(tmp_path):
    assert same(tmp_path, OTHERS, crc32(VALUES.tobytes())) is False
