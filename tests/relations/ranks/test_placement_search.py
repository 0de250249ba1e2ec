"""How the ranks of small networks hold the tensors of a golden, as the walk over its operators decides."""

from __future__ import annotations

import numpy as np

from npucmp.relations.layout_sizes import parse_layout
from tests.align.rank_networks import (
    H,
    V,
    W,
    X,
    Y,
    Z,
    call,
    decisions,
    searched,
)

# Ranks that are missing


def test_gradients_that_replicas_exchange_need_the_missing_one(tmp_path):
    """Other tensors of the batch differ."""

    def calls(by):
        return [
            ("Module.fc.0.forward", [X, W], [Y]),
            call("sin", [X], [H * by]),
            call("sin", [Z], [H], phase="backward"),
            ("Module.fc.0.gradients", [], [W * by]),
            call("mul", [V * by], [V * 2 * by]),
        ]

    sizes = parse_layout("tp=2,dp=2")
    found = decisions(searched(tmp_path, [calls(1.5)] * 2, calls(1.0), sizes=sizes, missing=[2, 3]))
    assert found["fc.0 in 0"] == "whole whole" and found["sin.0 out 0"].startswith("differs")
    assert {found[one] for one in ("fc.0.gradients grad:0", "mul.0 in 0", "mul.0 out 0")} == {"unknown"}


# Numbers and places


def test_one_number_of_operators_with_other_arguments_is_local(tmp_path):
    golden = [("Torch.sum.0.forward", [X], [np.float32(3.3)], {"input:dim": 1})]
    for name, of_ranks, words in (("same", 1, "differs, whole whole"), ("other", 2, "local")):
        ranks = [[("Torch.sum.0.forward", [X], [np.float32(7.9)], {"input:dim": of_ranks})]] * 2
        assert decisions(searched(tmp_path / name, ranks, golden))["sum.0 out 0"] == words
    ranks = [[("Torch.sum.0.forward", [X], [Y + 9], {"input:dim": 2})]] * 2  # several numbers differ
    golden = [("Torch.sum.0.forward", [X], [Y], {"input:dim": 1})]
    assert decisions(searched(tmp_path / "several", ranks, golden))["sum.0 out 0"].startswith("differs")


def test_a_mask_of_each_rank_is_local_beside_a_part(tmp_path):
    """Masks of one shape that differ between ranks, of which each goes with a part of the other tensor."""
    masks = np.array([[True], [False], [True], [True]]), np.array([[False], [True], [True], [False]])
    ranks = [[call("sin", [X], [own]), call("mul", [own, mask], [own * mask])]
             for own, mask in zip((H[:, :4], H[:, 4:]), masks)]  # fmt: skip
    golden = [call("sin", [X], [H]), call("mul", [H, ~masks[0]], [H * ~masks[0]])]
    found = decisions(searched(tmp_path, ranks, golden))
    assert found["mul.0 in 0"] == "shard(1) whole" and found["mul.0 in 1"] == "local"
    whole = [[call("sin", [X], [H]), call("mul", [H, mask], [H * mask])] for mask in masks]
    found = decisions(searched(tmp_path / "whole", whole, golden))
    assert found["mul.0 in 1"].startswith("differs")
