"""The stages of an alignment by contents: which anchors count, and what a report says."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.content_alignment import ContentAlignment, align_contents
from npucmp.align.contents.matches import match_contents
from npucmp.align.contents.slices import ContentSlice
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Match
from npucmp.model.relation import AxisOrder
from tests.align.contents.small_runs import Step, connect, drawn, pairs_of, seeded
from tests.align.craft import a_run, run_with_values

X, Y = seeded(1, 4, 6), seeded(2, 4, 6)


# Shares and words


def alignment(target, golden, *partners, slices=(), **more):
    pairs = pairs_of(tuple(target), tuple(golden))
    connect(pairs, *partners, **more)
    return ContentAlignment(pairs, slices, ())


def layers(count):
    """A weight and a computed content each, in this order: weight 2 n, content 2 n + 1."""
    return [Step("exp", (drawn(9),), (drawn(9),)) for _ in range(count)]


def test_shares_are_those_of_the_run_with_fewer_contents():
    found = alignment(layers(5), layers(4), (0, 0), (2, 2), (4, 4), (1, 1))
    assert (found.share_of_weights, found.share_by_value) == (3 / 4, 1 / 4)
    found = alignment(layers(4), layers(5), (0, 0), (1, 1), (3, 3))
    assert (found.share_of_weights, found.share_by_value) == (1 / 4, 2 / 4)
    connect(found.pairs, (2, 2), (5, 5), via="structure")  # not by value
    assert (found.share_of_weights, found.share_by_value) == (1 / 4, 2 / 4)


def test_runs_without_weights_or_contents_share_nothing():
    found = alignment([Step("rand", (), (X,))], [Step("rand", (), (X,))], (0, 0))
    assert (found.share_of_weights, found.share_by_value) == (0.0, 1.0)
    assert alignment([], [])[0] is not None and alignment([], []).share_by_value == 0.0


def test_the_line_counts_the_pairs_of_each_stage():
    found = alignment(layers(5), layers(4), (0, 0), (2, 2))
    assert found.words() == "aligned 2 of 8 distinct tensors: 2 by value"
    assert alignment(layers(4), layers(5)).words() == "aligned 0 of 8 distinct tensors: 0 by value"
    connect(found.pairs, (1, 1), via="weights")
    found.pairs.copies.update({3: 3, 5: 5})
    slices = [ContentSlice(7, 5, 0, 4, True), ContentSlice(7, 5, 4, 4, True), ContentSlice(7, 6, 8, 4, True)]
    found = found._replace(slices=slices)
    assert found.words() == "aligned 3 of 8 distinct tensors: 2 by value, 1 weights, 2 copy, 2 parts"
    found.pairs.axes.learn((2, 4, 5, 3), (2, 3, 4, 5), AxisOrder((0, 3, 1, 2)), 2)
    assert found.words().endswith(", 2 parts; axes NHWC → NCHW")


# Whole alignments


@pytest.fixture
def runs(tmp_path):
    """A function that makes two runs of operators that write these values, and read none or those of `reads`."""

    def make(target, golden, reads=()):
        found = []
        for side, outputs in (("target", target), ("golden", golden)):
            inputs = dict(reads) if side == "golden" else {}
            calls = [(f"Torch.rand.{at}.forward", inputs.get(at, []), [one]) for at, one in enumerate(outputs)]
            found.append(run_with_values(tmp_path / side, calls))
        return found

    return make


def partners(target, golden, *anchors):
    """How operators were paired: the golden operator, stage, confidence and reason, by the target's operator. An anchor
    is a stage and the numbers of two operators."""
    matches = [Match(target.operators[one], golden.operators[other], via, 0.7) for via, one, other in anchors]
    found = align_contents(target, golden, matches, ANYWHERE).pairs
    graphs = found.target, found.golden
    return {
        graphs[0].contents[one.target].first: (
            graphs[1].contents[one.golden].first,
            one.via,
            one.confidence,
            one.reason,
        )
        for one in found
    }


@pytest.mark.parametrize("dtypes, noise", [
    (("float32", "float32"), 1e-3), (("float16", "float32"), 1e-2), (("float32", "float16"), 1e-2),
])  # fmt: skip
def test_16_bit_types_are_noisier(runs, dtypes, noise):
    found = align_contents(*runs(*([X.astype(one)] for one in dtypes)), (), ANYWHERE)
    assert found.pairs.noise == noise and found.pairs.to_golden == {0: 0}
    assert list(found.slices) == list(found.likenesses) == []


@pytest.mark.parametrize("via", ["graph", "layer", "mapping", "name"])
def test_an_anchor_pairs_what_values_do_not(runs, via):
    target, golden = runs([X, drawn(4, 6)], [drawn(4, 6), X])
    content = (1, "content", 0.99, "equal element by element")
    assert partners(target, golden) == {0: content}
    assert partners(target, golden, (via, 1, 0)) == {0: content, 1: (0, via, 0.7, f"operators paired by {via}")}
    assert partners(target, golden, (via, 0, 0), (via, 1, 1)) == {0: content}  # values contradict them


def test_an_anchor_belongs_to_the_order_of_an_operator(runs):
    target, golden = runs([X, Y], [drawn(4, 6), drawn(4, 6)])
    for first in (0, 1, 7):
        moved = a_run([one._replace(order=one.order + first) for one in target.operators])
        assert partners(moved, golden, ("graph", 1, 0)) == {1: (0, "graph", 0.7, "operators paired by graph")}
        assert partners(golden, moved, ("graph", 1, 0)) == {1: (0, "graph", 0.7, "operators paired by graph")}


def test_outputs_of_another_size_and_constants_are_anchored_by_nothing(runs):
    target, golden = runs([X, np.ones((4, 6), np.float32)], [drawn(4, 7), drawn(4, 6)])
    assert partners(target, golden, ("graph", 0, 0), ("graph", 1, 1)) == {}
    assert partners(golden, target, ("graph", 0, 0), ("graph", 1, 1)) == {}


@pytest.mark.parametrize("confirmed, is_certain", [(19, False), (20, True)])
@pytest.mark.parametrize("contradicted", ["both", "target", "golden"])
def test_names_count_where_20_are_confirmed_for_each_that_values_contradict(runs, confirmed, is_certain, contradicted):
    """The last two operators have names in common, and values that the other run has elsewhere or not at all."""
    same = [drawn(8) for _ in range(confirmed)]
    a, b = drawn(8), drawn(8)
    target = [*same, a, b] if contradicted != "golden" else [*same, drawn(8), b]
    golden = (
        [*same, b, a]
        if contradicted == "both"
        else [*same, drawn(8), a]
        if contradicted == "target"
        else [*same, b, drawn(8)]
    )
    target, golden = runs([*target, drawn(9)], [*golden, drawn(9)])
    names = [("name", at, at) for at in range(confirmed + 1)]
    last = confirmed + 2
    found = partners(target, golden, *names, ("name", last, last), ("graph", 0, 1))
    assert (last in found) is is_certain
    if is_certain:
        assert found[last][1] == "name"
    assert partners(target, golden, *names, ("graph", last, last))[last][1] == "graph"


def uncertain(runs):
    """The last two golden operators write what they read, so that the first target operator has two partners."""
    return runs([X, drawn(4, 6), Y], [drawn(9), X, X, Y], {2: [X]}.items())


@pytest.mark.parametrize("anchor, expected", [
    (("mapping", 0, 2), {0: (2, "mapping"), 2: (3, "content")}),  # another partner
    (("mapping", 0, 1), {0: (1, "content"), 2: (3, "content")}),  # the partner by value
    (("graph", 0, 2), {0: (1, "content"), 2: (3, "content")}),
    (("mapping", 1, 1), {1: (1, "mapping"), 2: (3, "content")}),  # the partner of another operator
    (("mapping", 1, 3), {0: (1, "content"), 2: (3, "content")}),  # a certain pair stays
    (("mapping", 2, 2), {0: (1, "content"), 2: (3, "content")}),
])  # fmt: skip
def test_a_mapping_replaces_uncertain_pairs(runs, anchor, expected):
    found = partners(*uncertain(runs), anchor)
    assert {one: other[:2] for one, other in found.items()} == expected


# Matches


@pytest.mark.parametrize("count, is_network", [(10, True), (11, False)])
@pytest.mark.parametrize("more", [(0, 0), (2, 0), (0, 2)])
def test_runs_of_one_network_share_a_tenth_of_the_values_of_the_smaller_run(runs, count, is_network, more):
    sides = [[X, *(drawn(8) for _ in range(count - 1 + one))] for one in more]
    found = match_contents(*runs(sides[0], sides[1][::-1]), (), ANYWHERE)
    assert (found is not None) is is_network
    if found is not None:
        assert [(one.target.order, one.via) for one in found.matches] == [(0, "content")]
        assert found.rows[0][0].golden_op.order == len(sides[1]) - 1
        assert found.line == f"aligned 1 of {count} distinct tensors: 1 by value"
        assert list(found.rows) == [0] and [one.slot for one in found.rows[0]] == ["output:0"]
        assert len(found.open) == 2 * count - 2 + sum(more) and found.candidates is not None


@pytest.mark.parametrize("count, is_network", [(2, True), (3, False)])
def test_runs_of_one_checkpoint_share_half_of_the_weights(tmp_path, count, is_network):
    weights = [[X, *(drawn(9 + at) for at in range(1, count))] for _ in range(2)]
    runs = [
        run_with_values(
            tmp_path / side, [(f"Torch.mul.{at}.forward", [one], [drawn(5, 5 + at)]) for at, one in enumerate(some)]
        )
        for side, some in zip(("target", "golden"), weights)
    ]
    found = match_contents(*runs, (), ANYWHERE)
    assert (found is not None) is is_network
    assert found is None or [(one.target.order, one.golden.order) for one in found.matches] == [(0, 0)]


# Behind a fault


def chains(tmp_path, steps, faults):
    """The same operators twice, each on what the one before it wrote. The outputs of the golden are those of the
    target, or other ones from the first fault on."""
    runs, outputs = [], [drawn(5, 4 + at) for at in range(len(steps))]
    for side in ("target", "golden"):
        calls, read = [], X
        for at, kind in enumerate(steps):
            out = drawn(5, 4 + at) if at in faults and side == "golden" else outputs[at]
            calls.append((f"Torch.{kind}.{at}.forward", [read], [out]))
            read = out
        runs.append(run_with_values(tmp_path / side, calls))
    return runs


def test_operators_behind_a_fault_have_partners_by_structure(tmp_path):
    """One after the other, farther than a new pair is near."""
    steps = ["tanh", "sin", "exp", "mul"] * 4
    found = align_contents(*chains(tmp_path, steps, {*range(2, 16)}), (), ANYWHERE)
    assert [(one.target, one.golden) for one in sorted(found.pairs)] == [(at, at) for at in range(17)]
    assert {one.target: one.via for one in found.pairs if one.via != "content"} == dict.fromkeys(
        range(3, 17), "structure"
    )


def test_an_operator_that_wrote_other_values_than_it_read_is_a_copy(tmp_path):
    """The target lost what it handed on; the operator behind it reads a copy of what the golden reads."""
    h, lost = drawn(4, 6), drawn(4, 6)
    target = [
        ("Torch.tanh.0.forward", [X], [h]),
        ("Torch.clone.0.forward", [h], [lost]),
        ("Torch.exp.0.forward", [lost], [Y]),
    ]
    golden = [("Torch.tanh.0.forward", [X], [h]), ("Torch.exp.0.forward", [h], [drawn(4, 6)])]
    runs = [run_with_values(tmp_path / side, calls) for side, calls in (("target", target), ("golden", golden))]
    pairs = align_contents(*runs, (), ANYWHERE).pairs
    assert pairs.copies == {2: 1}
    assert {one.target: (one.golden, one.via) for one in pairs} == {
        0: (0, "content"),
        1: (1, "content"),
        3: (2, "structure"),
    }


def test_what_structure_leaves_open_is_made_as_in_another_layer(tmp_path):
    """The runs write another tensor between sine and exp. The exp of layer 1 is wrong, and what follows has a partner
    by structure; so has a cosine before that."""
    x, cosines = drawn(2, 4, 6), drawn(2, 3, 5)
    sines, ends, wrong, last = np.sin(x), drawn(2, 21), drawn(21), drawn(2, 2, 17)
    runs = []
    for side, (kind, size) in enumerate((("tanh", 20), ("relu", 22))):
        calls = [("Torch.cos.0.forward", [X], [cosines[side]])]
        for layer in range(2):
            middle = drawn(size)
            end = wrong if layer and side else ends[layer]
            calls += [(f"Torch.sin.{layer}.forward", [x[layer]], [sines[layer]]),
                      (f"Torch.{kind}.{layer}.forward", [sines[layer]], [middle]),
                      (f"Torch.exp.{layer}.forward", [middle], [end])]  # fmt: skip
        calls.append(("Torch.mul.0.forward", [end], [last[side]]))
        runs.append(run_with_values(tmp_path / str(side), calls))
    found = align_contents(*runs, (), ANYWHERE)
    graph = found.pairs.target
    via = {graph.maker(one.target).name: one.via for one in found.pairs if graph.maker(one.target)}
    assert via == {
        "Torch.cos.0.forward": "structure", "Torch.sin.0.forward": "content", "Torch.exp.0.forward": "content",
        "Torch.sin.1.forward": "content", "Torch.exp.1.forward": "pattern", "Torch.mul.0.forward": "structure",
    }  # fmt: skip


def test_behind_the_nearest_content_structure_goes_on(tmp_path):
    """The target computes in two steps what the golden computes in one, and both outputs are wrong."""
    out = drawn(64)
    near = (out * 1.2).astype(np.float32)
    h, tail = drawn(64), drawn(2, 70)
    middle = drawn(65)
    target = [("Torch.tanh.0.forward", [X], [h]), ("Torch.sin.0.forward", [h], [middle]),
              ("Torch.gelu.0.forward", [middle], [out]), ("Torch.exp.0.forward", [out], [tail[0]])]  # fmt: skip
    golden = [target[0], ("Torch.gelu.0.forward", [h], [near]), ("Torch.exp.0.forward", [near], [tail[1]])]
    runs = [run_with_values(tmp_path / side, calls) for side, calls in (("target", target), ("golden", golden))]
    pairs = align_contents(*runs, (), ANYWHERE).pairs
    assert {one.target: (one.golden, one.via) for one in pairs} == {
        0: (0, "content"), 1: (1, "content"), 3: (2, "similar"), 4: (3, "structure"),
    }  # fmt: skip
