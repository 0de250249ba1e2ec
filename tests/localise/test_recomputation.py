"""The decision on an operator of which both runs were recomputed from their own inputs."""

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.localise.recomputation import Recomputation, RecomputedRows
from npucmp.model import Cause, Finding, Measurement, Operator, Pair, ReplayedOutput, ReplayVerdict, TensorRef, Verdict
from tests.localise.step_craft import Op, Tensor, step

CLEAN = ReplayedOutput(0, "output:0", verdict=ReplayVerdict.CLEAN)
GUILTY = CLEAN._replace(verdict=ReplayVerdict.GUILTY, rms_ratio=5.0)


def output(dtypes, slot="output:0"):
    tensors = [TensorRef(slot, dtype, (4,)) if dtype else None for dtype in dtypes]
    op = Operator("f.0", "f", "f", "forward", 0, tuple(filter(None, tensors)))
    return Finding(Measurement(Pair(0, slot, op, op, *tensors)), Verdict.MATCH, "")


FAR = [  # type of the target's output, change of a row beyond the expected rounding, whether it is far beyond it
    ("float32", {"rms_ratio": 6.0}, False),
    ("float32", {"rms_ratio": 6.5}, True),
    ("float64", {"rms_ratio": 6.0}, False),
    ("float16", {"rms_ratio": 4.0}, False),
    ("float16", {"rms_ratio": 4.5}, True),
    ("bfloat16", {"rms_ratio": 4.5}, True),
    ("float8_e5m2", {"rms_ratio": 4.5}, True),
    ("unknown", {"rms_ratio": 4.5}, False),
    ("float32", {"rms_ratio": None, "max_ratio": 16.0}, False),
    ("float32", {"rms_ratio": None, "max_ratio": 16.5}, True),
    ("float16", {"rms_ratio": None, "max_ratio": 8.0}, False),
    ("float16", {"rms_ratio": None, "max_ratio": 8.5}, True),
    ("float32", {"rms_ratio": None}, False),
    ("float32", {"rms_ratio": None, "budget": "exact"}, True),
    ("float32", {"nonfinite": 1}, True),
    ("float32", {"rms_ratio": 6.5, "verdict": ReplayVerdict.AMPLIFIER}, False),
    ("float32", {"rms_ratio": 6.5, "slot": "output:1"}, False),
]


@pytest.mark.parametrize(("dtype", "change", "is_far"), FAR)
def test_without_a_suspicion_an_output_must_be_far_beyond_the_expected_rounding(dtype, change, is_far):
    """Twice the limit of the verdict: 2·3 in rms and 2·8 at most, for types of 16 bits 2·2 and 2·4."""
    row = GUILTY._replace(**change)
    for side, rows in enumerate((RecomputedRows([row], [CLEAN]), RecomputedRows([CLEAN], [row]))):
        own = output((dtype, "float32")[:: -1 if side else 1])
        found = rows.guilty([own], False)
        assert (found is not None) == is_far
        assert found is None or (found[0] is own and found[1][0].sentence().startswith("golden " * side + "output:0"))
        suspected = rows.guilty([own], True)
        assert (suspected is not None) == (row.verdict is ReplayVerdict.GUILTY and row.slot == "output:0")


OTHERS = [  # rows of the golden, whether they clear the golden for a suspicion, and without one
    ([CLEAN], True, True),
    ([CLEAN._replace(sampled="10 %")], True, True),
    ([CLEAN._replace(explanation="eps")], False, False),
    ([CLEAN, GUILTY], False, False),
    ([CLEAN._replace(verdict=ReplayVerdict.UNKNOWN)], False, False),
    ([], True, False),
]


@pytest.mark.parametrize(("golden", "suspected", "alone"), OTHERS)
def test_the_other_run_must_be_within_the_expected_rounding(golden, suspected, alone):
    """A suspected operator of the target needs no rows of the golden; the golden is no suspect."""
    own, wrong = output(("float32", "float32")), GUILTY._replace(rms_ratio=9.0)
    rows = RecomputedRows([wrong], golden)
    assert [rows.guilty([own], one) is not None for one in (True, False)] == [suspected, alone]
    assert RecomputedRows([], [wrong]).guilty([own], True) is None


