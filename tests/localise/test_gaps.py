"""Inputs that differ although everything before them agrees: which are roots, which are explained, and by what."""

import numpy as np
import pytest

from npucmp import Tolerances
from npucmp.judge.tolerance import Limit, judge
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.search import RootSearch
from npucmp.model import Finding, Measurement, Root, Verdict
from tests.localise.networks import ROUND_OFF, SMALL, network, numbered, operator, paired, values_of

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
FOUND = {
    "the writer agrees": (["relu x -> y", "tanh y~1e-3 -> z~1e-3"], GAP, "code that was not dumped"),
    "the first operator": (["relu x~1e-3 -> y~1e-3"], "0 input:0 GAP", "an input of the network or of the dumped part"),
    "a parameter": (["linear x w~1e-3 -> y~1e-3"], "0 input:1 GAP", "a parameter already differs"),
    "no writer": (["relu x -> y", "tanh b~1e-3 -> z~1e-3"], GAP, "relu.0.forward output:0"),
    "no writer, beyond the errors before": (
        ["relu x -> y~3e-7", "tanh b~3e-6 -> z~3e-6"], GAP, "at most 3.0e-07"),
    "no writer, within the errors before": (["relu x -> y~3e-7", "tanh b~2e-6 -> z~2e-6"], "", ""),
    "beyond the writer": (["relu x -> y~3e-7", "tanh y~3e-6 -> z~3e-6"], GAP, "between these two tensors"),
    "within the writer": (["relu x -> y~3e-7", "tanh y~2e-6 -> z~2e-6"], "", ""),
    "the first of two inputs": (["relu x -> y", "add y~1e-3 b~1e-3 -> z~1e-3"], GAP, "input:0 differs"),
    "the second of two inputs": (["relu x -> y", "add y b~1e-3 -> z~1e-3"], "1 input:1 GAP", "input:1 differs"),
    "both are within the errors before": (["relu x -> y~3e-7", "add y~3e-7 b~2e-6 -> z~2e-6"], "", ""),
    "another reader of the tensor": (
        ["relu x -> y", "tanh y~1e-3 -> z", "exp y~1e-3 -> q~1e-3"],
        f"{GAP}, 2 output:0 PROPAGATED", "input:0 differs"),
    "an operator is born before": (
        ["relu x -> y~1e-3", "tanh b~1e-3 -> z~1e-3"], "0 output:0 BORN, 1 output:0 PROPAGATED", ""),
    "an operator is born before and wrote it": (
        ["relu x -> y~1e-3", "tanh y~1e-2 -> z~1e-2"], "0 output:0 BORN, 1 output:0 PROPAGATED", ""),
    "an operator is born elsewhere": (
        ["relu x -> y", "exp x -> q~1e-3", "tanh y~1e-3 -> z~1e-3"], "1 output:0 BORN, 2 input:0 GAP", ""),
    "a parameter after an operator was born": (
        ["relu x -> q~1e-3", "linear y w~1e-3 -> z~1e-3"], "0 output:0 BORN, 1 input:1 GAP", ""),
    "an operator between": (
        ["relu x -> y", "golden tanh y -> z", "exp z~1e-3 -> q~1e-3"], NEXT,
        "operators between these two tensors: tanh.1.forward (only in the golden)"),
    "an operator before the writer": (
        ["target tanh x -> a", "relu x -> y", "exp b~1e-3 -> q~1e-3"], NEXT,
        "operators of one run before it: tanh.0.forward (only in the target)"),
    "an operator before the known writer": (
        ["target tanh x -> a", "relu x -> y", "exp y~1e-3 -> q~1e-3"], NEXT, "between these two tensors, in code"),
    "an operator of a parameter": (
        ["relu x -> y", "golden tanh y -> z", "linear z w~1e-3 -> q~1e-3"], "2 input:1 GAP",
        "a parameter already differs: input:1, "),
    "a backward of which the inputs were recorded amplifies": (
        ["exp@e l -> q", "exp.backward@e g~3e-7 ->", "tanh.backward b~1e-5 -> z~1e-5"], "", ""),
    "a backward whose outputs were recorded does not": (
        ["exp@e l -> q", "exp.backward@e g~3e-7 -> h", "tanh.backward b~1e-5 -> z~1e-5"], NEXT, ""),
    "a backward of which the inputs were recorded wrote another tensor": (
        ["exp@e l -> q", "exp.backward@e g~3e-7 ->", "tanh.backward p~3e-7 -> c", "tanh.backward b~1e-5 -> z~1e-5"],
        "3 input:0 GAP", ""),
    "a backward of which the inputs were recorded, and a parameter": (
        ["exp@e l -> q", "exp.backward@e g~3e-7 ->", "linear q w -> c", "tanh.backward b~1e-5 -> z~1e-5"], "", ""),
    "a backward of which the inputs were recorded, and a known tensor": (
        ["exp@e l -> q", "exp.backward@e g~3e-7 ->", "tanh.backward q~3e-7 -> c", "tanh.backward b~1e-5 -> z~1e-5"],
        "", ""),
    "a law of an operator of which the inputs were recorded": (
        ["relu x -> y", "softmax y ->", "tanh p~more -> z"], NEXT, "rows sum to 1"),
    "no law of an operator whose outputs were recorded": (
        ["relu x -> y", "softmax y -> q", "tanh p~more -> z"], "", ""),
    "no law of another operator": (["relu x -> y", "relu y ->", "tanh p~more -> z"], "", ""),
    "no law behind a root": (["exp x -> q~1e-3", "softmax y ->", "tanh p~more -> z"], "0 output:0 BORN", ""),
    "a law, within the errors before": (
        ["exp x -> y~4e-7", "softmax a ->", "tanh p~most -> z~1e-6"], NEXT, "rows sum to 1"),
    "no law, within the errors before": (["exp x -> y~4e-7", "relu a ->", "tanh p~most -> z~1e-6"], "", ""),
    "a factor of the whole, within the errors before": (
        ["exp x -> y~4e-7", "tanh b~scaled -> z~2e-6"], GAP, "scaled by 1 + 2.0e-06"),
    "one wrong element": (["exp v -> y", "tanh v~nearly -> z"], GAP, "1 of 72 elements differs"),
    "one wrong element of an unknown tensor": (
        ["exp x -> y", "tanh v~nearly -> z"], GAP, "1 of 72 elements differs"),
    "one wrong element behind a root": (
        ["exp v -> v~1e-3", "tanh v~nearly -> z~1e-3"], "0 output:0 BORN, 1 output:0 BORN", ""),
    "one wrong element of an unknown tensor behind a root": (
        ["exp x -> q~1e-3", "tanh v~nearly -> z"], f"0 output:0 BORN, {GAP}", "1 of 72 elements differs"),
    "numbers that may be rests of sums are no errors before": (
        ["relu x -> y~3e-7", "mul y~3e-7 s~2e-6 -> z~3e-7", "mul z~3e-7 t~2e-6 -> a~3e-7", "tanh b~1e-5 -> c~1e-5"],
        "3 input:0 GAP", "are at most 3.1e-07"),
    "tensors are errors before": (
        ["relu x -> y~3e-7", "tanh b~2e-6 -> z~3e-7", "tanh c~2e-6 -> a~3e-7", "exp d~1e-5 -> f~1e-5"], "", ""),
    "the first operator is one of the golden alone": (
        ["golden tanh x -> a", "exp b~1e-3 -> z~1e-3"], GAP, "an input of the network or of the dumped part"),
    "the writer has an error of a root, what is read has none": (
        ["relu x -> y~1e-3", "tanh y -> z?", "exp z~1e-3 -> q~1e-3"], "0 output:0 BORN, 2 output:0 PROPAGATED", ""),
    "the writer of an operator with a root was not compared, what is read agrees": (
        ["relu x -> y? p~1e-3", "tanh y -> z?", "exp z~1e-3 -> q~1e-3"], "0 output:1 BORN, 2 input:0 UNKNOWN", ""),
    "neither the writer nor what is read was compared": (
        ["relu x -> y? p~1e-3", "tanh y? -> z?", "exp z~1e-3 -> q~1e-3"], "0 output:1 BORN, 2 output:0 PROPAGATED", ""),
    "one wrong element of a parameter": (["linear x v~one -> z"], "0 input:1 GAP", "1 of 72 elements differs"),
    "memory that no operator wrote": (["empty -> y~1", "add y~1 x -> z"], "", ""),
    "memory that an operator writes to": (["relu x -> y", "copy_ b~1 y -> y"], "", ""),
    "the source of a copy": (
        ["relu x -> y", "copy_ b~1 a~1e-3 -> a~1e-3"], "1 input:1 GAP", "input:1 differs"),
    "the source of a copy behind a root": (
        ["relu x -> a~1e-3", "copy_ b~1 a~1e-3 -> a~1e-3"], "0 output:0 BORN, 1 output:0 PROPAGATED", "inputs differ"),
    "memory that an operator adds to": (["relu x -> y", "add_ b~1 y -> z~1"], "1 input:0 GAP", "input:0 differs"),
    "recorded after it was overwritten": (["relu x -> y", "add_ z~1e-7 y -> z~1e-7"], "", ""),
}  # fmt: skip


