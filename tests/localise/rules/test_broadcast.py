"""A mask that one implementation repeats over the batch has another shape there, and is the same mask."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.localise.rules.craft import drawn
from tests.synthetic import write_run

normal, _ = drawn(__name__)
SCORES = [normal(2, 3, 4, 4).astype(np.float32) for _ in range(2)]
MASK = np.triu(np.full((4, 4), -1e4, np.float32), 1)
ADD, EXP = "Tensor.__add__.{}.forward".format, "Torch.exp.{}.forward".format


def run(shape, wrong=None, masks=(MASK, MASK)):
    """Two layers that mask scores; the scores of layer `wrong` are others than those that were written before."""
    records = {}
    for layer, (scores, mask) in enumerate(zip(SCORES, masks)):
        read = np.tanh(scores) * np.float32(2.0 if layer == wrong else 1.0)
        masked = read + mask
        records[f"Torch.tanh.{layer}.forward"] = {"in": [scores], "out": [np.tanh(scores)]}
        records[ADD(layer)] = {"in": [read, np.broadcast_to(mask, shape).copy()], "out": [masked]}
        records[EXP(layer)] = {"in": [masked], "out": [np.exp(masked)]}
    return records


def compared(tmp_path, target, golden, **options):
    return npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden), **options)


def roots(report):
    return [
        (one.pair.operator.name, one.cause.value, one.slot) for one in report.roots if one.cause.value != "PROPAGATED"
    ]


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3, 4, 4), (1, 4)], ids=str)
def test_a_mask_that_is_repeated_accuses_nothing(tmp_path, shape):
    mask = MASK[-1:] if shape == (1, 4) else MASK
    target, golden = run((4, 4), masks=(mask, mask)), run(shape, masks=(mask, mask))
    report = compared(tmp_path, target, golden)
    assert roots(report) == []
    assert report.exit_status == 2  # the golden's mask was not compared


def test_it_hides_no_fault_behind_it_and_is_none_beside_one(tmp_path):
    """The error of the second layer descends from no operand of the first, nor is its own mask another."""
    report = compared(tmp_path, run((4, 4), wrong=1), run((2, 1, 4, 4)))
    assert roots(report) == [(ADD(1), "GAP", "input:0")]


@pytest.mark.parametrize("layer", [0, 1])
def test_a_mask_of_other_values_is_still_found(tmp_path, layer):
    masks = [MASK, MASK]
    masks[layer] = np.triu(MASK, 2)
    report = compared(tmp_path, run((4, 4), masks=masks), run((2, 1, 4, 4)))
    assert roots(report)[0][0] == ADD(layer)
    assert report.exit_status == 1


def test_an_operand_that_does_not_broadcast_is_another(tmp_path):
    """Four rows against two are no repetition, whatever the output says."""
    target, golden = run((4, 4)), run((4, 4))
    target[ADD(0)]["in"][1] = MASK[:2]
    assert roots(compared(tmp_path, target, golden)) == [(ADD(0), "GAP", "input:1")]


def test_without_the_rule_the_mask_is_blamed(tmp_path):
    report = compared(tmp_path, run((4, 4)), run((2, 1, 4, 4)), skip_rules=["broadcast"])
    assert roots(report)[0] == (ADD(0), "GAP", "input:1")
