"""The masks and the lengths of requests that a run recorded among its inputs."""

import numpy as np
import pytest

from npucmp.align.rank_run import Values
from npucmp.align.token_axes import TokenShape
from npucmp.align.token_evidence import TokenEvidence
from npucmp.align.token_index import find_index
from npucmp.align.token_lengths import Recorded, recorded_lengths
from npucmp.align.token_padding import Padding, beside_tokens, end_class, likely_padding, may_be_padding, padding_of
from npucmp.align.token_tensors import TensorPair, TokenSide
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, Run, TensorRef

BATCH, PACKED = (3, 4), (1, 12)  # of tokens
LEFT = np.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
LOW = -65504.0
LANE = np.zeros(64, int)  # all rows stand in one lane


def causal(real, lowest=LOW):
    """An additive mask of (batch, 1, sequence, sequence) in which a token sees itself and those before it."""
    sees = np.tril(np.ones((4, 4), bool)) & (real != 0)[:, None, :]
    return np.where(sees, 0.0, lowest)[:, None].astype(np.float32)


def recorded(folder, shape, *tensors, is_turned=False):
    refs = []
    for number, (label, values) in enumerate(tensors):
        values, file = np.asarray(values), str(folder / f"{number}.npy")
        np.save(file, values)
        refs.append(TensorRef(f"input:{number}", values.dtype.name, values.shape, file, "npy", label=label))
    run = Run("dump", "msprobe", (Operator("embedding.0", "embedding", "embedding", "forward", 0, tuple(refs)),))
    return recorded_lengths(TokenSide((run,), (TokenShape(shape, is_turned),), Values(ANYWHERE)))


@pytest.mark.parametrize(
    "values, real",
    [
        (LEFT, LEFT),
        (LEFT.astype(bool), LEFT),
        (LEFT[:, ::-1], LEFT[:, ::-1]),
        (causal(LEFT), LEFT),
        (causal(LEFT, -1.0), LEFT),
        (causal(LEFT, -0.5), np.ones((3, 4))),  # a bias
        (causal(LEFT)[:, :, -1:], LEFT),
        (LEFT[:, None, None], LEFT),  # integers: 1 is a token
        (LEFT[:, None, None] * np.tril(np.ones((4, 4), int)), LEFT),
        (LEFT[:, None, None].astype(np.float32), np.ones((3, 4))),  # floats are additive
        (~np.tril(np.ones((3, 1, 4, 4), bool)), np.ones((3, 4))),  # truth values that are true where masked
        (np.array([[0, 1, 0, 1], [1] * 4, [1] * 4]), None),  # holes
        (np.array([[0, 1, 1, 0], [1] * 4, [1] * 4]), None),  # padding at both ends
        (np.array([[1, 0, 1, 0], [1] * 4, [1] * 4]), None),
        (np.array([[1, 0, 0, 1], [1] * 4, [1] * 4]), None),  # a hole between tokens
        (np.array([[0, 0, 0, 0], [1] * 4, [1] * 4]), None),  # a request without tokens
        (LEFT + 1, None),  # no truth values
        (np.array([[0, 0, 1, 2], [1] * 4, [1] * 4]), None),
        (causal(LEFT)[:, :, :2], None),
        (np.array([[1, 1, 0]] * 4), None),  # lanes of three tokens
        (LEFT[:2], None),
        (causal(LEFT)[:2], None),
    ],
)
def test_masks_of_padding(tmp_path, values, real):
    found = recorded(tmp_path, BATCH, ("attention_mask", values))
    assert found.lengths == () and (found.named is None) is (real is None)
    if real is not None:
        assert found.named.tolist() == (np.asarray(real) != 0).reshape(-1).tolist()


def test_the_mask_that_hides_tokens_of_several_is_taken(tmp_path):
    ones = np.ones(BATCH, np.int64)
    for number, tensors in enumerate([(ones, LEFT), (LEFT, ones), (LEFT, LEFT[:, ::-1])]):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = recorded(folder, BATCH, *(("pad_mask", one) for one in tensors))
        assert found.named.tolist() == (LEFT != 0).reshape(-1).tolist()


