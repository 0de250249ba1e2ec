"""Ids of experts whose order within a token is free, and what counts places in them."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run

IDS = np.array([[3, 1], [0, 2], [2, 3], [1, 0]])
GATES = np.array([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2], [0.55, 0.45]], np.float32)


def routed(folder, exchanged, shifted=False):
    """A top-k, the tokens of expert 3 by `where`, and the output of the experts."""
    ids, gates = IDS.copy(), GATES.copy()
    for token in exchanged:
        ids[token], gates[token] = ids[token, ::-1], gates[token, ::-1]
    rows, columns = np.nonzero(ids == 3)
    columns = np.ones_like(columns) if shifted else columns
    scores, out = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4), np.linspace(1, 2, 12, dtype=np.float32)
    return write_run(folder, {
        "Torch.topk.0.forward": {"in": [scores, 2], "out": [gates, ids]},
        "Torch.where.0.forward": {"in": [ids == 3], "out": [rows, columns]},
        "Functional.experts.0.forward": {"in": [scores, ids, gates], "out": [out.reshape(4, 3)]},
    }, framework="pytorch")  # fmt: skip


@pytest.mark.parametrize("exchanged, shifted, first", [
    ((0, 2), False, None),
    ((1, 3), False, None),
    ((0, 2), True, "Torch.where.0.forward"),  # no places of this mask
])  # fmt: skip
def test_places_in_a_row_of_free_order(tmp_path, exchanged, shifted, first):
    target, golden = routed(tmp_path / "target", exchanged, shifted), routed(tmp_path / "golden", ())
    report = npucmp.compare(target, golden)
    assert [root.pair.operator.name for root in report.roots][:1] == ([first] if first else [])
