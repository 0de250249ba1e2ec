"""The first operator of all ranks that exceeds the noise, and what becomes of the roots and findings around it."""

import math
from dataclasses import replace

import pytest

from npucmp.localise.evidence import reason
from npucmp.localise.stat_suspects import Candidate, FirstSuspect, candidates, first_of, search_result
from npucmp.localise.stat_test import with_counts
from npucmp.model import Cause, Root, Statistics, Verdict
from tests.localise.stat_craft import FIGURES, HALF, Op, findings_of, nodes, of, row, visited

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


UNSEEN = Op("tanh", (A, row("output:0", golden=of(6.0), known={"same": False})))  # checksums differ


@pytest.mark.parametrize(
    ("operators", "roots", "start", "found"),
    [
        ([QUIET, QUIET], [], 0, []),
        ([QUIET, shifted(), QUIET], [], 0, [(11, None, True)]),
        ([shifted(), QUIET, shifted()], [], 0, [(10, None, True), (12, None, True)]),
        ([shifted(), QUIET, shifted()], [], 1, [(12, None, True)]),
        ([shifted(), shifted()], [], 1, [(11, None, True)]),
        # roots that rest on more than noise
        ([QUIET, UNSEEN], [(1, root())], 0, [(11, Cause.BORN, False)]),
        ([QUIET, UNSEEN], [(0, root())], 0, []),
        ([QUIET, UNSEEN], [(1, root())], 2, []),
        ([QUIET, QUIET], [(1, root())], 0, []),
        ([QUIET, shifted()], [(1, root())], 0, [(11, Cause.BORN, True)]),
        ([QUIET, UNSEEN], [(1, root(cause=Cause.PROPAGATED))], 0, []),
        ([QUIET, shifted()], [(1, root(cause=Cause.PROPAGATED))], 0, [(11, None, True)]),
    ],
)
def test_operators_that_exceed_the_noise_and_proven_roots_are_candidates(operators, roots, start, found):
    some = search(*operators, roots=roots, start=start)
    assert [(one.clock, one.root and one.root.cause, one.outlier is not None) for one in some] == found
    assert all(one.rank == 0 and one.pair.order == one.clock - 10 for one in some)


MASK = Statistics(1.0, 0.0, None, None)
OTHER = ({"input:1": 2}, {"input:1": 1})  # arguments of target and golden


def mask(slot="output:0", golden=MASK, shape=(64, 64), **more):
    return row(slot, golden=golden, target=golden, dtype="bool", shape=shape, **more)


def made(*rows, arguments=({}, {}), name="made"):
    return Op("triu", rows or (mask(),), name=name, arguments=arguments)


def reads(*rows, size=100.0):
    """An operator that exceeds the noise and reads masks."""
    return Op("tanh", (A, *rows, row("output:0", NORM, size, golden=of(7.0))), name="reader")


INFINITE = Statistics(0.0, -math.inf, -math.inf, math.inf)
READ = mask("input:1")


@pytest.mark.parametrize(
    ("operators", "clock"),
    [
        ([made(arguments=OTHER), reads(READ)], 10),
        ([made(), reads(READ)], None),
        ([made(arguments=OTHER), reads(READ, size=0.0)], None),
        ([made(arguments=OTHER), reads()], None),
        ([made(arguments=OTHER), reads(mask("input:1", shape=(64,)))], None),  # another tensor
        ([made(arguments=OTHER), reads(mask("input:1", Statistics(True, True, None, None)))], None),
        ([QUIET, made(arguments=OTHER), QUIET, reads(READ)], 11),
        # views pass on what they read; a later tensor of the same figures replaces it
        ([made(arguments=OTHER), made(READ, mask("output:0", shape=(8, 512))),
          reads(mask("input:1", shape=(8, 512)))], 10),
        ([made(arguments=OTHER), made(), reads(READ)], None),
        ([made(), made(arguments=OTHER), reads(READ)], 11),
        ([made(arguments=OTHER), made(arguments=OTHER), reads(READ)], 11),
        # figures of infinities show as little, and those of finite numbers show the values
        ([made(mask(golden=INFINITE), arguments=OTHER), reads(mask("input:1", INFINITE))], 10),
        ([made(mask(golden=FIGURES), arguments=OTHER), reads(mask("input:1", FIGURES))], None),
        ([made(mask(golden=FIGURES)._replace(target=MASK), arguments=OTHER),
          reads(mask("input:1", FIGURES)._replace(target=MASK))], None),
        ([made(mask(judged={"verdict": Verdict.MATCH}), arguments=OTHER), reads(READ)], None),
        ([made(arguments=OTHER), reads(READ._replace(judged={"verdict": Verdict.MATCH}))], None),
        ([made(arguments=OTHER), reads(READ._replace(golden=None, target=None))], None),
    ],
)  # fmt: skip
def test_an_argument_of_a_mask_that_the_first_operator_reads_is_a_candidate(operators, clock):
    found = search(*operators)
    assert [one.clock for one in found if one.outlier is None] == ([] if clock is None else [clock])
    if clock is not None:
        own, other = found
        assert own.outlier is not None and own.pair.operator.name == "reader" and other.rank == 0
        assert other.pair.order == clock - 10 and other.root.pair == other.pair


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


