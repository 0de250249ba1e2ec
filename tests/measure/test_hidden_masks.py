"""Masks by positions: constants that the kernel does not know, before an exponential and behind known masks."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.dump.limits import ANYWHERE
from npucmp.measure.error_map import tensor_detail
from npucmp.measure.hidden_masks import with_hidden_masks
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import Closeness, measure
from npucmp.model import Finding, Operator, Pair, TensorRef, Verdict
from npucmp.model.dtypes import numpy_dtype

LOWEST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38, "float32": -3.4028234663852886e38}
HIDDEN = np.triu(np.ones((2, 8, 8), bool), 1)


def scores(seed=0, shape=HIDDEN.shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def held(values, dtype):
    """As a type holds it, in a file that numpy can write."""
    with np.errstate(over="ignore"):
        found = np.asarray(values, np.float32).astype(numpy_dtype(dtype))
    return found.astype(np.float32) if dtype == "bfloat16" else found


def masked(x, constant, added=False, hidden=HIDDEN):
    return np.where(hidden, np.float32(constant) + (x if added else np.float32(0)), x)


@pytest.fixture
def measured(tmp_path):
    """The measurements, by operator and slot, of operators with tensors (target, golden) of a type."""
    numbers = count()

    def ref(values, slot, dtype):
        file = tmp_path / f"{next(numbers)}.npy"
        np.save(file, held(values, dtype))
        return TensorRef(slot, dtype, np.shape(values), str(file), "npy")

    def run(operators, dtype="float32", phase="forward"):
        found = []
        for order, (name, tensors) in enumerate(operators.items()):
            operator = Operator(f"{name}.{order}", name, name, phase, order, ())
            for slot, sides in tensors.items():
                pair = Pair(order, slot, operator, operator, *(ref(one, slot, dtype) for one in sides))
                found.append(measure(pair))
        again = with_hidden_masks(found, Closeness(), ANYWHERE)
        assert all(one.pair is two.pair and one.bytes_read == two.bytes_read for one, two in zip(found, again))
        return {f"{one.pair.operator.op_type} {one.pair.slot}": one for one in again}

    return run


def read_by(reader, target, golden):
    """A masked_fill and what reads its output."""
    shown = np.abs(np.nan_to_num(scores(9), neginf=0.0))
    return {
        "masked_fill": {"output:0": (target, golden)},
        reader: {"input:0": (target, golden), "output:0": [shown] * 2},
    }


CONSTANTS = {
    "-4e9": {"float32": -4e9, "bfloat16": -4e9},
    "-1e9 / 4": {"float32": -1e9 / 4, "bfloat16": -1e9 / 4},
    "-1e4 / 4": dict.fromkeys(LOWEST, -1e4 / 4),
    "-500": dict.fromkeys(LOWEST, -500.0),
    "the lowest / 4": {dtype: one / 4 for dtype, one in LOWEST.items()},
    "the lowest / 8": {dtype: one / 8 for dtype, one in LOWEST.items()},
    "-1e9": {"float32": -1e9, "bfloat16": -1e9},
    "the lowest": LOWEST,
}
SAME = [(dtype, one) for of_types in CONSTANTS.values() for dtype, one in of_types.items()]


@pytest.mark.parametrize("added", [False, True], ids=["filled", "added"])
@pytest.mark.parametrize("dtype, constant", SAME)
def test_a_constant_that_no_exponential_sees_is_a_mask(measured, dtype, constant, added):
    x, y = (masked(one, constant, added) for one in (scores() * np.float32(1.1), scores()))
    x, y = (np.maximum(one, np.float32(LOWEST[dtype])) for one in (x, y))
    found = measured(read_by("softmax", x, y), dtype)
    for one in (found["masked_fill output:0"].moments, found["softmax input:0"].moments):
        assert (one.masked, one.compared) == (HIDDEN.sum(), (~HIDDEN).sum())
        wide_x, wide_y = (held(side, dtype).astype(np.float64)[~HIDDEN] for side in (x, y))
        assert rel_l2(one) == pytest.approx(math.dist(wide_x, wide_y) / np.linalg.norm(wide_y))


@pytest.mark.parametrize("dtype", LOWEST)
def test_minus_infinity_stays_what_it_is(measured, dtype):
    x, y = (masked(one, -np.inf) for one in (scores() * np.float32(1.1), scores()))
    one = measured(read_by("softmax", x, y), dtype)["softmax input:0"].moments
    assert (one.masked, one.mismatched, one.compared) == (0, 0, (~HIDDEN).sum())
    assert rel_l2(one) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("sides", [(-np.inf, -1e9), (-1e9, -np.inf), (-np.inf, LOWEST["float32"])])
def test_minus_infinity_in_one_run_is_the_constant_of_the_other(measured, sides):
    """float16 has no -1e9. Other positions, other places and rows that have nothing else stay data."""
    x, y = (masked(one, side) for one, side in zip((scores() * np.float32(1.1), scores()), sides))
    one = measured(read_by("softmax", x, y))["softmax input:0"].moments
    assert (one.masked, one.mismatched, one.compared) == (HIDDEN.sum(), 0, (~HIDDEN).sum())
    assert rel_l2(one) == pytest.approx(0.1, rel=0.05)
    assert measured(read_by("tanh", x, y))["tanh input:0"].moments.mismatched == HIDDEN.sum()
    more = HIDDEN | (np.arange(HIDDEN.size).reshape(HIDDEN.shape) == 8)
    one = measured(read_by("softmax", np.where(more, np.float32(sides[0]), x), y))["softmax input:0"].moments
    assert one.mismatched or one.max_abs > 1e8
    rows = HIDDEN.copy()
    rows[1, 5:] = True
    x, y = (masked(scores(), side, hidden=rows) for side in sides)
    assert measured(read_by("softmax", x, y))["softmax input:0"].moments.mismatched


TWO_OF_ONE_SIDE = masked(scores(), -4e9)
ONE_MORE = np.where(np.arange(HIDDEN.size).reshape(HIDDEN.shape) == 8, np.float32(-4e9), TWO_OF_ONE_SIDE)


def test_a_mask_on_one_side_alone_is_data(measured):
    one = measured(read_by("softmax", ONE_MORE, TWO_OF_ONE_SIDE))["softmax input:0"].moments
    assert (one.masked, one.compared) == (HIDDEN.sum(), (~HIDDEN).sum())
    assert one.max_abs == pytest.approx(4e9) and one.max_abs_index == 8


def of_rows(constant):
    """Whole rows that are masked, as of padding."""
    hidden = HIDDEN.copy()
    hidden[1, 5:] = True
    return hidden, [masked(one, constant, True, hidden) for one in (scores() * np.float32(1.1), scores())]


def test_padding_of_one_constant_is_mask(measured):
    hidden, (x, y) = of_rows(-4e9)
    assert measured(read_by("softmax", x, y))["softmax input:0"].moments.masked == hidden.sum()


ONCE = np.zeros(HIDDEN.shape, bool)
ONCE[0, 0, 1] = True
DATA = {
    "masks that a softmax sees, for a row has nothing else": of_rows(-4e3)[1],
    "once": [masked(one, -4e9, hidden=ONCE) for one in (scores() * 2, scores())],
    "constants": [np.full(HIDDEN.shape, one, np.float32) for one in (-4e9, -3e9)],
    "numbers around -1e9": [-1e9 + 3e8 * scores(seed) for seed in (0, 1)],
    "numbers of all sizes": [-1e9 * np.exp(3 * scores(seed)) for seed in (0, 1)],
    "numbers around 1e9": [1e9 + 3e8 * scores(seed) for seed in (0, 1)],
    "numbers that an exponential sees beside the others": [
        np.where(HIDDEN, -450 + scores(), -370 + scores(seed)) for seed in (0, 1)
    ],
    "on one side": [TWO_OF_ONE_SIDE, scores()],
    "elsewhere on the other side": [masked(scores(), -4e9), masked(scores(), -4e9, hidden=~HIDDEN)],
    "but for one value that the other side masks": [masked(scores(), -4e9, hidden=~one) for one in (ONCE, ONCE[::-1])],
}


@pytest.mark.parametrize("x, y", DATA.values(), ids=DATA)
@pytest.mark.parametrize("reader", ["softmax", "exp", "attention", "mystery"])
def test_data_is_no_mask(measured, x, y, reader):
    one = measured(read_by(reader, x, y))[f"{reader} input:0"].moments
    assert (one.masked, one.compared) == (0, one.elements)


def test_other_operators_and_gradients_see_every_constant(measured):
    x, y = (masked(one, -4e9) for one in (scores() * np.float32(1.1), scores()))
    assert measured(read_by("mystery", x, y))["mystery input:0"].moments.masked == 0
    assert measured(read_by("softmax", x, y), phase="backward")["softmax input:0"].moments.masked == 0


def test_unequal_constants_are_one_mask_before_an_exponential_alone(measured):
    x, y = masked(scores(), -4e9), masked(scores(), -1e9 / 3)
    assert measured(read_by("softmax", x, y))["masked_fill output:0"].moments.masked == HIDDEN.sum()
    assert measured(read_by("mystery", x, y))["masked_fill output:0"].moments.masked == 0


def behind(sides, of_result, *operators):
    """masked_fill, and operators that hand on what they make of its output to nobody who is known."""
    found = {"masked_fill": {"output:0": sides}}
    for operator in operators:
        made = [of_result(one) for one in sides]
        found[operator], sides = {"input:0": sides, "output:0": made}, made
    return found, f"{operators[-1]} output:0"


CARRIED = {
    "scaled": (lambda x: x / np.float32(4), "div"),
    "scaled twice": (lambda x: x / np.float32(3), "mul", "div"),
    "added to": (lambda x: x + np.float32(2) * x.max(), "add"),
    "added to itself": (lambda x: x + x, "add"),
    "cast": (lambda x: held(x, "bfloat16"), "to"),
    "moved": (lambda x: (x / np.float32(8)).transpose(0, 2, 1), "mul", "transpose"),
}


@pytest.mark.parametrize("make, operators", [(one[0], one[1:]) for one in CARRIED.values()], ids=CARRIED)
@pytest.mark.parametrize("constant", [-1e9, -1e4, LOWEST["float32"] / 2])
def test_operators_carry_masks_along(measured, constant, make, operators):
    sides = [masked(one, constant) for one in (scores() * np.float32(1.1), scores())]
    found, last = behind(sides, make, *operators)
    one = measured(found)[last].moments
    assert one.masked == HIDDEN.sum()
    assert rel_l2(one) < 0.5


def test_a_mask_that_one_run_scales_by_another_number_is_data(measured):
    sides = [masked(scores(), -1e9)] * 2
    scaled = sides[0] / np.float32(4.1), sides[1] / np.float32(4)
    found = measured({"masked_fill": {"output:0": sides}, "div": {"input:0": sides, "output:0": scaled}})
    assert found["div output:0"].moments.masked == 0
    assert rel_l2(found["div output:0"].moments) == pytest.approx(0.1 / 4.1, rel=1e-3)


def test_an_operator_that_computes_carries_nothing(measured):
    found, last = behind([masked(one, -1e9) for one in (scores() * 2, scores())], lambda x: x / np.float32(4), "linear")
    assert measured(found)[last].moments.masked == 0


@pytest.mark.parametrize("dtype, constant", [("bfloat16", -1e9), ("bfloat16", -1e4), ("float16", -1e5 / 2)])
def test_a_constant_as_a_type_of_16_bits_rounds_it(measured, dtype, constant):
    """In files of numpy, which hold them as float32; half of what 1e5 would be in float16 is no known constant."""
    x, y = (masked(held(one, dtype).astype(np.float32), held(constant, dtype)) for one in (scores() * 2, scores()))
    one = measured(read_by("mystery", x, y))["mystery input:0"].moments
    assert one.masked == (HIDDEN.sum() if constant in (-1e9, -1e4) else 0)


def test_what_agrees_is_no_data_beside_what_differs(measured):
    """A mask is the same in both runs; the scores that it is added to are not."""
    mask = masked(np.zeros(HIDDEN.shape, np.float32), -4e9)
    x, y = scores() * np.float32(1.1), scores()
    add = {"input:0": (x, y), "input:1": (mask, mask), "output:0": (x + mask, y + mask)}
    found = measured({"add": add, **read_by("softmax", x + mask, y + mask)})
    assert found["add input:1"].moments.masked == found["add output:0"].moments.masked == HIDDEN.sum()
    add["input:0"] = add["output:0"] = (y, y)
    assert measured({"add": add})["add input:1"].moments.masked == 0


def test_a_second_look_leaves_the_same_positions_out(measured):
    x, y = masked(scores() * np.float32(1.1), -1e9), masked(scores(), -4e9)
    one = measured(read_by("softmax", x, y))["softmax input:0"]
    seen = tensor_detail(Finding(one, Verdict.DIVERGED, ""))
    assert seen.worst[0].at == one.moments.max_abs_index and seen.worst[0].abs_err == one.moments.max_abs


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from(sorted(LOWEST)),
    st.floats(0.01, 0.9),
    st.floats(3.0, 38.0),
    st.floats(3.0, 38.0),
    st.booleans(),
)
def test_norms_are_those_of_what_is_no_mask(tmp_path_factory, seed, dtype, share, size, other, added):
    """Whatever the constants, where the masks stand, and what else differs."""
    random = np.random.default_rng(seed)
    hidden = random.random((6, 10)) < share
    hidden[:, 0] = False
    values = random.standard_normal((6, 10)).astype(np.float32)
    sides = [
        np.maximum(masked(one, -(10.0**exponent), added, hidden), np.float32(LOWEST[dtype]))
        for one, exponent in ((values * np.float32(1.1), size), (values, other))
    ]
    folder, refs = tmp_path_factory.mktemp("hidden"), []
    for name, one in zip("xy", sides):
        np.save(folder / f"{name}.npy", held(one, dtype))
        refs.append(TensorRef("input:0", dtype, one.shape, str(folder / f"{name}.npy"), "npy"))
    operator = Operator("softmax.0", "softmax", "softmax", "forward", 0, ())
    (found,) = with_hidden_masks([measure(Pair(0, "input:0", operator, operator, *refs))], Closeness(), ANYWHERE)
    x, y = (held(one, dtype).astype(np.float64) for one in sides)
    kept = ~hidden if hidden.sum() > 1 else np.ones_like(hidden)
    assert (found.moments.masked, found.moments.compared) == ((~kept).sum(), kept.sum())
    assert found.moments.yy == pytest.approx(np.square(y[kept]).sum(), rel=1e-9)
    assert found.moments.sum_dd == pytest.approx(np.square(x - y)[kept].sum(), rel=1e-9)


def crafted(folder, *records, phase="forward"):
    """Masked elements of operators (name, type, tensors by slot[, type of the golden's operator]): both sides of a
    tensor, or the place in the graph whose values an input reads."""
    found = []
    for order, (name, op_type, tensors, *other) in enumerate(records):
        operators = [Operator(name, one, one, phase, order, ()) for one in (op_type, *other, op_type)[:2]]
        for slot, one in tensors.items():
            if isinstance(one, str):
                refs = [TensorRef(slot, "float32", HIDDEN.shape, source=one)] * 2
            else:
                files = [folder / f"{order}{slot[0]}{slot[-1]}{side}.npy" for side in "tg"]
                for file, values in zip(files, one):
                    np.save(file, values)
                refs = [
                    TensorRef(slot, values.dtype.name, values.shape, str(file), "npy")
                    for file, values in zip(files, one)
                ]
            found.append(measure(Pair(order, slot, *operators, *refs)))
    again = with_hidden_masks(found, Closeness(), ANYWHERE)
    return [one.moments.masked if one.moments else None for one in again]


COUNT = int(HIDDEN.sum())
SIDES = masked(scores(), -2e3), masked(scores() + np.float32(1e-3), -7e3)  # masks of two constants


@pytest.mark.parametrize(
    "op_type, other, hides",
    [
        ("softmax", [], True),
        ("relu", ["softmax"], True),
        ("softmax", ["relu"], True),
        ("relu", [], False),
        ("relu", ["tanh"], False),
    ],
)
def test_an_exponential_of_either_run_hides_masks(tmp_path, op_type, other, hides):
    found = crafted(tmp_path, ("a", op_type, {"input:0": SIDES, "output:0": (scores(1), scores(2))}, *other))
    assert found == [COUNT if hides else 0, 0]


@pytest.mark.parametrize("source, hides", [("a:0", True), ("a:1", False), ("b:0", False), ("", False)])
def test_a_graph_names_the_tensor_that_an_exponential_reads(tmp_path, source, hides):
    """The dump lacks the values of the input."""
    first = "a", "relu", {"output:0": SIDES}
    second = "b", "softmax", {"input:0": source, "output:0": (scores(1), scores(2))}
    assert crafted(tmp_path, first, second)[0] == (COUNT if hides else 0)


def test_whole_numbers_and_complex_numbers_have_no_masks(tmp_path):
    for kind in (np.int32, np.complex64):
        sides = tuple((100 * one).astype(kind) for one in SIDES)
        one = crafted(tmp_path, ("a", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}))
        assert one == [0, 0]


@pytest.mark.parametrize("constants", [(-2e3, -7e3), (-1e9, -1e9)], ids=["unknown", "known"])
def test_a_constant_before_a_fill_is_all_mask(tmp_path, constants):
    """An operator that moves values writes a tensor with masks, which a softmax reads."""
    fill = tuple(np.full(HIDDEN.shape, one, np.float32) for one in constants)
    sides = masked(scores(), constants[0]), masked(scores() + np.float32(1e-3), constants[1])
    found = crafted(
        tmp_path,
        ("a", "where", {"input:0": fill, "output:0": sides}),
        ("b", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}),
    )
    assert found == [HIDDEN.size, COUNT, COUNT, 0]
    alone = crafted(tmp_path, ("b", "softmax", {"input:0": fill, "output:0": (scores(1), scores(2))}))
    assert alone == [0, 0]


@pytest.mark.parametrize("low, hides", [(-101.0, True), (-100.0, True), (-99.0, False)])
def test_masks_are_100_below_all_other_values(tmp_path, low, hides):
    x = np.where(HIDDEN, np.float32(low), np.float32(1.0) * np.eye(8, dtype=np.float32))
    sides = x, x + np.float32(1e-3) * ~HIDDEN
    found = crafted(tmp_path, ("a", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}))
    assert found[0] == (COUNT if hides else 0)


@pytest.mark.parametrize("low, hides", [(-100.0, True), (-99.99999, False)])
def test_a_mask_may_lie_at_the_bound_of_a_side(tmp_path, low, hides):
    sides = tuple(np.where(HIDDEN, np.float32(low), np.float32(one)) for one in (0.0, 1e-3))
    found = crafted(tmp_path, ("a", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}))
    assert found[0] == (COUNT if hides else 0)


@pytest.mark.parametrize("number, hides", [(1, False), (2, True)])
def test_a_single_mask_is_a_value(tmp_path, number, hides):
    hidden = np.zeros(HIDDEN.shape, bool)
    hidden.reshape(-1)[:number] = True
    sides = masked(scores(), -2e3, hidden=hidden), masked(scores() + np.float32(1e-3), -2e3, hidden=hidden)
    found = crafted(tmp_path, ("a", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}))
    assert found[0] == (number if hides else 0)


def test_a_file_that_is_gone_hides_no_mask(tmp_path):
    record = "a", "softmax", {"input:0": SIDES, "output:0": (scores(1), scores(2))}
    crafted(tmp_path, record)
    operator = Operator("a", "softmax", "softmax", "forward", 0, ())
    refs = [TensorRef("input:0", "float32", HIDDEN.shape, str(tmp_path / f"0i0{side}.npy"), "npy") for side in "tg"]
    one = measure(Pair(0, "input:0", operator, operator, *refs))
    (tmp_path / "0i0g.npy").unlink()
    assert with_hidden_masks([one], Closeness(), ANYWHERE) == [one]
    assert with_hidden_masks([], Closeness(), ANYWHERE) == []


@pytest.mark.parametrize("spread, are_masks", [(1.125, True), (1.25, True), (1.375, False)])
def test_masks_behind_a_mask_spread_like_the_values_beside_them(tmp_path, spread, are_masks):
    """Other values spread by 1, and two roundings on each side move a constant of -2^20 by 2^-2."""
    values = np.where(np.eye(8, dtype=bool), np.float32(1.0), np.float32(0.0))
    made = np.where(HIDDEN, np.float32(-(2.0**20)), values + np.zeros(HIDDEN.shape, np.float32))
    made[0, 0, 0] = 1.0
    made.reshape(-1)[np.flatnonzero(HIDDEN)[0]] += np.float32(spread)
    other = np.where(made == 1.0, np.float32(1.0 - 2.0**-20), made)
    other[0, 0, 0] = 1.0
    known = masked(scores(), -1e9), masked(scores() + np.float32(1e-3), -1e9)
    found = crafted(tmp_path, ("a", "div", {"input:0": known, "output:0": (made, other)}))
    assert found == [COUNT, COUNT if are_masks else 0]


def test_a_tensor_that_is_nan_on_one_side_is_not_searched(tmp_path):
    broken = SIDES[0].copy()
    broken[0, 0, 0] = np.nan
    assert not HIDDEN[0, 0, 0]
    for sides in ((broken, SIDES[1]), (SIDES[0], broken)):
        assert crafted(tmp_path, ("a", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}))[0] == 0


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_tensor_of_one_run_hides_no_mask(tmp_path, side):
    np.save(tmp_path / "x.npy", SIDES[0])
    ref = TensorRef("input:0", "float32", HIDDEN.shape, str(tmp_path / "x.npy"), "npy")
    operator = Operator("a", "softmax", "softmax", "forward", 0, ())
    pair = Pair(0, "input:0", operator, operator, ref, None) if side == "target" else None
    one = measure(pair or Pair(0, "input:0", operator, operator, None, ref))
    assert with_hidden_masks([one], Closeness(), ANYWHERE)[0] is one
