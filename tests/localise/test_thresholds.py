"""The limits of tensors of which only statistics or checksums were recorded."""

import math
from types import SimpleNamespace

import pytest

from npucmp import RULES, Tolerances
from npucmp.judge.precision import Precision
from npucmp.localise.autograd_nodes import undecided_nodes
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import disregard, make_findings, mark_in_place
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Side, Statistics, TensorRef, Verdict
from npucmp.model.finding import OTHER_NODE


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.kind == "limit"], ids=lambda rule: rule.name)
def test_without_values_a_limit_sees_the_precision_alone(rule):
    """So judged() asks for it once for each precision: whatever else a rule looks at is not there."""
    for precision in (Precision(), Precision(2.0**-24), Precision(2.0**-8, reduced=True), Precision(quantised=True)):
        case = SimpleNamespace(moments=None, precision=precision, pair=SimpleNamespace(target=None))
        assert not rule.applies(case) or rule.bound(case) >= 0.0


def test_values_beside_statistics_keep_limits_of_their_own():
    """A float16 gradient of values far below its smallest normal number has a wider limit than its statistics would."""
    tensor = TensorRef("output:0", "float16", (64,), statistics=Statistics(1.0, -1.0, 0.0, 4.0))
    operator = Operator("f.0.forward", "f", "f.forward", "forward", 0, (tensor,))
    pair = Pair(0, "output:0", operator, operator, tensor, tensor)
    told = Measurement(pair, bound=0.0, statistics=(tensor.statistics, tensor.statistics))
    tiny = Measurement(
        pair, Moments(64, compared=64, yy=64 * 2.0**-40, xx=64 * 2.0**-40, sum_dd=2.0**-60, max_abs=1e-9)
    )
    first, values, again = make_findings([told, tiny, told], Tolerances(), Rulebook())
    assert (first.rule, again.rule) == ("", "") and values.rule == "subnormal"
    assert values.limit == pytest.approx(8 * 2.0**-11 * 2.0**-14 / 2.0**-20)


def calls(*, forward=Verdict.MATCH, path="", alone=False, kinds=("add", "add"), error=0.5, first=Verdict.DIVERGED,
          second=Verdict.MATCH, slot="output:0"):  # fmt: skip
    """Findings of two calls, each with a forward and a backward. The backward of the first call wrote another shape;
    `first` and `second` are the outputs of the second backward, with the error of the first output."""
    made = []
    for order, (number, phase) in enumerate((n, phase) for phase in ("forward", "backward") for n in (0, 1)):
        op = Operator(f"{kinds[number]}.{number}.{phase}", kinds[number], kinds[number], phase, order, (),
                      call=f"{kinds[number]}.{number}", path=path)  # fmt: skip
        verdicts = ((slot, Verdict.SHAPE),) if not number else (("output:0", first), ("output:1", second))
        verdicts = (("output:0", forward),) if phase == "forward" else verdicts
        for name, verdict in verdicts:
            tensor = TensorRef(name, "float32", (4,))
            pair = Pair(order, name, None if alone and phase == "backward" else op, op, tensor, tensor)
            made.append(Finding(Measurement(pair), verdict, "words", error if name == "output:0" else 1.0))
    return made


@pytest.mark.parametrize(
    "change, verdicts",
    [
        ({}, "UNKNOWN UNKNOWN MATCH"),
        ({"error": 0.49}, "UNKNOWN DIVERGED MATCH"),
        ({"error": None}, "UNKNOWN DIVERGED MATCH"),
        ({"error": 0.9, "first": Verdict.NONFINITE}, "UNKNOWN NONFINITE MATCH"),
        ({"error": 0.9, "first": Verdict.MATCH}, "UNKNOWN MATCH MATCH"),
        ({"first": Verdict.MATCH, "second": Verdict.MISSING}, "UNKNOWN MATCH MISSING"),
        ({"error": 0.1, "second": Verdict.MISSING}, "UNKNOWN UNKNOWN MISSING"),
        ({"error": 0.1, "second": Verdict.SHAPE}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"second": Verdict.NONFINITE}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"second": Verdict.DIVERGED}, "UNKNOWN UNKNOWN UNKNOWN"),
        ({"kinds": ("add", "mul")}, "UNKNOWN DIVERGED MATCH"),  # no call of this kind is proven to have two
        ({"slot": "input:0"}, "SHAPE DIVERGED MATCH"),
        ({"forward": Verdict.SHAPE}, "SHAPE DIVERGED MATCH"),
        ({"alone": True}, "SHAPE DIVERGED MATCH"),
        ({"path": "layer"}, "SHAPE DIVERGED MATCH"),
    ],
)
def test_outputs_of_another_autograd_node_of_a_call_are_undecided(change, verdicts):
    """The forwards agree in shape, and an output of a backward does not: the two runs recorded two nodes of the call.
    So do other calls of the kind whose first output is unrelated, or that have an output of another shape."""
    findings = calls(**change)
    found = undecided_nodes(findings)
    assert [one.verdict.name for one in found[2:]] == verdicts.split() and found[:2] == findings[:2]
    for one, before in zip(found, findings):
        assert one == before or (one.rule, one.error, before.because in one.because) == (OTHER_NODE, None, True)


