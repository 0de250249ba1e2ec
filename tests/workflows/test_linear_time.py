"""Work grows with the size of a dump: twice as much costs at most 2.5 times the calls."""

import cProfile
import json
import pstats
import sys

import numpy as np
import pytest

import npucmp
from npucmp import replay
from npucmp.align import order
from tests.recompute.craft import Dump

LARGEST = 2.5  # times the work for twice as much


def figures(at):
    """The record of one tensor with figures of its own."""
    own = {"Max": at + 1.0, "Min": -1.0, "Mean": at + 0.25, "Norm": at + 3.0}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 8], "requires_grad": False, **own}


def write(folder, records):
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    dump = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": records}
    (place / "dump.json").write_text(json.dumps(dump))
    return folder


def record(reads, writes):
    return {"input_args": [*map(figures, reads)], "input_kwargs": {}, "output": [*map(figures, writes)]}


def calls(tmp_path, dumps):
    """How many calls of functions a comparison makes."""
    paths = [write(tmp_path / side, records) for side, records in zip(("target", "golden"), dumps)]
    return calls_of(lambda: npucmp.compare(*paths, jobs=1))


def calls_of(work):
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return pstats.Stats(profile).total_calls


def numbered_higher(count):
    """So many calls of one name, which are numbered one higher on the golden side."""
    sides = ({f"Torch.tanh.{i + more}.forward": record([i], [i + 1]) for i in range(count)} for more in (0, 1))
    return tuple(sides)


def test_the_alignment_of_a_long_stretch_looks_at_a_band_of_operators(tmp_path, monkeypatch):
    limits = {"_CELLS": 2500, "_STRIP": 10_000, "_SEARCHED": 10_000, "_BAND": 100}
    for name, cells in limits.items():
        monkeypatch.setattr(order, name, cells, raising=False)
    looked_at = []
    scores = order._scores

    def counted(*sides):
        found = scores(*sides)
        looked_at.append(found[0].size)
        return found

    monkeypatch.setattr(order, "_scores", counted)
    work = []
    for count in (300, 600):
        looked_at.clear()
        target, golden = numbered_higher(count)
        result = npucmp.compare(write(tmp_path / f"target{count}", target), write(tmp_path / f"golden{count}", golden))
        work.append(sum(looked_at))
        alone = [one.pair for one in result.findings if one.pair.target_op is None or one.pair.golden_op is None]
        assert len(alone) == 4  # the first call of the target and the last of the golden
    assert work[1] <= LARGEST * work[0]


@pytest.mark.large
@pytest.mark.skipif(sys.platform != "linux", reason="operators are replayed in children made by fork")
def test_a_replay_of_equal_operators_finds_their_readers_in_linear_time(tmp_path):
    """Every tanh writes the same and every sin reads it, forward and backward."""
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    y, z, given = np.tanh(x), np.sin(np.tanh(x)), np.cos(3 * x)
    work = []
    for count in (4, 50, 100):
        dump = Dump(tmp_path / str(count))
        for i in range(count):
            dump.add(f"Torch.tanh.{i}.forward", [x], [y]).add(f"Torch.sin.{i}.forward", [y], [z])
        for i in reversed(range(count)):
            dump.add(f"Torch.sin.{i}.backward", [given], [given * np.cos(y)])
            dump.add(f"Torch.tanh.{i}.backward", [given * np.cos(y)], [given * np.cos(y) * (1 - y * y)])
        folder = dump.write()
        work.append(calls_of(lambda folder=folder: replay(folder, engine="numpy", jobs=1)))
    assert work[2] <= LARGEST * work[1]