def test_the_worst_output_is_named():
    names = [f"output:{at}" for at in range(4)]
    outputs = [output(("float32", "float32"), name) for name in names]
    wrong = [GUILTY._replace(slot=name, rms_ratio=ratio) for name, ratio in zip(names, (7.0, None, 9.0, 8.0))]
    found, _ = RecomputedRows(wrong, [CLEAN]).guilty(outputs, True)
    assert found is outputs[2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ["output:0 differs from float64 of its recorded inputs by 5 times the expected rounding"]),
        ({"rms_ratio": None}, ["output:0 differs from float64 of its recorded inputs"]),
        ({"budget": "exact"}, ["output:0 differs from float64 of its recorded inputs"]),
        (
            {"rms_ratio": None, "sampled": "10 %", "explanation": "as if eps were 0"},
            [
                "output:0 differs from float64 of its recorded inputs",
                "10 % of its elements were recomputed",
                "as if eps were 0",
            ],
        ),
    ],
)
def test_the_evidence_of_a_wrong_output(change, words):
    _, reasons = RecomputedRows([GUILTY._replace(**change)], [CLEAN]).guilty([output(("float32", "float32"))], True)
    assert [one.sentence() for one in reasons] == words


# An operator that only propagates its inputs


def node(*tensors, kind="linear", arguments=({}, {}), call="", phase="forward"):
    """One operator whose outputs are off by a hundredth, or as `tensors` say."""
    own = tensors or (Tensor("output:0", error=0.01),)
    (found,) = nodes_of(step(Op(kind, (Tensor("input:0"), *own), call, phase, arguments)))
    return found


def clean(slot="output:0", rel_l2=0.0, **more):
    return CLEAN._replace(slot=slot, rel_l2=rel_l2, **more)


def came_in(target, golden, *tensors, rule="", is_known=True, accused=0, is_setting=False, **more):
    """Whether an operator with these rows of its outputs only propagates its inputs."""
    own = node(*tensors, **more)
    return RecomputedRows(target, golden, is_setting).is_innocent(own, rule, own.outputs[accused], is_known)


@pytest.mark.parametrize(
    "own, innocent",
    [
        ((0.0, 0.0), True),
        ((0.002, 0.003), True),  # half of the error, which is 0.01
        ((0.0025, 0.0026), False),
        ((0.005, 0.0), True),
        ((0.0051, 0.0), False),
        ((None, 0.005), True),
        ((0.0, 0.0051), False),
        ((None, None), True),
    ],
)
def test_an_error_came_in_if_the_own_errors_are_half_of_it_at_most(own, innocent):
    assert came_in(*[[clean(rel_l2=one)] for one in own]) is innocent


@pytest.mark.parametrize(
    "change",
    [
        {"status": "no data"},
        {"verdict": ReplayVerdict.UNKNOWN},
        {"verdict": ReplayVerdict.GUILTY},
        {"sampled": "10 %"},
        {"explanation": "as if eps were 0"},
        {"slot": "output:1"},
    ],
)
def test_both_runs_must_be_within_the_expected_rounding_in_full(change):
    wrong = [clean()._replace(**change)]
    assert came_in([clean()], [clean()])
    assert not came_in(wrong, [clean()]) and not came_in([clean()], wrong) and not came_in([], [clean()])


def test_an_infinite_error_did_not_come_in():
    """A type may be too narrow for the result."""
    assert not came_in([clean()], [clean()], Tensor("output:0", error=float("inf")))


TWO = Tensor("output:0", error=0.01), Tensor("output:1", error=0.01, verdict=Verdict.MATCH)