# Findings of one run, in its order


def measured(order=0, slot="output:0", *, kind="add", shapes=((8, 4), (8, 4)), dtypes=("float32", "float32"),
             phase="forward", values=False, error=0.0, **known):  # fmt: skip
    """The measurement of one tensor: its values with that error, or what is `known` without values."""
    refs = [TensorRef(slot, dtype, shape) for dtype, shape in zip(dtypes, shapes)]
    op = Operator(f"{kind}.{order}", kind, kind, phase, order, tuple(refs))
    pair = Pair(order, slot, op, op, *refs)
    count = math.prod(shapes[0])
    side = Side(minimum=-1.0, maximum=1.0, squares=count, bits=24, last_bit=0.0)
    moments = Moments(count, side, side, count, xx=count, yy=count, xy=count, sum_dd=error**2 * count, max_abs=error,
                      equal=0 if error else count)  # fmt: skip
    return Measurement(pair, moments if values else None, **known)


def found(*measurements, reduced=False, **options):
    return make_findings(measurements, Tolerances(**options), Rulebook(), reduced)


LIMIT = 8 * 2.0**-24


@pytest.mark.parametrize(
    "known, verdict, words, error, metric",
    [
        ({"bound": 0.5}, "DIVERGED", "by the statistics, rel_l2 is at least 5.00e-01", math.nan, "rel_l2"),
        ({"bound": 0.0}, "UNKNOWN", "statistics agree, which does not prove equal values", None, ""),
        ({"bound": math.inf}, "NONFINITE", "only one side has NaN or Inf", math.inf, ""),
        ({"bound": 0.5, "same": True}, "MATCH", "equal checksums", 0.0, ""),
        ({"bound": 0.0, "same": False}, "DIVERGED", "checksums differ", math.nan, "checksum"),
        ({"bound": 0.5, "problem": "target: lost"}, "UNREADABLE", "target: lost", None, ""),
        ({"bound": 0.5, "unlike": "text"}, "DTYPE", "text", None, ""),
        ({"bound": None}, "UNKNOWN", "", None, ""),
    ],
)
def test_a_tensor_without_values_is_judged_by_what_is_recorded(known, verdict, words, error, metric):
    """Statistics decide if nothing else does."""
    known = {"statistics": (Statistics(math.nan), Statistics(1.0)), **known}
    before, one = found(measured(), measured(1, **known))
    assert (one.verdict.name, one.metric, one.row, before.row) == (verdict, metric, 1, 0)
    assert one.because.startswith(words) and one.error == pytest.approx(error, nan_ok=True)
    assert one.working == 2.0**-24 and (one.explained_by, one.explained_limit, one.cache) == ("", 0.0, None)
    assert one == one._replace(measurement=measured(1, **known))


def test_statistics_may_be_trusted():
    (one,) = found(measured(bound=0.0), trust_statistics=True)
    assert (one.verdict, one.error, one.limit) == (Verdict.MATCH, 0.0, LIMIT)


@pytest.mark.parametrize("dtype, working", [("float32", 2.0**-24), ("bfloat16", 2.0**-8)])
def test_a_finding_has_the_precision_of_its_run(dtype, working):
    """That of statistics too."""
    for one in found(
        measured(dtypes=(dtype,) * 2, bound=0.0), measured(1, dtypes=(dtype,) * 2, values=True, error=0.1)
    ):
        assert one.working == working


def test_products_of_a_run_that_keeps_11_bits_have_a_wider_limit():
    product = measured(kind="matmul", values=True, error=1e-4)
    plain, reduced = (found(product, reduced=one)[0] for one in (False, True))
    assert (plain.verdict, plain.working) == (Verdict.DIVERGED, 2.0**-24)
    assert (reduced.verdict, reduced.working) == (Verdict.MATCH, 2.0**-11) and reduced.limit > plain.limit


