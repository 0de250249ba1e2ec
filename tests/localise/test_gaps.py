"""Inputs that differ although everything before them agrees: which are roots, which are explained, and by what."""

import numpy as np
import pytest

from npucmp.localise.search import RootSearch
from npucmp.model import Finding, Root, Verdict
from tests.localise.networks import SMALL, network, numbered, operator, paired, values_of

B = values_of("b")
SHARES = np.exp(values_of("p").astype(np.float64))  # rows of a softmax
SHARES /= SHARES.sum(1, keepdims=True)
NOISE = values_of("noise") - values_of("noise").mean(1, keepdims=True)  # keeps the sums of rows
NOISE *= 1.8e-6 * np.linalg.norm(SHARES) / np.linalg.norm(NOISE)
VALUES = {
    **SMALL,
    "l": 50 * values_of("l"),
    "n": 100 + values_of("n"),
    "t": np.float32([1.7]),
    **{letter: values_of(letter)[0] for letter in "ijk"},
    "p": SHARES.astype(np.float32),
    "more": (SHARES * (1 + 4.4e-7)).astype(np.float32),
    "most": (SHARES * (1 + 1e-6) + NOISE).astype(np.float32),
    "scaled": (B * np.float32(1 + 2e-6)).astype(np.float32),
    "v": np.random.default_rng(1).standard_normal((8, 9)).astype(np.float32),
}
VALUES["one"] = VALUES["v"].copy()
VALUES["one"][0, 0] *= np.float32(1 + 2e-6)
VALUES["nearly"] = VALUES["v"].copy()
VALUES["nearly"][np.unravel_index(np.abs(VALUES["v"]).argmax(), (8, 9))] *= np.float32(1 + 7e-7)


def searched(findings: list[Finding], **options: object) -> tuple[list[Finding], list[Root]]:
    """The findings and the roots of a search."""
    search = RootSearch(findings, **options)
    for node in search.nodes:
        search.visit(node)
    return search.results()


def roots_of(findings: list[Finding], **options: object) -> str:
    """The place, the slot and the cause of each root."""
    return ", ".join(f"{one.pair.order} {one.slot} {one.cause.value}" for one in searched(findings, **options)[1])


def made(*lines: str) -> list[Finding]:
    return network(*lines, **VALUES)


GAP, NEXT = "1 input:0 GAP", "2 input:0 GAP"


@pytest.mark.parametrize(
    "lines, row, rule, explained, differs",
    [
        (["empty -> y~1", "add y~1 x -> z"], 1, "meaningless", "", False),
        (["relu x -> y", "copy_ b~1 y -> y"], 2, "meaningless", "", False),
        (["relu x -> y~3e-7", "tanh b~2e-6 -> z~2e-6"], 2, "round_off", "growth", False),
        (["relu x -> y~3e-7", "tanh y~2e-6 -> z~2e-6"], 2, "round_off", "growth", False),
        (["relu x -> y~3e-7", "add_ z~1.2e-6 y~3e-7 -> z~1.2e-6"], 2, "round_off", "growth", False),
        (["relu x -> y", "add_ z~1e-3 y -> z~1e-3"], 2, "round_off", "", True),  # the output is the root
    ],
)
def test_an_input_that_is_no_gap_has_the_reason(lines, row, rule, explained, differs):
    found = searched(made(*lines))[0][row]
    assert (found.rule, found.explained_by, found.verdict is Verdict.DIVERGED) == (rule, explained, differs)


def test_the_name_of_the_writer_is_shown_if_no_operator_has_it():
    findings = made("relu x -> y", "tanh b~1e-3 -> z~1e-3")
    for side in ("golden", "target"):
        named = getattr(findings[2].pair, side)._replace(source="gelu:0")
        (root,) = searched([*findings[:2], paired(findings[2], **{side: named}), *findings[3:]])[1]
        assert root.cause.value == "GAP" and "this tensor is gelu:0, which was not dumped" in root.because


def test_an_input_that_is_an_excluded_output_has_an_unknown_cause():
    findings = numbered(operator(0, "relu x -> y") + operator(2, "tanh b~1e-3 -> z~1e-3"))
    left_out = [one.pair for one in operator(1, "exp c -> b")]
    (root,) = searched(findings, left_out=left_out)[1]
    assert root.cause.value == "UNKNOWN" and "exp.1.forward output:0, which was excluded" in root.because


def in_golden(findings: list[Finding], **places: int) -> list[Finding]:
    """The findings with other places of their golden operators, by type."""
    changed = {one.pair.operator.op_type: one.pair.golden_op for one in findings}
    moved = {kind: op._replace(order=places.get(kind, op.order)) for kind, op in changed.items()}
    return [paired(one, golden_op=moved[one.pair.operator.op_type]) for one in findings]


def test_operators_in_another_order_are_named():
    lines = ["relu x -> y", "tanh b~1e-3 -> z~1e-3", "exp y -> b"]
    (root, *_) = searched(in_golden(made(*lines), exp=1, tanh=2))[1]
    assert (root.pair.order, root.cause.value) == (1, "GAP")
    assert "in the golden, exp.2.forward writes this tensor; in the target, its partner exp.2.forward" in root.because
    (root, *_) = searched(in_golden(made(*lines[:2]), relu=2))[1]
    assert "the golden runs this operator before relu.0.forward, the target after it" in root.because
    (root, *_) = searched(in_golden(made(*lines)))[1]
    assert "in code that was not dumped" in root.because


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def test_a_parameter_that_is_rounded_otherwise_is_a_gap_of_its_own():
    weights = {letter: np.tile(values_of(letter), (4, 2)) for letter in "abcdefghijo"}
    rounded = {letter.upper(): bfloat16(values) for letter, values in weights.items()}
    lines = [f"linear x {one}~{one.upper()} -> y" for one in "abcdefghij"]
    assert roots_of(network(*lines, "linear y o~1e-4 -> z", **weights, **rounded)) == "0 input:1 GAP, 10 input:1 GAP"
