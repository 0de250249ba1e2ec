"""The operators that are right to name: the first record that is not that of the same run without the fault.

Runs are compared bit by bit, in order of execution. If an output differs first, the operator is right. If an input
differs first, the fault lies between two records, and every reader of that tensor is right. If that record has no
partner in the golden, as a reduction has none on one card, the first record with a partner is right too; so it is if
statistics do not show the first one.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, NamedTuple, Optional, Sequence

from tests.corpus.tape import FLOATS, Session
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.truth import beyond_noise, figures, same

Differ = Callable[[Tensor, Tensor], bool]
Key = tuple[Any, ...]  # step, rank, phase, scope, kind, which of them
SUMS = ("all_reduce", "reduce_scatter")
COLLECTIVES = (*SUMS, "all_gather")


class Shown(NamedTuple):
    """Where a fault first shows: a record, whether in what it reads, and the tensors with and without the fault."""

    key: Key
    reads: bool
    tensors: Sequence[tuple[Tensor, Tensor]]


class Truth(NamedTuple):
    """Records of the target and the golden that are right to name, the step, the ranks, and the size of the fault as a
    multiple of rounding and noise."""

    target: Sequence[Record]
    golden: Sequence[Record]
    step: int
    ranks: Sequence[int]
    beyond: float


def by_key(sessions: Sequence[Session]) -> dict[Key, Record]:
    """Records in order of execution, by what two runs share."""
    seen: Counter[Key] = Counter()
    found = {}
    for session in sessions:
        for rank, one in session.records:
            stem = (session.step, rank, one.phase, one.scope, one.kind)
            found[(*stem, seen[stem])] = one
            seen[stem] += 1
    return found


def partner(key: Key, golden: dict[Key, Record]) -> Optional[Record]:
    """The record of the golden for one of the target: of the same rank, else of rank 0; of a product apart from its
    bias the layer; of a reduction the product that it completes; of a later micro batch the only one."""
    step, rank, phase, scope, kind, place = key
    others = [(rank, kind, place), (0, kind, place), (0, kind, 0)]
    if kind in ("linear", "matmul", "add", *SUMS):
        others += [(rank, "linear", 0), (0, "linear", 0)]
    if kind in SUMS:
        others.append((0, "add", 0))
    for holder, type, number in others:
        found = golden.get((step, holder, phase, scope, type, number))
        if found is not None:
            return found
    return None


def find_truth(
    faulty: Sequence[Session], clean: Sequence[Session], golden: Sequence[Session], task: str, unit: float
) -> Optional[Truth]:
    """None if the fault shows nowhere."""
    a, b, c = by_key(faulty), by_key(clean), by_key(golden)
    compared = {key: one for key, one in b.items() if partner(key, c) is not None}
    first, seen = _first_shown(a, b, _differ), _first_shown(a, compared, _sight(task))
    if first is None or seen is None:
        return None
    keys = dict.fromkeys([*_accepted(first, a, b), *_accepted(seen, a, b)])
    order = list(b)
    keys.update(dict.fromkeys(key for key in order[: order.index(first.key)] if key not in a))
    other = partner(seen.key, c)
    records = [one for key in keys if (one := partner(key, c)) is not None]
    return Truth(
        [a[key] for key in keys if key in a],
        records,
        first.key[0],
        sorted({key[1] for key in keys}),
        _beyond(seen, other, task, unit),
    )


def _differ(x: Tensor, y: Tensor) -> bool:
    return not same(x, y)


def _sight(task: str) -> Differ:
    if task != "statistics":
        return _differ
    return lambda x, y: x.values.shape != y.values.shape or figures(x) != figures(y)


def _items(record: Record) -> list[Any]:
    return [*record.inputs, *record.keywords.values()]


def _apart(
    xs: Sequence[Any], ys: Sequence[Any], differ: Callable[[Tensor, Tensor], bool]
) -> list[tuple[Tensor, Tensor]]:
    both = zip(xs, ys)
    return [(x, y) for x, y in both if isinstance(x, Tensor) and isinstance(y, Tensor) and differ(x, y)]


def _open(a: Record, b: Record) -> bool:
    """Whether a number among the arguments differs."""
    plain = (int, float, bool, str)
    return any(isinstance(x, plain) and isinstance(y, plain) and x != y for x, y in zip(_items(a), _items(b)))


def _first_shown(
    a: dict[Key, Record], b: dict[Key, Record], differ: Callable[[Tensor, Tensor], bool]
) -> Optional[Shown]:
    for key, clean in b.items():
        faulty = a.get(key)
        if faulty is None:
            continue
        if found := _apart(_items(faulty), _items(clean), differ):
            return Shown(key, True, found)
        outputs = _apart(faulty.outputs, clean.outputs, differ)
        if outputs and clean.kind in COLLECTIVES:
            for other in (
                one for one in b if one[1] != key[1] and (one[0], *one[2:]) == (key[0], *key[2:]) and one in a
            ):
                if found := _apart(_items(a[other]), _items(b[other]), differ):
                    return Shown(other, True, found)
        if outputs or _open(faulty, clean):
            return Shown(key, False, outputs)
    return None


def _accepted(shown: Shown, a: dict[Key, Record], b: dict[Key, Record]) -> list[Key]:
    """The record; all readers of a tensor that differs; of the optimizer every operator of that kind and step that
    bears the error, since updates do not depend on each other."""
    step, _, _, scope, kind, _ = shown.key
    found = [shown.key]
    if shown.reads:
        keys = {bad.key for bad, _ in shown.tensors}
        for key, one in a.items():
            if key[0] == step and any(isinstance(item, Tensor) and item.key in keys for item in _items(one)):
                found.append(key)
        found += [key for key, one in a.items() if key[0] == step and _reads_another(key, one, keys, b)]
    if scope.startswith("optimizer"):
        alike = [key for key in a if key[0] == step and key[3].startswith("optimizer") and key[4] == kind and key in b]
        for key in alike:
            one, clean = a[key], b[key]
            if _apart([*_items(one), *one.outputs], [*_items(clean), *clean.outputs], _differ) or _open(one, clean):
                found.append(key)
    return found


def _reads_another(key: Key, one: Record, keys: set[int], b: dict[Key, Record]) -> bool:
    """Whether an operator wrote the tensor that differs, from others than in the clean run: it has another place."""
    wrote = any(out is not None and out.key in keys for out in one.outputs)
    return wrote and key in b and bool(_apart(_items(one), _items(b[key]), _differ))


def _beyond(shown: Shown, golden: Optional[Record], task: str, unit: float) -> float:
    if not shown.tensors:
        return math.inf
    found = 0.0
    others = [] if golden is None else _items(golden) if shown.reads else [*golden.outputs]
    for bad, good in shown.tensors:
        near = [
            o for o in others if isinstance(o, Tensor) and o.values.shape == good.values.shape and o.dtype in FLOATS
        ]
        if bad.values.shape != good.values.shape or bad.dtype not in FLOATS or bad.dtype != good.dtype:
            return math.inf
        noise = [beyond_noise(bad, good, one, unit, task) for one in near] or [
            beyond_noise(bad, good, None, unit, task)
        ]
        found = max(found, min(noise))
    return found


def of_runs(sessions: Sequence[Session]) -> list[Run]:
    return [run for one in sessions for run in one.runs()]
