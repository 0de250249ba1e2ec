"""The description of a wrong parameter says what the target holds in place of the golden's values."""

import numpy as np
import pytest

from npucmp.align.weights.limits import WeightLimit
from npucmp.align.weights.role import Role
from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined, total
from npucmp.localise import weight_faults
from npucmp.localise.weight_faults import FaultFinder
from npucmp.model import Payload
from tests.localise.weight_craft import RTOL, UP, Weights, drawn

W, SQUARE, BIAS, CUBE = drawn(6, 4), drawn(4, 4, seed=9), drawn(5, seed=10), drawn(4, 4, 4, seed=11)
COLUMN, TALL = drawn(6, 1, seed=12), drawn(40, 5, seed=13)
SYMMETRIC = drawn(8, 8, seed=14) + drawn(8, 8, seed=14).T
NON_FINITE = np.where(np.isin(W, W[0, 0]), np.nan, np.where(np.isin(W, W[1, 1]), np.inf, W))
HALF = np.where(np.indices((3, 4)).sum(0) % 2, drawn(3, 4), 0.0)
MOST = np.where(np.arange(12).reshape(3, 4) == 0, 1.0, HALF)
ALL = slice(None)
OTHER_ORDER, OTHERS = "it holds the same numbers in another order", "its values differ"


def changed(values, at, factor=3.0):
    found = np.array(values)
    found[at] *= factor
    return found


def mixed(values):
    """Half of the elements are others, in all rows and columns."""
    return values + np.where(np.indices(values.shape).sum(0) % 2, 0.5, 0.0)


def spread(rows, columns):
    """Factors of which no two are equal."""
    return np.linspace(2, 3, rows * columns).reshape(rows, columns)


def stated(fault):
    """The label and the sentence of a fault."""
    return fault.label, fault.words.format(**fault.facts)


@pytest.fixture
def weights(tmp_path):
    return Weights(tmp_path)


@pytest.fixture
def described(weights):
    """The label and the sentence of the fault of an array against a golden one."""

    def describe(target, golden, shards=1, others=(), **more):
        pair = weights.pair(target, golden, **more)
        return stated(FaultFinder([pair, *others], shards, ANYWHERE).fault(pair))

    return describe


