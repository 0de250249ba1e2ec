"""How far an operator with recorded statistics may shift before it exceeds the noise before it: the smallest shift of
each figure that does, counted by hand; and which proven roots rest on more than figures within the noise."""

import math
from typing import Mapping

import pytest

from npucmp.localise.stat_facts import Level
from npucmp.localise.stat_test import kind_of, with_counts
from npucmp.model import Cause, Root, Statistics
from tests.localise.stat_craft import FIGURES, HALF, SINGLE, Op, Row, nodes, of, outlier, row, visited

MAX, MIN, MEAN, NORM = range(4)
ALL = 5.0  # times the noise before: the factor of all figures, and that of mean and norm of a first forward pass
SUMS = 3.5
LATER = 8.0
RMS = 64.01 / 64
A, B = row("input:0", golden=of(5.0)), row("input:1", golden=of(6.0))
SINGLES = tuple(one._replace(dtype="float32") for one in (A, B))
MIXED = ("float32", "bfloat16")
IN_SINGLES = HALF / SINGLE  # roundings of float32 in one of bfloat16
NOTHING = Statistics(None, None, None, None)
MASKED = Statistics(4.0, -math.inf, -math.inf, math.inf)


def read(at, size, of_row=A):
    """The same input with a figure that shifted."""
    return of_row._replace(shifts=tuple(size if at == one else 0.0 for one in range(4)))


def operator(at, size, *inputs, op="mul", phase="forward", call="", slot="output:0", more: Mapping = {}, **own):
    return Op(op, (*inputs, row(slot, at, size, **own)), phase, call, more)


def assert_bar(bar, at, *inputs, before=(), facts: Mapping = {}, now: Mapping = {}, shape=(64, 64), wrote=(), **own):
    """The smallest shift of a figure, in roundings, with which the operator exceeds the noise before it; None if no
    shift is enough. Figures of few elements need a larger one: 1 + 16/n times. Another operator wrote the inputs that
    shifted."""
    bar, found = bar and bar * (1 + 16 / math.prod(shape)), []
    inputs += tuple(one._replace(slot="input:0") for one in wrote)
    before += tuple(
        Op("gelu", (one._replace(slot="output:0"),)) for one in inputs[: len(inputs) - len(wrote)] if any(one.shifts)
    )
    for size in (0.999 * bar, 1.001 * bar) if bar else (1e4,):
        one = operator(at, size, *inputs, shape=shape, **own)
        found.append(outlier(*before, one, facts=facts, now=now) is not None)
    assert found == ([False, True] if bar else [False])


@pytest.mark.parametrize(
    ("bar", "at", "more"),
    [
        *[(2 * factor, at, {}) for at, factor in ((MAX, ALL), (MIN, ALL), (MEAN, SUMS), (NORM, SUMS))],
        *[(2 * ALL, at, {"phase": "backward"}) for at in (MAX, MEAN, NORM)],
        *[(2 * LATER, at, {"facts": {"first": False}}) for at in (MAX, MEAN, NORM)],
        (2 * ALL, MAX, {"shape": (4, 4), "golden": of(4.0, 4.001)}),
        # a repeated run has one rounding
        (2 * SUMS, NORM, {"now": {"still": 3}}),
        (SUMS, NORM, {"now": {"still": 4}}),
        (ALL, MAX, {"now": {"still": 4}}),
        (2 * SUMS, NORM, {"now": {"still": 4, "moved": True}}),
        # earlier operators
        (10 * ALL, MAX, {"now": {"kind": Level(10 * HALF, 0.0)}}),
        (2 * SUMS, NORM, {"now": {"kind": Level(10 * HALF, 0.0)}}),
        (10 * ALL, MAX, {"now": {"kind": Level(0.0, 10 * HALF)}}),
        (10 * SUMS, NORM, {"now": {"kind": Level(0.0, 10 * HALF)}}),
        (2 * ALL, MAX, {"now": {"sums": 10 * HALF}}),
        (10 * SUMS, MEAN, {"now": {"sums": 10 * HALF}}),
        # parameters of a later step
        (6 * ALL, MAX, {"facts": {"drift": 6 * HALF}}),
        (6 * SUMS, NORM, {"facts": {"drift": 6 * HALF}}),
        (SUMS, NORM, {"facts": {"drift": 6 * HALF}, "now": {"still": 4}}),
        (6 * ALL, MAX, {"facts": {"unproven": 6 * HALF}}),
        (6 * SUMS, NORM, {"facts": {"unproven": 6 * HALF}}),
        # coarser types
        (16 * SUMS, NORM, {"facts": {"reduced": 8 * HALF}}),
        (2 * ALL, MAX, {"facts": {"coarse": 8 * HALF}}),
        (8 * ALL, MAX, {"facts": {"coarse": 8 * HALF}, "judged": {"working": 4 * HALF}}),
        (8 * ALL, MAX, {"facts": {"coarse": 4 * HALF}, "judged": {"working": 8 * HALF}}),
        (2 * IN_SINGLES * ALL, MAX, {"dtype": "float32"}),  # it reads bfloat16
    ],
)
def test_an_output_exceeds_the_noise_before_it(bar, at, more):
    assert_bar(bar, at, A, B, **more)


