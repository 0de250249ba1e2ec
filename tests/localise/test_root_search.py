"""The decision of the search on each operator of a small network."""

from __future__ import annotations

import pytest

from npucmp.localise.search import RootSearch
from npucmp.model import Finding, Verdict
from tests.localise.networks import network, paired


def searched(findings: list[Finding], **options):
    search = RootSearch(findings, **options)
    for node in search.nodes:
        search.visit(node)
    return search.results()


def test_memory_that_no_operator_wrote_and_its_copies_are_meaningless():
    findings, roots = searched(network("empty -> y~1", "clone y~1 -> q~1", "view q~1 -> r~1", "tanh x -> z"))
    assert ([one.rule for one in findings[:-2]], roots) == (["meaningless"] * 5, [])
    assert {one.verdict for one in findings[:-2]} == {Verdict.UNKNOWN}


@pytest.mark.parametrize("between, said", [([], True), (["exp p -> r"], False)])
def test_the_operator_right_behind_a_kernel_may_be_fused_into_it(between, said):
    """A kernel has no pass; it is known by its name alone."""
    findings = network("linear x w -> y~1e-2", *between, "golden relu y -> z")
    kernel = findings[0].pair.operator._replace(phase="")
    findings = [paired(one, target_op=kernel, golden_op=kernel) if not one.pair.order else one for one in findings]
    (root,) = searched(findings)[1]
    assert ("follower" in [one.kind for one in root.evidence]) is said


def test_the_first_reader_of_an_error_from_another_rank_names_how_it_arrived():
    search = RootSearch(network("irecv a", "wait y~1e-2", "tanh q~1e-2"))
    search.nodes[0].error_from_other_rank = True
    for node in search.nodes:
        search.visit(node)
    _, roots = search.results()
    assert [(one.pair.order, one.cause.value, one.rule) for one in roots] == [(1, "PROPAGATED", "collective")]
    assert search.carriers == {1: 0}