@pytest.mark.parametrize("lines, roots, words", FOUND.values(), ids=FOUND)
def test_an_input_is_a_gap_if_nothing_explains_its_error(lines, roots, words):
    _, found = searched(made(*lines))
    assert ", ".join(f"{one.pair.order} {one.slot} {one.cause.value}" for one in found) == roots
    assert not words or any(words in one.because for one in found)


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


def with_checksum(finding: Finding) -> Finding:
    """A tensor whose checksums differ."""
    sides = [one._replace(checksum=text * 8) for text, one in zip("ab", (finding.pair.target, finding.pair.golden))]
    pair = finding.pair._replace(target=sides[0], golden=sides[1])
    return judge(Measurement(pair, same=False), Tolerances(), Limit(ROUND_OFF, "round_off"))._replace(row=finding.row)


def test_a_checksum_of_an_overwritten_tensor_decides_nothing():
    findings = made("relu x -> y", "add_ b y -> z")
    findings[2] = with_checksum(findings[2])
    got, roots = searched(findings)
    assert (got[2].verdict, got[2].rule, roots) == (Verdict.UNKNOWN, "overwritten", [])
    findings = made("relu x -> y", "add_ b y -> z~1e-3")
    findings[2] = with_checksum(findings[2])
    assert searched(findings)[0][2].rule == "overwritten" and roots_of(findings) == "1 output:0 BORN"
    findings = made("relu x -> y", "add b y -> z")
    findings[2] = with_checksum(findings[2])
    assert roots_of(findings) == GAP


