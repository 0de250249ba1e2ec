"""A pair of recordings: clean or with one fault, and the truth about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.parity import engines
from tests.corpus.parity.engines import Batch, Engine

KINDS = (
    "clean", "sum_mean", "nan", "padding", "mask", "tokens", "other_context", "shift", "top_p", "router",
    "temperature", "weights",
)  # fmt: skip
NEAR_KINDS = ("clean", "temperature", "top_p", "drift", "router", "flat_drift", "floor_clean")
PARTS = {"usual": KINDS, "few": KINDS, "near": NEAR_KINDS}  # few: 80 to 300 tokens
WITH_FLOOR = ("flat_drift", "floor_clean")  # the noise of a clean pair of the same engines is declared
TOP = 5


class Truth(NamedTuple):
    """The class, and the first bad token if the fault has one."""

    token_class: str
    step: Optional[int] = None
    request: Optional[int] = None
    position: Optional[int] = None


@dataclass
class Case:
    kind: str
    batches: list[Batch]
    truth: Truth
    ids: bool = True  # both sides record tokens
    masks: bool = True
    sums: str = ""  # "sum_mean", "sum_tokens": what the sides record in place of tokens


class Setting(NamedTuple):
    """Sizes and noise of a case."""

    steps: int
    rows: int
    width: int
    noise: Engine
    certain: float  # engines.logits_of; at 1.6 half of the tokens have p > 0.9, as of a trained model


def setting(rng: np.random.Generator, part: str) -> Setting:
    rows, width = int(rng.integers(3, 17)), int(rng.integers(24, 97))
    if part == "near":
        rows, width = int(rng.integers(8, 25)), int(rng.integers(48, 129))
        engine = Engine(
            noise=float(rng.uniform(0.02, 0.04)) / np.sqrt(2), outliers=float(rng.choice([0.0, 0.002, 0.005]))
        )
    elif part == "few":
        rows, width = int(rng.integers(4, 9)), int(rng.integers(20, 41))
        engine = Engine(noise=float(rng.uniform(0.005, 0.04)))
    elif rng.random() < 0.5:
        engine = Engine(rounds=True, noise=0.005)
    else:
        engine = Engine(noise=float(rng.uniform(0.002, 0.03)))
    return Setting(int(rng.integers(1, 4)), rows, width, engine, float(rng.choice([0.2, 0.8, 1.6])))


def make(seed: int, kind: str, part: str = "usual", is_clean: bool = False) -> Case:
    """The case of a seed and kind; `is_clean`: the same engines and sizes without the fault."""
    near = part == "near"
    rng = np.random.default_rng([seed, sum(map(ord, kind)), [*PARTS].index(part)])
    of = setting(rng, part)
    if kind == "drift":
        of = of._replace(steps=int(rng.integers(3, 6)))
    rollout, trainer = _engines(rng, kind, of, near)
    weights = engines.model(rng)
    ids = kind != "other_context" and bool(rng.random() < 0.7 or kind == "tokens")
    at_step = int(rng.integers(of.steps))
    case = Case(kind, [], Truth("clean"), ids=ids)
    for step in range(of.steps):
        bad = (
            kind in ("top_p", "temperature")
            or (kind in ("weights", "drift", "router") and step >= at_step)
            or step == at_step
        )
        drift = 0.0 if is_clean else _drift(rng, kind, step, at_step)
        plain = (Engine(**vars(of.noise)), Engine(**vars(of.noise)))
        sides = (rollout, trainer) if bad else plain
        case.batches.append(_batch(rng, of, sides, weights, drift, kind if bad else ""))
    fault = FAULTS.get(kind)
    if fault is not None:
        fault(rng, case, at_step)
    elif kind not in ("clean", "floor_clean"):
        case.truth = Truth(
            "differs" if kind in ("weights", "drift", "flat_drift") else kind
        )  # no number proves weights
    return case


def _engines(rng: np.random.Generator, kind: str, of: Setting, near: bool) -> tuple[Engine, Engine]:
    rollout, trainer = Engine(**vars(of.noise)), Engine(**vars(of.noise))
    if kind == "temperature":
        values = [0.9, 0.95, 1.05, 1.1] if near else [0.5, 0.6, 0.7, 0.8, 1.25, 1.4, 1.6]
        (rollout if rng.random() < 0.7 else trainer).temperature = float(rng.choice(values))
    if kind == "top_p":
        rollout.top_p = float(rng.choice([0.95, 0.97, 0.98, 0.99] if near else [0.7, 0.8, 0.85, 0.9]))
    return rollout, trainer


def _drift(rng: np.random.Generator, kind: str, step: int, at_step: int) -> float:
    """The standard deviation of the error of a logit by other weights."""
    if kind == "weights" and step >= at_step:
        return float(rng.uniform(0.25, 1.0)) * (1 + 0.3 * (step - at_step))
    return {"drift": 0.05 * step, "flat_drift": 0.05}.get(kind, 0.0)


def _batch(
    rng: np.random.Generator, of: Setting, sides: tuple[Engine, Engine], weights: np.ndarray, drift: float, kind: str
) -> Batch:
    true = engines.logits_of(rng, of.rows, of.width, weights, of.certain)
    other = true
    if drift:
        moved = weights + rng.standard_normal(weights.shape)
        change = engines.logits_of(
            np.random.default_rng(int(rng.integers(1 << 31))), of.rows, of.width, moved, of.certain
        )
        other = true + drift * change / change.std()
    if kind == "router":
        flipped = rng.random(true.shape[:2]) < rng.uniform(0.05, 0.2)
        other = true + flipped[..., None] * rng.uniform(0.8, 2.0) * rng.standard_normal(true.shape)
    logs = [side.logs(one, rng) for side, one in zip(sides, (true, other))]
    ids = engines.sample(logs[0], rng)
    lengths = rng.integers(of.width // 2, of.width + 1, of.rows)
    mask = np.arange(of.width) < lengths[:, None]
    found = [np.where(mask, engines.chosen(one, ids), 0.0).astype(np.float32).astype(np.float64) for one in logs]
    ids = np.where(mask, ids, -1)
    top = {name: engines.top_of(one, TOP) for name, one in zip(("rollout", "trainer"), logs)}
    prompts = [rng.integers(0, engines.VOCABULARY, int(rng.integers(2, 9))).tolist() for _ in lengths]
    return Batch(found[0], found[1], mask, mask.copy(), ids, ids.copy(), lengths, prompts, top)


def _token(rng: np.random.Generator, batch: Batch) -> tuple[int, int]:
    row = int(rng.integers(len(batch.lengths)))
    return row, int(rng.integers(batch.lengths[row]))


def nan(rng: np.random.Generator, case: Case, step: int) -> None:
    batch = case.batches[step]
    row, at = _token(rng, batch)
    side = batch.rollout if rng.random() < 0.5 else batch.trainer
    side[row, at] = rng.choice([np.nan, np.inf, -np.inf])
    case.truth = Truth("nan", step, row, at)


def padding(rng: np.random.Generator, case: Case, step: int) -> None:
    """The trainer counts tokens behind the end; the rollout masks them, or counts them with log-probability 0."""
    batch = case.batches[step]
    batch.lengths[:] = np.minimum(batch.lengths, batch.rollout.shape[1] - 4)
    _cut(batch)
    of_both = rng.random() < 0.5
    for row in range(len(batch.lengths)):
        end = batch.lengths[row]
        count = int(rng.integers(3, batch.rollout.shape[1] - end + 1)) if batch.rollout.shape[1] - end > 3 else 3
        extra = slice(end, end + count)
        batch.trainer[row, extra] = -rng.uniform(1.0, 9.0, count)
        batch.rollout[row, extra] = 0.0
        batch.trainer_mask[row, extra] = True
        batch.rollout_mask[row, extra] = of_both
        batch.rollout_ids[row, extra] = batch.trainer_ids[row, extra] = 0
    case.truth = Truth("padding", step, 0, int(batch.lengths[0]))


def _cut(batch: Batch) -> None:
    mask = np.arange(batch.rollout.shape[1]) < batch.lengths[:, None]
    for name in ("rollout", "trainer"):
        setattr(batch, name, np.where(mask, getattr(batch, name), 0.0))
        setattr(batch, f"{name}_mask", mask.copy())
        setattr(batch, f"{name}_ids", np.where(mask, getattr(batch, f"{name}_ids"), -1))


def mask(rng: np.random.Generator, case: Case, step: int) -> None:
    """Tokens of a tool within responses: the trainer counts them, the rollout has 0."""
    batch = case.batches[step]
    of_both = rng.random() < 0.5
    rows = np.sort(rng.choice(len(batch.lengths), max(2, len(batch.lengths) // 3), replace=False))
    first = None
    for row in rows:
        start = int(rng.integers(2, max(3, batch.lengths[row] - 10)))
        tool = slice(start, start + int(rng.integers(3, 8)))
        batch.rollout[row, tool] = 0.0
        batch.trainer[row, tool] = -rng.uniform(1.0, 9.0, tool.stop - tool.start)
        batch.rollout_mask[row, tool] = of_both
        first = first or (int(row), start)
    case.truth = Truth("mask", step, *first)


def tokens(rng: np.random.Generator, case: Case, step: int) -> None:
    batch = case.batches[step]
    row, at = _token(rng, batch)
    batch.trainer_ids[row, at] = (batch.trainer_ids[row, at] + 7) % engines.VOCABULARY
    batch.trainer[row, at:] = np.where(
        batch.trainer_mask[row, at:], -rng.exponential(2.0, len(batch.trainer[row, at:])), 0
    )
    case.truth = Truth("tokens", step, row, at)


def other_context(rng: np.random.Generator, case: Case, step: int) -> None:
    """From one position of one request on, the trainer scores other tokens; ids are not recorded."""
    batch = case.batches[step]
    row = int(rng.integers(len(batch.lengths)))
    at = int(rng.integers(0, batch.lengths[row] - 8))
    tail = slice(at, batch.lengths[row])
    far = -rng.exponential(2.0, tail.stop - at) - 0.3
    far[0] = batch.rollout[row, at] - 2.0
    batch.trainer[row, tail] = far
    case.truth = Truth("context", step, row, at)


def shift(rng: np.random.Generator, case: Case, step: int) -> None:
    offset = int(rng.choice([1, -1, 2, -2]))
    batch = case.batches[step]
    for row, length in enumerate(batch.lengths):
        batch.trainer[row, :length] = np.roll(batch.trainer[row, :length], offset)
    case.truth = Truth("shift", step, 0, 0)


def sum_mean(rng: np.random.Generator, case: Case, step: int) -> None:
    case.sums = "sum_mean"
    case.truth = Truth("sum_mean")


FAULTS: dict[str, Callable[[np.random.Generator, Case, int], None]] = {
    "nan": nan, "padding": padding, "mask": mask, "tokens": tokens, "other_context": other_context, "shift": shift,
    "sum_mean": sum_mean,
}  # fmt: skip
