"""What the separate process reports of an HDF5 file: its facts, the reason why it cannot be read, its own limits."""

import io
import json
import resource
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.dump.limits import Limits
from npucmp.dump.readers.hdf5_child import facts, write_facts
from npucmp.errors import DumpError

h5py = pytest.importorskip("h5py")


@pytest.fixture
def path(tmp_path):
    """Groups, datasets of each layout, attributes of several forms, links."""
    with h5py.File(tmp_path / "x.h5", "w", track_order=True) as file:
        plain = file.create_dataset("plain", data=np.arange(6, dtype=np.int32).reshape(2, 3))
        plain.attrs["one"] = 7
        plain.attrs["some"] = np.array([1, 2, 3])
        plain.attrs["many"] = np.arange(65)
        plain.attrs["table"] = np.ones((2, 2), int)
        plain.attrs["text"] = "7"
        plain.attrs["nothing"] = h5py.Empty("i8")
        plain.attrs["empty"] = np.zeros(0, int)
        group = file.create_group("group", track_order=True)
        group.create_dataset("chunked", data=np.arange(6.0), chunks=(4,), compression="gzip")
        group.create_dataset("empty", data=np.zeros((0, 3), np.float16))
        group["again"] = file["group"]
        file["soft"] = h5py.SoftLink("/plain")
        file["elsewhere"] = h5py.ExternalLink("y.h5", "/a")
        file.create_dataset("text", data="words")
        file.create_dataset("null", data=h5py.Empty("f4"))
        file.create_dataset("unwritten", (4,), "f4")
        file.create_dataset("half", (8,), "f4", chunks=(4,))[:4] = 1.0
    return str(tmp_path / "x.h5")


def by_name(found):
    return {"/".join(one["parts"]): one for one in found if "parts" in one}


NAMES = ["one", "some", "many", "table", "text", "nothing", "empty", "absent"]


def test_facts_of_each_dataset(path):
    found = [*facts(path, NAMES, Limits())]
    told = by_name(found)
    plain = told["plain"]
    assert (plain["dtype"], plain["order"], plain["shape"]) == ("int32", "<", (2, 3))
    with open(path, "rb") as file:
        file.seek(plain["offset"])
        assert np.frombuffer(file.read(24), "<i4").tolist() == [*range(6)]
    numbers = {"one": [7], "some": [1, 2, 3]}
    assert plain["attributes"] == {name: numbers.get(name, []) for name in NAMES}
    chunked = told["group/chunked"]
    assert (chunked["chunk"], len(chunked["table"])) == ((4,), 6)
    assert [one[0] for one in chunked["filters"]] == [1]
    assert told["group/chunked"]["attributes"] == {name: [] for name in NAMES}
    assert told["group"] == {"parts": ("group",), "group": True}
    assert told["group/empty"]["shape"] == (0, 3) and "offset" not in told["group/empty"]
    assert found[-1] == {"end": {"soft": 1, "again": 1, "tracked": True}}


@pytest.mark.parametrize(
    "name, why",
    [
        ("elsewhere", "an external link"),
        ("text", "elements of type string"),
        ("null", "its data space is null"),
        ("unwritten", "was never written"),
        ("half", "1 of 2 chunks are in the file"),
    ],
)
def test_the_reason_of_what_cannot_be_read(path, name, why):
    one = by_name(facts(path, [], Limits()))[name]
    assert why in one["problem"] and "dtype" not in one


@pytest.mark.parametrize(
    "limits, name, why",
    [
        ({"hdf5_depth": 1}, "group/chunked", "groups in groups"),
        ({"hdf5_chunk_bytes": 31}, "group/chunked", "chunks of 32 bytes"),
        ({"hdf5_objects": 9}, "group", "objects in a file"),
        ({"hdf5_name_bytes": 53}, "group", "bytes of names"),
    ],
)
def test_limits_of_objects_cost_a_row(path, limits, name, why):
    assert why in by_name(facts(path, [], Limits(**limits)))[name]["problem"]


@pytest.mark.parametrize("limits", [{"hdf5_objects": 7}, {"hdf5_name_bytes": 10}])
def test_a_root_beyond_its_limits_refuses_the_file(path, limits):
    with pytest.raises(DumpError):
        [*facts(path, [], Limits(**limits))]


def written(monkeypatch, path, **limits):
    """The lines that the process writes, and the limits that it sets itself."""
    bounds, out = {}, io.BytesIO()
    monkeypatch.setattr(resource, "setrlimit", lambda kind, value: bounds.update({kind: value}))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (9, 50 if kind == resource.RLIMIT_CPU else -1))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
    write_facts(path, ["one"], limits, 60)
    return [json.loads(line) for line in out.getvalue().splitlines()], bounds


def test_lines_are_the_facts_and_the_process_bounds_itself(monkeypatch, path):
    lines, bounds = written(monkeypatch, path)
    assert lines == [json.loads(json.dumps(one)) for one in facts(path, ["one"], Limits())]
    none = resource.RLIM_INFINITY
    assert bounds == {
        resource.RLIMIT_AS: (Limits().hdf5_memory, none),
        resource.RLIMIT_CPU: (50, 50),  # the system allows less than 60
        resource.RLIMIT_CORE: (0, none),
        resource.RLIMIT_FSIZE: (0, none),
        resource.RLIMIT_NOFILE: (64, none),
    }


def test_a_line_tells_the_error(monkeypatch, path, tmp_path):
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    lines, _ = written(monkeypatch, str(tmp_path / "bad.h5"))
    assert [[*line] for line in lines] == [["error"]] and "HDF5" in lines[0]["error"]
    monkeypatch.setattr("npucmp.dump.readers.hdf5_child.facts", lambda *given: (_ for _ in ()).throw(MemoryError))
    lines, _ = written(monkeypatch, path, hdf5_memory=1 << 20)
    assert "memory that HDF5 needs" in lines[0]["error"]
    monkeypatch.setitem(sys.modules, "h5py", None)
    lines, _ = written(monkeypatch, path)
    assert lines == [{"missing": "h5py"}]
