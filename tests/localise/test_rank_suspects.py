"""The part of one rank, and the first tensor by its statistics, that stands out although nothing exceeds its
limit."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align.placement import WEAK
from npucmp.localise.rank_origin import with_first_moved, with_odd_part
from npucmp.model import Cause, Statistics, Verdict
from npucmp.model.relation import Placement
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched
from tests.localise.rank_craft import (
    COPIES,
    comparison_of,
    decided,
    facts,
    finding_of,
    root_of,
)

FIRST, SECOND, LAST = (f"Torch.relu.{at}.forward" for at in range(3))
LIMIT = 1e-3
X = numbers(12, 4, seed=1)


def chain(folder, read, wrote, update=False):
    """Two operators that ranks split by rows; errors of what each rank reads and writes in the second one."""

    def calls(own, given, made):
        y, z = np.abs(own), np.abs(own) + 1
        steps = [
            call("relu", [own], [y]),
            call("relu", [y * np.float32(1 + given)], [z * np.float32(1 + made)], 1),
        ]
        back = [call("relu", [own + 3], [own + 4], phase="backward")] if update else []
        return [steps[0], *back, steps[1]]

    ranks = [calls(*one) for one in zip(np.split(X, len(read)), read, wrote)]
    return searched(folder, ranks, calls(X, 0, 0))


def odd_part(search, roots=(), slot="output:0", error=0.9 * LIMIT, limit=LIMIT, ranks=(0, 1, 2), **more):
    return with_odd_part(
        comparison_of(search, [finding_of(search, SECOND, slot, error, limit, ranks=ranks, **more)], roots),
        search,
    )


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The output of rank 1 errs by five limits."""
    return chain(tmp_path_factory.mktemp("odd"), (0, 0, 0), (0, 5 * LIMIT, 1e-5))


def test_a_part_that_errs_alone(odd):
    found = odd_part(odd)
    (root,) = found.roots
    assert (root.place, root.cause, root.rule, root.slot, root.limit) == (
        1,
        Cause.BORN,
        "odd_part",
        "output:0",
        LIMIT,
    )
    (said,) = facts(root, "rank")
    assert said["rank"] == 1 and root.metric == "rel_l2"
    assert (said["error"], said["others"]) == pytest.approx((5 * LIMIT, 1e-5), rel=0.1)
    assert (root.value, root.output_error, root.input_error) == (said["error"], said["error"], said["others"])
    (finding,) = found.findings
    assert (finding.verdict, finding.rule) == (Verdict.DIVERGED, "odd_part")


@pytest.mark.parametrize(
    "more",
    [
        {"slot": "input:0"},
        {"verdict": Verdict.DIVERGED},
        {"verdict": Verdict.UNKNOWN},
        {"error": 0.0},
        {"error": None},
        {"error": 0.57 * LIMIT},  # of three parts, one may err by √3 times as much
        {"limit": 0.0},
        {"limit": 2.6 * LIMIT, "error": 2 * LIMIT},  # the part is within two limits
        {"ranks": None},
        {"ranks": (0,)},
    ],
)
def test_a_part_stays_that_does_not_stand_out(odd, more):
    assert odd_part(odd, **more).roots == ()


@pytest.mark.parametrize(
    "more",
    [
        {"error": 0.58 * LIMIT},
        {"error": 0.5 * LIMIT, "ranks": (0, 1, 2, 3)},
        {"limit": 2.4 * LIMIT, "error": 2 * LIMIT},
    ],
)
def test_a_part_stands_out_at_its_bounds(odd, more):
    assert [root.rule for root in odd_part(odd, **more).roots] == ["odd_part"]


@pytest.mark.parametrize(
    "name, cause, places",
    [
        (FIRST, "BORN", [(FIRST, 1)]),
        (FIRST, "PROPAGATED", [(SECOND, 1), (FIRST, 2)]),
        (SECOND, "BORN", [(SECOND, 1)]),  # the known root stays
        (SECOND, "PROPAGATED", [(SECOND, 1)]),  # and this one is replaced
    ],
)
def test_roots_before_a_part_that_stands_out(odd, name, cause, places):
    known = root_of(odd, name, "output:0", Cause(cause))
    roots = odd_part(odd, [known]).roots
    assert [(root.pair.golden_op.name, root.place) for root in roots] == places
    assert roots[0].rule == ("odd_part" if cause == "PROPAGATED" else "")