@pytest.mark.parametrize(
    "second, accused, tensors, innocent",
    [
        (0.005, 0, TWO, True),
        (0.1, 0, TWO, True),  # an output that agrees need only be within the expected rounding
        (0.1, 1, TWO, False),  # an accused one may agree
        (0.1, 0, (TWO[0], TWO[1]._replace(verdict=Verdict.DIVERGED)), False),
    ],
)
def test_the_error_of_each_output_that_differs_must_have_come_in(second, accused, tensors, innocent):
    rows = [clean(), clean("output:1", second)]
    assert came_in(rows, [clean(), clean("output:1")], *tensors, accused=accused) is innocent
    assert not came_in(rows[:1], rows, *tensors, accused=accused)


def test_nothing_came_in_without_outputs():
    own = node(Tensor("input:1"))
    assert not RecomputedRows([clean()], [clean()]).is_innocent(own, "", own.inputs[0], True)


def test_all_inputs_must_be_compared():
    assert not came_in([clean()], [clean()], is_known=False)


SMALL = Tensor("output:0", error=0.001)
UNREFUTED = "law arguments coarser copy equal_bits given common_factor".split()


@pytest.mark.parametrize("rule", [*UNREFUTED, "growth", ""])
def test_an_accusation_that_no_size_supports_stays(rule):
    """Also that of a setting."""
    for is_setting in (False, True):
        found = came_in([clean()], [clean()], SMALL, rule=rule, is_setting=is_setting)
        assert found is (rule not in UNREFUTED)


def test_an_operator_with_other_arguments_stays_accused():
    for is_setting in (False, True):
        more = {"arguments": ({"eps": 1e-5}, {"eps": 1e-6}), "is_setting": is_setting}
        assert not came_in([clean()], [clean()], SMALL, **more)
        assert came_in([clean()], [clean()], SMALL, **{**more, "arguments": ({"eps": 1e-5},) * 2})


BITS = 8 * 2.0**-11  # the limit of products of 11 bits


@pytest.mark.parametrize(
    "kind, errors, innocent",
    [
        ("linear", [BITS], True),
        ("linear", [BITS * 1.01], False),
        ("linear", [BITS, BITS * 1.01], False),
        ("linear", [BITS / 2, BITS / 4], True),
        ("softmax", [BITS], False),
    ],
)
def test_products_of_a_run_that_keeps_11_bits_are_innocent_up_to_that_rounding(kind, errors, innocent):
    """No other recomputation is needed then; an operator that is no product needs it."""
    tensors = [Tensor(f"output:{at}", error=error) for at, error in enumerate(errors)]
    wrong = [GUILTY._replace(slot=one.slot) for one in tensors]
    assert came_in(wrong, [], *tensors, kind=kind, is_setting=True, is_known=False) is innocent
    good = [clean(one.slot) for one in tensors]
    assert came_in(good, good, *tensors, kind=kind, is_setting=True) is (innocent or kind == "softmax")


CLEAN_WORDS = "the outputs match float64 of the recorded inputs within {} of the expected rounding"
ALIKE = clean(verdict=ReplayVerdict.AMPLIFIER, explanation="all softmax round so")


@pytest.mark.parametrize(
    "target, golden, before, after, words",
    [
        (
            [clean(rms_ratio=0.5), clean("output:1", rms_ratio=0.75)],
            [],
            "UNKNOWN",
            "PROPAGATED",
            CLEAN_WORDS.format(0.75),
        ),
        ([clean(rms_ratio=0.5)], [], "WORSENED", "PROPAGATED", CLEAN_WORDS.format(0.5)),
        ([clean()], [], "BORN", "BORN", CLEAN_WORDS.format(0)),
        ([clean(rms_ratio=0.5)], [clean()], "UNKNOWN", "UNKNOWN", CLEAN_WORDS.format(0.5)),
        ([clean(sampled="10 %")], [], "UNKNOWN", "UNKNOWN", ""),
        ([clean(explanation="eps")], [], "UNKNOWN", "UNKNOWN", ""),
        ([clean(), GUILTY], [], "UNKNOWN", "UNKNOWN", ""),
        ([GUILTY._replace(explanation="eps")], [], "UNKNOWN", "UNKNOWN", ""),
        ([ALIKE._replace(explanation=""), clean()], [], "BORN", "BORN", ""),
        ([clean(), ALIKE, ALIKE._replace(explanation="other")], [], "BORN", "BORN", "all softmax round so"),
    ],
)
def test_the_cause_of_a_suspected_operator(target, golden, before, after, words):
    """Within the expected rounding, an operator whose inputs are not known propagates them."""
    own = output(("float32", "float32"), "output:9")
    cause, reasons = RecomputedRows(target, golden).cause(node(), Cause[before], own)
    assert (cause, [one.sentence() for one in reasons]) == (Cause[after], [words] if words else [])


