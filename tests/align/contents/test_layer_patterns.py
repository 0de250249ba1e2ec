"""Pairs as in another layer: which patterns are partners, and where a pattern decides."""

from __future__ import annotations

import pytest

from npucmp.align.contents.layer_patterns import LayerPatterns
from tests.align.contents.memory import by_value, drawn, pairs_in_memory


def layer(seed, kinds=("sin", "relu", "tanh"), width=6, out=None, **more):
    """Three operators one behind the other; the last of them writes `out`."""
    x, a, b, c = (drawn(10 * seed + at, 4, width) for at in range(4))
    return [(kinds[0], [x], [a]), (kinds[1], [a], [b]), (kinds[2], [b], [c if out is None else out], more)]


TARGET, GOLDEN = ("sin", "relu", "tanh"), ("sin", "relu", "erf")
WRONG = drawn(99, 4, 6)


def matched(target, golden, known=(0, 1, 2, 3, 4, 5, 6), **first):
    """The pairs by pattern. Contents 0 to 3 are of the first layer, and 4 to 7 of the second."""
    pairs = pairs_in_memory(target, golden)
    for one in known:
        both = one if isinstance(one, tuple) else (one, one)
        assert pairs.add(by_value(*both, **(first if both == (3, 3) else {})))
    count = LayerPatterns(pairs).match()
    found = [one for one in pairs if one.via == "pattern"]
    assert count == len(found)
    return [(one.target, one.golden) for one in found]


def of_two(second_target=TARGET, second_golden=GOLDEN, out=WRONG, **more):
    """Two runs of two layers. The last content of the second one differs."""
    return layer(1, TARGET) + layer(2, second_target, out=out, **more), layer(1, GOLDEN) + layer(2, second_golden)


def test_operators_that_were_partners_in_another_layer_are_partners():
    target, golden = of_two()
    pairs = pairs_in_memory(target, golden, range(7))
    assert LayerPatterns(pairs).match() == 1
    assert pairs.found[7][:5] == (7, 7, "pattern", 0.75, "made as in another layer, from the same partners")
    assert LayerPatterns(pairs).match() == 0


@pytest.mark.parametrize("first", [{"via": "structure"}, {"via": "similar", "confidence": 0.5}])
def test_only_pairs_by_value_show_patterns(first):
    assert matched(*of_two(), **first) == []


def test_an_input_shows_no_pattern():
    """The golden reads what the target computes."""
    target, golden = of_two()
    assert matched(target, [golden[0], golden[1], ("exp", [golden[2][2][0]], []), *golden[3:]]) == []


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("is_target", [True, False])
def test_a_pattern_has_the_types_of_two_steps_upstream(at, is_target):
    kinds = [*(TARGET if is_target else GOLDEN)]
    kinds[at] = "exp"
    both = of_two(second_target=tuple(kinds)) if is_target else of_two(second_golden=tuple(kinds))
    assert matched(*both) == []


def test_three_steps_upstream_are_no_part_of_a_pattern():
    chains = [layer(1, ("cos", "sin", "relu")), layer(2, ("exp", "sin", "relu"))]
    ends = [("tanh", [chain[-1][2][0]], [drawn(70 + at, 4, 6)]) for at, chain in enumerate(chains)]
    golden = [*chains[0], ends[0], *chains[1], ends[1]]
    target = [*golden[:-1], ("tanh", ends[1][1], [WRONG])]
    assert matched(target, golden, range(9)) == [(9, 9)]


def test_a_pattern_has_the_sizes_of_contents():
    target = layer(1, TARGET) + layer(2, TARGET, 5, out=drawn(99, 4, 5))
    golden = layer(1, GOLDEN) + layer(2, GOLDEN, 5)
    assert matched(target, golden) == []


