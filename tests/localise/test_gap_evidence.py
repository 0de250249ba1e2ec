"""The sentences of a GAP: which tensor differs, which agrees before it, and which operators lie between."""

import math

import numpy as np
import pytest

from npucmp.localise.gap_evidence import Around, gap_reasons, unwritten_reasons
from npucmp.localise.sources import Writer
from npucmp.model import Finding, Measurement, Statistics, sentences
from tests.localise.networks import SMALL, network, paired, values_of

LINES = ["relu x -> y", "golden tanh y -> z", "target exp y -> a", "golden erf y -> c", "golden cos y -> d",
         "linear b~1e-3 w~1e-3 -> q", "sum x ->"]  # fmt: skip
RELU, TANH, EXP, ERF, COS, LINEAR, SUM = ([*group] for group in (
    [one for one in network(*LINES) if one.pair.order == order] for order in range(7)
))  # fmt: skip
READ, WEIGHT, LAST = LINEAR[0], LINEAR[1], RELU[1]
ALONE = [one[0].pair for one in (TANH, EXP, ERF, COS)]
ERROR = "rel_l2 1.00e-03, limit 4.77e-07"
DIFFERS = f"input:0 differs ({ERROR})"
ENTERS = f"an input of the network or of the dumped part already differs: input:0, {ERROR}"
PARAMETER = f"a parameter already differs: input:1, {ERROR}"
CODE = "the error starts between these two tensors, in code that was not dumped"
NOWHERE = (
    "no recorded operator wrote this tensor or one of its size: it is an input, a buffer or a constant, or code that "
    "was not dumped made it"
)
BETWEEN = "operators between these two tensors: tanh.1.forward (only in the golden)"
BEFORE = (
    "operators of one run before it: tanh.1.forward (only in the golden); "
    "code that was not dumped may read their outputs"
)
SECOND, THIRD = "exp.2.forward (only in the target)", "erf.3.forward (only in the golden)"
LATER = "the golden runs this operator before linear.5.forward, the target after it: its partner may be another call"
AGREE = f"{DIFFERS}, but all tensors dumped upstream match; last matching tensor: relu.0.forward output:0; "
XOR = {"checksum": "0x0123456789abcdef", "statistics": None}


def reasons(gap: Finding, **around: object) -> str:
    return sentences(gap_reasons(gap, Around(**around)))


def xor(finding: Finding) -> Finding:
    """The tensor with equal XORs, which prove nothing."""
    sides = {side: getattr(finding.pair, side)._replace(**XOR) for side in ("target", "golden")}
    return finding._replace(measurement=Measurement(finding.pair._replace(**sides)), error=None)


CASES = {
    "nothing before": (READ, {}, ENTERS),
    "nothing before, but an error": (READ, {"tainted": True}, ENTERS),
    "a parameter": (WEIGHT, {"last": LAST}, f"{PARAMETER}, but all tensors dumped upstream match"),
    "a parameter behind an error": (WEIGHT, {"last": LAST, "tainted": True}, PARAMETER),
    "the last tensor is an output": (READ, {"last": LAST, "nearest": LAST}, AGREE + CODE),
    "no tensor of this size": (READ, {"last": LAST}, f"{DIFFERS}, but all tensors dumped upstream match; {NOWHERE}"),
    "the last tensor is an input of an operator without outputs": (
        READ, {"last": SUM[0]},
        f"{DIFFERS}, but all tensors dumped upstream match; last matching tensor: sum.6.forward input:0; the error "
        "starts upstream: in an operator whose outputs were not dumped, or in code that was not dumped"),
    "behind an error": (
        READ, {"last": LAST, "nearest": LAST, "tainted": True},
        f"{DIFFERS}; last matching tensor: relu.0.forward output:0; {CODE}"),
    "an equal XOR": (
        READ, {"last": xor(LAST), "nearest": xor(LAST)},
        f"{DIFFERS}, but no tensor dumped upstream is proven to differ; "
        f"last matching tensor: relu.0.forward output:0; {CODE}"),
    "an equal XOR of known values": (
        READ, {"last": xor(LAST)._replace(error=0.0), "nearest": LAST}, AGREE + CODE),
    "a writer": (
        READ, {"last": LAST, "writer": Writer("gelu:0"), "alone": ALONE, "left_out": ALONE[:1], "overtaken": ALONE[0]},
        f"{DIFFERS}, but all compared upstream tensors match; last matching tensor: relu.0.forward output:0; "
        "this tensor is gelu:0, which was not dumped or cannot be compared: check that operator first"),
    "an excluded operator": (
        READ, {"last": LAST, "left_out": ALONE[:1], "alone": ALONE},
        f"{DIFFERS}, but all compared upstream tensors match; last matching tensor: relu.0.forward output:0; "
        "operators upstream were excluded by --include or --exclude (tanh.1.forward): the error may start there"),
    "four excluded operators": (
        READ, {"left_out": ALONE},
        f"{DIFFERS}; operators upstream were excluded by --include or --exclude "
        "(tanh.1.forward, exp.2.forward, erf.3.forward …): the error may start there"),
    "an operator between": (
        READ, {"last": LAST, "alone": ALONE[:1]},
        AGREE + BETWEEN),
    "two operators between": (
        READ, {"last": LAST, "alone": ALONE[:2]},
        f"{AGREE}{BETWEEN}, {SECOND}"),
    "three operators between": (
        READ, {"last": LAST, "alone": ALONE[:3]},
        f"{AGREE}{BETWEEN}, {SECOND}, {THIRD}"),
    "four operators between": (
        READ, {"last": LAST, "alone": ALONE},
        f"{AGREE}{BETWEEN}, {SECOND}, {THIRD} …"),
    "an operator in the same place": (
        READ, {"last": paired(LAST, order=1), "alone": ALONE[:1]},
        AGREE + BEFORE),
    "an operator before": (
        READ, {"last": paired(LAST, order=4), "alone": ALONE[:1]},
        AGREE + BEFORE),
    "the writer runs later": (
        READ, {"last": LAST, "displaced": LINEAR[2].pair, "overtaken": LAST.pair, "alone": ALONE, "left_out": ()},
        AGREE + "in the golden, linear.5.forward writes this tensor; in the target, its partner linear.5.forward runs "
        "later: a call may be missing"),
    "the reader runs later": (
        READ, {"last": LAST, "overtaken": LINEAR[2].pair, "alone": ALONE},
        AGREE + LATER),
    "the writer has no partner": (
        READ, {"last": LAST, "displaced": ALONE[0], "overtaken": LINEAR[2].pair},
        AGREE + LATER),
}  # fmt: skip


