"""Toy language models whose log-probabilities depend on the tokens before: a leaky state or an n-gram over a vocabulary
of a few explicit tokens and a tail of equal ones. An `Engine` is a model with its faults; it samples or scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.parity.engines import bfloat16

WIDTH = 20
Random = np.random.Generator


@dataclass(frozen=True)
class Model:
    """`vocabulary` ids; the first `len(bias)` of `order` have logits of their own, the others share `tail`."""

    vocabulary: int
    order: np.ndarray
    embeddings: np.ndarray
    head: np.ndarray
    bias: np.ndarray
    decay: np.ndarray
    frequencies: np.ndarray
    places: float  # share of the positions in the state
    sharp: float
    tail: float
    words: int  # 0: a leaky state; else the number of tokens that an n-gram sees
    mixing: np.ndarray

    @property
    def explicit(self) -> int:
        return len(self.bias)


def model(random: Random, vocabulary: int, explicit: int, words: int, sharp: float, longest: float) -> Model:
    """`longest`: the largest share of the state that stays from token to token."""
    explicit = min(vocabulary, explicit)
    decay = random.uniform(0.3, longest, WIDTH)
    zipf = -random.uniform(0.0, 0.6) * np.log1p(np.arange(explicit))
    rest = vocabulary - explicit
    tail = random.uniform(-3.0, -1.0) - np.log(rest) + np.log(explicit) if rest else -np.inf
    return Model(
        vocabulary=vocabulary,
        order=random.permutation(vocabulary),
        embeddings=random.standard_normal((min(vocabulary, 2048), WIDTH)),
        head=random.standard_normal((WIDTH, explicit)),
        bias=zipf - zipf.mean(),
        decay=decay,
        frequencies=random.uniform(0.02, 0.9, WIDTH),
        places=float(random.uniform(0.3, 0.8)),
        sharp=sharp,
        tail=float(tail),
        words=words,
        mixing=random.integers(1, 1 << 20, 4) * 2 + 1,
    )


class Logits(NamedTuple):
    """Logits (rows, …, explicit) and of each token of the tail (rows, …)."""

    own: np.ndarray
    tail: np.ndarray


@dataclass(frozen=True)
class Processor:
    """What an engine makes of logits before it samples or records."""

    temperature: float = 1.0
    cap: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Optional[np.ndarray] = None
    top_k: int = 0
    top_p: float = 1.0

    def logs(self, logits: Logits, seen: Optional[np.ndarray], tail_count: int) -> Logits:
        """Log-probabilities, -inf of what is cut. `seen` counts earlier occurrences."""
        own, tail = logits
        if self.cap:
            own, tail = self.cap * np.tanh(own / self.cap), self.cap * np.tanh(tail / self.cap)
        if self.bias is not None:
            own = own + self.bias
        if seen is not None and self.repetition != 1:
            own = np.where(seen > 0, np.where(own > 0, own / self.repetition, own * self.repetition), own)
        if seen is not None and (self.presence or self.frequency):
            own = own - self.presence * (seen > 0) - self.frequency * seen
        own, tail = own / self.temperature, tail / self.temperature
        if self.top_k:
            place = min(self.top_k, own.shape[-1])
            least = np.partition(own, -place, axis=-1)[..., -place, None]
            own, tail = np.where(own >= least, own, -np.inf), np.full_like(tail, -np.inf)
        whole = _whole(own, tail, tail_count)
        own, tail = own - whole[..., None], tail - whole
        if self.top_p < 1:
            own, tail = _nucleus(own, tail, tail_count, self.top_p)
        return Logits(own, tail)


def _whole(own: np.ndarray, tail: np.ndarray, tail_count: int) -> np.ndarray:
    top = own.max(axis=-1)
    rest = tail_count * np.exp(tail - top) if tail_count else 0.0
    return top + np.log(np.exp(own - top[..., None]).sum(axis=-1) + rest)


def _nucleus(own: np.ndarray, tail: np.ndarray, tail_count: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-own, axis=-1)
    sorted_logs = np.take_along_axis(own, order, -1)
    before = np.cumsum(np.exp(sorted_logs), axis=-1) - np.exp(sorted_logs)
    kept = np.empty_like(own)
    np.put_along_axis(kept, order, np.where(before < top_p, sorted_logs, -np.inf), -1)
    inside = np.exp(own).sum(axis=-1)
    tail = np.where(inside < top_p, tail, -np.inf)  # tokens of the tail are equal: all or none
    whole = _whole(kept, tail, tail_count)
    return kept - whole[..., None], tail - whole


@dataclass(frozen=True)
class Engine:
    """A model with what one side does to it. `of` chooses the requests and positions that the processor is for."""

    model: Model
    processor: Processor = Processor()
    of: Optional[Callable[[np.ndarray, int], np.ndarray]] = None  # rows, position → those that are processed
    offset: Optional[np.ndarray] = None  # position of the first token of each row
    longest: int = 1 << 30  # positions are clamped here
    before: Optional[list[list[int]]] = None  # tokens that each row sees in front of its prompt
    dropout: float = 0.0
    other: Optional[Model] = None  # weights used from `since` on, for requests `rows`
    since: int = 0
    rows: Optional[np.ndarray] = None
    hidden: Optional[np.ndarray] = None  # added to the state (rows, positions, WIDTH)
    moved: Optional[np.ndarray] = None  # added to the memory at a position (rows, positions, WIDTH): it stays


class Sampled(NamedTuple):
    ids: np.ndarray
    logs: np.ndarray
    recorded: Logits


class _State:
    """The memory of a row, token by token."""

    def __init__(self, engine: Engine, rows: int) -> None:
        self.engine, self.model = engine, engine.model
        self.memory = np.zeros((rows, WIDTH))
        self.last = np.zeros((rows, max(1, self.model.words)), dtype=np.int64)

    def read(self, ids: np.ndarray, rows: np.ndarray, model: Model) -> None:
        """Read one token of the rows chosen."""
        known = model.embeddings
        if model.words:
            self.last[rows] = np.concatenate([self.last[rows][:, 1:], ids[:, None]], axis=1)
            return
        kept = model.decay
        self.memory[rows] = self.memory[rows] * kept + np.sqrt(1 - kept**2) * known[ids % len(known)]

    def hidden(self, model: Model, places: np.ndarray) -> np.ndarray:
        places = np.minimum(places, self.engine.longest)
        if model.words:
            known = model.embeddings
            state = sum(known[(self.last[:, at] * model.mixing[at]) % len(known)] for at in range(model.words))
            key = (self.last * model.mixing[: model.words]).sum(axis=1) % 2047
            state = (state / np.sqrt(model.words) + known[key % len(known)]) / np.sqrt(2)
        else:
            state = self.memory
        position = np.sqrt(2) * np.sin(places[:, None] * model.frequencies + model.mixing[0] % 7)
        return np.sqrt(1 - model.places**2) * state + model.places * position


def _read_before(state: _State, histories: list[list[int]]) -> None:
    """Read what stands in front of the responses; rows end together."""
    longest = max(map(len, histories))
    tokens = np.full((len(histories), longest), -1)
    for row, history in enumerate(histories):
        tokens[row, longest - len(history) :] = history
    for column in tokens.T:
        rows = np.flatnonzero(column >= 0)
        state.read(column[rows], rows, state.model)


def _weights(engine: Engine, position: int) -> tuple[Model, Optional[np.ndarray]]:
    """The weights of a position, and the rows that have them (None: all)."""
    if engine.other is None or position < engine.since:
        return engine.model, None
    return engine.other, engine.rows


def _logits(model: Model, hidden: np.ndarray) -> Logits:
    sharp = np.exp(model.sharp + 0.6 * np.tanh(hidden[..., :3].sum(axis=-1)))
    own = sharp[..., None] * (hidden @ model.head / np.sqrt(WIDTH) + model.bias)
    return Logits(own, sharp * model.tail if np.isfinite(model.tail) else np.full(sharp.shape, -np.inf))


def run(
    random: Random, engine: Engine, prompts: list[list[int]], length: int, ids: Optional[np.ndarray] = None,
    noise: Optional[Callable[[Logits], Logits]] = None, record: Optional[Processor] = None,
) -> Sampled:  # fmt: skip
    """Sample `length` tokens of each row, or score `ids` if they are given. `record`: the log-probabilities recorded
    if they are not those that are sampled from."""
    model, rows = engine.model, len(prompts)
    state = _State(engine, rows)
    _read_before(state, [[*(engine.before[row] if engine.before else ()), *prompts[row]] for row in range(rows)])
    start = np.array([len(prompt) for prompt in prompts]) + (0 if engine.offset is None else engine.offset)
    every = np.arange(rows)
    found = np.zeros((rows, length), dtype=np.int64)
    slots = np.empty(model.vocabulary, dtype=np.int64)
    slots[model.order] = np.arange(model.vocabulary)
    seen = np.zeros((rows, model.explicit))
    tail_count = model.vocabulary - model.explicit
    owns, tails, hiddens, counts = [], [], [], []
    for position in range(length):
        here, chosen = _weights(engine, position)
        hidden = state.hidden(here, start + position)
        if engine.hidden is not None:
            hidden = hidden + engine.hidden[:, position]
        if engine.dropout:
            hidden = hidden * (random.random(hidden.shape) >= engine.dropout) / (1 - engine.dropout)
        if chosen is not None:
            plain = state.hidden(model, start + position)
            hidden = np.where(chosen[:, None], hidden, plain)
        hiddens.append(hidden)
        if ids is None:
            logits = _mixed(here, model, hidden, chosen)
            logs = _processed(engine, logits, seen, position, tail_count)
            token = _sample(random, logs, tail_count)
            found[:, position] = model.order[token]
        else:
            found[:, position] = ids[:, position]
        counts.append(seen.copy())
        place = slots[found[:, position]]
        own = place < model.explicit
        seen[every[own], place[own]] += 1
        state.read(found[:, position], every, here if chosen is None else model)
        if engine.moved is not None:
            state.memory += engine.moved[:, position]
    hidden = np.stack(hiddens, axis=1)
    many = np.stack(counts, axis=1)
    for position in range(length) if engine.other is not None else ():
        here, chosen = _weights(engine, position)
        logits = _mixed(here, model, hidden[:, position], chosen)
        owns.append(logits.own)
        tails.append(logits.tail)
    logits = Logits(np.stack(owns, axis=1), np.stack(tails, axis=1)) if owns else _logits(model, hidden)
    if noise is not None:
        logits = noise(logits)
    used = engine if record is None else replace(engine, processor=record)
    logs = _processed(used, logits, many, None, tail_count)
    place = slots[found]
    own = np.take_along_axis(logs.own, np.minimum(place, model.explicit - 1)[..., None], -1)[..., 0]
    return Sampled(found, np.where(place < model.explicit, own, logs.tail), logs)


def _mixed(here: Model, model: Model, hidden: np.ndarray, chosen: Optional[np.ndarray]) -> Logits:
    logits = _logits(here, hidden)
    if chosen is None:
        return logits
    plain = _logits(model, hidden)
    return Logits(np.where(chosen[:, None], logits.own, plain.own), np.where(chosen, logits.tail, plain.tail))


def _processed(
    engine: Engine, logits: Logits, seen: np.ndarray, position: Optional[int], tail_count: int
) -> Logits:  # fmt: skip
    """Log-probabilities of one position, or of all positions if it is None."""
    logs = engine.processor.logs(logits, seen, tail_count)
    if engine.of is None:
        return logs
    plain = Processor().logs(logits, seen, tail_count)
    rows = np.arange(len(seen))
    if position is None:
        every = np.stack([engine.of(rows, place) for place in range(seen.shape[1])], axis=1)
    else:
        every = engine.of(rows, position)
    return Logits(np.where(every[..., None], logs.own, plain.own), np.where(every, logs.tail, plain.tail))


def _sample(random: Random, logs: Logits, tail_count: int) -> np.ndarray:
    """A slot of each row."""
    mass = np.cumsum(np.exp(logs.own), axis=-1)
    drawn = random.random(len(mass))
    slot = (mass < drawn[:, None]).sum(axis=-1)
    explicit = logs.own.shape[-1]
    beyond = slot >= explicit
    if tail_count:
        in_tail = beyond & np.isfinite(logs.tail)
        slot = np.where(in_tail, explicit + random.integers(tail_count, size=len(slot)), slot)
        beyond &= ~in_tail
    return np.where(beyond, np.argmax(logs.own, axis=-1), slot)


def noise_of(random: Random, kind: str, size: float) -> Callable[[Logits], Logits]:
    """The errors of another engine: `size` is the standard deviation of the error of a logit."""

    def apply(logits: Logits) -> Logits:
        shape = logits.own.shape
        scale = np.full(shape[:2], size)
        if kind == "fp8":
            scale = scale * np.exp(random.normal(0.0, 0.3, shape[:2]) - 0.05)
        if kind == "kv":
            scale = scale * np.sqrt(0.3 + 0.7 * np.arange(shape[1]) / shape[1])
        own = logits.own + scale[..., None] * random.standard_normal(shape, dtype=np.float32)
        tail = logits.tail + scale * random.standard_normal(shape[:2])
        return Logits(bfloat16(own) if kind == "bfloat16" else own, tail)

    return apply