@pytest.mark.parametrize(
    ("target", "golden", "side"),
    [(0.001, 0.03, "golden"), (0.03, 0.001, "target"), (0.02, 0.03, ""), (0.001, 0.01, "")],
)
def test_the_side_that_makes_the_error_is_named(target, golden, side):
    """At least half of the error between the runs, and four times that of the other side."""
    rows = ([CLEAN._replace(rel_l2=size)] for size in (target, golden))
    found = RecomputedRows(*rows).less_accurate(output(("float32", "float32"))._replace(error=0.03))
    assert [one.sentence().endswith(f"the {side} is the inaccurate side") for one in found] == [True] * bool(side)


# The recomputation of a run


class Rows:
    """Answers with given rows of the target and the golden."""

    def __init__(self, target=(), golden=(), as_golden=(), sampled=(), setting=()):
        self._sides, self._as_golden, self._sampled, self._setting = (target, golden), as_golden, sampled, setting

    def rows(self, side, operator):
        rows = self._sides[side]
        return rows.get(operator.name, ()) if isinstance(rows, dict) else rows

    def gradients_as_golden(self, target, golden):
        return self._as_golden

    def is_sampled(self, operator):
        return operator.name in self._sampled

    def is_setting(self, operator):
        return operator.name in self._setting


def test_without_an_estimator_nothing_is_recomputed():
    own, none = node(call="f.0"), Recomputation(None)
    assert not none.applies(own) and not none.is_sampled(own) and none.of(own) is None
    assert none.forward_of(own) is None


def test_an_operator_whose_values_were_compared_may_be_recomputed():
    recorded = Tensor("output:0", error=0.1, statistics=(None, None))
    known = Recomputation(Rows([clean()], sampled=["f.0.forward"]))
    one, other = node(call="f.0"), node(call="f.1")
    assert known.applies(one) and known.applies(node(recorded, Tensor("output:1")))
    assert not known.applies(node(recorded)) and not known.applies(node(Tensor("input:1")))
    assert known.is_sampled(one) and not known.is_sampled(other) and not known.is_sampled(node(recorded, call="f.0"))


NO_DATA = clean(status="no data")


@pytest.mark.parametrize(
    "target, golden, expected",
    [
        ([clean()], [clean()], (1, 1)),
        ([clean(), NO_DATA], [NO_DATA, clean()], (2, 2)),
        ([clean()], [NO_DATA], (1, 0)),
        ([clean()], [], (1, 0)),
        ([NO_DATA], [clean()], None),
        ([], [clean()], None),
    ],
)
def test_the_rows_of_an_operator_of_both_runs(target, golden, expected):
    """None if the target's was not recomputed."""
    for setting in ([], ["f.0.forward"]):
        rows = Recomputation(Rows(target, golden, setting=setting)).of(node(call="f.0"))
        assert (rows and (len(rows.target), len(rows.golden))) == expected
        assert rows is None or rows.is_setting is bool(setting)


def test_an_operator_of_one_run_is_not_recomputed():
    own = node(call="f.0")
    for lacks in ({"target_op": None}, {"golden_op": None}):
        own.pair = own.pair._replace(**lacks)
        assert Recomputation(Rows([clean()], [clean()])).of(own) is None


