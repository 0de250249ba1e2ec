"""Runs that differ by a few calls: who meets whom, and that nobody is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from npucmp.align import align, pairs
from npucmp.align import order as by_order
from npucmp.errors import UsageError
from npucmp.model import Operator, TensorRef
from tests.align.craft import Call, a_run, api, both_phases, network, outcome, own, run_of, tensors

MUL = Call("extra", "Tensor.__mul__", ((4, 16),), ((4, 16),))
EXP = Call("extra", "Torch.exp", ((4, 16),), ((4, 16),))


def aligned(target_calls, golden_calls, **options):
    target, target_tags = run_of(target_calls, "target", **options)
    golden, golden_tags = run_of(golden_calls, "golden")
    return outcome(align(target, golden), target_tags, golden_tags)


def inserted(calls, at, call) -> list:
    return [*calls[:at], call, *calls[at:]]


def test_equal_runs_pair_by_name():
    target, _ = run_of(network())
    golden, _ = run_of(network())
    found = align(target, golden)
    assert found.matched == {"name": 48}
    assert all(m.target.name == m.golden.name and m.confidence == 1.0 for m in found.matches)


@pytest.mark.parametrize("at", [0, 1, 2, 4, 5, 7, 13, 24])
@pytest.mark.parametrize(
    "call, scoped",
    [(MUL._replace(inputs=((4, 16), (1,))), False), (MUL._replace(scope="odd"), True), (EXP, False)],
    ids=["other shape", "other module", "other kind"],
)
def test_one_extra_call_shifts_all_later_indices(at, call, scoped):
    calls = network(scoped=scoped)
    assert aligned(inserted(calls, at, call), calls) == ([], both_phases("extra"), [])
    assert aligned(calls, inserted(calls, at, call)) == ([], [], both_phases("extra"))


@pytest.mark.parametrize("at", [0, 4, 6])
def test_one_extra_call_just_like_another_costs_one_row(at):
    """Nothing tells it from its neighbour, but no other kind and no layer may slip."""
    wrong, only_target, only_golden = aligned(inserted(network(), at, MUL), network())
    assert len(only_target) == 2 and only_golden == []
    assert all("scale" in a + b or "extra" in a for a, b in wrong) and len(wrong) <= 4


@pytest.mark.parametrize("gone", range(0, 24, 5))
def test_a_removed_record_without_renumbering(gone):
    calls = network()
    kept = [call for call in calls if call is not calls[gone]]
    _, tags = run_of(calls)
    complete, _ = run_of(calls)
    indices = {tags[op.order].rsplit(" ", 1)[0]: int(op.call.rsplit(".", 1)[1]) for op in complete.operators}
    assert aligned(kept, calls, renumber=indices) == ([], [], both_phases(calls[gone].tag))


def test_a_removed_call_renumbers_the_rest():
    calls = network()
    assert aligned([call for call in calls if call.tag != "1 down"], calls) == ([], [], both_phases("1 down"))


def test_two_changes_far_apart():
    calls = network(8)
    target = inserted([call for call in calls if call.tag != "6 gelu"], 3, MUL._replace(scope="odd"))
    assert aligned(target, calls) == ([], both_phases("extra"), both_phases("6 gelu"))


@pytest.mark.few(2)
@pytest.mark.parametrize("at", [0, 90, 240])
@pytest.mark.parametrize("cells", [2000, 8000])
def test_a_long_stretch_is_cut_where_both_runs_are_alike(monkeypatch, at, cells):
    """60 operators more on one side, of which none may cost another its partner."""
    monkeypatch.setattr("npucmp.align.order._CELLS", cells)
    calls = network(40)
    more = [Call(f"more {n}", "Torch.exp" if n % 2 else "Tensor.__mul__", ((5, 7),), ((5, 7),)) for n in range(60)]
    longer = [*calls[:at], *more, *calls[at:]]
    extra = both_phases(*(call.tag for call in more))
    assert aligned(longer, calls, first=1000) == ([], extra, [])  # so that no name is a place to cut
    assert aligned(calls, longer, first=1000) == ([], [], extra)


def test_all_indices_shifted():
    assert aligned(network(), network(), first=3) == ([], [], [])


def test_a_call_of_another_name_replaces_one():
    calls = network()
    target = [c._replace(api="Torch.mul") if c.tag == "2 scale" else c for c in calls]
    wrong, only_target, only_golden = aligned(target, calls)
    assert wrong == [] and set(only_target) <= set(both_phases("2 scale")) and only_target == only_golden


def test_another_spelling_of_the_same_computation_pairs():
    golden = [*network(2), Call("sum", "Tensor.__add__", ((4, 8), (4, 8)), ((4, 8),))]
    target = [*network(2), Call("sum", "Torch.add", ((4, 8), (4, 8)), ((4, 8),))]
    assert aligned(target, golden) == ([], [], [])


def test_scopes_tell_equal_calls_apart():
    calls = [Call(f"{n}", "Tensor.__mul__", ((4,),), ((4,),), scope=f"layers.{n}") for n in range(6)]
    assert aligned(calls[1:], calls) == ([], [], both_phases("0"))
    assert aligned(calls[:2] + calls[3:], calls) == ([], [], both_phases("2"))


def test_stacks_tell_equal_calls_apart_whatever_the_folder():
    def calls(folder, skip=None):
        made = []
        for n in range(6):
            stack = (f"File {folder}/model.py, line {n + 40}, in forward, \n y{n} = x * {n}",)
            made.append(Call(f"{n}", "Tensor.__mul__", ((4,),), ((4,),), stack=stack))
        return [call for call in made if call.tag != skip]

    assert aligned(calls("/opt/a", "3"), calls("/home/b")) == ([], [], both_phases("3"))


def test_arguments_tell_equal_calls_apart():
    calls = [Call(f"{n}", "Torch.sum", ((4,),), ((4,),), arguments=(("input:1", n),)) for n in range(6)]
    assert aligned(calls[:4] + calls[5:], calls) == ([], [], both_phases("4"))


def test_swapped_shapes():
    """Two calls whose shapes are exchanged on one side: names alone would pair unlike tensors."""
    a = Call("a", "Torch.sum", ((4, 8),), ((4,),))
    b = Call("b", "Torch.sum", ((16, 2),), ((16,),))
    frame = network(2)
    target, target_tags = run_of([*frame[:6], a, b, *frame[6:]])
    golden, golden_tags = run_of([*frame[:6], b, a, *frame[6:]])
    wrong, only_target, only_golden = outcome(align(target, golden), target_tags, golden_tags)
    assert wrong == [] and only_target == only_golden


def test_modules_pair_by_path_in_any_order():
    names = [f"Module.layers.{n}.Linear.forward.0" for n in range(5)]
    target = a_run([own(name, order) for order, name in enumerate(names[::-1])])
    golden = a_run([own(name, order) for order, name in enumerate(names)])
    assert [(m.target.name, m.via) for m in align(target, golden).matches] == [(name, "name") for name in names[::-1]]
    assert all(m.target.name == m.golden.name for m in align(target, golden).matches)


def test_repeated_executions_pair_the_newest():
    target = a_run([own("a", 0), own("b", 1), own("a", 2)])
    golden = a_run([own("a", 0), own("a", 1), own("b", 2), own("a", 3)])
    found = align(target, golden)
    assert [(m.target.order, m.golden.order) for m in found.matches] == [(0, 1), (1, 2), (2, 3)]
    assert [operator.order for operator in found.only_golden] == [0]


DIFFERENT = [
    ("other names and shapes", [Call(str(n), f"Torch.f{n}", ((n + 2, 3),), ((n + 2,),)) for n in range(12)]),
    (
        "some names alike, no shapes",
        [Call(str(n), "Functional.linear", ((n + 50, 9),), ((n + 50, 2),)) for n in range(12)],
    ),
]


@pytest.mark.parametrize("calls", [row[1] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_different_networks_are_told(calls):
    with pytest.raises(UsageError) as caught:
        align(run_of(calls, "/one/path")[0], run_of(network(), "/other/path")[0])
    assert "/one/path" in str(caught.value) and "/other/path" in str(caught.value)


@pytest.mark.parametrize("keep", [1, 6, 12])
def test_a_run_that_ended_early_is_the_same_network(keep):
    calls = network()
    forward = run_of(calls)[0].operators[:keep]
    found = align(a_run(forward), run_of(calls)[0])
    assert [(m.target.name, m.golden.name) for m in found.matches] == [(op.name, op.name) for op in forward]


def test_empty_runs_align():
    empty = a_run([])
    assert align(empty, empty).matches == ()


# ---- pairs: rows in = rows out ----


def labels(run) -> Counter:
    return Counter(tensor.label for operator in run.operators for tensor in operator.tensors)


def assert_nothing_is_lost(target, golden, alignment) -> None:
    rows = list(pairs(target, golden, alignment))
    assert Counter(row.target.label for row in rows if row.target) == labels(target)
    assert Counter(row.golden.label for row in rows if row.golden) == labels(golden)
    assert all(bool(row.via) == bool(row.target and row.golden) for row in rows)
    assert [row.order for row in rows] == sorted(row.order for row in rows)
    orders = [row.target_op.order for row in rows if row.target_op]
    assert orders == sorted(orders)


POOL = network(3)
EDIT = st.tuples(
    st.sampled_from(["delete", "insert", "swap", "reshape", "renumber"]), st.integers(0, 40), st.integers(0, 17)
)


@settings(max_examples=120, deadline=None)
@given(st.lists(EDIT, max_size=8), st.booleans())
def test_rows_in_are_rows_out(edits, swapped):
    calls, numbers = list(POOL), {}
    for what, at, which in edits:
        at = at % len(calls) if calls else 0
        if what == "insert":
            calls.insert(at, POOL[which]._replace(tag=f"new {len(calls)} {at}"))
        elif what == "renumber" and calls:
            numbers[calls[at].tag] = 100 + len(numbers)  # a name of its own, whatever the order
        elif what == "delete" and calls:
            del calls[at]
        elif what == "swap" and calls:
            calls[at], calls[which % len(calls)] = calls[which % len(calls)], calls[at]
        elif calls:
            calls[at] = calls[at]._replace(inputs=((which + 1, 5),), outputs=())
    assume(calls)
    target, golden = run_of(calls, "target", renumber=numbers)[0], run_of(POOL, "golden")[0]
    if swapped:
        target, golden = golden, target
    try:
        alignment = align(target, golden)
    except UsageError:
        reject()
    assert_nothing_is_lost(target, golden, alignment)


NAMES = st.sampled_from(["add.0", "add.1", "mul.0", "exp.0", "own a", "own b"])


@settings(max_examples=80, deadline=None)
@given(st.lists(NAMES, max_size=7), st.lists(NAMES, max_size=7))
def test_rows_in_are_rows_out_with_repeated_names(left, right):
    runs = []
    for names in (left, right):
        made = []
        for order, name in enumerate(names):
            made.append(own(name, order) if " " in name else api(name[:-2], int(name[-1]), "forward", order))
        runs.append(a_run(made))
    try:
        alignment = align(*runs)
    except UsageError:
        reject()
    assert_nothing_is_lost(*runs, alignment)


def operator(*slots, order=0, name="a") -> Operator:
    refs = [TensorRef(slot, "float32", shape, label=f"{slot}{i}") for i, (slot, shape) in enumerate(slots)]
    return Operator(name, "a", name, "forward", order, tuple(refs), call=name)


@pytest.mark.parametrize(
    "target, golden, expected",
    [
        (
            [("input:0", (2,)), ("output:0", (3,))],
            [("output:0", (3,)), ("input:0", (2,))],
            ["input:0 input:0", "output:0 output:0"],
        ),
        ([("input:0", (2,))], [("input:0", (2,)), ("input:1", (4,))], ["input:0 input:0", "- input:1"]),
        (
            [("input:0", (2,)), ("input:dim", (4,))],
            [("input:0", (2,)), ("input:1", (4,))],
            ["input:0 input:0", "input:dim input:1"],
        ),
        ([("input:0", (2,))], [("output:0", (2,))], ["input:0 -", "- output:0"]),
        ([("input:a", (2,))], [("input:b", (3,))], ["input:a -", "- input:b"]),
        ([("output:0", (2,))], [("output:0", (3,))], ["output:0 output:0"]),
        ([("", ())], [("output:0", (3,))], ["(none) output:0"]),
        ([], [("output:0", (3,))], ["- output:0"]),
    ],
)
def test_slots_of_one_operator(target, golden, expected):
    one, other = a_run([operator(*target)]), a_run([operator(*golden)])
    rows = pairs(one, other, align(one, other, {"a": "a"}))
    shown = [" ".join("-" if side is None else side.slot or "(none)" for side in (r.target, r.golden)) for r in rows]
    assert shown == expected


def test_a_lonely_operator_stands_where_it_ran():
    golden = a_run([own(name, order) for order, name in enumerate("abcdefgh")])
    target = a_run([own(name, order) for order, name in enumerate("abdxefgh")])
    rows = list(pairs(target, golden, align(target, golden)))
    assert [row.operator.name for row in rows[::2]] == list("abcdxefgh")
    by_name = {row.operator.name: row for row in rows}
    assert by_name["c"].note == "the target run has no such operator" and by_name["c"].target_op is None
    assert by_name["x"].note == "the golden run has no such operator" and by_name["x"].golden is None


def test_operators_without_tensors_make_no_rows():
    one = a_run([own("a", 0), Operator("b", "b", "b", "", 1, tensors("b", (), ()))])
    assert len(list(pairs(one, one, align(one, one)))) == 2


@pytest.mark.parametrize(
    "count, cells, longest",
    [
        (6, 36, 36),  # just what is allowed
        (6, 35, 35),
        (6, 40, 36),
        (1, 3, 6),  # one operator cannot be cut
    ],
)
def test_a_matrix_of_scores_has_no_more_cells_than_allowed(monkeypatch, count, cells, longest):
    golden = [own(f"Torch.a{at}", at) for at in range(6)]
    target = [one._replace(name=f"{one.name} x") for one in golden[:count]]
    sizes, path = [], by_order._best_path
    monkeypatch.setattr(by_order, "_CELLS", cells)
    monkeypatch.setattr(by_order, "_best_path", lambda scores: sizes.append(scores.size) or path(scores))
    found = by_order.match(target, golden, ())
    assert [match.golden.name for match in found] == [one.name for one in golden[:count]]
    assert max(sizes) <= longest and (len(sizes) == 1) is (cells >= 36 or count == 1)
