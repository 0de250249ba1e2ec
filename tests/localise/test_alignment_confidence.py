"""The causes that an uncertain alignment by contents leaves of a proof."""

import numpy as np
import pytest

from npucmp.localise.alignment_confidence import begins_upstream, is_by_content, uncertain_cause
from npucmp.localise.coverage import coverage_of
from npucmp.model import Cause, Verdict, sentences
from npucmp.model.finding import UNBOUNDED
from tests.localise.rules.craft import case

X, W, ONE = np.ones((4, 4)) * np.arange(4), np.ones((4, 5)), np.ones(1)
SURE = {"via": "content", "confidence": 1.0}


def paired(finding, **pair):
    return finding._replace(measurement=finding.measurement._replace(pair=finding.pair._replace(**pair)))


def node_of(own, *reads, values=X, op="linear"):
    node = case(op, [(values, values)] * len(reads), (X, X)).node
    node.inputs[:] = [paired(one, **more) for one, more in zip(node.inputs, reads)]
    node.outputs[:] = [paired(node.outputs[0], **own)]
    return node


@pytest.mark.parametrize(
    "cause, node, found, words",
    [
        (Cause.BORN, node_of({"via": "name"}, {"via": "name"}), None, ""),
        (Cause.BORN, node_of(SURE, SURE), None, ""),
        (Cause.BORN, node_of(SURE), None, ""),
        (Cause.BORN, node_of({**SURE, "confidence": 0.5}, SURE), Cause.SUSPECT, "aligned by similarity"),
        (Cause.BORN, node_of({**SURE, "confidence": 0.8}, SURE), None, ""),
        (Cause.BORN, node_of({**SURE, "confidence": 0.79}, SURE), Cause.SUSPECT, "confidence 0.79"),
        (Cause.BORN, node_of(SURE, {**SURE, "confidence": 0.79}), Cause.UNKNOWN, "confidence 0.79"),
        (Cause.BORN, node_of({**SURE, "confidence": 0.5, "note": "two fit"}, SURE), Cause.SUSPECT, "two fit"),
        (Cause.BORN, node_of(SURE, {**SURE, "confidence": 0.9}), None, ""),
        (Cause.BORN, node_of(SURE, {**SURE, "confidence": 0.89}), Cause.UNKNOWN, "confidence 0.89"),
        (Cause.BORN, node_of(SURE, {**SURE, "confidence": 0.8}, {**SURE, "confidence": 0.7}), Cause.UNKNOWN, "input:0"),
        (
            Cause.BORN,
            node_of(SURE, {**SURE, "confidence": 0.8}, {**SURE, "confidence": 0.7}, op="add"),
            Cause.UNKNOWN,
            "input:1",
        ),
        (Cause.WORSENED, node_of({**SURE, "confidence": 0.5}, SURE), Cause.SUSPECT, "confidence 0.5"),
        (Cause.GAP, node_of({**SURE, "confidence": 0.5}, SURE), Cause.SUSPECT, "confidence 0.5"),
        (Cause.GAP, node_of(SURE, {**SURE, "confidence": 0.5}), None, ""),
        (Cause.BORN, node_of(SURE, {**SURE, "confidence": 0.5}), Cause.UNKNOWN, "pair of input:0"),
        (Cause.PROPAGATED, node_of({**SURE, "confidence": 0.5}, SURE), None, ""),
        (Cause.BORN, node_of(SURE, {**SURE, "note": UNBOUNDED}), Cause.UNKNOWN, "without a partner"),
        (Cause.BORN, node_of(SURE, {"via": ""}), Cause.UNKNOWN, "no tensor that the operator reads was paired"),
        (Cause.BORN, node_of(SURE, SURE, values=ONE), Cause.UNKNOWN, "no tensor that the operator reads was paired"),
    ],
)
def test_an_uncertain_pair_proves_less(cause, node, found, words):
    got = uncertain_cause(node, cause, node.outputs[0])
    assert (got[0] if got else None) is found
    assert not found or words in sentences(got[1])


@pytest.mark.parametrize(
    "vias, found",
    [
        (("name", "name", "name"), False),
        (("content", "name", "name"), True),
        (("name", "structure", "name"), True),
        (("name", "name", "similar"), True),
        (("fused", "", "order"), False),
    ],
)
def test_one_pair_by_contents_makes_an_operator_uncertain(vias, found):
    own, *reads = ({"via": one} for one in vias)
    assert is_by_content(node_of(own, *reads)) is found


ALONE = {"via": "", "golden": None}


@pytest.mark.parametrize(
    "own, reads, found",
    [
        (SURE, [SURE, ALONE], True),
        (SURE, [SURE, SURE], False),
        (SURE, [SURE, {"via": "", "target": None}], False),
        (SURE, [SURE, {"via": "", "target": None, "golden": None}], False),
        (SURE, [], False),
        ({"via": "name"}, [{"via": "name"}, ALONE], False),
        ({"via": "name"}, [SURE, ALONE], True),
    ],
)
def test_several_operators_begin_at_an_input_without_a_partner(own, reads, found):
    assert begins_upstream(node_of(own, *reads)) is found


@pytest.mark.parametrize(
    "via, confidence, opened",
    [("content", 0.8, 0), ("content", 0.79, 1), ("structure", 0.5, 1), ("name", 0.5, 0), ("fused", 0.79, 0)],
)
def test_coverage_counts_certain_pairs(via, confidence, opened):
    """A pair by names is certain at any confidence."""
    (own,) = node_of({"via": via, "confidence": confidence}).outputs
    assert coverage_of([own._replace(verdict=Verdict.MATCH)], (), None).tensors == opened
