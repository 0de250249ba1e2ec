"""Gradients of parameters in records of modules (L0 and mix): wrong by themselves, or behind a wrong gradient."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import FORMATS, Device, Typed, rounded, unary, write

EPS = 1e-5


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form, dtype = str(random.choice(FORMATS)), str(random.choice(["float32", "float32", "bfloat16"]))
    net = Net(random, dtype)
    fault = str(random.choice(["parameter", "parameter", "parameter", "gradient", "forward", "none"]))
    at = int(random.choice(net.places(fault)))
    how = str(random.choice(["lost", "scaled", "lost"]))
    is_mix, is_late = bool(random.random() < 0.3), bool(random.random() < 0.5)
    for side in ("target", "golden"):
        device = Device(int(random.integers(1 << 30)), dtype)
        own = (fault, at, how) if side == "target" else ("none", at, how)
        records = net.records(device, own, is_mix, is_late, cell=form == "npy")
        write(folder / side, records, form, "mix" if is_mix else "L0")
    return _case(net, fault, at, form, cell=form == "npy")


class Net:
    """An embedding, then blocks of norm, linear layer and function; a linear layer at the end."""

    def __init__(self, random: np.random.Generator, dtype: str) -> None:
        self.vocabulary, self.width = int(random.integers(11, 30)), int(random.integers(8, 24))
        shape = int(random.integers(2, 5)), int(random.integers(5, 12))
        self.ids = random.integers(0, self.vocabulary, shape)
        self.layers: list[tuple[str, str, dict[str, np.ndarray]]] = []
        stem, bias = str(random.choice(["layers", "model.blocks", "encoder.h"])), bool(random.random() < 0.6)

        def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
            return {
                key: rounded(random.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 9.0) + (
                    key == "weight" and len(shape) == 1), dtype)
                for key, shape in shapes.items()
            }  # fmt: skip

        self.layers.append(("Embedding", "embed", weights(weight=(self.vocabulary, self.width))))
        width, act = self.width, str(random.choice(["GELU", "SiLU", "Tanh"]))
        norm = str(random.choice(["RMSNorm", "LayerNorm"]))
        for block in range(int(random.integers(1, 4))):
            own = {"weight": (width,), **({"bias": (width,)} if norm == "LayerNorm" else {})}
            self.layers.append((norm, f"{stem}.{block}.norm", weights(**own)))
            wide = int(random.integers(8, 24))
            self.layers.append(
                ("Linear", f"{stem}.{block}.fc", weights(weight=(wide, width), **({"bias": (wide,)} if bias else {})))
            )
            self.layers.append((act, f"{stem}.{block}.act", {}))
            width = wide
        self.layers.append(("Linear", "head", weights(weight=(6, width))))

    def places(self, fault: str) -> list[int]:
        """The layers that may have a fault: with parameters, or with a gradient that an earlier layer reads."""
        if fault == "parameter":
            return [at for at, (_, _, own) in enumerate(self.layers) if own]
        return [*range(2, len(self.layers))]

    def name(self, at: int, cell: bool) -> str:
        kind, path, _ = self.layers[at]
        return f"{'Cell' if cell else 'Module'}.{path}.{kind}"

    def records(
        self, device: Device, fault: tuple[str, int, str], is_mix: bool, is_late: bool, cell: bool
    ) -> dict[str, dict[str, Any]]:
        """Return the records of one side. is_late: gradients of parameters stand behind the module's backward."""
        found: dict[str, dict[str, Any]] = {}
        dtype, read, saved = device.dtype, self.ids, []
        for at, (kind, _, own) in enumerate(self.layers):
            wrote = device.store(_forward(kind, read, own))
            wrote = _struck(wrote, fault, "forward", at, dtype)
            own_type = "int64" if at == 0 else dtype
            record = {"input_args": [Typed(read, own_type)], "input_kwargs": {}, "output": [Typed(wrote, dtype)]}
            if is_mix and kind == "Linear":
                call = f"Functional.linear.{_number(self.layers, at)}.forward"
                inner = [*record["input_args"], *(Typed(value, dtype) for value in own.values())]
                found[call] = {**record, "input_args": inner}
            record["parameters"] = {key: Typed(value, dtype) for key, value in own.items()}
            found[f"{self.name(at, cell)}.forward.0"] = record
            saved.append((read, wrote))
            read = wrote
        gradient = device.store(2e2 * read.astype(np.float64) / read.size)
        for at, (kind, _, own) in reversed([*enumerate(self.layers)]):
            incoming = gradient
            gradient, own_gradients = _backward(kind, incoming, *saved[at], own)
            gradient = _struck(device.store(gradient), fault, "gradient", at, dtype) if at else None
            struck = {key: device.store(value) for key, value in own_gradients.items()}
            first = next(iter(struck), "")
            if first:
                struck[first] = _struck(struck[first], fault, "parameter", at, dtype)
            parameters = {f"{self.name(at, cell)}.parameters_grad.0": {k: Typed(v, dtype) for k, v in struck.items()}}
            backward = {
                "input": [Typed(incoming, dtype)],
                "output": [] if gradient is None else [Typed(gradient, dtype)],
            }
            parameters = parameters if struck else {}
            if is_mix and kind == "Linear" and gradient is not None:
                outputs = [Typed(gradient, dtype), *(Typed(value, dtype) for value in struck.values())]
                found[f"Functional.linear.{_number(self.layers, at)}.backward"] = {**backward, "output": outputs}
            if is_late:
                found |= {f"{self.name(at, cell)}.backward.0": backward, **parameters}
            else:
                found |= {**parameters, f"{self.name(at, cell)}.backward.0": backward}
        return found


