"""Checkpoints of unequal conventions: clean pairs agree in all elements, faults are named, nothing else is accepted."""

import json

import numpy as np
import pytest

import npucmp
from npucmp.align.weights.network_settings import NetworkSettings
from npucmp.errors import NpucmpError, UsageError
from tests.command import npucmp as run
from tests.corpus.weights import conversions, files
from tests.corpus.weights.files import Stored
from tests.corpus.weights.networks import Network, llama
from tests.corpus.weights.score import cases, outcome

SEED = 21
CHOSEN = {(one.conversion, one.fault != ""): one for one in cases(SEED) if not one.missing}


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


@pytest.mark.few(10)
@pytest.mark.parametrize("case", CHOSEN.values(), ids=[f"{name}-{fault}" for name, fault in CHOSEN])
def test_generated_pairs(case):
    found = outcome(case)
    assert found.is_right, found


def test_one_element_beyond_the_rounding_of_bfloat16(tmp_path, net):
    """The expectation is plain numpy: an element may differ by 2^-8 of the golden."""
    name = "model.layers.0.mlp.up_proj.weight"
    golden = {one: conversions.cast(net.tensors[one], "bfloat16") for one in (name, "model.norm.weight")}
    for share, status in ((0.9, 0), (1.1, 1)):
        x = golden[name].values.astype(np.float64)
        y = x.copy()
        y[3, 5] *= 1 + share * 2.0**-8
        assert bool((np.abs(y - x) <= 2.0**-8 * np.abs(x)).all()) is (status == 0)
        target = {**golden, name: Stored(y, "float64")}
        report = npucmp.compare(save(tmp_path / f"t{status}", target), save(tmp_path / f"g{status}", golden))
        assert report.exit_status == status
    assert first(report)[0] == name and "one element differs, in row 3" in first(report)[1]


def one_head():
    """A network with one head of keys and values, and what Megatron holds of it."""
    made = llama(np.random.default_rng(5), "float32")
    size = made.config["head_dim"]
    tensors = {
        name: one.like(one.values[:size]) if "k_proj" in name or "v_proj" in name else one
        for name, one in made.tensors.items()
    }
    net = Network("llama", {**made.config, "num_key_value_heads": 1}, tensors, "float32")
    return net, conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks["mp_rank_00"]


def test_one_key_head_has_to_be_declared(tmp_path):
    net, target = one_head()
    t, g = save(tmp_path / "t", target), save(tmp_path / "g", net.tensors)
    assert npucmp.compare(t, g).exit_status != 0
    assert npucmp.compare(t, g, kv_heads=1).exit_status == 0
    save(tmp_path / "g", net.tensors, net.config)
    report = npucmp.compare(t, g)
    assert report.exit_status == 0
    assert any("query group of 1 (by the configuration)" in line for line in report.weights.lines)


def test_the_order_of_gate_and_up_is_declared(tmp_path, net):
    made = dict(conversions.vllm(net, np.random.default_rng(0), "float32").ranks[""])
    for name in [name for name in made if "gate_up_proj" in name]:
        made[name] = made[name].like(np.concatenate(np.split(made[name].values, 2)[::-1]))
    t, g = save(tmp_path / "t", made), save(tmp_path / "g", net.tensors)
    report = npucmp.compare(t, g)
    assert report.exit_status == 1 and "layers: gate" in first(report)[1] and "up_proj" in first(report)[1]
    assert npucmp.compare(t, g, fc1="up,gate").exit_status == 0


