"""Which placement of a tensor is chosen, and whether it agrees."""

from __future__ import annotations

from tests.align.rank_craft import numbers
from tests.align.rank_networks import (
    V,
    W,
    Y,
    call,
    layer,
    searched,
    shared,
    tensor_parallel,
)


def test_terms_that_cancel_agree_within_their_own_rounding(tmp_path):
    """The ranks' products are about 1000 times their sum."""
    wide = 1000 * numbers(4, 8, seed=40)
    parts = [Y / 2 + wide[:, :5], Y / 2 - wide[:, :5]]
    for error, state in ((0.5, "agrees"), (5.0, "differs")):
        noise = error * numbers(4, 5, seed=41)
        ranks = tensor_parallel()
        for one, part, more in zip(ranks, parts, (noise, 0 * noise)):
            one[2] = call("linear", one[2][1], [part + more], 1)
            one[3] = shared("all_reduce", part + more, Y)
        search = searched(tmp_path / state, ranks, layer(W, V, Y))
        assert search.found["Torch.linear.1.forward", "output:0"].state == state
