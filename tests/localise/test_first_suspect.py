"""The first operator of all ranks that exceeds the noise, and what becomes of the roots and findings around it."""

from dataclasses import replace

import pytest

from npucmp.localise.evidence import reason
from npucmp.localise.root_cause import SearchResult
from npucmp.localise.stat_test import FirstSuspect, candidates, search_result
from npucmp.model import Cause, Root, Statistics, Verdict
from npucmp.model.network import in_columns
from npucmp.model.table import ChangedRows
from tests.localise.stat_craft import Op, findings_of, nodes, of, row, visited

A, OUT = row("input:0", golden=of(5.0)), row("output:0", golden=of(6.0))
MAX, NORM = 0, 3


def shifted(size=100.0, name="", **more):
    """An operator whose output exceeds the noise."""
    return Op("tanh", (A, row("output:0", NORM, size, golden=of(7.0))), name=name, **more)


QUIET = Op("tanh", (A, OUT))


def search(*operators, rank=0, roots=(), start=0):
    """The candidates among operators of one rank, whose clocks begin at 10; `roots` by number of the operator."""
    noise, _, _ = visited(*operators)
    return [*candidates(placed(operators, rank), {(rank, at): one for at, one in roots}, noise, start)]


def placed(operators, rank=0):
    return [(rank, 10 + at, node) for at, node in enumerate(nodes(*operators))]


def pair_of(one):
    return findings_of(one)[-1].pair


def root(one=QUIET, cause=Cause.BORN, slot="output:0", evidence=(), order=0, metric="rel_l2"):
    pair = pair_of(one)._replace(order=order)
    return Root(1, pair, cause, slot, metric, 0.5, 1e-2, 0.0, 0.5, (reason("inputs", "inputs agree"), *evidence))


MASK = Statistics(1.0, 0.0, None, None)
OTHER = ({"input:1": 2}, {"input:1": 1})  # arguments of target and golden


def mask(slot="output:0", golden=MASK, shape=(64, 64), **more):
    return row(slot, golden=golden, target=golden, dtype="bool", shape=shape, **more)


def made(*rows, arguments=({}, {}), name="made"):
    return Op("triu", rows or (mask(),), name=name, arguments=arguments)


def reads(*rows, size=100.0):
    """An operator that exceeds the noise and reads masks."""
    return Op("tanh", (A, *rows, row("output:0", NORM, size, golden=of(7.0))), name="reader")


READ = mask("input:1")


def test_an_argument_is_the_evidence_of_its_operator():
    reader = reads(READ)
    shown = row("output:0", golden=of(9.0))
    operator = made(shown, mask("output:1", judged={"limit": 0.25}, known={"bound": 0.125}), arguments=OTHER)
    _, other = search(operator, reader)
    found = other.root
    assert (found.cause, found.slot, found.metric, found.rule) == (Cause.SUSPECT, "output:1", "rel_l2", "arguments")
    assert found.place == 0 and (found.value, found.limit, found.input_error, found.output_error) == (
        0.125,
        0.25,
        None,
        None,
    )
    argument, behind = (one.sentence() for one in found.evidence)
    assert argument == "argument input:1 is 2 in the target, 1 in the golden"
    assert behind.startswith("the statistics of output:1 ") and "; reader, which reads it, is the first" in behind


STANDING = visited(shifted())[0].outliers[0]


def judged(verdict=Verdict.DIVERGED, order=0, metric="rel_l2", bound=0.5, target=of(9.0)):
    """A row of an operator with a place in the order."""
    one = Op("tanh", (row("output:0", golden=of(7.0), target=target, known={"bound": bound}),))
    (found,) = findings_of(*[QUIET] * order, one)[2 * order :]
    return found._replace(verdict=verdict, because="rel_l2 5e-1", metric=metric, error=0.5)


CLOCKS = {order: 10 + order for order in range(4)}
FINDINGS = [judged(order=order) for order in range(4)]


def result(first, roots, number=0, clocks=CLOCKS):
    """The places that were excused, and the roots with their clocks."""
    searched = SearchResult(ChangedRows(in_columns(FINDINGS), {}), [(clocks[one.pair.order], one) for one in roots])
    findings, found, _ = search_result(searched, number, first, clocks)
    return [one.pair.order for one in findings if one.explained_by], found


def suspect(order=2, rank=0, root=None, alike=None, ranks=1, name="a"):
    pair = pair_of(QUIET._replace(name=name))._replace(order=order)
    alike = {rank: (10 + order, pair, STANDING)} if alike is None else alike
    return FirstSuspect(10 + order, rank, pair, root, alike, ranks)


def rooted(order, cause=Cause.BORN, evidence=()):
    return root(QUIET, cause, evidence=evidence, order=order)


FED = reason("fed", "{because}", because="no operator wrote it")
SCALAR = reason("fed", "an input differs")


def given(order=1, slot="input:0", evidence=(FED,), cause=Cause.GAP, op="linear"):
    return replace(root(Op(op, (A, OUT)), cause, slot, order=order), evidence=evidence)


@pytest.mark.parametrize(
    ("own", "is_input"),
    [
        (given(), True),
        (given(evidence=(FED, SCALAR)), True),
        (given(evidence=(reason("tensor", "{because}", because="it differs"), SCALAR)), True),
        (given(evidence=(SCALAR,)), False),  # a scalar shows its value
        (given(evidence=(reason("tensor", "{because}", because="it differs"),)), False),
        (given(cause=Cause.BORN), False),
        (given(slot="input:1"), False),  # a parameter
        (given(slot="input:1", op="mul"), True),
    ],
)
def test_other_inputs_of_the_runs_leave_one_place(own, is_input):
    roots = [own, rooted(3)]
    _, found = result(suspect(1, root=own, alike={}), roots)
    if not is_input:
        assert found == [(11, own), (13, roots[1])]
        return
    (_, behind), (clock, named) = found
    assert (clock, named.cause, named.evidence[:-1]) == (11, Cause.GAP, own.evidence)
    assert "may have read different inputs" in named.evidence[-1].sentence()
    assert behind.cause is Cause.PROPAGATED
    assert behind.evidence[0].sentence() == "downstream of a, which read another input"
