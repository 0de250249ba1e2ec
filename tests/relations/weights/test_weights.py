"""Checkpoints of unequal conventions: clean pairs agree in all elements, faults are named, nothing else is accepted."""

import json

import numpy as np
import pytest

import npucmp
from npucmp.errors import NpucmpError, UsageError
from tests.command import npucmp as run
from tests.corpus.weights import conversions, files
from tests.corpus.weights.files import Stored
from tests.corpus.weights.networks import llama


@pytest.fixture(scope="module")
def net():
    return llama(np.random.default_rng(3), "float32")


def save(folder, tensors, config=None):
    folder.mkdir(parents=True, exist_ok=True)
    files.safetensors(folder / "model.safetensors", tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def first(report):
    return report.roots[0].pair.operator.name, report.roots[0].because


def test_the_order_of_rotary_embedding_is_declared(tmp_path, net):
    size, turned = net.config["head_dim"], dict(net.tensors)
    for name, one in net.tensors.items():
        if "q_proj" in name or "k_proj" in name:
            halves = one.values.reshape(-1, 2, size // 2, one.values.shape[1])
            turned[name] = one.like(halves.swapaxes(1, 2).reshape(one.values.shape))
    t, g = save(tmp_path / "t", turned), save(tmp_path / "g", net.tensors)
    assert npucmp.compare(t, g).exit_status == 1
    assert npucmp.compare(t, g, layout="target=meta").exit_status == 0


def test_lost_tensors_and_shards_are_open(tmp_path, net):
    g = save(tmp_path / "g", net.tensors)
    made = conversions.megatron(net, np.random.default_rng(0), 2, 1).ranks
    for name, own in made.items():
        save(tmp_path / "one" / name, own)
    assert npucmp.compare(tmp_path / "one", g).exit_status == 0
    with pytest.raises(UsageError, match="ranks of the target are missing"):
        npucmp.compare(tmp_path / "one" / "mp_rank_00", g)
    folder = tmp_path / "indexed"
    folder.mkdir()
    files.sharded(folder, net.tensors, 3)
    assert npucmp.compare(folder, g).exit_status == 0
    next(folder.glob("*2-of*")).unlink()
    report = npucmp.compare(folder, g)
    assert report.exit_status == 2 and "of the index is missing" in str(report)


def test_megatron_files_and_iterations(tmp_path, net):
    g = save(tmp_path / "g", net.tensors)
    made = conversions.megatron(net, np.random.default_rng(0), 2, 2 if net.config["num_hidden_layers"] % 2 == 0 else 1)
    for step in (10, 20):
        for name, own in made.ranks.items():
            place = tmp_path / "t" / f"iter_{step:07}" / name
            place.mkdir(parents=True)
            settings = {"num_query_groups": net.config["num_key_value_heads"], "padded": 1}
            files.torch_save(place / "model_optim_rng.pt", own, settings)
    with pytest.raises(UsageError, match="several iterations"):
        npucmp.compare(tmp_path / "t", g)
    (tmp_path / "t" / "latest_checkpointed_iteration.txt").write_text("20")
    report = npucmp.compare(tmp_path / "t", g, layout="tp=2,pp=" + str(len(made.ranks) // 2))
    assert report.exit_status == 0 and any("(by the configuration)" in line for line in report.weights.lines)
    with pytest.raises(UsageError, match="contradicts the checkpoint"):
        npucmp.compare(tmp_path / "t", g, layout="tp=4")


def test_each_part_of_a_fused_tensor_has_a_scale(tmp_path, net):
    """vLLM's float8 per tensor: qkv_proj has the scales of q, k and v."""
    made = dict(conversions.vllm(net, np.random.default_rng(0), "float32").ranks[""])
    heads, kv, size = (net.config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    for name in [name for name in made if "qkv_proj" in name or "gate_up_proj" in name]:
        x = made[name].values
        cut = [heads * size, (heads + kv) * size] if "qkv" in name else 2
        scales = np.array([np.abs(part).max() / 448 for part in np.split(x, cut)], np.float32)
        codes = [part / scale for part, scale in zip(np.split(x, cut), scales)]
        made[name] = Stored(np.concatenate(codes), "float8_e4m3fn")
        made[f"{name}_scale"] = Stored(scales)
    g = save(tmp_path / "g", net.tensors)
    assert npucmp.compare(save(tmp_path / "t", made), g).exit_status == 0
    name = "model.layers.1.self_attn.qkv_proj.weight_scale"
    made[name] = Stored(made[name].values[[0, 2, 1]] * np.float32([1, 1.5, 1]))
    report = npucmp.compare(save(tmp_path / "t", made), g)
    assert report.exit_status == 1 and first(report)[0] == "model.layers.1.self_attn.k_proj.weight"


def test_distributed_checkpoints(tmp_path, net):
    """Chunks of two ranks along the first axis."""
    folder = tmp_path / "t"
    chunks = {}
    for name, one in net.tensors.items():
        rows, *rest = one.values.shape
        zeros = [0] * len(rest)
        first, second = np.split(one.values, [rows // 2])
        chunks[name] = [((0, *zeros), one.like(first)), ((rows // 2, *zeros), one.like(second))]
    files.distributed(folder, chunks, {name: one.values.shape for name, one in net.tensors.items()})
    g = save(tmp_path / "g", net.tensors)
    assert npucmp.compare(folder, g).exit_status == 0
    (folder / "__1_0.distcp").write_bytes(b"PK")
    assert npucmp.compare(folder, g).exit_status == 2


@pytest.mark.parametrize("cut", [0, 9, 400, -30])
def test_damaged_files_are_reasons(tmp_path, net, cut):
    g = save(tmp_path / "g", net.tensors)
    t = tmp_path / "t"
    t.mkdir()
    files.torch_save(t / "model.pt", net.tensors)
    (t / "model.pt").write_bytes((t / "model.pt").read_bytes()[:cut])
    try:
        assert npucmp.compare(t, g).exit_status == 2
    except NpucmpError as error:
        assert str(error)


@pytest.mark.parametrize("config", [b"{", b"[1]", b'{"num_key_value_heads": 1' + b"0" * 17 + b"}", b'{"head_dim": -3}'])
def test_damaged_configurations_decide_nothing(tmp_path, net, config):
    (target,) = conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks.values()
    t, g = save(tmp_path / "t", target), save(tmp_path / "g", net.tensors)
    (g / "config.json").write_bytes(config)
    report = npucmp.compare(t, g)
    assert report.exit_status == 0
    assert config != b"{" or "ignored" in str(report)


def test_words_of_flow_do_not_occur(tmp_path, net):
    name = "model.layers.1.self_attn.v_proj.weight"
    wrong = {**net.tensors, name: net.tensors[name.replace("v_proj", "k_proj")]}
    t, g = save(tmp_path / "t", wrong), save(tmp_path / "g", net.tensors)
    got = run("compare", t, g, "-o", tmp_path / "r")
    assert got.returncode == 1 and "GAP" in got.stdout
    assert "holds the weights of model.layers.1.self_attn.k_proj" in got.stdout
    texts = [
        got.stdout,
        *((tmp_path / "r" / file).read_text() for file in ("roots.csv", "tensors.csv", "summary.json")),
    ]
    assert not any(word in text for text in texts for word in ("BORN", " inputs", "operator "))
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["roots"][0]["op"] == name and summary["weights"]["relations"] == []
