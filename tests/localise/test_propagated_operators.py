"""Operators that columns show to propagate an error are recorded as a visit records them."""

from __future__ import annotations

import npucmp
from npucmp.localise.search import RootSearch
from tests.benchmarks.statistics_dumps import SIDES, Figures, step, write

LAYERS, RANKS = 2, 2


def test_propagate_records_what_a_visit_records(tmp_path, monkeypatch):
    counted = Figures(0, "golden", 1)
    list(step(LAYERS, counted))
    for side in SIDES:
        for rank in range(RANKS):
            write(tmp_path / side / "step0" / f"rank{rank}", LAYERS, Figures(rank, side, counted.made))
    dumps, passed = (tmp_path / "target", tmp_path / "golden"), []
    propagate = RootSearch.propagate
    monkeypatch.setattr(RootSearch, "propagate", lambda walk, at: propagate(walk, at) and not passed.append(at))
    columns = in_this_process(*dumps)
    monkeypatch.setattr(RootSearch, "propagate", lambda walk, at: False)
    visited = in_this_process(*dumps)
    assert len(passed) > 20
    assert columns.roots == visited.roots and len(columns.roots) > len(passed)
    for one, other in zip(columns.comparisons, visited.comparisons):
        assert [*map(repr, one.findings)] == [*map(repr, other.findings)]  # some errors are NaN
        assert (one.coverage, one.notes) == (other.coverage, other.notes)


def in_this_process(target, golden):
    return npucmp.compare(target, golden, executor=npucmp.measure.executor.Serial())
