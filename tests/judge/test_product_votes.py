"""The votes of crafted products: what one product shows, and which tensors are its operands and its result."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.judge.products import ROUNDED, MatrixProduct, OperandFigures, are_reduced_alike, votes_of
from npucmp.model import Measurement, Operator, Pair, TensorRef
from tests.judge.test_products import eleven_bits, moments_of

TWO = 2 * ROUNDED**2  # the square of the error of 11 bits in both operands of 16 terms of either sign


def figures(error=0.0, rms=1.0, elements=256, is_long=True):
    return OperandFigures(rms, math.sqrt(error), elements, is_long)


def vote(read=(0.0, 0.0), wrote=TWO, terms=16, rms=4.0, elements=256, is_long=(True, True)):
    """The vote by squares of errors."""
    operands = tuple(figures(one, is_long=long) for one, long in zip(read, is_long))
    return MatrixProduct(operands, figures(wrote, rms, elements), terms).vote


@pytest.mark.parametrize(
    "share, sign",
    [(0.0, -1), (0.249, -1), (0.251, 1), (1.0, 1), (1.99, 1), (2.01, 0), (100.0, 0)],
)
def test_a_product_adds_a_quarter_to_twice_the_expected_square(share, sign):
    assert vote(wrote=share * TWO) == sign
    assert vote(wrote=share * TWO / 2, is_long=(True, False)) == sign  # one operand was rounded
    assert vote(wrote=share * TWO / 2, is_long=(False, True)) == sign
    assert vote(wrote=share * TWO, is_long=(False, False)) == 0


@pytest.mark.parametrize("came", [0.0, 0.5, 1.0, 1.5, 1.99])
def test_a_vote_counts_less_the_larger_the_error_of_the_operands_is(came):
    expected = pytest.approx(1 / (1 + came**2))
    assert vote((came * TWO, 0.0), (came + 1) * TWO) == expected
    assert vote((0.0, came * TWO), (came + 1) * TWO) == expected
    assert -vote((came * TWO / 2, came * TWO / 2), (came + 0.2) * TWO) == expected
    assert vote((came * TWO, 0.0), (came + 2.1) * TWO) == 0.0


def test_operands_with_more_than_twice_the_expected_square_give_no_vote():
    assert vote((2.01 * TWO, 0.0), 3.01 * TWO) == vote((2.01 * TWO, 0.0), 2.01 * TWO) == 0.0


@pytest.mark.parametrize("elements, given", [(15, 0.0), (16, 1.0), (17, 1.0)])
def test_a_result_of_at_least_16_elements_votes(elements, given):
    assert vote(elements=elements) == given


@pytest.mark.parametrize("size, sign", [(0.99, 0), (1.0, 0), (math.nan, 0), (math.inf, 0)])
def test_an_error_of_the_size_of_the_values_gives_no_vote(size, sign):
    """The terms cancel so much that 11 bits would give half of it."""
    cancels = 4 * ROUNDED * math.sqrt(2) / math.sqrt(0.5)
    assert vote(wrote=0.49, rms=cancels) == 1.0
    assert vote(wrote=size**2, rms=cancels * 0.7) == (1.0 if size == 0.99 else 0.0)


def test_terms_that_cancel_add_more_and_terms_of_one_sign_less():
    for rms, share in ((1.0, 16.0), (16.0, 1 / 16)):
        assert vote(wrote=share * TWO, rms=rms) == 1.0
        assert vote(wrote=0.24 * share * TWO, rms=rms) == -1.0 and vote(wrote=2.1 * share * TWO, rms=rms) == 0.0
    assert vote(rms=0.0) == 0.0  # all are zero


def test_errors_that_are_not_independent_pass_on_unchanged():
    """Terms of one sign: the error of a scaled operand stays, that of others becomes a sixteenth of its square."""
    adds = TWO / 16
    assert vote((adds, 0.0), (1 / 16 + 0.2) * adds, rms=16.0) == pytest.approx(-0.5)
    assert vote((adds, 0.0), (1 / 16 + 0.3) * adds, rms=16.0) == 0.0  # may be either
    assert vote((adds, 0.0), 1.3 * adds, rms=16.0) == pytest.approx(0.5)
    cancels = 16 * TWO  # the square of either error grows 16 times, or stays
    assert vote((TWO, 0.0), TWO + 0.2 * cancels, rms=1.0) == pytest.approx(-0.5)
    assert vote((TWO, 0.0), (1 + 0.3) * cancels, rms=1.0) == pytest.approx(0.5)


def test_a_product_with_unknown_terms_may_have_read_a_smaller_error():
    assert vote(terms=0, rms=9.0) == 1.0 and vote(terms=0, rms=9.0, wrote=0.2 * TWO) == -1.0
    assert vote((TWO, 0.0), 1.3 * TWO, terms=0) == pytest.approx(0.5)
    assert vote((TWO, 0.0), 1.2 * TWO, terms=0) == 0.0
    assert vote((TWO, 0.0), 0.2 * TWO, terms=0) == pytest.approx(-0.5)


CHANCE = np.random.default_rng(7)


def drawn(*shape):
    return CHANCE.standard_normal(shape).astype(np.float32)


def multiplied(a, b, reduced=True):
    """The result in both runs: of 11 bits, or nearly exact, in the target, and exact in the golden."""
    exact = a.astype(np.float64) @ b
    own = eleven_bits(a) @ eleven_bits(b) if reduced else exact * (1 + 1e-7)
    return own.astype(np.float32), exact.astype(np.float32)


def measured(*records, compared=True, dtype="float32"):
    """Measurements of records (name, type, tensors by slot): an array, or one for each run. A record of the phase
    backward has the call before its last dot."""
    found = []
    for order, (name, op_type, tensors) in enumerate(records):
        held = {slot: one if isinstance(one, tuple) else (one, one) for slot, one in tensors.items()}
        refs = tuple(TensorRef(slot, dtype, one[0].shape) for slot, one in held.items())
        call, _, phase = name.rpartition(".")
        operator = Operator(name, op_type, op_type, phase, order, refs, call=call)
        for ref in refs:
            pair = Pair(order, ref.slot, operator, operator, ref, ref)
            found.append(Measurement(pair, moments_of(*held[ref.slot]) if compared else None))
    return found


A, B, C, D = drawn(8, 64), drawn(64, 8), drawn(8, 64), drawn(64, 8)
LARGE = C * np.float32(2.0**20)
Y, EXACT = multiplied(A, B), multiplied(A, B, reduced=False)


def matmul(wrote=Y, name="a.forward", op_type="matmul", read=(A, B), more=()):
    inputs = {f"input:{at}": one for at, one in enumerate(read)}
    return name, op_type, {**inputs, "output:0": wrote, **dict(more)}


def signs(*records, **more):
    return {name: round(found, 2) for name, found in votes_of(measured(*records, **more)).items()}


@pytest.mark.parametrize(
    "records, found",
    [
        ([matmul()], {"a.forward": 1.0}),
        ([matmul(EXACT)], {"a.forward": -1.0}),
        ([matmul(name="b.forward"), matmul(EXACT, "a.forward")], {"b.forward": 1.0, "a.forward": -1.0}),
        ([matmul(), matmul(EXACT)], {"a.forward": -1.0}),  # equally sure: the negative one
        ([matmul(), matmul(name="module.forward")], {"a.forward": 1.0}),  # the same product again
        ([matmul(op_type="attention")], {}),  # two products
        ([matmul(op_type="add")], {}),
        ([matmul(more={"output:1": A})], {}),  # two results
        ([matmul(read=(A, B, LARGE))], {"a.forward": 1.0}),  # of two others, the product would have another size
        ([matmul(op_type="baddbmm", read=(LARGE, A, B))], {"a.forward": 1.0}),  # the first is added
        ([matmul(read=(A, B, drawn(8)))], {"a.forward": 1.0}),
        ([matmul(drawn(0, 8))], {}),
        ([matmul(read=(drawn(8), A, B))], {"a.forward": 1.0}),  # vectors are added
        ([matmul(read=(A, B[:0]))], {}),
        ([matmul(op_type="conv_transpose2d", read=(A, B[:0]))], {}),
        ([matmul(drawn(99), op_type="conv2d")], {"a.forward": -1.0}),  # as if nothing was added
        ([("a.forward", "matmul", {"output:0": Y, "output:1": A})], {}),
        ([("a.forward", "matmul", {"output:0": Y})], {"a.forward": 1.0}),
        ([], {}),
    ],
)
def test_each_product_of_float32_votes_once(records, found):
    assert signs(*records) == found
    assert [*signs(*records)] == [*found]
    assert signs(*records, compared=False) == signs(*records, dtype="float16") == {}


@pytest.mark.parametrize("side", ["target", "golden"])
def test_another_type_on_either_side_gives_no_vote(side):
    rows = measured(matmul())
    for at in range(3):
        one = rows[at]
        tensor = getattr(one.pair, side)._replace(dtype="float64")
        changed = [*rows[:at], one._replace(pair=one.pair._replace(**{side: tensor})), *rows[at + 1 :]]
        assert votes_of(changed) == {}
        gone = [*rows[:at], one._replace(moments=one.moments._replace(compared=0)), *rows[at + 1 :]]
        assert votes_of(gone) == {}


def test_an_operand_of_11_bits_is_not_rounded():
    short = A.astype(np.float16).astype(np.float32)
    assert signs(matmul(multiplied(short, B), read=(short, B))) == {"a.forward": 1.0}
    half = B.astype(np.float16).astype(np.float32)
    assert signs(matmul(multiplied(short, half), read=(short, half))) == {}


@pytest.mark.parametrize("side", [0, 1])
def test_a_result_that_one_side_rounded_to_16_bits_tells_nothing(side):
    """float16 rounds as much as the operands of these units do, which add in float32."""
    wrote = [*EXACT]
    wrote[side] = wrote[side].astype(np.float16).astype(np.float32)
    assert signs(matmul(tuple(wrote))) == {}
    whole = [np.round(one) for one in EXACT]  # few bits, which nothing rounded to 16
    assert signs(matmul((whole[0] * np.float32(1 + 2.9e-4), whole[1]))) == {"a.forward": 1.0}


def backward(wrote, read, saved, op_type="matmul"):
    """A forward of the last two saved tensors in float32, and its gradient."""
    forward = matmul((saved[-2] @ saved[-1],) * 2, read=saved, op_type=op_type)
    outputs = {f"output:{at}": one for at, one in enumerate(wrote)}
    return measured(("f.forward", op_type, forward[2]), ("f.backward", op_type, {"input:0": read, **outputs}))


G = drawn(8, 8)
SQUARE = drawn(8, 8)


@pytest.mark.parametrize("reduced, expected", [(True, 1.0), (False, -1.0)])
def test_the_gradient_of_an_operand_is_a_product_of_the_other(reduced, expected):
    left, right = multiplied(G, B.T.copy(), reduced), multiplied(A.T.copy(), G, reduced)
    for wrote in ([left], [right], [left, right], [right, left]):
        found = votes_of(backward(wrote, G, (A, B)))
        assert found.pop("f.forward") == -1.0
        assert found == {"f.backward": pytest.approx(expected, abs=0.01)}
    assert votes_of(backward([left], G, (C, A, B), "addmm"))["f.backward"] == pytest.approx(expected, abs=0.01)
    for wrote, read in (([drawn(3, 3)], G), ([left], drawn(8, 9)), ([], G)):
        assert [*votes_of(backward(wrote, read, (A, B)))] == ["f.forward"]


def test_gradients_of_operands_of_one_shape_take_the_operands_in_turn():
    """The first reads the second operand, and the second the first."""
    big = SQUARE * np.float32(2.0**20)  # the terms of a product with the wrong operand have another size
    wrote = [multiplied(G, big.T.copy()), multiplied(SQUARE.T.copy(), G)]
    found = votes_of(backward(wrote, G, (SQUARE, big)))
    assert found["f.backward"] == pytest.approx(1.0, abs=0.01)


FORMS = {  # shapes of the operands and the result, and the number of terms
    "matmul": ((5, 40), (40, 7), (5, 7), 40),
    "linear": ((2, 5, 40), (7, 40), (2, 5, 7), 40),
    "bmm": ((6, 5, 40), (6, 40, 7), (6, 5, 7), 40),
    "conv2d": ((2, 12, 5, 5), (6, 12, 3, 3), (2, 6, 3, 3), 108),
    "conv1d": ((2, 12, 9), (6, 12, 3), (2, 6, 7), 36),
    "depthwise_conv2d": ((2, 12, 5, 5), (12, 1, 3, 3), (2, 12, 3, 3), 9),
    "conv_transpose2d": ((2, 12, 4, 4), (12, 6, 3, 3), (2, 6, 4, 4), 108),
}


@pytest.mark.parametrize("op_type", FORMS)
@pytest.mark.parametrize("share, sign", [(0.2, -1.0), (0.3, 1.0), (1.9, 1.0), (2.1, 0.0)])
def test_the_terms_of_a_result_follow_from_shapes(op_type, share, sign):
    """Every element of the operands is ±1, and of the result √terms."""
    *shapes, terms = FORMS[op_type]
    a, b, y = (np.sign(drawn(*shape)) for shape in shapes)
    read = [measured(("x.forward", op_type, {"input:0": one + np.float32(2.0**-20)}))[0].moments for one in (a, b)]
    exact = y * np.float32(math.sqrt(terms))
    wrote = exact * np.float32(1 + math.sqrt(share * TWO)), exact
    rows = measured(matmul(wrote, op_type=op_type, read=(a, b)))
    rows = [one._replace(moments=new) for one, new in zip(rows, [*read, rows[2].moments])]
    assert votes_of(rows) == ({"a.forward": pytest.approx(sign)} if sign else {})


def reader(x, name="r.forward", op_type="relu", slot="input:0"):
    return name, op_type, {slot: x, "output:0": drawn(*np.shape(x[0]))}


def inputs_alone(read=(A, B), op_type="matmul", name="a.forward"):
    return name, op_type, {f"input:{at}": one for at, one in enumerate(read)}


OTHER = [reader(drawn(3, 5), f"o{at}.forward") for at in range(4)]


@pytest.mark.parametrize(
    "records, found",
    [
        ([inputs_alone(), reader(Y)], True),
        ([inputs_alone(), *OTHER[:2], reader(Y)], True),
        ([inputs_alone(), *OTHER[:3], reader(Y)], False),  # the fourth operator
        ([inputs_alone(), reader(drawn(8, 9)), reader(Y, "s.forward")], True),
        ([inputs_alone(), reader(Y, op_type="layer_norm", slot="input:1")], False),  # a weight
        ([inputs_alone(), reader(Y, slot="param:weight")], False),
        ([reader(Y), inputs_alone()], False),
        ([("w.forward", "relu", {"output:0": Y}), inputs_alone(), reader(Y)], False),  # another operator wrote it
        ([inputs_alone(read=(A,)), reader(Y)], False),
        ([inputs_alone(read=(A, drawn(9, 64))), reader(Y)], False),
        ([inputs_alone(read=(A, drawn(9, 32))), reader((Y[0][:6, :6], Y[1][:6, :6]))], False),  # 64 terms of 32
        ([inputs_alone(op_type="relu"), reader(Y)], False),
        ([inputs_alone(name="a.backward"), reader(Y)], False),
    ],
)
def test_an_operator_soon_behind_a_product_reads_its_unrecorded_result(records, found):
    assert signs(*records) == ({"a.forward": 1.0} if found else {})


def test_a_result_belongs_to_the_first_open_product_of_its_shape_once():
    e = drawn(8, 64)
    second = multiplied(e, B)
    records = inputs_alone(), inputs_alone((e, B), name="b.forward"), reader(Y), reader(second, "s.forward")
    assert signs(*records) == {"a.forward": 1.0, "b.forward": 1.0}
    assert signs(inputs_alone(), reader(Y), reader(second, "s.forward")) == {"a.forward": 1.0}


CONV = (2, 12, 5, 5), (6, 12, 3, 3)


@pytest.mark.parametrize(
    "shape, fits",
    [((2, 6, 5, 5), True), ((2, 5, 5, 3), True), ((2, 5, 6, 4), False), ((3, 6, 5, 3), False), ((2, 6, 3), False)],
)
def test_the_result_of_a_convolution_has_its_batch_and_channels(shape, fits):
    """The last axis of the weight has the channels in TensorFlow."""
    x, w = (np.sign(drawn(*one)) * np.float32(1 + 2.0**-20) for one in CONV)
    y = np.sign(drawn(*shape)) * np.float32(math.sqrt(108))
    wrote = y * np.float32(1 + 1e-7), y
    assert bool(signs(inputs_alone((x, w), "conv2d"), reader(wrote))) is fits


def outputs_alone(name, op_type, wrote):
    return name, op_type, {"output:0": wrote}


def test_a_product_of_unrecorded_operands_is_assumed_to_read_the_largest_error_so_far():
    first = EXACT[1] * np.float32(1 + math.sqrt(TWO)), EXACT[1]
    alone = outputs_alone("a.forward", "matmul", first)
    assert signs(alone) == {"a.forward": 1.0}
    before = outputs_alone("r.forward", "relu", (G * np.float32(1 + math.sqrt(TWO)), G))
    other = outputs_alone("s.forward", "relu", (SQUARE * np.float32(1 + 1e-7), SQUARE))
    assert signs(before, other, alone) == signs(before, alone) == {}  # it may have passed on all of it
    assert signs(alone, before) == {"a.forward": 1.0}
    larger = outputs_alone("a.forward", "matmul", (EXACT[1] * np.float32(1 + math.sqrt(2 * TWO)), EXACT[1]))
    assert signs(before, larger) == {"a.forward": 0.5}
    given = before, inputs_alone((A,), name="x.forward"), matmul(first, read=(A,))
    assert signs(*given) == {"a.forward": 1.0}  # one operand is known, and has no error
    vector = G[0] * np.float32(1 + math.sqrt(TWO)), G[0]
    assert signs(matmul(first, read=(vector,))) == {"a.forward": 1.0}  # it is added


def test_two_operands_that_are_not_told_apart_give_no_vote():
    assert signs(matmul(read=(A, B.astype(np.float64)))) == {"a.forward": 1.0}
    rows = measured(matmul(read=(A,)))
    unread = [rows[0]._replace(moments=None), *rows[1:]]
    assert votes_of(unread) == {}


def stored(folder, name, both):
    found = []
    for side, values in zip("tg", both):
        np.save(folder / f"{name}{side}.npy", values)
        found.append(TensorRef(name, "float32", values.shape, str(folder / f"{name}{side}.npy"), "npy"))
    return found


def product_on_disk(folder, number, target, golden, bias=None):
    """A product that keeps 11 bits on a side or not. One element of an operand differs a little between the runs, so
    that 11 bits round it up in one run and down in the other."""
    a, b = drawn(16, 32), drawn(32, 16)
    near = a.copy()
    a[0, 0], near[0, 0] = 1 + 2.0**-11 - 2.0**-18, 1 + 2.0**-11 + 2.0**-18
    sides = []
    for x, reduced in ((near, target), (a, golden)):
        kept, noise = eleven_bits if reduced is True else np.float64, 1 + reduced * drawn(16, 16) * (reduced < 1)
        sides.append((kept(x) @ kept(b) * noise + (0 if bias is None else bias)).astype(np.float32))
    slots = {"input:0": (near, a), "input:1": (b, b), "output:0": tuple(sides)}
    slots |= {} if bias is None else {"input:2": (bias, bias)}
    rows = []
    for slot, both in slots.items():
        refs = [one._replace(slot=slot) for one in stored(folder, f"{number}{slot[0]}{slot[-1]}", both)]
        operator = Operator(f"m.{number}", "linear", "linear", "forward", number, (), call=f"m.{number}")
        rows.append(Measurement(Pair(number, slot, operator, operator, *refs), moments_of(*both)))
    return rows


@pytest.mark.parametrize(
    "target, golden, bias, alike",
    [
        (True, True, None, True),
        (True, True, np.linspace(5, 9, 16, dtype=np.float32), True),
        (True, False, None, False),
        (False, True, None, False),
        (True, 5e-4, None, False),  # a larger error decides nothing
        (False, False, None, False),
    ],
)
def test_both_runs_keep_11_bits_if_each_is_as_far_from_its_exact_product(tmp_path, target, golden, bias, alike):
    rows = product_on_disk(tmp_path, 0, target, golden, bias)
    assert are_reduced_alike(rows, ANYWHERE) is alike
    without = [one._replace(pair=one.pair._replace(golden=one.pair.golden._replace(file=""))) for one in rows]
    assert are_reduced_alike(without, ANYWHERE) is False
    assert are_reduced_alike([], ANYWHERE) is False


def test_one_of_eight_products_suffices(tmp_path):
    """No value is read where no error calls for an explanation."""
    exact = [product_on_disk(tmp_path, at, True, False) for at in range(2)]
    alike = product_on_disk(tmp_path, 9, True, True)
    one = [row._replace(pair=row.pair._replace(order=at)) for at, rows in enumerate([exact[0], alike]) for row in rows]
    assert are_reduced_alike(one, ANYWHERE)
    seven, eight = ([exact[0]] * count + [alike] for count in (7, 8))
    for records, expected in ((seven, True), (eight, False)):
        rows = [row._replace(pair=row.pair._replace(order=at)) for at, rows in enumerate(records) for row in rows]
        assert are_reduced_alike(rows, ANYWHERE) is expected
    quiet = [row._replace(moments=moments_of(A, A)) for row in alike]
    assert not are_reduced_alike(quiet, ANYWHERE)
