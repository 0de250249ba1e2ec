"""The second generator of pairs of log-probabilities, and what `npucmp parity` says of them: other toy models, every
cause alone and in pairs, on some requests, from a position on.

python -m tests.corpus.parity.second SEED COUNT             COUNT pairs of each kind, 4 COUNT of the clean ones
python -m tests.corpus.parity.second SEED COUNT --cases     pairs that are neither right nor honest; not from seed 1000
python -m tests.corpus.parity.second SEED COUNT --only 'pack*'
python -m tests.corpus.parity.second SEED COUNT --keep DIR  writes the pairs of these seeds

right: a class of the truth. honest: undecided, or DIFFERS whose sentences name a cause of the truth. unnamed: DIFFERS
whose sentences do not. wrong: another class. silent: a fault that is called clean; faint: one that hides in the noise.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

import npucmp
from tests.corpus.parity import files
from tests.corpus.parity.toy_models import Engine, Model, Processor, Random, Sampled, model, noise_of, run

HELD = 1000

SAYS = {
    "temperature": r"temperature",
    "logits": r"function of the logits|soft-?cap|penalt|bias|processor",
    "top_p": r"top-?[pk]|truncat|nucleus",
    "record": r"record|most likely|another token|\bmean\b|\bsum\b",
    "sum_mean": r"\bmean\b|\bsum\b",
    "shift": r"shift|neighbo|one position|next position|in front",
    "context": r"context|pack|left padding|rotary|cache|prefix",
    "tokens": r"\bids?\b|other tokens|retoken",
    "mask": r"mask",
    "padding": r"padding|behind the end",
    "weights": r"weights",
    "dropout": r"dropout",
    "computation": r"computation|computes?\b|kernel",
    "router": r"expert|router",
    "nan": r"finite",
}  # fmt: skip


@dataclass
class Rows:
    """What one side records of its requests."""

    values: list[list[Optional[float]]]
    ids: list[list[int]]
    masks: Optional[list[list[int]]] = None
    top: Optional[list[list[dict[int, float]]]] = None
    experts: Optional[np.ndarray] = None


@dataclass
class Pair:
    """Both recordings, a list of steps, and the truth about them."""

    kind: str
    classes: frozenset[str]  # empty: clean
    causes: frozenset[str]  # what an undecided answer may name (keys of SAYS)
    steps: list[tuple[Rows, Rows]] = field(default_factory=list)
    has_ids: bool = True
    floor: Optional[float] = None
    is_faint: bool = False
    places: set[tuple[int, int, int]] = field(default_factory=set)  # the first bad token of each step
    sums: bool = False


@dataclass
class Setting:
    model: Model
    rows: int
    length: int
    noise: str
    size: float
    floor: Optional[float]


@dataclass
class Fault:
    """What the two engines do, and what is recorded otherwise. Functions of `FAULTS` fill it."""

    rollout: Engine
    trainer: Engine
    classes: set[str] = field(default_factory=set)
    causes: set[str] = field(default_factory=set)
    record: Optional[Processor] = None
    needs_ids: bool = False
    after: list[Callable[[Random, Fault, Sampled, list[list[int]], np.ndarray], Optional[Engine]]] = field(
        default_factory=list
    )  # the trainer once the tokens are known
    records: list[Callable[[Random, Pair, Rows, Rows, Setting], None]] = field(default_factory=list)
    eos: Optional[int] = None
    experts: Optional[np.ndarray] = None  # (rows, length): the other experts' places
    is_exact: bool = False  # visible however small the difference
    quiet: float = 1.0  # factor of the noise

    def means(self, *classes: str, causes: tuple[str, ...] = ()) -> None:
        self.classes |= {*classes}
        self.causes |= {*classes, *causes}


def setting(random: Random, rows: int = 1, length: int = 3, words: bool = True) -> Setting:
    """Sizes, model and noise. `rows` and `length` are the fewest that a fault needs."""
    many = int(np.exp(random.uniform(np.log(rows), np.log(65))))
    long = int(np.exp(random.uniform(np.log(length), np.log(301))))
    many, long = max(rows, min(many, 64)), max(length, min(long, 300))
    many = max(rows, min(many, 5000 // long))
    vocabulary = int(np.exp(random.uniform(np.log(50), np.log(50001))))
    explicit = int(np.clip(500_000 / (many * long), 48, 600))
    count = int(random.integers(1, 4)) if words and random.random() < 0.3 else 0
    sharp = float(random.choice([0.0, 0.4, 0.8, 1.2]))
    longest = float(random.choice([0.9, 0.97, 0.995] if words else [0.97, 0.99, 0.995]))
    noise = str(random.choice(["plain", "bfloat16", "fp8", "kv"]))
    size = float(random.uniform(0.005, 0.04))
    floor = None
    if noise in ("fp8", "kv") and random.random() < 0.5:
        size = float(random.uniform(0.04, 0.15))
        floor = round(1.4 * size, 3)
    return Setting(model(random, vocabulary, explicit, count, sharp, longest), many, long, noise, size, floor)


def temperature(random: Random, fault: Fault, of: Setting) -> None:
    value = float(random.choice([0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5]))
    processor = Processor(temperature=value)
    how = random.random()
    if how < 0.6:
        _process(fault, temperature=value)
    elif how < 0.8:
        fault.trainer = replace(fault.trainer, processor=processor)
    else:  # sampled with it, recorded before it; the trainer applies it
        fault.record = fault.rollout.processor
        _process(fault, temperature=value)
        fault.trainer = replace(fault.trainer, processor=processor)
    fault.means("temperature")


def _process(fault: Fault, **given: Any) -> None:
    fault.rollout = replace(fault.rollout, processor=replace(fault.rollout.processor, **given))


def softcap(random: Random, fault: Fault, of: Setting) -> None:
    spread = np.exp(of.model.sharp + 0.5) * np.sqrt(1 + of.model.bias.std() ** 2)
    cap = float(spread * random.uniform(1.0, 2.5))
    if random.random() < 0.5:
        _process(fault, cap=cap)
    else:
        fault.trainer = replace(fault.trainer, processor=Processor(cap=cap))
    fault.means("logits")


def repetition(random: Random, fault: Fault, of: Setting) -> None:
    _process(fault, repetition=float(random.choice([1.05, 1.1, 1.2, 1.3])))
    fault.means("logits")
    fault.needs_ids = bool(random.random() < 0.85)


def presence(random: Random, fault: Fault, of: Setting) -> None:
    if random.random() < 0.6:
        _process(fault, presence=float(random.uniform(0.2, 1.5)))
    else:
        _process(fault, frequency=float(random.uniform(0.2, 0.8)))
    fault.means("logits")
    fault.needs_ids = bool(random.random() < 0.85)


def bias(random: Random, fault: Fault, of: Setting) -> None:
    added = np.zeros(of.model.explicit)
    chosen = random.choice(of.model.explicit, int(random.integers(1, 6)), replace=False)
    added[chosen] = random.choice([-1, 1]) * random.uniform(0.7, 4.0)
    _process(fault, bias=added)
    fault.means("logits")
    fault.needs_ids = bool(random.random() < 0.85)


def top_p(random: Random, fault: Fault, of: Setting) -> None:
    _process(fault, top_p=float(random.choice([0.7, 0.8, 0.9, 0.95, 0.98])))
    fault.means("top_p")


def top_k(random: Random, fault: Fault, of: Setting) -> None:
    _process(fault, top_k=int(random.choice([2, 3, 5, 10, 20, 50])))
    fault.means("top_p")


def top_one(random: Random, fault: Fault, of: Setting) -> None:
    """The rollout records the most likely token; the places of it are those of the sampled one."""
    fault.means("record")
    fault.records.append(_record_top)


def _record_top(random: Random, pair: Pair, rollout: Rows, trainer: Rows, of: Setting) -> None:
    assert rollout.top is not None
    for values, maps in zip(rollout.values, rollout.top):
        for place, tokens in enumerate(maps[: len(values)]):
            values[place] = max(tokens.values())
    rollout.top = trainer.top = None


def request_mean(random: Random, fault: Fault, of: Setting) -> None:
    """Every token of the rollout has the mean of its request, as of a sequence-level ratio."""
    fault.means("record", "sum_mean")
    fault.records.append(
        lambda random, pair, rollout, trainer, of: _each(rollout, lambda row: [np.mean(row)] * len(row))
    )


def running_sum(random: Random, fault: Fault, of: Setting) -> None:
    fault.means("record", "sum_mean")
    fault.records.append(lambda random, pair, rollout, trainer, of: _each(rollout, lambda row: np.cumsum(row).tolist()))


def _each(rows: Rows, change: Callable[[list[float]], list[float]]) -> None:
    rows.values = [list(map(float, change([value for value in row if value is not None]))) for row in rows.values]
    rows.top = None


def sum_and_mean(random: Random, fault: Fault, of: Setting) -> None:
    fault.means("sum_mean")
    fault.records.append(_sums)


def _sums(random: Random, pair: Pair, rollout: Rows, trainer: Rows, of: Setting) -> None:
    pair.sums = True
    first = random.random() < 0.5
    for side, how in ((rollout, np.sum if first else np.mean), (trainer, np.mean if first else np.sum)):
        side.values = [[float(how(row))] for row in side.values]


def neighbour(random: Random, fault: Fault, of: Setting) -> None:
    """The values of one side stand one or two places beside their tokens."""
    fault.means("shift", causes=("record",))
    offset = int(random.choice([1, -1, 1, -1, 2]))

    def moved(random: Random, pair: Pair, rollout: Rows, trainer: Rows, of: Setting) -> None:
        side = rollout if offset > 0 else trainer
        _each(side, lambda row: [*row[abs(offset) :], *row[-1:] * abs(offset)][: len(row)])

    fault.records.append(moved)


def packed(random: Random, fault: Fault, of: Setting) -> None:
    """Requests of one row see those in front of them; the first of each row is clean."""
    count = int(random.integers(2, 5))

    def known(
        random: Random, fault: Fault, sampled: Sampled, prompts: list[list[int]], lengths: np.ndarray
    ) -> Optional[Engine]:
        before = []
        for row in range(len(prompts)):
            first = row - row % count
            seen = [[*prompts[at], *sampled.ids[at, : lengths[at]].tolist()] for at in range(first, row)]
            before.append([token for request in seen for token in request][-400:])
        return replace(fault.trainer, before=before)

    fault.after.append(known)
    fault.means("context")


def left_padding(random: Random, fault: Fault, of: Setting) -> None:
    """Positions count the padding in front: clean are the rows without."""
    offset = random.integers(1, 40, of.rows)
    offset[random.choice(of.rows, max(1, of.rows // 3), replace=False)] = 0
    fault.trainer = replace(fault.trainer, offset=offset)
    fault.means("context")


def rotary_cache(random: Random, fault: Fault, of: Setting) -> None:
    longest = int(random.integers(of.length // 4 + 4, 3 * of.length // 4 + 4))
    name = "rollout" if random.random() < 0.5 else "trainer"
    setattr(fault, name, replace(getattr(fault, name), longest=longest))
    fault.means("context")


def stale_cache(random: Random, fault: Fault, of: Setting) -> None:
    """Some requests read a block of another request: all that follows sees it."""
    count = max(1, int(of.rows * random.uniform(0.1, 0.6)))
    chosen = random.choice(of.rows, min(count, of.rows - 1), replace=False)
    change = np.zeros((of.rows, of.length, fault.trainer.model.head.shape[0]))
    for row in chosen:
        start = int(random.integers(0, max(1, of.length // 2)))
        change[row, start:] = random.standard_normal(change.shape[2]) * random.uniform(0.6, 1.2)
    name = "rollout" if random.random() < 0.5 else "trainer"
    setattr(fault, name, replace(getattr(fault, name), hidden=change))
    fault.means("context")


def stale_prefix(random: Random, fault: Fault, of: Setting) -> None:
    """Some requests have the prefix of another: whole requests differ, less and less."""
    chosen = random.choice(of.rows, max(1, of.rows // 3), replace=False)
    before = [
        random.integers(0, of.model.vocabulary, 30).tolist() if row in chosen else [] for row in range(of.rows)
    ]  # fmt: skip
    fault.trainer = replace(fault.trainer, before=before)
    fault.means("context")


def retokenised(random: Random, fault: Fault, of: Setting) -> None:
    fault.needs_ids = fault.is_exact = True
    fault.means("tokens")


def echo(random: Random, fault: Fault, of: Setting) -> None:
    """The rollout's records begin with the prompt, whose first token has no log-probability."""
    fault.needs_ids = True
    fault.classes |= {"clean", "tokens", "shift", "mask"}
    fault.causes |= {"tokens", "shift"}