def test_a_part_stands_out_before_a_later_root(odd):
    late = root_of(odd, SECOND, "output:0")
    late = replace(late, pair=late.pair._replace(order=9))
    assert [(root.rule, root.place) for root in odd_part(odd, [late]).roots] == [("odd_part", 1), ("", 2)]


def test_the_first_part_that_stands_out_is_the_root(odd):
    findings = [finding_of(odd, name, "output:0", 0.9 * LIMIT, LIMIT) for name in (FIRST, SECOND, SECOND)]
    (root,) = with_odd_part(comparison_of(odd, findings), odd).roots
    assert root.pair.golden_op.name == SECOND
    lone = findings[1]._replace(
        measurement=findings[1].measurement._replace(pair=findings[1].pair._replace(golden=None))
    )
    strange = findings[1].pair._replace(golden_op=findings[1].pair.golden_op._replace(name="other"))
    strange = findings[1]._replace(measurement=findings[1].measurement._replace(pair=strange))
    assert with_odd_part(comparison_of(odd, [lone, strange]), odd).roots == ()


def with_errors(search, read, wrote, slot="input:0"):
    """The search with these errors of the parts that ranks read and write."""
    one = decided(search, SECOND, "output:0")
    for place, errors in ((slot, read), ("output:0", wrote)):
        if errors is not None:
            one.part_errors[SECOND, place] = one.found[SECOND, place].fit, errors
    return one


U = 2.0**-10


@pytest.mark.parametrize(
    "read, wrote, rank",
    [
        ({0: 0, 1: 0}, {0: 0, 1: 16 * U}, 1),
        ({0: 0, 1: 0}, {0: 16 * U, 1: 0}, 0),
        ({0: 0, 1: 0}, {0: 16 * U, 1: 16 * U}, None),
        ({0: 0, 1: 2 * U}, {0: 0, 1: 16 * U}, 1),  # an eighth of it
        ({0: 0, 1: 2.1 * U}, {0: 0, 1: 16 * U}, None),  # it read the error
        ({1: 2.1 * U}, {0: 0, 1: 16 * U}, None),
        ({1: 2.0}, {0: 0, 1: 16 * U}, None),
        ({0: 1.5 * U, 1: 3 * U}, {0: 0, 1: 16 * U}, 1),  # so did the others
        ({0: 1.4 * U, 1: 3 * U}, {0: 0, 1: 16 * U}, None),
        ({0: 3 * U, 1: 0}, {0: 0, 1: 16 * U}, 1),  # another rank did
        ({0: 3 * U}, {0: 0, 1: 16 * U}, 1),
        ({}, {0: 0, 1: 16 * U}, 1),
        ({0: 0, 1: 0}, {0: 0, 1: 2 * U}, None),  # two limits
        ({0: 0, 1: 0}, {0: 0, 1: 2.1 * U}, 1),
        ({0: 0, 1: 0}, {1: 16 * U}, None),  # there is no other
        ({0: 0, 1: 0}, {}, None),
    ],
)
def test_a_part_that_read_an_error_is_explained(odd, read, wrote, rank):
    roots = odd_part(with_errors(odd, read, wrote), limit=U, error=0.9 * U).roots
    assert [facts(root, "rank")[0]["rank"] for root in roots] == ([] if rank is None else [rank])


def test_an_input_that_was_not_placed_explains_nothing(odd):
    search = with_errors(odd, None, {0: 0, 1: 16 * U})
    del search.found[SECOND, "input:0"]
    assert len(odd_part(search).roots) == 1
    del search.found[SECOND, "output:0"]
    assert odd_part(search).roots == ()


def test_a_part_of_an_update_may_stand_out(tmp_path):
    """It divides by gradients near zero."""
    search = chain(tmp_path, (0, 0), (0, 0.01), update=True)
    assert odd_part(search).roots == ()


# Statistics


