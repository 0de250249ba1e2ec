"""A parameter that two operators no longer share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npucmp
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule
from tests.synthetic import write_run

RULE = rule("untied")

normal, noisy = drawn(__name__)
W, WEIGHTS, X = normal(64, 64), normal(3, 16, 64), normal(4, 64)
HEAD = "Functional.linear.0.forward"


def weight(error=1e-4, untied=HEAD, **more):
    return case("embedding", [], (noisy(W, error), W), slot="input:1", untied=untied, inherited=1e-2, **more)


class TestUntied(RuleContract):
    name = "untied"
    fires = {"within the error of an update": weight(node=False)}
    silent = {
        "shared": weight(untied="", node=False),
        "within its limit": weight(1e-8, node=False),
        "an operator": weight(),
    }


SHARED, MOVED, APART = (0.0, 0.0), (3e-4, 3e-4), (3e-4, -3e-4)


def tied(*errors):
    """A table and a head, each with its error in each step, within the error that their gradients may make."""
    x, ids, noise = X, np.arange(8), WEIGHTS[-1]
    for weight, own in zip(WEIGHTS, errors):
        table, head = (weight * (1 + error * noise) for error in own)
        gradient = weight * (1 + 1e-6 * noise * any(map(any, errors)))
        operators = {
            "Functional.embedding.0.forward": ([ids, table], [table[ids]]),
            HEAD: ([x, head], [x @ head.T]),
            HEAD.replace("forward", "backward"): ([x @ weight.T], [x, gradient]),
        }
        yield {
            name: {way: [one if one.dtype == int else one.astype(np.float32) for one in some]
                   for way, some in zip(("in", "out"), tensors)}
            for name, tensors in operators.items()
        }  # fmt: skip


@pytest.mark.parametrize("errors, found", [
    ((SHARED, APART), True), ((SHARED, MOVED), False), (((0.0, 2e-7), APART), False),
])  # fmt: skip
def test_a_tie_that_breaks_is_no_noise_of_an_update(tmp_path, errors, found):
    for side, own in (("golden", (SHARED, SHARED)), ("target", errors)):
        for step, run in enumerate(tied(*own)):
            write_run(tmp_path / side, run, step=step)
    roots = [
        (one.pair.operator.name, one.rule) for one in npucmp.compare(tmp_path / "target", tmp_path / "golden").roots
    ]
    assert roots[:1] == ([("Functional.embedding.0.forward", "untied")] if found else [])


@pytest.mark.parametrize("error, untied, applies", [
    (8 * 2.0**-24, HEAD, False), (1.01 * 8 * 2.0**-24, HEAD, True), (0.5, HEAD, True), (0.5, "", False),
])  # fmt: skip
def test_a_broken_tie_exceeds_the_limit(error, untied, applies):
    one = case("embedding", [], ones(64, *[error] * 64), slot="input:1", untied=untied, node=False)
    assert RULE.applies(one) == applies
    assert not RULE.applies(replace(one, node=case("embedding", [ones(9)], ones(9)).node))
    found = RULE.judged(replace(one, untied=HEAD, finding=one.finding._replace(limit=0.0)))
    assert found.verdict.value == "diverged" and found.because.startswith(HEAD) and "tie" in found.because