def token_in_front(random: Random, fault: Fault, of: Setting) -> None:
    fault.needs_ids = bool(random.random() < 0.7)
    fault.classes |= {"clean", "tokens", "shift", "mask"} if fault.needs_ids else {"shift", "tokens", "clean"}
    fault.causes |= {"tokens", "shift"}


def pad_is_eos(random: Random, fault: Fault, of: Setting) -> None:
    """The end token of each response is masked on one side."""
    fault.eos = int(of.model.order[0])
    fault.needs_ids = bool(random.random() < 0.8)
    fault.is_exact = True
    fault.means("mask")
    if not fault.needs_ids:
        fault.means("padding")


def dropout(random: Random, fault: Fault, of: Setting) -> None:
    fault.trainer = replace(fault.trainer, dropout=float(random.choice([0.02, 0.05, 0.1, 0.2])))
    fault.causes |= {"dropout"}


def weights(random: Random, fault: Fault, of: Setting) -> None:
    _with_weights(random, fault, of)
    fault.means("weights")


def _with_weights(random: Random, fault: Fault, of: Setting, since: int = 0, rows: Optional[np.ndarray] = None) -> None:
    share = float(random.choice([0.05, 0.1, 0.2, 0.4]))
    known = of.model
    other = replace(
        known,
        head=known.head + share * random.standard_normal(known.head.shape),
        embeddings=known.embeddings + share * random.standard_normal(known.embeddings.shape),
        bias=known.bias + 0.5 * share * random.standard_normal(known.bias.shape),
    )
    if since == 0 and rows is None:
        fault.trainer = replace(fault.trainer, model=other)
    else:
        fault.trainer = replace(fault.trainer, other=other, since=since, rows=rows)


