"""Files of torch.save: what they hold, and that damage is always a DumpError."""

from __future__ import annotations

import json
import math
import os
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import Limits
from npucmp.dump import readers
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.errors import DumpError, UnsupportedError
from npucmp.model import Payload

from .craft import (
    DATA,
    MAGIC,
    ORDERED_DICT,
    integer,
    integers,
    legacy,
    name,
    program,
    pt,
    reduce,
    row,
    stack_name,
    storage,
    tensor,
    text,
    zipped,
)

header = partial(readers.header, "torch_pt")

MANIFEST = json.loads((DATA / "manifest.json").read_text())
SIX = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
FLOATS = struct.pack("<6f", *SIX)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pt")


def written(folder: Path, data: bytes) -> str:
    path = folder / "t.pt"
    path.unlink(missing_ok=True)  # a file cut to nothing and written again is flushed to the disk: slow
    path.write_bytes(data)
    return str(path)


def values(payload: Payload) -> list:
    """All values as Python numbers; complex ones as real, imaginary, real …"""
    parts = list(blocks(payload, 5))
    if not parts:
        return []
    data = np.concatenate(parts)
    return data.view(f"f{data.itemsize // 2}").tolist() if data.dtype.kind == "c" else data.astype(float).tolist()


def inside(payload: Payload, path: str) -> bool:
    itemsize = _bits(payload.dtype) // 8
    strides = payload.strides or _c_strides(payload.shape)
    reach = 0 if 0 in payload.shape else 1 + sum((d - 1) * s for d, s in zip(payload.shape, strides))
    return payload.offset >= 0 and payload.offset + reach * itemsize <= os.path.getsize(path)


def _bits(dtype: str) -> int:
    if dtype == "bool" or dtype.startswith("float8"):
        return 8
    return int("".join(filter(str.isdigit, dtype)))


def _c_strides(shape: tuple) -> list:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


# --- what torch wrote


@pytest.mark.parametrize("file", sorted(MANIFEST))
def test_samples_hold_what_torch_saw(file):
    expected = MANIFEST[file]
    payload = header(str(DATA / file))
    assert f"torch.{payload.dtype}" == expected["dtype"]
    assert list(payload.shape) == expected["shape"]
    found = values(payload)
    if "complex" in payload.dtype:  # the manifest holds the first twelve parts
        assert found[:12] == expected["values"] and len(found) == 24
    else:
        assert found == expected["values"]


def test_parameter_is_its_tensor():
    payload = header(str(DATA / "parameter.pt"))
    assert (payload.dtype, payload.shape) == ("float32", (3, 4))
    assert values(payload) == MANIFEST["f32.pt"]["values"]


def test_encoding_chooses_the_reader(folder):
    path = str(DATA / "f32.pt")
    assert readers.header("torch_pt", path) == header(path)
    with pytest.raises(DumpError, match="not an NPY file"):
        readers.header("npy", path)
    with pytest.raises(UnsupportedError, match="'bin'"):
        readers.header("bin", path)


# --- what can be in such a file


def _v3(dtype: bytes, store: bytes, more: bytes = b"") -> bytes:
    function = name("torch._utils", "_rebuild_tensor_v3")
    return reduce(function, store, integer(0), integers(3), integers(1), b"\x89", ORDERED_DICT, dtype, more)


def _npu(layout: bytes) -> bytes:
    function = name("torch_npu.utils.storage", "_rebuild_npu_tensor")
    return reduce(function, storage(), integer(0), integers(2, 3), integers(3, 1), b"\x89", ORDERED_DICT, layout)


V2_BY_STACK = reduce(
    stack_name("torch._utils", "_rebuild_tensor_v2"),
    storage(), integer(0), integers(6), integers(1), b"\x89", ORDERED_DICT,
)  # fmt: skip

