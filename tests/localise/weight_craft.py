"""Parameters of two checkpoints in files of their own, and the pairs that they make."""

from __future__ import annotations

import numpy as np

from npucmp.model import Payload
from npucmp.relations.weights.checkpoint_pair import CheckpointPair
from npucmp.relations.weights.limits import WeightLimit
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role
from tests.relations.weights.craft import Files

UP, RTOL = Role(0, "up", "weight"), 1e-6


class Weights:
    """Writes arrays as the parameters of a target and a golden."""

    def __init__(self, folder):
        self._files = Files(folder)

    def payload(self, values) -> Payload:
        return values if isinstance(values, Payload) else self._files(values, "float64").payload

    def part(self, values, role=UP, name="layers.0.up.weight", shards=(), **more) -> Part:
        payload = None if values is None else self.payload(values)
        more = {"dtype": "float64", "shards": tuple(map(self.payload, shards)), **more}
        return Part(role, payload, name, "file", **more)

    def pair(self, target, golden, role=UP, limit=None, *, copy=0, of_target=None, of_golden=None) -> CheckpointPair:
        """The pair of two arrays; `of_target` and `of_golden` are further fields of the parts."""
        sides = self.part(target, role, **(of_target or {})), self.part(golden, role, **(of_golden or {}))
        return CheckpointPair(role, *sides, WeightLimit(RTOL) if limit is None else limit, copy=copy)


def drawn(*shape, seed=8):
    return np.random.default_rng(seed).standard_normal(shape)