FAULTS = [  # golden, target, label, sentence
    (W, changed(W, (3, 2)), "element", "one element differs, in row 3"),
    (W, changed(W, (3, 2), np.nan), "element", "one element differs, in row 3"),
    (NON_FINITE, changed(NON_FINITE, (3, 2)), "element", "one element differs, in row 3"),
    (CUBE, changed(CUBE, (3, 2, 1)), "element", "one element differs, in row 3"),
    (BIAS, changed(BIAS, 4), "element", "one element differs, in row 4"),
    (np.float64(0.0), np.float64(2.0), "value", "it is 2 in the target, 0 in the golden"),
    (W, changed(W, (ALL, slice(1, 3)), spread(6, 2)), "columns", "columns 1 to 2 differ"),
    (W, changed(changed(W, (ALL, slice(1, 3)), spread(6, 2)), (3, 2), np.nan), "columns", "columns 1 to 2 differ"),
    (COLUMN.T, changed(COLUMN.T, (0, [1, 2]), spread(1, 2)[0]), "columns", "columns 1 to 2 differ"),
    (W, changed(W, (slice(2, 5), slice(1, 3)), spread(3, 2)), "rows", "3 of 6 rows differ, 2 to 4"),
    (W, changed(W, (slice(2, 5),), spread(3, 4)), "rows", "3 of 6 rows differ, 2 to 4"),
    (W, changed(W, ([1, 4], [0, 0]), spread(1, 2)[0]), "rows", "2 of 6 rows differ, 1 to 4"),
    (BIAS, changed(BIAS, slice(1, 3), np.array([2.0, 3.0])), "rows", "2 of 5 elements differ, 1 to 2"),
    (W, mixed(W), "differs", OTHERS),
    (W, changed(W, (range(6), [0, 1, 0, 1, 0, 1]), spread(1, 6)[0]), "differs", OTHERS),  # in two columns, not whole
    (W, W * spread(6, 4), "differs", OTHERS),
    (BIAS, BIAS * spread(1, 5)[0], "differs", OTHERS),
    (W, changed(W, 2, 0.0), "zero rows 1", "row 2 is zero"),
    (W, changed(W, slice(2, 4), 0.0), "zero rows 2", "rows 2 to 3 are zero"),
    (W, changed(changed(W, slice(2, 4), 0.0), (5, 0)), "rows", "3 of 6 rows differ, 2 to 5"),
    (W, changed(W, (ALL, 3), 0.0), "zero columns 1", "column 3 is zero"),
    (W, changed(W, (ALL, [0, 3]), 0.0), "zero columns 2", "columns 0 to 3 are zero"),
    (BIAS, changed(BIAS, 3, 0.0), "zero elements 1", "element 3 is zero"),
    (BIAS, changed(BIAS, [1, 3], 0.0), "zero elements 2", "elements 1 to 3 are zero"),
    (CUBE, changed(CUBE, 2, 0.0), "zero rows 1", "row 2 is zero"),
    (np.float64(2.0), np.float64(0.0), "value", "it is 0 in the target, 2 in the golden"),
    (W, W * 0.0, "zero", "all its elements are zero"),
    (changed(W, slice(0, 6), 0.0), W, "differs", OTHERS),
    (W, W * 1.5, "factor 1.5", "it is 1.5 times the golden"),
    (W, W * -1.0, "factor -1", "it is -1 times the golden"),
    (BIAS, BIAS * 1.23456, "factor 1.23", "it is 1.235 times the golden"),
    (CUBE, CUBE * 2.0, "factor 2", "it is 2 times the golden"),
    (MOST, MOST * 1.5, "factor 1.5", "it is 1.5 times the golden"),  # 7 of 12 elements differ
    (HALF, HALF * 1.5, "differs", OTHERS),  # 6 of 12 elements differ: the factor is not sought
    (W, W[[0, 2, 1, 3, 4, 5]], "rows moved", "the golden's rows 1 to 2 stand in another order"),
    (W, W[[3, 1, 2, 4, 0, 5]], "rows moved", "the golden's rows 0 to 4 stand in another order"),
    (W[:, :2], W[[0, 2, 1, 3, 4, 5], :2], "rows moved", "the golden's rows 1 to 2 stand in another order"),
    (W[:2], W[[1, 0]], "rows moved", "the golden's rows 0 to 1 stand in another order"),
    (W, W[:, [0, 1, 3, 2]], "columns moved", "the golden's columns 2 to 3 stand in another order"),
    (W[:, :2], W[:, [1, 0]], "columns moved", "the golden's columns 0 to 1 stand in another order"),
    (W, changed(W[[0, 2, 1, 3, 4, 5]], (1, 0)), "rows", "2 of 6 rows differ, 1 to 2"),
    (W, W.reshape(-1)[::-1].reshape(W.shape), "order", OTHER_ORDER),
    (BIAS, BIAS[::-1], "order", OTHER_ORDER),
    (BIAS, changed(BIAS[::-1], 0), "rows", "4 of 5 elements differ, 0 to 4"),
    (BIAS[:3], BIAS[[1, 0, 2]], "order", OTHER_ORDER),
    (BIAS[:2], BIAS[[1, 0]], "differs", OTHERS),  # two elements stand in any order by chance
    (COLUMN, COLUMN[::-1], "order", OTHER_ORDER),
    (COLUMN.T, COLUMN.T[:, ::-1], "order", OTHER_ORDER),
    (SQUARE, SQUARE.T, "transposed", "it is transposed"),
    (CUBE, np.swapaxes(CUBE, 0, 1), "rows moved", "the golden's rows 1 to 14 stand in another order"),
    (CUBE, np.swapaxes(CUBE, 1, 2), "order", OTHER_ORDER),
    (CUBE, CUBE[[0, 2, 1, 3]], "rows moved", "the golden's rows 4 to 11 stand in another order"),
    (SYMMETRIC, changed(SYMMETRIC, (3, 2)), "element", "one element differs, in row 3"),
    (W, W.T, "transposed", "it is transposed: shape [4, 6] against [6, 4]"),
    (W, W[:5], "shape", "shape [5, 4] against [6, 4]"),
]  # fmt: skip


@pytest.mark.parametrize(
    "golden, target, label, words", FAULTS, ids=[f"{at} {one[3]}" for at, one in enumerate(FAULTS)]
)
def test_the_fault_of_a_parameter(described, golden, target, label, words):
    assert described(target, golden) == (label, words)


# What is not read


def test_a_side_without_values_holds_others(weights):
    """Also a pair of which a side has no parameter."""
    absent, present = weights.part(None), weights.part(W)
    pair = weights.pair(W, W)
    for target, golden in ((None, present), (present, None), (absent, present), (present, absent)):
        found = FaultFinder([], 1, ANYWHERE).fault(pair._replace(target=target, golden=golden))
        assert stated(found) == ("differs", OTHERS) and not found.facts