FORMAT = name("torch_npu.npu._format", "Format")
DICT = name("collections", "OrderedDict")
PARAMETER = name("torch._utils", "_rebuild_parameter")
READABLE = {
    "contiguous": (tensor(), (2, 3), SIX),
    "transposed": (tensor(integers(3, 2), integers(1, 3)), (3, 2), [0, 3, 1, 4, 2, 5]),
    "slice": (tensor(integers(2), integers(2), offset=integer(1)), (2,), [1, 3]),
    "expanded": (tensor(integers(2, 2), integers(0, 1), offset=integer(4)), (2, 2), [4, 5, 4, 5]),
    "one element": (tensor(integers(), integers(), offset=integer(5)), (), [5]),
    "empty at the end": (tensor(integers(0, 3), integers(3, 1), offset=integer(6)), (0, 3), []),
    "empty behind the end": (tensor(integers(3, 0), integers(1, 1), offset=integer(9)), (3, 0), []),
    "no conj, no neg": (tensor(metadata=b"}" + text("conj") + b"\x89s"), (2, 3), SIX),
    "metadata None": (tensor(metadata=b"N"), (2, 3), SIX),
    "stack global": (V2_BY_STACK, (6,), SIX),
    "npu, old flag": (_npu(b"\x88"), (2, 3), SIX),
    "npu, format": (_npu(reduce(FORMAT, integer(29))), (2, 3), SIX),
    "parameter": (reduce(PARAMETER, tensor(), b"\x88", ORDERED_DICT), (2, 3), SIX),
    "untyped": (_v3(name("torch", "complex64"), storage("torch.storage UntypedStorage", count=24)), (3,), SIX),
    "untyped, typed storage": (_v3(name("torch", "complex64"), storage()), (3,), SIX),
}


@pytest.mark.parametrize("kind", READABLE)
def test_readable(folder, kind):
    body, shape, expected = READABLE[kind]
    payload = header(written(folder, pt(body, FLOATS)))
    assert payload.shape == shape and values(payload) == expected


def test_contiguous_means_no_strides(folder):
    ones = tensor(integers(1, 6, 1), integers(99, 1, 7))  # what torch calls contiguous: strides of size 1 are free
    assert header(written(folder, pt(ones))).strides == ()


@pytest.mark.parametrize(("mark", "order"), [(b"little", "<"), (b"big", ">")])
def test_byte_order(folder, mark, order):
    payload = header(written(folder, pt(data=struct.pack(f"{order}6f", *SIX), byteorder=mark)))
    assert payload.byteorder == order and values(payload) == SIX


def test_big_endian_bfloat16(folder):
    body = tensor(integers(3), integers(1), storage("torch BFloat16Storage", count=3))
    payload = header(written(folder, pt(body, bytes.fromhex("3f80 c000 7f80"), byteorder=b"big")))
    assert values(payload) == [1.0, -2.0, math.inf]


def test_legacy_view_metadata(folder):
    view = row(text("77"), integer(2), integer(3))  # elements 2, 3 and 4 of six
    body = tensor(integers(2), integers(2), storage(view=view))
    assert values(header(written(folder, legacy(body, FLOATS)))) == [2.0, 4.0]


def test_legacy_head_longer_than_the_first_read(folder):
    system = b"}" + text("note") + text("x" * 20_000) + b"s"
    assert values(header(written(folder, legacy(tensor(store=storage(view=b"N")), FLOATS, system=system)))) == SIX