@pytest.mark.parametrize(
    ("bar", "at", "inputs", "more"),
    [
        (20 * ALL, MAX, (read(MAX, 20), B), {}),
        (20 * 25 / RMS**2 / 64 * SUMS, NORM, (read(MAX, 20), B), {}),  # one of 4096 elements affects sums little
        (20 * ALL, MAX, (A, read(NORM, 20, B)), {}),
        (20 * SUMS, MEAN, (A, read(NORM, 20, B)), {}),
        (20 * SUMS, MEAN, (A, read(NORM, 20, row("input:1", shape=(8,), golden=of(9, 2.83)))), {"shape": (2, 4)}),
        # squares of large errors add up in a norm alone
        (100 * SUMS, MEAN, (read(NORM, 100),), {}),
        (100 * SUMS * 64 * (100 * HALF / 4) / 2, NORM, (read(NORM, 100),), {}),
        (2000 * SUMS * 32, NORM, (read(NORM, 2000),), {}),  # a limit of 4 and more is an error of 1
        # sums of more elements than the input has repeat its shift
        (2 * 5 * SUMS, NORM, (read(NORM, 5),), {"shape": (128, 128), "golden": of(4.0, 128.02)}),
        (5 * SUMS, NORM, (read(NORM, 5),), {"shape": (32, 32), "golden": of(4.0, 32.01)}),
        (5 * ALL, MAX, (read(MAX, 5),), {"shape": (128, 128), "golden": of(4.0, 128.02)}),
        # unrecorded inputs have the usual shift
        (10 * ALL, MAX, (), {"now": {"levels": 10 * HALF, "seen": 1}}),
        (10 * SUMS, MEAN, (), {"now": {"last": 10 * HALF, "seen": 1}}),
        (2 * ALL, MAX, (), {"now": {"levels": 10 * HALF}}),
        (2 * ALL, MAX, (A,), {"now": {"levels": 10 * HALF, "seen": 1}}),
        # a figure of float32 has two roundings of itself
        (128 * 2 * SUMS, NORM, SINGLES, {"dtype": "float32"}),
        (128 * SUMS, NORM, SINGLES, {"dtype": "float32", "now": {"still": 4}}),
        (2 * ALL, MAX, SINGLES, {"dtype": "float32"}),
        (2 * ALL, MAX, SINGLES, {"dtype": "float32", "before": (Op("mul", (A, row("output:0", MAX, 1))),)}),
        # a type of one side alone
        (2 / IN_SINGLES * ALL, MAX, SINGLES, {"dtype": MIXED}),
        (2 * ALL, MAX, SINGLES, {"dtype": MIXED, "facts": {"apart": True}}),
        (2 * ALL, MAX, SINGLES, {"dtype": MIXED, "op": "to"}),  # a cast is meant to round
        (2 / IN_SINGLES * ALL, MAX, SINGLES, {"dtype": MIXED, "op": "clone"}),
        # weights are rounded once and read again and again
        (8 * 2 * SUMS, MEAN, (A, B._replace(shape=(64,))), {"dtype": MIXED, "facts": {"apart": True}}),
        (2 * SUMS, MEAN, (A, B._replace(shape=(64,))), {}),
        (8 * 2 * IN_SINGLES * SUMS, MEAN, (A, B._replace(shape=(64,))), {"dtype": "float32"}),
        (2 * IN_SINGLES * ALL, MAX, (A, B._replace(shape=(64,))), {"dtype": "float32"}),
        (4 * 2 * SUMS, MEAN, (), {"shape": (16, 256), "dtype": MIXED, "facts": {"apart": True}}),  # the last axis
        # the condition number of exp is its largest operand; each rounding is enlarged once any tensor shifted
        (5 * 20 * ALL, MAX, (read(MAX, 20),), {"op": "exp"}),
        (2 * ALL, MAX, (A,), {"op": "exp"}),
        (5 * ALL, MAX, (A,), {"op": "exp", "now": {"moved": True}}),
        (5 * SUMS, MEAN, (A,), {"op": "exp", "now": {"moved": True}}),
        (2 * ALL, MAX, (A,), {"now": {"moved": True}}),
        # sums that cancel: 64 terms of each element; two terms
        (2 * 8 * RMS * ALL, MAX, (A, B), {"op": "linear"}),
        (2 * 2**0.5 * ALL, MAX, (A, B), {"op": "add"}),
        (2 * ALL, MAX, (A, B), {"op": "add", "golden": of(4.0, 128.02)}),
        # integers that differ, and tensors of two shapes, make outputs that nothing predicts
        (2 * ALL, MAX, (A, row("input:1", dtype="int64")), {}),
        (None, MAX, (A, row("input:1", dtype="int64", target=of(9.0))), {}),
        (None, MAX, (A, B._replace(known={"shapes_differ": True})), {}),
        (2 * ALL, MAX, (A, B._replace(target=NOTHING, golden=NOTHING)), {}),
        (2 * ALL, MAX, (A, B._replace(golden=None)), {}),
        # modules, in which operators are judged
        (None, MAX, (A, B), {"facts": {"containing": frozenset(["mul.0"])}}),
        (None, MAX, (A, B), {"facts": {"containing": frozenset(["forward a.b"])}, "more": {"path": "a.b"}}),
        (2 * ALL, MAX, (A, B), {"facts": {"containing": frozenset(["a.b"])}, "more": {"path": "a.b"}}),
        (None, MAX, (), {"op": "empty"}),
        (None, MAX, (A,), {"golden": Statistics(0.0, 0.0, 0.0, 0.0), "target": FIGURES}),
    ],
)
def test_the_noise_of_an_output_is_that_of_what_its_operator_reads(bar, at, inputs, more):
    assert_bar(bar, at, *inputs, **more)