FORWARD = ((0, "forward"), (1, "forward"), (2, "forward"))
BACK = ((0, "forward"), (1, "forward"), (1, "backward"), (0, "backward"))


def figures(norms, calls):
    """Operators of which statistics alone are known; each reads what the one before wrote."""

    def recorded(norm):
        return Recorded(Statistics(norm, -norm, norm / 9, norm), (4, 4))

    pairs = zip(calls, (1.5, *norms), norms)
    return [call("relu", [recorded(read)], [recorded(wrote)], *one) for one, read, wrote in pairs]


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Searches of three operators on two ranks, each made once."""
    found = {}

    def search(*errors, norms=(1.1, 1.3, 1.9), kinds=FORWARD):
        key = norms, kinds
        if key not in found:
            calls = figures(norms, kinds)
            found[key] = searched(tmp_path_factory.mktemp("figures"), [calls, calls], calls, False)
        one = found[key]
        names = [each.name for each in one.golden.operators]
        for name, error in zip(names, errors):
            one = decided(one, name, "output:0", error, COPIES, state="agrees")
            one = decided(one, name, "input:0", 0.0, COPIES, state="agrees")
        return one

    return search


def first_moved(search, roots=()):
    findings = [
        finding_of(search, op.name, one.slot, 0.0, LIMIT)
        for op in search.golden.operators
        for one in op.tensors  # every tensor
    ]
    return with_first_moved(comparison_of(search, findings, roots), search).roots


@pytest.mark.parametrize(
    "errors, name, before",
    [
        ((0, 0, 0), None, 0),
        ((0, 1e-4, 0), None, 0),
        ((0, 1.01e-4, 0), SECOND, 0),
        ((1.01e-4, 0, 0), FIRST, 0),
        ((2.0**-14, 20 * 2.0**-14, 0), None, 0),
        ((5e-5, 1.01e-3, 1.0), SECOND, 5e-5),
        ((5e-5, 1e-6, 1.01e-3), LAST, 5e-5),  # the largest before it counts
        ((4e-6, 9e-5, 1.7e-3), None, 0),  # each within twenty times the largest before
    ],
)
def test_the_first_tensor_that_leaves_those_before_it(chains, errors, name, before):
    roots = first_moved(chains(*errors))
    assert [root.pair.golden_op.name for root in roots] == ([] if name is None else [name])
    for root in roots:
        (said,) = facts(root, "statistics")
        error = dict(zip((FIRST, SECOND, LAST), errors))[name]
        assert said == {"error": error, "before": before}
        assert (root.place, root.cause, root.rule, root.slot) == (1, Cause.SUSPECT, "suspected", "output:0")
        assert (root.value, root.limit) == (error, max(1e-4, 20 * before))


def test_values_are_not_judged_by_their_statistics(chains):
    search = chains(0, 1.0, 0)
    assert first_moved(search)
    search.values = True
    assert first_moved(search) == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("error, moved", [(0.029, False), (0.031, True)])
def test_tensors_of_16_bits_have_a_wider_floor(chains, dtype, error, moved):
    search = chains(0, error, 0)
    output = search.golden.by_name[SECOND].outputs[0]
    ref = output.ref
    output.ref = ref._replace(dtype=dtype)
    try:
        assert bool(first_moved(search)) is moved
    finally:
        output.ref = ref


@pytest.mark.parametrize(
    "name, cause, found",
    [
        (FIRST, "BORN", [(FIRST, 1)]),
        (SECOND, "BORN", [(SECOND, 1)]),
        (LAST, "BORN", [(SECOND, 1), (LAST, 2)]),
        (FIRST, "PROPAGATED", [(SECOND, 1), (FIRST, 2)]),
        (SECOND, "PROPAGATED", [(SECOND, 1)]),
    ],
)
def test_a_root_before_the_first_that_moved(chains, name, cause, found):
    search = chains(0, 1.0, 0)
    roots = first_moved(search, [root_of(search, name, "output:0", Cause(cause))])
    assert [(root.pair.golden_op.name, root.place) for root in roots] == found
    assert (roots[0].cause is Cause.SUSPECT) is (len(found) == 2 or cause == "PROPAGATED")


def test_a_tensor_that_is_not_compared_is_no_suspect(chains):
    search = chains(0, 1.0, 0)
    kept = [finding_of(search, name, "output:0", 0.0, LIMIT) for name in (FIRST, LAST)]
    assert with_first_moved(comparison_of(search, kept), search).roots == ()
    other = finding_of(search, SECOND, "input:0", 0.0, LIMIT)
    assert with_first_moved(comparison_of(search, [other]), search).roots == ()


@pytest.mark.parametrize(
    "more, moved",
    [({}, True), ({"state": "differs"}, True), ({"state": "local"}, False), ({"fit": None}, False)],
)
def test_a_tensor_that_each_rank_has_of_its_own_is_no_suspect(chains, more, moved):
    search = decided(chains(0, 1.0, 0), SECOND, "output:0", **more)
    assert bool(first_moved(search)) is moved
    del search.found[SECOND, "output:0"]
    assert first_moved(search) == ()


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
def test_the_mean_of_a_partial_sum_decides_beside_what_is_made_of_it(chains, kind):
    """The error of the sum does not count alone; behind it, the sum is the suspect if its mean moved too."""
    alone = decided(chains(0, 1.0, 0), SECOND, "output:0", 1.0, Placement(kind))
    assert first_moved(alone) == ()
    cases = [(0.5, SECOND), (1.01e-4, SECOND), (0.99e-4, LAST), (WEAK, LAST), (float("inf"), LAST)]
    for error, name in cases:
        search = decided(alone, SECOND, "output:0", error)
        search = decided(search, LAST, "input:0", 0.25)
        (root,) = first_moved(search)
        assert (root.pair.golden_op.name, root.value) == (name, error if name == SECOND else 0.25)
        assert root.slot == ("output:0" if name == SECOND else "input:0")


def test_a_source_that_is_no_sum_is_no_suspect_of_its_reader(chains):
    search = decided(chains(0, 0.5e-4, 0), LAST, "input:0", 0.25)
    (root,) = first_moved(search)
    assert (root.pair.golden_op.name, root.slot) == (LAST, "input:0")
    bare = decided(search, SECOND, "output:0", fit=None)
    assert first_moved(bare)[0].pair.golden_op.name == LAST


@pytest.mark.parametrize("share, moved", [(1e-5, [("Torch.relu.1.backward", "output:0")]), (0.9e-5, [])])
def test_a_gradient_that_cancels_is_no_suspect(chains, share, moved):
    """Rounding is all that is left of it, and of what is made of it."""
    norms = (1.5, 1.0, share, 1.9)
    search = decided(chains(0, 0, 1.0, 1.0, norms=norms, kinds=BACK), "Torch.relu.0.backward", "input:0", 1.0)
    assert [(root.pair.golden_op.name, root.slot) for root in first_moved(search)] == moved
    forward = chains(0, 1.0, norms=(1.0, 1e-6, 1.9))
    assert first_moved(forward)[0].pair.golden_op.name == SECOND


def test_a_gradient_of_zeros_is_no_suspect(chains):
    assert first_moved(chains(0, 0, 1.0, 0, norms=(1.5, 1.0, 0.0, 1.9), kinds=BACK)) == ()


def test_a_gradient_may_move_behind_one_that_agrees(chains):
    search = chains(0, 0, 0, 1.0, norms=(1.0, 1.2, 1.4, 1e-6), kinds=BACK)
    assert first_moved(search) == ()
    search = chains(0, 0, 0, 1.0, norms=(1.0, 1.2, 1.4, 1.9), kinds=BACK)
    assert [root.pair.golden_op.name for root in first_moved(search)] == ["Torch.relu.0.backward"]


def test_a_gradient_without_a_known_source_may_move(chains):
    """Nothing shows that it is what rounding left of zero."""
    search = chains(0, 0, 1.0, norms=(1.5, 1.0, 0.9e-5, 1.9), kinds=BACK)
    given = search.golden.by_name["Torch.relu.1.backward"].inputs[0]
    ref = given.ref
    given.ref = ref._replace(statistics=None)
    try:
        assert [root.pair.golden_op.name for root in first_moved(search)] == ["Torch.relu.1.backward"]
    finally:
        given.ref = ref
