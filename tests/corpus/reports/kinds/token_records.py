"""One decoder in two token layouts, with the records of engines: ids, positions, masks, lengths, slots of a cache.

SGLang's dumper, files saved by hand beside the outputs of modules, or msprobe: prefill and decoding, packed, padded at
one end with or without a mask, a request alone. Right are a clean pair, a stale value of the cache, a token, an
operator that is wrong from the first layer on, and a leak from another request. Controls: the target lost a token.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_tokens as dumps

NEVER = ["statistics cannot prove", "set up differently", r"not compared, the first: \S*(mask|positions?|seq|slot|rid)"]


def draw(random: np.random.Generator, folder: Path) -> dict:
    is_control = bool(random.random() < 0.15)
    golden_kind = str(random.choice(["right", "right", "left", "packed", "alone"]))
    target_kind = str(random.choice(["decoded", "decoded", "packed", "other end", "wider"]))
    count = int(random.integers(2, 6))
    lengths = [int(length) for length in random.integers(4, 14, count)]
    if len(set(lengths)) == 1:
        lengths[0] += 2
    vocabulary = int(random.choice([12, 30, 60, 300]))
    ids = [random.integers(3, vocabulary, length) for length in lengths]
    pad = int(random.choice([0, 1, 2]))
    decoder = dumps.Decoder(int(random.integers(1 << 30)), vocabulary, *_size(random))
    every, mixed = [*range(count)], [int(request) for request in random.permutation(count)]
    mixed = every[::-1] if mixed == every else mixed
    if golden_kind == "packed" and target_kind in ("other end", "wider"):
        target_kind = "decoded"
    if golden_kind == "alone" and target_kind != "decoded":
        target_kind = str(random.choice(["packed", "wider"]))
    order = [mixed[0]] if golden_kind == "alone" else every
    left = golden_kind == "left"
    golden = dumps.packed(lengths, order) if golden_kind == "packed" else dumps.padded(lengths, order, left)
    if golden_kind == "alone" and random.random() < 0.5:
        golden = dumps.packed(lengths, order)
    target = {
        "decoded": lambda: dumps.decoded(lengths, mixed, int(random.integers(1, 5))),
        "packed": lambda: dumps.packed(lengths, mixed),
        "other end": lambda: dumps.padded(lengths, every, not left),
        "wider": lambda: dumps.padded(lengths, mixed, left, int(random.integers(1, 4))),
    }[target_kind]()
    lost, ends_as_padding = 0, False
    if is_control:
        own = int(random.choice(order))
        lost = 1
        ends_as_padding = bool(random.random() < 0.4)
        ids[own][-1] = pad if ends_as_padding else ids[own][-1]
        target = _without_last(target, own, lengths[own])
    fault, first, says, change, attend = _fault(random, decoder, lengths, order, ids)
    has_mask = golden_kind in ("left", "right") and (ends_as_padding or bool(random.random() < 0.6))
    has_lengths = golden_kind == "packed" or bool(random.random() < 0.4)
    form = str(random.choice(["sglang", "pt", "npy", "msprobe", "msprobe_kwargs"]))
    other = form if random.random() < 0.6 or form.startswith("msprobe") else str(random.choice(["sglang", "pt"]))
    names, has_ids = (
        _names(random),
        bool(random.random() < 0.7) or is_control or fault == "operator" or "input_layernorm" in first,
    )
    right, wrong = decoder.run(ids), decoder.run(ids, change, attend)
    pads = decoder.run([np.full(6, pad)])
    zeros = [row._replace(reads=[row.reads[0] * (row.reads[0].ndim == 1)], writes=[row.writes[0] * 0]) for row in pads]
    padding = {side: zeros if random.random() < 0.3 else pads for side in ("target", "golden")}
    zeroed = padding["golden"] is zeros
    dumps.write(
        folder / "target", form, target, wrong, padding["target"], _records(random, names, True, False), has_ids
    )
    own = _records(random, names, has_lengths, has_mask)
    dumps.write(folder / "golden", other, golden, right, padding["golden"], own, has_ids)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": NEVER}
    pads_of = [max(lengths) - lengths[request] for request in order]
    is_proven = has_mask or golden_kind in ("packed", "alone") or zeroed or max(pads_of) > 1
    if lost:
        run.update(exit=[1, 2], never=NEVER[:1])
    elif fault == "none":
        run.update(exit=[0] if is_proven else [0, 2], first="")
    else:
        run.update(exit=[1], first=first, says=says if is_proven else [])
    kind = "tokens: control" if is_control else f"tokens: {golden_kind} {fault}"
    return {
        "kind": kind,
        "target": target_kind,
        "form": f"{form} {other}{'' if has_ids else ' without ids'}",
        "lengths": lengths,
        "runs": [run],
    }


def _size(random: np.random.Generator) -> tuple[int, int, int]:
    heads = int(random.choice([2, 4]))
    return heads * int(random.choice([4, 8])), heads, int(random.integers(1, 4))


def _without_last(steps: list[dumps.Step], request: int, length: int) -> list[dumps.Step]:
    found = []
    for step in steps:
        is_last = (step.tokens[..., 0] == request) & (step.tokens[..., 1] == length - 1)
        if step.tokens.ndim == 2:
            tokens = step.tokens[~is_last]
        else:
            tokens = np.where(is_last[..., None], np.array([dumps.PADDING, 0]), step.tokens)
            tokens = np.array([sorted(lane, key=lambda own: own[0] != dumps.PADDING) if lane[0][0] == dumps.PADDING
                               else lane for lane in tokens.tolist()])  # fmt: skip
        found += [dumps.Step(tokens)] if len(tokens) else []
    return found


def _fault(
    random: np.random.Generator, decoder: dumps.Decoder, lengths: list[int], order: list[int], ids: list[Any]
) -> tuple[str, str, list[str], Any, Any]:
    """A fault, the operator and the token where it begins, and what plants it."""
    fault = str(random.choice(["none", "none", "stale", "token", "operator", "leak"]))
    layer = int(random.integers(len(decoder.layers)))
    request = int(random.choice(order))
    number = order.index(request)
    length = lengths[request]
    attention = rf"layers\.{layer}\.self_attn\.attn"
    if fault == "none":
        return fault, "", [], None, None
    if fault in ("stale", "leak"):
        layer = layer if fault == "stale" else 0
        attention = rf"layers\.{layer}\.self_attn\.attn"
        start = int(random.integers(2, length)) if fault == "stale" else 0
        given = random.standard_normal(decoder.width).astype(np.float32)

        def attend(at: int, own: int, q: Any, k: Any, v: Any) -> Any:
            if at != layer or own != request:
                return None
            if fault == "leak":  # keys and values of another request stand in front
                return decoder.attention(q, k, v) * np.float32(0.6) + np.float32(0.4) * given
            stale = v.copy()
            stale[start - 1] = v[0] + given
            made = decoder.attention(q, k, stale)
            made[:start] = decoder.attention(q, k, v)[:start]
            return made

        return (
            fault,
            attention,
            [rf"request {number}\b.{{0,40}}position {start}\b|request {number} differ|all tokens"],
            None,
            attend,
        )
    last = str(random.choice(["input_layernorm", "qkv_proj", "o_proj", "up_proj", "down_proj"]))
    layer = 0 if fault == "operator" else layer
    part = "self_attn." if last in ("qkv_proj", "o_proj") else "mlp." if "proj" in last else ""
    path = f"model.layers.{layer}.{part}{last}"
    if fault == "operator" and random.random() < 0.5:
        path = "model.embed_tokens"
    place, factor = int(random.integers(length)), np.float32(random.choice([0.7, 1.3, 2.0]))

    def change(own: str, arrays: list[Any]) -> list[Any]:
        if own != path:
            return arrays
        if fault == "operator":
            return [values * factor for values in arrays]
        made = [values.copy() for values in arrays]
        made[request][place] *= factor
        return made

    says = (
        ["all tokens|factor|times the golden"]
        if fault == "operator"
        else [rf"request {number}\b.{{0,40}}position {place}\b"]
    )
    return fault, re.escape(path), says, change, None


def _names(random: np.random.Generator) -> dict[str, str]:
    return {
        "positions": str(random.choice(["positions", "position_ids"])),
        "lengths": str(random.choice(["seq_lens", "extend_seq_lens", "query_lens"])),
        "starts": str(random.choice(["cu_seqlens", "query_start_loc", "cu_seqlens_q"])),
        "slots": str(random.choice(["slot_mapping", "out_cache_loc"])),
        "mask": str(random.choice(["attention_mask", "attention_mask", "padding_mask"])),
    }


def _records(random: np.random.Generator, names: dict[str, str], has_lengths: bool, has_mask: bool) -> Any:
    how = str(random.choice(["positions", "starts", "both"]))
    has_slots, has_rids = bool(random.random() < 0.5), bool(random.random() < 0.5)

    def records(step: dumps.Step) -> dict[str, Any]:
        found: dict[str, Any] = {}
        is_packed = step.tokens.ndim == 2
        if has_mask:
            found[names["mask"]] = step.mask
        if has_lengths and (how != "starts" or not is_packed):
            found[names["positions"]] = step.positions
        if has_lengths and how != "positions" and is_packed:
            found[names["starts"]] = np.concatenate([[0], np.cumsum(step.lengths)]).astype(np.int32)
        if has_lengths and is_packed and has_slots:
            found[names["slots"]] = (step.tokens[:, 0] * 64 + step.tokens[:, 1] + 7).astype(np.int64)
        if has_lengths and is_packed and has_rids:
            found["req_pool_indices"] = np.array([*dict.fromkeys(step.tokens[:, 0].tolist())], np.int32)
        return found

    return records