SMALL = row("input:1", golden=of(0.5, 6.401))  # a tenth of the sum
SUM = 2**0.5  # of two terms, if their signs are random


@pytest.mark.parametrize(
    ("bar", "at", "small", "more"),
    [
        (0.1 * 50 * SUM * SUMS, MEAN, read(NORM, 50, SMALL), {}),
        (0.5 / RMS * 50 * SUM * ALL, MAX, read(MAX, 50, SMALL), {}),
        (50 * SUM * ALL, MAX, read(MAX, 50, SMALL._replace(golden=of(4.5, 6.401))), {}),
        (50 * ALL, MAX, read(MAX, 50, SMALL), {"golden": MASKED}),  # its size is unknown
        (50 * ALL, MAX, read(MAX, 50, SMALL), {"phase": "backward"}),
        (50 * ALL, MAX, read(MAX, 50, SMALL), {"op": "mul"}),
        # of a sum with itself, so that its elements are more than those of the sum
        (50 * 3**0.5 * ALL, MAX, read(MAX, 50, SMALL._replace(shape=(128, 64), golden=of(0.5, 9.05))), {}),
    ],
)
def test_a_small_term_affects_a_sum_little(bar, at, small, more):
    assert_bar(bar, at, A, small, **{"op": "add", **more})


