"""Polygraphy's CompareFunc.simple() with its defaults (1e-5, 1e-5), on arrays in order of execution."""

from __future__ import annotations

from pathlib import Path

from polygraphy.comparator import CompareFunc, IterationResult  # type: ignore[import-not-found,unused-ignore]

from tests.corpus.bench.adapters import Accusation
from tests.corpus.bench.adapters.arrays import items, places

DATA = ("values",)


def accuse(target: Path, golden: Path) -> list[Accusation]:
    found: dict[Accusation, None] = {}
    for place in places(target, golden):
        sides = []
        for folder in (place.target, place.golden):
            sides.append({f"{one.operator}|{one.slot}": one.values for one in items(folder) if one.values is not None})
        common = [name for name in sides[0] if name in sides[1] and sides[0][name].shape == sides[1][name].shape]
        one, other = (IterationResult({name: side[name] for name in common}) for side in sides)
        for name, result in CompareFunc.simple()(one, other).items():
            if not result:
                found[Accusation(name.partition("|")[0], place.step)] = None
    return list(found)
