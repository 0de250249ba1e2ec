"""The error of each rank's own part, and the rank whose part stands out."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import rank_run
from npucmp.align.part_errors import odd_rank, part_errors, rank_beyond
from npucmp.align.placement import Fit
from npucmp.align.placement_choice import Decision
from npucmp.model import Statistics
from npucmp.model.relation import MAX, MEAN, SUM, WHOLE, Placement
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers
from tests.align.rank_networks import X, batch, call, recorded, searched

UPPER, LOWER = X[:2], X[2:]
ROWS, COLUMNS = Placement("shard", 0), Placement("shard", 1)


def errors_of(tmp_path, parts, golden, placements, scale=1.0, rows=None, values=True):
    search = searched(tmp_path, [[call("sin", [one], [])] for one in parts], [call("sin", [golden], [])], values)
    (operator,) = search.golden.operators
    decision = Decision("differs", Fit(0.5, placements, scale), rows=rows)
    return part_errors(search, search.partners.mesh(operator), operator.inputs[0], decision)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    "parts, one, scale, errors",
    [
        ([UPPER, LOWER], ROWS, 1.0, {0: 0.0, 1: 0.0}),
        ([UPPER, 1.01 * LOWER], ROWS, 1.0, {0: 0.0, 1: 0.01}),
        ([2 * UPPER, 2.02 * LOWER], ROWS, 2.0, {0: 0.0, 1: 0.01}),
        ([X[:, :3], 1.5 * X[:, 3:]], COLUMNS, 1.0, {0: 0.0, 1: 0.5}),
        ([0.9 * X, X], WHOLE, 1.0, {0: 0.1, 1: 0.0}),
        ([X, X], SUM, 1.0, {}),
        ([X, X], MEAN, 1.0, {}),
        ([X, X], MAX, 1.0, {}),
        ([X, X], ROWS, 1.0, {}),  # parts of another shape
    ],
)
def test_the_error_of_each_part(tmp_path, monkeypatch, parts, one, scale, errors, is_large):
    """Large tensors are read block by block."""
    parts = [np.float32(each) for each in parts]
    search = searched(tmp_path, [[call("sin", [each], [])] for each in parts], [call("sin", [X], [])])
    if is_large:
        monkeypatch.setattr(rank_run, "WHOLE", 6)
        search.golden.operators[0].values._held.clear()
    (operator,) = search.golden.operators
    mesh = search.partners.mesh(operator)
    decision = Decision("differs", Fit(0.5, (one, WHOLE), scale))
    found = part_errors(search, mesh, operator.inputs[0], decision)
    assert found == pytest.approx(errors, abs=1e-6)
    assert part_errors(search, mesh, operator.inputs[0], decision) is found  # computed once
    other = part_errors(search, mesh, operator.inputs[0], decision._replace(fit=Fit(0.5, (SUM, WHOLE))))
    assert other == {}


def test_a_tensor_without_a_placement_or_of_other_rows_has_no_errors(tmp_path):
    assert errors_of(tmp_path / "rows", [X, X], X, (WHOLE, WHOLE), rows=3) == {}
    search = searched(tmp_path / "none", [[call("sin", [X], [])]] * 2, [call("sin", [X], [])])
    (operator,) = search.golden.operators
    assert part_errors(search, search.partners.mesh(operator), operator.inputs[0], Decision("shape")) == {}


@pytest.mark.parametrize("is_large", [False, True])
def test_the_error_of_a_part_is_absolute_where_the_golden_is_zero(tmp_path, monkeypatch, is_large):
    golden = np.concatenate([0 * UPPER, LOWER])
    wrong = np.float32([[3, 4, 0, 0, 0, 0], [0] * 6])
    search = searched(
        tmp_path, [[call("sin", [one], [])] for one in (2 * wrong, 2 * LOWER)], [call("sin", [golden], [])]
    )
    if is_large:
        monkeypatch.setattr(rank_run, "WHOLE", 6)
        search.golden.operators[0].values._held.clear()
    (operator,) = search.golden.operators
    found = part_errors(search, search.partners.mesh(operator), operator.inputs[0],
                        Decision("differs", Fit(1.0, (ROWS, WHOLE), 2.0)))  # fmt: skip
    assert found == pytest.approx({0: 5.0, 1: 0.0})


def test_the_largest_error_of_the_micro_batches_of_a_rank_counts(tmp_path):
    ranks = [[*batch(np.s_[:2]), *batch(np.s_[2:], 1)]]
    for at, factor in ((0, 1.5), (4, 1.25)):
        name, (x, w), outputs = ranks[0][at]
        ranks[0][at] = name, [np.float32(x * factor), w], outputs
    search = searched(tmp_path, ranks, batch(np.s_[:]))
    first = search.golden.operators[0]
    decision = Decision("differs", Fit(0.5, (ROWS,)))
    assert part_errors(search, search.partners.mesh(first), first.inputs[0], decision) == pytest.approx({0: 0.5})


@pytest.mark.parametrize("placements, errors", [((WHOLE, WHOLE), {0: 0.0, 1: 0.25}), ((ROWS, WHOLE), {})])
def test_statistics_show_the_errors_of_copies_alone(tmp_path, placements, errors):
    """The largest value of the second copy is larger by a quarter of itself."""
    known = (4.0, -4.0, 1.0, 8.0)
    parts = [Recorded(Statistics(*known), (2, 2)), Recorded(Statistics(5.0, *known[1:]), (2, 2))]
    golden = Recorded(Statistics(*known), (2, 2))
    assert errors_of(tmp_path, parts, golden, placements, values=False) == pytest.approx(errors)


def test_a_part_without_values_has_the_error_of_its_statistics(tmp_path):
    assert errors_of(tmp_path, [X, recorded(X)], X, (WHOLE, WHOLE)) == {}
    assert errors_of(tmp_path / "2", [recorded(X), recorded(X)], recorded(X), (WHOLE, WHOLE)) == {0: 0.0, 1: 0.0}


# The rank that stands out


@pytest.mark.parametrize(
    "errors, odd",
    [
        ({}, None),
        ({0: 1.0}, None),
        ({0: 1.0, 1: 0.0}, 0),
        ({0: 0.0, 1: 0.0}, None),
        ({0: 0.1, 1: 0.81, 2: 0.05}, 1),
        ({0: 0.1, 1: 0.79, 2: 0.05}, None),
        ({0: 1.0, 1: 8.0}, None),
        ({3: 0.0, 2: 0.1, 1: 0.0}, 2),
        ({0: 1.0, 1: 1.0, 2: 0.0}, None),
    ],
)
def test_the_rank_whose_part_errs_eight_times_more_than_all_others(errors, odd):
    assert odd_rank(errors) == odd


KNOWN = (4.0, -2.0, 0.5, 8.0)  # largest, smallest, mean, norm


def beyond(tmp_path, parts, placements=(ROWS, WHOLE), scale=1.0, dtype="float32", golden=KNOWN):
    shapes = [(2, 2) if one.is_split else (4, 2) for one in placements[:1]]
    ranks = [[call("sin", [one if isinstance(one, np.ndarray) else Recorded(Statistics(*one), shapes[0], dtype)], [])]
             for one in parts]  # fmt: skip
    whole = golden if isinstance(golden, np.ndarray) else Recorded(Statistics(*golden), (4, 2), dtype)
    search = searched(tmp_path, ranks, [call("sin", [whole], [])], values=False)
    (operator,) = search.golden.operators
    fit = Fit(0.5, placements, scale) if placements[0] != "none" else None
    return rank_beyond(search, search.partners.mesh(operator), operator.inputs[0], Decision("differs", fit))


FINE = (4.0, -2.0, 0.0, 5.0)


@pytest.mark.parametrize(
    "other, rank",
    [
        (FINE, None),
        ((4.007, -2.007, 9.0, 8.015), None),  # within 0.2 % of the larger end, and of the norm
        ((4.009, -2.0, 0.0, 5.0), 1),
        ((4.0, -2.009, 0.0, 5.0), 1),
        ((4.0, -2.0, 0.0, 8.017), 1),
        ((1.0, 1.0, 0.0, None), None),
        ((5.0, 1.0, 0.0, None), 1),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_part_whose_statistics_exceed_those_of_the_whole(tmp_path, other, rank, scale):
    parts = [tuple(None if value is None else value * scale for value in one) for one in (FINE, other)]
    assert beyond(tmp_path, parts, scale=scale) == rank


def test_the_room_of_16_bits_is_wider(tmp_path):
    for size, rank in ((4.11, None), (4.13, 1)):  # 3 % of 4
        assert beyond(tmp_path / str(size), [FINE, (size, -2.0, 0.0, 5.0)], dtype="bfloat16") == rank


def test_one_rank_alone_may_hold_more_than_the_whole(tmp_path):
    wrong = (9.0, -2.0, 0.0, 5.0)
    assert beyond(tmp_path / "both", [wrong, wrong]) is None
    assert beyond(tmp_path / "copies", [FINE, wrong], (WHOLE, WHOLE)) is None  # no shard
    assert beyond(tmp_path / "sum", [FINE, wrong], (SUM, ROWS)) is None
    assert beyond(tmp_path / "first", [wrong, FINE]) == 0


def test_values_and_missing_statistics_show_no_rank(tmp_path):
    wrong = (9.0, -2.0, 0.0, 5.0)
    assert beyond(tmp_path / "values", [FINE, wrong], golden=numbers(4, 2)) is None
    assert beyond(tmp_path / "unknown", [FINE, wrong], golden=(None, -2.0, 0.5, 8.0)) is None
    assert beyond(tmp_path / "norm", [FINE, (4.0, -2.0, 0.0, 99.0)], golden=(4.0, -2.0, 0.5, None)) is None
