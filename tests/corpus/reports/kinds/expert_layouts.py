"""Experts of a checkpoint in other places: in another order with the router or without it, placed by a recorded map of
an engine, with the rows of gate and up in turn; a base of torch.save with an adapter of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds.engine_weights import STACKS, Model, _case, _kept, _model, _stacked, _write
from tests.corpus.weights import files
from tests.corpus.weights.files import Stored

FORMS = ("single", *STACKS)


def _with_bias(random: np.random.Generator, model: Model) -> Model:
    """A model whose routers may have a bias of each expert."""
    if random.integers(2):
        return model
    more = {}
    for layer in range(model.layers):
        values = (random.standard_normal(model.experts) * 0.1).astype("f4")
        more[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = Stored(values)
    return model._replace(tensors={**model.tensors, **more})


def _form(model: Model, form: str, slots: list[int]) -> dict[str, Stored]:
    if form != "single":
        return _stacked(model, form, slots)
    found = {name: one for name, one in model.tensors.items() if ".experts." not in name}
    for layer in range(model.layers):
        own = f"model.layers.{layer}.mlp.experts."
        for slot, expert in enumerate(slots):
            found |= {f"{own}{slot}.{name}_proj.weight": model.tensors[f"{own}{expert}.{name}_proj.weight"]
                      for name in ("gate", "up", "down")}  # fmt: skip
    return found


def _orders(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Experts in another order, and the router with them or not."""
    model = _with_bias(random, _model(random, True))
    kind = str(random.choice(["with router", "with router", "alone", "alone", "wrong one", "router alone", "groups"]))
    order = [*range(model.experts)]
    while order == [*range(model.experts)]:
        order = [int(at) for at in random.permutation(model.experts)]
    if kind != "groups" and random.integers(2):  # two of them
        order = [*range(model.experts)]
        order[0], order[-1] = order[-1], order[0]
    if kind == "groups" and model.experts != 4:
        kind = "alone"
    if kind == "groups":
        order = [0, 2, 1, 3]
    form = str(random.choice(FORMS))
    target = _form(model, form, order if kind != "router alone" else [*range(model.experts)])
    if kind in ("with router", "wrong one", "router alone", "groups"):
        for name, one in target.items():
            if ".gate." in name and one.values.shape[:1] == (model.experts,) and "experts" not in name:
                target[name] = one.like(one.values[order])
    layer = int(random.integers(model.layers))
    if kind == "wrong one":
        name = next(
            name for name in target if f"layers.{layer}.mlp.experts" in name and ("down" in name or "w2" in name)
        )
        values = target[name].values.copy()
        (values if form == "single" else values[0])[0] += 0.5
        target[name] = target[name].like(_kept(values, model.dtype))
    config = {**model.config, "n_group": 2, "topk_group": 1} if kind == "groups" else model.config
    both = form != "single" and bool(random.integers(3) == 0)
    golden = _form(model, form, [*range(model.experts)]) if both else model.tensors
    _write(random, folder / "target", target, config if random.integers(2) else None)
    _write(random, folder / "golden", golden, config)
    words = ", ".join(map(str, order))
    if kind == "with router":
        return _case("experts with router: control", "target", "golden", [0], first="", says=["router", words])
    if kind == "wrong one":
        return _case("experts with router: one wrong", "target", "golden", [1], first="experts", says=[words])
    if kind == "router alone":
        return _case("router alone", "target", "golden", [1], first="gate")
    if kind == "groups":
        return _case("experts across groups", "target", "golden", [1], says=["groups"])
    moved = ", ".join(str(of) for at, of in enumerate(order) if at != of)
    says = ["same experts in another order", moved, "the router keeps its order"]
    return _case("experts without router", "target", "golden", [1], first="experts", says=says)


