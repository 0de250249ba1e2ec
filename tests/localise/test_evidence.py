"""The sentences that say why an operator is suspected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from npucmp.localise.evidence import (
    argument_reasons,
    own_reasons,
    passed_reasons,
    pattern_reasons,
    type_reasons,
    worst_of,
)
from npucmp.localise.gap_evidence import Around, gap_reasons
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict

NAN = float("nan")
X, Y = TensorRef("input:0", "float32", (4,)), TensorRef("output:0", "float32", (4,))


def operator(*tensors, reads_recorded=True, **arguments) -> Operator:
    return Operator("norm", "norm", "norm", "", 0, tensors, arguments=arguments, reads_recorded=reads_recorded)


GIVEN = operator(X, Y, eps=1e-5)


@pytest.mark.parametrize(
    "target, says",
    [
        (operator(X, Y, eps=1e-3), "argument eps is 0.001 in the target, 1e-05 in the golden"),
        (operator(X, Y), "argument eps is 'absent' in the target, 1e-05 in the golden"),
        (operator(Y, dim=1), "argument eps is 'absent' in the target, 1e-05 in the golden"),
        (operator(X, Y, reads_recorded=False), ""),
        (operator(Y), ""),
        (operator(), ""),
    ],
    ids=["differs", "left out", "another", "reads not recorded", "outputs alone", "nothing"],
)
def test_an_argument_is_absent_only_where_arguments_would_stand(target, says):
    words = [one.sentence() for one in argument_reasons(Pair(0, "output:0", target, GIVEN, Y, Y))]
    assert says in words if says else words == []
    back = argument_reasons(Pair(0, "output:0", GIVEN, target, Y, Y))
    assert bool(back) == bool(says)


@pytest.mark.parametrize(
    "scale, says",
    [(0.01, "1.01"), (-0.5, "0.5"), (1.27e-4, "1.00013"), (1e-7, "1+1.0e-07"), (-3e-6, "1-3.0e-06")],
)
def test_a_factor_next_to_one_is_told_apart_from_it(scale, says):
    moments = Moments(4, compared=4, xx=(1 + scale) ** 2, yy=1.0, xy=1.0 + scale, sum_dd=scale**2, max_abs=abs(scale))
    one = Finding(Measurement(Pair(0, "output:0", GIVEN, GIVEN, Y, Y), moments), Verdict.DIVERGED, "")
    assert [one.sentence() for one in pattern_reasons(one)] == [f"the whole target is {says} times the golden"]


def found(order, name, slot, error, phase="forward", dtypes=("float32", "float32"), because="checksums differ"):
    tensors = [TensorRef(slot, dtype, (4,)) for dtype in dtypes]
    op = Operator(name, "norm", "norm", phase, order, tuple(tensors))
    return Finding(Measurement(Pair(order, slot, op, op, *tensors)), Verdict.DIVERGED, because, error)


OWN = found(3, "norm.back", "output:0", 0.5, "backward")
CAME, SAVED = found(3, "norm.back", "input:0", 1e-7, "backward"), found(1, "norm", "output:0", 2e-3)
ANOTHER, FORWARD = found(3, "norm.back", "input:1", NAN, "backward"), found(3, "norm", "output:0", 0.5)
GRADIENT, HELD = "the incoming gradient differs: ", "a tensor saved by the forward pass differs: "


@pytest.mark.parametrize(
    "own, apart, read, says",
    [
        (OWN, [(2e-3, SAVED, True)], [CAME, SAVED], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(2e-3, SAVED, False)], [SAVED], f"{GRADIENT}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(0.5, SAVED, True), (0.1, CAME, False)], [], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(0.1, CAME, False), (0.1, SAVED, True)], [], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(1e-7, CAME, False), (0.0, SAVED, True)], [], f"{GRADIENT}input:0, rel_l2 1.0e-07"),
        (OWN, [(9.0, ANOTHER, False), (1e-7, CAME, False)], [], f"{GRADIENT}input:1, checksums differ"),
        (FORWARD, [(2e-3, found(3, "norm", "input:0", 2e-3), False)], [], "inputs differ: input:0, rel_l2 2.0e-03"),
        (FORWARD, [(2e-3, SAVED, False)], [], "inputs differ: norm output:0, rel_l2 2.0e-03"),
        (FORWARD, [(2e-3, SAVED, True)], [], "a tensor of another rank differs: norm output:0, rel_l2 2.0e-03"),
        (
            FORWARD, [], [CAME, SAVED],
            "an input has an error below its limit (largest rel_l2 2.0e-03, of norm output:0)",
        ),
        (FORWARD, [], [CAME], "an input has an error below its limit (largest rel_l2 1.0e-07, of input:0)"),
        (FORWARD, [], [], "the error starts upstream; some inputs of this operator were not compared"),
    ],
)  # fmt: skip
def test_what_is_passed_on_is_named(own, apart, read, says):
    """What was read that differs, wherever it was compared; of several what reaches farthest."""
    worst = worst_of(apart, read)
    got, shown = passed_reasons(own, worst)
    assert (got.sentence(), shown.sentence()) == (says, f"output:0: {own.because}")
    if apart:
        assert own_reasons(own.pair, own, worst, True)[0] == got
        error = got.facts["error"]
        assert (error.op, error.slot) == (worst.finding.pair.operator.name, worst.finding.pair.slot)


def test_what_agrees_is_named_where_another_operator_holds_it():
    for read, says in ((CAME, "inputs agree (largest rel_l2 1.0e-07)"),
                       (SAVED, "inputs agree (largest rel_l2 2.0e-03, of norm output:0)")):  # fmt: skip
        own = OWN._replace(limit=1e-2)
        assert own_reasons(own.pair, own, worst_of([], [read]), True)[0].sentence() == says


def measured(dtypes=("float32", "float32"), **figures):
    """An input of four elements that agrees by its values."""
    one = found(3, "norm", "input:0", 0.0, dtypes=dtypes)
    return one._replace(measurement=one.measurement._replace(moments=Moments(4, compared=4, **figures)))


RECORDED = found(3, "norm", "input:0", None)
SEEN = RECORDED._replace(measurement=RECORDED.measurement._replace(bound=0.0))
HASHED = CAME._replace(error=0.0, measurement=CAME.measurement._replace(same=True))


@pytest.mark.parametrize(
    "read, says",
    [
        ([measured(equal=4)], "bit for bit"),
        ([measured(equal=4), HASHED], "bit for bit"),
        ([measured(equal=4), measured(equal=3)], "the same values"),
        ([measured(("float32", "float64"), equal=4)], "the same values"),
        ([measured(equal=3), measured(equal=3, masked=1)], "the same values except masks"),
        ([measured(equal=4, masked=4)], "bit for bit"),
        ([measured(equal=3), SEEN], "by their statistics"),
        ([measured(equal=3), CAME._replace(error=0.0)], "by their statistics"),
        ([measured(equal=4), RECORDED], "bit for bit"),  # it was not compared
        ([], "bit for bit"),
    ],
)
def test_inputs_without_an_error_agree_in_bits_in_values_or_in_figures(read, says):
    assert worst_of([], read).alike == says


AGREED = found(1, "norm", "output:0", 1e-8)._replace(verdict=Verdict.MATCH)
READ = found(3, "norm.back", "input:0", 0.5, because="rel_l2 5.00e-01, limit 4.77e-07")
WEIGHT = found(3, "norm.back", "param:weight", 0.5, because="rel_l2 5.00e-01, limit 4.77e-07")
FAR = Pair(9, "output:0", *(Operator(name, "norm", "norm", "", at, ()) for name, at in (("t", 9), ("g", 2))), Y, Y)


@pytest.mark.parametrize(
    "gap, around, says",
    [
        (READ, Around(AGREED), "input:0 differs ({}), but all tensors dumped upstream match"),
        (READ, Around(AGREED, tainted=True), "input:0 differs ({})"),
        (READ, Around(), "an input of the network or of the dumped part already differs: input:0, {}"),
        (WEIGHT, Around(AGREED), "a parameter already differs: param:weight, {}, but all tensors dumped upstream "
         "match"),
        (WEIGHT, Around(AGREED, tainted=True), "a parameter already differs: param:weight, {}"),
        (READ, Around(AGREED, displaced=FAR), "in the golden, g writes this tensor; in the target, its partner t "
         "runs later: a call may be missing"),
        (READ, Around(AGREED, overtaken=FAR), "the golden runs this operator before t, the target after it: its "
         "partner may be another call"),
        (READ, Around(AGREED, nearest=AGREED), "the error starts between these two tensors, in code that was not "
         "dumped"),
    ],
)  # fmt: skip
def test_a_gap_says_what_holds_of_all_before_it(gap, around, says):
    """Nothing before it agrees as a whole where an error was born before it, or nothing was dumped before it."""
    assert says.format(gap.because) in [one.sentence() for one in gap_reasons(gap, around)]


COARSE, WHOLE = ("bfloat16", "float32"), ("int32", "int64")


@pytest.mark.parametrize(
    "read, outputs, says",
    [
        (["float32"] * 2, [COARSE], ["dtype of output:0: bfloat16 in the target, float32 in the golden"]),
        (["float32"] * 2, [COARSE[::-1]], ["dtype of output:0: float32 in the target, bfloat16 in the golden"]),
        (
            ["float32"] * 2,
            [COARSE, COARSE],
            ["dtype of output:0, output:1: bfloat16 in the target, float32 in the golden"],
        ),
        (COARSE, [COARSE], []),
        (WHOLE, [COARSE], ["dtype of output:0: bfloat16 in the target, float32 in the golden"]),
        (["float32"] * 2, [WHOLE, ["float32"] * 2], []),
    ],
)
def test_another_type_is_named_where_it_begins(read, outputs, says):
    inputs = [found(3, "norm", "input:0", 0.0, dtypes=read)]
    wrote = [found(3, "norm", f"output:{at}", 0.0, dtypes=dtypes) for at, dtypes in enumerate(outputs)]
    assert [one.sentence() for one in type_reasons(inputs, wrote)] == says


@pytest.mark.parametrize("dtype, said", [("bfloat16", 0), ("float32", 1)])
def test_a_type_that_was_read_is_not_turned_to_where_the_golden_tells_no_inputs(dtype, said):
    """A device in 16 bits against outputs of the reference alone: the type was decided long before."""
    read = found(3, "norm", "input:0", 0.0, dtypes=(dtype,) * 2)
    read = read._replace(measurement=Measurement(read.pair._replace(golden=None)))
    wrote = [found(3, "norm", "output:0", 0.0, dtypes=COARSE)]
    assert len(type_reasons([read], wrote)) == said


def bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def float16(x):
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    "target, golden, kind, says",
    [
        (bfloat16, np.array, "float32", "bfloat16"),
        (float16, np.array, "float32", "float16"),
        (np.array, np.array, "float32", ""),
        (bfloat16, bfloat16, "float32", ""),  # both runs keep it so
        (float16, float16, "float32", ""),
        (lambda x: np.clip(x, -1.5, 1.5), np.array, "float32", ""),  # bounds are short numbers
        (lambda x: np.maximum(bfloat16(x), 0), lambda x: np.maximum(x, 0), "float32", "bfloat16"),
        (lambda x: np.append(bfloat16(x)[1:], x[0]), np.array, "float32", ""),  # one value is not
        (lambda x: 0 * x, np.array, "float32", ""),
        (lambda x: x + NAN, np.array, "float32", ""),
    ],
)
def test_values_that_are_rounded_are_told(target, golden, kind, says):
    """Of an operator that reads none such, if all values are."""
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    pair = found(3, "norm", "output:0", 0.1, dtypes=(kind, kind)).pair
    moments = measure_block(
        *(make(values).astype(np.float32) for make in (target, golden)), bars_for(kind, kind, 0.0, 0.0)
    )
    one = Finding(Measurement(pair, moments), Verdict.DIVERGED, "")
    words = f"output:0 is rounded to {says}: all its values are {says} numbers, those of the golden are not"
    assert [said.sentence() for said in type_reasons([], [one])] == ([words] if says else [])
    assert not type_reasons([one], [one])
