"""Checkpoints with the state of an optimizer, a scheduler, a scaler and counters: lost, reset, scaled or changed in the
target; equal, or absent on a side that holds parameters alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._torch_files import torch_save
from tests.corpus.weights import files
from tests.corpus.weights.files import Stored

KEYS = ("optimizer", "optimizer_state_dict", "optim")
FAULTS = ("equal", "equal", "no state", "lost", "lost", "key lost", "one lost", "zero", "times", "rate", "schedule",
          "counter", "scale", "one update", "two updates")  # fmt: skip


def _parameters(random: np.random.Generator) -> dict[str, np.ndarray]:
    width, names = int(random.integers(4, 24)), {}
    for layer in range(int(random.integers(1, 5))):
        prefix = str(random.choice(["layers.{}.fc", "{}", "encoder.layer.{}.output.dense"])).format(layer)
        names[f"{prefix}.weight"] = random.standard_normal((width, width)).astype(np.float32)
        names[f"{prefix}.bias"] = random.standard_normal(width).astype(np.float32)
    return names


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    parameters, adam = _parameters(random), bool(random.integers(2))
    steps, rate = int(random.integers(2, 5000)), float(10.0 ** random.integers(-5, -1))
    averages = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
    state = {}
    for at, values in enumerate(parameters.values()):
        state[at] = {name: (random.standard_normal(values.shape) * 1e-3).astype(np.float32) for name in averages}
        if adam:
            state[at]["exp_avg_sq"] = np.square(state[at]["exp_avg_sq"])
        state[at].update({"step": np.full((), steps, np.float32)} if adam else {})
    groups = [{"lr": rate, "weight_decay": 0.01, "foreach": None, "params": [*range(len(parameters))]}]
    golden: dict[str, Any] = {str(random.choice(["model", "state_dict", "model_state_dict"])): parameters}
    key = str(random.choice(KEYS))
    golden[key] = {"state": state, "param_groups": groups}
    golden[str(random.choice(["lr_scheduler", "scheduler"]))] = {"last_epoch": steps, "base_lrs": [rate]}
    golden[str(random.choice(["scaler", "grad_scaler"]))] = {"scale": 4096.0, "growth_factor": 2.0}
    counter = str(random.choice(["step", "epoch", "global_step", "iteration"]))
    golden[counter] = steps
    golden["rng_state"] = random.standard_normal(8).astype(np.float32)
    target = copy.deepcopy(golden)
    scheduler = next(name for name in golden if "scheduler" in name)
    fault, says = str(random.choice(FAULTS)), []
    own = target[key]["state"]
    first = int(random.integers(len(state)))
    if fault == "lost":
        own.clear()
        says = ["optimizer", "lost", averages[0]]
    elif fault == "key lost":
        del target[key]
        says = ["optimizer", "lost", averages[0]]
    elif fault == "one lost":
        del own[first]
        says = ["optimizer", "lost", "1 parameter"]
    elif fault == "zero":
        for values in own.values():
            values[averages[0]] = np.zeros_like(values[averages[0]])
        says = [averages[0], "zero"]
    elif fault == "times":
        for values in own.values():
            values[averages[-1]] = values[averages[-1]] * np.float32(1024)
        says = [averages[-1], "1024 times"]
    elif fault == "rate":
        target[key]["param_groups"][0]["lr"] = rate / 2
        says = [r"param_groups\.0\.lr"]
    elif fault == "schedule":
        target[scheduler]["last_epoch"] = 0
        says = ["last_epoch"]
    elif fault == "counter":
        target[counter] = 0
        says = [counter]
    elif fault == "scale":
        target[next(name for name in golden if "scaler" in name)]["scale"] = 65536.0
        says = [r"scale is 65536"]
    never = []
    if fault in ("one update", "two updates"):
        is_ahead = bool(random.integers(2))
        after = target if is_ahead else golden
        for _ in range(1 + (fault == "two updates")):
            _update(random, next(iter(after.values())), after[key]["state"], rate, adam)
        after[counter] += 1 + (fault == "two updates")
        says, never = [f"one update of the optimizer {'further' if is_ahead else 'behind'}", f"rate {rate:.3g}"], []
        if fault == "two updates":
            says, never = [counter], ["one update"]
    for side, value in (("golden", golden), ("target", target)):
        (folder / side).mkdir()
        if side == "target" and fault == "no state":
            files.safetensors(folder / side / "model.safetensors", {k: Stored(v) for k, v in parameters.items()})
        elif key == "optimizer" and random.integers(2):
            apart = {name: own for name, own in value.items() if name != key}
            torch_save(folder / side / "model.pt", apart)
            if key in value:
                torch_save(folder / side / "optimizer.pt", value[key])
        else:
            torch_save(folder / side / "model.pt", value)
    is_clean = fault in ("equal", "no state")
    kind = f"weights: state of a training: {fault}" + (": control" if is_clean else "")
    run = {
        "do": ["compare", "target", "golden"],
        "exit": [0] if is_clean else [1],
        "says": ["not read beside.*rng_state", *says],
        "never": never,
    }
    return {"kind": kind, "runs": [run]}


def _update(random: np.random.Generator, parameters: dict, state: dict, rate: float, adam: bool) -> None:
    """Make an update of AdamW, or of SGD with momentum, in float32."""
    for (name, values), own in zip(parameters.items(), state.values()):
        gradient = random.standard_normal(values.shape).astype(np.float32)
        if not adam:
            own["momentum_buffer"] = np.float32(0.9) * own["momentum_buffer"] + gradient
            parameters[name] = values - np.float32(rate) * own["momentum_buffer"]
            continue
        own["step"] = np.asarray(own["step"] + np.float32(1))
        own["exp_avg"] = np.float32(0.9) * own["exp_avg"] + np.float32(0.1) * gradient
        own["exp_avg_sq"] = np.float32(0.999) * own["exp_avg_sq"] + np.float32(0.001) * gradient * gradient
        first, second = (1 - beta ** float(own["step"]) for beta in (0.9, 0.999))
        root = np.sqrt(own["exp_avg_sq"]) / np.float32(second**0.5) + np.float32(1e-8)
        moved = values * np.float32(1 - rate * 0.01)
        parameters[name] = moved - np.float32(rate / first) * own["exp_avg"] / root
