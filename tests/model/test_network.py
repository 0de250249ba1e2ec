"""Both parts of a comparison make the same comparison, and ranks with one network share what is in it."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npucmp
from npucmp.model import Comparison, Run
from npucmp.model.dump import FiguresAt, NeedsFigures
from npucmp.model.network import SearchRows, join_parts, split_table
from npucmp.model.table import Table
from tests.benchmarks.statistics_dumps import make
from tests.model.test_table import FINDINGS
from tests.synthetic import with_statistics, write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


def compared(name):
    (one,) = npucmp.compare(SAMPLES / name / "target", SAMPLES / name / "golden").comparisons
    return replace(one, findings=Table(columns=one.findings.columns), roots=())


def stored(one):
    return join_parts(*pickle.loads(pickle.dumps(split_table(one))))


@given(st.lists(FINDINGS, max_size=4))
def test_both_parts_hold_all(findings):
    operators = [one for finding in findings for one in (finding.pair.target_op, finding.pair.golden_op) if one]
    left_out = tuple(one.pair for one in findings[:1])
    whole = Comparison(
        Run("t", "npy", tuple(operators)), Run("g", "npy", tuple(operators)), Table(findings), (), {}, left_out=left_out
    )
    found = stored(whole)
    assert [*map(repr, found.findings)] == [*map(repr, findings)]
    assert repr(found.left_out) == repr(left_out)
    assert [*map(repr, found.target.operators)] == [*map(repr, found.golden.operators)] == [*map(repr, operators)]
    for shared, finding in zip(SearchRows(found.findings), findings):
        measurement = shared.measurement
        assert repr([measurement.tensor(side) for side in range(2)]) == repr([*finding.pair[4:6]])
        of_tensors = [one and one.statistics for one in finding.pair[4:6]]
        assert repr([measurement.recorded(side) for side in range(2)]) == repr(of_tensors)


@pytest.mark.parametrize("name", ["msprobe_extra_operator", "msprobe_backward", "npy_batch_norm", "cann_fused_conv"])
def test_operators_of_runs_are_those_of_the_rows(name):
    one = compared(name)
    found = stored(one)
    assert [*map(repr, found.findings)] == [*map(repr, one.findings)]  # NaN is not itself
    assert found.target == one.target and found.golden == one.golden
    operators = {id(operator) for operator in (*found.target.operators, *found.golden.operators)}
    assert {id(row.pair.target_op) for row in found.findings if row.pair.target_op} <= operators
    again = pickle.loads(pickle.dumps(found))
    assert repr([*again.findings]) == repr([*found.findings]) and again.golden == found.golden
    assert isinstance(again.target.operators, tuple)


def test_ranks_share_their_pairs_and_have_their_own_figures(tmp_path):
    make(tmp_path, ranks=2, layers=1)
    sides = tmp_path / "target", tmp_path / "golden"
    expected = [one.findings for one in npucmp.compare(*sides).comparisons]
    parts = [split_table(replace(one, roots=())) for one in npucmp.compare(*sides).comparisons]
    assert pickle.dumps(parts[0][0]) == pickle.dumps(parts[1][0])
    tables = [join_parts(parts[0][0], own).findings for _, own in parts]
    first, second = map(SearchRows, tables)
    assert len(first) > 100 and all(one.pair is other.pair for one, other in zip(first, second))
    for table, shared, rows in zip(tables, (first, second), expected):
        assert [*map(repr, table)] == [*map(repr, rows)]
        for one, whole in zip(shared, rows):
            assert repr(one[1:]) == repr(whole[1:]) and one.measurement[1:] == whole.measurement[1:]
            assert one.measurement.recorded(1) == whole.pair.golden.statistics
            assert one.measurement.tensor(0) == whole.pair.target
            assert isinstance(one.pair.golden.statistics, FiguresAt)


@pytest.mark.parametrize("ask", [bool, repr, list, len, lambda at: at == FiguresAt(3), lambda at: at.max])
def test_figures_of_a_rank_are_not_asked_for_in_a_network(ask):
    at = FiguresAt(3)
    with pytest.raises(NeedsFigures):
        ask(at)
    assert pickle.loads(pickle.dumps(at)).number == 3


def test_minima_of_a_rank_show_the_running_statistics_of_its_operators(tmp_path):
    """Two steps of a batch norm; before the second, the running mean of one run is another."""
    random = np.random.default_rng(1)
    x, weight, bias, mean = (random.standard_normal(size).astype(np.float32) for size in ((8, 16), 16, 16, 16))
    for side, factor in (("golden", 1.0), ("target", 1.5)):
        for step in range(2):
            now = mean * np.float32(factor if step else 1.0)
            read = [x + np.float32(step), now, now**2, weight, bias]
            write_run(
                tmp_path / side, {"Functional.batch_norm.0.forward": {"in": read, "out": [x * weight + bias]}}, step
            )
        with_statistics(tmp_path / side, alone=True)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert [(one.cause.value, one.slot) for one in report.roots] == [("GAP", "input:1")]