def test_masks_need_a_name_and_a_batch(tmp_path):
    assert recorded(tmp_path, BATCH, ("x", LEFT), ("y", LEFT[:, 0])).named is None
    assert recorded(tmp_path, PACKED, ("attention_mask", LEFT)).named is None
    turned = recorded(tmp_path, (4, 3), ("attention_mask", LEFT.T), is_turned=True)
    assert turned.named.tolist() == (LEFT != 0).reshape(-1).tolist()


@pytest.mark.parametrize(
    "shape, values, lengths",
    [
        (PACKED, [5, 4, 3], (5, 4, 3)),
        (PACKED, [0, 5, 9, 12], (5, 4, 3)),
        (PACKED, [0, 5, 9], ()),  # sums to fewer tokens
        (PACKED, [5, 4, 4], ()),
        (PACKED, [12, 0], ()),
        (PACKED, [12], (12,)),
        (PACKED, [5.0, 4.0, 3.0], ()),
        (PACKED, [True] * 12, ()),
        (PACKED, [1] * 12, (1,) * 12),
        (PACKED, [1] * 13, ()),
        (BATCH, [4, 2, 3], (4, 2, 3)),
        (BATCH, [3, 2, 3], ()),  # none fills the lanes
        (BATCH, [4, 2], ()),
        (BATCH, [0, 3, 5, 9], (3, 2, 4)),
        (BATCH, [0, 3, 3, 9], ()),
        (BATCH, [0, 5, 9, 13], ()),
    ],
)
def test_lengths_and_cumulative_lengths(tmp_path, shape, values, lengths):
    found = recorded(tmp_path, shape, ("lengths", values), ("again", values))
    assert found.lengths == ((lengths,) if lengths else ()) and found.named is None


@pytest.mark.parametrize(
    "change, is_known",
    [
        ({}, True),
        ({"slot": "output:0"}, False),
        ({"dtype": "strange"}, False),
        ({"file": "absent.npy"}, False),
        ({"shape": (2, 2)}, False),  # another one than the file has
    ],
)
def test_lengths_are_inputs_that_can_be_read(tmp_path, change, is_known):
    np.save(tmp_path / "lengths.npy", np.array([5, 4, 3]))
    one = TensorRef("input:0", "int64", (3,), str(tmp_path / "lengths.npy"), "npy", label="lengths")._replace(**change)
    run = Run("dump", "msprobe", (Operator("embedding.0", "embedding", "embedding", "forward", 0, (one,)),))
    found = recorded_lengths(TokenSide((run,), (TokenShape(PACKED),), Values(ANYWHERE)))
    assert found == (None, ((5, 4, 3),) if is_known else ())


def with_ids(classes, pairs=(), is_ids=True):
    """Evidence of 8 tensors on tokens with these ids: {(row, token): tensors that agree}."""
    pairs = dict(pairs)
    rows, tokens = (np.array([one[at] for one in pairs], np.int64) for at in (0, 1))
    pair = TensorPair(("op", 0, "output:0"), ("op", 0, "output:0"), True, True, 8)
    return TokenEvidence(
        rows,
        tokens,
        np.array([*pairs.values()], np.int64),
        8,
        pair,
        is_ids,
        np.ravel(classes),
        np.zeros(np.size(classes), bool),
    )


REQUESTS = np.repeat([0, 1], 4)


