"""Stages, lanes, and the cells of a mesh of ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npucmp.align.rank_mesh import Mesh, Misfit, chosen, lanes_of, mesh_of, same_copies, stages_of
from npucmp.model import Operator
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import SUM, WHOLE, Placement


def operator(kind, peer=None):
    name = "input:src" if "recv" in kind else "input:dst"
    op = Operator(f"{kind}.0", kind, kind, "forward", 0, (), arguments={} if peer is None else {name: peer})
    return SimpleNamespace(op=op, type=op_type_of(op))


def runs_of(calls):
    return {rank: SimpleNamespace(operators=[operator(*one) for one in own]) for rank, own in calls.items()}


@pytest.mark.parametrize(
    "calls, stages",
    [
        ({0: [("add",)], 1: [("add",)]}, {0: 0, 1: 0}),
        ({0: [("add",), ("send", 1)], 1: [("recv", 0)]}, {0: 0, 1: 1}),
        ({0: [("send", 1)], 1: [("recv", 0), ("send", 2)], 2: [("recv", 1), ("send", 1)]}, {0: 0, 1: 1, 2: 2}),
        ({2: [("irecv", 1)], 1: [("irecv", 0)], 0: [("isend", 1)]}, {0: 0, 1: 1, 2: 2}),  # in any order
        ({0: [("send", 1), ("recv", 1)], 1: [("recv", 0)]}, {0: 0, 1: 1}),  # the first one counts
        ({0: [("send", 2)], 1: [("send", 3)], 2: [("recv", 0)], 3: [("recv", 1)]}, {0: 0, 1: 0, 2: 1, 3: 1}),
        ({1: [("recv", 0)]}, {1: 0}),  # from a rank that the dump lacks
        ({0: [("send",)], 1: [("recv",), ("recv", 0)]}, {0: 0, 1: 1}),  # one names no rank
        ({0: [("broadcast", 1)], 1: [("all_gather", 0)]}, {0: 0, 1: 0}),
    ],
)
def test_stages_of_ranks(calls, stages):
    assert stages_of(runs_of(calls)) == stages


@pytest.mark.parametrize(
    "stages, lanes",
    [
        ({0: 0, 1: 0}, [[0], [1]]),
        ({0: 0, 1: 1}, [[0, 1]]),
        ({3: 1, 2: 1, 1: 0, 0: 0}, [[0, 2], [1, 3]]),
        ({0: 1, 1: 0, 2: 0}, [[1, 0], [2]]),
    ],
)
def test_lanes_have_a_rank_of_every_stage(stages, lanes):
    assert lanes_of(stages) == lanes


def held_by(*ranks):
    return SimpleNamespace(ranks=ranks)


def test_the_mesh_of_the_partners_of_an_operator():
    partners = {(rank, batch): held_by(rank) for rank in (2, 4, 6, 8) for batch in (0, 3)}
    mesh = mesh_of(partners, lambda ranks: [2, 2] if ranks == [2, 4, 6, 8] else [])
    assert mesh.sizes == (2, 2, 2) and mesh.ranks == (2, 4, 6, 8) and mesh.is_full and mesh.split_axes == [0, 1, 2]
    at = {(0, 0): 2, (1, 0): 4, (0, 1): 6, (1, 1): 8}
    assert {place: one.ranks[0] for place, one in mesh.cells.items()} == {
        (*place, batch): rank for place, rank in at.items() for batch in (0, 1)
    }
    assert mesh.cells[1, 0, 1] is partners[4, 3] and mesh.first is partners[2, 0]


def test_a_mesh_that_lacks_a_cell_is_not_full():
    partners = {(0, 0): held_by(0), (1, 1): held_by(1, 5)}
    mesh = mesh_of(partners, lambda ranks: [2])
    assert not mesh.is_full and [*mesh.cells] == [(0, 0), (1, 1)] and mesh.ranks == (0, 1, 5)
    one = mesh_of({(7, 2): held_by(7)}, lambda ranks: [])
    assert one.sizes == (1,) and one.is_full and one.split_axes == [] and [*one.cells] == [(0,)]


def test_the_first_cell_has_the_first_place_along_the_slowest_axes():
    assert Mesh({(0, 1): "b", (1, 0): "a"}, (2, 2), ()).first == "a"


ROWS = Placement("shard", 0)
CELLS = {(0, 0): 1, (1, 0): 2, (0, 1): 3, (1, 1): 4}


@pytest.mark.parametrize(
    "placements, choices",
    [
        ((WHOLE, WHOLE), [{0: 0, 1: 0}, {0: 0, 1: 1}, {0: 1, 1: 0}, {0: 1, 1: 1}]),
        ((ROWS, WHOLE), [{1: 0}, {1: 1}]),
        ((WHOLE, SUM), [{0: 0}, {0: 1}]),
        ((ROWS, SUM), [{}]),
    ],
)
def test_every_choice_of_a_copy(placements, choices):
    assert same_copies(Mesh(CELLS, (2, 2), ()), placements) == choices
    assert same_copies(Mesh({}, (1, 1), ()), placements) == [{}]


@pytest.mark.parametrize(
    "choice, cells",
    [
        ({}, {(0, 0): 10, (1, 0): 20, (0, 1): 30, (1, 1): 40}),
        ({0: 1}, {(0, 0): 20, (0, 1): 40}),
        ({1: 1}, {(0, 0): 30, (1, 0): 40}),
        ({0: 1, 1: 0}, {(0, 0): 20}),
    ],
)
def test_the_cells_of_one_copy(choice, cells):
    mesh = Mesh(CELLS, (2, 2), ())
    whole = [Placement("whole")] * 2
    assert chosen(mesh, whole, choice, lambda one: 10 * one) == cells
    with pytest.raises(Misfit):
        chosen(mesh, whole, choice, lambda one: None)