FLIPS = 16 * 20 * HALF * 4096  # elements whose choice an error of 20 roundings may flip
FLIPPED = FLIPS**0.5 / 128


@pytest.mark.parametrize(
    ("bar", "at", "saved", "more"),
    [
        (1 / HALF * ALL, MAX, (read(NORM, 20),), {}),
        (FLIPPED / HALF * ALL, MEAN, (read(NORM, 20),), {}),
        (20 * ALL, MAX, (read(NORM, 20),), {"op": "tanh"}),
        (2 * ALL, MAX, (A._replace(golden=None),), {"known": None}),
        (20 * ALL, MAX, (read(NORM, 20), row("input:1", dtype="bool")), {}),
        (None, MAX, (read(NORM, 20), row("input:1", dtype="bool", target=of(9.0))), {}),
        (256.0 * ALL, NORM, (read(NORM, 256, A._replace(dtype="float32")),), {"dtype": "float32", "op": "tanh"}),
        (12 * ALL, MAX, (read(NORM, 12, A._replace(dtype="float32")),), {"dtype": "float32"}),
        (1 / SINGLE * ALL, MAX, (read(NORM, 13, A._replace(dtype="float32")),), {"dtype": "float32"}),
        (1 / SINGLE / 128 * ALL, MEAN, (read(NORM, 13, A._replace(dtype="float32")),), {"dtype": "float32"}),
    ],
)
def test_a_gradient_of_a_choice_whose_mask_was_not_recorded_may_flip(bar, at, saved, more):
    """An error of 12 roundings of float32 flips less than a twentieth of an element."""
    gradient = row("input:0", golden=more.pop("known", of(7.0)), dtype=more.get("dtype", "bfloat16"))
    op = more.pop("op", "relu")
    before = Op(op, saved, call="one")
    assert_bar(bar, at, gradient, before=(before,), op=op, phase="backward", call="one", **more)


@pytest.mark.parametrize(
    ("bar", "at", "masked"),
    [
        (5 * 20 * ALL, MAX, read(NORM, 20)),
        (5 * 20 * SUMS, MEAN, read(NORM, 20)),
        (5 * 30 * ALL, MAX, read(MAX, 30)),
        (5 * 30 * 25 / RMS**2 / 64 * SUMS, MEAN, read(MAX, 30)),
        (1.5 * 20 * ALL, MAX, read(NORM, 20, row("input:0", golden=of(1.5)))),
        (None, MAX, A._replace(golden=None)),
        (2 * ALL, MAX, A),
    ],
)
def test_figures_that_a_mask_hides_have_the_noise_of_what_was_masked(bar, at, masked):
    """An exponential enlarges it by the largest operand that was not masked."""
    hidden = row("output:0", golden=MASKED, target=MASKED)
    assert_bar(bar, at, before=(Op("masked_fill", (masked, hidden)),), wrote=(hidden,), op="softmax")


@pytest.mark.parametrize(
    ("bar", "phase", "shown"),
    [
        (5 * 20 * ALL, "forward", 0),
        (150 * ALL, "forward", 150),
        (2 * ALL, "backward", 0),
        (2 * ALL, "forward", None),  # no figure of the operand
    ],
)
def test_figures_behind_exp_do_not_show_the_noise_of_its_operand(bar, phase, shown):
    made = row("output:0", NORM, shown or 0, golden=of(8.0))
    operand = A._replace(golden=None) if shown is None else read(NORM, 20)
    assert_bar(bar, MAX, before=(Op("exp", (operand, made), phase),), wrote=(made,))


