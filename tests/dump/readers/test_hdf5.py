"""HDF5 datasets: values in chunks against what h5py reads, chunks that lie, and filters by their definitions."""

from __future__ import annotations

import math
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.readers import hdf5
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError
from npucmp.model import Payload
from npucmp.model.dtypes import numpy_dtype

h5py = pytest.importorskip("h5py")

DTYPES = ["bool", "int8", "uint8", "int16", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


def described(path, name="a", dtype="") -> Payload:
    entry = hdf5.entries_of(str(path)).entries[f"/{name}"]
    if entry.problem:
        raise DumpError(path, entry.problem)
    return hdf5.payload_at(entry, dtype)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The library works in this process, which is quicker; tests/test_trust.py has the other."""
    monkeypatch.setattr(hdf5, "ISOLATED", False)


def values(payload: Payload, elements: int = 1000) -> np.ndarray:
    return np.concatenate(list(blocks(payload, elements)))


def saved(folder, data, **options):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("a", data=data, **options)
    return folder / "x.h5"


def low_level(path, kind, data, layout=None, memory=None):
    """A dataset of a type or layout that h5py has no word for."""
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if layout is not None:
            properties.set_layout(layout)
        dataset = h5py.h5d.create(file.id, b"a", kind, h5py.h5s.create_simple(data.shape), properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data, memory)
    return path


def chunked(path, chunk_bytes, filters=(), shape=(8,), chunk=(4,), mask=0):
    """A float32 dataset whose first chunk holds just these bytes."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", shape, "<f4", chunks=chunk, **dict(filters))
        for start in range(0, shape[0], chunk[0]):
            dataset.id.write_direct_chunk((start,), chunk_bytes, mask)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (4, 3)},
        {"chunks": (5, 7), "compression": "gzip"},
        {"chunks": (2, 2), "compression": 9, "shuffle": True, "fletcher32": True},
        {"chunks": (3, 7), "fletcher32": True},
        {"chunks": (3, 100), "maxshape": (None, None)},
    ],
)
def test_values(tmp_path, dtype, options):
    data = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, (11, 7)).astype(dtype)
    for order in "<>":
        payload = described(saved(tmp_path, data.astype(data.dtype.newbyteorder(order)), **options))
        assert (payload.dtype, payload.shape, bool(payload.dataset)) == (dtype, (11, 7), "chunks" in options)
        found = values(payload, 10)
        assert found.dtype == np.dtype(dtype) and np.array_equal(found, data.reshape(-1))


@given(st.data())
def test_slabs_follow_the_c_order(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple))
    chunk = tuple(data.draw(st.integers(1, 6)) for _ in shape)
    most, largest = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 200))
    order = np.arange(math.prod(shape)).reshape(shape)
    found = []
    for start, count in hdf5._slabs(shape, chunk, most, largest):
        box = tuple(slice(at, at + n) for at, n in zip(start, count))
        assert math.prod(count) <= max(most, largest)
        found += order[box].reshape(-1).tolist()
    assert found == list(range(math.prod(shape)))


