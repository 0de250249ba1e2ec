"""The description of a wrong parameter says what the target holds in place of the golden's values."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined, total
from npucmp.model import Payload
from npucmp.relations.weights import weight_faults
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.weight_faults import FaultFinder
from tests.localise.weight_craft import Weights, drawn

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


def test_all_parameters_together_have_a_limit_of_elements(weights, monkeypatch):
    """The second parameter of 24 elements would exceed it; one of 20 does not."""
    monkeypatch.setattr(weight_faults, "TOTAL", 44)
    finder = FaultFinder([], 1, ANYWHERE)
    pairs = [weights.pair(changed(one, (0, 0)), one) for one in (W, W, W[:5])]
    words = [stated(finder.fault(pair))[1] for pair in pairs]
    assert words == ["one element differs, in row 0", OTHERS, "one element differs, in row 0"]


# Shards of ranks


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


def beside(weights, values, **more):
    return weights.pair(values, values, DOWN, of_golden={"name": "other"}, **more)


def test_a_parameter_that_cannot_be_read_is_passed_over(described, weights, tmp_path):
    lost = beside(weights, Payload(str(tmp_path / "lost.bin"), "float64", TALL.shape, 0))
    found = beside(weights, TALL)
    assert described(TALL, TALL + 1.0, others=[lost, found])[1] == "holds the weights of other"


def test_an_update_of_low_rank_is_missing(described, weights):
    """A sum of the same values in another place is a parameter like others."""
    base, update = weights.payload(W), weights.payload(np.outer(drawn(6), drawn(4)))
    update_missing = ("update", "the update of low rank (LoRA) is missing")
    assert described(W, total([base, update])) == update_missing
    assert described(W, total([update, base])) == ("differs", OTHERS)
    assert described(W, joined([weights.payload(W[:3] + 1.0), weights.payload(W[3:] + 2.0)], 0))[0] == "differs"
    without = weights.payload(W * 0.0)
    assert described(changed(W, (0, 0)), total([base, without]))[1] == "one element differs, in row 0"