@pytest.mark.parametrize("gap, around, words", CASES.values(), ids=CASES)
def test_the_sentences_of_a_gap(gap, around, words):
    found = reasons(gap, **around)
    assert found == words or found.startswith(f"{words}; ")


def scalar(target: float, golden: float, recorded: bool = False, op: str = "dropout") -> Finding:
    """A number that an operator reads, by its values or by recorded figures."""
    values = {"t": np.float32(target), "g": np.float32(golden)}
    (_, found, _) = network(f"{op} x g~t -> y", **values)
    if recorded:
        figures = Statistics(target, target, target, abs(target)), Statistics(golden, golden, golden, abs(golden))
        found = found._replace(measurement=Measurement(found.pair, statistics=figures))
    return found


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "target, golden, words",
    [
        (2.0, 1.0, "2 in the target, 1 in the golden"),
        (-0.5, 2.0, "-0.5 in the target, 2 in the golden"),
        (2.0, 0.0, "2 in the target, 0 in the golden"),
        (0.0, 2.0, "0 in the target, 2 in the golden"),
        (1024.0, 1.0, "1024 in the target, 1 in the golden"),
    ],
)
def test_a_number_of_the_operator_is_an_argument(target, golden, words, recorded):
    gap = scalar(target, golden, recorded)
    assert reasons(gap) == f"argument input:1 (p) is {words}"
    assert reasons(gap, last=LAST, left_out=ALONE) == f"argument input:1 (p) is {words}"


def test_a_number_without_figures_is_a_tensor():
    found = scalar(2.0, 1.0)
    for figures in ((None, Statistics(1.0)), (Statistics(1.0), None), (Statistics(None, 1.0), Statistics(1.0))):
        bare = found._replace(measurement=Measurement(found.pair, statistics=figures))
        assert reasons(bare).startswith("an input of the network")
    assert reasons(paired(found, golden=None)).startswith("an input of the network")
    vector = network("dropout s~t -> y", **SMALL, t=np.float32([2.0]))[0]
    assert reasons(vector).startswith("an input of the network")
    assert reasons(scalar(math.inf, 1.0, recorded=True)).endswith("is inf in the target, 1 in the golden")


def test_the_arguments_of_the_operator_follow():
    takes = [READ.pair.golden_op._replace(arguments={"input:2": value}) for value in (1, 2)]
    for gap, around in ((WEIGHT, {"last": LAST}), (READ, {}), (READ, {"last": LAST})):
        found = reasons(paired(gap, target_op=takes[0], golden_op=takes[1]), **around)
        assert "is 1 in the target, 2 in the golden" in found


def test_the_facts_name_their_tensor():
    between = gap_reasons(READ, Around(last=LAST, alone=ALONE))[2]
    assert [one.value for one in between.facts.values()] == ["tanh.1.forward", "exp.2.forward", "erf.3.forward"]
    first = gap_reasons(READ, Around(last=LAST))[0]
    assert (first.facts["because"].op, first.facts["because"].slot) == ("linear.5.forward", "input:0")


def test_an_input_of_a_writer_that_was_not_compared():
    found = unwritten_reasons(READ, Writer("gelu:0", "is damaged"))
    assert sentences(found[:2]) == f"{DIFFERS}; this tensor is gelu:0, which is damaged: check that operator first"
    assert [one.kind for one in found[:2]] == ["inputs differ", "writer"]
    assert found[0].facts["because"].slot == "input:0"


def test_the_pattern_of_the_error_follows():
    """All elements are twice as large: one factor."""
    (gap, _) = network("relu b~t -> y", t=2 * values_of("b"))
    for found in (gap_reasons(gap, Around()), gap_reasons(gap, Around(last=LAST)), unwritten_reasons(gap, Writer("a"))):
        assert "the whole target is 2 times the golden" in sentences(found[1:])
