"""The causes that an uncertain alignment by contents leaves of a proof."""

import numpy as np
import pytest

from npucmp.localise.alignment_confidence import uncertain_cause
from npucmp.model import Cause
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
    assert not found or any(words in reason.sentence() for reason in got[1])
