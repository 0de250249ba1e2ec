"""The precision of each tensor, followed along the operators that wrote and read it, by hand."""

from typing import NamedTuple

import numpy as np
import pytest

from npucmp.judge.precision import Precision
from npucmp.localise.effective_precision import coarsest, own_precision, usual_precision, working_precisions
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement
from tests.localise.stat_craft import Op, Row, findings_of, of

U = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int32": 0.0}
SINGLE, HALF, BRAIN = U["float32"], U["float16"], U["bfloat16"]


def bare(slot, dtype="float32", seed=0, **more):
    """A tensor without values; the same seed is the same tensor, and 0 one that no other operator holds."""
    golden = of(4.0 + seed) if seed else None
    return Row(slot, golden=golden, dtype=dtype, known={"bound": None, **more.pop("known", {})}, **more)


def valued(slot, dtype="float32", seed=1, *, off=1e-6, bits=24, whole=False):
    """A tensor with values of as many significant bits."""
    y = np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)
    x = (y * (1 + off)).astype(np.float32)
    if whole:
        x, y = (np.round(16 * one).astype(np.float32) for one in (x, y))
    if bits < 24:
        cut = np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
        x, y = ((one.view(np.uint32) & cut).view(np.float32) for one in (x, y))
        x = (np.where(np.arange(64).reshape(8, 8) % 9 == 0, x * 2, x) if off else y).astype(np.float32)
    moments = measure_block(x.ravel(), y.ravel(), bars_for("float32", "float32", 0.0, 0.0))
    return Row(slot, golden=None, shape=(8, 8), dtype=dtype, known={"moments": moments, "bound": None})


def measured(*operators):
    return [one.measurement for one in findings_of(*operators)]


def units(*operators, reduced=False):
    """(round-off that sets the limit, coarsest round-off) of each tensor by operator and slot."""
    rows = measured(*operators)
    found = working_precisions(rows, reduced)
    return {
        f"{row.pair.order} {row.pair.slot}": (one.limiting.round_off, one.coarsest.round_off)
        for row, one in zip(rows, found)
    }


def others(count, dtype="float32"):
    """Operators elsewhere, that many of a type."""
    return [Op("tanh", (bare("output:0", dtype),)) for _ in range(count)]


def alone(*operators, dtype="float32"):
    """Behind 30 operators of a type, the tensors of the last operator."""
    found = units(*others(30, dtype), *operators)
    last = 30 + len(operators) - 1
    return {key.split()[1]: value for key, value in found.items() if key.startswith(f"{last} ")}


def test_a_run_of_one_type_has_one_precision():
    assert working_precisions([]) == []
    for dtype in ("float64", "bfloat16", "int32"):
        for make in (bare, valued):
            found = units(Op("tanh", (make("input:0", dtype), make("output:0", dtype, 2))))
            assert set(found.values()) == {(U[dtype], U[dtype])}
    assert set(units(Op("argmax", (bare("input:0"), bare("output:0", "int32")))).values()) == {(SINGLE, SINGLE)}
    assert set(units(Op("exp", (bare("input:0", "int32"), bare("output:0")))).values()) == {(SINGLE, SINGLE)}
    (mixed,) = units(Op("tanh", (bare("output:0", ("float32", "float16")),))).values()
    assert mixed == (HALF, HALF)


SIDE = Op("to", (valued("input:0", seed=1), valued("output:0", "float16", 2)))  # a branch in float16


