"""Position ids that differ by a constant, in networks that look up positions: a fault of the ids, no other layout.

A transformer reads ids of tokens and of positions; the target counts positions from 1, or from the length of a cache
that is empty. The look-up of positions reads other ids than the golden: it stands first, and no token layout is
claimed. Controls: the same tokens in another layout (packed against padded), which is recognised and agrees.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.reports.kinds._dumps_G import Call, layers, rounded, write

TOKENS = "token layout|requests?, (packed|padded)|tokens: |packed|padded"


def draw(random: np.random.Generator, folder: Path) -> dict:
    if random.random() < 0.35:
        return _control(random, folder)
    if random.random() < 0.3:
        return _rotary(random, folder)
    batch, length = int(random.choice([1, 2, 3])), int(random.integers(6, 15))
    width, vocabulary = int(random.choice([8, 16, 24])), int(random.integers(40, 200))
    dtype = str(random.choice(["float32", "float32", "bfloat16"]))
    shift = int(random.choice([1, 1, 1, 2, 3, length]))
    table = rounded(random.standard_normal((vocabulary, width)), dtype)
    positions = rounded(random.standard_normal((4 * length + 8, width)), dtype)
    ids = random.integers(0, vocabulary, (batch, length))
    first, is_flat = bool(random.random() < 0.5), bool(random.random() < 0.3)
    has_ids = bool(random.random() < 0.7)
    seed = int(random.integers(2**31))
    for side, moved in (("target", shift), ("golden", 0)):
        own = np.arange(length)[None].repeat(1 if is_flat else batch, 0) + moved
        own = own[0] if is_flat else own
        spot = Call("Functional.embedding.0.forward", [own, positions], [positions[own]])
        word = Call("Functional.embedding.1.forward", [ids, table], [table[ids]])
        if not first:
            spot, word = spot._replace(name=word.name), word._replace(name=spot.name)
        h = rounded(table[ids] + positions[own], dtype)
        add = Call("Tensor.__add__.0.forward", [table[ids], positions[own]], [h])
        calls = [*([spot, word] if first else [word, spot]), add] if has_ids else [spot, add]
        calls += layers(np.random.default_rng(seed), width, 2, h, dtype)
        write(folder / side, calls, "tensor", dtype)
    name = r"Functional\.embedding\.[01]\.forward"
    run = {"do": ["compare", "target", "golden"], "exit": [1], "first": name, "never": [TOKENS], "says": [
        rf"position|differ by {shift}|{shift} (more|larger|higher)|plus {shift}|\+ ?{shift}"]}  # fmt: skip
    return {"kind": "positions", "runs": [run]}


def _rotary(random: np.random.Generator, folder: Path) -> dict:
    """Angles from positions of type float, or tables of cosines and sines that position ids look up."""
    length, width, shift = int(random.integers(5, 14)), int(random.choice([8, 16])), int(random.choice([1, 1, 2, 5]))
    is_cached, seed = bool(random.random() < 0.5), int(random.integers(2**31))
    x = random.standard_normal((1, length, width)).astype(np.float32)
    weight = (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    frequencies = (100.0 ** -(np.arange(width // 2) / (width // 2))).astype(np.float32)
    for side, moved in (("target", shift), ("golden", 0)):
        ids = np.arange(length) + moved
        every = np.outer(np.arange(length + shift), frequencies).astype(np.float32)
        angles = np.outer(ids, frequencies).astype(np.float32)
        cos, sin = (np.concatenate([f(angles)] * 2, -1).astype(np.float32) for f in (np.cos, np.sin))
        q = (x @ weight.T).astype(np.float32)
        calls = [Call("Functional.linear.0.forward", [x, weight], [q])]
        if is_cached:
            tables = [np.concatenate([f(every)] * 2, -1).astype(np.float32) for f in (np.cos, np.sin)]
            calls += [Call(f"Tensor.__getitem__.{at}.forward", [table, ids], [values])
                      for at, (table, values) in enumerate(zip(tables, (cos, sin)))]  # fmt: skip
        else:
            calls.append(Call("Torch.outer.0.forward", [ids.astype(np.float32), frequencies], [angles]))
            calls += [Call(f"Tensor.{name}.0.forward", [angles], [f(angles).astype(np.float32)])
                      for name, f in (("cos", np.cos), ("sin", np.sin))]  # fmt: skip
            cos, sin = calls[-2].writes[0], calls[-1].writes[0]
            cos, sin = (np.concatenate([half] * 2, -1) for half in (cos, sin))
        turned = np.concatenate([-q[..., width // 2 :], q[..., : width // 2]], -1)
        parts = (q * cos).astype(np.float32), (turned * sin).astype(np.float32)
        calls += [Call(f"Tensor.__mul__.{at}.forward", [of, table], [part])
                  for at, (of, table, part) in enumerate(zip((q, turned), (cos, sin), parts))]  # fmt: skip
        h = (parts[0] + parts[1]).astype(np.float32)
        calls.append(Call("Tensor.__add__.0.forward", [*parts], [h]))
        write(folder / side, [*calls, *_behind(seed, width, h)], "tensor")
    first = r"Tensor\.__getitem__\.0" if is_cached else r"Torch\.outer\.0"
    run = {"do": ["compare", "target", "golden"], "exit": [1], "first": first, "never": [TOKENS],
           "says": [rf"\+ ?{shift}\b|position"]}  # fmt: skip
    return {"kind": "positions", "runs": [run]}


def _behind(seed: int, width: int, x: np.ndarray) -> list[Call]:
    calls = layers(np.random.default_rng(seed), width, 2, x)
    return [call._replace(name=call.name.replace(".0.", ".2.")) for call in calls]


def _control(random: np.random.Generator, folder: Path) -> dict:
    """The same requests packed in the target, padded in the golden; positions begin at 0 in both."""
    lengths = random.permutation(np.arange(3, 12))[: int(random.integers(2, 4))]
    width, vocabulary = int(random.choice([8, 16])), int(random.integers(60, 200))
    table = rounded(random.standard_normal((vocabulary, width)), "float32")
    positions = rounded(random.standard_normal((40, width)), "float32")
    requests = [random.choice(np.arange(1, vocabulary), int(length), replace=False) for length in lengths]
    seed, longest = int(random.integers(2**31)), int(max(lengths))
    padded = np.stack([np.concatenate([ids, np.zeros(longest - len(ids), int)]) for ids in requests])
    mask = np.stack([np.arange(longest) < len(ids) for ids in requests]).astype(np.int64)
    places = np.arange(longest)[None].repeat(len(requests), 0)
    for side in ("target", "golden"):
        ids, own = (padded, places) if side == "golden" else (
            np.concatenate(requests), np.concatenate([np.arange(len(ids)) for ids in requests]))  # fmt: skip
        word = Call("Functional.embedding.0.forward", [ids, table], [table[ids]])
        spot = Call("Functional.embedding.1.forward", [own, positions], [positions[own]])
        h = table[ids] + positions[own]
        add = Call(
            "Tensor.__add__.0.forward",
            [table[ids], positions[own]],
            [h],
            {"attention_mask": mask} if side == "golden" else {},
        )
        write(folder / side, [word, spot, add, *layers(np.random.default_rng(seed), width, 2, h)], "tensor")
    return {
        "kind": "positions: control",
        "runs": [{"do": ["compare", "target", "golden"], "exit": [0, 2], "first": ""}],
    }
