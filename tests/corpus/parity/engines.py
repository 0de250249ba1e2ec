"""Two engines that score the same tokens: logits of a toy model, their errors, sampling, log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

VOCABULARY = 48
HIDDEN = 24


@dataclass
class Batch:
    """One step: rows of one width. Masks are of the responses; ids are -1 behind them."""

    rollout: np.ndarray
    trainer: np.ndarray
    rollout_mask: np.ndarray
    trainer_mask: np.ndarray
    rollout_ids: np.ndarray
    trainer_ids: np.ndarray
    lengths: np.ndarray
    prompts: list[list[int]] = field(default_factory=list)
    top: Optional[dict[str, tuple[np.ndarray, np.ndarray]]] = None  # side → ids, log-probabilities (B, S, k)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def nucleus(logs: np.ndarray, top_p: float) -> np.ndarray:
    """Log-probabilities of the fewest likely tokens that hold `top_p`, -inf for the others."""
    order = np.argsort(-logs, axis=-1)
    sorted_logs = np.take_along_axis(logs, order, -1)
    before = np.cumsum(np.exp(sorted_logs), -1) - np.exp(sorted_logs)
    kept = np.where(before < top_p, sorted_logs, -np.inf)
    kept = kept - np.log(np.exp(kept).sum(-1, keepdims=True))
    found = np.empty_like(kept)
    np.put_along_axis(found, order, kept, -1)
    return found


@dataclass
class Engine:
    """What an engine does to the true logits: noise of every logit, outliers, another temperature, a nucleus."""

    noise: float = 0.0
    rounds: bool = False
    outliers: float = 0.0
    temperature: float = 1.0
    top_p: float = 1.0

    def logs(self, logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        found = logits + self.noise * rng.standard_normal(logits.shape)
        if self.outliers:  # a few positions with ten times the noise
            hit = rng.random(logits.shape[:-1]) < self.outliers
            found = found + hit[..., None] * 10 * self.noise * rng.standard_normal(logits.shape)
        if self.rounds:
            found = bfloat16(found)
        logs = log_softmax(found / self.temperature)
        return nucleus(logs, self.top_p) if self.top_p < 1 else logs


def logits_of(rng: np.random.Generator, rows: int, width: int, weights: np.ndarray, certain: float = 0.4) -> np.ndarray:
    """True logits (rows, width, vocabulary) of a toy model: some positions are nearly certain, others open.
    `certain` is the logarithm of the usual sharpness."""
    states = rng.standard_normal((rows, width, HIDDEN)) + 0.5 * rng.standard_normal((rows, 1, HIDDEN))
    sharpness = np.exp(rng.normal(certain, 0.7, (rows, width, 1)))
    return sharpness * (states @ weights) / np.sqrt(HIDDEN) * 1.5


def model(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((HIDDEN, VOCABULARY))


def sample(logs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A token of each position, by the log-probabilities."""
    return np.argmax(logs + rng.gumbel(size=logs.shape), axis=-1)


def chosen(logs: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.take_along_axis(logs, ids[..., None], -1)[..., 0]


def top_of(logs: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-logs, axis=-1)[..., :count]
    return ids, np.take_along_axis(logs, ids, -1)
