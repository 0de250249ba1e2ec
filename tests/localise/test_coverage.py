"""How many elements of the golden were compared, are known otherwise, or are open; and which are listed."""

import pytest

from npucmp.localise.coverage import NO_TENSORS, coverage_of
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from npucmp.model.comparison import MOST_LISTED, Coverage, OpenTensor
from npucmp.model.relation import LOCAL, Relation
from npucmp.model.roles import is_meaningless
from tests.localise.networks import OPEN, SMALL, network, numbered, paired, with_golden


@pytest.mark.parametrize("figures", [True, False])
@pytest.mark.parametrize("lines, left", OPEN.values(), ids=OPEN)
def test_every_element_is_covered_or_missed(lines, left, figures):
    """Tensors have 20 elements; s has one, e none, and uninitialised memory counts nowhere."""
    sizes, opened = {"s": 1, "e": 0}, left.split()
    findings = network(*lines, figures=figures, **SMALL)
    rows = [(f"{one.pair.order}:{one.pair.golden.label}", one) for one in findings if not is_meaningless(one.pair)]
    whole = sum(sizes.get(name[-1], 20) for name, _ in rows)
    missed = sum(sizes.get(name[-1], 20) for name in opened)
    undecided = [one for name, one in rows if one.verdict is Verdict.UNKNOWN and name[-1] != "e"]
    found = coverage_of(findings, (), None)
    assert found[:6] == (whole - missed, missed, len(opened), 0, len(undecided) - len(opened), 0)
    assert [one.op.split(".")[1] for one in found.first] == [name.partition(":")[0] for name in opened]


@pytest.mark.parametrize("figures", [True, False])
def test_an_open_tensor_is_listed_with_its_reason(figures):
    findings = network("relu x -> y", "tanh y -> z?", "exp y -> a?", figures=figures)
    findings[3] = findings[3]._replace(because="figures agree")
    assert coverage_of(findings, (), None).first == (
        OpenTensor("tanh.1.forward", "output:0", 20, "unknown", "figures agree"),
        OpenTensor("exp.2.forward", "output:0", 20, "unknown", "not compared"),
    )


@pytest.mark.parametrize("figures", [True, False])
def test_open_tensors_are_counted_but_not_all_listed(figures):
    words = " ".join(f"y{at}?" for at in range(MOST_LISTED + 1))
    found = coverage_of(network("relu x -> y", f"split y -> {words}", figures=figures), (), None)
    assert (found.tensors, found.missed, len(found.first)) == (MOST_LISTED + 1, 20 * (MOST_LISTED + 1), MOST_LISTED)
    assert found.first[-1].slot == f"output:{MOST_LISTED - 1}"


def test_nothing_is_covered_of_nothing():
    assert coverage_of((), (), None) == Coverage()


@pytest.mark.parametrize("figures", [True, False])
def test_the_golden_tensors_that_the_user_excluded_are_counted(figures):
    left_out = [one.pair for one in network("relu x -> y", "golden exp y -> z", "target exp y -> z")]
    assert coverage_of(network("relu x -> y", figures=figures), left_out, None)[:6] == (40, 0, 0, 0, 0, 4)


def bare(name: str, target: int, golden: int) -> list[Finding]:
    """The rows of an operator whose record has that many tensors on each side."""
    order = int(name.partition(".")[2])
    tensors = tuple(TensorRef(f"output:{at}", "float32", (4,)) for at in range(target))
    sides = [Operator(name, "relu", "relu", "forward", order, tensors[:count]) for count in (target, golden)]
    pairs = [Pair(order, one.slot, *sides, one, one if at < golden else None) for at, one in enumerate(tensors)]
    return [Finding(Measurement(one), Verdict.MATCH if one.golden else Verdict.MISSING, "") for one in pairs]


@pytest.mark.parametrize("target, golden, listed", [(1, 0, 1), (2, 0, 1), (1, 1, 0), (2, 1, 0)])
def test_a_record_without_tensors_is_listed_once(target, golden, listed):
    findings = numbered([*network("relu x -> y"), *bare("a.1", target, golden)])
    found = coverage_of(findings, (), None)
    assert found.first == (OpenTensor("a.1", "", 0, "", NO_TENSORS),) * listed
    assert (found.tensors, found.missed, found.unsized) == (listed, 0, 0)


