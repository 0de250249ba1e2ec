"""A parameter of a later step has the error that earlier updates may have made."""

from __future__ import annotations

import pytest

from tests.localise.rules.craft import case, ones, rule

RULE = rule("inherited")


@pytest.mark.parametrize("inherited, node, applies", [(0.25, False, True), (0.0, False, False), (0.25, True, False)])
def test_the_bound_is_that_of_the_updates(inherited, node, applies):
    one = case("linear", [], ones(9, 1.0), slot="input:1", node=node, inherited=inherited)
    assert RULE.applies(one) == applies and RULE.bound(one) == inherited
