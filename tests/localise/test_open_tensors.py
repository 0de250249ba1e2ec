"""Golden tensors that no compared tensor accounts for: the borders of what the golden alone computes."""

from typing import Optional

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow
from npucmp.localise.open_tensors import Stretch, enclosed_backward_places, is_unrecorded_output, still_open
from npucmp.model import DECIDED, Finding, Verdict
from npucmp.model.roles import is_meaningless
from tests.localise.networks import OPEN, SHAPE, SMALL, named, network, paired, values_of

WIDE = {letter: np.tile(values_of(letter), 2) for letter in "ABC"}


def made(*lines: str, **values: np.ndarray) -> list[Finding]:
    return network(*lines, **{**SMALL, **WIDE, **values})


def rows_of(findings: list[Finding]) -> list[GoldenRow]:
    """The rows with elements of the golden."""
    return [row for row in map(GoldenRow.of, findings) if row.finding.pair.golden is not None and row.elements]


def is_left(row: GoldenRow) -> bool:
    return row.finding.verdict not in DECIDED


def left_of(findings: list[Finding], context: Optional[ReadContext] = None) -> str:
    """The open tensors by place and letter."""
    golden = [row for row in rows_of(findings) if not is_meaningless(row.finding.pair)]
    open_rows = [row for row in golden if is_left(row)]
    return " ".join(named([row.finding for row in still_open(findings, golden, open_rows, context)]))


@pytest.mark.parametrize("lines, left", OPEN.values(), ids=OPEN)
def test_a_tensor_of_both_runs_is_open_unless_compared_tensors_account_for_it(lines, left):
    assert left_of(made(*lines)) == left


