"""The experts of a token in another order: a top-k that does not sort, weights that follow the ids or not, one token
with another expert, a reader that depends on the order; routed experts as engines record them for a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_E import TIME, WORDS
from tests.synthetic import write_run

Array = np.ndarray
FAULTS = ("order", "order", "order and noise", "changed", "weights apart", "ordered reader", "rounded gate")
FORMS = ("msprobe", "npy", "mindspore", "keywords")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    return (_routed if random.integers(4) == 0 else _layers)(random, folder)


def _routed(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """routed_experts [tokens, layers, experts of a token], alone."""
    tokens, layers, experts = (int(random.integers(*ends)) for ends in ((5, 80), (1, 6), (8, 64)))
    count = int(random.integers(2, 8))
    ids = np.stack([[random.permutation(experts)[:count] for _ in range(layers)] for _ in range(tokens)])
    ids = ids.astype(random.choice(["int32", "int64", "uint8", "int16"]))
    fault = str(random.choice(["order", "order", "changed", "same but one"]))
    other = ids.copy()
    if fault != "same but one":
        other = random.permuted(ids, axis=-1)
    token, layer = int(random.integers(tokens)), int(random.integers(layers))
    if fault != "order":
        alone = [expert for expert in range(experts) if expert not in other[token, layer]]
        other[token, layer, int(random.integers(count))] = int(random.choice(alone))
    name = str(random.choice(["routed_experts", "rollout_routed_experts", "moe_topk_ids", "selected_experts"]))
    for side, values in (("target", other), ("golden", ids)):
        (folder / side).mkdir(parents=True)
        np.save(folder / side / f"{name}.npy", values)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0, 2], "first": ""}
    if fault != "order":
        run = {"do": ["compare", "target", "golden"], "exit": [1], "first": name, "says": [rf"\b{token}\b"]}
    return {"kind": f"experts: routed: {fault}" + (": control" if fault == "order" else ""), "runs": [run]}


def _layers(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Layers of a gate, a top-k and experts."""
    state, fault, form = int(random.integers(2**31)), str(random.choice(FAULTS)), str(random.choice(FORMS))
    draws = np.random.default_rng(state)
    depth, wrong = int(draws.integers(1, 4)), int(draws.integers(8))
    for side in ("golden", "target"):
        operators = _operators(np.random.default_rng(state), fault if side == "target" else "", depth, wrong % depth)
        _write(folder / side, operators, form)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": ""}
    number = wrong % depth
    if fault in ("changed", "weights apart", "ordered reader"):
        kind = {"changed": "topk", "weights apart": "topk|experts", "ordered reader": "topk|last"}[fault]
        run = {"do": ["compare", "target", "golden"], "exit": [1], "first": rf"layers[._]{number}[._]({kind})"}
    if fault == "changed":
        run["says"] = [r"row 2\b"]
    is_control = fault in ("order", "order and noise", "rounded gate")
    return {"kind": f"experts: {fault}" + (": control" if is_control else ""), "runs": [run]}