@pytest.mark.parametrize(
    ("operators", "found"),
    [
        # what it reads is known, so that the type of the output sets the limit; a product may round the finer operand
        ([Op("tanh", (valued("input:0", seed=1), valued("output:0", seed=3)))], (SINGLE, SINGLE)),
        ([Op("tanh", (valued("input:0", "float16", 2), valued("output:0", seed=3)))], (SINGLE, HALF)),
        ([Op("matmul", (valued("input:0", "float16", 2), valued("output:0", seed=3)))], (HALF, HALF)),
        ([Op("tanh", (valued("input:0", "float16", 2), valued("output:0", seed=3))),
          Op("exp", (valued("input:0", seed=3), valued("output:0", seed=4)))], (SINGLE, HALF)),
        ([Op("tanh", (valued("input:0", "float16", 2), bare("output:0", seed=3))),
          Op("exp", (bare("input:0", seed=3), valued("output:0", seed=4)))], (HALF, HALF)),
        ([Op("tanh", (valued("input:0", "float16", 2), bare("output:0", seed=3))),
          Op("exp", (bare("input:0", seed=3, known={"problem": "target: truncated"}), valued("output:0", seed=4)))],
         (SINGLE, HALF)),
        ([Op("exp", (valued("input:0", seed=1), bare("input:1"), valued("output:0", seed=4)))], (HALF, HALF)),
        # without inputs, the coarsest type so far
        ([Op("exp", (valued("output:0", seed=4),), more={"reads_recorded": False})], (HALF, HALF)),
        ([Op("exp", (valued("input:0", seed=1), valued("output:0", seed=4)), more={"reads_recorded": False})],
         (HALF, HALF)),
        ([Op("exp", (valued("output:0", seed=4),))], (SINGLE, SINGLE)),
        ([Op("exp", (valued("input:0", seed=1), valued("output:0", seed=4)), more={"path": "a.b"})], (HALF, HALF)),
    ],
)  # fmt: skip
def test_the_types_of_an_operator_set_the_limit_if_the_errors_that_it_reads_are_known(operators, found):
    assert alone(SIDE, *operators)["output:0"] == found


def test_an_input_is_as_coarse_as_its_producer():
    written = Op("tanh", (valued("input:0", "float16", 2), valued("output:0", seed=3)))
    found = alone(SIDE, written, Op("exp", (valued("input:0", seed=3), valued("input:1", seed=1))))
    assert found == {"input:0": (HALF, HALF), "input:1": (SINGLE, SINGLE)}
    cast = Op("exp", (valued("input:0", "bfloat16", 3),))
    assert alone(SIDE, written, cast)["input:0"] == (BRAIN, BRAIN)


@pytest.mark.parametrize(
    ("op", "one", "found"),
    [
        ("tanh", valued("input:0", seed=9), HALF),
        ("tanh", bare("input:0"), HALF),
        ("tanh", valued("input:0", seed=9, off=0.0), SINGLE),  # equal bits
        ("tanh", valued("input:0", "float64", seed=9), HALF),
        ("tanh", bare("input:0", "int32"), 0.0),  # whole numbers are not rounded
        ("linear", valued("input:1", seed=9), SINGLE),  # a parameter
        ("linear", valued("input:0", seed=9), HALF),
        ("tanh", valued("input:0", "bfloat16", seed=9), BRAIN),
    ],
)
def test_an_input_without_a_producer_is_as_coarse_as_any_type_so_far(op, one, found):
    assert alone(SIDE, Op(op, (one,)))[one.slot] == (found, found)


@pytest.mark.parametrize(("count", "found"), [(3, SINGLE), (4, BRAIN), (5, BRAIN)])
def test_an_input_without_a_producer_is_as_coarse_as_a_tenth_of_the_run(count, found):
    """The operators of the coarser type come later; the input is one of the float tensors."""
    reads = Op("tanh", (valued("input:0", seed=9), bare("output:0")))
    numbers = Op("argmax", (bare("output:0", "int32"),))
    found_units = units(reads, *[numbers] * 9, *others(38 - count), *others(count, "bfloat16"))
    assert found_units["0 input:0"] == (found, found)
    findings = findings_of(reads, *[numbers] * 9, *others(38 - count), *others(count, "bfloat16"))
    assert usual_precision(findings) == Precision(found)


def test_a_run_without_floats_has_no_usual_type():
    assert usual_precision([]) == usual_precision(findings_of(*others(3, "int32"))) == Precision()


@pytest.mark.parametrize(
    ("op", "inputs", "found"),
    [
        ("all_reduce", (), BRAIN),
        ("all_reduce", (valued("input:0", seed=1),), SINGLE),
        ("recv", (), BRAIN),
        ("tanh", (), SINGLE),
    ],
)
def test_what_a_rank_receives_is_as_coarse_as_its_run(op, inputs, found):
    received = Op(op, (*inputs, valued("output:0", seed=5)))
    found_units = units(Op("to", (valued("output:0", seed=1),)), received, *others(20, "bfloat16"))
    assert found_units["1 output:0"] == (found, found)
    first = units(Op("to", (valued("input:0", "float16", seed=1),)), *others(40), received)
    assert first["41 output:0"][0] == (HALF if found == BRAIN else SINGLE)