def test_an_output_at_the_bar_does_not_exceed_it():
    """Twenty roundings are 2 · 5 · (1 + 16/16), and all these numbers are exact."""
    found = [outlier(operator(MAX, size, shape=(4, 4), golden=of(4.0, 4.001))) for size in (20, 20.01)]
    assert found[0] is None and found[1].ratio > 2.0


OUT = row("output:0")
WEIGHT = A._replace(slot="input:1")


def test_the_tensor_and_the_figure_that_exceed_the_noise_most_are_named():
    one = Op("mul", (A, B, Row("output:0", (20.0, 0.0, 0.0, 30.0)), Row("output:1", (40.0, 0.0, 7.5, 0.0), of(9.0))))
    found = outlier(one)
    assert (found.finding.pair.slot, found.figure, found.noise) == ("output:0", NORM, 2.0)
    assert found.ratio == pytest.approx(30 / 2 / SUMS) and found.moved.each[NORM] == pytest.approx(30)
    assert (found.before, found.as_much) == (0, 0)
    found = outlier(one._replace(rows=(read(MIN, 30, A), *one.rows[1:])))
    assert (found.finding.pair.slot, found.figure, found.ratio) == ("input:0", MIN, pytest.approx(30 / 0.5 / ALL))


@pytest.mark.parametrize(("shift", "as_much"), [(9, 3), (10, 3), (11, 1), (31, 0)])
def test_earlier_operators_that_shifted_as_much_are_counted(shift, as_much):
    found = outlier(operator(MIN, shift * 2.0))
    found = with_counts(found, [0.0, *(HALF * one for one in (20.0, 20.0, 60.0))])
    assert (found.before, found.as_much) == (4, as_much)


def test_the_first_operator_and_the_same_on_other_ranks_are_candidates():
    quiet, one = Op("mul", (A, OUT), name="a"), Op("mul", (A, read(MAX, 30, OUT)), name="b")
    first, same, other = nodes(quiet, one._replace(name="b"), one._replace(name="c"))
    noise, _, _ = visited(quiet)
    assert all(map(noise.is_candidate, (first, same, other)))
    noise, _, _ = visited(quiet, one)
    assert [noise.is_candidate(each) for each in (first, same, other)] == [False, True, False]


SHIFTED = Row("output:0", (3.0, 0.0, 0.0, 4.0))
KIND = {"kind": ("mul", False), "highest": Level(3 * HALF, 4 * HALF), "incoming": 0.0, "is_open": False, "still": False,
        "sums": False}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "more", "differs"),
    [
        ((A, SHIFTED), {}, {}),
        ((A, OUT), {}, {"highest": Level(), "still": True}),
        ((A, SHIFTED, Row("output:1", (5.0, 0.0, 0.0, 0.0), of(4))), {}, {"highest": Level(5 * HALF, 4 * HALF)}),
        ((read(NORM, 1, A), OUT), {}, {"highest": Level(), "incoming": HALF, "still": False}),
        ((read(MAX, 1, A), read(NORM, 1.5, B), SHIFTED), {}, {"incoming": 1.5 * HALF}),
        ((SHIFTED,), {"now": {"seen": 1, "levels": HALF}}, {"is_open": True}),
        ((read(NORM, 1, A), B), {}, {"highest": Level(0.0, HALF), "incoming": HALF}),
        ((A, read(NORM, 1, WEIGHT)), {"op": "linear"},
         {"highest": Level(), "incoming": HALF, "sums": True, "kind": ("linear", False)}),
        ((A, SHIFTED), {"phase": "backward"}, {"kind": ("mul", True)}),
        ((A, SHIFTED), {"op": "own_op"}, {"kind": ("own_op", False)}),
        ((A, SHIFTED), {"op": "Muls"}, {}),
        ((A, SHIFTED), {"op": "add"}, {"kind": ("add", False), "sums": True}),
        ((A, SHIFTED), {"op": "layer_norm"}, {"kind": ("layer_norm", False), "sums": True}),
        ((A, SHIFTED._replace(dtype="int32")), {}, {"highest": Level(), "still": True}),
        ((read(NORM, 1, A), SHIFTED), {"facts": {"containing": frozenset(["mul.0"])}}, {}),
        ((A, Row("output:0", target=FIGURES._replace(norm=math.nan))), {}, None),
        ((A, Row("output:0", target=FIGURES._replace(norm=math.nan)), SHIFTED._replace(slot="output:1")), {}, {}),
        ((WEIGHT,), {"op": "linear"}, None),
        ((A, SHIFTED), {"op": "empty"}, {"highest": Level(), "kind": ("empty", False), "still": True}),
    ],
)  # fmt: skip
def test_an_operator_adds_its_shift_to_the_noise(rows, more, differs):
    """Infinite shifts are no noise; an operator whose outputs were not recorded adds the shift of its inputs."""
    keys = {one: more[one] for one in ("facts", "now") if one in more}
    one = Op(more.get("op", "mul"), rows, more.get("phase", "forward"))
    _, _, found = visited(one, **keys)
    if differs is None:
        assert found is None
        return
    expected = {**KIND, **differs}
    assert (found.kind, found.is_open, found.still, found.sums) == tuple(
        expected[name] for name in ("kind", "is_open", "still", "sums")
    )
    assert (*found.highest, found.incoming) == pytest.approx((*expected["highest"], expected["incoming"]), rel=1e-6)


