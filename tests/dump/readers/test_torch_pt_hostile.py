"""Pickles that want to run something, and zip files that say two things. Nothing may happen but a DumpError."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest

from npucmp.dump import readers
from npucmp.errors import DumpError

from .craft import (
    DATA,
    MAGIC,
    ORDERED_DICT,
    integer,
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

COMMAND = text("touch MARKER")
SYSTEM = reduce(name("os", "system"), COMMAND)
EVALUATE = text("__import__('os').system('touch MARKER')")
SETATTR = b"}" + text("__class__") + name("os", "system") + b"s"
TENSOR_CLASS = name("torch", "FloatStorage")
CALLABLES = (
    "posix system", "nt system", "subprocess Popen", "builtins eval", "builtins exec", "__builtin__ eval",
    "builtins getattr", "builtins __import__", "importlib import_module", "runpy run_path", "pty spawn",
    "copyreg _reconstructor", "copyreg __newobj__", "functools partial", "operator attrgetter", "types CodeType",
    "numpy.core.multiarray _reconstruct", "torch load", "torch.hub load", "torch.serialization load",
    "torch._utils _rebuild_tensor_v2.__globals__", "collections OrderedDict.fromkeys", "collections deque",
    "torch_npu.npu._format __builtins__", "npucmp.dump.readers.torch_pt header", "torch.storage _load_from_bytes",
)  # fmt: skip

HOSTILE = {
    "os.system": (SYSTEM, "wants to call os.system"),
    "os.system by stack": (reduce(stack_name("os", "system"), COMMAND), "wants to call os.system"),
    "eval by stack": (reduce(stack_name("builtins", "eval"), EVALUATE), "wants to call builtins.eval"),
    "as hooks of a tensor": (tensor(hooks=SYSTEM), "wants to call os.system"),
    "as shape": (tensor(shape=SYSTEM), "wants to call os.system"),
    "as metadata": (tensor(metadata=SYSTEM), "wants to call os.system"),
    "in a state": (ORDERED_DICT + SYSTEM + b"b", "wants to call os.system"),
    "behind the tensor": (tensor() + SYSTEM + b"0", "wants to call os.system"),
    "named by text": (reduce(text("os.system"), COMMAND), "not a function"),
    "class in the memo": (TENSOR_CLASS + b"q\x050" + reduce(b"h\x05", COMMAND), "opcode 0x30"),
    "storage class called": (reduce(TENSOR_CLASS, COMMAND), "not a function"),
    "dtype called": (reduce(name("torch", "float32"), COMMAND), "not a function"),
    "tensor called": (reduce(tensor(), COMMAND), "not a function"),
    "state of a tensor": (tensor() + SETATTR + b"b", "wants to call os.system"),
    "plain state of a tensor": (tensor() + b"}b", "set the state of an object"),
    "state of a class": (TENSOR_CLASS + b"}b", "set the state of an object"),
    "dict from pairs": (reduce(name("collections", "OrderedDict"), b"]"), "unknown arguments"),
    "persistent id of a module": (row(text("module"), TENSOR_CLASS, text("f.py"), text("x")) + b"Q", "not a storage"),
    "persistent id of a call": (row(text("storage"), SYSTEM, text("0"), text("cpu"), integer(1)) + b"Q", "os.system"),
    "names that are not text": (integer(1) + integer(2) + b"\x93", "wants to call $"),
    "one name that is not text": (text("torch") + integer(2) + b"\x93", "wants to call $"),
    "arguments in a list": (name("collections", "OrderedDict") + b"]R", "not a function"),
    "INST": (b"(" + COMMAND + b"ios\nsystem\n", "opcode 0x69"),
    "OBJ": (b"(" + TENSOR_CLASS + COMMAND + b"o", "opcode 0x6f"),
    "NEWOBJ": (TENSOR_CLASS + row(COMMAND) + b"\x81", "opcode 0x81"),
    "NEWOBJ_EX": (TENSOR_CLASS + row(COMMAND) + b"}\x92", "opcode 0x92"),
    "EXT1": (b"\x82\x01", "opcode 0x82"),
    "PERSID": (b"Pos.system\n", "opcode 0x50"),
    "escape sequences": (name("os\x1b[2J", "system"), r"os\\x1b\[2J\.system"),
    **{key: (reduce(name(*key.split()), COMMAND), f"wants to call {key.replace(' ', '.')}") for key in CALLABLES},
}


def legacy_variants(body: bytes) -> list:
    """The body as each of the five pickles of a legacy file."""
    return [
        program(body),
        legacy(tensor(), b"", magic=MAGIC + program(body)),
        legacy(tensor(), b"", system=body),
        legacy(body, b""),
        legacy(tensor(), b"", keys=body),
    ]


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickle(tmp_path, monkeypatch, kind):
    body, why = HOSTILE[kind]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "t.pt"
    for data in (pt(body), *legacy_variants(body)):
        path.write_bytes(data)
        with pytest.raises(DumpError, match=why):
            header(str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["t.pt"]


@pytest.mark.parametrize("kind", ["os.system", "os.system by stack", "eval by stack"])
def test_hostile_pickles_are_hostile(tmp_path, monkeypatch, kind):
    """The counter-check: the pickle module runs them."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(program(HOSTILE[kind][0], protocol=4))
    assert (tmp_path / "MARKER").exists()


