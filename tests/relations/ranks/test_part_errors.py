"""The error of each rank's own part, and the rank whose part stands out."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.model.relation import MAX, MEAN, SUM, WHOLE, Placement
from npucmp.relations import held_values
from npucmp.relations.ranks.part_errors import part_errors
from npucmp.relations.ranks.placement import Fit
from npucmp.relations.ranks.placement_choice import Decision
from tests.align.rank_networks import X, call, recorded, searched

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
        monkeypatch.setattr(held_values, "WHOLE", 6)
        search.golden.operators[0].values._held.clear()
    (operator,) = search.golden.operators
    mesh = search.partners.mesh(operator)
    decision = Decision("differs", Fit(0.5, (one, WHOLE), scale))
    found = part_errors(search, mesh, operator.inputs[0], decision)
    assert found == pytest.approx(errors, abs=1e-6)
    assert part_errors(search, mesh, operator.inputs[0], decision) is found  # computed once
    other = part_errors(search, mesh, operator.inputs[0], decision._replace(fit=Fit(0.5, (SUM, WHOLE))))
    assert other == {}


@pytest.mark.parametrize("is_large", [False, True])
def test_the_error_of_a_part_is_absolute_where_the_golden_is_zero(tmp_path, monkeypatch, is_large):
    golden = np.concatenate([0 * UPPER, LOWER])
    wrong = np.float32([[3, 4, 0, 0, 0, 0], [0] * 6])
    search = searched(
        tmp_path, [[call("sin", [one], [])] for one in (2 * wrong, 2 * LOWER)], [call("sin", [golden], [])]
    )
    if is_large:
        monkeypatch.setattr(held_values, "WHOLE", 6)
        search.golden.operators[0].values._held.clear()
    (operator,) = search.golden.operators
    found = part_errors(search, search.partners.mesh(operator), operator.inputs[0],
                        Decision("differs", Fit(1.0, (ROWS, WHOLE), 2.0)))  # fmt: skip
    assert found == pytest.approx({0: 5.0, 1: 0.0})


def test_a_part_without_values_has_the_error_of_its_statistics(tmp_path):
    assert errors_of(tmp_path, [X, recorded(X)], X, (WHOLE, WHOLE)) == {}
    assert errors_of(tmp_path / "2", [recorded(X), recorded(X)], recorded(X), (WHOLE, WHOLE)) == {0: 0.0, 1: 0.0}
