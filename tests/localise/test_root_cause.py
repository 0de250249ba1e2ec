"""The fields of a root, and the verdict of its row."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.judge.tolerance import Limit
from npucmp.localise.root_cause import OwnError, root_of, with_explanation, with_root_verdict
from npucmp.model import Cause, Evidence, Verdict
from npucmp.model.relation import AxisOrder
from npucmp.model.table import Table
from tests.localise.rules.craft import case, without_values

X = np.arange(1.0, 9.0)
OWN = case("tanh", [(X, X)], (X * 1.5, X))


COARSE = case("relu", [], (X, X, "bfloat16", "float32")).finding
PLAIN = case("relu", [], (X, X)).finding
TYPED = case("tanh", [], (X, X, "bfloat16", "float32"))


def root(finding, node=OWN.node):
    return root_of(node, Cause.BORN, OwnError(finding, "a rule"), [], 0.25)


def test_a_root_shows_its_tensor_and_the_largest_error_of_its_operator():
    found = root(OWN.finding)
    assert (found.cause, found.slot, found.rule, found.input_error) == (Cause.BORN, "output:0", "a rule", 0.25)
    assert (found.value, found.output_error) == (pytest.approx(0.5), pytest.approx(0.5))
    assert found.place == 0
    assert (found.pair, found.limit, found.relation) == (OWN.finding.pair, OWN.finding.limit, "")


@pytest.mark.parametrize("error", [None, float("nan")])
def test_without_an_error_a_root_shows_the_bound(error):
    finding = without_values(OWN.finding, error=error, metric="", verdict=Verdict.UNKNOWN)
    finding = finding._replace(measurement=finding.measurement._replace(bound=0.125))
    assert (root(finding).value, root(finding).metric) == (0.125, Verdict.UNKNOWN.value)


@pytest.mark.parametrize(
    "metric, rule, says",
    [
        ("max_abs_err", "round_off", 4.0),  # half of the largest element
        ("max_abs_err", "tolerance", 4.0),
        ("rel_l2", "round_off", 0.5),
        ("a metric of a package", "round_off", 0.25),  # no user asked for it
    ],
)
def test_a_root_shows_the_value_of_the_metric_that_decided(metric, rule, says):
    finding = OWN.finding._replace(metric=metric, rule=rule, error=0.25)
    assert root(finding).value == pytest.approx(says)
    assert root(without_values(finding)).value == 0.25


@pytest.mark.parametrize("reads, assumed, extra, count", [
    ((), (), (), 1), ((COARSE,), (), (), 0), ((), (COARSE,), (), 0), ((), (), (COARSE,), 0),
    ((PLAIN,), (COARSE,), (), 1), ((PLAIN,), (), (COARSE,), 0),
])  # fmt: skip
def test_a_type_is_named_where_no_tensor_read_has_it(reads, assumed, extra, count):
    """The output of the operator before counts only if no input was recorded."""
    node = replace(TYPED.node, inputs=[*reads], assumed_inputs=[*assumed], extra_inputs=[*extra])
    assert [one.kind for one in root(TYPED.finding, node).evidence] == ["type"] * count


@pytest.mark.parametrize("cause, kinds", [(Cause.BORN, ["own", "type", "fused"]), (Cause.PROPAGATED, ["own", "type"])])
def test_a_fused_operator_is_named_unless_it_passes_an_error_on(cause, kinds):
    made = TYPED.node.pair.target_op._replace(originals=("a", "b"))
    node = replace(TYPED.node, pair=TYPED.node.pair._replace(target_op=made))
    found = root_of(node, cause, OwnError(TYPED.finding, ""), [Evidence("own", "")], None)
    assert [one.kind for one in found.evidence] == kinds


def test_the_largest_output_error_is_unknown_without_a_known_one():
    outputs = [OWN.finding._replace(error=error) for error in (0.25, None, 0.75)]
    assert root(OWN.finding, replace(OWN.node, outputs=outputs)).output_error == 0.75
    assert root(OWN.finding, replace(OWN.node, outputs=outputs[1:2])).output_error is None


def test_a_root_names_the_order_of_axes():
    pair = OWN.finding.pair
    turned = pair._replace(target=pair.target._replace(relation=AxisOrder((1, 0))))
    finding = OWN.finding._replace(measurement=OWN.finding.measurement._replace(pair=turned))
    assert root(finding).relation == "permute(1,0)"


def test_an_explanation_has_a_rule_and_a_limit():
    explained = with_explanation(OWN.finding, Limit(0.75, "growth"))
    assert (explained.explained_by, explained.explained_limit) == ("growth", 0.75)
    assert with_explanation(OWN.finding, None) == OWN.finding


@pytest.mark.parametrize("kept", [list, Table])
def test_only_the_row_of_a_root_differs(kept):
    own = OWN.finding._replace(verdict=Verdict.MATCH)
    pair = own.pair._replace(order=1)
    later = own._replace(measurement=own.measurement._replace(pair=pair))
    rows = [*OWN.node.inputs, own, later]
    found = with_root_verdict(kept(rows), root(OWN.finding))
    assert [one.verdict for one in found] == [rows[0].verdict, Verdict.DIVERGED, Verdict.MATCH]
    assert (found[0], found[1].rule, found[1].because) == (rows[0], "a rule", root(OWN.finding).because)
    assert isinstance(found, kept)