def test_the_usual_shift_of_unrecorded_inputs_is_not_the_incoming_one():
    forward = Op("mul", (read(NORM, 3, A),), call="one")
    _, _, found = visited(forward, Op("mul", (SHIFTED,), "backward", "one"), now={"seen": 1, "levels": 9 * HALF})
    assert found.is_open and found.incoming == pytest.approx(3 * HALF)


def test_spellings_of_an_operator_are_one_kind_and_its_gradient_is_another():
    mul, muls, own = nodes(*(Op(op, (A, OUT)) for op in ("mul", "Muls", "own")))
    (gradient,) = nodes(Op("mul", (A, OUT), "backward"))
    assert kind_of(mul) == kind_of(muls) and len({kind_of(one) for one in (mul, own, gradient)}) == 3


def is_beyond(slot, first=True, known: Mapping = {}, metric="rel_l2", shift=0.0, now: Mapping = {}):
    """Whether a root of a product is beyond the noise; `known` is what is known of all its tensors."""
    rows = (A, WEIGHT._replace(golden=of(6.0)), read(MAX, shift, OUT))
    one = Op("linear", tuple(each._replace(known=known) for each in rows))
    noise, node, _ = visited(one, facts={"first": first}, now=now)
    root = Root(1, node.pair, Cause.BORN, slot, metric, 1.0, 1e-6, 0.0, 1.0, ())
    return noise.is_beyond(node, root)


@pytest.mark.parametrize(
    ("slot", "more", "beyond"),
    [
        ("output:0", {}, False),
        ("output:0", {"first": False}, False),
        ("input:0", {"first": False}, False),
        ("input:1", {}, False),
        ("input:1", {"first": False}, True),  # a parameter of a later step
        ("output:0", {"known": {"same": True}}, False),
        ("output:0", {"known": {"same": False}}, True),  # checksums differ
        ("output:0", {"known": {"statistics": (None, None)}}, True),  # no figures
        ("output:0", {"known": {"shapes_differ": True}}, True),
        ("output:0", {"known": {"shapes_differ": True}, "metric": "shape"}, True),
        # noise before it may have changed a choice of rows
        ("output:0", {"known": {"shapes_differ": True}, "metric": "shape", "now": {"moved": True}}, False),
        ("output:0", {"known": {"shapes_differ": True}, "now": {"moved": True}}, True),
        ("output:1", {"known": {"same": False}}, False),  # another tensor
        ("output:1", {"shift": 1000.0}, True),  # an output that exceeds the noise
    ],
)
def test_a_root_rests_on_more_than_figures(slot, more, beyond):
    assert is_beyond(slot, **more) == beyond
