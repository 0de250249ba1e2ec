"""Decoding in steps on both sides, which cut the same requests into other chunks: prefill and decoding, or chunks.

Steps are packed, or batches of one token a request. Clean runs are silent, and a wrong token, operator or value of the
cache is found in its request. Controls: equal chunks, and a target that decoded another token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_tokens as dumps
from tests.corpus.reports.kinds.token_records import _fault, _names, _records, _size

NEVER = ["statistics cannot prove", "times the golden", "other tokens prove nothing"]


def draw(random: np.random.Generator, folder: Path) -> dict:
    count, vocabulary = int(random.integers(1, 5)), int(random.choice([30, 60, 300]))
    is_even = bool(random.random() < 0.4)
    lengths = [int(length) for length in random.integers(5, 12, count)]
    lengths = [lengths[0]] * count if is_even else lengths
    ids = [random.integers(3, vocabulary, length) for length in lengths]
    decoder = dumps.Decoder(int(random.integers(1 << 30)), vocabulary, *_size(random))
    order = [*range(count)]
    kind = str(random.choice(["chunks", "chunks", "chunks", "whole", "same", "other token"]))
    golden = _chunks(random, lengths, order)
    target = golden if kind in ("same", "other token") else _chunks(random, lengths, order)
    while kind == "chunks" and [len(step.tokens) for step in target] == [len(step.tokens) for step in golden]:
        target = _chunks(random, lengths, order)
    if kind == "whole":
        target = dumps.packed(lengths, [int(request) for request in random.permutation(count)])
    fault, first, says, change, attend = _fault(random, decoder, lengths, order, ids)
    names, has_positions = _names(random), bool(random.random() < 0.8) or kind == "whole"
    form = str(random.choice(["sglang", "pt", "npy", "msprobe", "msprobe_kwargs"]))
    if not has_positions:
        says = []
    right = decoder.run(ids)
    if kind == "other token":
        own = [values.copy() for values in ids]
        own[0][-1] = (own[0][-1] + 1 - 3) % (vocabulary - 3) + 3
        fault, first = "other token", "input_ids|embed_tokens"
        wrong = decoder.run(own)
    else:
        wrong = decoder.run(ids, change, attend)
    pads = decoder.run([np.zeros(4, int)])
    kept = _kept(names, has_positions)
    for side, steps, rows in (("target", target, wrong), ("golden", golden, right)):
        dumps.write(folder / side, form, steps, rows, pads, kept(_records(random, names, has_positions, False)))
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": NEVER if fault == "none" else NEVER[:1]}
    if kind == "chunks" and len({*lengths}) > 1:
        says = []  # which of several requests of one length goes on is not recorded
    if fault == "none":
        run.update(exit=[0] if has_positions else [0, 2], first="")
    else:
        run.update(exit=[1] if has_positions or kind in ("same", "other token") else [1, 2], first=first)
        if kind in ("chunks", "whole") and has_positions:
            run["says"] = says
        elif not has_positions and kind in ("chunks", "whole"):
            run.pop("first")
    is_control = kind in ("same", "other token")
    return {"kind": "decode: control" if is_control else f"decode: {kind} {fault}", "form": form, "lengths": lengths,
            "chunks": [[len(step.tokens) for step in steps] for steps in (target, golden)], "runs": [run]}  # fmt: skip


def _kept(names: dict[str, str], has_positions: bool) -> Any:
    """The records of each step, positions among them in all of them."""

    def wrapped(records: Any) -> Any:
        def found(step: dumps.Step) -> dict[str, Any]:
            own = records(step)
            if has_positions:
                own.setdefault(names["positions"], step.positions)
            return own

        return found

    return wrapped


def _chunks(random: np.random.Generator, lengths: list[int], order: list[int]) -> list[dumps.Step]:
    how = str(random.choice(["decode", "chunked", "lanes"]))
    if how == "decode":
        return dumps.decoded(lengths, order, int(random.integers(1, 4)))
    if how == "lanes" and len({*lengths}) == 1 and len(lengths) > 1:  # a batch, one token of each request a step
        head = int(random.integers(2, lengths[0]))
        lanes = [np.array([[(one, place) for place in range(head)] for one in order])]
        lanes += [np.array([[(one, place)] for one in order]) for place in range(head, lengths[0])]
        return [dumps.Step(tokens) for tokens in lanes]
    sizes = [int(size) for size in random.integers(1, 5, 14)]
    return dumps.chunked(lengths, order, sizes)
