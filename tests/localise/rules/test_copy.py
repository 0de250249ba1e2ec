"""Copies that change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled

RULE = rule("copy")

normal, noisy = drawn(__name__)

X = normal(64, 64)
READ = [(noisy(X, 1e-4), X)]
WORSE = noisy(X, 3e-4)


class TestCopy(RuleContract):
    name = "copy"
    fires = {
        **spelled("clone", lambda op: case(op, READ, (WORSE, X))),
        "into a device's layout": case("TransData", READ, (WORSE.reshape(128, 32), X.reshape(128, 32))),
    }
    silent = {
        "as it is": case("clone", READ, (READ[0][0], X)),
        "computes": case("tanh", READ, (WORSE, X)),
        "a cast rounds": case("Cast", READ, (WORSE, X)),
        "the golden is no copy either": case("Identity", READ, (WORSE, X + 1)),
    }


def changed(error, came, read=(), wrote=(), op="clone", others=(), file=""):
    """A copy with an error, of an input with an error; `file` holds the golden of both."""
    one = case(op, [((1 + came) * X, X, *read), *others], ((1 + error) * X, X, *wrote), input_error=came)
    if not file:
        return one

    def stored(finding, name=file):
        pair = finding.pair._replace(golden=finding.pair.golden._replace(file=name))
        return finding._replace(measurement=finding.measurement._replace(pair=pair, moments=None))

    node = replace(one.node, inputs=[stored(finding) for finding in one.node.inputs])
    return replace(one, finding=stored(one.finding), node=node)


@pytest.mark.parametrize("one, applies", [
    (changed(0.1, 0.0), True), (changed(0.0, 0.0), False), (changed(0.1, 0.1), False),
    (changed(0.1, 0.0999), True),
    (changed(0.1 * (1 + 5e-10), 0.1), False), (changed(0.1 * (1 + 2e-9), 0.1), True),
    (changed(0.1, 0.0, op="tanh"), False), (changed(0.1, 0.0, others=[(X, X)]), False),
    (changed(0.1, 0.0, ("float16",)), False), (changed(0.1, 0.0, ("float16",), ("float16",)), True),
    (changed(0.1, 0.0, ("float32", "float16")), True),
])  # fmt: skip
def test_a_copy_has_the_error_of_its_input(one, applies):
    """The sums of both errors differ by a billionth at most."""
    assert RULE.applies(one) == applies and not RULE.applies(replace(one, node=None))
    for fields in ({"error": None}, {"metric": "noise"}):
        assert not RULE.applies(replace(one, finding=one.finding._replace(**fields)))


def test_the_golden_of_a_copy_is_the_file_or_the_values_of_its_input():
    one = changed(0.1, 0.0, file="a.npy")
    assert RULE.applies(one)
    for field in ({"file": "b.npy"}, {"file": ""}, {"shape": (32, 128)}):
        read = one.node.inputs[0]
        pair = read.pair._replace(golden=read.pair.golden._replace(**field))
        read = read._replace(measurement=read.measurement._replace(pair=pair))
        assert not RULE.applies(replace(one, node=replace(one.node, inputs=[read])))
    other = case("clone", [(X, 2 * X)], (1.1 * X, X), input_error=0.0)
    assert not RULE.applies(other)
    constant = case("clone", [(X * 0 + 1, X * 0 + 1)], (X * 0 + 2, X * 0 + 1), input_error=0.0)
    assert not RULE.applies(constant)


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_copy_of_one_side_shows_nothing(side, is_read):
    one = changed(0.1, 0.0)
    finding = one.node.inputs[0] if is_read else one.finding
    lonely = finding._replace(measurement=finding.measurement._replace(pair=finding.pair._replace(**{side: None})))
    node = replace(one.node, inputs=[lonely]) if is_read else one.node
    assert not RULE.applies(replace(one, node=node, finding=one.finding if is_read else lonely))
