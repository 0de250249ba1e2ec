"""Modules of a user's own, of whose inside no dump of modules tells anything: a wrong backward, or a choice inside that
truly flipped (ReLU, a clip, a maximum of pairs)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Typed, rounded, unary, write

CLASSES = ("FeedForward", "Adapter", "Expert", "MyBlock", "ResidualUnit", "Head", "Fusion", "Bottleneck", "Cell")
NOISE = {"float32": 4e-8, "bfloat16": 2e-4, "float16": 2.5e-5}  # of the products of one side, before they are stored
SMOOTH, CHOOSING = ("tanh", "gelu", "silu"), ("relu", "hardtanh", "pairs")


class Fault(NamedTuple):
    """The block with a wrong gradient, how it is wrong, and its rel_l2."""

    at: int = -1
    how: str = ""
    size: float = 0.0

    def strike(self, at: int, values: np.ndarray) -> np.ndarray:
        if at != self.at:
            return values
        if self.how == "scaled":
            return values * (1.0 + self.size)
        if self.how == "columns":
            wrong = values.copy()
            wrong[..., : max(1, round(self.size**2 * values.shape[-1]))] *= -0.5
            return wrong
        pattern = np.cos(np.arange(values.size) * 1.7).reshape(values.shape)
        return values + self.size * np.sqrt((values**2).mean() / 0.5) * pattern


class Block(NamedTuple):
    name: str
    kind: str
    first: np.ndarray
    bias: np.ndarray
    second: np.ndarray

    def hidden(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64) @ self.first.T + self.bias

    def chosen(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values behind the function, and its slope."""
        if self.kind in SMOOTH:
            return unary(self.kind, hidden)
        if self.kind == "relu":
            slope = (hidden > 0).astype(np.float64)
        elif self.kind == "hardtanh":
            return hidden.clip(-1.0, 1.0), (np.abs(hidden) < 1.0).astype(np.float64)
        else:
            pairs = hidden.reshape(*hidden.shape[:-1], -1, 2)
            slope = (pairs.argmax(-1)[..., None] == np.arange(2)).astype(np.float64).reshape(hidden.shape)
        return hidden * slope, slope


class Side:
    """The arithmetic of one side: each result has an error relative to its rms, and is stored in a type."""

    def __init__(self, seed: int, dtype: str) -> None:
        self._random, self._noise, self.dtype = np.random.default_rng(seed), NOISE[dtype], dtype

    def store(self, values: np.ndarray) -> np.ndarray:
        return rounded(self.product(values), self.dtype)

    def product(self, values: np.ndarray) -> np.ndarray:
        rms = np.sqrt((np.asarray(values, np.float64) ** 2).mean())
        return values + self._noise * rms * self._random.standard_normal(np.shape(values))


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    dtype = str(random.choice(["float32", "float32", "float32", "bfloat16", "float16"]))
    is_faulty = bool(random.random() < 0.6)
    level = str(random.choice(["L0", "L0", "mix", "L1"]))
    form = str(random.choice(["pt", "pt", "npy"]))
    exact = dtype == "float32"
    few = (2, 3, 5, 8) if is_faulty and exact else (16, 24, 64)
    shape = int(random.choice(few)), int(random.choice([4, 7, 16])), int(random.choice([8, 12, 24, 48]))
    kinds = SMOOTH + CHOOSING[: 3 if level == "L0" else 2] * 2
    blocks = _blocks(random, shape[-1], dtype, kinds, "Cell" if form == "npy" else "Module")
    x = rounded(random.standard_normal(shape), dtype)
    fault = Fault()
    if is_faulty:
        at = int(random.integers(1, len(blocks)))
        size = random.uniform(0.05, 0.5) if exact else random.uniform(0.6, 0.9)
        fault = Fault(at, str(random.choice(["scaled", "columns", "pattern"])), float(size))
    elif exact:
        blocks = _with_a_tie(random, blocks, x, dtype)
    gradients = bool(random.random() < 0.5)
    is_residual = bool(random.random() < 0.4) and level == "L0" and (is_faulty or not exact)
    for side in ("golden", "target"):
        own = Side(int(random.integers(1 << 30)), dtype)
        records = _records(blocks, x, own, fault if side == "target" else Fault(), level, gradients, is_residual)
        write(folder / side, records, form, level)
    return _case(blocks, fault, level)


def _blocks(random: np.random.Generator, width: int, dtype: str, kinds: tuple[str, ...], prefix: str) -> list[Block]:
    stem, attribute = (
        str(random.choice(["layers", "model.blocks", "net.stages"])),
        str(random.choice(["ff", "mix", ""])),
    )
    found = []
    for at in range(int(random.integers(2, 5))):
        wide = width * int(random.choice([1, 2, 4]))
        path = ".".join(filter(None, (prefix, stem, str(at), attribute)))
        kind = str(random.choice(kinds))
        first = rounded(random.standard_normal((wide, width)) / np.sqrt(width), dtype)
        second = rounded(random.standard_normal((width, wide)) * 1.5 / np.sqrt(wide), dtype)
        if kind == "pairs":
            second = np.repeat(second[:, ::2], 2, 1)  # the maximum of a pair has one weight
        bias = rounded(random.standard_normal(wide) / 8, dtype)
        found.append(Block(f"{path}.{random.choice(CLASSES)}", kind, first, bias, second))
    return found


