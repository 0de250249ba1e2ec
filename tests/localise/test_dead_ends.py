"""Operators of the target alone whose outputs no operator reads, and tensors that are read in slices."""

import math

import numpy as np
import pytest

from npucmp.localise.dead_ends import UnwrittenTensor, dead_ends, elements_of, is_read_in_slices, unwritten_tensors
from npucmp.localise.rule_context import SUM_ROUNDINGS
from npucmp.model import Finding, Measurement
from tests.localise.networks import SMALL, network, numbered, operator, paired, values_of

WHOLE = (0.05 * np.random.default_rng(3).standard_normal((4, 30))).astype(np.float32)
THIRDS = {letter: WHOLE[:, at : at + 10] for letter, at in zip("QKV", (0, 10, 20))}
TERMS = {letter: values_of(letter) / 32 for letter in "gh"}
SUMMED = {**TERMS, "f": TERMS["g"] + TERMS["h"]}
VALUES = {**SMALL, **THIRDS, **SUMMED, "W": WHOLE, "Z": np.zeros((4, 30), np.float32), "z": np.zeros((4, 10), "f")}


def made(*lines: str) -> list[Finding]:
    return network(*lines, **VALUES)


def places(findings: list[Finding], again: frozenset[int] = frozenset()) -> list[int]:
    both = {one.pair.order for one in findings if one.pair.target_op and one.pair.golden_op}
    return [*dead_ends(findings, sorted(both), again)]


