"""Steps, ranks, processes, token ids and micro batches, in every spelling and every format whose folders tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

import npucmp
from npucmp import open_runs
from npucmp.dump.formats import heads, open_head
from npucmp.dump.formats.msprobe import calls
from npucmp.dump.readers import hdf5 as hdf5_reader
from npucmp.dump.readers.names import is_process, micro_of, place_of
from npucmp.errors import DumpError
from tests.dump.formats.pt_files import save_pt
from tests.dump.formats.test_atb import write_atb
from tests.dump.formats.test_every_format import WRITERS as WRITERS_OF_ONE
from tests.dump.formats.test_mindspore import write_npy as write_mindspore
from tests.dump.formats.test_npz import write_npz
from tests.dump.formats.test_safetensors import write_safetensors
from tests.dump.formats.three import second_is_first, three
from tests.dump.readers import craft_cann

TREES = {
    "step3/rank1": (3, 1),
    "step_3/rank_1": (3, 1),
    "4711/step_3/rank_1": (3, 1),  # verl
    "rank1/token_3": (3, 1),
    "npu1_4711/3": (3, 1),  # msit: a token of a device
    "cuda_4711/3": (3, None),
    "worldsize8_global_rank5/step3/rank0": (3, 5),  # a process sees one card
    "world_size8_global_rank5/step3": (3, 5),
    "step3/pid77": (3, None),
    "step3/proc77": (3, None),
    "step3/rank": (3, None),
    "rank1": (None, 1),
}


def msprobe(folder: Path, wrong: bool = False) -> None:
    """dump.json with the values beside it."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for name, one in zip(("Mint.matmul.0.forward", "Mint.tanh.0.forward", "Mint.add.0.forward"), three(wrong)):
        told = {"input_args": one.inputs, "output": one.outputs}
        for role, arrays in told.items():
            for n, values in enumerate(arrays):
                np.save(folder / "dump_tensor_data" / f"{name}.{role}.{n}.npy", values)
        data[name] = {
            role: [
                {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [*values.shape],
                 "data_name": f"{name}.{role}.{n}.npy"}
                for n, values in enumerate(arrays)
            ]
            for role, arrays in told.items()
        }  # fmt: skip
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "framework": "mindspore", "data": data}))


def npy(folder: Path, wrong: bool = False) -> None:
    folder.mkdir(parents=True)
    for number, one in enumerate(three(wrong)):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for n, values in enumerate(arrays):
                np.save(folder / f"layer{number}.{role}.{n}.npy", values)


def pt(folder: Path, wrong: bool = False) -> None:
    for number, one in enumerate(three(wrong)):
        for role, arrays in (("input", one.inputs), ("output", one.outputs)):
            for n, values in enumerate(arrays):
                save_pt(folder / f"layer{number}.{role}.{n}.pt", values)


def cann(folder: Path, wrong: bool = False) -> None:
    for number, one in enumerate(three(wrong)):
        arrays = ([craft_cann.tensor(values) for values in some] for some in (one.inputs, one.outputs))
        craft_cann.save(folder, **{f"Add.a{number}.{number}.3.{craft_cann.TIME + number}": craft_cann.v2(*arrays)})


WRITERS = {
    "msprobe": msprobe, "npy": npy, "pt": pt, "cann": cann, "mindspore": write_mindspore, "npz": write_npz,
    "safetensors": write_safetensors,
}  # fmt: skip


def in_parts(format: str) -> Callable[[Path], None]:
    """Writes a step of two micro batches."""

    def write(folder: Path) -> None:
        for batch in (0, 1):
            WRITERS[format](folder / "step_0" / "rank_0" / f"micro_batch_{batch}")

    return write


@pytest.mark.parametrize("tree", TREES)
def test_folders_tell_step_and_rank(tree):
    assert place_of(Path("dump", tree).parts)[:2] == TREES[tree]


def test_only_some_folders_are_processes_or_micro_batches():
    assert [*map(is_process, ("pid1", "pid_1", "proc7", "rank", "rank0", "process"))] == [True] * 3 + [False] * 3
    words = ("micro_batch_3", "microbatch3", "micro_step0", "micro", "batch_1")
    assert [*map(micro_of, words)] == [3, 3, 0, None, None]


