"""Relations that the user states in a mapping: measured, said, and not doubted."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npucmp
from npucmp.errors import UsageError
from npucmp.relations.stated_view import parse_view
from tests.test_extensions import install

SAMPLES = Path(__file__).parents[2] / "sample_dumps" / "msprobe_tokens"
IMAGE = np.random.default_rng(0).standard_normal((2, 5, 6, 3)).astype("f4")
ROWS = np.random.default_rng(1).standard_normal((7, 16)).astype("f4")
TURN = np.linalg.qr(np.random.default_rng(2).standard_normal((16, 16)))[0].astype("f4")
VIEWS = {  # view → tensors of target and golden
    "permute(0,3,1,2)": (np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)), IMAGE),
    "matmul(right, Q.npy)": (ROWS, ROWS @ TURN),
    "matmul(left, Q.npy)": (ROWS.T.copy(), TURN @ ROWS.T),
    "scale(2)": (2 * ROWS, ROWS),
    "slice(axis 1, 4-7)": (ROWS, ROWS[:, 4:8]),
    "reshape(7,4,4)": (ROWS, ROWS.reshape(7, 4, 4)),
    "scale(2) · permute(1,0) · slice(axis 0, 0-3)": (2 * ROWS, ROWS.T[:4].copy()),
    "reshape(7,4,4) · permute(1,0,2)": (ROWS, ROWS.reshape(7, 4, 4).transpose(1, 0, 2).copy()),
}


def compared(folder, target, golden, relations, more=""):
    """The report of two dumps of one tensor each, and the row of the tensor."""
    for side, values in (("target", target), ("golden", golden)):
        (folder / side).mkdir()
        np.save(folder / side / "block.npy", values)
    np.save(folder / "Q.npy", TURN)
    lines = [f'  "{pattern}": "{view}"\n' for pattern, view in relations.items()]
    (folder / "mapping.yaml").write_text("relations:\n" + "".join(lines) + more, "utf-8")
    report = npucmp.compare(folder / "target", folder / "golden", mapping=folder / "mapping.yaml")
    npucmp.write_reports(report, folder / "out")
    with (folder / "out" / "tensors.csv").open(encoding="utf-8", newline="") as file:
        return report, next(iter(csv.DictReader(file)))


@pytest.mark.parametrize("view", VIEWS)
def test_a_stated_view_is_measured_and_said(tmp_path, view):
    report, row = compared(tmp_path, *VIEWS[view], {"block*": view})
    assert report.exit_status == 0 and row["verdict"] == "match" and row["relation"] == view
    assert "in the relation that the user stated: 1 tensor" in report.notes


def test_values_that_contradict_a_statement_are_told(tmp_path):
    report, row = compared(tmp_path, ROWS, ROWS, {"block output:0": "scale(2)"})
    assert report.exit_status == 1 and row["relation"] == "scale(2)"
    assert any("all of them differ: values contradict it" in note for note in report.notes)


def test_a_view_that_does_not_fit_costs_one_row(tmp_path):
    report, row = compared(tmp_path, ROWS, ROWS, {"block*": "permute(0,2,1)"})
    assert report.exit_status == 2 and row["verdict"] == "unreadable"
    assert "permute(0,2,1) of a tensor of 2 axes" in row["because"]


def test_a_pattern_without_a_tensor_is_told(tmp_path):
    report, _ = compared(tmp_path, ROWS, ROWS, {"other*": "scale(2)"})
    assert report.exit_status == 0
    assert "relations in --mapping match no tensor of the target: other*" in report.notes


@pytest.mark.parametrize("text", ["turn(1)", "permute(1,x)", "slice(1-2)", "scale(0)", "scale", "concat[0]",
                                  "matmul(left)", "concat(ranks 0-1, axis 1) · permute(1,0)"])  # fmt: skip
def test_an_unknown_view_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match=r"mapping\.yaml: relation of 'block\*'"):
        compared(tmp_path, ROWS, ROWS, {"block*": text})


def test_a_file_beside_the_mapping_alone_is_read(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    np.save(outside / "Q.npy", TURN)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "away").symlink_to(outside)
    _, row = compared(inner, *VIEWS["matmul(right, Q.npy)"], {"block*": "matmul(right, away/Q.npy)"})
    assert row["verdict"] == "unreadable"


@pytest.mark.parametrize("name", ["../Q.npy", "{folder}/Q.npy"])
def test_a_file_in_another_folder_is_not_read(tmp_path, name):
    np.save(tmp_path / "Q.npy", TURN)
    (tmp_path / "inner").mkdir()
    view = f"matmul(right, {name.format(folder=tmp_path)})"
    _, row = compared(tmp_path / "inner", *VIEWS["matmul(right, Q.npy)"], {"block*": view})
    assert row["verdict"] == "unreadable" and "not in the folder of the mapping" in row["because"]


def test_ranks_that_are_not_put_together_are_told(tmp_path):
    report, _ = compared(tmp_path, ROWS, ROWS, {"block*": "concat(ranks 0-3, axis 1)"})
    assert report.exit_status == 0
    assert "relations in --mapping join ranks that are not put together: block*" in report.notes


@pytest.mark.parametrize("relations", [{"block*": 3}, {3: "scale(2)"}, "scale(2)"])
def test_relations_of_python_are_checked(tmp_path, relations):
    with pytest.raises(UsageError, match="mapping: relations is a table"):
        npucmp.compare({"block": ROWS}, {"block": ROWS}, mapping={"relations": relations})


def test_rows_of_tokens_of_a_computed_view_are_a_row_with_its_reason(tmp_path):
    view = {"relations": {"Module.model.layers.1.mlp.down_proj*output:0": "scale(3)"}}
    report = npucmp.compare(SAMPLES / "target", SAMPLES / "golden", mapping=view)
    found = [one for one in report.comparisons[0].findings if "down_proj" in one.pair.operator.name]
    assert any("a computed view" in one.because for one in found)


def test_a_function_of_the_user_makes_the_view(tmp_path, monkeypatch):
    code = "import numpy as np\ndef rolled(values, text):\n    return np.roll(values, int(text), 0)\n"
    site = install(tmp_path / "site", "rolling", {"npucmp.views": {"rolled": "rolling:rolled"}}, code)
    monkeypatch.syspath_prepend(str(site))
    report, row = compared(tmp_path, np.roll(ROWS, -2, 0), ROWS, {"block*": "rolled(2)"})
    assert report.exit_status == 0 and row["relation"] == "rolled(2)"


def test_a_function_that_fails_costs_one_row(tmp_path, monkeypatch):
    code = "def broken(values, text):\n    raise ValueError(text)\n"
    site = install(tmp_path / "site", "breaking", {"npucmp.views": {"broken": "breaking:broken"}}, code)
    monkeypatch.syspath_prepend(str(site))
    _, row = compared(tmp_path, ROWS, ROWS, {"block*": "broken(2)"})
    assert row["verdict"] == "unreadable" and "ValueError" in row["because"]


AXES = st.permutations(range(4)).map(lambda axes: f"permute({','.join(map(str, axes))})")
RANKS = st.sampled_from(["ranks 0-3", "ranks 0,2", "ranks 1"])
PLACED = st.builds(lambda ranks, axis: f"concat({ranks}, axis {axis})", RANKS, st.integers(0, 3))
SPLIT = st.builds(lambda kind, dim, ranks: f"{kind}({dim}, in 2 blocks, {ranks})",
                  st.sampled_from(["shard", "grouped", "zigzag"]), st.integers(0, 3), RANKS)  # fmt: skip
SUMMED = st.builds(lambda kind, ranks: f"{kind}({ranks})", st.sampled_from(["sum", "mean", "max", "replica"]), RANKS)
TOKENS = st.just("tokens(18 of 3 requests, 5 steps)")


@given(st.lists(st.one_of(AXES, PLACED, SPLIT, SUMMED, TOKENS), min_size=1, max_size=3))
def test_a_printed_view_is_read_back_unchanged(steps):
    words = " · ".join(sorted(steps, key=lambda step: "ranks" in step))
    assert parse_view(words).words == words
