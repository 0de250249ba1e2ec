"""Operators of which columns show that they read an error of unknown size are recorded as a visit records them."""

from __future__ import annotations

import npucmp
from npucmp.localise.search import RootSearch
from tests.benchmarks.statistics_dumps import make

LAYERS, STEPS, RANKS = 2, 2, 2  # in the second step, errors of parameters explain those of gradients


def test_columns_record_what_a_visit_records(tmp_path, monkeypatch):
    make(tmp_path, RANKS, LAYERS, STEPS)
    dumps, passed = (tmp_path / "target", tmp_path / "golden"), []
    explain = RootSearch.explain
    monkeypatch.setattr(
        RootSearch, "explain", lambda walk, at: explain(walk, at) and not passed.append(walk.any_tainted)
    )
    columns = in_this_process(*dumps)
    monkeypatch.setattr(RootSearch, "explain", lambda walk, at: False)
    visited = in_this_process(*dumps)
    assert passed.count(True) > 20 and passed.count(False) > 20
    assert columns.roots == visited.roots and len(columns.roots) > passed.count(True)
    for one, other in zip(columns.comparisons, visited.comparisons):
        assert [*map(repr, one.findings)] == [*map(repr, other.findings)]  # some errors are NaN
        assert (one.coverage, one.notes) == (other.coverage, other.notes)


def in_this_process(target, golden):
    return npucmp.compare(target, golden, executor=npucmp.measure.executor.Serial())
