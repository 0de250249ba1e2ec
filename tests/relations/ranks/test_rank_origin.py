"""The ranks that a root names, and the kind of fault that their parts show."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.model import Cause, Statistics
from npucmp.relations.ranks.rank_origin import with_gaps_first, with_odd_type, with_other_operators, with_ranks
from tests.align.craft import Recorded
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched
from tests.localise.rank_craft import (
    COPIES,
    SHARD,
    comparison_of,
    decided,
    facts,
    finding_of,
    root_of,
    words,
)

RELU, ADD, NEXT = "Torch.relu.0.forward", "Torch.add.0.forward", "Torch.add.1.forward"
X, W, B = numbers(4, 6, seed=1), numbers(5, 6, seed=2), numbers(4, 5, seed=3)
LONG, ACTIVE = numbers(18, 3, seed=5), np.abs(numbers(18, 3, seed=6))


def reduced(number, tensors, group=(0, 1), kind="all_reduce"):
    return f"Distributed.{kind}.{number}.forward", tensors[:1], tensors[1:], group


def relus(*outputs, read=None, golden=ACTIVE):
    """One operator on each rank; inputs are what rank reads of LONG, its part by default."""
    size = len(LONG) // len(outputs)
    read = read or [np.s_[at * size : (at + 1) * size] for at in range(len(outputs))]
    ranks = [[call("relu", [LONG[own]], [one])] for own, one in zip(read, outputs)]
    return ranks, [call("relu", [LONG], [golden])]


def shards(*factors):
    return relus(*(one * np.float32(k) for one, k in zip(np.split(ACTIVE, len(factors)), factors)))


def layers(*kinds, between=0):
    """Products that two ranks split by rows of the weight, each read by an addition. Between them stands a
    reduction ("sum"), one over another group ("alone"; "wide": of another shape), nothing ("none"), or the
    reduction stands behind the addition ("behind"). `between`: operators of the target
    behind the reduction."""
    ranks, golden = [[], []], []
    for number, kind in enumerate(kinds):
        x, bias = (np.concatenate([one, one]) if kind == "wide" else one for one in (X + number, B + number))
        y = x @ W.T
        golden += [call("linear", [x, W], [y], number), call("add", [y, bias], [y + bias], number)]
        parts = [x[:, own] @ W[:, own].T for own in (np.s_[:3], np.s_[3:])]
        for rank, (own, part) in enumerate(zip((np.s_[:3], np.s_[3:]), parts)):
            calls = [call("linear", [x[:, own], W[:, own]], [part], number)]
            given = part if kind in ("none", "behind") else y
            if given is y:
                steps = [y * np.float32(1 + at) for at in range(between, -1, -1)]
                calls.append(reduced(number, [part, steps[0]], (0, 1) if kind == "sum" else (rank,)))
                calls += [call("mul", [np.arange(4), *pair[:1]], [pair[1]], 10 * number + at, prefix="Tensor")
                          for at, pair in enumerate(zip(steps, steps[1:]))]  # fmt: skip
            calls.append(call("add", [given, bias], [given + bias], number))
            if kind == "behind":
                calls.append(reduced(number, [part + bias, parts[0] + parts[1] + 2 * bias]))
            ranks[rank] += calls
    return ranks, golden


def held_by(order):
    """The parts of the ranks in that order."""
    pieces = np.split(ACTIVE, len(order))
    return relus(*(pieces[at] for at in order))


@pytest.fixture(scope="module")
def search_of(tmp_path_factory):
    """Searches of networks, each made once."""
    found = {}

    def search(make, *given, values=True, **more):
        key = make.__name__, str(given), str(more), values
        if key not in found:
            found[key] = searched(tmp_path_factory.mktemp("ranks"), *make(*given, **more), values)
        return found[key]

    return search


def kinds(root):
    return [one.kind for one in root.evidence]


@pytest.mark.parametrize(
    "roots, order",
    [
        ([], []),
        ([(1, 5, "BORN"), (2, 3, "GAP")], [(3, "GAP"), (5, "BORN")]),
        ([(1, 3, "BORN"), (2, 5, "GAP")], [(3, "BORN"), (5, "GAP")]),
        ([(1, 3, "BORN"), (2, 3, "GAP")], [(3, "BORN"), (3, "GAP")]),  # the same operator
        ([(1, 5, "GAP"), (2, 3, "BORN")], [(5, "GAP"), (3, "BORN")]),  # other causes keep their place
        ([(2, 9, "BORN"), (1, 3, "BORN"), (3, 5, "GAP")], [(3, "BORN"), (5, "GAP"), (9, "BORN")]),
        ([(1, 7, "BORN"), (2, 9, "BORN"), (3, 5, "GAP")], [(5, "GAP"), (7, "BORN"), (9, "BORN")]),
    ],
)
def test_a_gap_stands_before_roots_further_downstream(search_of, roots, order):
    some = root_of(search_of(shards, 1, 1), RELU, "output:0")
    made = []
    for place, at, cause in roots:
        pair = some.pair._replace(order=at)
        made.append(replace(some, place=place, pair=pair, cause=Cause(cause)))
    found = with_gaps_first(made)
    assert [(root.pair.order, root.cause.value) for root in found] == order
    assert [root.place for root in found] == [*range(1, len(roots) + 1)]


def test_a_root_that_no_rank_has_is_left_alone(search_of):
    search = search_of(shards, 1, 1.02)
    root = root_of(search, RELU, "output:0")
    strange = root.pair.golden_op._replace(name="other")
    for golden_op in (None, strange):
        lone = replace(root, pair=root.pair._replace(golden_op=golden_op))
        assert with_ranks(lone, search) is lone
    found = with_ranks(replace(root, slot="output:7"), search)
    assert (found.ranks, found.rank, found.relation, found.evidence) == ((0, 1), None, "", ())
    bare = decided(search, RELU, "output:0")
    del bare.found[RELU, "output:0"]
    assert with_ranks(root, bare).ranks == (0, 1) and with_ranks(root, bare).relation == ""


def test_an_addend_that_every_rank_adds_before_the_reduction(search_of):
    search = decided(search_of(layers, "behind"), ADD, "input:0", illegal=True)
    root = with_ranks(root_of(search, ADD, "input:0", Cause.UNKNOWN), search)
    assert facts(root, "added per rank") == [{"ranks": "0-1", "count": 2}] and root.cause is Cause.UNKNOWN
    assert kinds(root) == ["added per rank"]


@pytest.mark.parametrize("between, found", [(0, True), (1, True), (3, True), (4, False)])
def test_the_collective_may_stand_a_few_operators_of_the_target_before(search_of, between, found):
    search = search_of(layers, "sum", between=between)
    root = with_ranks(root_of(search, ADD, "input:0"), search)
    assert root.collective == ("Distributed.all_reduce.0.forward" if found else "")


@pytest.mark.parametrize("kinds, root, said", [
    (("sum", "alone"), NEXT, ["it was reduced over ranks 0 and 1, in other layers over 0-1"]),
    (("alone", "sum"), NEXT, ["it was reduced over ranks 0-1, in other layers over 0 and 1"]),
    (("sum", "sum"), NEXT, []),
    (("sum",), ADD, []),
    (("sum", "wide"), NEXT, []),  # a tensor of another shape
    (("none", "sum"), NEXT, []),
])  # fmt: skip
def test_a_reduction_over_another_group_than_in_other_layers(search_of, kinds, root, said):
    search = search_of(layers, *kinds)
    assert words(with_ranks(root_of(search, root, "input:0"), search), "group") == said


def test_a_group_is_not_compared_with_that_of_a_layer_that_differs_or_none(search_of):
    search = decided(search_of(layers, "none", "sum"), ADD, "input:0", illegal=False)
    assert words(with_ranks(root_of(search, ADD, "input:0"), search), "group") == []
    search = decided(search_of(layers, "sum", "alone"), ADD, "input:0", state="differs")
    assert words(with_ranks(root_of(search, NEXT, "input:0"), search), "group") == []


TURNED = [1, 2, 3, 4, 5, 6, 7, 8, 0]


@pytest.mark.parametrize(
    "order, said",
    [
        ([1, 0], "rank 0 that of rank 1, rank 1 that of rank 0"),
        ([0, 2, 1], "rank 1 that of rank 2, rank 2 that of rank 1"),
        (TURNED, ", ".join(f"rank {at} that of rank {at + 1}" for at in range(8)) + ", …"),
        ([*TURNED[:7], 0, 8], ", ".join(f"rank {at} that of rank {(at + 1) % 8}" for at in range(8))),
    ],
)
def test_ranks_that_hold_parts_of_each_other(search_of, order, said):
    search = decided(search_of(held_by, order), RELU, "output:0", 1.4, SHARD, state="differs")
    root = with_ranks(root_of(search, RELU, "output:0"), search)
    assert words(root, "order") == [f"ranks hold parts of each other: {said}"]
    for other in (
        decided(search, RELU, "output:0", state="agrees"),
        decided(search, RELU, "output:0", fit=None),
    ):
        assert words(with_ranks(root_of(other, RELU, "output:0"), other), "order") == []
    assert words(with_ranks(root_of(search, RELU, "output:0", Cause.PROPAGATED), search), "order") == []
    illegal = decided(search, RELU, "output:0", illegal=True)
    assert words(with_ranks(root_of(illegal, RELU, "output:0"), illegal), "order") == []


def trained(factor, shape=np.s_[:]):
    """One operator, its gradient, and an update that reads the gradient."""
    gradient = B[shape]

    def calls(k):
        g = gradient * np.float32(k)
        return [
            call("relu", [X], [X * 2]),
            call("relu", [X + 3], [g], phase="backward"),
            call("sub", [g, W], [W - k]),
        ]

    return [calls(factor)] * 2, calls(1)


UPDATE = "Torch.sub.0.forward"


@pytest.mark.parametrize(
    "factor, scale, said",
    [
        (2, 2.0, True),
        (2.0 * 1.04, 2.0, True),
        (2.0 * 0.96, 2.0, True),
        (2.0 * 1.06, 2.0, False),
        (2.0 * 0.94, 2.0, False),
        (0.5, 0.5, True),
        (1, 1.0, False),
        (2, None, False),
        (1, 2.0, False),  # divided
    ],
)
def test_gradients_that_were_not_divided(search_of, factor, scale, said):
    search = decided(search_of(trained, factor), UPDATE, "input:0", 0.9, COPIES)
    search.scale, search.scaled_from = scale, "Torch.relu.0.backward"
    root = with_ranks(root_of(search, UPDATE, "input:0"), search)
    known = {"factor": scale, "start": "Torch.relu.0.backward", "name": UPDATE}
    assert facts(root, "scale") == [known] * said
    unfit = decided(search, UPDATE, "input:0", fit=None)
    unfit.scale = scale
    assert facts(with_ranks(root_of(unfit, UPDATE, "input:0"), unfit), "scale") == []


def recorded(*largest):
    """Parts of a tensor by their statistics: largest value, smallest, mean, norm."""

    def relu(shape, most, norm):
        return [call("relu", [Recorded(Statistics(1.0, -1.0, 0.1, norm), shape)],
                     [Recorded(Statistics(most, -1.0, 0.1, norm), shape)])]  # fmt: skip

    count = len(largest)
    return [relu((2, 3), one, 2.0) for one in largest], relu((2 * count, 3), 4.0, 2.0 * count**0.5)


@pytest.mark.parametrize(
    "largest, rank",
    [((3.0, 5.0), 1), ((5.0, 3.0), 0), ((3.0, 4.0), None), ((5.0, 6.0), None)],  # that of the whole is 4
)
def test_a_part_beyond_the_whole_by_its_statistics(search_of, largest, rank):
    search = decided(search_of(recorded, *largest, values=False), RELU, "output:0", 0.2, SHARD)
    root = with_ranks(root_of(search, RELU, "output:0"), search)
    assert root.rank == rank and facts(root, "rank") == ([] if rank is None else [{"rank": rank}])
    assert all("no part of the golden" in one for one in words(root, "rank"))
    read = decided(search_of(recorded, *largest, values=False), RELU, "input:0", 0.2, SHARD)
    assert with_ranks(root_of(read, RELU, "input:0"), read).rank is None


def looked_up(*wrong):
    """The sum over ranks of rows that each looks up in its own part of a table, the others zero."""
    table = numbers(6, 3, seed=8)
    own = np.arange(6)[:, None] // 3
    terms = [np.where(own == rank, np.roll(table, 1, 0) if rank in wrong else table, 0) for rank in range(2)]
    whole = terms[0] + terms[1]
    ranks = [[reduced(0, [one, whole]), call("relu", [whole], [np.abs(whole)])] for one in terms]
    return ranks, [call("relu", [table], [np.abs(table)])]


@pytest.mark.parametrize("wrong, found", [((1,), [{"rank": 1}]), ((0,), [{"rank": 0}]), ((0, 1), [])])
def test_the_rank_whose_term_of_a_sum_differs(search_of, wrong, found):
    search = decided(search_of(looked_up, *wrong), RELU, "input:0", 0.2, COPIES)
    assert facts(with_ranks(root_of(search, RELU, "input:0", Cause.GAP), search), "rank") == found


def test_the_rank_that_holds_a_coarser_type(search_of):
    search = search_of(shards, 1, 1)
    cells = search.partners.mesh(search.golden.by_name[RELU]).cells.values()
    findings = [finding_of(search, RELU, slot, 1e-3, 1e-2) for slot in ("input:0", "output:0")]
    assert with_odd_type(comparison_of(search, findings), search).roots == ()
    part = next(one for op in cells if op.rank == 1 for one in op.inputs)
    part.ref = part.ref._replace(dtype="bfloat16")
    (root,) = with_odd_type(comparison_of(search, findings), search).roots
    assert (root.cause, root.slot, words(root, "rank")) == (
        Cause.GAP, "input:0", ["rank 1 holds it as bfloat16, the others as float32"],
    )  # fmt: skip


# Operators of the golden that the ranks compute otherwise

NORM = "Torch.batch_norm.0.forward"


def computed_otherwise(kind="mul", phase="forward"):
    """A batch norm, which the ranks compute from products, and its reader: an activation, or an update."""
    x, made = LONG, LONG * 2
    golden = [call("batch_norm", [x], [made], 0, phase)]
    ranks = [[call(kind, [x[own]], [made[own]])] for own in (np.s_[:9], np.s_[9:])]
    for calls, own in ((golden, np.s_[:]), (ranks[0], np.s_[:9]), (ranks[1], np.s_[9:])):
        calls.insert(0, call("sin", [np.sin(x[own])], [x[own]]))
        calls.append(call("relu", [made[own]], [np.abs(made[own])]))
    return ranks, golden


@pytest.mark.parametrize(
    "kind, phase, cause, slot, is_moved",
    [
        ("mul", "forward", "GAP", "input:0", True),
        ("mul", "forward", "BORN", "input:0", False),
        ("mul", "forward", "GAP", "output:0", False),
        ("batch_norm", "forward", "GAP", "input:0", False),  # the ranks have it too
        ("mul", "backward", "GAP", "input:0", False),  # an update, before which gradients are reduced
    ],
)
def test_a_golden_operator_in_whose_place_the_ranks_have_others_is_named(search_of, kind, phase, cause, slot, is_moved):
    search = search_of(computed_otherwise, kind, phase)
    norm = NORM.replace("forward", phase)
    root = root_of(search, RELU, slot, Cause(cause))
    found = with_other_operators(root, search, [finding_of(search, norm, "output:0", None, 0.0)])
    assert (found.pair.operator.name, found.slot) == ((norm, "output:0") if is_moved else (RELU, slot))
    assert words(found, "otherwise") == [
        f"the ranks have other operators in its place; {RELU} input:0 reads what they make"
    ] * is_moved  # fmt: skip
    assert with_other_operators(root, search, []) is root
