"""The last columns of tensors.csv: which tensor of the golden a row holds, and the columns that are reserved."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from tests.synthetic import write_run

ADDED = ["golden_slot", "relation", "match_reason", "estimator"]
ADD = "Functional.add.0.forward"


@pytest.fixture
def crosswise(tmp_path):
    """A sum whose operands the golden has in the other order, and the mapping that says so."""
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    write_run(tmp_path / "target", {ADD: {"in": [x, y], "out": [x + y]}})
    write_run(tmp_path / "golden", {ADD: {"in": [y, x], "out": [y + x]}})
    names = {f"{ADD}.input.{a}": f"{ADD}.input.{b}" for a, b in ((0, 1), (1, 0))}
    (tmp_path / "mapping.yaml").write_text("".join(f"{a}: {b}\n" for a, b in names.items()))
    return tmp_path


def compared(folder, *words):
    return CliRunner().invoke(group, ["compare", str(folder / "target"), str(folder / "golden"), *map(str, words)])


def rows(file):
    with open(file, newline="", encoding="utf-8") as stream:
        return [*csv.DictReader(stream)]


def test_operands_in_the_other_order_name_the_slot_of_the_golden(crosswise):
    got = compared(crosswise, "--mapping", crosswise / "mapping.yaml", "-o", crosswise / "out")
    assert got.exit_code == 0, got.output
    found = rows(crosswise / "out" / "tensors.csv")
    assert [*found[0]][-4:] == ADDED
    slots = {row["slot"]: row["golden_slot"] for row in found}
    assert slots == {"input:0": "input:1", "input:1": "input:0", "output:0": ""}
    assert all(row[name] == "" for row in found for name in ADDED[1:])
    frame = npucmp.compare(crosswise / "target", crosswise / "golden", mapping=crosswise / "mapping.yaml").to_pandas()
    assert {**zip_of(frame)} == {"input:0": "input:1", "input:1": "input:0", "output:0": None}


def zip_of(frame):
    return {slot: own if isinstance(own, str) else None for slot, own in zip(frame["slot"], frame["golden_slot"])}


def test_a_keyword_of_one_side_alone_is_named(crosswise):
    (file,) = (crosswise / "golden").rglob("dump.json")
    top = json.loads(file.read_text())
    record = top["data"][ADD]
    first, second = reversed(record["input_args"])  # in the order of the target
    record.update(input_args=[first], input_kwargs={"other": second})
    file.write_text(json.dumps(top))
    assert compared(crosswise, "-o", crosswise / "out").exit_code == 0
    slots = {row["slot"]: row["golden_slot"] for row in rows(crosswise / "out" / "tensors.csv")}
    assert slots == {"input:0": "", "input:1": "input:other", "output:0": ""}


def test_reports_with_these_columns_are_read_back(crosswise):
    for name in ("a", "b"):
        compared(crosswise, "--mapping", crosswise / "mapping.yaml", "-o", crosswise / name)
    got = CliRunner().invoke(group, ["diff", str(crosswise / "a"), str(crosswise / "b")])
    assert got.exit_code == 0 and got.output.splitlines()[-1].startswith("SAME"), got.output


def test_parquet_has_the_columns_as_text(crosswise):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    got = compared(crosswise, "--mapping", crosswise / "mapping.yaml", "-o", crosswise / "out", "--parquet")
    assert got.exit_code == 0, got.output
    table = parquet.read_table(crosswise / "out" / "tensors.parquet")
    assert table.column_names[-4:] == ADDED
    assert [str(table.schema.field(name).type) for name in ADDED] == ["string"] * 4
    assert sorted(table["golden_slot"].to_pylist(), key=str) == [None, "input:0", "input:1"]
