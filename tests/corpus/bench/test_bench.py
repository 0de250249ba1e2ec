"""The public benchmark: one seed gives the same bytes, truths name operators of the dumps, the scorer runs alone."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

import npucmp
from tests.corpus.bench import score
from tests.corpus.bench.adapters import allclose, cosine
from tests.corpus.bench.dumps import make, write_case
from tests.corpus.bench.faults import OPERATOR_FAULTS
from tests.corpus.bench.pairs import GROUPS, case
from tests.corpus.bench.parallel_networks import BUGS
from tests.corpus.bench.training import HABITS

SEED = 11
PAIRS = (0, 1, 2, 3, 4)  # of all groups and kinds of data; 3 is clean


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("set")
    return out, {number: write_case(case(SEED, number), out / f"{number:04d}") for number in PAIRS}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_one_seed_gives_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        make(SEED, tmp_path / name, 3)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_the_pairs_have_all_groups_and_a_quarter_is_clean():
    assert {GROUPS[number % 10] for number in PAIRS} == {"operator", "parallel", "script", "frameworks"}
    assert len(BUGS) + len(HABITS) + len(OPERATOR_FAULTS) >= 50


def test_truths_name_operators_of_the_dumps(small):
    out, entries = small
    for number, entry in entries.items():
        sides = []
        for side in ("target", "golden"):
            names = set()
            for path in (out / f"{number:04d}" / side).rglob("dump.json"):
                names |= json.loads(path.read_text())["data"].keys()
            sides.append(names)
        assert entry["clean"] == (not entry["operators"])
        assert set(entry["operators"]) <= sides[0] | sides[1]
        if not entry["clean"]:
            assert all(side & set(entry["operators"]) for side in sides)


@pytest.mark.few(3)
@pytest.mark.parametrize("number", PAIRS)
def test_npucmp_reads_a_pair_of_each_group(small, number):
    out, entries = small
    report = npucmp.compare(out / f"{number:04d}" / "target", out / f"{number:04d}" / "golden", jobs=1)
    assert report.tally.tensors > 20
    if entries[number]["clean"]:
        assert not report.roots


def test_plain_rules_read_values(small):
    out, entries = small
    number = next(n for n in PAIRS if entries[n]["data"] == "values" and entries[n]["group"] == "operator")
    assert allclose.accuse(out / f"{number:04d}/target", out / f"{number:04d}/golden")
    assert not cosine.accuse(out / f"{number:04d}/golden", out / f"{number:04d}/golden")


MANIFEST = {
    "pairs": [
        {"pair": "0", "clean": False, "operators": ["b"], "step": 1, "data": "values", "group": "script"},
        {"pair": "1", "clean": True, "operators": [], "step": None, "data": "md5", "group": "operator"},
    ]
}


@pytest.mark.parametrize(
    ("pair", "rows", "expected"),
    [
        ("0", [("1", "b", "1")], "right"),
        ("0", [("1", "b", "")], "right"),
        ("0", [("1", "b", "0")], "elsewhere"),
        ("0", [("2", "b", "1"), ("1", "a", "1")], "near"),
        ("0", [("1", "a", ""), ("2", "c", ""), ("3", "d", ""), ("4", "b", "")], "elsewhere"),
        ("0", [("0", "", "")], "missed"),
        ("1", [("0", "", "")], "silent"),
        ("1", [("1", "b", "")], "alarm"),
    ],
)
def test_grades(pair, rows, expected):
    entry = next(one for one in MANIFEST["pairs"] if one["pair"] == pair)
    found = [dict(zip(("place", "operator", "step"), row), pair=pair, seconds="1.5", memory_mb="70") for row in rows]
    assert score.grade(entry, found) == (pair, expected, 1.5, 70.0, False)


def test_the_scorer_runs_alone(tmp_path):
    tmp_path.joinpath("manifest.json").write_text(json.dumps(MANIFEST))
    with tmp_path.joinpath("tool.csv").open("w", newline="") as file:
        csv.writer(file).writerows([score.COLUMNS[:5], ("0", 1, "b", 0.5, 60), ("1", 1, "x", 1.5, 80)])
    command = [sys.executable, "-I", "-S", score.__file__, "manifest.json", "tool.csv"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "| tool | 1 | 100.0 % | 100.0 % | 0.0 % | 0.0 % | 1 | 1 | 0 | 1.00 | 70 |" in said