def _operators(
    random: np.random.Generator, fault: str, depth: int, wrong: int
) -> list[tuple[str, str, dict[str, Array], list[Array]]]:
    """Operators with their type, inputs by name and outputs. `fault` is that of one layer, an order that of all."""
    random.integers(1, 4)
    tokens, experts, size = (int(random.integers(*ends)) for ends in ((4, 70), (8, 40), (8, 24)))
    count, batch = int(random.integers(2, 6)), int(random.integers(1, 3))
    is_int32, is_batched = bool(random.integers(2)), bool(random.integers(2)) and tokens % batch == 0
    x = random.standard_normal((tokens, size)).astype("f4")
    own = np.random.default_rng(5)
    found: list[tuple[str, str, dict[str, Array], list[Array]]] = []
    noise = 1e-7 if fault == "order and noise" else 0.0
    for layer in range(depth):
        gate = random.standard_normal((experts, size)).astype("f4") / 2
        bodies = random.standard_normal((experts, size, size)).astype("f4") / np.sqrt(size)
        logits = x.astype("f8") @ gate.T
        logits = (logits * (1 + noise * own.standard_normal(logits.shape))).astype("f4")
        scores = 1 / (1 + np.exp(-logits.astype("f8")))
        ids = np.argsort(-scores, -1, kind="stable")[:, :count]
        if fault == "changed" and layer == wrong:
            ids[2, -1] = np.argsort(-scores[2], kind="stable")[count + 1]
        if fault and fault != "rounded gate":
            ids = own.permuted(ids, axis=-1)
        weights = np.take_along_axis(scores, ids, -1)
        weights = (weights / weights.sum(-1, keepdims=True)).astype("f4")
        used = weights
        if fault == "weights apart" and layer == wrong:  # the weights keep the order of the scores
            used = weights = -np.sort(-weights, -1)
        y = np.zeros((tokens, size))
        for token in range(tokens):
            for place in np.argsort(ids[token]):
                y[token] += used[token, place].astype("f8") * (bodies[ids[token, place]].astype("f8") @ x[token])
        y = (y * (1 + noise * own.standard_normal(y.shape))).astype("f4")
        kind = ids.astype("int32" if is_int32 else "int64")
        lead = (batch, tokens // batch) if is_batched else (tokens,)

        def shaped(values: Array, lead: tuple[int, ...] = lead) -> Array:
            return np.ascontiguousarray(values.reshape(*lead, -1))

        name = f"layers.{layer}"
        found.append((f"{name}.gate", "MatMul", {"x": shaped(x), "weight": gate.T.copy()}, [shaped(logits)]))
        found.append((f"{name}.topk", "TopK", {"logits": shaped(logits)}, [shaped(weights), shaped(kind)]))
        read = {"hidden": shaped(x), "topk_weights": shaped(weights), "topk_ids": shaped(kind)}
        found.append((f"{name}.experts", "FusedMoE", read, [shaped(y)]))
        out = np.tanh(x + y).astype("f4")
        found.append((f"{name}.residual", "Tanh", {"x": shaped((x + y).astype("f4"))}, [shaped(out)]))
        x = out
        if layer == wrong:  # reads the first expert of each token alone
            first = bodies[ids[:, 0]].mean(-1) if fault == "ordered reader" else None
            sorted_ids = np.take_along_axis(ids, np.argsort(-np.take_along_axis(scores, ids, -1), -1), -1)
            first = bodies[sorted_ids[:, 0]].mean(-1) if first is None else first
            found.append((f"{name}.last", "Select", {"topk_ids": shaped(kind)}, [shaped(first.astype("f4"))]))
    return found


def _write(folder: Path, operators: list[tuple[str, str, dict[str, Array], list[Array]]], form: str) -> None:
    if form in ("msprobe", "keywords"):
        records = {}
        for name, kind, inputs, outputs in operators:
            given = {"kwargs": inputs} if form == "keywords" else {"in": [*inputs.values()]}
            records[f"Module.{name}.{kind}.forward.0"] = {**given, "out": outputs}
        write_run(folder, records)
        return
    place = folder / "rank_0/net/0/0" if form == "mindspore" else folder
    place.mkdir(parents=True)
    clock = TIME
    for name, kind, inputs, outputs in operators:
        stem = name.replace(".", "_")
        for role, tensors in (("input", [*inputs.values()]), ("output", outputs)):
            for slot, values in enumerate(tensors):
                clock += 7
                file = f"{'input_' if role == 'input' else ''}{stem}.{slot}.{clock}.npy"
                if form == "mindspore":
                    words = WORDS[str(values.dtype)]
                    file = f"{kind}.Default_{stem}-op1.0.0.{clock}.{role}.{slot}.DefaultFormat.{words}.npy"
                np.save(place / file, values)