def computation(random: Random, fault: Fault, of: Setting) -> None:
    """The same weights, another computation of the state: other decays and a weaker position."""
    known = of.model
    other = replace(known, decay=known.decay ** float(random.uniform(1.2, 2.0)), places=known.places * 0.7)
    fault.trainer = replace(fault.trainer, model=other)
    fault.causes |= {"computation", "weights"}


def experts(random: Random, fault: Fault, of: Setting) -> None:
    """Scattered tokens have another expert."""
    flipped = random.random((of.rows, of.length)) < random.uniform(0.02, 0.2)
    change = flipped[..., None] * random.standard_normal((of.rows, of.length, fault.trainer.model.head.shape[0]))
    fault.trainer = replace(fault.trainer, hidden=change * random.uniform(0.5, 1.2))
    fault.causes |= {"router"}
    if random.random() < 0.4:  # recorded experts alone prove it
        fault.experts = flipped
        fault.means("router")


Draw = Callable[[Random, Fault, Setting], None]
CONTEXTS = (packed, left_padding, rotary_cache, stale_cache, stale_prefix)
LOGITS = (temperature, softcap, repetition, presence, bias, top_p, top_k)
ALONE: tuple[Draw, ...] = (
    *LOGITS, top_one, request_mean, running_sum, sum_and_mean, neighbour, *CONTEXTS, retokenised, echo, token_in_front,
    pad_is_eos, dropout, weights, computation, experts,
)  # fmt: skip
PAIRS: tuple[tuple[Draw, Draw], ...] = (
    (neighbour, temperature), (top_p, temperature), (repetition, top_k), (packed, temperature), (weights, temperature),
    (retokenised, weights), (pad_is_eos, temperature), (experts, temperature), (rotary_cache, top_p),
    (left_padding, weights), (top_one, temperature), (stale_cache, softcap), (neighbour, weights),
    (retokenised, temperature), (pad_is_eos, packed), (experts, top_p), (token_in_front, temperature),
)  # fmt: skip


