"""Runs that differ by a few calls: who meets whom, and that nobody is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from npucmp.align import align, pairs
from npucmp.errors import UsageError
from npucmp.model import Operator, TensorRef
from tests.align.craft import Call, a_run, api, both_phases, network, outcome, own, run_of


def aligned(target_calls, golden_calls, **options):
    target, target_tags = run_of(target_calls, "target", **options)
    golden, golden_tags = run_of(golden_calls, "golden")
    return outcome(align(target, golden), target_tags, golden_tags)


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
