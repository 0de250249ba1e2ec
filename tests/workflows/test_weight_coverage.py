"""Checkpoints whose tensors differ, or cannot all be compared, never agree: replicas, chunks, indexes, second names."""

import numpy as np
import pytest

import npucmp
from npucmp.errors import NpucmpError, UsageError
from npucmp.model import Verdict
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


@pytest.mark.few(2)
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


# torch.distributed.checkpoint


def in_chunks(net, **others):
    """Each tensor of at least two rows in two chunks; a matrix in four."""
    found = {}
    for name, one in net.tensors.items():
        cuts = [len(one.values) // 2]
        found[name] = [((0,), one.like(one.values[: cuts[0]])), ((cuts[0],), one.like(one.values[cuts[0] :]))]
        if one.values.ndim == 2:
            column = one.values.shape[1] // 3
            found[name] = [
                ((*row, at), part.like(part.values[:, at : at + size]))
                for row, part in found[name]
                for at, size in ((0, column), (column, one.values.shape[1] - column))
            ]
    return {**found, **others}


def sizes_of(net):
    return {name: one.values.shape for name, one in net.tensors.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("lacking", [0, 1, 2, 3, "all", None])
def test_a_lacking_chunk_is_a_row_with_its_reason(tmp_path, net, lacking):
    chunks, name = in_chunks(net), "model.layers.1.mlp.down_proj.weight"
    if lacking == "all":
        del chunks[name]
    elif lacking is not None:
        chunks[name].pop(lacking)
    files.distributed(tmp_path / "t", chunks, sizes_of(net))
    files.distributed(tmp_path / "same", chunks, sizes_of(net))
    g = save(tmp_path / "g", net.tensors)
    assert npucmp.compare(tmp_path / "t", g).exit_status == (0 if lacking is None else 2)
    report = npucmp.compare(tmp_path / "t", tmp_path / "same")
    assert report.exit_status == (0 if lacking is None else 2)
    assert lacking is None or ("chunk" in str(report) and name in str(report))


def test_a_tensor_of_another_size_than_its_table_states_is_open(tmp_path, net):
    chunks, sizes = in_chunks(net), sizes_of(net)
    name = "model.layers.0.mlp.up_proj.weight"
    sizes[name] = (sizes[name][0] + 1, sizes[name][1])
    del sizes["model.norm.weight"]
    files.distributed(tmp_path / "t", chunks, sizes)
    report = npucmp.compare(tmp_path / "t", tmp_path / "t")
    assert report.exit_status == 2
    left = [one.pair.operator.name for one in report.findings if one.verdict is not Verdict.MATCH]
    assert sorted(left) == [name, "model.norm.weight"]


def test_two_keys_of_one_name_are_refused(tmp_path, net):
    name = "model.norm.weight"
    second = {f"state_dict.{name}": [((0,), net.tensors[name])]}
    sizes = {**sizes_of(net), f"state_dict.{name}": net.tensors[name].values.shape}
    files.distributed(tmp_path / "t", in_chunks(net, **second), sizes)
    with pytest.raises(UsageError, match="a second tensor"):
        npucmp.compare(tmp_path / "t", save(tmp_path / "g", net.tensors))


def test_optimizer_states_of_an_application_are_not_read(tmp_path, net):
    wrapped = {f"app.model.{name}": one for name, one in in_chunks(net).items()}
    wrapped["app.optim.state.model.norm.weight.exp_avg"] = [((0,), Stored(np.ones(3)))]
    sizes = {f"app.model.{name}": size for name, size in sizes_of(net).items()}
    files.distributed(tmp_path / "t", wrapped, sizes)
    report = npucmp.compare(save(tmp_path / "g", net.tensors), tmp_path / "t")
    assert report.exit_status == 0


def stacked_experts(layers=2, experts=4, width=6, hidden=8):
    rng = np.random.default_rng(8)
    found = {}
    for layer in range(layers):
        p = f"model.layers.{layer}.mlp."
        found[f"{p}gate.weight"] = Stored(rng.standard_normal((experts, hidden)).astype(np.float32))
        for expert in range(experts):
            for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                found[f"{p}experts.{expert}.{name}_proj.weight"] = Stored(rng.standard_normal(shape).astype(np.float32))
    stacks = {name: one for name, one in found.items() if ".experts." not in name}
    for layer in range(layers):
        p = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([found[f"{p}{at}.{name}_proj.weight"].values for at in range(experts)])
            for name in ("gate", "up", "down")
        )
        stacks[f"{p}w13_weight"], stacks[f"{p}w2_weight"] = Stored(np.concatenate([gate, up], 1)), Stored(down)
    return found, stacks


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stacked_experts_in_chunks(tmp_path, axis):
    apart, stacks = stacked_experts()
    chunks = {}
    for name, one in stacks.items():
        own = min(axis, one.values.ndim - 1)
        first, second = np.split(one.values, [one.values.shape[own] // 2], own)
        start = [first.shape[own] if at == own else 0 for at in range(one.values.ndim)]
        chunks[name] = [([0] * one.values.ndim, one.like(first)), (start, one.like(second))]
    files.distributed(tmp_path / "t", chunks, {name: one.values.shape for name, one in stacks.items()})
    assert npucmp.compare(tmp_path / "t", save(tmp_path / "g", apart)).exit_status == 0
    wrong, name = changed(apart, "experts.2.up_proj")
    report = npucmp.compare(tmp_path / "t", save(tmp_path / "g", wrong))
    assert report.exit_status == 1 and report.roots[0].pair.operator.name == name


@pytest.mark.parametrize("shape", [(10**9, 0, 0), (10**9, 0, 8), (), (4,)])
def test_impossible_stacks_are_rows_with_their_reason(tmp_path, shape):
    apart, stacks = stacked_experts()
    stacks["model.layers.0.mlp.experts.w13_weight"] = Stored(np.broadcast_to(np.float32(0), shape))
    report = npucmp.compare(save(tmp_path / "t", stacks), save(tmp_path / "g", apart))
    assert report.exit_status == 2
    chunks = {"decoder.layers.mlp.w": [((0,) * len(shape), Stored(np.broadcast_to(np.float32(0), shape)))]}
    files.distributed(tmp_path / "d", chunks, {"decoder.layers.mlp.w": shape})
    with pytest.raises(NpucmpError):
        npucmp.compare(tmp_path / "d", tmp_path / "g")


# files and folders


def test_a_checkpoint_of_too_many_files_is_refused_and_iterations_are_chosen_first(tmp_path, net, monkeypatch):
    ranks = conversions.megatron(net, np.random.default_rng(0), 2, 1).ranks
    for step in (10, 20):
        for name, own in ranks.items():
            save(tmp_path / "t" / f"iter_{step:07}" / name, changed(own, "output_layer")[0] if step == 10 else own)
    (tmp_path / "t" / "latest_checkpointed_iteration.txt").write_text("20")
    g = save(tmp_path / "g", net.tensors)
    monkeypatch.setattr("npucmp.dump.readers.checkpoint_files._MOST", 2)
    assert npucmp.compare(tmp_path / "t", g).exit_status == 0
    monkeypatch.setattr("npucmp.dump.readers.checkpoint_files._MOST", 1)
    with pytest.raises(NpucmpError, match="2 files"):
        npucmp.compare(tmp_path / "t", g)


def test_an_index_without_its_files_is_refused(tmp_path, net):
    """Files beside an index are not read; without the others, no tensor is left that may agree."""
    (tmp_path / "t").mkdir()
    files.sharded(tmp_path / "t", net.tensors, 2)
    for shard in (tmp_path / "t").glob("model-*.safetensors"):
        shard.unlink()
    files.safetensors(tmp_path / "t" / "consolidated.safetensors", net.tensors)
    g = save(tmp_path / "g", net.tensors)
    for pair in ((tmp_path / "t", g), (g, tmp_path / "t")):
        with pytest.raises(NpucmpError, match="no file that its index names"):
            npucmp.compare(*pair)


def test_what_is_not_read_is_a_note(tmp_path, net):
    t, g = tmp_path / "t", save(tmp_path / "g", net.tensors)
    t.mkdir()
    files.torch_nested(t / "model.pt", {"model": net.tensors, "ema": net.tensors, "optimizer": net.tensors})
    report = npucmp.compare(t, g)
    assert report.exit_status == 0 and "not read beside 'model': ema" in str(report)
    files.npz(t / "other.npz", net.tensors)
    report = npucmp.compare(t, g)
    assert report.exit_status == 0 and "files of other formats are not read: model.pt" in str(report)


# names


def test_the_order_of_gate_and_up_if_both_sides_fuse_them(tmp_path, net):
    golden = conversions.vllm(net, np.random.default_rng(0), "float32").ranks[""]
    swapped = {
        name: one.like(np.concatenate(np.split(one.values, 2)[::-1])) if "gate_up" in name else one
        for name, one in golden.items()
    }
    t, g = save(tmp_path / "t", swapped), save(tmp_path / "g", golden)
    assert npucmp.compare(t, g).exit_status == 1
    assert npucmp.compare(t, g, fc1="up,gate").exit_status == 0
    assert npucmp.compare(t, g, fc1="gate,up").exit_status == 1
    assert npucmp.compare(g, g, fc1="up,gate").exit_status == 1
    _, stacks = stacked_experts()
    turned = {
        name: one.like(np.concatenate(np.split(one.values, 2, 1)[::-1], 1)) if "w13" in name else one
        for name, one in stacks.items()
    }
    t, g = save(tmp_path / "ts", turned), save(tmp_path / "gs", stacks)
    assert npucmp.compare(t, g, fc1="up,gate").exit_status == 0


@pytest.mark.parametrize("option", [{"kv_heads": 2}, {"lora_scale": 2.0}, {"fc1": "up,gate"}])
def test_options_of_checkpoints_are_refused_for_other_dumps(option):
    sample = "sample_dumps/msprobe_clean"
    with pytest.raises(UsageError, match="checkpoint"):
        npucmp.compare(f"{sample}/target", f"{sample}/golden", **option)


def test_a_folder_of_several_distributed_checkpoints(tmp_path, net):
    """The state of an optimizer in a folder of its own is not read; two folders of parameters are refused."""
    g = save(tmp_path / "g", net.tensors)
    for folder in ("model_0", "optimizer_0"):
        files.distributed(tmp_path / "t" / folder, in_chunks(net), sizes_of(net))
    assert npucmp.compare(tmp_path / "t", g).exit_status == 0
    files.distributed(tmp_path / "t" / "model_1", in_chunks(net), sizes_of(net))
    with pytest.raises(UsageError, match="several checkpoints"):
        npucmp.compare(tmp_path / "t", g)