def test_an_input_was_measured_where_it_was_written():
    """A graph names the producer; the values of the input were not recorded, and those of a third tensor nowhere."""
    first = Op("tanh", (valued("output:0", seed=3),), name="first")
    branch = Op("to", (valued("output:0", "float16", 2),), name="side")
    for source, found in (("first:0", SINGLE), ("side:0", SINGLE), ("other:0", HALF)):
        read = bare("input:0", tensors={"source": source})
        at = units(branch, first, Op("exp", (read, valued("output:0", seed=4))))
        assert at["2 output:0"][0] == found
    before = Op("to", (bare("output:0", "float16", 2),), name="side")
    read = bare("input:0", tensors={"source": "side:0"})
    assert units(first, before, Op("exp", (read, valued("output:0", seed=4))))["2 output:0"] == (HALF, HALF)


G = valued("input:0", seed=6)
FORWARD = (valued("input:0", seed=7), valued("output:0", seed=8))


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (FORWARD, (SINGLE, SINGLE)),
        ((FORWARD[0]._replace(dtype="float16"), FORWARD[1]), (HALF, HALF)),
        ((bare("input:0"), FORWARD[1]), (BRAIN, BRAIN)),  # the error of what was saved is unknown
        (None, (BRAIN, BRAIN)),  # of what was saved, nothing was recorded
    ],
)
def test_a_gradient_reads_what_its_forward_saved(forward, found):
    """All before it is float32 but for a branch in float16, and a good part of what follows is bfloat16."""
    before = [Op("exp", (G._replace(slot="output:0"),)), Op("exp", (valued("output:0", seed=7),))]
    saved = [Op("tanh", forward, call="one")] if forward else []
    backward = Op("tanh", (G, valued("output:0", seed=10)), "backward", "one")
    found_units = units(*before, *saved, SIDE, backward, *others(9, "bfloat16"))
    at = len(before) + len(saved) + 1
    assert found_units[f"{at} output:0"] == found


def test_a_gradient_without_recorded_inputs_is_as_coarse_as_what_was_saved():
    written = Op("tanh", (valued("input:0", "float16", 2), valued("output:0", seed=7)))
    backward = Op("tanh", (valued("output:0", seed=10),), "backward", "one")
    found = alone(SIDE, written, Op("tanh", FORWARD, call="one"), backward)
    assert found["output:0"] == (HALF, HALF)


@pytest.mark.parametrize(("op", "found"), [("tanh", BRAIN), ("add", SINGLE)])
def test_a_gradient_that_reads_nothing_saved_needs_no_forward(op, found):
    before = Op("exp", (G._replace(slot="output:0"),))
    backward = Op(op, (G, valued("output:0", seed=10)), "backward", "one")
    assert units(before, backward, *others(9, "bfloat16"))["1 output:0"] == (found, found)


def test_a_gradient_before_its_forward_reads_the_types_of_that_alone():
    operators = [
        Op("exp", (G._replace(slot="output:0"), valued("output:1", seed=7))),
        Op("tanh", (G, valued("output:0", seed=10)), "backward", "one"),
        Op("tanh", (valued("input:0", seed=7), valued("output:0", "float16", seed=8)), call="one"),
    ]
    assert units(*operators)["1 output:0"] == (HALF, HALF)


def test_a_tensor_of_one_side_has_its_own_type():
    rows = measured(*others(3, "bfloat16"), Op("to", (valued("input:0"), valued("output:0", "float16", seed=2))))
    one = rows[-1]
    alone = one._replace(pair=one.pair._replace(order=99, golden_op=None, golden=None), moments=None)
    found = working_precisions([*rows, alone])[-1]
    assert found.limiting == found.coarsest == Precision(HALF)


@pytest.mark.parametrize(
    ("op", "dtype", "reduced", "found"),
    [
        ("linear", "float32", True, True),
        ("linear", "float32", False, False),
        ("linear", "float64", True, True),
        ("linear", "float16", True, False),  # its products have 11 bits anyway
        ("add", "float32", True, False),
    ],
)
def test_float32_products_may_keep_eleven_bits(op, dtype, reduced, found):
    rows = measured(Op(op, (valued("input:0", dtype), valued("output:0", dtype, 2))),
                    Op("tanh", (valued("input:0", dtype, 2), valued("output:0", dtype, 3))))  # fmt: skip
    read, wrote, again, last = working_precisions(rows, reduced)
    assert (read.coarsest.reduced, wrote.limiting.reduced, wrote.coarsest.reduced) == (False, found, found)
    assert (again.limiting.reduced, last.limiting.reduced, last.coarsest.reduced) == (found, False, found)