@pytest.mark.parametrize("chunk", [(10, 40), (1, 7), (3, 1), (20, 5)])
def test_a_chunk_is_unpacked_once(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(hdf5, "_LEAST", 64)
    seen = []
    inflate = hdf5._UNPACK[1]
    monkeypatch.setitem(hdf5._UNPACK, 1, lambda *args: (seen.append(1), inflate(*args))[1])
    data = np.arange(800.0).reshape(20, 40)
    path = saved(tmp_path, data, chunks=chunk, compression="gzip")
    assert np.array_equal(values(described(path), 16), data.reshape(-1))
    assert len(seen) == math.prod(-(-dim // step) for dim, step in zip(data.shape, chunk))


def test_memory_does_not_grow_with_the_dataset(tmp_path):
    path = saved(tmp_path, np.zeros((4000, 1000), np.float32), chunks=(100, 1000), compression="gzip")
    payload = described(path)
    tracemalloc.start()
    assert sum(len(block) for block in blocks(payload, 1 << 16)) == 4_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (1, 1, 1)])
def test_small_shapes(tmp_path, shape):
    data = np.full(shape, 2.5)
    found = list(blocks(described(saved(tmp_path, data)), 10))
    assert sum(map(len, found)) == data.size and all((part == 2.5).all() for part in found)


def test_compact_datasets(tmp_path):
    data = np.arange(5, dtype=np.float32)
    path = low_level(tmp_path / "x.h5", h5py.h5t.IEEE_F32BE, data, h5py.h5d.COMPACT)
    payload = described(path)
    assert payload.dataset == "/a" and values(payload, 2).tolist() == [0, 1, 2, 3, 4]


def bfloat16(order):
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    kind.set_order(order)
    return kind


@pytest.mark.parametrize("order", [h5py.h5t.ORDER_LE, h5py.h5t.ORDER_BE])
def test_bfloat16(tmp_path, order):
    """h5py has no name for it and widens it to float32; the bytes are those of bfloat16."""
    data = np.array([1, -2.5, 1e30, 0], np.float32)
    payload = described(low_level(tmp_path / "x.h5", bfloat16(order), data))
    assert payload.dtype == "bfloat16"
    assert np.array_equal(values(payload), data.astype(numpy_dtype("bfloat16")))


@pytest.mark.parametrize("kind", ["short mantissa", "short integer"])
def test_unusual_numbers_are_refused(tmp_path, kind):
    if kind == "short integer":
        made = h5py.h5t.STD_I32LE.copy()
        made.set_precision(20)
    else:
        made = h5py.h5t.IEEE_F32LE.copy()
        made.set_fields(31, 24, 7, 0, 24)
        made.set_ebias(63)
    path = low_level(tmp_path / "x.h5", made, np.ones(3, np.float32))
    with pytest.raises(DumpError, match="unsupported: elements of type"):
        described(path)


@pytest.mark.parametrize(
    "word, data, dtype",
    [("bool", [0, 1, 2], "int8"), ("uint8", [-1, 1, 2], "int8"), ("float32", [1, 2, 3], "int8")],
)
@pytest.mark.parametrize("chunks", [None, (2,)])
def test_the_dumps_word_for_a_byte(tmp_path, word, data, dtype, chunks):
    payload = described(saved(tmp_path, np.array(data, dtype), chunks=chunks), dtype=word)
    assert payload.dtype == ("int8" if word == "float32" else word)
    found = values(payload).tolist()
    assert found == {"bool": [False, True, True], "uint8": [255, 1, 2]}.get(word, data)


def test_a_bool_of_two_is_true(tmp_path):
    path = saved(tmp_path, np.array([True, False, True]))
    raw = bytearray(path.read_bytes())
    raw[described(path).offset] = 2
    path.write_bytes(raw)
    assert values(described(path)).view("u1").tolist() == [1, 0, 1]


# --- filters


@pytest.mark.parametrize("options", [{"compression": "lzf"}, {"scaleoffset": 3}])
def test_other_filters_are_refused(tmp_path, options):
    with pytest.raises(DumpError, match=r"unsupported: packed by filter \d+ \((lzf|scaleoffset)\).*h5repack"):
        described(saved(tmp_path, np.ones((4, 4), np.float32), chunks=(2, 2), **options))


def test_an_unknown_filter_is_refused(tmp_path):
    path = saved(tmp_path, np.ones((4, 4), np.float32), chunks=(2, 2), compression="lzf")
    path.write_bytes(path.read_bytes().replace((32000).to_bytes(2, "little"), (33333).to_bytes(2, "little")))
    with pytest.raises(DumpError, match=r"filter 33333 \(unknown\)"):
        described(path)


@given(st.binary(max_size=300), st.integers(0, 9))
def test_shuffle(data, width):
    """Defined byte by byte: byte j of element i stands at place j·n + i."""
    n = len(data) // width if width else 0
    spread = bytes(data[i * width + j] for j in range(width) for i in range(n)) if width else b""
    assert hdf5._unshuffle(spread + data[len(spread) :], (width,), 0) == data


def fletcher(data):
    """The checksum, word by word."""
    low = high = 0
    for at in range(0, len(data), 2):
        low = (low + int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")) % 65535
        high = (high + low) % 65535
    return (high << 16 | low).to_bytes(4, "little")


@given(st.one_of(st.binary(max_size=200), st.integers(0, 300_000).map(lambda size: b"\xff\xfe\x07" * (size // 3))))
def test_fletcher(data):
    assert hdf5._unsum(data + fletcher(data), (), 0) == data
    with pytest.raises(ValueError):
        hdf5._unsum(data + b"\x01" + fletcher(data), (), 0)


GZIP = (("compression", "gzip"),)


@pytest.mark.parametrize(
    "content, filters, because",
    [
        (zlib.compress(bytes(16)), GZIP, ""),
        (zlib.compress(bytes(15)), GZIP, "15 bytes unpacked, not 16"),
        (zlib.compress(bytes(17)), GZIP, "17 bytes unpacked, not 16"),
        (zlib.compress(bytes(10**6)), GZIP, "larger than a chunk"),
        (b"\xff" * 20, GZIP, "cannot be unpacked"),
        (zlib.compress(bytes(16))[:-1], GZIP, "it ends early"),
        (bytes(15), (("fletcher32", True),), "11 bytes unpacked, not 16"),
        (bytes(19) + b"\1", (("fletcher32", True),), "its checksum differs"),
        (bytes(2), (("fletcher32", True),), "0 bytes unpacked, not 16"),
    ],
)
def test_chunks_that_lie(tmp_path, content, filters, because):
    path = chunked(tmp_path / "x.h5", content, filters)
    if not because:
        assert values(described(path)).tolist() == [0] * 8
        return
    with pytest.raises(DumpError, match=because):
        values(described(path))


def test_a_chunk_that_was_not_packed(tmp_path):
    path = chunked(tmp_path / "x.h5", np.arange(4, dtype="<f4").tobytes(), GZIP, mask=1)
    assert values(described(path)).tolist() == [0, 1, 2, 3] * 2


def test_a_chunk_packs_at_most_as_deflate_can(tmp_path):
    """A file of some kilobytes whose chunks of a gigabyte each would be unpacked one after the other."""
    path = chunked(tmp_path / "x.h5", zlib.compress(b""), GZIP, shape=(2**30,), chunk=(2**28,))
    with pytest.raises(DumpError, match="more than the limit hdf5_ratio of 1,100"):
        described(path)


def test_a_chunk_has_a_limit(tmp_path):
    path = chunked(tmp_path / "x.h5", zlib.compress(b""), GZIP, shape=(2**29,), chunk=(2**29,))
    with pytest.raises(DumpError, match="more than the limit hdf5_chunk_bytes"):
        described(path)


# --- files


def test_a_file_that_changed_is_told(tmp_path):
    path = saved(tmp_path, np.ones(8), chunks=(4,))
    payload = described(path)
    saved(tmp_path, np.ones(9), chunks=(4,))
    with pytest.raises(DumpError, match="changed since it was opened"):
        values(payload)
    with h5py.File(path, "w") as file:
        file["a"] = h5py.ExternalLink("other.h5", "/x")
    with pytest.raises(DumpError, match="refused: an external link"):
        values(payload)
    path.unlink()
    with pytest.raises(DumpError, match="no such file"):
        values(payload)


def test_threads_may_read_one_file(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for n in range(20):
            file.create_dataset(f"n{n}", data=np.full((50, 50), float(n)), chunks=(7, 9), compression="gzip")
    payloads = [described(tmp_path / "x.h5", f"n{n}") for n in range(20)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda payload: set(values(payload, 100).tolist()), payloads * 3))
    assert found == [{float(n)} for n in range(20)] * 3


@pytest.mark.parametrize("prefix", [0, 512, 1024, 2048])
def test_the_signature(tmp_path, prefix):
    (tmp_path / "x").write_bytes(bytes(prefix) + hdf5.SIGNATURE)
    assert hdf5.is_hdf5(str(tmp_path / "x"))
    (tmp_path / "x").write_bytes(bytes(prefix + 1) + hdf5.SIGNATURE)
    assert not hdf5.is_hdf5(str(tmp_path / "x"))
