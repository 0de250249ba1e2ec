"""NPZ files: numpy's own, whose every array is a tensor."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from npucmp import compare, open_runs
from npucmp.dump.formats import npz
from tests.contracts import FormatContract
from tests.dump.formats.test_safetensors import arrays_of


def write_npz(folder: Path, wrong=False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "acts.npz", **arrays_of(wrong))
    return folder


class TestNpz(FormatContract):
    module = npz

    def write(self, folder):
        return write_npz(folder / "d")


def test_values_come_back(tmp_path):
    """Another kind of file holds the same: what differs would be told."""
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "c": np.int8(3)}
    (tmp_path / "npy").mkdir()
    for name, values in arrays.items():
        np.save(tmp_path / "npy" / name, values)
    np.savez(tmp_path / "x.npz", **arrays)
    assert compare(tmp_path / "x.npz", tmp_path / "npy").exit_status == 0
    np.savez(tmp_path / "x.npz", **{**arrays, "b": arrays["b"] + 1})
    (finding,) = (one for one in compare(tmp_path / "x.npz", tmp_path / "npy").roots)
    assert finding.pair.operator.name == "b"


def test_every_prefix_is_an_unreadable_tensor(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3, np.float32), b=np.ones(2))
    data = (tmp_path / "x.npz").read_bytes()
    for size in range(0, len(data), 5):
        (tmp_path / "x.npz").write_bytes(data[:size])
        (run,) = npz.open_runs(tmp_path)
        assert run.operators[0].tensors[0].problem, size


def test_a_compressed_file_is_told_what_to_do(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1000))
    (run,) = open_runs(tmp_path)
    assert "numpy.savez" in run.operators[0].tensors[0].problem


def test_what_is_no_array_costs_its_row(tmp_path):
    good = io.BytesIO()
    np.save(good, np.ones(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", good.getvalue())
        archive.writestr("b.txt", "words")
        archive.writestr("c.npy", good.getvalue()[:-1])
        archive.writestr("d.npy", good.getvalue() + b"\0")
        archive.writestr("e.npy", b"\x93NUMPY\x01\x00\xff\xff{")
        archive.writestr("../../f.npy", good.getvalue())
    (run,) = open_runs(tmp_path)
    problems = {operator.tensors[0].label: bool(operator.tensors[0].problem) for operator in run.operators}
    assert problems == {"a": False, "b.txt": True, "c": True, "d": True, "e": True, "../../f": False}


def test_sizes_of_a_local_header_that_differ_are_refused(tmp_path):
    """numpy writes them as zip64, beside the sizes that the directory tells."""
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[18:26] = b"\xff" * 8  # as newer zipfile writes them; older ones leave the sizes here, too
    data[30 + 5 + 4] ^= 1  # the uncompressed size in the extra field
    (tmp_path / "x.npz").write_bytes(data)
    (run,) = open_runs(tmp_path)
    assert "differs from the directory" in run.operators[0].tensors[0].problem


@pytest.mark.parametrize("name", ["9" * 300, "a.output." + "9" * 300, "²", "a b;ü", "a\nb"])
def test_odd_names(tmp_path, name):
    np.savez(tmp_path / "x.npz", **{name: np.ones(3), "b": np.ones(3)})
    assert len(open_runs(tmp_path)[0].operators) == 2
