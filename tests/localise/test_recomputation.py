"""The decision on an operator of which both runs were recomputed from their own inputs."""

import pytest

from npucmp.localise.recomputation import RecomputedRows
from npucmp.model import Finding, Measurement, Operator, Pair, ReplayedOutput, ReplayVerdict, TensorRef, Verdict

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