def test_a_file_that_is_lost_after_the_measurement_is_named(described, tmp_path):
    label, words = described(Payload(str(tmp_path / "lost.bin"), "float64", (6, 4), 0), W)
    assert label == "differs" and words.startswith("its values cannot be read again: ") and "lost.bin" in words


@pytest.mark.parametrize(
    "target, golden, label, words",
    [
        (True, False, "bare", "its int8 codes have no scale: scale missing"),
        (False, True, "bare", "its float8 codes have no scale: scale missing"),
        (True, True, "zero rows 1", "row 2 is zero"),
    ],
)
def test_the_side_whose_codes_have_no_scale_is_named(described, target, golden, label, words):
    sides = {"dtype": "int8", "is_bare": target}, {"dtype": "float8", "is_bare": golden}
    found = described(changed(W, 2, 0.0), W, of_target=sides[0], of_golden=sides[1])
    assert found == (label, words)


@pytest.mark.parametrize("bound", ["WHOLE", "TOTAL"])
@pytest.mark.parametrize("elements, words", [(24, "one element differs, in row 3"), (23, OTHERS)])
def test_a_parameter_that_is_too_large_to_be_read_whole_holds_other_values(
    described, monkeypatch, bound, elements, words
):
    monkeypatch.setattr(weight_faults, bound, elements)
    assert described(changed(W, (3, 2)), W)[1] == words


@pytest.mark.parametrize("elements, words", [(24, OTHER_ORDER), (23, OTHERS)])
def test_a_parameter_that_is_too_large_to_be_sorted_holds_other_values(described, monkeypatch, elements, words):
    monkeypatch.setattr(weight_faults, "SORTED", elements)
    assert described(W.reshape(-1)[::-1].reshape(W.shape), W)[1] == words


def test_all_parameters_together_have_a_limit_of_elements(weights, monkeypatch):
    """The second parameter of 24 elements would exceed it; one of 20 does not."""
    monkeypatch.setattr(weight_faults, "TOTAL", 44)
    finder = FaultFinder([], 1, ANYWHERE)
    pairs = [weights.pair(changed(one, (0, 0)), one) for one in (W, W, W[:5])]
    words = [stated(finder.fault(pair))[1] for pair in pairs]
    assert words == ["one element differs, in row 0", OTHERS, "one element differs, in row 0"]


# The limit of an element


def off(values, at, size):
    found = np.array(values)
    found[at] += size
    return found


LIMITS = [  # limit, sizes of two differences at the elements (3, 2) and (1, 1), sentence
    (WeightLimit(1e-3), 0.9e-3 * abs(W[3, 2]), OTHERS),
    (WeightLimit(1e-3), 1.1e-3 * abs(W[3, 2]), "one element differs, in row 3"),
    (WeightLimit(0.0, 0.02), 0.019, OTHERS),
    (WeightLimit(0.0, 0.02), 0.021, "one element differs, in row 3"),
    (WeightLimit(1e-3, 0.02), 0.02 + 0.9e-3 * abs(W[3, 2]), OTHERS),
    (WeightLimit(1e-3, 0.02), 0.02 + 1.1e-3 * abs(W[3, 2]), "one element differs, in row 3"),
    # codes have one step of int8 more: 1 % of the largest value
    (WeightLimit(1e-3, 0.0, 0.5), 0.009 * abs(W).max(), "single codes are off by more than half a step"),
    (WeightLimit(1e-3, 0.0, 0.5), 0.011 * abs(W).max() + 1e-3 * abs(W[3, 2]), "one element differs, in row 3"),
]


@pytest.mark.parametrize("limit, size, words", LIMITS)
def test_an_element_differs_beyond_the_limit_of_the_pair(described, limit, size, words):
    assert described(off(W, (3, 2), size), W, limit=limit)[1] == words


@pytest.mark.parametrize("times, is_factor", [(7.9, True), (8.1, False)])
@pytest.mark.parametrize("factor", [3.0, -3.0])
def test_a_factor_leaves_eight_limits_of_an_element(described, factor, times, is_factor):
    """The odd element is too small to change the factor."""
    golden = changed(W, (3, 2), 1e-6)
    target = factor * off(golden, (3, 2), times * 1e-3 * abs(golden[3, 2]))
    assert described(target, golden, limit=WeightLimit(1e-3))[0].startswith("factor") is is_factor


def test_zero_is_zero_in_rows_beyond_the_sample_too(described):
    """A sample of sixteen rows is zero in both cases."""
    assert described(TALL * 0.0, TALL)[1] == "all its elements are zero"
    first = min({*range(40)} - {*weight_faults.row_numbers(40)})
    target = np.where(np.arange(40)[:, None] == first, TALL, 0.0)
    wrong = [row for row in range(40) if row != first]
    assert described(target, TALL)[1] == f"rows {wrong[0]} to {wrong[-1]} are zero"