def test_masks_of_other_ranks_are_other_tensors():
    first, second = [made(arguments=OTHER), QUIET], [QUIET, reads(READ)]
    noise, _, _ = visited(*second)
    for ranks, count in (((0, 0), 2), ((0, 1), 1)):
        some = [placed(first, ranks[0])[0], placed(second, ranks[1])[1]]
        assert len([*candidates(some, {}, noise)]) == count


def test_the_first_operator_of_all_is_a_candidate():
    noise, _, _ = visited(shifted())
    assert len([*candidates(placed([shifted()]), {}, noise)]) == 1


def candidate(clock, rank, name="a", root=None, outlier=None):
    return Candidate(clock, rank, pair_of(QUIET._replace(name=name)), root, outlier)


STANDING = visited(shifted())[0].outliers[0]


def test_the_first_in_order_of_execution_is_suspected():
    assert first_of([], 4) is None
    late, early = candidate(9, 0, "late", outlier=STANDING), candidate(5, 2, "early", outlier=STANDING)
    twin = candidate(5, 1, "twin", outlier=STANDING)
    found = first_of([late, early, twin], 4)
    assert (found.clock, found.rank, found.pair.operator.name, found.root, found.ranks) == (5, 1, "twin", None, 4)
    assert [*found.alike] == [1, 2, 0] and found.alike[2] == (5, early.pair, STANDING)
    proven = candidate(4, 3, "proven", root(), STANDING)
    assert first_of([late, proven], 4).alike == {} and first_of([late, proven], 4).root == root()
    argued = candidate(6, 3, "argued", root(cause=Cause.SUSPECT))
    assert [*first_of([late, argued, early], 4).alike] == [2, 0]


def judged(verdict=Verdict.DIVERGED, order=0, metric="rel_l2", bound=0.5, target=of(9.0)):
    """A row of an operator with a place in the order."""
    one = Op("tanh", (row("output:0", golden=of(7.0), target=target, known={"bound": bound}),))
    (found,) = findings_of(*[QUIET] * order, one)[2 * order :]
    return found._replace(verdict=verdict, because="rel_l2 5e-1", metric=metric, error=0.5)


NO_NORM, NAN = Statistics(4.0, None, None, None), Statistics(math.nan, -3.0, 0.1, 64.0)


@pytest.mark.parametrize(
    ("finding", "is_excused"),
    [
        (judged(), True),
        (judged(bound=None), False),  # values or checksums prove it
        (judged(metric="checksum"), False),
        (judged(Verdict.NONFINITE), True),  # a sum that is zero on one side
        (judged(Verdict.NONFINITE, bound=None, metric=""), True),
        (judged(Verdict.NONFINITE, target=NO_NORM), True),
        (judged(Verdict.NONFINITE, target=NAN), False),
        (judged(Verdict.NONFINITE)._replace(measurement=judged().measurement._replace(statistics=(None, None))), False),
        (judged(Verdict.SHAPE, bound=None, metric="shape"), True),
        (judged(Verdict.MATCH), False),
        (judged(Verdict.UNKNOWN), False),
    ],
)
def test_differences_within_the_noise_are_excused(finding, is_excused):
    (found,), roots = search_result(([finding], [(1, root())]), 0, None, {})
    assert roots == []
    if not is_excused:
        assert found == finding
        return
    assert (found.verdict, found.explained_by) == (Verdict.UNKNOWN, "suspected")
    assert found.because == "rel_l2 5e-1; within the upstream noise"


CLOCKS = {order: 10 + order for order in range(4)}
FINDINGS = [judged(order=order) for order in range(4)]


def result(first, roots, number=0, clocks=CLOCKS):
    """The places that were excused, and the roots with their clocks."""
    findings, found = search_result((FINDINGS, [(clocks[one.pair.order], one) for one in roots]), number, first, clocks)
    return [one.pair.order for one in findings if one.explained_by], found