def test_storage_of_more_than_4_gib(folder):
    """zip64 as torch writes it: sizes and offsets of the directory in the extra field, the local header without."""
    size, path = 5 << 30, folder / "large.pt"
    pickle = program(tensor(integers(size // 4), integers(1), storage(count=size // 4)))
    local = struct.Struct("<4s5H3I2H")
    central = struct.Struct("<4s6H3I5H2I")
    full = 0xFFFFFFFF
    with path.open("wb") as file:
        file.write(local.pack(b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, 8, 4) + b"t/data/0" + b"FB\0\0")
        file.seek(size, os.SEEK_CUR)
        second = file.tell()
        file.write(local.pack(b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, 10, 0) + b"t/data.pkl" + pickle)
        at = file.tell()
        file.write(central.pack(b"PK\1\2", 0, 0, 0x808, 0, 0, 0, 0, full, full, 8, 20, 0, 0, 0, 0, 0) + b"t/data/0")
        file.write(struct.pack("<2H2Q", 1, 16, size, size))
        sizes = len(pickle), len(pickle), 10, 12, 0, 0, 0, 0, full
        file.write(central.pack(b"PK\1\2", 0, 0, 0x808, 0, 0, 0, 0, *sizes) + b"t/data.pkl")
        file.write(struct.pack("<2HQ", 1, 8, second))
        end = file.tell()
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, 2, 2, end - at, at))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, end - at, full, 0))
    assert header(str(path)) == Payload(str(path), "float32", (size // 4,), 42, (), "<")


# --- what is refused, and how it is called

STATE = b"}" + text("a") + tensor() + text("b") + tensor()
UNSUPPORTED = {
    "dict": (b"}(" + STATE[1:] + b"u", "a dict of 2 entries"),
    "state dict": (ORDERED_DICT + b"(" + STATE[1:] + b"u}b", "a dict of 2 entries"),
    "list": (b"](" + tensor() + tensor() + tensor() + b"e", "a list of 3 entries"),
    "tuple": (row(tensor()), "a tuple of 1 entries"),
    "number": (integer(3), "holds a int, not a tensor"),
    "none": (b"N", "holds a NoneType, not a tensor"),
    "storage": (storage(), "not a tensor"),
    "dtype": (name("torch", "float32"), "not a tensor"),
    "conj": (tensor(metadata=b"}" + text("conj") + b"\x88s"), "unsupported: a conj view"),
    "neg": (tensor(metadata=b"}" + text("neg") + b"\x88s"), "unsupported: a neg view"),
    "sparse": (name("torch._utils", "_rebuild_sparse_tensor"), "unsupported: a sparse tensor"),
    "quantised": (name("torch._utils", "_rebuild_qtensor"), "unsupported: a quantised tensor"),
    "subclass": (name("torch._tensor", "_rebuild_from_type_v2"), "unsupported: a tensor subclass"),
    "fnuz": (_v3(name("torch", "float8_e5m2fnuz"), storage()), "unsupported: elements of type float8_e5m2fnuz"),
    "negative offset": (tensor(offset=integer(-1)), "must be counts"),
    "offset is text": (tensor(offset=text("0")), "must be counts"),
    "offset behind": (tensor(offset=integer(1)), "reaches out of its storage"),
    "stride too large": (tensor(strides=integers(4, 1)), "reaches out of its storage"),
    "negative stride": (tensor(strides=integers(-3, 1)), "must be counts"),
    "shape too large": (tensor(shape=integers(3, 3)), "reaches out of its storage"),
    "negative dim": (tensor(shape=integers(-2, 3)), "a dimension is negative"),
    "bool dim": (tensor(shape=row(b"\x88", integer(3))), "not an integer but bool"),
    "float dim": (tensor(shape=row(b"G" + struct.pack(">d", 2.0), integer(3))), "not an integer but float"),
    "nested dim": (tensor(shape=row(integers(2), integer(3))), "not an integer but tuple"),
    "fewer strides": (tensor(strides=integers(1)), "must be counts"),
    "huge": (tensor(integers(2**40, 2**40), integers(0, 0)), "more than the limit tensor_bytes"),
    "huge dim": (tensor(integers(2**2000), integers(0)), "more than the limit tensor_bytes"),
    "rank": (tensor(integers(*[1] * 65), integers(*[0] * 65)), "65 dimensions"),
    "count too large": (tensor(store=storage(count=7)), "holds 24 bytes of data, its header promises 28"),
    "count too small": (tensor(store=storage(count=5)), "the tensor reaches out of its storage"),
    "negative count": (tensor(store=storage(count=-6)), "size is negative"),
    "no such key": (tensor(store=storage(key="1")), "storage 1 is missing"),
    "key is a path": (tensor(store=storage(key="../0")), "key that is not a number"),
    "key of other digits": (tensor(store=storage(key="٠")), "key that is not a number"),
    "shape is a list": (tensor(shape=b"]"), "without storage, size or stride"),
    "no storage": (tensor(store=b"N"), "without storage, size or stride"),
    "too few arguments": (reduce(name("torch._utils", "_rebuild_tensor_v2"), storage()), "unknown arguments"),
    "parameter of a number": (reduce(PARAMETER, integer(1), b"\x88", ORDERED_DICT), "unknown arguments"),
    "parameter without hooks": (reduce(PARAMETER, tensor(), b"\x88"), "unknown arguments"),
    "format of nothing": (_npu(reduce(FORMAT)), "unknown arguments"),
    "format of text": (_npu(reduce(FORMAT, text("ND"))), "unknown arguments"),
    "format of two": (_npu(reduce(FORMAT, integer(2), integer(2))), "unknown arguments"),
    "npu without format": (_npu(b""), "unknown arguments"),
    "dict of a parameter": (reduce(DICT, tensor(), b"\x88", ORDERED_DICT), "unknown arguments"),
    "dict of a tensor's arguments": (
        reduce(DICT, storage(), integer(0), integers(1), integers(1), b"\x89", ORDERED_DICT, name("torch", "uint8")),
        "unknown arguments",
    ),
    "entries of a list": (b"]N" + b"a(" + integer(0) + integer(0) + b"u", "something that is not a dict"),
    "entry without value": (b"}(" + text("a") + b"u", "something that is not a dict"),
    "appended to a dict": (b"}" + text("a") + b"a", "something that is not a list"),
    "dict of a number": (reduce(DICT, integer(1)), "unknown arguments"),
}


FLOAT_STORAGE = name("torch", "FloatStorage")
SIX_ITEMS = [text("storage"), FLOAT_STORAGE, text("0"), text("cpu"), integer(6), b"N"]


def _id(**changes: bytes) -> bytes:
    """A tensor whose persistent id has other items, by place: _1=… is the class."""
    items = [changes.get(f"_{place}", item) for place, item in enumerate(SIX_ITEMS)]
    return tensor(store=row(*items) + b"Q")


COMPLEX = name("torch", "complex64")
UNSUPPORTED.update({
    "v3 without dtype": (_v3(b"", storage()), "unknown arguments"),
    "v3 with more": (_v3(COMPLEX, storage(), b"NN"), "unknown arguments"),
    "v3 conj": (_v3(COMPLEX, storage(), b"}" + text("conj") + b"\x88s"), "unsupported: a conj view"),
    "v3 dtype None": (_v3(b"N", storage()), "an invalid dtype"),
    "v3 dtype text": (_v3(text("float32"), storage()), "an invalid dtype"),
    "v3 dtype is a class": (_v3(FLOAT_STORAGE, storage()), "an invalid dtype"),
    "strides are a list": (tensor(strides=b"]"), "without storage, size or stride"),
    "metadata is text": (tensor(metadata=text("conj")), "metadata that is not a dict"),
    "id is text": (tensor(store=text("storage") + b"Q"), "persistent id that is not a storage"),
    "id is a list": (tensor(store=b"](" + b"".join(SIX_ITEMS) + b"eQ"), "persistent id that is not a storage"),
    "id too short": (tensor(store=row(*SIX_ITEMS[:4]) + b"Q"), "persistent id that is not a storage"),
    "id too long": (tensor(store=row(*SIX_ITEMS, b"N") + b"Q"), "persistent id that is not a storage"),
    "id of another kind": (_id(_0=text("module")), "persistent id that is not a storage"),
    "class is text": (_id(_1=text("FloatStorage")), "without class or location"),
    "class is a dtype": (_id(_1=name("torch", "float32")), "without class or location"),
    "class is a function": (_id(_1=PARAMETER), "without class or location"),
    "location is a number": (_id(_3=integer(0)), "without class or location"),
    "key is a number": (_id(_2=integer(0)), "key that is not a number"),
    "key is long": (_id(_2=text("0" * 41)), "key that is not a number"),
    "key is empty": (_id(_2=text("")), "key that is not a number"),
    "count is text": (_id(_4=text("6")), "a storage whose size|a damaged pickle"),
    "count is bool": (_id(_4=b"\x88"), "a storage whose size"),
    "view of two items": (_id(_5=row(text("1"), integer(0))), "a damaged pickle"),
    "view is a number": (_id(_5=integer(1)), "a damaged pickle"),
    "view starts before": (_id(_5=row(text("1"), integer(-1), integer(3))), "a storage whose size"),
    "view of negative size": (_id(_5=row(text("1"), integer(1), integer(-1))), "a storage whose size"),
})  # fmt: skip


def test_the_unchanged_id_is_fine(folder):
    assert header(written(folder, pt(_id(), FLOATS))).shape == (2, 3)


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_not_one_sound_tensor(folder, kind):
    body, why = UNSUPPORTED[kind]
    with pytest.raises(DumpError, match=why):
        header(written(folder, pt(body, FLOATS)))


LEGACY_WRONG = {
    "count": (legacy(tensor(), FLOATS, count=5), "number of elements before the data"),
    "short": (legacy(tensor(), FLOATS[:-1]), "holds 23 bytes of data, its header promises 24"),
    "trailing": (legacy(tensor(), FLOATS + b"\0"), "holds 25 bytes of data, its header promises 24"),
    "keys": (legacy(tensor(), FLOATS, keys=b"]"), "not that of one tensor"),
    "two storages": (legacy(tensor(), FLOATS, keys=b"](" + text("0") + text("1") + b"e"), "not that of one tensor"),
    "protocol": (legacy(tensor(), FLOATS, protocol=1002), "protocol"),
    "magic": (legacy(tensor(), FLOATS, magic=program(integer(1))), "not one of torch.save"),
    "view leaves": (
        legacy(tensor(store=storage(view=row(text("7"), integer(4), integer(3)))), FLOATS),
        "view leaves it",
    ),
    "view too small": (
        legacy(tensor(store=storage(view=row(text("7"), integer(1), integer(5)))), FLOATS),
        "reaches out of its storage",
    ),
    "magic only": (MAGIC, "a damaged pickle"),
    "dict": (legacy(b"}", FLOATS), "a dict of 0 entries"),
}


@pytest.mark.parametrize("kind", LEGACY_WRONG)
def test_legacy_that_does_not_fit(folder, kind):
    data, why = LEGACY_WRONG[kind]
    with pytest.raises(DumpError, match=why):
        header(written(folder, data))


OTHER_FILES = {
    "empty": (b"", "an empty file"),
    "text": (b"hello, world", "neither the zip nor the legacy format"),
    "long text": (b"hello, world" * 100, "neither the zip nor the legacy format"),
    "tar": (b"storages".ljust(257, b"\0") + b"ustar\0" + bytes(300), "the tar format"),
    "npz": (zipped({"a.npy": b"1"}), "without data.pkl"),
    "data.pkl deeper": (zipped({"a/b/data.pkl": b"1"}), "without data.pkl"),
    "two data.pkl": (zipped({"a/data.pkl": b"1", "b/data.pkl": b"1"}), "without data.pkl"),
    "script constants": (pt(**{"constants.pkl": b"N."}), "TorchScript"),
    "script code": (pt(**{"code/__torch__.py": b""}), "TorchScript"),
    "byte order": (pt(byteorder=b"middle"), "neither little nor big"),
    "byte order too long": (pt(byteorder=b"little endian"), "neither little nor big"),
    "empty zip": (b"PK\5\6" + bytes(18), "neither the zip nor"),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_files(folder, kind):
    data, why = OTHER_FILES[kind]
    with pytest.raises(DumpError, match=why):
        header(written(folder, data))


def test_what_is_not_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, why in (
        (tmp_path, "a directory, not a file"),
        (tmp_path / "fifo", "a FIFO, not a file"),
        ("/dev/zero", "a device, not a file"),
        (tmp_path / "missing.pt", "no such file"),
        ("a\0b", "not a file name"),
        (tmp_path / ("x" * 300), "cannot be opened"),
    ):
        with pytest.raises(DumpError, match=why):
            header(str(path))


def test_pickle_larger_than_the_limit(folder):
    with pytest.raises(DumpError, match="more than the limit pickle_bytes of 10; raise it with --limit pickle_bytes"):
        header(written(folder, pt()), ReadContext(Limits(pickle_bytes=10)))


def test_legacy_pickle_larger_than_the_limit(folder):
    """Told where more than what was read is there; a damaged pickle of a short file is just that."""
    path = written(folder, legacy(tensor(store=storage(view=b"N")), FLOATS, system=b"}" + text("x" * 9000) + b"0"))
    with pytest.raises(
        DumpError, match="more than the limit pickle_bytes of 8,500; raise it with --limit pickle_bytes"
    ):
        header(path, ReadContext(Limits(pickle_bytes=8500)))


def test_a_view_that_expands_without_end(folder):
    shape, strides = integers(1 << 20, 1 << 20), integers(0, 0)
    path = written(folder, pt(tensor(shape, strides)))
    with pytest.raises(
        DumpError, match="a view that makes 4,398,046,511,104 bytes of 24, more than the limit expanded"
    ):
        header(path)
    assert header(path, ReadContext(Limits(expanded_bytes=1 << 42))).shape == (1 << 20, 1 << 20)


# --- damage


@pytest.mark.parametrize("file", ["f32.pt", "legacy_f32.pt", "noncontig_view.pt"])
def test_every_prefix_is_an_error(folder, file):
    whole = (DATA / file).read_bytes()
    for length in range(len(whole)):
        with pytest.raises(DumpError):
            header(written(folder, whole[:length]))


@pytest.mark.parametrize("file", ["f32.pt", "legacy_f32.pt"])
def test_appended_byte_is_an_error(folder, file):
    with pytest.raises(DumpError):
        header(written(folder, (DATA / file).read_bytes() + b"\0"))


SAMPLES = [(DATA / file).read_bytes() for file in ("f32.pt", "noncontig_view.pt", "uint16.pt", "legacy_view.pt")]
CHANGES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3)


def sound(path: str) -> bool:
    """Either a DumpError, or a payload that lies in the file and can be read; anything else propagates."""
    try:
        payload = header(path)
    except DumpError:
        return True
    assert inside(payload, path)
    count = math.prod(payload.shape)
    return count > 10_000 or len(values(payload)) == count


@given(whole=st.sampled_from(SAMPLES), changes=CHANGES, pickle_only=st.booleans())
def test_changed_bytes(folder, whole, changes, pickle_only):
    data = bytearray(whole)
    for place, value in changes:
        data[place % (250 if pickle_only else len(data))] = value
    assert sound(written(folder, bytes(data)))


OPCODES = [
    b"(", b")", b"]", b"}", b"t", b"\x85", b"\x86", b"\x87", b"a", b"e", b"s", b"u", b"N", b"\x88", b"Q", b"R", b"b",
    b"q\0", b"q\1", b"h\0", b"h\1", b"\x94", b".", b"0", b"2", integer(2), integer(-1), integer(2**70), text("0"),
    text("storage"), storage(), tensor(), ORDERED_DICT, integers(2, 3), name("torch", "FloatStorage"),
    name("torch._utils", "_rebuild_tensor_v2"), name("os", "system"), name("torch", "uint16"),
]  # fmt: skip
PIECES = st.one_of(st.sampled_from(OPCODES), st.binary(max_size=3))


@given(st.lists(PIECES, max_size=25).map(b"".join))
def test_random_programs(folder, body):
    assert sound(written(folder, pt(body)))


def test_sound_is_not_always_true(folder):
    """The check itself: a payload outside of its file is noticed."""
    path = written(folder, pt())
    assert inside(header(path), path)
    assert not inside(header(path)._replace(offset=10_000), path)
