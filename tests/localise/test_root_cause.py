"""The fields of a root, and the verdict of its row."""

import numpy as np
import pytest

from npucmp.judge.tolerance import Limit
from npucmp.localise.root_cause import OwnError, root_of, with_explanation, with_root_verdict
from npucmp.model import Cause, Verdict
from npucmp.model.relation import AxisOrder
from tests.localise.rules.craft import case, without_values

X = np.arange(1.0, 9.0)
OWN = case("tanh", [(X, X)], (X * 1.5, X))


def root(finding, node=OWN.node):
    return root_of(node, Cause.BORN, OwnError(finding, "a rule"), [], 0.25)


def test_a_root_shows_its_tensor_and_the_largest_error_of_its_operator():
    found = root(OWN.finding)
    assert (found.cause, found.slot, found.rule, found.input_error) == (Cause.BORN, "output:0", "a rule", 0.25)
    assert (found.value, found.output_error) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (found.pair, found.limit, found.relation) == (OWN.finding.pair, OWN.finding.limit, "")


@pytest.mark.parametrize("error", [None, float("nan")])
def test_without_an_error_a_root_shows_the_bound(error):
    finding = without_values(OWN.finding, error=error, metric="", verdict=Verdict.UNKNOWN)
    finding = finding._replace(measurement=finding.measurement._replace(bound=0.125))
    assert (root(finding).value, root(finding).metric) == (0.125, Verdict.UNKNOWN.value)


def test_a_root_names_the_order_of_axes():
    pair = OWN.finding.pair
    turned = pair._replace(target=pair.target._replace(relation=AxisOrder((1, 0))))
    finding = OWN.finding._replace(measurement=OWN.finding.measurement._replace(pair=turned))
    assert root(finding).relation == "permute(1,0)"


def test_an_explanation_has_a_rule_and_a_limit():
    explained = with_explanation(OWN.finding, Limit(0.75, "growth"))
    assert (explained.explained_by, explained.explained_limit) == ("growth", 0.75)
    assert with_explanation(OWN.finding, None) == OWN.finding


def test_only_the_row_of_a_root_differs():
    rows = [*OWN.node.inputs, OWN.finding._replace(verdict=Verdict.MATCH)]
    found = with_root_verdict(rows, root(OWN.finding))
    assert [one.verdict for one in found] == [rows[0].verdict, Verdict.DIVERGED]
    assert (found[0], found[1].rule) == (rows[0], "a rule")