def suspect(order=2, rank=0, root=None, alike=None, ranks=1, name="a"):
    pair = pair_of(QUIET._replace(name=name))._replace(order=order)
    alike = {rank: (10 + order, pair, STANDING)} if alike is None else alike
    return FirstSuspect(10 + order, rank, pair, root, alike, ranks)


def rooted(order, cause=Cause.BORN, evidence=()):
    return root(QUIET, cause, evidence=evidence, order=order)


def test_roots_before_a_suspect_are_noise_and_those_behind_it_propagate():
    roots = [rooted(0), rooted(2), rooted(3), rooted(3, Cause.PROPAGATED)]
    excused, found = result(suspect(), roots)
    assert excused == [0, 1]
    (_, behind), (_, same), (clock, own) = found
    assert same == roots[3] and (behind.cause, behind.pair.order) == (Cause.PROPAGATED, 3)
    assert behind.evidence[0].sentence() == "downstream of a, which is suspected"
    assert behind.evidence[1:] == roots[2].evidence
    assert (clock, own.cause, own.pair.order, own.rule) == (12, Cause.SUSPECT, 2, "suspected")


@pytest.mark.parametrize(
    ("number", "rank", "excused"), [(0, 0, [0, 1]), (0, 1, [0, 1, 2]), (1, 0, [0, 1]), (2, 1, [0, 1])]
)
def test_of_operators_at_one_clock_those_of_lower_ranks_come_before(number, rank, excused):
    assert result(suspect(rank=rank), [], number)[0] == excused


def test_a_proven_root_keeps_its_cause_and_those_behind_it():
    roots = [rooted(0), rooted(2, Cause.WORSENED), rooted(3)]
    excused, found = result(suspect(root=roots[1], alike={}), roots)
    assert excused == [0, 1] and found == [(12, roots[1]), (13, roots[2])]


def test_an_argument_that_is_suspected_replaces_the_root_of_its_operator():
    own = rooted(1, Cause.SUSPECT)
    roots = [rooted(0), rooted(1), rooted(3)]
    excused, found = result(suspect(1, root=own, alike={}), roots)
    assert excused == [0] and [one.cause for _, one in found] == [Cause.PROPAGATED, Cause.SUSPECT]
    assert found[1] == (11, own)
    elsewhere = result(suspect(1, root=own, alike={}), roots, number=1)
    assert [(one.pair.order, one.cause) for _, one in elsewhere[1]] == [(1, Cause.PROPAGATED), (3, Cause.PROPAGATED)]


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


def test_the_evidence_of_a_suspect_is_how_far_it_shifted_and_what_noise_came_before():
    wrote = row("output:0", NORM, 100, golden=of(7.0), judged={"limit": 0.25}, known={"bound": 0.125})
    operator = Op("tanh", (A, wrote), arguments=OTHER)
    noise, node, _ = visited(operator)
    standing = with_counts(noise.outliers[node.row], [0.0, 1.0, 2.0])
    _, found = result(FirstSuspect(12, 0, node.pair, None, {0: (12, node.pair, standing)}, 1), [])
    ((clock, own),) = found
    assert (clock, own.cause, own.slot, own.metric, own.rule) == (12, Cause.SUSPECT, "output:0", "rel_l2", "suspected")
    assert (own.place, own.value, own.limit, own.input_error, own.output_error) == (0, 0.125, 0.25, None, None)
    moved, before, others, argument = own.evidence
    target = 64.01 + 100 * HALF * 64.01 / 64
    words = f"norm of output:0 changed from 64.01 to {target:.9g}: 100 times the change that rounding of 4,096 elements"
    assert moved.sentence().startswith(words) and moved.facts["size"].slot == "output:0"
    assert before.sentence() == "the upstream noise explains 2 times the change of rounding"
    assert others.sentence().startswith("2 of 3 preceding operators changed")
    assert argument.kind == "argument"


@pytest.mark.parametrize(("number", "clock"), [(0, 12), (1, 14), (2, None)])
def test_a_suspect_is_named_on_each_rank_on_which_it_exceeds_the_noise(number, clock):
    pair = pair_of(QUIET)
    alike = {rank: (at, pair._replace(order=order), STANDING) for rank, at, order in ((0, 12, 2), (1, 14, 3))}
    roots = [rooted(3)]
    _, found = result(suspect(alike=alike, ranks=3), roots, number)
    own = [(at, one) for at, one in found if one.cause is Cause.SUSPECT]
    assert [at for at, _ in own] == ([clock] if clock else [])
    assert [one.pair.order for _, one in found if one.cause is Cause.PROPAGATED] == ([] if number == 1 else [3])
    for _, one in own:
        assert one.evidence[-1].sentence() == "the operator exceeds the noise on 1 of 2 other ranks too"
