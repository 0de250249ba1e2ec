"""Dumps of TorchAir's FX graph: names, folders, damage, and a fault that is found."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from npucmp import open_runs
from npucmp.dump.formats import fx
from tests.contracts import FormatContract
from tests.dump.formats.three import second_is_first, three

NODES = ("mm-aten.mm.default", "tanh-aten.tanh.default", "add_1-aten.add.Tensor")
TREE = "worldsize1_global_rank0/graph_1/0"


def write_fx(folder, wrong=False, tree=TREE, nodes=NODES) -> Path:
    """As the documentation of TorchAir prints it: inputs before outputs, one time for a node."""
    place = Path(folder, tree)
    place.mkdir(parents=True)
    for number, (node, one) in enumerate(zip(nodes, three(wrong))):
        for role, arrays in (("INPUT", one.inputs), ("OUTPUT", one.outputs)):
            for index, values in enumerate(arrays):
                np.save(place / f"{node}.{role}.{index}.20251017071211{190258 + number:06d}.npy", values)
    return Path(folder)


def opened(folder):
    (run,) = open_runs(folder)
    return run


class TestFx(FormatContract):
    module = fx

    def write(self, folder):
        return write_fx(folder / "d")


class TestOneFolder(FormatContract):
    module = fx

    def write(self, folder):
        return write_fx(folder / "d", tree=".")


def test_the_fault_is_born_where_it_is(tmp_path):
    report = second_is_first(write_fx(tmp_path / "t", wrong=True), write_fx(tmp_path / "g"))
    assert report.roots[0].pair.operator.name == NODES[1]


def test_inputs_and_outputs_are_of_one_operator(tmp_path):
    run = opened(write_fx(tmp_path / "d"))
    assert [(op.name, op.op_type, [t.slot for t in op.tensors]) for op in run.operators] == [
        (NODES[0], "mm", ["input:0", "input:1", "output:0"]),
        (NODES[1], "tanh", ["input:0", "output:0"]),
        (NODES[2], "add", ["input:0", "input:1", "output:0"]),
    ]
    assert run.ordered and all(op.reads_recorded for op in run.operators)


@pytest.mark.parametrize(
    "tree, step, rank",
    [
        ("worldsize2_global_rank1/graph_1/3", 3, 1),
        ("worldsize2_global_rank1/graph_12/0", 0, 1),
        ("data_dump/1/gm_20251017071211_dump", 0, None),
        ("rank_3/step_2", 2, 3),
        ("anything/else", None, None),
    ],
)
def test_steps_and_ranks(tmp_path, tree, step, rank):
    place = write_fx(tmp_path / "d", tree=tree)
    assert {(run.step, run.rank) for given in (place, place / tree) for run in open_runs(given)} == {(step, rank)}


def test_several_steps_and_ranks_are_runs_of_their_own(tmp_path):
    for rank in (0, 1):
        for step in (0, 1):
            write_fx(tmp_path / "d", tree=f"worldsize2_global_rank{rank}/graph_1/{step}")
    assert [(run.step, run.rank) for run in open_runs(tmp_path / "d")] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_graphs_of_one_step_are_one_run(tmp_path):
    for graph in (1, 2):
        write_fx(tmp_path / "d", tree=f"worldsize1_global_rank0/graph_{graph}/0")
    assert len(opened(tmp_path / "d").operators) == 6


def test_names_with_numbers_are_positions(tmp_path):
    nodes = ("mm-aten.mm.default", "mm_1-aten.mm.default", "add-aten.add.Tensor")
    run = opened(write_fx(tmp_path / "d", nodes=nodes))
    assert [(op.kind, op.unique) for op in run.operators] == [(nodes[0], False)] * 2 + [(nodes[2], True)]


def test_every_prefix_is_an_unreadable_tensor(tmp_path):
    place = write_fx(tmp_path / "d", tree=".")
    file = sorted(place.glob("tanh*OUTPUT*"))[0]
    data = file.read_bytes()
    for size in range(0, len(data), 11):
        file.write_bytes(data[:size])
        assert [tensor.slot for tensor in opened(place).operators[1].tensors if tensor.problem] == [""]


@pytest.mark.parametrize("name", ["a.INPUT.0.1.npy", ".INPUT.0.20251017071211190258.npy", "x.npy", "a" * 200 + ".npy"])
def test_other_names_are_none(tmp_path, name):
    assert fx.parse_fx_name(name, name) is None


@pytest.mark.parametrize("node", ["-", ".", "=1+1-a.b", "\x1b[31m", "७", "-..", "a-.b"])
def test_odd_names_are_operators(tmp_path, node):
    place = write_fx(tmp_path / "d", tree=".")
    np.save(place / f"{node}.OUTPUT.0.20251017071211190300.npy", np.zeros(2))
    assert len(opened(place).operators) == 4


def test_a_link_out_and_other_files_are_told(tmp_path):
    place = write_fx(tmp_path / "d", tree=".")
    np.save(tmp_path / "x.npy", np.zeros(3))
    os.symlink(tmp_path / "x.npy", place / "z-a.b.OUTPUT.0.20251017071211190300.npy")
    (place / "rest.bin").write_bytes(b"1")
    run = opened(place)
    assert "links_out" in run.operators[-1].tensors[0].problem and "rest.bin" in run.notes[0]
