"""Parameters of an engine against those of a checkpoint: stacked experts of transformers 5, vLLM and Llama 4, slots
beyond the experts, scales of blocks, updates of low rank merged with another scale, norms that multiply by 1 + weight,
biases of routers in a narrow type. The same checkpoints before and after a synchronisation too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.corpus.weights import files
from tests.corpus.weights.files import Stored

Array = np.ndarray
STACKS = {  # names of a stack and whether an expert is stored as (in, out)
    "transformers": ("gate_up_proj", "down_proj", False),
    "vllm": ("w13_weight", "w2_weight", False),
    "llama4": ("gate_up_proj", "down_proj", True),
}


class Model(NamedTuple):
    """A checkpoint, its configuration, and what it holds: experts, their size, layers, the type of its tensors."""

    tensors: dict[str, Stored]
    config: dict[str, Any]
    experts: int
    dtype: str

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])


def _model(random: np.random.Generator, experts: bool = False) -> Model:
    hidden, size, layers = int(random.choice([16, 24, 32])), int(random.choice([8, 12, 20])), int(random.integers(1, 4))
    count, dtype = int(random.choice([3, 4, 6])), str(random.choice(["float32", "bfloat16"]))

    def drawn(*shape: int) -> Stored:
        values = random.standard_normal(shape) * 0.05
        return Stored(values.astype(files.NUMPY[dtype]).astype(np.float32), dtype)

    one = Stored(np.ones(()), dtype)
    found = {"model.embed_tokens.weight": drawn(48, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm = drawn(hidden)
            found[f"{prefix}{name}.weight"] = norm.like((1 + norm.values).astype(np.float32))
        found |= {f"{prefix}self_attn.{name}_proj.weight": drawn(hidden, hidden) for name in "qkvo"}
        if experts:
            found[f"{prefix}mlp.gate.weight"] = drawn(count, hidden)
            for expert in range(count):
                own = f"{prefix}mlp.experts.{expert}."
                found |= {f"{own}{name}_proj.weight": drawn(size, hidden) for name in ("gate", "up")}
                found[f"{own}down_proj.weight"] = drawn(hidden, size)
        else:
            found |= {f"{prefix}mlp.{name}_proj.weight": drawn(size, hidden) for name in ("gate", "up")}
            found[f"{prefix}mlp.down_proj.weight"] = drawn(hidden, size)
    found |= {
        "model.norm.weight": one.like(np.ones(hidden) + drawn(hidden).values),
        "lm_head.weight": drawn(48, hidden),
    }
    config = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2}
    return Model({name: one.like(_kept(one.values, one.dtype)) for name, one in found.items()}, config, count, dtype)


def _kept(values: Array, dtype: str) -> Array:
    """Values as a file holds them."""
    return np.ascontiguousarray(values).astype(files.NUMPY[dtype]).astype(np.float32)


def _write(
    random: np.random.Generator, folder: Path, tensors: dict[str, Stored], config: dict[str, Any] | None
) -> None:
    folder.mkdir(parents=True)
    simple = all(one.dtype in files.TORCH for one in tensors.values())
    form = str(random.choice(["safetensors", "sharded", *(["bin"] if simple else [])]))
    if form == "bin":
        files.torch_save(folder / "pytorch_model.bin", tensors)
    elif form == "sharded":
        files.sharded(folder, tensors, 2)
    else:
        files.safetensors(folder / "model.safetensors", tensors)
    if config is not None:
        folder.joinpath("config.json").write_text(json.dumps(config))


def _stacked(model: Model, form: str, slots: list[int], swapped: bool = False) -> dict[str, Stored]:
    """The checkpoint with its experts in stacks; `slots` are the experts that its slots hold."""
    first, second, turned = STACKS[form]
    found = {name: one for name, one in model.tensors.items() if ".experts." not in name}
    for layer in range(model.layers):
        own = f"model.layers.{layer}.mlp.experts."
        parts = [
            [model.tensors[f"{own}{at}.{name}_proj.weight"].values for at in slots] for name in ("gate", "up", "down")
        ]
        order = (1, 0) if swapped else (0, 1)
        both = np.stack([np.concatenate([parts[order[0]][at], parts[order[1]][at]]) for at in range(len(slots))])
        down = np.stack(parts[2])
        if turned:
            both, down = both.swapaxes(1, 2), down.swapaxes(1, 2)
        found[own + first], found[own + second] = Stored(both, model.dtype), Stored(down, model.dtype)
    return found


def _case(kind: str, target: str, golden: str, status: list[int], **more: Any) -> dict[str, Any]:
    return {"kind": f"weights: {kind}", "runs": [{"do": ["compare", target, golden], "exit": status, **more}]}


def _fused_experts(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model, form = _model(random, True), str(random.choice([*STACKS]))
    fault = str(random.choice(["none", "none", "swapped", "experts", "values"]))
    slots = [*range(model.experts)]
    if fault == "experts":
        slots[:2] = [1, 0]
    target = _stacked(model, form, slots, fault == "swapped")
    if fault == "values":
        name = next(name for name in target if name.endswith(STACKS[form][1]))
        values = target[name].values.copy()
        values[1] *= 3
        target[name] = target[name].like(values)
    golden = model.tensors
    if random.integers(3) == 0 and form != "vllm":  # both are stacks, of another convention
        golden = _stacked(model, "vllm", [*range(model.experts)])
    sides = [target, golden]
    if random.integers(3) == 0:
        sides.reverse()
    for side, tensors in zip(("target", "golden"), sides):
        _write(random, folder / side, tensors, model.config if random.integers(2) else None)
    if fault == "none":
        return _case("fused experts: control", "target", "golden", [0], says=["AGREES"], first="")
    return _case(f"fused experts: {fault}", "target", "golden", [1], first="experts")


def _slots(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model, form = _model(random, True), str(random.choice(["vllm", "vllm", "transformers"]))
    copies = [int(at) for at in random.integers(0, model.experts, int(random.integers(1, 4)))]
    kind = str(random.choice(["right", "right", "moved", "empty", "zero", "half", "exchanged"]))
    first = [*range(model.experts)]
    if kind == "moved":  # another plan: no expert is in its own slot
        first = first[1:] + first[:1]
    if kind == "exchanged":
        first[:2] = [1, 0]
    target = _stacked(model, form, first + copies)
    slot = model.experts + int(random.integers(len(copies)))
    layer = int(random.integers(model.layers))
    names = [f"model.layers.{layer}.mlp.experts.{name}" for name in STACKS[form][:2]]
    for name in {"empty": names, "zero": names, "half": names[1:]}.get(kind, []):
        values = target[name].values.copy()
        values[slot] = 0.0 if kind == "zero" else random.standard_normal(values[slot].shape) * 0.05
        target[name] = target[name].like(values)
    _write(random, folder / "target", target, None)
    _write(random, folder / "golden", model.tensors, model.config)
    if kind in ("right", "moved"):
        return _case("slots of experts: control", "target", "golden", [0], says=["AGREES"], first="")
    if kind == "exchanged":
        return _case("slots of experts: exchanged", "target", "golden", [1], first=r"experts\.[01]\.")
    says = [rf"slot {slot}\b"]
    return _case(f"slots of experts: {kind}", "target", "golden", [1], first="experts", says=says)


def _router_bias(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model = _model(random, True)
    golden = dict(model.tensors)
    kind = str(random.choice(["narrowed", "narrowed", "centred", "same", "all narrowed"]))
    spread = float(random.uniform(0.05, 0.3))
    offset = 0.0 if kind == "centred" else float(random.uniform(25, 60)) * spread
    name = str(
        random.choice(["mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias", "mlp.router.expert_bias"])
    )
    for layer in range(model.layers):
        values = offset + spread * (random.random(32) - 0.5)
        golden[f"model.layers.{layer}.{name}"] = Stored(values.astype(np.float32))
    target = dict(golden)
    for layer in range(model.layers):
        own = f"model.layers.{layer}.{name}"
        if kind != "same":
            target[own] = Stored(_kept(target[own].values, "bfloat16"), "bfloat16")
    if kind == "all narrowed":
        target = {own: Stored(one.values, "bfloat16") for own, one in target.items()}
    _write(random, folder / "target", target, model.config)
    _write(random, folder / "golden", golden, model.config)
    if kind in ("centred", "same"):
        says = (
            ["e_score_correction_bias|expert_bias", "bfloat16"]
            if kind == "centred" and model.dtype == "float32"
            else []
        )
        return _case("spread of a bias: control", "target", "golden", [0], first="", says=says)
    says = [name.rpartition(".")[2], "bfloat16", "spread"]
    return _case(f"spread of a bias: {kind}", "target", "golden", [1], first="bias", says=says)


def _norms(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model = _model(random)
    kind = str(random.choice(["plus", "minus", "others", "same"]))
    summand = {"plus": 1.0, "minus": -1.0}.get(kind, 0.0)
    dtype = str(random.choice([model.dtype, "float32", "bfloat16"]))
    golden = {name: one.like(_kept(one.values - 1, one.dtype)) if "norm" in name and kind == "plus" else one
              for name, one in model.tensors.items()}  # fmt: skip
    target = {}
    for name, one in golden.items():
        values = one.values + summand if "norm" in name else one.values
        if kind == "others" and "norm" in name:
            values = 1 + random.standard_normal(values.shape) * 0.05
        own = dtype if "norm" in name else one.dtype
        target[name] = Stored(_kept(values, own), own)
    _write(random, folder / "target", target, model.config)
    _write(random, folder / "golden", golden, model.config)
    if kind == "same":
        return _case("a constant: control", "target", "golden", [0], first="")
    if kind == "others":
        return _case("a constant: others: control", "target", "golden", [1], first="norm", never=["the golden plus"])
    return _case("a constant", "target", "golden", [1], first="norm", says=[f"the golden plus {summand:g}\\b"])


def _lora(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model, rank = _model(random), int(random.choice([4, 8, 16]))
    alpha, is_rooted = int(random.choice([8, 16, 32])), bool(random.integers(2))
    right = alpha / np.sqrt(rank) if is_rooted else alpha / rank
    kind = str(random.choice(["other root", "without alpha", "right", "right"]))
    scale = {"other root": alpha / rank if is_rooted else alpha / np.sqrt(rank), "without alpha": 1.0}.get(kind, right)
    if abs(scale - right) < 0.01:
        kind, scale = "right", right
    merged, adapter = dict(model.tensors), {}
    for name, one in model.tensors.items():
        if "q_proj" in name or "v_proj" in name:
            hidden = one.values.shape[1]
            a, b = random.standard_normal((rank, hidden)) * 0.05, random.standard_normal((hidden, rank)) * 0.05
            a, b = _kept(a, "float32"), _kept(b, "float32")
            own = f"base_model.model.{name[: -len('.weight')]}"
            adapter |= {f"{own}.lora_A.weight": Stored(a), f"{own}.lora_B.weight": Stored(b)}
            merged[name] = one.like(
                _kept(one.values.astype(np.float64) + scale * (b.astype(np.float64) @ a), one.dtype)
            )
    _write(random, folder / "merged", merged, None)
    (folder / "apart" / "base").mkdir(parents=True)
    files.sharded(folder / "apart" / "base", model.tensors, int(random.integers(1, 3)))
    (folder / "apart" / "adapter").mkdir()
    files.safetensors(folder / "apart" / "adapter" / "adapter_model.safetensors", adapter)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": is_rooted}
    folder.joinpath("apart", "adapter", "adapter_config.json").write_text(json.dumps(stated))
    is_golden = bool(random.integers(3))
    sides = ("merged", "apart") if is_golden else ("apart", "merged")
    if kind == "right":
        return _case("update of low rank: control", *sides, [0], first="")
    says = [rf"scale {f'{(scale if is_golden else right):.4g}'[:4]}"]
    return _case(f"update of low rank: {kind}", *sides, [1], first="[qv]_proj", says=says)


def _scales(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    block, counts = int(random.choice([16, 32])), random.integers(2, 4, 2)
    rows, columns = (int(count) * block for count in counts)
    power = bool(random.integers(2))
    kind = str(random.choice(["exponent", "exchanged", "reciprocal", "one", "right", "right", "permuted"]))
    is_plain = bool(random.integers(2)) and kind != "reciprocal"
    power = power or kind == "exponent"
    grid = (
        2.0 ** random.integers(-13, -7, tuple(counts))
        if power
        else 0.003 * np.exp(random.standard_normal(tuple(counts)))
    )
    grid.flat[0] = 2.0**-9 if power else 0.011
    grid.flat[-1] = 2.0**-12 if power else 0.001
    codes = _kept(random.standard_normal((rows, columns)) * 40, "float8_e4m3fn")
    other = grid.copy()
    if kind == "exponent":
        other = np.log2(grid) + 127
    elif kind == "exchanged":
        other.flat[0], other.flat[-1] = grid.flat[-1], grid.flat[0]
    elif kind == "reciprocal":
        other = 1.0 / grid
    elif kind == "one":
        other.flat[0] = 3 * grid.flat[0]
    written = codes if kind != "permuted" else codes[::-1]
    name = str(random.choice(["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"]))
    own = f"model.layers.0.{name}.weight"
    rest = {"model.layers.0.input_layernorm.weight": Stored(np.ones(rows), "bfloat16"),
            "model.embed_tokens.weight": Stored(np.ones((8, rows)), "bfloat16")}  # fmt: skip
    target = {own: Stored(written, "float8_e4m3fn"), f"{own}_scale_inv": Stored(other), **rest}
    golden = {own: Stored(codes, "float8_e4m3fn"), f"{own}_scale_inv": Stored(grid), **rest}
    if is_plain:
        wide = np.repeat(np.repeat(grid, block, 0), block, 1)
        golden = {own: Stored(codes * wide.astype(np.float32), "bfloat16"), **rest}
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [block, block]}}
    _write(random, folder / "target", target, config)
    _write(random, folder / "golden", golden, config)
    if kind == "right":
        return _case("scales of blocks: control", "target", "golden", [0], first="")
    never = ["cannot be read", *(["the same numbers in another order"] if kind != "permuted" else [])]
    says = {"exponent": ["exponent bytes"], "exchanged": ["its scales"], "reciprocal": ["reciprocal"], "one": ["scale"]}
    return _case(f"scales of blocks: {kind}", "target", "golden", [1], first=name, never=never, says=says.get(kind, []))


def _again(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model = _model(random, True)
    before = _stacked(model, "vllm", [*range(model.experts)])
    kind = str(random.choice(["rows", "same", "factor", "bfloat16", "values", "zero"]))
    name = str(random.choice([name for name in before if before[name].values.ndim > 1]))
    one = before[name]
    values = one.values.copy()
    if kind == "rows":
        values = np.ascontiguousarray(np.flip(values, values.ndim - 2))
    elif kind == "factor":
        values = values * 2
    elif kind == "bfloat16":
        values = _kept(values, "bfloat16")
    elif kind == "values":
        values.reshape(-1)[: values.size // 2] += 0.01
    elif kind == "zero":
        values.reshape(-1, values.shape[-1])[2:4] = 0
    values = _kept(values, one.dtype)
    kind = "same" if np.array_equal(values, one.values) else kind
    after = {**before, name: one.like(values)}
    for side, tensors in (("before", before), ("after", after)):
        (folder / side).mkdir()
        files.safetensors(folder / side / "model.safetensors", tensors)
    run: dict[str, Any] = {"do": ["rerun-diff", "before", "after"], "exit": [0] if kind == "same" else [1]}
    says = {"rows": ["order|moved"], "factor": [r"\b2 times"], "bfloat16": ["rounded to bfloat16"]}
    run["says"] = says.get(kind, []) + ([name.replace(".", r"\.")] if kind != "same" else [])
    run["never"] = ["tile", "atomic", "another core", "accumulated", "memory"]
    return {"kind": f"weights: before and after: {kind}" + (": control" if kind == "same" else ""), "runs": [run]}


KINDS = (_fused_experts, _slots, _router_bias, _norms, _lora, _scales, _again)


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    return KINDS[int(random.integers(len(KINDS)))](random, folder)
