"""Ranks, operators and tensors of small runs, with their values in files."""

from __future__ import annotations

import numpy as np

from npucmp.align.rank_run import RankRun, Values
from npucmp.dump.limits import ANYWHERE
from tests.align.craft import run_with_values


def rank_of(folder, calls, rank=0):
    """A rank with these calls."""
    folder.mkdir(parents=True, exist_ok=True)
    return RankRun(run_with_values(folder, calls, rank), rank, Values(ANYWHERE))


def held(folder, *tensors):
    """Tensors that one operator reads."""
    return rank_of(folder, [("Torch.add.0.forward", tensors, [])]).operators[0].inputs


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