@pytest.mark.parametrize(
    "bits, last_bit, is_counted", [((12, 12), 1.0, True), ((12, 8), 1.0, False), ((12, 12), 0.5, False)]
)
def test_counts_have_the_limit_of_their_own_type(bits, last_bit, is_counted):
    """Whole numbers that need several bits do not come from rounding."""
    one = measured(kind="matmul", values=True, error=1e-4)
    sides = [Side(minimum=1.0, maximum=4095.0, bits=own, last_bit=last_bit, squares=32.0, nonzero=32.0) for own in bits]
    one = one._replace(moments=one.moments._replace(target=sides[0], golden=sides[1]))
    (judged,) = found(one, reduced=True)
    assert (judged.verdict is Verdict.DIVERGED) is is_counted
    assert judged.limit == pytest.approx(LIMIT) if is_counted else judged.limit > 1e-4


HALF = "bfloat16", "float32"


@pytest.mark.parametrize("others, verdict", [(9, Verdict.UNKNOWN), (10, Verdict.DIVERGED)])
def test_checksums_of_runs_that_round_differently_decide_nothing(others, verdict):
    """More than a tenth of the tensors, two of nineteen, have other types in the golden: checksums differ in any case.
    Values and equal checksums decide there too."""
    wrong, equal = measured(0, same=False, dtypes=HALF), measured(1, same=True, dtypes=HALF)
    values = measured(2, values=True, error=0.5)
    more = [measured(3 + at, values=True) for at in range(2 * others - 2)]
    first, second, third, *_ = found(wrong, equal, values, *more)
    assert first.verdict is verdict and (second.verdict, third.verdict) == (Verdict.MATCH, Verdict.DIVERGED)
    assert first.because.startswith("checksums differ")
    assert first.because.endswith(", as expected between runs with different dtypes") is (verdict is Verdict.UNKNOWN)
    assert "as expected" not in second.because + third.because


# An operand that one side repeats


def operand(order, shapes=((8, 4), (4,)), slot="input:1", kind="add", **more):
    return measured(order, slot, kind=kind, shapes=shapes, unlike="shape", shapes_differ=True, **more)


def written(order, error=0.0, kind="add", **more):
    return measured(order, kind=kind, values=True, error=error, **more)


def test_an_operand_that_one_side_repeats_has_no_partner():
    """One operator whose output agrees proves it, for the same operand in all layers."""
    findings = found(
        operand(0), written(0), operand(1), written(1, 0.5), operand(2, slot="input:0"), operand(3, ((4,), (8, 4))),
        operand(4, kind="mul"), written(4, 0.5, kind="mul"), measured(5, "input:1"), operand(6, phase="backward"),
    )  # fmt: skip
    by_place = {(one.pair.order, one.pair.slot): one for one in findings}
    assert [one.row for one in findings] == [*range(10)]
    for order in (0, 1, 6):
        one = by_place[order, "input:1"]
        assert (one.verdict, one.rule, one.error) == (Verdict.UNKNOWN, "broadcast", None)
        assert one.because == "shape: one side repeats the tensor along these axes"
    for place in ((2, "input:0"), (3, "input:1"), (4, "input:1")):
        assert (by_place[place].verdict, by_place[place].rule) == (Verdict.SHAPE, "shape")
    assert by_place[1, "output:0"].verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    "rows",
    [
        [operand(0)],
        [operand(0), written(0, 0.5)],
        [operand(0), written(1)],
        [operand(0, ((3,), (4,))), written(0)],
        [operand(0), written(0), measured(0, "output:1", values=True, error=0.5)],
    ],
)
def test_without_an_output_that_agrees_a_shape_is_another(rows):
    assert found(*rows)[0].verdict is Verdict.SHAPE


# Tensors whose content has no meaning


def finding(verdict, metric="rel_l2"):
    return Finding(measured(), verdict, "as measured", 0.5, 0.1, metric, "round_off", row=3)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_differences_in_uninitialised_memory_are_unknown(verdict):
    one = finding(verdict)
    if verdict in (Verdict.DIVERGED, Verdict.NONFINITE):
        words = "uninitialised memory or a workspace, whose content has no meaning (as measured)"
        expected = one._replace(verdict=Verdict.UNKNOWN, because=words, error=None, rule="meaningless")
    assert disregard(one) == (expected if verdict in (Verdict.DIVERGED, Verdict.NONFINITE) else one)


@pytest.mark.parametrize(
    "metric, words",
    [
        ("checksum", "the operator overwrites this tensor in place; its checksum was taken at an unknown time"),
        ("rel_l2", "the operator overwrites this tensor in place, possibly before it was recorded (as measured)"),
    ],
)
def test_a_tensor_that_is_overwritten_in_place_is_unknown(metric, words):
    one = finding(Verdict.DIVERGED, metric)
    expected = one._replace(verdict=Verdict.UNKNOWN, because=words, error=None, rule="overwritten")
    assert mark_in_place(one) == expected
