"""The row of the target in which each token of the golden stands, by request and position."""

from npucmp.relations.tokens.token_index import find_index
from tests.align.token_craft import bare_side, evidence

# ---- the order of batch and sequence ----


def test_an_order_of_axes_that_nothing_shows_is_ambiguous():
    """Every token of the golden is the only candidate of two rows, by either order."""
    shape = (3, 3)
    pairs = {(row, token): 8 for row in range(9) for token in range(9) if row in (token, token % 3 * 3 + token // 3)}
    found = find_index(bare_side(shape), bare_side(shape), evidence(pairs, range(9)))
    assert found.is_ambiguous and found.problem.startswith("batch and sequence can be exchanged")
