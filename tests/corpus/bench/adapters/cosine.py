"""The plain rule "first tensor whose cosine is below 0.99"; it needs values."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.bench.adapters import Accusation
from tests.corpus.bench.adapters.arrays import Item, first_beyond

DATA = ("values",)
LEAST = 0.99  # the rule's own


def _differ(one: Item, other: Item) -> bool:
    if one.values is None or other.values is None:
        return False
    a, b = one.values.reshape(-1), other.values.reshape(-1)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return bool(not np.array_equal(a, b) and (size == 0 or not a @ b / size >= LEAST))


def accuse(target: Path, golden: Path) -> list[Accusation]:
    return first_beyond(target, golden, _differ)