def test_a_record_of_one_run_alone_is_not_listed():
    findings = bare("a.1", 1, 0)
    for side in ("target_op", "golden_op"):
        alone = numbered([paired(one, **{side: None}) for one in findings])
        assert coverage_of([*network("relu x -> y"), *alone], (), None).tensors == 0


def test_a_record_whose_target_has_no_tensors_either_is_not_listed():
    (one,) = bare("a.1", 1, 0)
    none = one.pair.target_op._replace(tensors=())
    assert coverage_of(numbered([*network("relu x -> y"), paired(one, target_op=none)]), (), None).tensors == 0


def test_a_target_tensor_that_cannot_be_read_is_listed():
    findings = network("relu x -> y", "target exp y -> z")
    findings[3] = findings[3]._replace(verdict=Verdict.UNREADABLE, because="the file is damaged")
    found = coverage_of(findings, (), None)
    assert found.first == (OpenTensor("exp.1.forward", "output:0", 20, "unreadable", "the file is damaged"),)
    assert found[:6] == (40, 20, 1, 0, 0, 0)


def test_a_tensor_without_a_header_has_no_known_size():
    findings = network("relu x -> y z")
    findings[1] = with_golden(findings[1], slot="", shape=())
    findings[1] = findings[1]._replace(verdict=Verdict.UNREADABLE)
    assert coverage_of(findings, (), None)[:6] == (40, 0, 1, 1, 0, 0)
    findings[2] = with_golden(findings[2], slot="", shape=())  # it was compared all the same
    assert coverage_of(findings, (), None)[:6] == (20, 0, 1, 1, 0, 0)


def exempted(**changes: object) -> int:
    """The number of open tensors if the output of the second operator is like this."""
    findings = network("relu x -> y", "tanh y -> z?", "exp y -> a")
    for name, value in changes.items():
        if name in ("rule", "verdict"):
            findings[3] = findings[3]._replace(**{name: value})
        elif name in ("relation", "origin"):
            findings[3] = with_golden(findings[3], **{name: value})
        else:
            findings[3] = paired(findings[3], **{name: value})
    return coverage_of(findings, (), None).tensors


OP = network("tanh y -> z?")[0].pair.golden_op
TAKES, INSERTED = OP._replace(arguments={"output:0": 1.0}), OP._replace(inserted=True)
EMPTY = OP._replace(op_type="empty")
LOCAL_PART, WHOLE = Relation((0, 1), (LOCAL,)), Relation((0, 1), ())


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, 1),
        ({"rule": "meaningless"}, 0),
        ({"rule": "overwritten"}, 0),
        ({"rule": "round_off"}, 1),
        ({"rule": "meaningless", "verdict": Verdict.UNREADABLE}, 1),
        ({"target_op": EMPTY}, 0),
        ({"target_op": EMPTY, "verdict": Verdict.UNREADABLE}, 1),
        ({"relation": LOCAL_PART}, 0),
        ({"relation": WHOLE}, 1),
        ({"target_op": TAKES, "golden_op": TAKES}, 0),
        ({"golden_op": TAKES}, 1),
        ({"target": None, "golden_op": INSERTED}, 0),
        ({"golden_op": INSERTED, "target_op": INSERTED}, 1),  # both runs have it
        ({"target": None, "golden_op": OP}, 1),
    ],
)
def test_a_tensor_without_a_defined_content_is_exempt(changes, found):
    assert exempted(**changes) == found


@pytest.mark.parametrize("via, confidence, found", [("content", 0.79, 1), ("content", 0.8, 0), ("name", 0.1, 0)])
def test_a_tensor_of_an_uncertain_pair_is_open(via, confidence, found):
    findings = network("relu x -> y", "tanh q -> z")
    findings[3] = paired(findings[3], via=via, confidence=confidence)
    got = coverage_of(findings, (), None)
    assert (got.tensors, got.accounted) == (found, -found)