class Stored(NamedTuple):
    """Values of bfloat16 that are kept in float32, or not, of an operator of one tensor."""

    op: str
    slot: str
    short: bool
    off: float = 1e-6


def stored(*tensors):
    """The round-off of each tensor, in a run whose other values need all bits."""
    operators = [
        Op(one.op, (valued(one.slot, seed=20 + at, off=one.off, bits=8 if one.short else 24),))
        for at, one in enumerate(tensors)
    ]
    return [one[0] for one in units(*operators).values()]


COMPUTED, MOVED = Stored("tanh", "output:0", True), Stored("transpose", "output:0", True)
WEIGHT, GIVEN = Stored("linear", "input:1", True), Stored("tanh", "input:0", True)
LONG = COMPUTED._replace(short=False)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ([COMPUTED], [BRAIN]),
        ([COMPUTED._replace(off=0.0), LONG], [SINGLE, SINGLE]),  # equal bits show nothing
        ([COMPUTED, *[LONG] * 9], [BRAIN] + [SINGLE] * 9),
        ([COMPUTED, *[LONG] * 10], [BRAIN] + [SINGLE] * 10),  # an operator shows its own type
        # values that were moved, and parameters, if a tenth of the computed values are short
        ([MOVED, COMPUTED], [BRAIN, BRAIN]),
        ([WEIGHT, COMPUTED], [BRAIN, BRAIN]),
        ([MOVED, LONG], [SINGLE, SINGLE]),
        ([WEIGHT, LONG], [SINGLE, SINGLE]),
        ([MOVED, COMPUTED, *[LONG] * 9], [BRAIN, BRAIN] + [SINGLE] * 9),
        ([MOVED, COMPUTED, *[LONG] * 10], [SINGLE, BRAIN] + [SINGLE] * 10),
        # if nothing was computed, what was moved or given shows the type, and then the parameters
        ([MOVED], [BRAIN]),
        ([MOVED, WEIGHT], [BRAIN, BRAIN]),
        ([MOVED._replace(short=False), WEIGHT], [SINGLE, SINGLE]),
        ([WEIGHT], [BRAIN]),
        ([WEIGHT, *[WEIGHT._replace(short=False)] * 10], [SINGLE] * 11),
        ([WEIGHT, *[WEIGHT._replace(short=False)] * 9], [BRAIN] + [SINGLE] * 9),
    ],
)
def test_short_values_show_the_type_to_which_a_run_rounds(tensors, found):
    assert stored(*tensors) == found


def test_zeros_and_tensors_without_values_show_no_type():
    zeros = np.zeros(64, np.float32)
    moments = measure_block(zeros, zeros, bars_for("float32", "float32", 0.0, 0.0))
    zero = Row("output:0", golden=None, shape=(64,), dtype="float32", known={"moments": moments, "bound": None})
    assert set(units(Op("tanh", (zero,))).values()) == {(SINGLE, SINGLE)}
    short = Op("transpose", (valued("output:0", seed=3, bits=8),)), Op("tanh", (valued("output:0", seed=4, bits=8),))
    long = [Op("tanh", (valued("output:0", seed=5 + at),)) for at in range(9)]
    nothing = [Op("tanh", (zero,))] * 3 + [Op("tanh", (bare("output:0"),))] * 3
    assert units(*short, *long, *nothing)["0 output:0"] == (BRAIN, BRAIN)


def test_an_input_of_short_values_shows_no_type_of_a_long_run():
    assert stored(GIVEN, LONG)[0] == SINGLE and stored(GIVEN, COMPUTED)[0] == BRAIN


def test_the_precision_of_one_tensor():
    (whole,) = measured(Op("tanh", (valued("output:0"),)))
    assert own_precision(whole) == Precision(SINGLE) and own_precision(whole, BRAIN) == Precision(BRAIN)
    assert own_precision(whole, U["float64"]) == Precision(SINGLE)
    (lost,) = measured(Op("tanh", (bare("output:0", ("float16", "float32")),)))
    assert isinstance(lost, Measurement) and own_precision(lost, BRAIN) == Precision(HALF)


def test_the_coarsest_precision_is_that_of_each_field():
    some = [Precision(SINGLE, True, False), Precision(HALF, False, True), Precision(U["float64"])]
    assert coarsest(some) == coarsest(some[::-1]) == Precision(HALF, True, True)
    assert coarsest([]) == Precision() and coarsest(some[:1]) == some[0] and coarsest(iter(some[1:2])) == some[1]
