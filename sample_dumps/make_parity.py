"""Makes parity_temperature: log-probabilities of a rollout and of a trainer, three steps as verl records them.

A toy model of numpy scores 12 responses a step. Both engines round their logits to bfloat16. From step 1 on the rollout
divides its logits by a temperature of 0.8 before it records log-probabilities, the trainer does not. No device and no
framework was at hand.

    python make_parity.py [FOLDER]          writes FOLDER/rollout and FOLDER/trainer, by default parity_temperature
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

STEPS, REQUESTS, WIDTH, VOCABULARY, HIDDEN = 3, 12, 48, 40, 16
TEMPERATURE = 0.8


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounds to 8 bits, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    above = logits - logits.max(axis=-1, keepdims=True)
    return above - np.log(np.exp(above).sum(axis=-1, keepdims=True))


def write(folder: Path) -> None:
    """All steps of both sides."""
    random = np.random.default_rng(7)
    weights = random.standard_normal((HIDDEN, VOCABULARY))
    for side in ("rollout", "trainer"):
        shutil.rmtree(folder / side, ignore_errors=True)
    for step in range(STEPS):
        states = random.standard_normal((REQUESTS, WIDTH, HIDDEN))
        logits = np.exp(random.normal(0.3, 0.6, (REQUESTS, WIDTH, 1))) * np.einsum("rwh,hv->rwv", states, weights) / 3
        noise = [bfloat16(logits + 0.01 * random.standard_normal(logits.shape)) for _ in range(2)]
        logs = [log_softmax(noise[0] / (TEMPERATURE if step else 1.0)), log_softmax(noise[1])]
        ids = np.argmax(logs[0] + random.gumbel(size=logits.shape), axis=-1)
        mask = np.arange(WIDTH) < random.integers(WIDTH // 2, WIDTH + 1, REQUESTS)[:, None]
        chosen = [np.take_along_axis(one, ids[..., None], -1)[..., 0] for one in logs]
        for side, name, values in zip(("rollout", "trainer"), ("rollout_log_probs", "old_log_probs"), chosen):
            place = folder / side / f"step_{step}"
            place.mkdir(parents=True)
            np.save(
                place / f"{name}.npy", np.where(mask, values, -1.0 if side == "rollout" else 0.0).astype(np.float32)
            )
            np.save(place / "response_mask.npy", mask.astype(np.int8))
            np.save(place / "responses.npy", np.where(mask, ids, 0).astype(np.int32))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "parity_temperature")