def _maps(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Slots by a recorded map: redundant ones, or none; right, or one slot with another expert."""
    model, form = _model(random, True), str(random.choice([*STACKS, "single"]))
    more = int(random.choice([0, 1, 2, 4]))
    slots = [*range(model.experts), *(int(at) for at in random.integers(0, model.experts, more))]
    slots = [int(at) for at in random.permutation(slots)]
    held, kind = [*slots], str(random.choice(["right", "right", "wrong slot"]))
    at = int(random.integers(len(slots)))
    if kind == "wrong slot":
        held[at] = (held[at] + 1) % model.experts
    target = _form(model, form, held)
    where = str(random.choice(["tensor", "tensors", "list", "lists", "object", "ascend", "config"]))
    whole = [slots] * model.layers
    config: dict[str, Any] = dict(model.config)
    own = Stored(np.array(whole, np.int32), "int32")
    if where == "tensor":
        target["model.physical_to_logical_map"] = own
    elif where == "tensors":
        for layer in range(model.layers):
            target[f"model.layers.{layer}.mlp.experts.physical_to_logical_map"] = Stored(own.values[layer], "int32")
    elif where == "config":
        config["physical_to_logical_map"] = whole
    (folder / "target").parent.mkdir(parents=True, exist_ok=True)
    _write_any(folder / "target", target, config)
    content: Any = {"list": slots, "lists": whole, "object": {"physical_to_logical_map": whole}}.get(where)
    if where == "ascend":
        devices = [part.tolist() for part in np.array_split(np.array(slots), 2)]
        rows = [{"layer_id": layer, "device_count": 2, "device_list": [
            {"device_id": number, "device_expert": part} for number, part in enumerate(devices)]}
            for layer in range(model.layers)]  # fmt: skip
        content = {"moe_layer_count": model.layers, "layer_list": rows}
    if content is not None:
        name = str(random.choice(["expert_map.json", "expert_location.json", "physical_to_logical_map.json"]))
        (folder / "target" / name).write_text(json.dumps(content))
    _write(random, folder / "golden", model.tensors, model.config)
    if kind == "right":
        says = ["AGREES"] + (["recorded map"] if slots != [*range(model.experts)] else [])
        return _case("map of experts: control", "target", "golden", [0], first="", says=says)
    return _case("map of experts: wrong slot", "target", "golden", [1], first="experts")


def _write_any(folder: Path, tensors: dict[str, Stored], config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    files.safetensors(folder / "model.safetensors", tensors)
    folder.joinpath("config.json").write_text(json.dumps(config))


def _turns(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """gate at the even rows and up at the odd ones, as gpt-oss has them, against parts or one behind the other."""
    model, form = _model(random, True), str(random.choice([*STACKS, "gpt-oss", "gpt-oss"]))
    kind = str(random.choice(["right", "right", "up first", "values", "concatenated"]))
    target = _stacked(model, "llama4" if form == "gpt-oss" else form, [*range(model.experts)])
    axis = 2 if form in ("gpt-oss", "llama4") else 1
    biases = {}
    for layer in range(model.layers):
        own = f"model.layers.{layer}.mlp.experts."
        name = own + ("gate_up_proj" if form == "gpt-oss" else STACKS[form][0])
        whole = target[name].values
        if kind != "concatenated":
            parts = np.split(whole, 2, axis)
            turned = np.stack(parts[::-1] if kind == "up first" else parts, axis + 1).reshape(whole.shape)
            target[name] = target[name].like(turned)
        if kind == "values" and not layer:
            values = target[name].values.copy()
            values[1] *= 1.5
            target[name] = target[name].like(_kept(values, model.dtype))
        if form == "gpt-oss" and kind != "concatenated":
            size = whole.shape[2] // 2
            gate, up = (_kept(random.standard_normal((model.experts, size)) * 0.1, model.dtype) for _ in range(2))
            order = (up, gate) if kind == "up first" else (gate, up)
            target[f"{name}_bias"] = Stored(np.stack(order, 2).reshape(model.experts, -1), model.dtype)
            for expert in range(model.experts):
                for part, values in (("gate", gate), ("up", up)):
                    biases[f"{own}{expert}.{part}_proj.bias"] = Stored(values[expert], model.dtype)
    golden = {**model.tensors, **biases}
    if random.integers(3) == 0 and not biases:
        golden = _stacked(model, "transformers", [*range(model.experts)])
    sides = [target, golden]
    if random.integers(3) == 0:
        sides.reverse()
    for side, tensors in zip(("target", "golden"), sides):
        _write(random, folder / side, tensors, model.config if random.integers(2) else None)
    if kind in ("right", "concatenated"):
        says = ["in turn"] if kind == "right" else []
        return _case("rows in turn: control", "target", "golden", [0], first="", says=says)
    return _case(f"rows in turn: {kind}", "target", "golden", [1], first="experts")


def _base_and_adapter(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    model, rank, alpha = _model(random), int(random.choice([4, 8])), int(random.choice([8, 16, 32]))
    is_rooted = bool(random.integers(2))
    scale = alpha / np.sqrt(rank) if is_rooted else alpha / rank
    kind = str(random.choice(["right", "right", "half", "one layer"]))
    merged, adapter = dict(model.tensors), {}
    for name, one in model.tensors.items():
        if "o_proj" in name or "down_proj" in name:
            rows, columns = one.values.shape
            a, b = random.standard_normal((rank, columns)) * 0.05, random.standard_normal((rows, rank)) * 0.05
            a, b = _kept(a, "float32"), _kept(b, "float32")
            own = f"base_model.model.{name[: -len('.weight')]}"
            adapter |= {f"{own}.lora_A.weight": Stored(a), f"{own}.lora_B.weight": Stored(b)}
            used = scale / 2 if kind == "half" else 0.0 if kind == "one layer" and ".0." in name else scale
            whole = one.values.astype(np.float64) + used * (b.astype(np.float64) @ a)
            merged[name] = one.like(_kept(whole, one.dtype))
    _write(random, folder / "merged", merged, None)
    base = folder / "apart" / str(random.choice(["", "base"]))
    base.mkdir(parents=True)
    files.torch_save(base / str(random.choice(["pytorch_model.bin", "model.pth", "model.pt"])), model.tensors)
    other = folder / "apart" / str(random.choice(["", "adapter"]))
    other.mkdir(exist_ok=True)
    files.safetensors(other / "adapter_model.safetensors", adapter)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": is_rooted}
    other.joinpath("adapter_config.json").write_text(json.dumps(stated))
    sides = ("merged", "apart") if random.integers(2) else ("apart", "merged")
    if kind == "right":
        return _case("base and adapter: control", *sides, [0], first="")
    return _case(f"base and adapter: {kind}", *sides, [1], first="o_proj|down_proj")


KINDS = (_orders, _orders, _maps, _turns, _base_and_adapter)


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    return KINDS[int(random.integers(len(KINDS)))](random, folder)
