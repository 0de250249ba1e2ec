"""Folders of one .pt or .npy file per module hook: times of the files, else contents, give the order of execution."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from npucmp import compare
from tests.dump.formats.pt_files import save_pt

EXECUTED = [
    "wte", "model.layers.0.norm", "model.layers.0.mlp.up", "model.layers.0.mlp.down", "model.layers.0.mlp",
    "model.layers.0", "model.norm", "model", "lm_head",
]  # fmt: skip
EARLIEST = 1_700_000_000


def network(wrong: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Input and output of each module; act_fn between up and down, and the residual sum, have no hook."""
    random = np.random.default_rng(3)
    weights = {name: random.normal(size=(8, 8)).astype(np.float32) / 3 for name in EXECUTED}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def run(name: str, x: np.ndarray) -> np.ndarray:
        y = x @ weights[name] * np.float32(1.01 if name == wrong else 1.0)
        found[name] = x, y
        return y

    embedded = run("wte", random.normal(size=(16, 8)).astype(np.float32))
    normed = run("model.layers.0.norm", embedded)
    down = run("model.layers.0.mlp.down", np.tanh(run("model.layers.0.mlp.up", normed)))
    found["model.layers.0.mlp"] = normed, down
    found["model.layers.0"] = embedded, embedded + down
    found["model"] = embedded, run("model.norm", embedded + down)
    run("lm_head", found["model"][1])
    return found


def hooked(folder: Path, wrong: str = "", times: str = "kept", inputs: bool = True, npy: bool = False) -> Path:
    """A dump of it; `times` of the files are kept, the same, or those of a copy that went through the names."""
    ordered = {"kept": EXECUTED, "copied": sorted(EXECUTED), "mixed": EXECUTED[::-1], "same": []}[times]
    for name, tensors in network(wrong).items():
        for role, values in zip(("input", "output"), tensors):
            if role == "output" or inputs:
                file = folder / f"{name}.{role}.0.{'npy' if npy else 'pt'}"
                if npy:
                    folder.mkdir(exist_ok=True)
                    np.save(file, values)
                else:
                    save_pt(file, values)
                at = EARLIEST + (ordered.index(name) if ordered else 0)
                os.utime(file, (at, at))
    return folder


def test_the_report_says_what_the_order_rests_on(tmp_path):
    kept = compare(hooked(tmp_path / "a"), hooked(tmp_path / "b"))
    same = compare(hooked(tmp_path / "c", times="same"), hooked(tmp_path / "d", times="same"))
    assert any("write times of the files" in note for note in kept.comparisons[0].target.notes)
    assert any("of equal content" in note for note in same.comparisons[0].notes)
    assert kept.exit_status == same.exit_status == 0