# Shards of ranks


SHARDS = [  # the golden's piece that each rank holds, sentence
    ((1, 0), "shards 0 and 1 are swapped"),
    ((0, 2, 1), "shards 1 and 2 are swapped"),
    ((0, 0), "shard 1 is that of rank 0"),
    ((1, 1), "shard 0 is that of rank 1"),
    ((1, 2, 0), "shard 0 is that of rank 1"),
    ((0, 0, 1), "shard 1 is that of rank 0"),
    ((1, 2, 2), "shard 0 is that of rank 1"),
    ((2, 2, 2), "shard 0 is that of rank 2"),
]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("holds, words", SHARDS)
def test_the_shards_that_ranks_hold(described, weights, holds, words, axis):
    golden = drawn(6, 6)
    pieces = np.split(golden, len(holds), axis)
    shards = [weights.payload(pieces[at]) for at in holds]
    found = described(joined(shards, axis), golden, of_target={"shards": shards, "axis": axis})
    moved = [at for at, of in enumerate(holds) if at != of]
    assert found == (f"shards {moved}" if "swapped" in words else "shards", words)


@pytest.mark.parametrize(
    "rows, shards, words",
    [
        (5, [(3, 5, "pad"), (0, 3)], "shards 0 and 1 are swapped"),
        (5, [(0, 3), (0, 2, "pad")], "2 of 5 rows differ, 3 to 4"),  # a part of a piece and padding
        (5, [(3, 5, "pad"), (3, 5, "pad")], "shard 0 is that of rank 1"),
        (3, [(0, 3), (9, 9, "pad")], OTHERS),
        (6, [(3, 6), (0, 3), (9, 9, "pad")], "shards 0 and 1 are swapped"),
    ],
)
def test_the_last_shards_may_be_padding(described, weights, rows, shards, words):
    """Shards of three rows; ranks beyond the golden's rows hold padding alone."""
    golden = drawn(rows, 4)
    held = [np.vstack([golden[start:end], np.full((3 - (end - start) if pad else 0, 4), 7.0)])
            for start, end, *pad in shards]  # fmt: skip
    target = np.vstack(held)[:rows]
    assert described(target, golden, of_target={"shards": held, "axis": 0})[1] == words


def test_a_single_shard_and_shards_of_other_values_show_no_rank(described, weights):
    target = changed(W, (3, 2))
    assert described(target, W, of_target={"shards": [target]})[1] == "one element differs, in row 3"
    halves = np.split(changed(W[[3, 4, 5, 0, 1, 2]], slice(0, 3), 2.0), 2)
    assert described(np.vstack(halves), W, of_target={"shards": halves})[1] == OTHERS


ROWS = [  # golden, target, shards, sentence
    (W, W[[3, 4, 5, 0, 1, 2]], 2, "shards 0 and 1 are swapped"),
    (W, W[[2, 3, 4, 5, 0, 1]], 3, "shard 0 is that of rank 1"),
    (W, W[[0, 1, 2, 0, 1, 2]], 2, "shard 1 is that of rank 0"),
    (W, W[:, [2, 3, 0, 1]], 2, "shards 0 and 1 are swapped"),
    (BIAS[:4], BIAS[[2, 3, 0, 1]], 2, "shards 0 and 1 are swapped"),
    (BIAS[:4], BIAS[[2, 3, 0, 1]], 1, OTHER_ORDER),
    (W, W[[3, 4, 5, 0, 1, 2]], 1, "the golden's rows 0 to 5 stand in another order"),
    (W, W[[3, 4, 5, 0, 1, 2]], 4, "the golden's rows 0 to 5 stand in another order"),
    (W, changed(W[[3, 4, 5, 0, 1, 2]], (0, 0), 2.0), 2, OTHERS),
]


@pytest.mark.parametrize("golden, target, shards, words", ROWS)
def test_rows_and_columns_that_move_together_are_shards(described, golden, target, shards, words):
    """Without shards of the parameter, the number of tensor-parallel ranks is known."""
    assert described(target, golden, shards)[1] == words


# Other parameters