def test_a_weight_of_another_size_is_another_pattern():
    def run(side, width, out):
        x, w = (drawn(50 + side + at, 4, 6) for at in range(2))
        v = drawn(60 + side, width)
        return [("relu", [x], [w]), ("mul", [w, v], [out])]

    for width, found in ((8, [(7, 7)]), (9, [])):
        golden = [*run(0, 8, drawn(80, 4, 6)), *run(4, width, drawn(81, 4, 6))]
        target = [*golden[:-1], ("mul", golden[-1][1], [WRONG])]
        assert matched(target, golden) == found


@pytest.mark.parametrize("twice", ["target", "golden"])
def test_two_contents_of_one_pattern_decide_nothing(twice):
    target, golden = of_two()
    run = target if twice == "target" else golden
    run.append((run[-1][0], run[-1][1], [drawn(98, 4, 6)]))
    assert matched(target, golden) == []


def test_the_nearest_partners_upstream_are_the_same():
    assert matched(*of_two(), known=[0, 1, 2, 3]) == []
    assert matched(*of_two(), known=[0, 1, 2, 3, 4]) == [(5, 5), (6, 6), (7, 7)]
    both = [[*run, ("cos", [drawn(70, 4, 6)], [])] for run in of_two()]
    assert matched(*both, known=[0, 1, 2, 3, 4, 5, (6, 8)]) == []
    assert matched(*both, known=[0, 1, 2, 3, 4, (8, 6), 5]) == []


def test_a_copy_counts_as_a_partner_of_the_target():
    pairs = pairs_in_memory(*of_two(), range(4))
    pairs.add(by_value(5, 5))
    pairs.copies[6] = 5
    assert LayerPatterns(pairs).match() == 1
    assert pairs.to_golden[7] == 7  # the nearest partner upstream of either is the golden's content 5


def test_partners_are_looked_for_within_four_steps():
    kinds = ("sin", "cos", "tanh", "exp", "erf")

    def chain(seed, wrong=0):
        values = [drawn(seed, 8), *(drawn(seed + wrong + at, 8) for at in range(1, 6))]
        return [(kind, [values[at]], [values[at + 1]]) for at, kind in enumerate(kinds)]

    golden = chain(100) + chain(200)
    target = chain(100) + chain(200, 50)
    pairs = pairs_in_memory(target, golden, range(7))
    patterns = LayerPatterns(pairs)
    assert patterns.match() == 4
    assert [(one.target, one.golden) for one in pairs if one.via == "pattern"] == [(at, at) for at in range(7, 11)]
    assert patterns.match() == 1 and pairs.to_golden[11] == 11


@pytest.mark.parametrize("side", [0, 1])
def test_a_content_that_is_not_open_gets_no_partner(side):
    pairs = pairs_in_memory(*of_two(), range(7))
    pairs.right[side].add(7)
    assert LayerPatterns(pairs).match() == 0


def test_contents_of_two_passes_are_no_partners():
    assert matched(*of_two(phase="backward")) == [(7, 7)]  # one run has no backward pass
    target, golden = of_two(phase="backward")
    golden.insert(0, ("exp", [drawn(71, 8)], [drawn(72, 8)], {"phase": "backward"}))
    known = [(at, at + 2) for at in range(7)]
    assert matched(target, golden, known) == []
    golden[-1] = (*golden[-1][:3], {"phase": "backward"})
    assert matched(target, golden, known) == [(7, 9)]


def test_a_pair_that_another_one_crosses_does_not_count():
    """What is computed from the target's content is the partner of what the golden's is computed from."""
    target, golden = of_two()
    last = drawn(73, 4, 6)
    target.append(("cos", [WRONG], [last]))
    golden[3:3] = [("exp", [drawn(74, 4, 6)], [last]), ("sqrt", [last], [golden[3][1][0]])]
    known = [0, 1, 2, 3, (4, 6), (5, 7), (6, 8)]
    assert matched(target, golden, known) == [(7, 9)]
    assert matched(target, golden, [*known, (8, 5)]) == []
