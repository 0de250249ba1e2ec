"""Dumps of statistics are compared in columns, with the results of a comparison row by row, whatever a dump says."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, Iterator

import pytest

import npucmp
from npucmp.workflows import recorded_frames
from tests.benchmarks import statistics_dumps as dumps

NAN, INF = float("nan"), float("inf")
STRUCTURE = (  # of both sides: another type, no figures, other shapes
    {"dtype": "torch.int64"}, {"Max": None, "Min": None, "Mean": None, "Norm": None}, {"Mean": None}, {"shape": []},
    {"shape": [0, 3]}, {"shape": [2]}, {"dtype": "torch.bfloat16"},
)  # fmt: skip
FIGURES = (  # of a rank: zeros, masks, constants, NaN
    dict.fromkeys(("Max", "Min", "Mean", "Norm"), 0.0), {"Min": -INF, "Mean": -INF, "Norm": INF}, {"Min": -65504.0},
    {"Max": 1.0, "Min": 1.0}, dict.fromkeys(("Max", "Min", "Mean", "Norm"), NAN),
)  # fmt: skip


def tensors(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    listed = [one for key in ("input_args", "input", "output") for one in record.get(key, ())]
    yield from (one for one in (*listed, *(record.get("parameters") or {}).values()) if "shape" in one)


def write(folder: Path, seed: int, steps: int, ranks: int) -> None:
    """Both dumps: odd structures and figures, an operator that one side lacks, another argument, a collective."""
    counted = dumps.Figures(0, "golden", 1)
    names = [name for name, _, _ in dumps.step(1, counted)]
    drawn = Random(seed)
    lost, argued = drawn.choice(["", *names]), drawn.choice(["", *names])
    for side in dumps.SIDES:
        for step in range(steps):
            for rank in range(ranks):
                of_structure, of_rank = Random(seed), Random(seed + 100 * step + rank + 1)
                figures = dumps.Figures(seed + 100 * step + rank, side, counted.made)
                data: dict[str, Any] = {}
                for name, _, record in dumps.step(1, figures):
                    for tensor in tensors(record):
                        if of_structure.random() < 0.05:
                            tensor.update(of_structure.choice(STRUCTURE))
                        if of_rank.random() < 0.05:
                            tensor.update(of_rank.choice(FIGURES))
                    if side == "target" and name == argued and "input_args" in record:
                        record["input_args"].append({"type": "float", "value": 0.5})
                    if side == "golden" or name != lost:
                        data[name] = record
                    if name.startswith("Tensor.__add__") and name.endswith("forward"):
                        call = {"input_args": [record["output"][0]], "input_kwargs": {}, "output": record["output"][:1]}
                        data[f"Distributed.all_reduce.{len(data)}.forward"] = call
                place = folder / side / f"step{step}" / f"rank{rank}"
                place.mkdir(parents=True)
                top = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
                (place / "dump.json").write_text(json.dumps({**top, "data": data}))


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(40))
def test_columns_say_what_rows_say(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(dumps, "FAULT", (0.0, 0.05, 1e-3)[seed % 3])
    monkeypatch.setattr(dumps, "ROUNDING", (1e-7, 0.0, 3e-3)[seed // 3 % 3])
    write(tmp_path, seed, steps=1 + seed % 2, ranks=1 + seed % 3)
    sides = tmp_path / "target", tmp_path / "golden"
    in_columns = npucmp.compare(*sides, jobs=1)
    monkeypatch.setattr(recorded_frames, "recorded_network", lambda *_: None)
    row_by_row = npucmp.compare(*sides, jobs=1)
    for one, other in zip(in_columns.comparisons, row_by_row.comparisons):
        assert [*map(repr, one.findings)] == [*map(repr, other.findings)]
        assert repr(one.roots) == repr(other.roots)
        assert (repr(one.coverage), one.notes) == (repr(other.coverage), other.notes)


def test_ranks_and_steps_of_one_structure_share_their_pairs(tmp_path):
    dumps.make(tmp_path, ranks=3, layers=1)
    found = npucmp.compare(tmp_path / "target", tmp_path / "golden").comparisons
    networks = {id(one.findings.columns.rank.network) for one in found}
    assert len(found) == 3 and len(networks) == 1