DOWN, EXPERT = Role(3, "down", "weight", 2), Role(None, "gate", "weight", 5)
HELD = [  # own role, other role, its name and slot, label, sentence
    (UP, DOWN, "layers.3.down.weight", "", "holds down 3 None", "holds the weights of layers.3.down"),
    (DOWN, UP, "layers.0.up.weight", "", "holds up -3 None", "holds the weights of layers.0.up"),
    (DOWN, Role(3, "down", "weight", 6), "e.weight", "", "holds down 0 4", "holds the weights of e"),
    (EXPERT, DOWN, "fc.weight", "gate", "holds down None -3", "holds the weights of fc.weight (gate)"),
    (
        Role(2, "n1", "weight"),
        Role(None, "nf", "weight"),
        "norm",
        "",
        "holds nf None None",
        "holds the weights of norm",
    ),
]


@pytest.mark.parametrize("own, other, name, slot, label, words", HELD)
def test_another_parameter_is_named_with_its_distance(described, weights, own, other, name, slot, label, words):
    held = weights.pair(TALL, TALL, other, of_golden={"name": name, "slot": slot})
    assert described(TALL, TALL + 1.0, role=own, others=[held]) == (label, words)


def beside(weights, values, **more):
    return weights.pair(values, values, DOWN, of_golden={"name": "other"}, **more)


def test_only_a_golden_parameter_that_holds_all_sampled_rows_is_named(described, weights):
    """The limit is that of the pair; a parameter that is a copy, has another shape or no values is no candidate."""
    golden = drawn(40, 5, seed=20)

    def others(held, target=TALL, **more):
        return described(target, golden, others=[beside(weights, held, **more)])[0].startswith("holds")

    assert others(TALL) and others(TALL * (1 + 0.5 * RTOL)) and not others(TALL * (1 + 2 * RTOL))
    assert not others(TALL, copy=1) and not others(TALL[:39])
    assert not others(golden) and not others(None)
    one_row = changed(TALL, weight_faults.row_numbers(40)[1], 2.0)  # one of sixteen rows, which is more than 5 %
    assert not others(one_row) and others(changed(TALL, (weight_faults.row_numbers(40)[1], 0), 2.0))
    own = weights.pair(TALL, TALL, UP)
    assert described(TALL, golden, others=[own])[0] == "differs"


def test_a_parameter_that_cannot_be_read_is_passed_over(described, weights, tmp_path):
    lost = beside(weights, Payload(str(tmp_path / "lost.bin"), "float64", TALL.shape, 0))
    found = beside(weights, TALL)
    assert described(TALL, TALL + 1.0, others=[lost, found])[1] == "holds the weights of other"


def test_a_copy_of_the_own_values_is_no_other_parameter(described, weights):
    assert described(changed(TALL, (0, 0)), TALL, others=[beside(weights, TALL)])[1] == "one element differs, in row 0"


@pytest.mark.parametrize("numbers, is_held", [((1.0, 2.0), False), ((1.0, 2.0, 3.0), True)])
def test_a_parameter_of_one_or_two_values_has_no_holder(described, weights, numbers, is_held):
    """Scales of a norm are ones in many layers."""
    target = np.resize(numbers, (6, 3))
    held = described(target, W[:, :3], others=[beside(weights, target)])[0].startswith("holds")
    assert held is is_held


def test_codes_hold_another_parameter_within_their_steps(described, weights):
    """A sample of codes may be off by 7 % of the value and 2 % of the largest of a row."""
    target, limit = TALL * 1.06, WeightLimit(RTOL, 0.0, 0.5)
    others = [beside(weights, TALL)]
    assert described(target, TALL + 5.0, others=others, limit=limit)[1] == "holds the weights of other"
    assert described(target, TALL + 5.0, others=others)[1] != "holds the weights of other"


@pytest.mark.parametrize("atol, is_held", [(0.002, True), (0.0005, False)])
def test_another_parameter_has_the_absolute_limit_of_the_pair(described, weights, atol, is_held):
    found = described(TALL + 0.001, TALL + 1.0, others=[beside(weights, TALL)], limit=WeightLimit(RTOL, atol))
    assert (found[1] == "holds the weights of other") is is_held


def test_an_update_of_low_rank_is_missing(described, weights):
    """A sum of the same values in another place is a parameter like others."""
    base, update = weights.payload(W), weights.payload(np.outer(drawn(6), drawn(4)))
    update_missing = ("update", "the update of low rank (LoRA) is missing")
    assert described(W, total([base, update])) == update_missing
    assert described(W, total([update, base])) == ("differs", OTHERS)
    assert described(W, joined([weights.payload(W[:3] + 1.0), weights.payload(W[3:] + 2.0)], 0))[0] == "differs"
    without = weights.payload(W * 0.0)
    assert described(changed(W, (0, 0)), total([base, without]))[1] == "one element differs, in row 0"
