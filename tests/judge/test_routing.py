"""The experts of tokens as sets: overlap by layer, and changes within and beyond ties of the logits."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run

RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.standard_normal((20, 8)).astype(np.float32)
NOISE = np.float32(1e-3) * RANDOM.standard_normal((20, 8)).astype(np.float32)


def chosen(logits):
    """The three experts of each token, best first."""
    return np.argsort(-logits, -1, kind="stable")[:, :3]


def routed(folder, logits, ids):
    call = {"in": [logits, 3], "out": [np.sort(logits)[:, :3], ids]}
    return write_run(folder, {"Functional.moe_top_k.0.forward": call}, framework="pytorch")


def layers(tmp_path, target, golden):
    """The screen and the rows of routing.csv of two runs."""
    report = npucmp.compare(target, golden)
    npucmp.write_reports(report, tmp_path / "out")
    file = tmp_path / "out" / "routing.csv"
    return str(report), [*csv.DictReader(file.open(encoding="utf-8", newline=""))] if file.exists() else []


def test_another_expert_of_equal_logits_is_told_with_its_margin(tmp_path):
    ids = chosen(LOGITS)
    ids[7, 2] = np.argsort(-LOGITS[7])[5]
    ids[4] = ids[4, ::-1]
    screen, (row,) = layers(
        tmp_path, routed(tmp_path / "a", LOGITS, ids), routed(tmp_path / "b", LOGITS, chosen(LOGITS))
    )
    assert (row["tokens"], row["reordered"], row["changed"], row["beyond_ties"]) == ("20", "1", "1", "1")
    assert row["first_token"] == "7" and float(row["overlap"]) == pytest.approx(1 - 1 / 60)
    sides = (", ".join(map(str, sorted(side))) for side in (ids[7], chosen(LOGITS)[7]))
    assert "token 7, Functional.moe_top_k.0.forward: experts {{{}}} against {{{}}}".format(*sides) in screen
    assert row["first_change"] in screen


def test_a_change_within_the_noise_of_the_logits_is_a_tie(tmp_path):
    golden = LOGITS.copy()
    third, fourth = np.argsort(-golden[5])[2:4]
    golden[5, third] = golden[5, fourth] + np.float32(1e-4)
    target = golden + NOISE
    target[5, third] = target[5, fourth] - np.float32(1e-4)
    screen, (row,) = layers(
        tmp_path, routed(tmp_path / "a", target, chosen(target)), routed(tmp_path / "b", golden, chosen(golden))
    )
    assert row["changed"] == "1" and row["beyond_ties"] == "0"
    assert "all within ties of the logits" in screen


def test_layers_of_one_tensor_are_rows_of_their_own(tmp_path):
    golden = np.stack([[RANDOM.permutation(16)[:4] for _ in range(3)] for _ in range(10)]).astype(np.int32)
    target = golden[..., ::-1].copy()
    target[6, 2, 0] = next(expert for expert in range(16) if expert not in target[6, 2])
    for side, ids in (("target", target), ("golden", golden)):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "routed_experts.npy", ids)
    screen, rows = layers(tmp_path, tmp_path / "target", tmp_path / "golden")
    assert [row["changed"] for row in rows] == ["0", "0", "1"] and rows[2]["first_token"] == "6"
    assert "token 6, layer 2 of routed_experts" in screen


def test_equal_experts_need_no_table(tmp_path):
    both = (routed(tmp_path / side, LOGITS, chosen(LOGITS)) for side in "ab")
    assert layers(tmp_path, *both)[1] == []


def test_a_choice_of_top_k_is_of_experts_in_a_network_that_names_experts(tmp_path):
    ids = chosen(LOGITS)
    ids[7, 2] = np.argsort(-LOGITS[7])[5]
    for more, rows in ({}, 0), ({"Module.layers.0.experts.FusedMoE.forward.0": {"in": [LOGITS], "out": [LOGITS]}}, 1):
        sides = [
            write_run(tmp_path / f"{rows}{name}", {"Torch.topk.0.forward": {"in": [LOGITS, 3], "out": [one]}, **more},
                      framework="pytorch") for name, one in (("a", ids), ("b", chosen(LOGITS)))
        ]  # fmt: skip
        assert len(layers(tmp_path / str(rows), *sides)[1]) == rows


def test_an_id_beyond_the_logits_is_no_tie(tmp_path):
    ids = chosen(LOGITS)
    ids[7, 2] = LOGITS.shape[1]
    screen, (row,) = layers(
        tmp_path, routed(tmp_path / "a", LOGITS, ids), routed(tmp_path / "b", LOGITS, chosen(LOGITS))
    )
    assert row["changed"] == row["beyond_ties"] == "1" and "margin" not in screen