def unreadable(finding: Finding, verdict: Verdict = Verdict.UNREADABLE, **more: object) -> Finding:
    """The tensor without values."""
    return finding._replace(measurement=Measurement(finding.pair, **more), verdict=verdict, error=None)


def test_an_input_whose_writer_could_not_be_compared_has_an_unknown_cause():
    findings = made("relu x -> y", "tanh y~1e-3 -> z~1e-3", "exp y~1e-3 -> a~1e-3")
    findings[1] = unreadable(findings[1])
    _, roots = searched(findings)
    assert [(one.pair.order, one.cause.value) for one in roots] == [(1, "UNKNOWN"), (2, "PROPAGATED")]
    assert "relu.0.forward output:0, which could not be compared: check that operator first" in roots[0].because
    findings[1] = made("relu x -> y?", "exp x -> a")[1]  # its values are known, but not those of the target
    assert roots_of(findings) == "1 input:0 UNKNOWN, 2 output:0 PROPAGATED"
    findings[1] = findings[1]._replace(verdict=Verdict.MISSING)
    _, roots = searched(findings)
    assert roots_of(findings) == f"{GAP}, 2 output:0 PROPAGATED"
    assert "relu.0.forward output:0, which was not dumped or cannot be compared" in roots[0].because
    findings[1] = findings[1]._replace(measurement=findings[1].measurement._replace(bound=0.0))
    _, roots = searched(findings)  # statistics of the writer agree
    assert roots_of(findings) == f"{GAP}, 2 output:0 PROPAGATED" and "check that operator" not in roots[0].because


def test_the_name_of_the_writer_is_shown_if_no_operator_has_it():
    findings = made("relu x -> y", "tanh b~1e-3 -> z~1e-3")
    for side in ("golden", "target"):
        named = getattr(findings[2].pair, side)._replace(source="gelu:0")
        (root,) = searched([*findings[:2], paired(findings[2], **{side: named}), *findings[3:]])[1]
        assert root.cause.value == "GAP" and "this tensor is gelu:0, which was not dumped" in root.because


@pytest.mark.parametrize(
    "excluded, lines, words",
    [
        (1, ["relu x -> y", "", "tanh b~1e-3 -> z~1e-3"], "excluded by --include or --exclude (exp.1.forward)"),
        (0, ["", "relu x -> y", "tanh b~1e-3 -> z~1e-3"], "the error starts in code that was not dumped"),
        (2, ["relu x -> y", "tanh b~1e-3 -> z~1e-3", ""], "the error starts in code that was not dumped"),
        (0, ["", "tanh b~1e-3 -> z~1e-3"], "excluded by --include or --exclude (exp.0.forward)"),
        (1, ["relu x -> y", "", "linear y w~1e-3 -> z~1e-3"], "a parameter already differs: input:1, "),
    ],
)
def test_an_excluded_operator_between_may_have_the_error(excluded, lines, words):
    findings = numbered([one for order, line in enumerate(lines) if line for one in operator(order, line, **VALUES)])
    left_out = [one.pair for one in operator(excluded, "exp c -> v", **VALUES)]
    (root,) = searched(findings, left_out=left_out)[1]
    assert root.cause.value == "GAP" and words in root.because


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


def test_the_target_tensor_shows_where_it_came_from():
    """The target reads what another operator wrote: the golden's tensor there agrees too."""
    values = {**VALUES, "y": values_of("y")}
    findings = network("relu x -> y", "exp x -> q", "tanh b~y -> z~1e-3", **values)
    (root,) = searched(findings)[1]
    assert (root.pair.order, root.cause.value) == (2, "GAP")
    assert "last matching tensor: relu.0.forward output:0" in root.because
    findings = network("relu x -> a~y", "exp x -> q", "tanh b~y -> z~1e-3", **values)
    assert roots_of(findings) == "0 output:0 BORN, 2 output:0 PROPAGATED"


