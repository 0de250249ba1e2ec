"""Faults of the target, where each shows first, and their draw."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

import numpy as np

from tests.corpus.composed.arrangements import Arrangement, Requests
from tests.corpus.composed.values import Array, Value

FACTOR = 1.05
KINDS = (
    "factor",  # an operator of one rank is 1.05 times too large
    "unreduced",  # a collective is missing: each rank goes on with its part
    "stale row",  # a token has the numbers of its neighbour
    "swapped rows",  # two tokens have exchanged their numbers
    "other positions",  # a request is computed with the positions behind another request
    "offset",  # positions are wrong from a token on
    "heads",  # two heads are exchanged
    "bias per rank",  # a bias is added once on every rank, or twice
    "zero slice",  # some columns of an activation are zero
    "leak",  # attention of a request sees padding, or the request before it
    "cache",  # from a step on, attention of a request reads a lost key and value
)


class Fault(NamedTuple):
    """`place` where it strikes; `rank` that it strikes, None for all; `rows` that it concerns; `request` and `position`
    of the first token that it changes, None if it changes tokens of several requests alike."""

    kind: str
    place: str
    rank: Optional[int] = None
    rows: Optional[Array] = None
    request: Optional[int] = None
    position: Optional[int] = None
    recorded: bool = False  # wrong positions stand in the dump, and hold for all layers

    def right(self, functions: bool, layers: int) -> tuple[str, ...]:
        """The places that are right to name first; `functions`: a dump has more than modules."""
        layer, _, name = self.place.rpartition(".")
        head = f"{layer}." if layer else ""
        if self.kind in ("other positions", "offset"):
            return (self.place, "rotary") if name == "rope" else (self.place,)
        if self.kind in ("unreduced", "bias per rank"):  # or what reads the sum
            if name == "attention":
                return (self.place,)
            if functions:
                return self.place, head + {"o": "residual1", "down": "residual2"}[name]
            following = int(layer) + 1
            return self.place, f"{head}norm2" if name == "o" else f"{following}.norm1" if following < layers else "norm"
        return (self.place,)

    def changed(self, value: Value, arrangement: Arrangement) -> Value:
        """The output of `place` with this fault."""
        if self.kind not in ("factor", "stale row", "swapped rows", "heads", "zero slice"):
            return value
        parts = [*value.parts]
        for rank in range(len(parts)):
            if self.rank is None or arrangement.tp == 1 or rank == self.rank:
                parts[rank] = self._part(parts[rank].copy(), value)
        return value._replace(parts=parts)

    def _part(self, part: Array, value: Value) -> Array:
        rows = np.arange(len(part)) if self.rows is None else self.rows
        width = part.shape[1]
        if self.kind == "factor":
            part[rows] *= np.float32(FACTOR)
        elif self.kind == "stale row":
            part[rows[1]] = part[rows[0]]
        elif self.kind == "swapped rows":
            part[rows[:2]] = part[rows[1::-1]]
        elif self.kind == "heads":
            size = width // value.heads
            order = np.r_[size : 2 * size, :size, 2 * size : width]
            part[rows] = part[np.ix_(rows, order)]
        else:
            part[np.ix_(rows, np.arange(width // 4, width // 2))] = 0
        return part


def kinds(arrangement: Arrangement, biased: bool) -> list[str]:
    """The kinds that a target can have."""
    is_parallel = arrangement.tp > 1 or arrangement.axis == "cp"
    missing = {"unreduced"} if not is_parallel else set()
    missing |= set() if biased else {"bias per rank"}
    missing |= {"cache"} if len(arrangement.steps) == 1 else set()
    return [kind for kind in KINDS if kind not in missing]


def draw_fault(
    kind: str,
    draw: np.random.Generator,
    requests: Requests,
    arrangement: Arrangement,
    layers: int,
    places: Sequence[str],
    positions: str,
) -> Fault:
    """A fault of a kind. `places`: outputs of a layer; `positions`: the place that reads positions."""
    layer = int(draw.integers(layers))
    rank = int(draw.integers(arrangement.ranks)) if arrangement.ranks > 1 else None
    rows = None if rank is None or arrangement.tp > 1 else arrangement.of_rank(rank)
    if kind == "factor":
        return Fault(kind, f"{layer}.{draw.choice(places)}", rank, rows)
    if kind == "zero slice":
        name = draw.choice([place for place in places if place in ("act", "mul", "up")])
        return Fault(kind, f"{layer}.{name}", rank, rows)
    if kind == "heads":
        return Fault(kind, f"{layer}.attention", rank, rows)
    if kind == "unreduced":
        name = "attention" if arrangement.axis == "cp" else str(draw.choice(["o", "down"]))
        return Fault(kind, f"{layer}.{name}")
    if kind == "bias per rank":
        return Fault(kind, f"{layer}.o")
    if kind in ("stale row", "swapped rows"):
        pair = _neighbours(draw, requests, arrangement)
        changed = min(pair) if kind == "swapped rows" else pair[1]
        place = f"{layer}.{draw.choice([place for place in places if place in ('o', 'down', 'norm2', 'attention')])}"
        return Fault(kind, place, None, np.array(pair), *divmod(int(changed), requests.width))
    request = int(draw.integers(1, len(requests.lengths)))
    if kind == "leak":
        return Fault(kind, f"{layer}.attention", None, None, request, 0)
    if kind == "cache":
        starts = _later_tokens(requests, arrangement)
        request, position = starts[int(draw.integers(len(starts)))]
        return Fault(kind, f"{layer}.attention", None, None, request, position)
    position = 0 if kind == "other positions" else int(draw.integers(1, requests.lengths[request]))
    if kind == "offset" and len(arrangement.steps) > 1:  # from a chunk on
        starts = _later_tokens(requests, arrangement)
        request, position = starts[int(draw.integers(len(starts)))]
    recorded = positions != "rope" or bool(draw.random() < 0.5)
    place = positions if positions != "rope" else f"{0 if recorded else layer}.rope"
    return Fault(kind, place, None, None, request, position, recorded)


def _neighbours(draw: np.random.Generator, requests: Requests, arrangement: Arrangement) -> tuple[int, int]:
    """Two rows that follow each other in one step of a rank, none of them padding, with unequal ids."""
    pairs = []
    for step in range(len(arrangement.steps)):
        for rank in range(len(arrangement.steps[step])):
            rows = arrangement.rows(step, rank).reshape(-1)
            rows = rows[requests.real[rows]]
            if arrangement.sequence:  # both on one rank
                rows = rows[arrangement.owners[rows] == 0]
            pairs += [(a, b) for a, b in zip(rows, rows[1:]) if requests.ids[a] != requests.ids[b]]
    first, second = pairs[int(draw.integers(len(pairs)))]
    return int(first), int(second)


def _later_tokens(requests: Requests, arrangement: Arrangement) -> list[tuple[int, int]]:
    """The first token of a request in each step behind its first one."""
    starts = []
    for step in range(1, len(arrangement.steps)):
        rows = arrangement.rows(step, 0).reshape(-1)
        for request in dict.fromkeys(requests.requests[rows].tolist()):
            position = int(requests.positions[rows[requests.requests[rows] == request]].min())
            if position > 0:
                starts.append((request, position))
    return starts
