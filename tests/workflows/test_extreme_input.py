"""Names that no file can have, and errors at the lower end of float64: each costs one row, not the report."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as command
from npucmp.errors import NpucmpError
from tests.synthetic import chain, write_run


def table(folder, name):
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def compare(tmp_path, *options):
    paths = [str(tmp_path / side) for side in ("target", "golden")]
    found = CliRunner().invoke(command, ["compare", *paths, "-o", str(tmp_path / "out"), "--jobs", "1", *options])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def change_first(folder, key, value):
    """Gives the first tensor of a dump another entry."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        next(iter(dump["data"].values()))["input_args"][0][key] = value
        file.write_text(json.dumps(dump))


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_lone_surrogate_in_the_name_of_the_first_file_costs_one_row(tmp_path, side):
    for one in ("target", "golden"):
        write_run(tmp_path / one, chain())
    change_first(tmp_path / side, "data_name", "a\ud800.npy")
    found = compare(tmp_path)
    assert found.exit_code == 2
    rows = table(tmp_path / "out", "tensors.csv")
    assert [row["verdict"] for row in rows].count("unreadable") == 1
    assert {row["verdict"] for row in rows} == {"unreadable", "match"}
    assert rows[0][f"{side}_tensor"] == "a\\ud800.npy"


TINY = {
    "subnormal numbers": (0.0, 5e-324),
    "subnormal errors": (1e-300, 1e-310),
    "a subnormal range": (4e-310, 1e-311),
}


@pytest.mark.parametrize("least, unit", TINY.values(), ids=[*TINY])
def test_errors_below_the_normal_numbers_have_one_row_and_worst_elements(tmp_path, least, unit):
    y = np.full((4, 8), least)
    x = y + unit * np.arange(32).reshape(4, 8)
    ones = np.ones((4, 8))
    for side, output in (("target", x), ("golden", y)):
        write_run(tmp_path / side, {"Torch.log.0.forward": {"in": [ones], "out": [output]}})
    assert compare(tmp_path).exit_code == 1
    (row,) = [row for row in table(tmp_path / "out", "tensors.csv") if row["slot"] == "output:0"]
    assert row["verdict"] == "diverged"
    assert float(row["max_abs_err"]) == np.abs(x - y).max()
    first = table(tmp_path / "out", "worst.csv")[0]
    assert (first["at"], float(first["target"])) == ("[3, 7]", x[3, 7])


def write_statistics(folder, names):
    """A dump with the figures of one tensor that each operator reads and one that it writes."""
    figures = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 8], "requires_grad": False}
    figures.update(Max=1.0, Min=-1.0, Mean=0.25, Norm=3.0)
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    records = {name: {"input_args": [figures], "input_kwargs": {}, "output": [figures]} for name in names}
    dump = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": records}
    (place / "dump.json").write_text(json.dumps(dump))
    return folder


@pytest.mark.large
def test_more_operators_without_a_common_name_than_one_matrix_holds_are_refused_in_one_line(tmp_path):
    for side, api in (("target", "add"), ("golden", "mul")):
        write_statistics(tmp_path / side, [f"Torch.{api}.{i}.forward" for i in range(4200)])
    with pytest.raises(NpucmpError) as refused:
        npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    assert "\n" not in str(refused.value)
    assert "of 4200 and 4200 operators, 0 match" in str(refused.value)
