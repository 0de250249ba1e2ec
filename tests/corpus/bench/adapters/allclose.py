"""The plain rule "first tensor beyond allclose(rtol=1e-3, atol=1e-5)": of values, of the four figures, of checksums."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.corpus.bench.adapters import Accusation
from tests.corpus.bench.adapters.arrays import Item, first_beyond

DATA = ("values", "statistics", "md5")
RTOL, ATOL = 1e-3, 1e-5  # the rule's own


def _differ(one: Item, other: Item) -> bool:
    if one.values is not None and other.values is not None:
        return not np.allclose(one.values, other.values, RTOL, ATOL, equal_nan=True)
    if one.checksum or other.checksum:
        return one.checksum != other.checksum
    a, b = (np.array([np.nan if v is None else float(v) for v in x.figures]) for x in (one, other))
    return not np.allclose(a, b, RTOL, ATOL, equal_nan=True)


def accuse(target: Path, golden: Path) -> list[Accusation]:
    return first_beyond(target, golden, _differ)
