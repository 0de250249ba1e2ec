"""The generated search: a few pairs of every group, and what the search itself must be able to see."""

from __future__ import annotations

from itertools import cycle

import pytest

from npucmp.dump.formats import open_runs
from tests.corpus.pair_search import search
from tests.corpus.pair_search.groups import GROUPS
from tests.corpus.pair_search.laws import LAWS, Case
from tests.corpus.subject import Answer, Examined
from tests.corpus.writers.slots import slots

LAYOUTS = [(group, layout) for group, some in GROUPS.items() for layout in some]


@pytest.mark.few(2)
@pytest.mark.parametrize("group", GROUPS)
def test_no_pair_breaks_a_law(group):
    found = search.search(1, group, 10)
    assert len(found.distinct) >= 10
    assert not found.violations


def test_no_tensor_explains_its_own_error():
    """A folder without an order, of inputs alone: a forward input was taken for the output of a backward operator that
    reads it, so that one bit and a factor of 2 agreed."""
    assert not search.tried(33, "pt", [2], ("swap", "formats", "bits")).violations


BROKEN = {
    0: {"bits", "one_less", "rows", "scale", "steps", "types"},
    1: {"clean", "one_less", "one_more", "self", "steps", "types"},
    2: {"clean", "one_more", "rows", "scale", "self", "steps", "types"},
}  # laws that a constant answer breaks; swap and formats hold two answers against each other


@pytest.mark.large
@pytest.mark.parametrize("status", BROKEN)
def test_a_constant_answer_breaks_laws(status, monkeypatch):
    monkeypatch.setattr(search, "examined", lambda *_: Examined(Answer(status), {}))
    some = [search.tried(2, group, range(3), sorted(LAWS)) for group in ("msprobe", "npz")]
    found = {violation.law for one in some for violation in one.violations}
    assert found == BROKEN[status]


def test_answers_that_alternate_break_the_laws_between_pairs(monkeypatch):
    statuses = cycle([0, 1])
    monkeypatch.setattr(search, "examined", lambda *_: Examined(Answer(next(statuses)), {}))
    found = search.tried(2, "msprobe", range(6), ("swap", "formats")).violations
    assert {one.law for one in found} == {"swap", "formats"}


def test_a_traceback_is_a_violation(monkeypatch):
    monkeypatch.setattr(search, "examined", lambda *_: Examined(Answer(-1, because="KeyError()"), {}))
    found = search.tried(2, "fx", range(1), ("swap", "self"))
    assert {one.law for one in found.violations} == {"swap", "self"}
    assert all("KeyError" in one.came for one in found.violations)


@pytest.mark.few(8)
@pytest.mark.parametrize("group, layout", LAYOUTS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_dump_holds_what_was_recorded(group, layout, tmp_path):
    """As many tensors as the run has slots, or more where a backward reads what its forward did as well."""
    number = next(k for k in range(99) if search.drawn_of(5, group, k)[0] is layout)
    _, drawn = search.drawn_of(5, group, number)
    layout.write(tmp_path / "dump", drawn.golden)
    (run,) = open_runs(tmp_path / "dump")
    recorded = sum(one.kind != "Module" for _, one, *_ in drawn.slots)
    here = [tensor for operator in run.operators for tensor in operator.tensors]
    assert not [tensor.problem for tensor in here if tensor.problem]
    assert len(here) >= recorded > 0
    names = {name for record, name in layout.names(drawn.golden[0]).items() if any(slots(record))}
    assert {operator.name for operator in run.operators} >= names


def test_a_case_is_kept_as_it_was_compared(tmp_path):
    name = next(name for _, name, _, case in search.cases_of(3, "npy", 0) if isinstance(case, Case))
    case, places = search.keep(3, name, tmp_path)
    assert len(places) == len(case.pairs)
    assert all(any(folder.rglob("*.npy")) for pair in places for folder in pair)


def test_one_seed_gives_one_search():
    first, second = (search.tried(9, "fx", range(1), ("self", "rows")) for _ in range(2))
    assert first.distinct == second.distinct and first.pairs == second.pairs
    assert not first.distinct <= search.tried(10, "fx", range(1), ("self", "rows")).distinct
