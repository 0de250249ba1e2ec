"""Checkpoints whose tensors differ, or cannot all be compared, never agree: replicas, chunks, indexes, second names."""

import json

import numpy as np
import pytest

import npucmp
from tests.corpus.weights import conversions, files
from tests.corpus.weights.files import Stored
from tests.corpus.weights.networks import llama

REPLICAS = ("mp_rank_00_000_000", "mp_rank_00_000_001")  # expert-parallel groups hold all dense tensors


@pytest.fixture(scope="module")
def net():
    return llama(np.random.default_rng(3), "float32")


def save(folder, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    files.safetensors(folder / "model.safetensors", tensors)
    return folder


def changed(tensors, part):
    """The tensors, and the name of the first one with `part` in its name, of which one element is another."""
    name = next(name for name in tensors if part in name)
    values = tensors[name].values.copy()
    values.reshape(-1)[3] += 1
    return {**tensors, name: tensors[name].like(values)}, name


def updated(net):
    """The tensors with an update of low rank beside each q, and the tensors with the updates merged."""
    rng, apart, merged = np.random.default_rng(9), dict(net.tensors), dict(net.tensors)
    for name, one in net.tensors.items():
        if "q_proj.weight" in name:
            a, b = rng.standard_normal((4, one.values.shape[1])) / 10, rng.standard_normal((len(one.values), 4)) / 10
            base = name.removesuffix(".weight")
            apart[f"{base}.lora_A.weight"], apart[f"{base}.lora_B.weight"] = one.like(a), one.like(b)
            merged[name] = one.like((one.values + 2.0 * (b @ a)).astype(np.float32))
    return apart, merged


@pytest.mark.parametrize("part", ["linear_qkv.weight", "linear_fc1.weight", "q_proj.weight", "lora_A", "lora_B"])
def test_every_replica_is_compared(tmp_path, net, part):
    (own,) = conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks.values()
    golden = net.tensors
    if "linear" not in part:
        own, golden = updated(net)
    wrong, _ = changed(own, part)
    for name, second, status in (("same", own, 0), ("other", wrong, 1)):
        for place, tensors in zip(REPLICAS, (own, second)):
            save(tmp_path / name / place, tensors)
        report = npucmp.compare(tmp_path / name, save(tmp_path / "g", golden))
        assert report.exit_status == status
    assert report.roots[0].slot.endswith("copy1")
    assert npucmp.compare(tmp_path / "g", tmp_path / "other").exit_status == 1


def test_unknown_names_are_compared_rank_by_rank(tmp_path, net):
    ranks = conversions.megatron(net, np.random.default_rng(0), 2, 1).ranks
    rng = np.random.default_rng(4)
    for name, own in ranks.items():
        more = {f"decoder.layers.{at}.side.weight": Stored(rng.standard_normal((4, 6))) for at in range(2)}
        ranks[name] = {**own, **more}
        save(tmp_path / "t" / name, ranks[name])
        save(tmp_path / "g" / name, ranks[name])
    assert npucmp.compare(tmp_path / "t", tmp_path / "g").exit_status == 0
    wrong, changed_name = changed(ranks["mp_rank_01"], "layers.1.side")
    save(tmp_path / "t" / "mp_rank_01", wrong)
    report = npucmp.compare(tmp_path / "t", tmp_path / "g")
    assert report.exit_status == 1 and report.roots[0].pair.operator.name == changed_name


def test_a_fused_tensor_that_cannot_be_cut_has_its_reason(tmp_path, net):
    (own,) = conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks.values()
    name = next(name for name in own if "linear_qkv.weight" in name)
    own = {**own, name: own[name].like(own[name].values[:-1])}
    report = npucmp.compare(save(tmp_path / "t", own), save(tmp_path / "g", net.tensors))
    assert report.exit_status == 2 and "of q, k and v, of which q has" in str(report)