def some_requests(random: Random, of: Setting) -> np.ndarray:
    chosen = np.zeros(of.rows, dtype=bool)
    chosen[random.choice(of.rows, max(1, int(of.rows * random.uniform(0.2, 0.7))), replace=False)] = True
    return chosen


def logits_on_some(random: Random, fault: Fault, of: Setting) -> None:
    """A processor for some requests only."""
    _process(fault, **_logits_values(random))
    fault.means("temperature" if fault.rollout.processor.temperature != 1 else "top_p")
    chosen = some_requests(random, of)
    fault.rollout = replace(fault.rollout, of=lambda rows, position: chosen[rows])


def logits_from(random: Random, fault: Fault, of: Setting) -> None:
    """A processor from a position on."""
    _process(fault, **_logits_values(random))
    fault.means("temperature" if fault.rollout.processor.temperature != 1 else "top_p")
    since = int(random.integers(of.length // 4, of.length // 2 + 1))
    fault.rollout = replace(fault.rollout, of=lambda rows, position: np.full(len(rows), position >= since))


def _logits_values(random: Random) -> dict[str, Any]:
    if random.random() < 0.6:
        return {"temperature": float(random.choice([0.5, 0.6, 0.7, 1.4, 1.6]))}
    return {"top_p": float(random.choice([0.7, 0.8, 0.9]))}


def weights_on_some(random: Random, fault: Fault, of: Setting) -> None:
    """One replica has other weights."""
    _with_weights(random, fault, of, rows=some_requests(random, of))
    fault.means("context", causes=("weights",))


def weights_from(random: Random, fault: Fault, of: Setting) -> None:
    """The weights were exchanged while all requests were at one position."""
    _with_weights(random, fault, of, since=int(random.integers(of.length // 4, of.length // 2 + 1)))
    fault.means("context", causes=("weights",))


def clean(random: Random, fault: Fault, of: Setting) -> None:
    """Nothing differs but noise."""


def clean_raw(random: Random, fault: Fault, of: Setting) -> None:
    """Sampled with top-p and a temperature; both sides record before it."""
    fault.record = Processor()
    _process(fault, top_p=float(random.choice([0.8, 0.95])), temperature=float(random.choice([0.7, 1.0, 1.2])))


def clean_same(random: Random, fault: Fault, of: Setting) -> None:
    """Both sides apply the same temperature and soft-cap."""
    value = float(random.choice([0.6, 0.8, 1.2]))
    cap = float(random.choice([0.0, 4.0, 8.0]))
    _process(fault, temperature=value, cap=cap)
    fault.trainer = replace(fault.trainer, processor=Processor(temperature=value, cap=cap))
    fault.quiet = min(1.0, value)  # the noise is that of the logits recorded


KINDS: dict[str, tuple[Draw, ...]] = {
    **{draw.__name__: (draw,) for draw in (clean, clean_raw, clean_same, *ALONE)},
    **{"+".join(draw.__name__ for draw in pair): pair for pair in PAIRS},
    **{draw.__name__: (draw,) for draw in (logits_on_some, logits_from, weights_on_some, weights_from)},
}


def make(seed: int, kind: str) -> Pair:
    random = np.random.default_rng([seed, *kind.encode()])
    draws = KINDS[kind]
    needs_context = any(draw in CONTEXTS for draw in draws)
    few = 4 if needs_context or draws[0] in (logits_on_some, weights_on_some) else 1
    short = 16 if needs_context or draws[0] in (logits_from, weights_from) else 3
    if retokenised in draws:
        short = 8
    of = setting(random, few, short, words=not needs_context and computation not in draws)
    pair = Pair(kind, frozenset(), frozenset(), floor=of.floor)
    steps = int(random.choice([1, 1, 1, 2, 3]))
    since = int(random.integers(steps))
    state = random.bit_generator.state
    visible = False
    for step in range(steps):
        random.bit_generator.state = state  # every step has the same fault
        engine = Engine(of.model)
        fault = Fault(engine, engine)
        for draw in draws:
            draw(random, fault, of)
        is_bad = step >= since or clean_same in draws
        bad = fault if is_bad else Fault(engine, engine, needs_ids=fault.needs_ids, eos=fault.eos)
        rest = np.random.default_rng([seed, step, *kind.encode()])
        shown = _step(rest, pair, bad, of, draws if bad is fault else ())
        visible |= shown and bad is fault
    pair.classes = frozenset(fault.classes)
    pair.causes = frozenset(fault.causes)
    pair.has_ids = fault.needs_ids or bool(random.random() < 0.7)
    pair.is_faint = bool(pair.classes | pair.causes) and not visible
    return pair


def _step(random: Random, pair: Pair, fault: Fault, of: Setting, draws: tuple[Draw, ...]) -> bool:
    """Add a step; whether its fault can be seen."""
    prompts = [random.integers(0, of.model.vocabulary, int(random.integers(2, 12))).tolist() for _ in range(of.rows)]
    lengths = random.integers(max(1, of.length // 2), of.length + 1, of.rows)
    sampled = run(random, fault.rollout, prompts, of.length, record=fault.record)
    ids = sampled.ids
    if fault.eos is not None:
        ids[np.arange(of.rows), lengths - 1] = fault.eos
        sampled = run(random, replace(fault.rollout), prompts, of.length, ids=ids, record=fault.record)
    trainer = fault.trainer
    for known in fault.after:
        trainer = known(random, fault, sampled, prompts, lengths) or trainer
    noise = noise_of(random, of.noise, of.size * fault.quiet)
    with_ids, counts, merged = ids, lengths, None
    if retokenised in draws:
        with_ids, counts, merged = _retokenised(random, ids, lengths, of.model)
    scored = run(random, trainer, prompts, of.length, ids=with_ids, noise=noise)
    wants_top = random.random() < 0.15 or top_one in draws
    rollout_rows = _rows(sampled, ids, lengths, of, wants_top)
    trainer_rows = _rows(scored, with_ids, counts, of, wants_top and top_one not in draws)
    if merged:
        pair.places.add((len(pair.steps), *merged))
    if echo in draws or token_in_front in draws:
        _in_front(random, rollout_rows, prompts, echo in draws)
    if fault.eos is not None and pad_is_eos in draws:
        _mask_ends(random, rollout_rows, trainer_rows)
    if fault.experts is not None:
        _experts(random, rollout_rows, trainer_rows, fault.experts)
    for change in fault.records:
        change(random, pair, rollout_rows, trainer_rows, of)
    if not all(np.isfinite(value) for row in rollout_rows.values for value in row if value is not None):
        fault.means("nan")  # sampled outside of the nucleus that is recorded
    pair.steps.append((rollout_rows, trainer_rows))
    return fault.is_exact or pair.sums or _is_visible(rollout_rows, trainer_rows, max(0.06, of.floor or 0))


def _rows(sampled: Sampled, ids: np.ndarray, lengths: np.ndarray, of: Setting, wants_top: bool) -> Rows:
    logs = sampled.logs.astype(np.float32)
    rows = Rows(
        [logs[row, :length].tolist() for row, length in enumerate(lengths)],
        [ids[row, :length].tolist() for row, length in enumerate(lengths)],
    )
    if wants_top:
        own = sampled.recorded.own
        best = np.argsort(-own, axis=-1)[..., :5]
        rows.top = [
            [
                {int(of.model.order[slot]): float(own[row, place, slot]) for slot in best[row, place]
                 if np.isfinite(own[row, place, slot])}
                for place in range(length)
            ]
            for row, length in enumerate(lengths)
        ]  # fmt: skip
    return rows


def _retokenised(
    random: Random, ids: np.ndarray, lengths: np.ndarray, of: Model
) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """In some requests two tokens become one, or one becomes two; the first place."""
    changed, counts, first = ids.copy(), lengths.copy(), None
    chosen = np.sort(random.choice(len(ids), max(1, len(ids) // 2), replace=False))
    for row in chosen:
        length = int(counts[row])
        at = int(random.integers(0, max(1, length - 2)))
        known = ids[row, :length].tolist()
        token = next(int(value) for value in random.integers(0, of.vocabulary, 50) if value not in known[at : at + 2])
        if random.random() < 0.7 or length >= ids.shape[1]:
            new = [*known[:at], token, *known[at + 2 :]]
        else:
            other = next(int(value) for value in random.integers(0, of.vocabulary, 50) if value != known[at])
            new = [*known[:at], other, token, *known[at + 1 :]]
        counts[row] = len(new)
        changed[row, : len(new)] = new
        first = first or (int(row), at)
    assert first is not None
    return changed, counts, first


def _in_front(random: Random, rows: Rows, prompts: list[list[int]], is_echo: bool) -> None:
    has_null = random.random() < 0.6
    for row, prompt in enumerate(prompts):
        tokens = prompt if is_echo else prompt[-1:]
        values: list[Optional[float]] = [-float(value) for value in random.exponential(6.0, len(tokens))]
        if is_echo or has_null:
            values[0] = None
        rows.values[row] = [*values, *rows.values[row]]
        rows.ids[row] = [*tokens, *rows.ids[row]]
        if rows.top is not None:
            rows.top[row] = [{token: value or -1.0} for token, value in zip(tokens, values)] + rows.top[row]


def _mask_ends(random: Random, rollout: Rows, trainer: Rows) -> None:
    rollout.masks = [[1] * len(row) for row in rollout.values]
    trainer.masks = [[1] * len(row) for row in trainer.values]
    side = trainer if random.random() < 0.8 else rollout
    is_zero = random.random() < 0.5
    for mask, values in zip(side.masks or (), side.values):
        mask[-1] = 0
        values[-1] = 0.0 if is_zero else values[-1]


def _experts(random: Random, rollout: Rows, trainer: Rows, flipped: np.ndarray) -> None:
    """Routed experts (requests, positions, layers, k) of both sides."""
    kept = random.integers(0, 16, (*flipped.shape, 2, 2))
    rollout.experts = kept.astype(np.int32)
    trainer.experts = np.where(flipped[..., None, None], (kept + 1) % 16, kept).astype(np.int32)


def _is_visible(rollout: Rows, trainer: Rows, floor: float) -> bool:
    """Whether enough tokens are three times beyond what noise of the logits explains."""
    beyond = count = 0
    for first, second in zip(rollout.values, trainer.values):
        for left, right in zip(first, second):
            if left is None or right is None:
                continue
            share = 1.0 - np.exp(min(0.0, max(left, right)))
            count += 1
            beyond += abs(left - right) > 3 * (1.4 * floor * share + 0.002)
    return beyond >= max(5, 0.03 * count)


def write(folder: Path, pair: Pair, random: Random) -> tuple[Path, Path]:
    """Both recordings, each as one engine or trainer writes it."""
    many = len(pair.steps) > 1
    has_null = any(value is None for step in pair.steps for row in step[0].values for value in row)
    has_top = any(side.top is not None for step in pair.steps for side in step)
    has_masks = any(side.masks is not None for step in pair.steps for side in step)
    has_experts = any(side.experts is not None for step in pair.steps for side in step)
    for side, name in enumerate(("rollout", "trainer")):
        if pair.sums:
            forms = ["plain"]
        elif has_experts:
            forms = ["npz"]
        elif has_masks or not pair.has_ids:
            forms = ["npz", "jsonl", "pt"] if not has_null or side else ["jsonl"]
        elif has_top or (has_null and not side):
            forms = ["vllm", "sglang"]
        else:
            forms = ["npz", "jsonl", "vllm", "pt"] if side else ["npz", "jsonl", "sglang", "vllm", "pt"]
        form = str(random.choice(forms))
        for step, rows in enumerate(pair.steps):
            place = folder / name / f"step_{step}" if many else folder / name
            place.mkdir(parents=True)
            _FORMS[form](place, rows[side], pair.has_ids, name)
    return folder / "rollout", folder / "trainer"


def _padded(rows: list[list[Any]], value: Any, dtype: str) -> np.ndarray:
    width = max(map(len, rows))
    found = np.full((len(rows), width), value, dtype=dtype)
    for row, values in enumerate(rows):
        found[row, : len(values)] = values
    return found


def _arrays(rows: Rows, has_ids: bool, side: str) -> dict[str, np.ndarray]:
    found = {files.NAMES[side]: _padded(rows.values, 0.0, "f4")}
    found["response_mask"] = _padded(rows.masks or [[1] * len(row) for row in rows.values], 0, "i8")
    if has_ids:
        found["responses"] = _padded(rows.ids, 0, "i8")
    if rows.experts is not None:
        found["routed_experts"] = rows.experts[:, : found["response_mask"].shape[1]]
    return found


def _npz(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    np.savez(place / "batch.npz", **_arrays(rows, has_ids, side))


def _pt(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    place.joinpath("batch.pt").write_bytes(files.torch_file(_arrays(rows, has_ids, side)))


def _jsonl(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    lines = []
    for row, values in enumerate(rows.values):
        record: dict[str, Any] = {"index": row, files.NAMES[side]: values}
        if has_ids:
            record["token_ids"] = rows.ids[row]
        if rows.masks is not None:
            record["loss_mask"] = rows.masks[row]
        lines.append(json.dumps(record))
    place.joinpath("records.jsonl").write_text("\n".join(lines) + "\n")


def _plain(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    lines = [
        json.dumps({"index": row, "cumulative_logprob": values[0], "response_length": len(rows.ids[row])})
        for row, values in enumerate(rows.values)
    ]
    place.joinpath("records.jsonl").write_text("\n".join(lines) + "\n")


def _sglang(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    found = []
    for row, values in enumerate(rows.values):
        meta: dict[str, Any] = {
            "id": str(row),
            "output_token_logprobs": [[value, token, None] for value, token in zip(values, rows.ids[row])],
        }  # fmt: skip
        if rows.top is not None:
            meta["output_top_logprobs"] = [
                [[value, token, None] for token, value in tokens.items()] for tokens in rows.top[row]
            ]
        found.append({"text": "", "meta_info": meta})
    place.joinpath("answers.json").write_text(json.dumps(found))


def _vllm(place: Path, rows: Rows, has_ids: bool, side: str) -> None:
    lines = []
    for row, values in enumerate(rows.values):
        logged: dict[str, Any] = {
            "token_logprobs": values, "tokens": [f"token_id:{token}" for token in rows.ids[row]],
        }  # fmt: skip
        if rows.top is not None:
            logged["top_logprobs"] = [
                {f"token_id:{token}": value for token, value in tokens.items()} for tokens in rows.top[row]
            ]
        lines.append(json.dumps({"id": f"cmpl-{row}", "choices": [{"index": 0, "text": "", "logprobs": logged}]}))
    place.joinpath("answers.jsonl").write_text("\n".join(lines) + "\n")


_FORMS = {"npz": _npz, "pt": _pt, "jsonl": _jsonl, "plain": _plain, "sglang": _sglang, "vllm": _vllm}


def judged(pair: Pair, result: npucmp.ParityResult) -> tuple[str, str]:
    """The column of the answer, and the answer."""
    said = result.token_class.value
    findings = result.findings or [step.finding for step in result.steps]
    words = " ".join(sentence for finding in findings for sentence in finding.because)
    if not pair.classes and not pair.causes:
        return ("right" if said == "clean" else "honest" if said == "undecided" else "wrong"), said
    if said in pair.classes:
        return "right", said
    if said == "clean":
        return ("faint" if pair.is_faint else "silent"), said
    if said == "undecided":
        return "honest", said
    if said == "differs":
        is_named = any(re.search(SAYS[cause], words) for cause in pair.causes)
        return ("right" if is_named and not pair.classes else "honest" if is_named else "unnamed"), said
    return "wrong", said


def score(
    seed: int, count: int, pattern: str = "*", is_shown: bool = False, keep: Optional[Path] = None
) -> dict[str, Counter]:
    """Counts by kind: pairs, the columns of `judged`, and the seconds of the generator and of npucmp."""
    found: dict[str, Counter] = {}
    for kind in KINDS:
        if not fnmatch.fnmatch(kind, pattern):
            continue
        counts = found.setdefault(kind, Counter())
        for number in range(4 * count if kind.startswith("clean") else count):
            start = time.perf_counter()
            pair = make(seed + number, kind)
            with tempfile.TemporaryDirectory() as folder:
                sides = write(Path(folder), pair, np.random.default_rng([seed + number, 5]))
                middle = time.perf_counter()
                result = npucmp.parity(*sides, floor=pair.floor)
                end = time.perf_counter()
                if keep is not None:
                    shutil.copytree(folder, keep / f"{kind}_{seed + number}", dirs_exist_ok=True)
            column, said = judged(pair, result)
            counts.update({"pairs": 1, column: 1, f"said {said}": 1})
            counts["made"] += middle - start
            counts["asked"] += end - middle
            place = result.findings[0] if result.findings else None
            if pair.places and place is not None and said == "tokens":
                counts["places"] += 1
                counts["placed"] += (place.step or 0, place.request, place.position) in pair.places
            if is_shown and column not in ("right", "honest", "faint"):
                sizes = (
                    f"{len(pair.steps)} steps, {len(pair.steps[0][0].values)} requests, {result.figures.tokens} tokens"
                )
                first = (place or result.steps[0].finding)[1:4]
                because = (place or result.steps[0].finding).because
                wanted = "/".join(sorted(pair.classes)) or "/".join(sorted(pair.causes)) or "clean"
                print(f"{kind} {seed + number}: {column}: {said} {first}, want {wanted}; {sizes}, ids {pair.has_ids},",
                      f"floor {pair.floor}, faint {pair.is_faint}: {because} {result.open[:1]}")  # fmt: skip
    return found


COLUMNS = ("pairs", "right", "honest", "faint", "unnamed", "wrong", "silent")


def table(found: dict[str, Counter]) -> str:
    lines = [f"| kind | {' | '.join(COLUMNS)} | token right | answers |", "|---" * (len(COLUMNS) + 3) + "|"]
    groups = {"clean": Counter(), "faults": Counter()}
    for kind, counts in found.items():
        groups["clean" if kind.startswith("clean") else "faults"].update(counts)
        lines.append(_line(kind, counts))
    lines += [_line(name, counts) for name, counts in groups.items() if counts]
    total = sum(groups.values(), Counter())
    made, asked = (1000 * total[name] / max(1, total["pairs"]) for name in ("made", "asked"))
    return "\n".join([*lines, "", f"{made:.0f} ms to make a pair, {asked:.0f} ms to compare it"])


def _line(kind: str, counts: Counter) -> str:
    said = ", ".join(f"{name[5:]} {counts[name]}" for name in sorted(counts) if name.startswith("said "))
    placed = f"{counts['placed']} of {counts['places']}" if counts["places"] else ""
    return f"| {kind} | {' | '.join(str(counts[name]) for name in COLUMNS)} | {placed} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--only", default="*")
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if given.cases and given.seed >= HELD:
        parser.error("held pairs are not looked at one by one")
    print(table(score(given.seed, given.count, given.only, given.cases, given.keep)))


if __name__ == "__main__":
    main()