ORACLE = """
import pickle, sys, zipfile
from npucmp.errors import DumpError
from functools import partial
from npucmp.dump import readers
from npucmp.dump.readers.values import blocks
header = partial(readers.header, 'torch_pt')
events = set()
list(blocks(header(sys.argv[2])))  # whatever the first call loads is not the file's doing
sys.addaudithook(lambda event, arguments: events.add(event))
for path in sys.argv[3:]:
    try:
        if sys.argv[1] == "pickle":
            pickle.loads(zipfile.ZipFile(path).read("t/data.pkl"))
        else:
            header(path)
            print("accepted", path)
    except DumpError:
        pass
print(*sorted(events - {"open"}))
"""


def audit(mode: str, folder: Path, paths: list) -> str:
    command = [sys.executable, "-c", ORACLE, mode, str(DATA / "f32.pt"), *map(str, paths)]
    root = str(Path(__file__).parent.parent.parent.parent)
    environment = {"PYTHONPATH": root, "PATH": "/bin:/usr/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def test_nothing_is_imported_or_run(tmp_path):
    """Audit events of a process that reads all hostile files: it opens them, and that is all."""
    paths = []
    for place, (body, _) in enumerate(HOSTILE.values()):
        for variant, data in enumerate((pt(body), *legacy_variants(body))):
            paths.append(tmp_path / f"{place}_{variant}.pt")
            paths[-1].write_bytes(data)
    assert audit("npucmp", tmp_path, paths) == ""
    assert not (tmp_path / "MARKER").exists()


def test_the_audit_notices(tmp_path):
    path = tmp_path / "t.pt"
    path.write_bytes(pt(SYSTEM))
    assert "os.system" in audit("pickle", tmp_path, [path])


# --- pickles that are too much

MANY = 90_000
EXHAUSTING = {
    "opcodes": (b"N0" * 3 + b"]" * 200_000, "opcode 0x30"),
    "more opcodes": (b"N" * 200_000, "more than the limit pickle_opcodes"),
    "marks": (b"(" * 65, "more than the limit pickle_depth"),
    "deep tuple": (b")" + b"\x85" * MANY, "a tuple of 1 entries"),
    "deep list": (b"]" + b"]" * MANY + b"a" * (MANY // 20), "stack that is not one value"),
    "deep key": (b"})" + b"\x85" * MANY + b"Ns", "key of type tuple"),
    "deep shape": (tensor(shape=b")" + b"\x85" * MANY), "not an integer but tuple"),
    "doubling": (b")" + b"q\0h\0\x86" * 1000, "a tuple of 2 entries"),
    "list in itself": (b"]q\0h\0a", "a list of 1 entries"),
    "memo slot": (b"Nr\xff\xff\xff\xff", "holds a NoneType"),
    "long text": (b"X\xff\xff\xff\xff", "a damaged pickle"),
    "frame": (b"\x95" + b"\xff" * 8 + b"N", "holds a NoneType"),
    "stack underflow": (b"\x87", "a damaged pickle"),
    "pops through a mark": (b"NN(\x86", "a damaged pickle"),
    "no mark": (b"t", "a damaged pickle"),
    "unknown memo": (b"h\7", "a damaged pickle"),
    "open mark": (b"(N", "not one value"),
    "empty": (b"", "not one value"),
    "surrogate": (b"X\3\0\0\0\xed\xa0\x80", "a damaged pickle"),
}


@pytest.mark.parametrize("kind", EXHAUSTING)
def test_exhausting_pickle(tmp_path, kind):
    body, why = EXHAUSTING[kind]
    path = tmp_path / "t.pt"
    path.write_bytes(pt(body))
    with pytest.raises(DumpError, match=why):
        header(str(path))


# --- zip files

PLAIN = pt()
TORCH = (DATA / "f32.pt").read_bytes()


def changed(data: bytes, place: int, form: str, *values: int) -> bytes:
    new = struct.pack(f"<{form}", *values)
    return data[:place] + new + data[place + len(new) :]


def local(data: bytes, member: str) -> int:
    """Where the local header of a member is."""
    return data.index(b"PK\3\4", data.index(member.encode()) - 30)


def central(data: bytes, member: str) -> int:
    """Where the central entry of a member is."""
    return data.rindex(b"PK\1\2", 0, data.rindex(member.encode()))


def renamed_in_directory(data: bytes) -> bytes:
    place = data.rindex(b"t/data/0")
    return data[:place] + b"t/data/1" + data[place + 8 :]


def deflated() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t/data.pkl", program(tensor()))
        archive.writestr("t/data/0", bytes(24))
    return buffer.getvalue()


def twice() -> bytes:
    """Two members of one name: t/data/0 and t/data/1, the latter renamed in both places."""
    data = zipped({"t/data.pkl": program(tensor()), "t/data/0": bytes(24), "t/data/1": bytes(24)})
    return data.replace(b"t/data/1", b"t/data/0")


def gap_before_directory() -> bytes:
    """Four bytes between directory and end record."""
    end = PLAIN.rindex(b"PK\5\6")
    return PLAIN[:end] + bytes(4) + PLAIN[end:]


END = PLAIN.rindex(b"PK\5\6")
END64 = TORCH.rindex(b"PK\6\6")
LOCATOR = TORCH.rindex(b"PK\6\7")
TORCH_END = TORCH.rindex(b"PK\5\6")
DATA_0 = central(PLAIN, "t/data/0")
LOCAL_0 = local(PLAIN, "t/data/0")

ZIPS = {
    "duplicate member": (twice(), "same name"),
    "local name differs": (renamed_in_directory(PLAIN), "storage 0 is missing"),
    "local name of data differs": (changed(PLAIN, LOCAL_0 + 37, "B", ord("1")), "local zip header differs"),
    "local signature": (changed(PLAIN, LOCAL_0, "B", 0), "local zip header differs"),
    "local method": (changed(PLAIN, LOCAL_0 + 8, "H", 8), "local zip header differs"),
    "local flags": (changed(PLAIN, LOCAL_0 + 6, "H", 1), "local zip header differs"),
    "local size": (changed(PLAIN, LOCAL_0 + 22, "I", 23), "differs from the directory in sizes"),
    "local stored size": (changed(PLAIN, LOCAL_0 + 18, "I", 23), "differs from the directory in sizes"),
    "local sizes zero": (changed(PLAIN, LOCAL_0 + 18, "II", 0, 0), "differs from the directory in sizes"),
    "local extra length": (changed(PLAIN, LOCAL_0 + 28, "H", 1), "reaches into the next"),
    "local name length": (changed(PLAIN, LOCAL_0 + 26, "H", 7), "differs from the directory in sizes"),
    "deflated": (deflated(), "compressed or encrypted"),
    "encrypted": (changed(PLAIN, DATA_0 + 8, "H", 1), "compressed or encrypted"),
    "central signature": (changed(PLAIN, DATA_0, "B", 0), "damaged zip directory"),
    "other disk": (changed(PLAIN, DATA_0 + 34, "H", 1), "damaged zip directory"),
    "on one local header": (changed(PLAIN, DATA_0 + 42, "I", 0), "overlap"),
    "inside another": (changed(PLAIN, DATA_0 + 42, "I", LOCAL_0 - 1), "overlap"),
    "behind the directory": (changed(PLAIN, DATA_0 + 42, "I", DATA_0), "overlap"),
    "larger": (changed(PLAIN, DATA_0 + 20, "II", 25, 25), "overlap"),
    "much larger": (changed(PLAIN, DATA_0 + 20, "II", 2**32 - 2, 2**32 - 2), "overlap"),
    "smaller": (changed(PLAIN, DATA_0 + 20, "II", 23, 23), "holds 23 bytes of data, its header promises 24"),
    "two sizes": (changed(PLAIN, DATA_0 + 20, "I", 20), "two sizes"),
    "size without zip64": (changed(PLAIN, DATA_0 + 20, "II", 2**32 - 1, 2**32 - 1), "zip64 size is missing"),
    "offset without zip64": (changed(PLAIN, DATA_0 + 42, "I", 2**32 - 1), "zip64 size is missing"),
    "name too long": (changed(PLAIN, DATA_0 + 28, "H", 60_000), "ends early"),
    "fewer entries": (changed(PLAIN, END + 8, "HH", 1, 1), "larger than its entries"),
    "more entries": (changed(PLAIN, END + 8, "HH", 3, 3), "ends early"),
    "entries here": (changed(PLAIN, END + 8, "H", 1), "several parts"),
    "disk": (changed(PLAIN, END + 4, "H", 1), "several parts"),
    "disk of the directory": (changed(PLAIN, END + 6, "H", 1), "several parts"),
    "end signature": (changed(PLAIN, END, "B", 0), "does not end with the end record"),
    "comment without bytes": (changed(PLAIN, END + 20, "H", 1), "does not end with the end record"),
    "first bytes only": (PLAIN[:10], "ends inside the zip file"),
    "too many entries": (
        changed(PLAIN, END + 8, "HH", 65535, 65535),
        "65,535 members, more than the limit members of 10,000;",
    ),
    "directory too large": (changed(PLAIN, END + 12, "I", 2**31), "does not end at the end record"),
    "directory elsewhere": (changed(PLAIN, END + 16, "I", 0), "does not end at the end record"),
    "gap": (gap_before_directory(), "does not end at the end record"),
    "comment": (changed(PLAIN, END + 20, "H", 1) + b"x", "does not end with the end record"),
    "trailing": (PLAIN + b"x", "does not end with the end record"),
    "prepended": (b"PK\3\4" + PLAIN, "does not end at the end record"),
    "locator elsewhere": (changed(TORCH, LOCATOR + 8, "Q", 0), "locator does not point"),
    "locator behind": (changed(TORCH, LOCATOR + 8, "Q", 2**64 - 1), "locator does not point"),
    "record signature": (changed(TORCH, END64, "B", 0), "damaged zip64 record"),
    "record length": (changed(TORCH, END64 + 4, "Q", 45), "damaged zip64 record"),
    "record entries here": (changed(TORCH, END64 + 24, "Q", 6), "damaged zip64 record"),
    "locator disk": (changed(TORCH, LOCATOR + 4, "I", 1), "locator does not point"),
    "locator disks": (changed(TORCH, LOCATOR + 16, "I", 2), "locator does not point"),
    "record disk": (changed(TORCH, END64 + 16, "I", 1), "damaged zip64 record"),
    "record disk of the directory": (changed(TORCH, END64 + 20, "I", 1), "damaged zip64 record"),
    "record entries": (changed(TORCH, END64 + 24, "QQ", 6, 6), "disagree"),
    "record size": (changed(TORCH, END64 + 40, "Q", 1), "disagree"),
    "record offset": (changed(TORCH, END64 + 48, "Q", 1), "disagree"),
    "record entries alone": (
        changed(changed(TORCH, END64 + 24, "QQ", 2**40, 2**40), TORCH_END + 8, "HH", 65535, 65535),
        "a zip file of 1,099,511,627,776 members",
    ),
    "many members": (zipped({f"{i}": b"" for i in range(10_001)}), "10,001 members"),
    "long directory": (
        zipped({f"{i:0200}": b"" for i in range(5000)}),
        "more than the limit header_bytes of 1,048,576;",
    ),
}


@pytest.mark.parametrize("kind", ZIPS)
def test_zip_that_says_two_things(tmp_path, kind):
    data, why = ZIPS[kind]
    path = tmp_path / "t.pt"
    path.write_bytes(data)
    assert data[:4] == b"PK\3\4"
    with pytest.raises(DumpError, match=why):
        header(str(path))


def test_the_unchanged_zips_are_fine(tmp_path):
    """The counter-check for the table above, and that storage() made a key that exists."""
    path = tmp_path / "t.pt"
    for data in (PLAIN, TORCH, pt(tensor(store=storage()))):
        path.write_bytes(data)
        assert header(str(path)).dtype == "float32"