EPS = {"eps": 1e-5}, {"eps": 1e-6}
FORWARD, BACKWARD = "layer_norm.0.forward", "layer_norm.0.backward"


def gradient(arguments=({}, {}), call="layer_norm.0", forward_call="", outputs=(0.01,), phase="backward"):
    """The backward of a call and its forward, whose outputs have these errors."""
    tensors = [Tensor(f"output:{at}", error=error) for at, error in enumerate(outputs)]
    forward = Op("layer_norm", (Tensor("input:0"), *tensors), forward_call or call, arguments=arguments)
    found = nodes_of(step(forward, Op("layer_norm", (Tensor("input:0"), Tensor("output:0")), call, phase)))
    return found[::-1]


def test_a_gradient_follows_a_forward_that_bears_an_error():
    backward, forward = gradient()
    known = Recomputation(Rows({FORWARD: [GUILTY]}, {FORWARD: [clean()]}))
    found = known.forward_of(backward)
    assert found is not None and found[0].operator is forward.operator and found[1] is forward.outputs[0]
    assert [one.sentence() for one in found[2]] == [
        "output:0 differs from float64 of its recorded inputs by 5 times the expected rounding"
    ]
    assert not known.follows(backward)
    known.blame(forward)
    assert known.follows(backward) and known.forward_of(backward) is None
    assert not known.follows(forward) and not known.follows(gradient(call="layer_norm.1")[0])


def test_a_forward_that_is_not_beyond_bears_no_error():
    backward, forward = gradient()
    for rows in ([clean()], [], [NO_DATA]):
        assert Recomputation(Rows({FORWARD: rows}, {FORWARD: [clean()]}, [clean()])).forward_of(backward) is None
    guilty = Rows({FORWARD: [GUILTY]}, {FORWARD: [clean()]})
    assert Recomputation(guilty).forward_of(forward) is None
    assert Recomputation(guilty).forward_of(gradient(forward_call="layer_norm.1")[0]) is None
    assert Recomputation(guilty).forward_of(gradient(outputs=())[0]) is None


@pytest.mark.parametrize(
    "arguments, as_golden, found",
    [
        (EPS, [clean()], True),
        (EPS, [clean(sampled="10 %")], False),
        (EPS, [clean(), GUILTY], False),
        (EPS, [], False),
        ((EPS[0], EPS[0]), [clean()], False),
    ],
)
def test_a_gradient_for_the_arguments_of_the_golden_shows_a_wrong_forward(arguments, as_golden, found):
    """The forward has other arguments; the output with the largest error is named."""
    backward, forward = gradient(arguments, outputs=(0.01, 0.03, 0.02))
    for rows in ({FORWARD: [clean()]}, {}):
        said = Recomputation(Rows(rows, {}, as_golden)).forward_of(backward)
        assert (said is not None) is found
        if said is not None:
            assert said[0].operator is forward.operator and said[1] is forward.outputs[1]
            assert [one.sentence() for one in said[2]] == [
                "argument eps is 1e-05 in the target, 1e-06 in the golden",
                "the gradient of this call matches a float64 recomputation with the arguments of the golden",
            ]


def test_tensors_of_other_ranks_belong_to_no_forward():
    backward, forward = gradient()
    _, other = gradient(call="layer_norm.7")
    guilty = Rows({"layer_norm.7.forward": [GUILTY], FORWARD: [GUILTY]}, {FORWARD: [clean()]})
    (arrived,) = other.outputs
    own = arrived.measurement._replace(pair=arrived.pair._replace(order=-1))
    backward.extra_inputs = [arrived._replace(measurement=own), *backward.extra_inputs]
    found = Recomputation(guilty).forward_of(backward)
    assert found is not None and found[0].operator is forward.operator
    backward.extra_inputs = backward.extra_inputs[:1]
    assert Recomputation(guilty).forward_of(backward) is None