@pytest.mark.parametrize(
    "classes, rows, is_ids, likely",
    [
        ([5, 6, 7, 0, 5, 6, 7, 8], [0, 1, 2, -1, 4, 5, 6, 7], True, [3]),  # id 0 is padding even once
        ([5, 6, 7, 0, 5, 6, 7, 8], [0, 1, 2, -1, 4, 5, 6, 7], False, []),  # equal rows have numbers, no ids
        ([5, 6, 7, 9, 5, 6, 7, 8], [0, 1, 2, -1, 4, 5, 6, 7], True, []),  # another id once
        ([5, 6, 9, 9, 5, 6, 7, 8], [0, 1, -1, -1, 4, 5, 6, 7], True, [2, 3]),
        ([5, 6, 9, 9, 5, 6, 7, 8], [0, 1, -1, -1, 4, 5, 6, 7], False, [2, 3]),
        ([9, 9, 5, 6, 5, 6, 7, 8], [-1, -1, 2, 3, 4, 5, 6, 7], True, [0, 1]),
        ([9, 5, 6, 9, 5, 6, 7, 8], [-1, 1, 2, -1, 4, 5, 6, 7], True, []),  # both ends
        ([9, 5, 6, 7, 5, 6, 7, 9], [-1, 1, 2, 3, 4, 5, 6, -1], True, []),  # an end each
        ([5, 6, 7, 9, 5, 6, 7, 9], [0, 1, 2, -1, 4, 5, 6, -1], True, []),  # the end of all requests
        ([9, 6, 9, 9, 5, 6, 7, 8], [0, 1, -1, -1, 4, 5, 6, 7], True, []),  # a token has the id too
        ([9, 9, 9, 9, 5, 6, 7, 8], [-1, -1, -1, -1, 4, 5, 6, 7], True, []),  # no other token
        ([5, 6, 9, 3, 5, 6, 9, 8], [0, 1, 2, 3, 4, 5, 6, 7], True, []),
        ([0, 6, 9, 3, 5, 6, 9, 8], [0, 1, 2, 3, 4, 5, 6, 7], True, []),  # the first row is one
    ],
)
def test_tokens_without_rows_that_are_likely_padding(classes, rows, is_ids, likely):
    found = likely_padding(np.array(rows), REQUESTS, with_ids(classes, is_ids=is_ids))
    assert np.flatnonzero(found).tolist() == likely


@pytest.mark.parametrize(
    "classes, target, is_ids, padding",
    [
        ([[5, 6, 9, 9], [5, 6, 7, 8], [1, 2, 3, 4]], {2, 3}, True, [2, 3]),
        ([[9, 9, 5, 6], [5, 6, 7, 8], [1, 2, 3, 4]], {0, 1}, True, [0, 1]),
        ([[5, 6, 7, 9], [5, 6, 7, 8], [1, 2, 3, 4]], {3}, True, []),
        ([[5, 6, 7, 0], [5, 6, 7, 8], [1, 2, 3, 4]], {3}, True, [3]),
        ([[5, 6, 7, 0], [5, 6, 7, 8], [1, 2, 3, 4]], {3}, False, []),
        ([[5, 6, 9, 9], [5, 6, 7, 8], [1, 2, 3, 4]], {1}, True, []),  # inside a lane of the target
        ([[5, 6, 9, 9], [5, 6, 7, 8], [1, 2, 3, 4]], set(), True, []),  # in no row of the target
        ([[5, 6, 9, 9], [5, 6, 7, 8], [1, 2, 3, 4]], {4, 5, 6, 7}, True, []),  # a lane of the target full of them
        ([[5, 9, 9, 9], [5, 6, 9, 9], [1, 2, 9, 4]], {2, 3}, True, []),  # a token has the id too
        ([[5, 6, 7, 9], [5, 6, 7, 9], [1, 2, 3, 9]], {3}, True, []),  # the end of all requests
        ([[9, 9, 9, 9], [5, 6, 7, 9], [1, 2, 3, 4]], {3}, True, []),  # a request of nothing else
        ([[9, 9, 3, 2], [5, 6, 4, 4], [1, 2, 3, 5]], {9: {0}, 4: {7}}, True, []),  # two ids, as many of each
        (
            [[9, 9, 3, 2], [5, 6, 4, 4], [1, 2, 3, 4]],
            {9: {0}, 4: {7}},
            True,
            [6, 7, 11],
        ),  # at the ends of more requests
        ([[9, 9, 3, 2], [5, 4, 4, 4], [1, 2, 3, 5]], {9: {0}, 4: {7}}, True, [5, 6, 7]),  # more tokens
        ([[9, 9, 3, 2], [5, 6, 3, 0], [1, 2, 8, 5]], {9: {0}, 0: {7}}, True, [0, 1]),
        ([[9, 9, 9, 2], [5, 6, 7, 4], [1, 2, 3, 4]], {9: {0}, 4: {7}}, True, [7, 11]),  # more requests, fewer tokens
    ],
)
def test_the_id_of_padding_at_one_end_of_requests(classes, target, is_ids, padding):
    tokens = np.ravel(classes)
    by_id = target if isinstance(target, dict) else {0: target, 9: target}
    pairs = {(row, token): 8 for one, rows in by_id.items() for row in rows for token in np.flatnonzero(tokens == one)}
    evidence, shape = with_ids(classes, pairs, is_ids), TokenShape(BATCH)
    assert np.flatnonzero(end_class(evidence, shape, shape)).tolist() == padding
    assert not end_class(evidence, TokenShape(PACKED), shape).any()
    assert not end_class(evidence, shape, TokenShape(PACKED)).any()