@pytest.mark.parametrize(
    "lines, seen",
    [
        (["relu x -> y~3e-7", "tanh b~1e-3 -> z~1e-3"], True),
        (["relu x -> y~3e-7", "tanh y~1e-3 -> z~1e-3"], False),  # its writer is known
        (["relu x -> y~3e-7", "linear y~3e-7 w~1e-3 -> z~1e-3"], False),
    ],
)
def test_the_errors_before_are_shown_if_they_decided(lines, seen):
    (root,) = searched(made(*lines))[1]
    assert ("about 90 % of the preceding errors" in root.because) is seen


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(
    "last, roots",
    [
        ("linear z~1e-3 r~R -> a~1e-3", "0 input:1 GAP, 1 output:0 PROPAGATED, 2 output:0 PROPAGATED"),
        ("add z~1e-3 r -> a~1e-3", "0 input:1 GAP, 1 input:1 GAP, 2 output:0 PROPAGATED"),  # two are too few
    ],
)
def test_parameters_that_are_rounded_alike_are_one_gap(last, roots):
    weights = {letter: np.tile(values_of(letter), (4, 2)) for letter in "wur"}
    rounded = {letter.upper(): bfloat16(values) for letter, values in weights.items()}
    findings = network("linear x w~W -> y~1e-3", "linear x u~U -> z~1e-3", last, **{**VALUES, **weights, **rounded})
    _, found = searched(findings)
    assert roots_of(findings) == roots
    assert ("rounded to bfloat16 in the target only" in found[0].because) is ("R" in last)
    assert not any("rounded to bfloat16" in one.because for one in found[1:])


def test_a_parameter_that_is_rounded_otherwise_is_a_gap_of_its_own():
    weights = {letter: np.tile(values_of(letter), (4, 2)) for letter in "abcdefghijo"}
    rounded = {letter.upper(): bfloat16(values) for letter, values in weights.items()}
    lines = [f"linear x {one}~{one.upper()} -> y" for one in "abcdefghij"]
    assert roots_of(network(*lines, "linear y o~1e-4 -> z", **weights, **rounded)) == "0 input:1 GAP, 10 input:1 GAP"


BEFORE = ["linear@a x w -> y", "linear@b y w -> z"]


@pytest.mark.parametrize(
    "before, lines, words",
    [
        (BEFORE, ["linear@a x w~1e-6 -> y", "linear@b y w~2e-6 -> z"], "b.forward shares this parameter"),
        ([], ["linear@a x w~1e-6 -> y", "linear@b y w~2e-6 -> z"], "a parameter already differs: input:1, rel_l2"),
    ],
)
def test_a_broken_tie_is_a_gap(before, lines, words):
    _, found = searched(made(*lines), updates=Updates(made(*before)))
    assert found[0].cause.value == "GAP" and words in found[0].because


@pytest.mark.parametrize(
    "line, error, roots",
    [
        ("target linear y w -> a", "3e-7", ""),
        ("golden linear y w -> a", "3e-7", ""),
        ("target exp y -> a", "3e-7", NEXT),  # it has no parameter
        ("target linear y w -> a", "0", NEXT),
        ("linear y w -> a", "3e-7", NEXT),
    ],
)
def test_earlier_updates_explain_what_an_operator_of_one_run_wrote(line, error, roots):
    before = Updates(made(f"relu x -> y~{error}", f"tanh y~{error} -> z~{error}"))
    assert roots_of(made("relu x -> y", line, "tanh b~1e-5 -> z~1e-5"), updates=before) == roots
    first = made("golden linear y w -> a", "golden exp a -> c", "tanh b~1e-5 -> z~1e-5")
    assert roots_of(first, updates=before) == (NEXT if error == "0" else "")
    behind = made("exp c -> d~1e-3", line, "tanh b~1e-5 -> z~1e-5")
    assert "2 input:0 GAP" not in roots_of(behind, updates=before)


@pytest.mark.parametrize(
    "backward, roots",
    [
        ("layer_norm.backward@n g~3e-7 -> h", ""),  # a norm of almost equal numbers amplifies
        ("layer_norm.backward@m g~3e-7 -> h", "2 input:1 GAP"),
        ("layer_norm.backward@n g -> h", "2 input:1 GAP"),
        ("layer_norm.backward@n -> h", "2 input:1 GAP"),
    ],
)
def test_the_backward_of_a_parameter_explains_the_gradient_that_an_optimizer_reads(backward, roots):
    findings = made("layer_norm@n n i i -> y", backward, "sub i j~1e-5 -> k~1e-5")
    assert roots_of(findings) == roots
