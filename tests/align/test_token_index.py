"""The row of the target in which each token of the golden stands, by request and position."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align.token_evidence import gather_evidence
from npucmp.align.token_index import find_index, place_of
from npucmp.align.token_rows import RowRun
from npucmp.align.token_tensors import tensor_pairs
from npucmp.dump.limits import ANYWHERE
from npucmp.model import TensorRef
from tests.align.token_craft import bare_side, evidence, side, step, values_of

BATCH = np.arange(12).reshape(3, 4)
PADDED = np.array([[0, 1, 2, 3], [4, 5, -1, -1], [6, 7, 8, -1]])  # 9 tokens of 3 requests
LEFT = np.array([[0, 1, 2, 3], [-1, -1, 4, 5], [-1, 6, 7, 8]])
PACKED = np.arange(9)
LENGTHS = (4, 2, 3)


def with_inputs(run, folder, **tensors):
    """The run whose first operator reads more tensors, which have their name as a label."""
    more = []
    for name, values in tensors.items():
        values, file = np.asarray(values), str(folder / f"{name}.npy")
        np.save(file, values)
        more.append(TensorRef(f"input:{9 + len(more)}", values.dtype.name, values.shape, file, "npy", label=name))
    first, *others = run.operators
    return replace(run, operators=(first._replace(tensors=(*first.tensors, *more)), *others))


def index_of(folder, target, golden, of_target=None, of_golden=None, values=None, golden_values=None, ids=True):
    """The index of runs with these tokens by place; `of_target`, `of_golden`: more inputs."""
    steps = []
    for at, one in enumerate(target if isinstance(target, list) else [target]):
        folder_of_step = folder / f"target {at}"
        run = step(folder_of_step, one, values or values_of(), ids)
        steps.append(with_inputs(run, folder_of_step, **(of_target or {})) if not at else run)
    run = step(folder / "golden", golden, golden_values or values or values_of(), ids)
    left, right = side(*steps), side(with_inputs(run, folder / "golden", **(of_golden or {})))
    return find_index(left, right, gather_evidence(left, right, tensor_pairs(left, right, None, ANYWHERE), ANYWHERE))


def tokens_of(index, target, golden):
    """(token at the row, token at the place, request, position) of each token of the index."""
    steps = target if isinstance(target, list) else [target]
    rows = np.concatenate([np.ravel(one) for one in steps])
    return [*zip(rows[index.rows], np.ravel(golden)[index.places], index.requests, index.positions)]


MASK = {"attention_mask": (PADDED >= 0).astype(np.int64)}


@pytest.mark.parametrize(
    "target",
    [
        PACKED,
        PADDED,
        LEFT,
        np.concatenate([PACKED[6:], PACKED[:6]]),
        np.array([[6, 7, 8, -1], [4, 5, -1, -1], [0, 1, 2, 3]]),
        [np.array([[0, 1, 2], [4, -1, -1], [6, 7, -1]]), np.array([[3], [5], [8]])],
        [np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8])],
    ],
)
def test_each_token_is_found_in_the_layout_of_the_target(tmp_path, target):
    index = index_of(tmp_path, target, PADDED, of_golden=MASK)
    expected = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert tokens_of(index, target, PADDED) == [(at, at, *one) for at, one in enumerate(expected)]
    assert (index.lengths, index.open, index.problem, index.is_ambiguous) == (LENGTHS, (), "", False)
    assert (index.padding, index.padded) == ("padded right (attention mask)", 3)


def test_requests_of_a_packed_golden_have_the_recorded_lengths(tmp_path):
    for number, (target, recorded) in enumerate([(PACKED, [4, 2, 3]), (PADDED, [0, 4, 6, 9])]):
        (tmp_path / str(number)).mkdir()
        index = index_of(tmp_path / str(number), target, PACKED, of_golden={"lengths": recorded})
        assert index.lengths == LENGTHS and index.requests.tolist() == [0] * 4 + [1] * 2 + [2] * 3
        assert index.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2] and index.padding == ""


@pytest.mark.parametrize(
    "target, of_target, lengths",
    [
        (PADDED, {}, LENGTHS),  # the lanes of the target
        (PACKED, {"lengths": [4, 2, 3]}, LENGTHS),
        (PACKED, {"lengths": [4, 2, 2]}, (9,)),  # of other tokens
        (PACKED, {}, (9,)),
        (np.concatenate([PACKED[4:6], PACKED[:4], PACKED[6:]]), {}, LENGTHS),  # requests end where rows jump
        ([PACKED[:5], PACKED[5:]], {}, (9,)),  # steps of packed tokens
    ],
)
def test_requests_of_a_packed_golden_without_lengths_are_those_of_the_target(tmp_path, target, of_target, lengths):
    golden = np.arange(sum(lengths))
    assert index_of(tmp_path, target, golden, of_target=of_target).lengths == lengths


def test_the_lanes_of_a_packed_target_are_its_recorded_requests(tmp_path):
    """The last two tokens of a request stand at the head of the next one, in the recorded lengths."""
    golden = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
    fine = index_of(tmp_path, np.arange(12), golden, of_target={"lengths": [4, 4, 4]})
    assert fine.problem == "" and fine.lengths == (4, 4, 4)
    other = tmp_path / "other"
    other.mkdir()
    found = index_of(other, np.arange(12), golden, of_target={"lengths": [2, 6, 4]})
    assert found.problem == "the target has token 2 of request 0 not behind the token before it"


@pytest.mark.parametrize(
    "order, words",
    [
        ([0, 2, 1, 3, 4, 5, 6, 7, 8], "token 1 of request 0"),
        ([0, 1, 2, 3, 5, 4, 6, 7, 8], "token 1 of request 1"),
    ],
)
def test_tokens_that_do_not_follow_each_other_have_no_index(tmp_path, order, words):
    index = index_of(tmp_path, np.array(order), PADDED, of_golden=MASK)
    assert index.problem == f"the target has {words} not behind the token before it" and not index.is_ambiguous


def test_a_request_that_the_target_has_twice_has_no_index():
    """The second copy agrees in fewer tensors, or in as many."""
    first = {(at, at): 8 for at in range(6)}
    for counts, is_refused in (([7] * 3, True), ([8] * 3, False), ([8, 8, 7], True), ([7] * 2, False)):
        pairs = {**first, **{(6 + at, at): count for at, count in enumerate(counts)}}
        found = find_index(bare_side((9,)), bare_side((2, 3)), evidence(pairs, range(6)))
        assert found.problem == ("request 0 of the golden is in the target more than once" if is_refused else "")


def test_tokens_without_a_row_are_open(tmp_path):
    golden = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
    index = index_of(tmp_path, np.array([0, 1, 2, 3, 4, 7, 9, 10, 11]), golden)
    assert index.open == ((1, 1, 2), (2, -1, 1)) and index.lengths == (4, 4, 4) and index.padding == ""
    assert index.positions.tolist() == [0, 1, 2, 3, 0, 3, 0, 1, 2]


def test_open_tokens_of_several_ids_at_the_head_have_positions(tmp_path):
    golden = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
    index = index_of(tmp_path, np.array([0, 1, 2, 3, 4, 5, 6, 7, 10, 11]), golden)
    assert index.open == ((2, 0, 2),) and index.positions.tolist()[-2:] == [2, 3]


@pytest.mark.parametrize("kept, is_found", [(3, True), (2, False)])
def test_runs_with_less_than_half_of_the_tokens_in_common_have_no_index(tmp_path, kept, is_found):
    target = np.array([*range(kept), *range(20, 26 - kept)])
    values = values_of(30)
    assert (index_of(tmp_path, target, np.arange(6), values=values) is not None) is is_found


def test_padding_by_recorded_lengths(tmp_path):
    index = index_of(tmp_path, PACKED, PADDED, of_golden={"lengths": [4, 2, 3]})
    assert (index.padding, index.padded, index.open, index.lengths) == ("padded right (lengths)", 3, (), LENGTHS)


def test_one_id_at_the_ends_of_requests_that_agree_without_it_is_padding(tmp_path):
    for name, golden in (("right", PADDED), ("left", LEFT)):
        (tmp_path / name).mkdir()
        index = index_of(tmp_path / name, PACKED, golden)
        assert (index.padding, index.padded) == (f"padded {name} (one id, which no token reads)", 3)
        assert not index.open and index.lengths == (4, 2, 3)
        assert index.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]


@pytest.mark.parametrize("masked", ["target", "golden", "both"])
def test_rows_that_a_mask_shows_to_be_padding_are_no_tokens(tmp_path, masked):
    """Both sides have padding of one id with the same values."""
    of_target = {"attention_mask": (LEFT >= 0).astype(np.int64)} if masked != "golden" else {}
    index = index_of(tmp_path, LEFT, PADDED, of_target, MASK if masked != "target" else {})
    assert [(one, other) for one, other, *_ in tokens_of(index, LEFT, PADDED)] == [(at, at) for at in range(9)]
    proof = "attention mask" if masked != "target" else "one id, which no token reads"
    assert index.padding == f"padded right ({proof})"


# ---- the order of batch and sequence ----


@pytest.mark.parametrize("target_turned", [False, True])
@pytest.mark.parametrize("golden_turned", [False, True])
def test_the_order_of_axes_is_that_in_which_requests_follow_each_other(tmp_path, target_turned, golden_turned):
    target, golden = (one.T if turned else one for one, turned in ((LEFT, target_turned), (PADDED, golden_turned)))
    index = index_of(tmp_path, target, golden, of_golden={"attention_mask": (PADDED >= 0).astype(np.int64)})
    assert index.golden.shapes[0].is_turned is golden_turned and index.target.shapes[0].is_turned is target_turned
    assert index.lengths == LENGTHS and index.problem == "" and not index.is_ambiguous


def test_an_order_of_axes_that_nothing_shows_is_ambiguous():
    """Every token of the golden is the only candidate of two rows, by either order."""
    shape = (3, 3)
    pairs = {(row, token): 8 for row in range(9) for token in range(9) if row in (token, token % 3 * 3 + token // 3)}
    found = find_index(bare_side(shape), bare_side(shape), evidence(pairs, range(9)))
    assert found.is_ambiguous and found.problem.startswith("batch and sequence can be exchanged")


def test_the_same_layout_has_one_order():
    found = find_index(bare_side((3, 3)), bare_side((3, 3)), evidence({(at, at): 8 for at in range(9)}, range(9)))
    assert not found.is_ambiguous and found.problem == "" and found.is_identity


# ---- an index in words and runs of rows ----


def test_rows_of_steps(tmp_path):
    target = [np.array([[0, 1, 2], [4, -1, -1], [6, 7, -1]]), np.array([[3], [5], [8]])]
    index = index_of(tmp_path, target, PADDED, of_golden=MASK)
    assert index.runs(True) == [
        RowRun(0, 0, 0, 3), RowRun(1, 0, 0, 1), RowRun(0, 1, 0, 1), RowRun(1, 0, 1, 1), RowRun(0, 2, 0, 2),
        RowRun(1, 0, 2, 1),
    ]  # fmt: skip
    assert index.runs(False) == [RowRun(0, 0, 0, 4), RowRun(0, 1, 0, 2), RowRun(0, 2, 0, 3)]
    assert [index.where(at) for at in (0, 3, 5, 7)] == [(0, "[0, 0]"), (1, "0"), (1, "1"), (0, "[2, 1]")]
    assert not index.is_identity


def test_rows_of_a_sequence_before_the_batch_are_named_by_the_memory(tmp_path):
    index = index_of(tmp_path, LEFT.T, PACKED, of_golden={"lengths": [4, 2, 3]})
    assert index.target.shapes[0].is_turned
    assert [index.where(at)[1] for at in (0, 1, 4, 6)] == ["[0, 0]", "[1, 0]", "[2, 1]", "[1, 2]"]


@pytest.mark.parametrize(
    "number, place",
    [
        (0, (0, 0, 0)),
        (5, (0, 1, 1)),
        (11, (0, 2, 3)),
        (12, (1, 0, 0)),
        (14, (1, 0, 2)),
        (15, (2, 0, 0)),
    ],
)
def test_the_place_of_a_row(number, place):
    assert place_of(number, bare_side((3, 4), (3, 1), (2,)).shapes) == place


@pytest.mark.parametrize(
    "target, identical",
    [(PADDED, True), (LEFT, False), (PACKED, False), ([np.array([9, 10, 11]), PADDED], True),
     ([np.array([9, 10, 11]), LEFT], False)],
)  # fmt: skip
def test_tokens_in_the_same_row_of_the_same_layout(tmp_path, target, identical):
    assert index_of(tmp_path, target, PADDED, of_golden=MASK).is_identity is identical