ALONE = {
    "one operator": (["relu x -> y", "golden tanh y -> z", "exp z -> q"], ""),
    "two operators": (["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "exp a -> q"], ""),
    "a tensor that no operator reads": (
        ["relu x -> y", "golden tanh y -> z b", "golden exp z -> a", "exp a -> q"], "1:z 1:b 2:z"),
    "an input without a writer": (
        ["relu x -> y", "golden add y b -> z", "golden exp z -> a", "exp a -> q"], "1:b 1:z 2:z"),
    "an own parameter": (["relu x -> y", "golden linear y w -> z", "golden exp z -> a", "exp a -> q"], ""),
    "a parameter that another operator adds": (
        ["relu x -> y", "golden linear y w -> z", "golden add z w -> a", "exp a -> q"], "1:w 1:z 2:z 2:w"),
    "a parameter of both runs": (
        ["relu x -> y", "linear y w? -> z", "golden exp z -> a", "exp a -> q"], "1:w"),
    "a known constant": (["relu x k -> y", "golden add y k -> z", "golden exp z -> a", "exp a -> q"], ""),
    "another constant": (["relu x -> y", "golden add y k -> z", "golden exp z -> a", "exp a -> q"], "1:k 1:z 2:z"),
    "a mask": (["relu x -> y", "golden add y m -> z", "golden exp z -> a", "exp a -> q"], ""),
    "an inserted dead end": (
        ["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "target add y -> b", "exp a -> q"],
        "1:z 2:z 2:a"),
    "an inserted operator that is read": (
        ["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "target add y -> q", "exp a -> q"], ""),
    "a dead end elsewhere": (
        ["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "exp a -> q", "target add y -> b", "relu q -> x"],
        ""),
    "nothing compared": (["golden relu x -> y", "golden relu x -> y"], "0:x 0:y 1:x 1:y"),
    "it ran again": (["tanh x -> q", "golden relu x -> y", "golden relu x -> y"], "1:y"),
    "only parameters compared": (
        ["relu x w -> y", "golden linear s w -> a", "golden tanh a -> a"], "1:s 1:a 2:a 2:a"),
    "an output after its reader": (["tanh y -> q", "golden exp y -> z", "golden relu z -> y"], "1:z 2:z 2:y"),
}  # fmt: skip


@pytest.mark.parametrize("lines, left", ALONE.values(), ids=ALONE)
def test_a_tensor_of_the_golden_alone_is_open_unless_its_stretch_is_closed(lines, left):
    assert left_of(made(*lines)) == left


FORWARD = ["relu@r x -> y", "golden linear@l y w -> z", "exp@e z -> q"]
BACKWARD = ["exp.backward@e q -> g", "golden linear.backward@l g -> h v", "relu.backward@r h -> a"]
GRADIENTS = {
    "of a parameter": ([*FORWARD, *BACKWARD], ""),
    "beside one that no operator reads": (
        [*FORWARD, BACKWARD[0], "golden linear.backward@l g -> b v", BACKWARD[2]], "4:v"),
    "the target has a backward there": ([*FORWARD, *BACKWARD[:2], "target exp.backward@m h -> q", BACKWARD[2]], "4:v"),
    "the target has a forward there": ([*FORWARD, *BACKWARD[:2], "target exp@m h -> q", BACKWARD[2]], ""),
    "of a parameter of both runs": ([FORWARD[0], "linear@l y w -> z", FORWARD[2], *BACKWARD], "4:v"),
    "without a forward": ([FORWARD[0], FORWARD[2], *BACKWARD], "3:v"),
    "of a call that is no backward": (
        [*FORWARD, BACKWARD[0], "golden linear@l g -> h v", BACKWARD[2]], "4:v"),
}  # fmt: skip


@pytest.mark.parametrize("lines, left", GRADIENTS.values(), ids=GRADIENTS)
def test_the_gradient_of_a_parameter_that_the_golden_alone_reads(lines, left):
    assert left_of(made(*lines)) == left


# the gradients c, d and f, h are of one autograd node each: contents do not link them
TANH, EXP = "golden tanh@t y -> z", "golden exp@e z -> a"
INNER = ["golden exp.backward@e c -> d", "golden tanh.backward@t f -> h"]
OUTER = ["relu@r x -> y", TANH, EXP, "relu@q a -> q", "relu.backward@q p -> g", *INNER, "relu.backward@r j -> l"]


ENCLOSED = {
    "all gradients that enter or leave were compared": (OUTER, ""),
    "no gradient leaves": ([*OUTER[:-1], "relu.backward@r j? -> l?"], "5:c 5:d 6:f 6:h 7:j 7:l"),
    "no gradient enters": ([*OUTER[:4], "relu.backward@q p? -> g?", *OUTER[5:]], "4:p 4:g 5:c 5:d 6:f 6:h"),
    "one tensor of the gradient was compared": ([*OUTER[:-1], "relu.backward@r j? -> l"], "7:j"),
    "a backward was not recorded": (OUTER[:-1], "5:c 5:d 6:f 6:h"),
    "a forward is open": ([*OUTER[:2], "golden exp@e z b -> a", *OUTER[3:]], "1:z 2:z 2:b 5:c 5:d 6:f 6:h"),
    "a forward of both runs": ([OUTER[0], "tanh@t y -> z", *OUTER[2:]], "5:c 5:d 6:f 6:h"),
    "no forward": ([*OUTER[:5], "golden exp.backward@m c -> d", *OUTER[6:]], "5:c 5:d"),
}  # fmt: skip


@pytest.mark.parametrize("lines, left", ENCLOSED.values(), ids=ENCLOSED)
def test_backward_operators_are_closed_with_the_stretch_of_their_forward(lines, left):
    assert left_of(made(*lines)) == left


def test_the_places_of_enclosed_backward_operators():
    findings = made(*OUTER)
    graph = GoldenGraph(findings, rows_of(findings))
    assert enclosed_backward_places(graph, [row for row in rows_of(findings) if row.finding.pair.order > 4]) == {5, 6}
    assert enclosed_backward_places(graph, rows_of(findings)) == set()  # the forward is open too
    assert enclosed_backward_places(graph, []) == set()
    broken = [one._replace(verdict=Verdict.UNREADABLE) if one.pair.order == 5 else one for one in findings]
    graph = GoldenGraph(broken, rows_of(broken))
    assert enclosed_backward_places(graph, [row for row in rows_of(broken) if row.finding.pair.order > 4]) == set()


@pytest.mark.parametrize("enters, places", [("b", set()), ("s", {5, 6}), ("k", set()), ("o", {5, 6}), ("i", {5, 6})])
def test_a_tensor_without_a_writer_has_no_gradient_if_it_is_known_or_no_float(enters, places):
    """i holds integers; o is a constant that was compared elsewhere, k is another, s is a number."""
    constants = {"i": np.arange(20).reshape(SHAPE), "o": np.ones(SHAPE, np.float32)}
    findings = made("relu@r x o -> y", f"golden add@t y {enters} -> z", *OUTER[2:], **constants)
    graph = GoldenGraph(findings, rows_of(findings))
    backward = [row for row in rows_of(findings) if row.finding.pair.order > 4]
    assert enclosed_backward_places(graph, backward) == places
    graph.prove({row.finding.row for row in rows_of(findings) if row.finding.pair.slot == "input:1"})
    assert enclosed_backward_places(graph, backward) == {5, 6}


READ = "golden exp.backward@e c -> d"
SAVED = {
    "of the shape that an earlier operator read": (["golden tanh.backward@t a -> C", READ], True),
    "no earlier operator": ([READ], False),
    "the earlier operator wrote the shape": (["golden tanh.backward@t a -> b", READ], False),
    "the earlier operator read another shape": (["golden tanh.backward@t A -> B", READ], False),
    "the earlier operator is of the forward": (["golden tanh@t a -> C", READ], False),
    "of the forward": (["golden tanh.backward@t a -> C", "golden exp@e c -> d"], False),
    "of both runs": (["golden tanh.backward@t a -> C", "exp.backward@e c -> d"], False),
    "in another gap": (["golden tanh.backward@t a -> C", "exp q -> g", READ], False),
    "an operator wrote it": (["golden tanh.backward@t a -> C", "golden relu.backward@r B -> c", READ], False),
    "the earlier operator wrote nothing": (["golden tanh.backward@t a ->", READ], True),
    "an operator before that": (["golden tanh.backward@t a -> C", "golden relu.backward@r A -> B", READ], True),
    "one of two outputs has the shape": (["golden tanh.backward@t a -> C b", READ], False),
    "one of two inputs has the shape": (["golden tanh.backward@t B a -> C", READ], True),
}  # fmt: skip


@pytest.mark.parametrize("lines, found", SAVED.values(), ids=SAVED)
def test_a_gradient_that_a_dump_does_not_record(lines, found):
    findings = made("relu x -> y", *lines)
    graph = GoldenGraph(findings, rows_of(findings))
    row = next(
        one
        for one in rows_of(findings)
        if one.finding.pair.golden.label == "c" and not one.finding.pair.golden.is_output
    )
    assert is_unrecorded_output(graph, row) is found


def stretch_at(findings: list[Finding], letter: str) -> Stretch:
    """The stretch of a tensor without a comparison."""
    golden = rows_of(findings)
    graph = GoldenGraph(findings, golden)
    start = next(row for row in golden if row.finding.pair.golden.label == letter)
    return Stretch(graph, graph.content(start), {row.finding.row for row in golden if is_left(row)})


CHAIN = ["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "exp a -> q"]


def test_a_stretch_is_what_open_contents_connect():
    found = stretch_at(made(*CHAIN, "golden relu b -> c"), "z")
    letters = ["".join(sorted({row.finding.pair.golden.label for row in one.rows})) for one in found.contents]
    assert sorted(letters) == ["a", "y", "z"] and sorted(found.operators) == [0, 1, 2, 3]
    found = stretch_at(made("relu x -> y?", "relu.backward y -> g?", "tanh.backward g -> h"), "y")
    assert [*found.operators] == [0]  # the consumers of the forward decide
    found = stretch_at(made("relu x -> y", "relu.backward y -> g?", "tanh.backward g? -> h"), "g")
    assert [*found.operators] == [1, 2]


@pytest.mark.parametrize("row", [2, 3, 4, 5])
def test_a_stretch_with_an_unreadable_tensor_is_open(row):
    findings = made(*CHAIN)
    assert stretch_at(findings, "z").is_closed()
    findings[row] = findings[row]._replace(verdict=Verdict.UNREADABLE)
    assert not stretch_at(findings, "z").is_closed()


@pytest.mark.parametrize("place", range(4))
def test_a_stretch_is_open_if_the_golden_records_no_inputs_of_an_operator(place):
    findings = made(*CHAIN)
    for at, one in enumerate(findings):
        if one.pair.order == place:
            findings[at] = paired(one, golden_op=one.pair.golden_op._replace(reads_recorded=False))
    assert not stretch_at(findings, "z").is_closed()


def test_a_stretch_is_open_if_the_golden_records_no_outputs_of_an_operator():
    assert not stretch_at(made("relu x -> y", "golden tanh y -> z", "golden exp z ->"), "z").is_closed()


@pytest.mark.parametrize("via, left", [("content", ""), ("name", "1:w 1:z 2:z"), ("", "1:w 1:z 2:z")])
def test_an_operator_with_other_parameters_is_known_by_its_contents(via, left):
    """A norm is folded into the weight: the target has no partner of the golden's weight."""
    findings = made("relu x -> y", "linear y w? -> z?", "golden exp z -> a", "exp a -> q")
    findings[2] = paired(findings[2], via=via)
    findings[3] = paired(findings[3], target=None, via="")._replace(verdict=Verdict.MISSING)
    findings[4] = paired(findings[4], via=via)
    assert left_of(findings) == left


def test_an_output_of_a_lost_record_is_open_in_a_closed_stretch():
    findings = made("relu x -> y", "tanh y -> z?", "golden exp z -> a", "exp a -> q")
    bare = findings[2].pair.target_op._replace(tensors=findings[2].pair.target_op.tensors[:1])
    assert left_of(findings) == ""
    assert left_of([paired(one, target_op=bare) if one.pair.order == 1 else one for one in findings]) == "1:z"


def test_a_backward_forward_of_another_pass_is_no_border():
    """The forward ends where its own consumers read it; a backward that reads a saved tensor is no border of it."""
    lines = ["relu x -> y", "golden tanh y -> z", "golden exp z -> a", "golden exp.backward b z -> c", "exp a -> q"]
    assert left_of(made(*lines)) == "3:b 3:c"
    assert left_of(made(*lines[:2], lines[3], lines[4])) == "1:z 2:b 2:z 2:c"


@pytest.mark.parametrize("factor, left", [(1.0, ""), (1 + 2e-7, ""), (1.001, "1:z")])
def test_the_values_of_an_operator_of_the_target_prove_a_tensor(factor, left, tmp_path):
    values = {"u": (values_of("z") * factor).astype(np.float32)}
    findings = made("relu x -> y", "golden tanh y -> z", "target erf y -> u", "relu q -> p", **values)
    for row, letter, side in ((3, "z", "golden"), (5, "u", "target")):
        file = tmp_path / f"{letter}.npy"
        np.save(file, values.get(letter, values_of(letter)))
        stored = getattr(findings[row].pair, side)._replace(file=str(file), encoding="npy")
        findings[row] = paired(findings[row], **{side: stored})
    assert left_of(findings, ANYWHERE) == left
    assert left_of(findings) == "1:z"  # no file may be read
