"""The last columns of tensors.csv: which tensor of the golden a row holds, and the columns that are reserved."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

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


def test_parquet_has_the_columns_as_text(crosswise):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    got = compared(crosswise, "--mapping", crosswise / "mapping.yaml", "-o", crosswise / "out", "--parquet")
    assert got.exit_code == 0, got.output
    table = parquet.read_table(crosswise / "out" / "tensors.parquet")
    assert table.column_names[-4:] == ADDED
    assert [str(table.schema.field(name).type) for name in ADDED] == ["string"] * 4
    assert sorted(table["golden_slot"].to_pylist(), key=str) == [None, "input:0", "input:1"]
