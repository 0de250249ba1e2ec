"""Files of weights alone: a checkpoint has no operators, so that no report misses what they read."""

from __future__ import annotations

import json
import struct
import sys

import numpy as np
import pytest

from npucmp.cli import main

WEIGHTS = ("embed_tokens.weight", "layers.0.q_proj.weight", "layers.0.q_proj.bias", "layers.0.norm.weight")
OUTPUTS = ("embed_tokens", "layers.0.q_proj", "layers.0.norm", "lm_head")


def save(path, names, wrong=""):
    """A safetensors file of random tensors, one of them 1.5 times too large."""
    generator, header, data = np.random.default_rng(0), {}, b""
    for name in names:
        values = generator.standard_normal((8, 8)).astype(np.float32) * (1.5 if name == wrong else 1)
        places = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": "F32", "shape": [8, 8], "data_offsets": places}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


@pytest.fixture
def printed(monkeypatch, capsys):
    """What a command prints, behind its exit status."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["npucmp", *words, "--no-progress"])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    return run


@pytest.fixture
def checkpoints(tmp_path):
    wrong = "layers.0.q_proj.weight"
    return save(tmp_path / "a.safetensors", WEIGHTS, wrong), save(tmp_path / "b.safetensors", WEIGHTS)


def test_compare_names_the_weight_that_differs_and_misses_no_input(printed, checkpoints):
    status, text = printed("compare", *checkpoints)
    assert status == 1 and "layers.0.q_proj.weight" in text and "DIVERGED: 1 of 4 tensors differs" in text
    assert "weights only" in text and "input" not in text and "outputs were dumped" not in text


def test_check_and_precheck_miss_no_input(printed, checkpoints):
    for command in (("check", checkpoints[0]), ("precheck", *checkpoints)):
        _, text = printed(*command)
        missed = [
            line for line in text.splitlines() if "no input" in line or "inputs on" in line or "no network" in line
        ]
        assert "only weights" in text and not missed


def test_a_dump_of_outputs_still_misses_inputs(printed, tmp_path):
    paths = save(tmp_path / "a.safetensors", OUTPUTS, "layers.0.norm"), save(tmp_path / "b.safetensors", OUTPUTS)
    assert "only outputs were dumped" in printed("compare", *paths)[1]
    assert "no inputs: differing outputs are reported" in printed("precheck", *paths)[1]
    assert "no input of the network is known" in printed("check", paths[0])[1]