@pytest.mark.parametrize("format", WRITERS)
def test_every_format_reads_every_spelling(tmp_path, format):
    for number, tree in enumerate(TREES):
        root = tmp_path / f"d{number}"
        WRITERS[format](root / tree)
        (run,) = open_runs(root)
        assert (run.format, run.step, run.rank, len(run.operators)) == (format, *TREES[tree], 3), tree


@pytest.mark.parametrize("format", WRITERS)
def test_several_steps_and_ranks_are_runs_and_the_wrong_one_is_found(tmp_path, format):
    for side in ("target", "golden"):
        for step in (0, 1):
            for rank in (0, 1):
                WRITERS[format](
                    tmp_path / side / f"step_{step}" / f"rank_{rank}", side == "target" and step == rank == 1
                )
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    places = {(one.step, one.rank): [root.cause.value for root in one.roots] for one in report.comparisons}
    assert [*places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [bool(found) for found in places.values()] == [False, False, False, True]
    assert places[1, 1][0] == "BORN"


def test_dumps_of_one_file_or_of_processes_have_steps_and_ranks_too(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_reader, "ISOLATED", False)
    for rank in (0, 1):
        write_atb(tmp_path / "atb" / f"rank{rank}", tree="data/0_4711/3")
        WRITERS_OF_ONE["hdf5"](tmp_path / "hdf5" / "step2" / f"rank{rank}", False)
    for name, step in (("atb", 3), ("hdf5", 2)):
        assert [(run.format, run.step, run.rank) for run in open_runs(tmp_path / name)] == [
            (name, step, 0),
            (name, step, 1),
        ]


@pytest.mark.few(2)
@pytest.mark.parametrize("format", ["msprobe", "npy", "pt"])
@pytest.mark.parametrize("tree", ["step_3/rank_1/micro_batch_{}", "step3/micro_step{}/rank1"])
def test_micro_batches_are_parts_of_their_step(tmp_path, format, tree):
    for side in ("target", "golden"):
        for batch in range(11):
            WRITERS[format](tmp_path / side / tree.format(batch), side == "target" and batch == 10)
    (run,) = open_runs(tmp_path / "target")
    (head,) = heads(tmp_path / "target")
    assert (run.step, run.rank, len(run.operators)) == (3, 1, 33) and open_head(head) == run
    name = tree.split("/")[1 if "micro" in tree.split("/")[1] else 2].format(10)
    assert [one.name.split("/")[0] for one in run.operators[-3:]] == [name] * 3
    assert format != "msprobe" or set(calls(run)) == {one.name for one in run.operators}
    report = second_is_first(tmp_path / "target", tmp_path / "golden", "BORN", 31)
    assert report.roots[0].pair.operator.name.startswith(f"{name}/")


def test_a_broken_micro_batch_is_none_that_agrees(tmp_path):
    for batch in (0, 1):
        msprobe(tmp_path / "step0" / "rank0" / f"micro_batch_{batch}")
        msprobe(tmp_path / "step0" / "rank1" / f"micro_batch_{batch}")
    (tmp_path / "step0" / "rank0" / "micro_batch_1" / "dump.json").write_text('{"data"')
    problems = [run.problem for run in open_runs(tmp_path)]
    assert "is not complete JSON" in problems[0] and problems[1] == ""


@pytest.mark.parametrize("format", WRITERS)
def test_what_is_ambiguous_is_listed(tmp_path, format):
    for name in ("monday", "tuesday"):
        WRITERS[format](tmp_path / name / "step0" / "rank0")
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "monday" in str(caught.value) and "tuesday" in str(caught.value) and "pass one of them" in str(caught.value)


@pytest.mark.parametrize("format", ["msprobe", "pt", "npy"])
def test_processes_of_one_step_are_listed(tmp_path, format):
    for process in (7, 8):
        WRITERS[format](tmp_path / "step0" / f"pid{process}")
    with pytest.raises(DumpError) as caught:
        open_runs(tmp_path)
    assert "pid7" in str(caught.value) and "pid8" in str(caught.value) and "pass one of them" in str(caught.value)