def test_the_order_of_rotary_embedding_is_declared(tmp_path, net):
    size, turned = net.config["head_dim"], dict(net.tensors)
    for name, one in net.tensors.items():
        if "q_proj" in name or "k_proj" in name:
            halves = one.values.reshape(-1, 2, size // 2, one.values.shape[1])
            turned[name] = one.like(halves.swapaxes(1, 2).reshape(one.values.shape))
    t, g = save(tmp_path / "t", turned), save(tmp_path / "g", net.tensors)
    assert npucmp.compare(t, g).exit_status == 1
    assert npucmp.compare(t, g, layout="target=meta").exit_status == 0


def test_a_configuration_shows_a_wrong_scale_of_lora(tmp_path, net):
    rng = np.random.default_rng(9)
    golden, target = {}, {}
    for name, one in net.tensors.items():
        target[name] = one
        golden[name] = one
        if "q_proj" in name:
            a, b = rng.standard_normal((4, one.values.shape[1])) / 10, rng.standard_normal((len(one.values), 4)) / 10
            base = name.removesuffix(".weight")
            golden[f"{base}.lora_A.weight"], golden[f"{base}.lora_B.weight"] = one.like(a), one.like(b)
            target[name] = one.like((one.values + 3.0 * (b @ a)).astype(np.float32))
    t, g = save(tmp_path / "t", target), save(tmp_path / "g", golden)
    report = npucmp.compare(t, g)
    assert report.exit_status == 0 and any("LoRA merged with the scale 3" in line for line in report.weights.lines)
    (g / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    report = npucmp.compare(t, g)
    assert report.exit_status == 1 and "q_proj" in first(report)[0]
    assert npucmp.compare(t, g, lora_scale=3).exit_status == 0


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


def test_an_interleaved_pipeline(tmp_path):
    """Two stages of two chunks: layers 0 and 2 on the first rank, 1 and 3 on the second, each numbered from 0."""
    net = next(
        one
        for seed in range(50)
        if (one := llama(np.random.default_rng(seed), "float32")).config["num_hidden_layers"] == 4
    )
    (whole,) = conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks.values()

    def layer(number):
        own = f"decoder.layers.{number}."
        return {name.replace(own, "decoder.layers.0."): one for name, one in whole.items() if own in name}

    first = {name: one for name, one in whole.items() if "word_embeddings" in name}
    last = {name: one for name, one in whole.items() if "final" in name or "output" in name}
    chunks = [[{**first, **layer(0)}, layer(2)], [layer(1), {**layer(3), **last}]]
    for rank, own in enumerate(chunks):
        place = tmp_path / "t" / f"mp_rank_00_{rank:03}"
        place.mkdir(parents=True)
        files.torch_nested(place / "model_optim_rng.pt", {f"model{at}": one for at, one in enumerate(own)})
    assert npucmp.compare(tmp_path / "t", save(tmp_path / "g", net.tensors)).exit_status == 0


def test_codes_and_updates_of_the_golden(tmp_path, net):
    """The sides exchanged: the golden has int8 codes, or LoRA apart from the target's merged weights."""
    for name in ("quantised", "lora"):
        made = conversions.CONVERSIONS[name][0](net, np.random.default_rng(1))
        t, g = save(tmp_path / name / "t", made.golden), save(tmp_path / name / "g", made.ranks[""])
        assert npucmp.compare(t, g).exit_status == 0


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


EXPERTS, INNER, WIDTH = 4, 6, 8


def experts():
    """One layer of four experts, as transformers names them: float32, codes of int8 times a scale for each row."""
    rng = np.random.default_rng(8)
    golden = {"model.embed_tokens.weight": Stored(rng.standard_normal((12, WIDTH)).astype(np.float32))}
    golden["model.layers.0.mlp.gate.weight"] = Stored(rng.standard_normal((EXPERTS, WIDTH)).astype(np.float32))
    codes, scales = {}, {}
    for number in range(EXPERTS):
        for kind, shape in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
            codes[kind, number] = rng.integers(-127, 128, shape).astype(np.float32)
            scales[kind, number] = (2.0 ** -rng.integers(2, 9, (shape[0], 1))).astype(np.float32)
            values = codes[kind, number] * scales[kind, number]
            golden[f"model.layers.0.mlp.experts.{number}.{kind}_proj.weight"] = Stored(values)
    return golden, codes, scales


def stacked(values, numbers):
    """The stacks of vLLM of these experts."""
    both = [np.concatenate([values["gate", one], values["up", one]]) for one in numbers]
    return {"w13": np.stack(both), "w2": np.stack([values["down", one] for one in numbers])}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_hold_other_experts(tmp_path, ranks):
    golden, codes, scales = experts()
    values = {key: one * scales[key] for key, one in codes.items()}
    common = {name: one for name, one in golden.items() if "experts" not in name}
    for rank, numbers in enumerate(np.split(np.arange(EXPERTS), ranks)):
        held = stacked(values, numbers)
        own = {f"model.layers.0.mlp.experts.{name}_weight": Stored(one) for name, one in held.items()}
        save(tmp_path / "t" / f"rank{rank}", {**common, **own})
    g = save(tmp_path / "g", golden)
    assert npucmp.compare(tmp_path / "t", g).exit_status == 0
    name = "model.layers.0.mlp.experts.2.down_proj.weight"
    report = npucmp.compare(tmp_path / "t", save(tmp_path / "g", {**golden, name: Stored(golden[name].values * 2)}))
    assert report.exit_status == 1 and [root.pair.golden_op.name for root in report.roots] == [name]


@pytest.mark.parametrize(
    "shape, status",
    [
        ((EXPERTS, -1, 1), 0),
        ((EXPERTS, -1), 0),
        ((2 * EXPERTS, -1, 1), 2),  # of more experts
        ((EXPERTS // 2, -1, 1), 2),
        ((1, -1), 2),
        ((), 2),
    ],
)
def test_codes_of_stacked_experts_have_a_scale_for_each(tmp_path, shape, status):
    golden, codes, scales = experts()
    target = {name: one for name, one in golden.items() if "experts" not in name}
    for (name, own), scale in zip(stacked(codes, range(EXPERTS)).items(), stacked(scales, range(EXPERTS)).values()):
        target[f"model.layers.0.mlp.experts.{name}_weight"] = Stored(own, "int8")
        if name == "w2":  # those of the other stack fit
            scale = scale.reshape(shape) if shape else scale[0, 0, 0]
        target[f"model.layers.0.mlp.experts.{name}_weight_scale"] = Stored(scale)
    report = npucmp.compare(save(tmp_path / "t", target), save(tmp_path / "g", golden))
    assert report.exit_status == status
    problems = {one.pair.golden_op.name: one.pair.target.problem for one in report.findings if one.pair.target.problem}
    names = [f"model.layers.0.mlp.experts.{number}.down_proj.weight" for number in range(EXPERTS)]
    because = f"a scale of shape {[*scale.shape]} of stacked experts"
    assert problems == (dict.fromkeys(names, because) if status == 2 else {})
    shown = run("compare", tmp_path / "t", tmp_path / "g").stdout
    assert (because in shown) is (status == 2)
    elements = {name: one.values.size for name, one in golden.items()}
    share = 1 - sum(elements[name] for name in problems) / sum(elements.values())
    assert f" {100 * share:.3g} % of elements compared" in shown or not problems


@pytest.mark.parametrize(
    "config, stated",
    [
        ({"quantization_config": {"weight_block_size": [16, 1]}}, {"block": (16, 1)}),
        ({"quantization_config": {"weight_block_size": [0, 16]}}, {}),
        ({"quantization_config": {"weight_block_size": [16, -1]}}, {}),
        ({"quantization_config": {"weight_block_size": [16, True]}}, {}),
        ({"quantization_config": {"weight_block_size": [16]}}, {}),
        ({"quantization_config": {"weight_block_size": [16, 16, 16]}}, {}),
        ({"quantization_config": {"weight_block_size": 16}}, {}),
        ({"quantization_config": [16, 16]}, {}),
        ({"r": 4, "lora_alpha": 8}, {"lora_scale": 2.0}),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, {"lora_scale": 4.0}),
        ({"r": 4, "lora_alpha": 8, "use_rslora": 1}, {"lora_scale": 2.0}),
        ({"r": 1, "lora_alpha": 0.5}, {"lora_scale": 0.5}),
        ({"r": 0, "lora_alpha": 8}, {}),
        ({"r": 1 << 31, "lora_alpha": 8}, {}),
        ({"r": 4.0, "lora_alpha": 8}, {}),
        ({"r": 4, "lora_alpha": 1 << 31}, {}),
        ({"r": 4, "lora_alpha": float("nan")}, {}),
        ({"r": 4, "lora_alpha": "8"}, {}),
        ({"n_head": 4, "hidden_size": 32}, {"heads": 4, "head_size": 8}),
        ({"n_head": 5, "hidden_size": 32}, {"heads": 5}),
        ({"n_head": 4, "hidden_size": 32, "head_dim": 16}, {"heads": 4, "head_size": 16}),
        ({"n_head": 0, "n_heads": 1, "n_embd": 1}, {"heads": 1, "head_size": 1}),
        ({"n_head": 1 << 31}, {}),
        ({"n_head": 4, "num_query_groups": 2, "group_query_attention": False}, {"heads": 4, "kv_heads": 4}),
        ({"n_head": 4, "num_query_groups": 2, "group_query_attention": True}, {"heads": 4, "kv_heads": 2}),
        ({"tie_word_embeddings": False, "untie_embeddings_and_output_weights": False}, {"tied": False}),
        ({"untie_embeddings_and_output_weights": True}, {"tied": False}),
        ({"untie_embeddings_and_output_weights": 1, "vocab_size": 9}, {"vocabulary": 9}),
        ({"tie_word_embeddings": "yes"}, {}),
    ],
)
def test_the_settings_that_a_configuration_states(config, stated):
    assert NetworkSettings.of(config) == NetworkSettings(**stated)
    other = NetworkSettings(1, 2, 3, True, 4, 5.0, (6, 7))
    assert NetworkSettings.of(config).over(other) == other._replace(**stated)


def test_padding_of_the_golden_is_open(tmp_path, net):
    (golden,) = conversions.megatron(net, np.random.default_rng(0), 1, 1).ranks.values()
    t, g = save(tmp_path / "t", net.tensors), save(tmp_path / "g", golden)
    report = npucmp.compare(t, g)
    assert report.exit_status == (2 if net.config["vocab_size"] % 8 else 0)
    save(tmp_path / "g", golden, {"vocab_size": net.config["vocab_size"]})
    assert npucmp.compare(t, g).exit_status == 0


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


def test_nothing_in_a_pickle_is_executed(tmp_path, net):
    """The arguments of a checkpoint name os.system, which is a word, not a call."""
    g, place = save(tmp_path / "g", net.tensors), tmp_path / "t" / "model.pt"
    place.parent.mkdir()
    mark = tmp_path / "executed"
    files.torch_save(place, net.tensors, {"padded": 1}, b"cos\nsystem\n(" + files.pickled_text(f"touch {mark}") + b"tR")
    assert npucmp.compare(place.parent, g).exit_status == 0
    assert not mark.exists()


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


def test_before_and_after_a_synchronisation(tmp_path, net):
    made = conversions.megatron(net, np.random.default_rng(0), 2, 1).ranks
    other = {rank: dict(own) for rank, own in made.items()}
    name = next(name for name in other["mp_rank_01"] if "linear_fc2" in name)
    x = other["mp_rank_01"][name].values.copy()
    x[4:6] = 0
    other["mp_rank_01"][name] = other["mp_rank_01"][name].like(x)
    for stage, ranks in (("before", made), ("after", other)):
        for rank, own in ranks.items():
            save(tmp_path / stage / rank, own)
    assert npucmp.rerun_diff([tmp_path / "before", tmp_path / "before"]).exit_status == 0
    report = npucmp.rerun_diff([tmp_path / "before", tmp_path / "after"])
    (found,) = report.reruns
    assert (report.exit_status, found.pair.operator.name, found.rank, found.cause.value) == (1, name, 1, "GAP")
    assert npucmp.compare(tmp_path / "after", tmp_path / "before").exit_status == 1


def test_plan_weights(tmp_path):
    found = npucmp.plan("weights", "vllm", tmp_path / "sync")
    compile(found.files["save_weights.py"], "save_weights.py", "exec")
    assert "before" in found.then[0] and found.then[0].startswith("npucmp rerun-diff")
    with pytest.raises(UsageError, match="no plan for weights"):
        npucmp.plan("weights", "acl", tmp_path / "sync")