def _with_a_tie(random: np.random.Generator, blocks: list[Block], x: np.ndarray, dtype: str) -> list[Block]:
    """Move a bias so that one value of a choice lies at its kink within the rounding of both sides."""
    read, found = x, []
    for block in blocks:
        if block.kind in CHOOSING:
            hidden = block.hidden(read).reshape(-1, len(block.bias))
            row = int(random.integers(len(hidden)))
            kink = {"relu": 0.0, "hardtanh": 1.0, "pairs": hidden[row, 1]}[block.kind]
            block.bias[0] += kink - hidden[row, 0]
        found.append(block)
        read = rounded(block.chosen(block.hidden(read))[0] @ block.second.T, dtype)
    return found


def _records(
    blocks: list[Block], x: np.ndarray, side: Side, fault: Fault, level: str, gradients: bool, is_residual: bool
) -> dict[str, dict[str, Any]]:
    """The records of one side. is_residual: what a block writes is added to what it read, in code without a record."""
    found: dict[str, dict[str, Any]] = {}
    inner = level != "L0"
    read, saved = x, []

    def typed(*values: Optional[np.ndarray]) -> list[Optional[Typed]]:
        return [None if value is None else Typed(value, side.dtype) for value in values]

    def add(name: str, read: list[Any], wrote: list[Any], key: str = "input_args") -> None:
        found[name] = {key: read, **({"input_kwargs": {}} if key == "input_args" else {}), "output": wrote}

    for at, block in enumerate(blocks):
        hidden = side.store(block.hidden(read)) if inner else side.product(block.hidden(read))
        chosen, slope = block.chosen(hidden)
        chosen = rounded(chosen, side.dtype) if inner else chosen
        wrote = side.store(chosen @ block.second.T)
        if inner:
            add(f"Functional.linear.{2 * at}.forward", typed(read, block.first, block.bias), typed(hidden))
            number = sum(before.kind == block.kind for before in blocks[:at])
            add(f"Functional.{block.kind}.{number}.forward", typed(hidden), typed(chosen))
            add(f"Functional.linear.{2 * at + 1}.forward", typed(chosen, block.second), typed(wrote))
        if level != "L1":
            add(f"{block.name}.forward.0", typed(read), typed(wrote))
        saved.append((read, hidden, chosen, slope))
        read = rounded(read + wrote, side.dtype) if is_residual else wrote
    gradient = side.store(2e2 * read.astype(np.float64) / read.size)
    for at, block in reversed([*enumerate(blocks)]):
        before, hidden, chosen, slope = saved[at]
        incoming = gradient
        flat = incoming.astype(np.float64).reshape(-1, incoming.shape[-1])
        behind = incoming.astype(np.float64) @ block.second
        behind = side.store(behind) if inner else behind
        inside = behind * slope
        inside = rounded(inside, side.dtype) if inner else inside
        gradient = side.store(fault.strike(at, inside @ block.first))
        of_first = side.store(inside.reshape(-1, inside.shape[-1]).T @ before.reshape(-1, before.shape[-1]))
        of_bias = side.store(inside.reshape(-1, inside.shape[-1]).sum(0))
        of_second = side.store(flat.T @ chosen.reshape(-1, chosen.shape[-1]))
        passed = gradient if at else None
        if inner:
            add(f"Functional.linear.{2 * at + 1}.backward", typed(incoming), typed(behind, of_second), "input")
            number = sum(before.kind == block.kind for before in blocks[:at])
            add(f"Functional.{block.kind}.{number}.backward", typed(behind), typed(inside), "input")
            add(f"Functional.linear.{2 * at}.backward", typed(inside), typed(passed, of_first, of_bias), "input")
        if level != "L1":
            if gradients:
                own = {"first.weight": of_first, "first.bias": of_bias, "second.weight": of_second}
                found[f"{block.name}.parameters_grad.0"] = {key: Typed(value, side.dtype) for key, value in own.items()}
            add(f"{block.name}.backward.0", typed(incoming), typed(passed), "input")
        if is_residual:
            gradient = rounded(incoming + gradient, side.dtype)
    return found


def _case(blocks: list[Block], fault: Fault, level: str) -> dict[str, Any]:
    run: dict[str, Any] = {"do": ["compare", "target", "golden"]}
    if fault.at < 0:
        run |= {"exit": [0], "first": ""}
    else:
        names = [rf"{re.escape(blocks[fault.at].name)}\.backward"] if level != "L1" else []
        names += [rf"Functional\.linear\.{2 * fault.at}\.backward"] if level != "L0" else []
        run |= {"exit": [1], "first": "|".join(names)}
    control = "" if fault.at >= 0 else ": control"
    return {
        "kind": f"opaque_modules, {'clean' if control else 'wrong'}: {level}{control}",
        "report": "a wrong backward of a module of the user's own",
        "runs": [run],
    }
