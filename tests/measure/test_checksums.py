"""Checksums that one side recorded, against the values that the other kept."""

import struct
import zlib

import numpy as np
import pytest

from npucmp.measure import pairs
from npucmp.measure.pairs import measure
from npucmp.model import Payload
from tests.measure.test_pairs import pair, recorded, tensor

random = np.random.default_rng(3)
VALUES = random.standard_normal((37, 11)).astype(np.float32)


def crc32(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def xor(data: bytes) -> str:
    word = 0
    for (each,) in struct.iter_unpack("<Q", data + bytes(-len(data) % 8)):
        word ^= each
    return f"0x{word:016x}"


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


def test_case_and_order_in_memory_do_not_matter(tmp_path):
    assert same(tmp_path, np.asfortranarray(VALUES), crc32(VALUES.tobytes()).upper()) is True
    assert same(tmp_path, VALUES.astype(">f4"), crc32(VALUES.tobytes())) is True


def test_the_xor_of_a_number_alone_proves_nothing(tmp_path):
    assert same(tmp_path, np.float32(2.5), xor(np.float32(2.5).tobytes())) is None
    assert same(tmp_path, np.float32(2.5), xor(np.float32(2.6).tobytes())) is None
    assert same(tmp_path, np.float32(2.5), crc32(np.float32(2.6).tobytes())) is False


def test_types_that_do_not_lie_in_memory_as_in_the_file_tell_nothing(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(12)))
    kept = recorded((24,), "int4", payload=Payload(str(tmp_path / "x"), "int4", (24,), 0))
    assert measure(pair(kept, recorded((24,), "int4", checksum="724f369b"))).same is None
