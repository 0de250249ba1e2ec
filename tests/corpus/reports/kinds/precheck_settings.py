"""Settings and buffers of two runs that precheck compares: a value that differs, a key of one side, another spelling of
the same value, numbers of steps and accumulation, sampling defaults of generation_config.json, buffers of any kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.synthetic import with_statistics, write_run

TRAINING: dict[str, Any] = {
    "learning_rate": 1e-4, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "seed": 1234, "bf16": True,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "max_steps": 500, "warmup_steps": 20,
    "lr_scheduler_type": "cosine", "max_grad_norm": 1.0, "seq_length": 2048, "model_path": "/data/models/qwen",
}  # fmt: skip
SAMPLING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "n": 8,
                            "max_new_tokens": 512, "seed": 7}  # fmt: skip
OTHER_NAMES = {
    "learning_rate": "lr", "per_device_train_batch_size": "micro_batch_size", "max_steps": "train_iters",
    "gradient_accumulation_steps": "accumulate_grad_batches", "warmup_steps": "lr_warmup_iters",
    "seq_length": "max_seq_length",
}  # fmt: skip
NEUTRAL: dict[str, Any] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0, "min_p": 0.0,
                           "top_k": -1, "length_penalty": 1.0, "temperature": 1.0, "top_p": 1, "num_beams": 1,
                           "transformers_version": "4.51.0", "_from_model_config": True}  # fmt: skip
ALONE: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "min_p": 0.05, "top_k": 20, "top_p": 0.9,
                         "temperature": 0.7, "label_smoothing": 0.1, "gradient_accumulation_steps": 4,
                         "attention_dropout": 0.1}  # fmt: skip
UNKNOWN: dict[str, Any] = {"rope_theta": 1e6, "moe_aux_loss_coeff": 0.01, "clip_ratio_high": 0.28,
                           "router_dtype": "fp32", "use_flash_attn": True}  # fmt: skip
TRAINING_FORMS, SAMPLING_FORMS = ("json", "yaml", "sh", "nested", "toml", "log"), ("json", "yaml", "nested")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    return (_buffers if random.integers(3) == 0 else _settings)(random, folder)


def _settings(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    is_sampling = bool(random.integers(2))
    base = dict(SAMPLING if is_sampling else TRAINING)
    forms = SAMPLING_FORMS if is_sampling else TRAINING_FORMS
    kinds = ["same", "spelled", "neutral key", "value", "value", "key alone", "key beside", "unknown key", "other name"]
    kind = str(random.choice(kinds))
    for name in random.permutation([*base])[: int(random.integers(3))]:
        del base[str(name)]
    here, there = dict(base), dict(base)
    status, says, never = [0], list[str](), list[str]()
    if kind == "spelled":
        there = {name: _spelled(random, name, value) for name, value in base.items()}
    elif kind == "neutral key":
        free = [name for name in NEUTRAL if name not in base]
        for name in random.permutation(free)[: int(random.integers(1, 4))]:
            here[str(name)] = NEUTRAL[str(name)]
    elif kind == "value":
        name = _changed(random, there)
        status, says = [1], [rf"\b{name}\b"]
    elif kind in ("key alone", "key beside"):
        name = str(random.choice([name for name in ALONE if name not in base and OTHER_NAMES.get(name) not in base]))
        here[name] = ALONE[name]
        status, says = [1], [rf"\b{name}\b"]
        if kind == "key beside":
            other = _changed(random, there)
            says.append(rf"\b{other}\b")
    elif kind == "unknown key":  # its default is not known: named, and no error
        name = str(random.choice([*UNKNOWN]))
        here[name] = UNKNOWN[name]
        status, says = [0, 2], [rf"\b{name}\b"]
    elif kind == "other name":
        names = [name for name in there if name in OTHER_NAMES]
        if names:
            name = str(random.choice(names))
            value = there.pop(name)
            there[OTHER_NAMES[name]] = value * 2 if random.integers(2) else value
            if there[OTHER_NAMES[name]] != value:
                status, says = [1], [rf"\b{name}\b"]
    if random.integers(2):
        here, there = there, here
    paths = [_write(random, folder, side, values, forms, is_sampling)
             for side, values in (("target", here), ("golden", there))]  # fmt: skip
    run = {"do": ["precheck", "-", "-", "--config", *paths], "exit": status, "says": says, "never": never}
    end = ": control" if status == [0] else ""
    return {"kind": f"precheck: {'sampling' if is_sampling else 'settings'}: {kind}{end}", "runs": [run]}


def _changed(random: np.random.Generator, values: dict[str, Any]) -> str:
    """Change a setting, and return its name."""
    name = str(random.choice([name for name in values if name != "model_path"]))
    value = values[name]
    if isinstance(value, bool):
        values[name] = not value
    elif isinstance(value, str):
        values[name] = "linear"
    else:
        values[name] = value * 2 if isinstance(value, int) else float(f"{value * 0.9:.4g}")
    return name


def _spelled(random: np.random.Generator, name: str, value: Any) -> Any:
    """The same value in other letters."""
    if name == "model_path":
        return f"/mnt/other/{str(value).rpartition('/')[2]}"
    if isinstance(value, float):
        return str(random.choice([f"{value:e}", f"{value:.6f}"])) if random.integers(2) else value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if random.integers(2) else str(value)
    return value


def _write(
    random: np.random.Generator,
    folder: Path,
    side: str,
    values: dict[str, Any],
    forms: tuple[str, ...],
    is_sampling: bool,
) -> str:
    items = [*values.items()]
    values = dict(items[at] for at in random.permutation(len(items)))
    form = str(random.choice(forms))
    if form == "json" and is_sampling:
        name = f"{side}/generation_config.json"
        (folder / side).mkdir()
    else:
        name = f"{side}.{'json' if form == 'nested' else form}"
    text = json.dumps(values, indent=2)
    if form == "nested":
        text = json.dumps({"sampling_params" if is_sampling else "trainer": values, "version": 3})
    elif form == "yaml":
        text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items())
    elif form == "toml":
        text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    elif form == "sh":
        options = " \\\n".join(f"  --{key} {_shell(value)}" for key, value in values.items())
        text = f"torchrun --nproc_per_node 8 train.py \\\n{options}\n"
    elif form == "log":
        rows = "\n".join(f"  {key} {'.' * (40 - len(key))} {value}" for key, value in values.items())
        edge = "------------------------"
        text = f"INFO starting\n{edge} arguments {edge}\n{rows}\n{edge} end of arguments {edge}\niteration 1\n"
    (folder / name).write_text(text)
    return name


def _shell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _buffers(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """A network with a buffer that an operator reads and no operator writes."""
    state = int(random.integers(2**31))
    kind = str(random.choice(["router bias", "table of cosines", "scale", "running mean", "quantile"]))
    fault = str(random.choice(["none", "none", "bfloat16", "factor", "shift", "rows"]))
    if kind == "scale" and fault == "rows":
        fault = "factor"
    for side in ("target", "golden"):
        changed = fault if side == "target" else "none"
        with_statistics(write_run(folder / side, _network(np.random.default_rng(state), kind, changed)))
    run: dict[str, Any] = {"do": ["precheck", "target", "golden"], "exit": [0],
                           "never": [r"DIFFERS\s+(error\s+)?buffers"]}  # fmt: skip
    if fault != "none":
        run = {"do": ["precheck", "target", "golden"], "exit": [1, 2], "says": ["buffers?|constants?|running"]}
    return {"kind": f"precheck: buffers: {fault}" + (": control" if fault == "none" else ""), "runs": [run]}


def _network(random: np.random.Generator, kind: str, fault: str) -> dict[str, Any]:
    rows, width, size = (int(random.integers(*ends)) for ends in ((6, 30), (8, 24), (10, 40)))
    x = random.standard_normal((rows, width)).astype("f4")
    first = (random.standard_normal((size, width)) / 4).astype("f4")
    bias = random.standard_normal(size).astype("f4")
    buffer = (random.random(size) * 0.3 + 0.5).astype("f4")
    if kind == "table of cosines":
        buffer = np.cos(np.outer(np.arange(rows), 10000.0 ** (-np.arange(size) / size))).astype("f4")
    if kind == "running mean":
        buffer = (random.standard_normal(size) * 0.2).astype("f4")
    if fault == "bfloat16":
        buffer = (buffer.view("u4") & np.uint32(0xFFFF0000)).view("f4")
    elif fault == "factor":
        buffer = (buffer * np.float32(1.03)).astype("f4")
    elif fault == "shift":
        buffer = (buffer + np.float32(0.02)).astype("f4")
    elif fault == "rows":
        buffer = np.ascontiguousarray(buffer[::-1])
    hidden = (x.astype("f8") @ first.T + bias).astype("f4")
    found: dict[str, Any] = {"Functional.linear.0.forward": {"in": [x, first, bias], "out": [hidden]}}
    if kind == "running mean":
        variance = (random.random(size) + 0.5).astype("f4")
        weight, shift = np.ones(size, "f4"), np.zeros(size, "f4")
        out = ((hidden - buffer) / np.sqrt(variance + 1e-5)).astype("f4")
        given = {"in": [hidden, buffer, variance, weight, shift, False, 0.1, 1e-5], "out": [out]}
        return {**found, "Functional.batch_norm.0.forward": given}
    act = (1 / (1 + np.exp(-hidden))).astype("f4")
    found["Torch.sigmoid.0.forward"] = {"in": [hidden], "out": [act]}
    name = {"router bias": "Tensor.__add__", "quantile": "Torch.sub"}.get(kind, "Tensor.__mul__")
    out = act + buffer if kind == "router bias" else act - buffer if kind == "quantile" else act * buffer
    found[f"{name}.0.forward"] = {"in": [act, buffer], "out": [out.astype("f4")]}
    found["Torch.tanh.0.forward"] = {"in": [out.astype("f4")], "out": [np.tanh(out).astype("f4")]}
    return found
