"""Operators that draw random numbers: another mask, the same mask, a wrong scale, a fault behind another mask, and a
forward that runs again in the backward pass (checkpointing) and draws another mask there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.synthetic import with_checksums, with_statistics, write_run

KIND = "recompute: another random draw"
DRAWS = "random|seed|generator"
SOURCES = ("rand", "randn", "bernoulli", "normal", "randn_like", "multinomial", "gumbel_softmax")
FAULTS = ("mask", "mask", "masks", "mask and gelu", "scale", "gelu", "none", "none", "source", "same source")
AGAIN = ("none", "mask")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    """Write a pair of runs and return its case."""
    again = bool(random.random() < 0.3)
    fault = str(random.choice(AGAIN if again else FAULTS))
    style = str(random.choice(["values", "values", "both", "statistics", "checksums"]))
    if fault in ("none", "same source", "mask and gelu", "gelu", "scale") or again:
        style = str(random.choice(["values", "both"]))
    network = _Network(random, again, fault)
    for side in ("golden", "target"):
        run = write_run(folder / side, network.run(side))
        if style != "values":
            (with_checksums if style == "checksums" else with_statistics)(
                run, **({} if style == "checksums" else {"alone": style == "statistics"})
            )
    return {"kind": KIND + (": control" if fault in ("none", "same source") else ""), "runs": network.answers(style)}


class _Network:
    """Blocks of linear, an activation, dropout and a sum, with a head."""

    def __init__(self, random: np.random.Generator, again: bool, fault: str) -> None:
        self.fault, self.again, self.seed = fault, again, int(random.integers(1 << 30))
        self.rows, self.width = int(random.integers(6, 40)), int(random.integers(12, 48))
        self.blocks = 1 if again else int(random.integers(1, 4))
        self.at = int(random.integers(self.blocks))
        self.share = float(random.choice([0.1, 0.2, 0.3, 0.5]))
        self.dtype = np.dtype(str(random.choice(["float32", "float32", "float16"])))
        self.act = "gelu" if "gelu" in fault or random.random() < 0.5 else "relu"
        self.noisy, self.source = bool(random.random() < 0.5) and not again, str(random.choice(SOURCES))
        self.prefix = str(random.choice(["Functional", "Mint"])) if not again else "Functional"
        self.steps = int(random.integers(0, 5)) / 2

    def run(self, side: str) -> dict[str, Any]:
        """Return the operators of one run."""
        self.side, self.calls, self.made = side, dict[str, int](), dict[str, Any]()
        values = np.random.default_rng(self.seed)
        self.noise = np.random.default_rng([self.seed, 1, side == "target"])
        make = lambda *shape: values.normal(size=shape).astype(self.dtype)  # noqa: E731
        x = make(self.rows, self.width)
        weights = [(make(self.width, self.width) / math.sqrt(self.width)).astype(self.dtype) for _ in range(8)]
        if "source" in self.fault:
            x = self._source(x)
        saved = []
        start = x
        for block in range(self.blocks):
            x, kept = self._block(x, weights[block], weights[block + 4], block, self._mask_seed(block))
            saved.append(kept)
        if not self.again:
            self._call("linear", [x, weights[3]], self._product(x, weights[3].T))
            return self.made
        y = self._call("linear", [x, weights[3]], self._product(x, weights[3].T))
        gradient = self._round(2 * y.astype("float64") / y.size)
        gradient = self._back("linear", 1 + self.blocks, [gradient], [self._product(gradient, weights[3])])
        other = 77 if self.fault == "mask" and side == "target" else self._mask_seed(0)
        _, kept = self._block(start, weights[0], weights[4], 0, other)
        self._block_backward(gradient, kept, weights[0], weights[4])
        return self.made

    def _mask_seed(self, block: int) -> int:
        hit = block == self.at or (self.fault == "masks" and block >= self.at)
        changed = self.fault in ("mask", "masks", "mask and gelu") and self.side == "target" and not self.again
        return block + (77 if changed and hit else 0)

    def _block(self, x: Any, weight: Any, second: Any, block: int, seed: int) -> tuple[Any, dict[str, Any]]:
        up = self._call("linear", [x, weight], self._product(x, weight.T))
        wrong = "gelu" in self.fault and self.side == "target" and block == self.blocks - 1
        early = up if self.fault == "gelu" else None
        act = self._call(self.act, [up], self._activation(up, wrong and early is not None))
        mask = np.random.default_rng([self.seed, 5, seed]).random(x.shape) >= self.share
        scale = 1 / (1 - self.share)
        if self.fault == "scale" and self.side == "target" and block == self.at:
            scale = 1.0
        dropped = self._call("dropout", [act, self.share, True, False], self._round(act * mask * scale))
        down = self._call("linear", [dropped, second], self._product(dropped, second.T))
        if self.fault == "mask and gelu":
            down = self._call("gelu", [down], self._gelu(down, wrong))
        total = self._call("add", [x, down], self._round(x.astype("float64") + down))
        return total, {"x": x, "up": up, "act": act, "mask": mask * scale, "dropped": dropped}

    def _block_backward(self, gradient: Any, kept: dict[str, Any], weight: Any, second: Any) -> None:
        """The backward of the block under the calls of the first forward."""
        self._back("add", 0, [gradient], [gradient, gradient])
        to_weight = self._product(gradient.T, kept["dropped"])
        middle = self._back("linear", 1, [gradient], [self._product(gradient, second), to_weight])
        masked = self._back("dropout", 0, [middle], [self._round(middle * kept["mask"])])
        up = kept["up"].astype("float64")
        slope = (up > 0) if self.act == "relu" else _phi(up) + up * np.exp(-up * up / 2) / math.sqrt(2 * math.pi)
        inner = self._back(self.act, 0, [masked], [self._round(masked * slope)])
        self._back("linear", 0, [inner], [self._product(inner, weight), self._product(inner.T, kept["x"])])

    def _source(self, x: Any) -> Any:
        """A random operator in front."""
        seed = 6 if self.fault == "source" and self.side == "target" else 5
        drawn = np.random.default_rng([self.seed, seed])
        if self.source in ("rand", "randn", "normal"):
            given: list[Any] = [self.rows, self.width]
            value = drawn.random(x.shape) if self.source == "rand" else drawn.normal(size=x.shape)
        elif self.source == "bernoulli":
            odds = self._round(_phi(x.astype("float64")))
            given, value = [odds], drawn.random(x.shape) < odds
        elif self.source == "multinomial":
            odds = self._round(np.exp(x.astype("float64")))
            scores = np.log(odds.astype("float64")) + drawn.gumbel(size=x.shape)
            places = np.argsort(-scores, axis=-1)[:, :4]
            self._call("multinomial", [odds, 4], places)
            return self._call(
                "gather", [x, 1, places], np.tile(np.take_along_axis(x, places, 1), self.width)[:, : self.width]
            )
        elif self.source == "gumbel_softmax":
            scores = x + drawn.gumbel(size=x.shape)
            given, value = [x], np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        else:
            given, value = [x], drawn.normal(size=x.shape)
        out = self._call(self.source, given, self._round(value))
        return self._call("mul", [x, out], self._round(x * out.astype("float64")))

    def _product(self, x: Any, y: Any) -> Any:
        exact = x.astype("float64") @ y.astype("float64")
        unit = np.finfo(self.dtype).eps / 4
        return self._round(exact * (1 + unit * self.noise.normal(size=exact.shape)) if self.noisy else exact)

    def _activation(self, x: Any, wrong: bool) -> Any:
        return self._gelu(x, wrong) if self.act == "gelu" else np.maximum(x, 0)

    def _gelu(self, x: Any, wrong: bool) -> Any:
        wide = x.astype("float64")
        tanh = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        return self._round(tanh if wrong and self.dtype == "float32" else wide * _phi(wide) * (1.05 if wrong else 1))

    def _round(self, value: Any) -> Any:
        return np.asarray(value).astype(self.dtype)

    def _call(self, kind: str, given: list[Any], out: Any) -> Any:
        count = self.calls[kind] = self.calls.get(kind, -1) + 1
        self.made[f"{self._prefix(kind)}.{kind}.{count}.forward"] = {"in": given, "out": [out]}
        return out

    def _back(self, kind: str, call: int, given: list[Any], out: list[Any]) -> Any:
        self.made[f"{self._prefix(kind)}.{kind}.{call}.backward"] = {"in": given, "out": out}
        return out[0]

    def _prefix(self, kind: str) -> str:
        plain = {"add", "mul", "gather", "rand", "randn", "bernoulli", "normal", "randn_like", "multinomial"}
        return "Torch" if kind in plain and self.prefix == "Functional" else self.prefix

    def answers(self, style: str) -> list[dict[str, Any]]:
        """Return the commands and their answers."""
        compare: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1]}
        never = ["explained by upstream errors", "none diverged"]
        if self.fault in ("none", "same source"):
            return [{**compare, "exit": [0], "first": "", "never": ["originates"]}]
        if self.fault in ("source", "same source"):
            first = rf"\.{self.source}\.0\.forward"
        elif self.fault == "gelu":
            first = rf"gelu\.{self.blocks - 1}\.forward"
        else:
            first = rf"dropout\.{1 if self.again else self.at}\.forward"
        found = {**compare, "first": first, "never": never}
        if self.fault in ("source", "mask", "masks", "mask and gelu"):
            found["says"] = [DRAWS]
        if self.fault == "scale":
            found["never"] = [*never, "drew another"]
        if self.again:
            found["never"] = [*never, r"(BORN|WORSENED|UNKNOWN) \S+\.backward"]
        if style in ("statistics", "checksums"):
            return [{"do": compare["do"], "exit": [1, 2], "never": ["AGREES:", *never[:1]]}]
        if self.fault != "mask and gelu":
            return [found]
        behind = rf"gelu\.{self._last_gelu}\.forward"
        return [found, {**found, "first": behind, "places": 3}]

    @property
    def _last_gelu(self) -> int:
        return self.calls["gelu"]


def _phi(x: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
