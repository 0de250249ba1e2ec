"""What every format and every encoding says of itself, so that adding one is one file and one name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from npucmp.dump import formats, readers
from npucmp.dump.formats import FORMATS, graph_source, module_of
from npucmp.dump.readers import READERS
from npucmp.errors import DumpError


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_what_the_package_asks(name):
    module = module_of(name)
    assert name == module.NAME and module.sniff.__doc__ and module.open_runs.__doc__


def test_a_format_says_which_graphs_know_its_operators():
    sources = {name: graph_source(name) for name in FORMATS}
    assert {name for name, source in sources.items() if source} == {"cann", "tfdbg", "npy"}
    assert {name for name, source in sources.items() if source and source.of_device} == {"cann"}
    assert {name for name, source in sources.items() if source and source.own} == {"tfdbg"}


@pytest.mark.parametrize("name", READERS)
def test_an_encoding_is_a_module_with_a_header(name):
    assert import_module(f"{readers.__name__}.{name}").header.__doc__


def test_every_module_of_the_formats_is_named():
    """One that is forgotten in FORMATS would never be met."""
    files = Path(formats.__file__).parent.glob("*.py")
    assert {file.stem for file in files} - {"__init__"} == set(FORMATS)


@pytest.mark.parametrize("name", ["dump.tar.gz", "dump.ZIP", "dump.tgz", "step0.tar"])
def test_an_archive_is_to_be_unpacked(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(DumpError, match="archive; unpack it") as caught:
            formats.open_runs(path)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_an_archive_beside_dumps_is_none_of_theirs(tmp_path):
    (tmp_path / "dump.zip").write_bytes(b"PK")
    (tmp_path / "npu").mkdir()
    np.save(tmp_path / "npu" / "a.npy", np.ones(2))
    assert [run.path for run in formats.open_runs(tmp_path)] == [str(tmp_path / "npu")]


def test_the_only_dump_below_a_path_is_meant_and_of_several_none(tmp_path):
    for name in ("logs", "config"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "dumps" / "npu").mkdir(parents=True)
    np.save(tmp_path / "run" / "dumps" / "npu" / "a.npy", np.ones(2))
    (run,), (head,) = formats.open_runs(tmp_path), formats.heads(tmp_path)
    assert run.path == head.path == str(tmp_path / "run" / "dumps" / "npu")
    assert formats.open_head(head) == run
    (tmp_path / "run" / "cpu").mkdir()
    np.save(tmp_path / "run" / "cpu" / "a.npy", np.ones(2))
    with pytest.raises(DumpError, match=r"in subfolders: pass .*cpu or .*npu"):
        formats.open_runs(tmp_path)


def test_where_not_all_could_be_looked_at_none_is_the_only_one(tmp_path):
    for number in range(formats.LOOKED_AT + 5):
        (tmp_path / f"d{number:04}").mkdir()
    np.save(tmp_path / "d0000" / "a.npy", np.ones(2))
    with pytest.raises(DumpError, match=r"in subfolders: pass .*d0000"):
        formats.open_runs(tmp_path)