@pytest.mark.parametrize(
    "free, rows, found",
    [
        ([1, 2, 3], [0, 1, -1, -1], [1, 2, 3]),  # the row behind the first row
        ([1, 2, 3], [0, 2, -1, -1], []),
        ([1, 2, 3], [-1, 1, -1, -1], []),
        ([2, 3], [0, 1, -1, 3], []),
        ([0, 1], [0, 1, 2, 3], [0, 1]),
        ([0, 1], [-1, 0, 1, 2], [0, 1]),
        ([0, 1], [1, 0, 2, 3], []),
        ([], [0, 1, 2, 3], []),
    ],
)
@pytest.mark.parametrize("kind", [0, 9])
def test_tokens_with_the_pad_id_beside_those_of_their_request(free, rows, found, kind):
    """Id 0 is never a token."""
    is_free = np.isin(np.arange(4), free)
    evidence = with_ids(np.where(is_free, kind, [5, 6, 7, 8]))
    assert np.flatnonzero(beside_tokens(is_free, np.array(rows), np.zeros(4, int), evidence, LANE)).tolist() == (
        found if kind else []
    )


@pytest.mark.parametrize(
    "rows, counts, shape, found",
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], [8, 8, 8, 6], (2, 4), [3]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [8, 8, 8, 8], (2, 4), []),  # as many tensors agree as beside it
        ([0, 1, 2, -1, 4, 5, 6, 7], [8, 8, 8, 0], (2, 4), [3]),
        ([0, 1, 3, 2, 4, 5, 6, 7], [8, 8, 8, 6], (2, 4), []),  # in the middle of a lane
        ([1, 2, 3, 0, 4, 5, 6, 7], [8, 8, 8, 6], (2, 4), [3]),  # at the other end
        ([0, 1, 2, 3, 4, 5, 6, 7], [8, 8, 8, 6], (1, 8), []),  # the target has no lanes
    ],
)
def test_tokens_at_an_end_that_may_be_padding(rows, counts, shape, found):
    classes = [5, 6, 7, 9, 5, 6, 7, 5]
    pairs = {(row, token): 8 for token, row in enumerate(rows)}
    pairs.update({(rows[token], token): count for token, count in enumerate(counts)})
    evidence = with_ids(classes, {pair: count for pair, count in pairs.items() if pair[0] >= 0})
    free = may_be_padding(np.array(rows), REQUESTS, evidence, TokenShape(shape), np.zeros(8, bool))
    assert np.flatnonzero(free).tolist() == found


@pytest.mark.parametrize(
    "named, rows, lengths, padding, words",
    [
        ([1, 1, 1, 0] * 2, [0] * 8, (), [3, 7], "padded right (attention mask)"),
        ([0, 1, 1, 1, 1, 1, 1, 0], [0] * 8, (), [0, 7], "padded left and right (attention mask)"),
        ([1] * 8, [0, 0, 0, -1] * 2, ((3, 3),), [], ""),  # the mask counts
        (None, [0, 0, 0, -1, 0, 0, 0, 0], ((3, 4),), [3], "padded right (lengths)"),
        (None, [-1, -1, 0, 0, 0, 0, 0, 0], ((4, 4), (2, 4)), [0, 1], "padded left (lengths)"),
        (None, [-1, 0, 0, -1, 0, 0, 0, 0], ((2, 4),), [0, 3], "padded left and right (lengths)"),
        (None, [0, 0, 0, -1, 0, 0, 0, 0], ((4, 3),), [], ""),
        (None, [0] * 8, ((4, 4),), [], ""),
        (None, [0, -1, 0, 0, 0, 0, 0, 0], ((3, 4),), [], ""),  # a hole is no padding
    ],
)
def test_padding_that_a_mask_or_lengths_show(named, rows, lengths, padding, words):
    golden = Recorded(np.array(named, bool) if named is not None else None, lengths)
    other = Recorded(np.ones(8, bool), ((3, 4), (2, 4)))  # the target's prove nothing
    shape = TokenShape((2, 4))
    found, proof = padding_of(np.array(rows), REQUESTS, Padding(other, golden, shape, shape))
    assert (np.flatnonzero(found).tolist(), proof) == (padding, words)


