"""The part of one rank, and the first tensor by its statistics, that stands out although nothing exceeds its
limit."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.model import Statistics
from npucmp.relations.ranks.rank_origin import with_first_moved, with_odd_part
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched
from tests.localise.rank_craft import (
    COPIES,
    comparison_of,
    decided,
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


def test_a_part_stands_out_before_a_later_root(odd):
    late = root_of(odd, SECOND, "output:0")
    late = replace(late, pair=late.pair._replace(order=9))
    assert [(root.rule, root.place) for root in odd_part(odd, [late]).roots] == [("odd_part", 1), ("", 2)]


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
