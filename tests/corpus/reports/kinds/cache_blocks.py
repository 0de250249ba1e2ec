"""Decoding with a paged cache whose blocks lie in other places of the pool, as an engine's scheduler puts them.

Pools of keys and values apart, together, or in the form of one matrix a token; tables of one or several requests with
spare entries; memory of other requests around them. Right are clean runs, a block that is overwritten, a table that
names a wrong block, and an attention that is wrong. Controls: equal tables, with and without a fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.synthetic import write_run

NEVER = ["set up differently", "in another order"]


def draw(random: np.random.Generator, folder: Path) -> dict:
    heads, width, size = int(random.choice([1, 2, 4])), int(random.choice([8, 16])), int(random.choice([4, 8, 16]))
    count, layers = int(random.integers(1, 4)), int(random.integers(1, 4))
    lengths = [int(length) for length in random.integers(2, 4 * size, count)]
    needed = [-(-length // size) for length in lengths]
    spare, pool = int(random.integers(0, 3)), sum(needed) + int(random.integers(4, 9))
    is_control = bool(random.random() < 0.2)
    tables = {}
    for side in ("target", "golden"):
        free = [int(block) for block in random.permutation(pool)]
        tables[side] = [[free.pop() for _ in range(blocks)] for blocks in needed]
    if is_control:
        tables["target"] = tables["golden"]
    keys, values = (random.standard_normal((layers, sum(lengths), heads, width)).astype(np.float32) for _ in range(2))
    queries = random.standard_normal((layers, count, heads, width)).astype(np.float32)
    weight = (random.standard_normal((heads * width, heads * width)) / np.sqrt(heads * width)).astype(np.float32)
    fault = str(random.choice(["none", "none", "block", "table", "kernel"]))
    layer, request = int(random.integers(layers)), int(random.integers(count))
    form = str(random.choice(["apart", "pair", "flat"]))
    names = {
        "table": str(random.choice(["block_tables", "block_table", "page_table"])),
        "lengths": str(random.choice(["seq_lens", "context_lens", "cache_seqlens", "actual_seq_lengths_kv"])),
        "key": str(random.choice(["key_cache", "k_cache"])),
        "value": str(random.choice(["value_cache", "v_cache"])),
    }
    has_slots, garbage = bool(random.random() < 0.5), bool(random.random() < 0.5)
    width_of_table = max(needed) + spare
    for side, rows in tables.items():
        is_bad = side == "target"
        calls: dict[str, Any] = {}
        for number in range(layers):
            pools = [_pool(random, each[number], rows, lengths, size, pool, garbage) for each in (keys, values)]
            own = [[*row] for row in rows]
            if is_bad and number == layer and fault == "block":
                pools[1][rows[request][0]] = random.standard_normal(pools[1].shape[1:])
            if is_bad and number == layer and fault == "table":
                own[request][0] = next(block for block in range(pool) if all(block not in row for row in rows))
            out = np.stack([
                _attention(queries[number, at], *(_read(each, own[at], length, size) for each in pools))
                for at, length in enumerate(lengths)
            ]).reshape(count, -1)  # fmt: skip
            if is_bad and number == layer and fault == "kernel":
                out[request] *= np.float32(1.3)
            table = np.zeros((count, width_of_table), np.int32)
            for at, row in enumerate(own):
                table[at, : len(row)] = row
            given = _caches(pools, form, names)
            given |= {names["table"]: table, names["lengths"]: np.array(lengths, np.int32)}
            if has_slots:
                given["slot_mapping"] = np.array([
                    own[at][(length - 1) // size] * size + (length - 1) % size for at, length in enumerate(lengths)
                ], np.int64)  # fmt: skip
            path = f"Module.model.layers.{number}.self_attn"
            calls[f"{path}.attn.Attention.forward.0"] = {"in": [queries[number]], "kwargs": given, "out": [out]}
            calls[f"{path}.o_proj.Linear.forward.0"] = {"in": [out], "out": [out @ weight.T]}
        write_run(folder / side, calls, framework="pytorch", level="L0")
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": NEVER[: 1 if fault == "none" else 0]}
    if fault == "none":
        run.update(exit=[0], first="")
    else:
        says = {"block": ["cache"], "table": ["cache|table"], "kernel": ["output:0"]}[fault]
        run.update(exit=[1], first=rf"layers\.{layer}\.self_attn\.attn", says=says)
    kind = "paged cache: control" if is_control else f"paged cache: {fault}"
    return {"kind": kind, "form": form, "lengths": lengths, "size": size, "runs": [run]}


def _pool(
    random: np.random.Generator,
    tokens: Any,
    rows: list[list[int]],
    lengths: list[int],
    size: int,
    pool: int,
    garbage: bool,
) -> Any:
    found = np.zeros((pool, size, *tokens.shape[1:]), np.float32)
    if garbage:
        found[:] = random.standard_normal(found.shape)
    start = 0
    for row, length in zip(rows, lengths):
        for at in range(length):
            found[row[at // size], at % size] = tokens[start + at]
        start += length
    return found


def _read(pool: Any, row: list[int], length: int, size: int) -> Any:
    return np.stack([pool[row[at // size], at % size] for at in range(length)])


def _attention(query: Any, keys: Any, values: Any) -> Any:
    scores = np.einsum("hd,khd->hk", query, keys) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hk,khd->hd", weights / weights.sum(-1, keepdims=True), values).astype(np.float32)


def _caches(pools: list[Any], form: str, names: dict[str, str]) -> dict[str, Any]:
    if form == "pair":
        return {"kv_cache": np.stack(pools)}
    shaped = [pool.reshape(*pool.shape[:2], -1) if form == "flat" else pool for pool in pools]
    return {names["key"]: shaped[0], names["value"]: shaped[1]}