def a_side(*shapes):
    """A side with as many steps, which recorded no lengths."""
    runs = (Run("dump", "msprobe", ()),) * len(shapes)
    return TokenSide(runs, tuple(TokenShape(one) for one in shapes), Values(ANYWHERE))


@pytest.mark.parametrize(
    "classes, last, shape, rows, opened",
    [
        ([5, 6, 7, 9, 5, 6, 7, 5], (5, 8), (2, 4), [0, 1, 2, 4, 5, 6, 7], ((0, 3, 1),)),
        ([5, 6, 7, 9, 5, 6, 7, 5], (8, 8), (2, 4), [*range(8)], ()),  # agrees as its neighbours do
        ([5, 6, 7, 5, 5, 6, 7, 5], (5, 8), (2, 4), [*range(8)], ()),  # other tokens have its id
        ([5, 6, 7, 9, 5, 6, 7, 5], (5, 8), (1, 8), [*range(8)], ()),  # a packed run has no padding
        ([5, 6, 7, 9, 5, 6, 7, 0], (5, 0), (2, 4), [*range(7)], ((1, 3, 1),)),  # id 0 is padding, then 9 is none
    ],
)
def test_a_token_that_may_be_padding_has_no_row(classes, last, shape, rows, opened):
    """`last`: how many of 8 tensors agree at the last token of each request; all agree at the others."""
    counts = {(at, at): last[at // 4] if at % 4 == 3 else 8 for at in range(8)}
    evidence = with_ids(classes, {one: count for one, count in counts.items() if count})
    found = find_index(a_side(shape), a_side((2, 4)), evidence)
    assert (found.rows.tolist(), found.open, found.problem) == (rows, opened, "")


def test_a_mask_without_padding_proves_that_all_are_tokens(tmp_path):
    """A token at the end agrees in fewer tensors than those beside it, with an id of its own."""
    np.save(tmp_path / "mask.npy", np.ones((2, 4), np.int64))
    ref = TensorRef("input:0", "int64", (2, 4), str(tmp_path / "mask.npy"), "npy", label="attention_mask")
    run = Run("dump", "msprobe", (Operator("embedding.0", "embedding", "embedding", "forward", 0, (ref,)),))
    evidence = with_ids([5, 6, 7, 9, 5, 6, 7, 5], {(at, at): 5 if at == 3 else 8 for at in range(8)})
    found = find_index(a_side((2, 4)), TokenSide((run,), (TokenShape((2, 4)),), Values(ANYWHERE)), evidence)
    assert found.rows.tolist() == [*range(8)] and found.open == () and found.padded == 0


@pytest.mark.parametrize(
    "shapes, turned, words",
    [
        (((3, 4),), False, "batch x sequence [3, 4]"),
        (((3, 4),), True, "sequence x batch [3, 4]"),
        (((1, 12),), False, "packed"),
        (((12,),), False, "packed"),
        (((1, 2),), False, "packed"),
        (((1, 1),), False, "one token"),
        (((3, 4), (3, 1)), False, "2 steps"),
        (((1, 1),) * 3, True, "3 steps"),
    ],
)
def test_a_layout_of_tokens_in_words(shapes, turned, words):
    side = a_side(*shapes)
    assert (side.turned() if turned else side).words == words
    assert side.size == sum(np.prod(one) for one in shapes)