def _number(layers: list[Any], at: int) -> int:
    return sum(kind == "Linear" for kind, _, _ in layers[:at])


def _struck(values: np.ndarray, fault: tuple[str, int, str], what: str, at: int, dtype: str) -> np.ndarray:
    if fault[:2] != (what, at):
        return values
    if fault[2] == "scaled":
        return rounded(values * np.float32(1.35), dtype)
    wrong = values.copy()
    wrong[len(values) // 3 :] *= 0.4 if values.ndim == 1 else 0.0
    return rounded(wrong, dtype)


def _normed(kind: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The normalised rows, and the factor by which they were multiplied."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True) if kind == "LayerNorm" else wide
    factor = 1.0 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    return centred * factor, factor


def _forward(kind: str, x: np.ndarray, own: dict[str, np.ndarray]) -> np.ndarray:
    if kind == "Embedding":
        return own["weight"][x].astype(np.float64)
    if kind == "Linear":
        return x.astype(np.float64) @ own["weight"].T + own.get("bias", 0.0)
    if kind in ("RMSNorm", "LayerNorm"):
        return _normed(kind, x)[0] * own["weight"] + own.get("bias", 0.0)
    return unary(kind.lower(), x)[0]


def _backward(
    kind: str, gradient: np.ndarray, x: np.ndarray, wrote: np.ndarray, own: dict[str, np.ndarray]
) -> tuple[Any, dict[str, np.ndarray]]:
    """The gradient of the input, and those of the parameters."""
    wide = gradient.astype(np.float64)
    flat = wide.reshape(-1, wide.shape[-1])
    if kind == "Embedding":
        table = np.zeros(own["weight"].shape)
        np.add.at(table, x.reshape(-1), flat)
        return None, {"weight": table}
    if kind == "Linear":
        found = {"weight": flat.T @ x.reshape(len(flat), -1)}
        return wide @ own["weight"], {**found, **({"bias": flat.sum(0)} if "bias" in own else {})}
    if kind in ("RMSNorm", "LayerNorm"):
        y, factor = _normed(kind, x)
        product = wide * own["weight"]
        back = product - y * (product * y).mean(-1, keepdims=True)
        back = back - product.mean(-1, keepdims=True) if kind == "LayerNorm" else back
        found = {"weight": (flat * y.reshape(flat.shape)).sum(0)}
        return back * factor, {**found, **({"bias": flat.sum(0)} if "bias" in own else {})}
    return wide * unary(kind.lower(), x)[1], {}


def _case(net: Net, fault: str, at: int, form: str, cell: bool) -> dict[str, Any]:
    name = re.escape(net.name(at, cell))
    calls = rf"|Functional\.linear\.{_number(net.layers, at)}\." if net.layers[at][0] == "Linear" else ""
    values = form != "statistics"
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": ["inputs were not dumped"]}
    if fault == "none":
        run |= {"exit": [0] if values else [0, 2], "first": ""}
    else:
        phase = {"parameter": "(parameters_grad|backward)", "gradient": "backward", "forward": "forward"}[fault]
        first = rf"{name}\.{phase}" + (f"{calls}{'forward' if fault == 'forward' else 'backward'}" if calls else "")
        run |= {"exit": [1] if values else [1, 2], "first": first}
    if fault in ("gradient", "forward"):
        run["never"].append(r"(BORN|UNKNOWN|SUSPECT) +\S*\.parameters_grad")
    elif fault == "parameter" and values and not calls:
        run["says"] = [rf"BORN +{name}\.parameters_grad"]
    control = "" if fault == "parameter" else ": control"
    return {
        "kind": f"parameter_gradients: {fault}, {form}{control}",
        "report": "gradients of parameters at L0",
        "runs": [run],
    }