DEAD = {
    "no operator reads it": (["relu x -> y", "target exp y -> a", "tanh y -> q"], [1]),
    "an operator of both runs reads it": (["relu x -> y", "target exp y -> a", "tanh a -> q"], []),
    "an operator of the target reads it": (["relu x -> y", "target exp y -> a", "target tanh a -> q"], [2]),
    "it was read before": (["relu x a -> y", "target exp y -> a"], []),
    "an output of both runs holds it": (["relu x -> y", "target exp y -> a", "tanh y -> a"], []),
    "an output that was not compared holds it": (["relu x -> y", "target exp y -> a", "tanh y -> a?"], [1]),
    "one of two outputs is read": (["target exp y -> a b", "tanh b -> q"], []),
    "none of two outputs is read": (["target exp y -> a b", "tanh y -> q"], [0]),
    "it writes nothing": (["target exp y ->", "tanh y -> q"], []),
    "it writes an empty tensor": (["target exp y -> e", "tanh y -> q"], []),
    "it writes uninitialised memory": (["target empty -> a", "tanh y -> q"], []),
    "an operator of both runs": (["relu x -> y", "exp y -> a"], []),
    "an operator of the golden": (["relu x -> y", "golden exp y -> a"], []),
    "a constant is no content": (["target exp y -> k", "tanh k -> q"], [0]),
    "two": (["target exp y -> a", "tanh y -> q", "target exp y -> b"], [0, 2]),
    "three slices": (["target exp y -> W", "tanh Q -> a", "relu K -> b", "exp V -> c"], []),
    "three slices in another order": (["target exp y -> W", "tanh V -> a", "relu Q -> b", "exp K -> c"], []),
    "two of three slices": (["target exp y -> W", "tanh Q -> a", "relu K -> b"], [0]),
    "three slices that an operator wrote": (
        ["target exp y -> W", "tanh y -> Q", "tanh Q -> a", "relu K -> b", "exp V -> c"], [0]),
    "three slices that were read before": (["tanh Q -> a", "relu K -> b", "exp V -> c", "target exp y -> W"], [3]),
    "three slices and another output": (["target exp y -> W d", "tanh Q -> a", "relu K -> b", "exp V -> c"], [0]),
    "gradients that add up": (
        ["exp.backward x -> y", "target relu.backward y -> g", "target tanh.backward y -> h", "exp.backward f -> q"],
        []),
    "a gradient alone is no sum": (
        ["exp.backward x -> y", "target relu.backward y -> g", "exp.backward f -> q"], [1]),
    "gradients in two gaps": (
        ["target relu.backward y -> g", "exp.backward x -> y", "target tanh.backward y -> h", "exp.backward f -> q"],
        [0, 2]),
    "tensors of the forward do not add up": (
        ["exp x -> y", "target relu y -> g", "target tanh y -> h", "exp f -> q"], [1, 2]),
    "a sum of the forward": (
        ["exp.backward x -> y", "target relu.backward y -> g", "target tanh.backward y -> h", "exp f -> q"],
        [1, 2]),
    "a sum that was not compared": (
        ["exp.backward x -> y", "target relu.backward y -> g", "target tanh.backward y -> h", "exp.backward f? -> q"],
        [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("lines, found", DEAD.values(), ids=DEAD)
def test_an_operator_of_the_target_is_a_dead_end_if_no_operator_reads_what_it_writes(lines, found):
    assert places(made(*lines)) == found


def test_an_operator_that_ran_again_or_was_inserted_is_no_dead_end():
    findings = made("relu x -> y", "target exp y -> a", "target exp y -> b", "tanh y -> q")
    assert places(findings) == [1, 2]
    assert places(findings, frozenset((1,))) == [2]
    inserted = findings[2].pair.target_op._replace(inserted=True)
    assert places([paired(one, target_op=inserted) if one.pair.order == 1 else one for one in findings]) == [2]


@pytest.mark.parametrize("side, source, found", [
    ("target", "exp.1.forward:0", []),
    ("target", "exp_1_forward:0", []),
    ("target", "exp.1.forward:1", [1]),
    ("golden", "exp.1.forward:0", [1]),
])  # fmt: skip
def test_a_name_links_a_reader(side, source, found):
    findings = made("relu x -> y", "target exp y -> a", "tanh b -> q")
    named = getattr(findings[4].pair, side)._replace(source=source)
    findings[4] = paired(findings[4], **{side: named})
    assert places(findings) == found


LINES = ["exp.backward x -> y", "target relu.backward y -> g", "target tanh.backward y -> h", "exp.backward f -> q"]
TOTALS = {letter: float(values.astype(np.float64).sum()) for letter, values in TERMS.items()}
NEAR = SUM_ROUNDINGS * 2.0**-24 * math.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in TERMS.values()))


def with_total(findings: list[Finding], total: float) -> list[Finding]:
    """The findings with another sum of the elements of f."""
    moments = findings[6].measurement.moments
    moved = moments._replace(target=moments.target._replace(total=total))
    return [*findings[:6], findings[6]._replace(measurement=Measurement(findings[6].pair, moved)), *findings[7:]]


@pytest.mark.parametrize(
    "away, found", [(0, []), (0.9 * NEAR, []), (-0.9 * NEAR, []), (1.1 * NEAR, [1, 2]), (-1.1 * NEAR, [1, 2])]
)
def test_the_sum_of_gradients_is_known_within_rounding(away, found):
    assert places(with_total(made(*LINES), sum(TOTALS.values()) + away)) == found


def test_the_sum_of_gradients_of_an_unknown_type_is_known_exactly():
    findings = [paired(one, target=one.pair.target._replace(dtype="own")) for one in made(*LINES)]
    exact = sum(findings[at].measurement.moments.target.total for at in (3, 5))
    assert places(with_total(findings, exact)) == []
    assert places(with_total(findings, exact + 0.5 * NEAR)) == [1, 2]


def test_no_term_of_a_sum_is_unknown_or_zero():
    findings = with_total(made(*LINES), TOTALS["g"])
    findings[5] = findings[5]._replace(measurement=Measurement(findings[5].pair))
    assert places(findings) == [1, 2]
    noughts = [one.replace(" g", " z").replace(" h", " z").replace(" f", " z") for one in LINES]
    assert places(made(*noughts)) == [1, 2]


def test_a_tensor_of_the_target_has_elements():
    (one,) = made("relu W ->")
    assert (elements_of(one), elements_of(paired(one, target=None))) == (120, 0)


def test_the_tensors_that_no_operator_wrote_come_at_their_first_read():
    findings = made(
        "relu x -> y", "linear y w -> a", "tanh b -> q", "exp b x -> c", "golden tanh d -> f", "relu k s -> q"
    )
    found = unwritten_tensors(findings)
    assert [(one.order, one.elements) for one in found] == [(0, 20), (2, 20), (5, 1)]
    assert found[1].side == findings[5].measurement.moments.target
    assert unwritten_tensors([one._replace(measurement=Measurement(one.pair)) for one in findings]) == []
    late = made("relu b -> q", "tanh x -> b")
    assert [one.order for one in unwritten_tensors(late)] == [1]  # an operator writes it later


def whole(order: int = 5) -> Finding:
    return numbered(operator(order, "exp -> W", **VALUES))[0]


def reads(*letters: str, order: int = 6) -> list[UnwrittenTensor]:
    return unwritten_tensors(numbered([
        one for at, letter in enumerate(letters, order) for one in operator(at, f"relu {letter} ->", **VALUES)
    ]))  # fmt: skip


@pytest.mark.parametrize(
    "letters, order, found",
    [
        ("QKV", 6, True),
        ("VxKQ", 6, True),
        ("QKV", 5, False),  # the first is read where the whole is written
        ("QKV", 3, False),
        ("QKx", 6, False),
        ("QK", 6, False),
        ("W", 6, False),
        ("WQKV", 6, True),
        ("abcdfQKV", 6, True),  # the eighth
        ("abcdfgQKV", 6, False),
    ],
)
def test_a_tensor_is_read_in_slices_if_they_are_the_whole(letters, order, found):
    assert is_read_in_slices(whole(), reads(*letters, order=order)) is found


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 6])
def test_a_tensor_has_two_to_four_slices(parts):
    pieces = dict(zip("abcdfg", np.array_split(WHOLE.reshape(-1), parts)))
    found = [one for at, letter in enumerate(pieces) for one in operator(6 + at, f"relu {letter} ->", **pieces)]
    assert is_read_in_slices(whole(), unwritten_tensors(numbered(found))) is (2 <= parts <= 4)


def test_no_slices_of_zeros_and_of_unknown_values():
    known = reads("Q", "K", "V")
    zero = numbered(operator(5, "exp -> Z", **VALUES))[0]
    noughts = [one._replace(side=zero.measurement.moments.target) for one in known]
    assert not is_read_in_slices(zero, noughts)
    assert not is_read_in_slices(whole()._replace(measurement=Measurement(whole().pair)), known)
    assert not is_read_in_slices(paired(whole(), target=None), known)
