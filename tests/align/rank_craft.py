"""Ranks, operators and tensors of small runs, with their values in files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.relations.held_values import Values
from npucmp.relations.ranks.rank_run import RankRun
from tests.align.craft import run_with_values


def rank_of(folder, calls, rank=0):
    """A rank with these calls; those of the phase "gradients" are the records of a module's gradients, which have no
    number."""
    folder.mkdir(parents=True, exist_ok=True)
    run = run_with_values(folder, calls, rank)
    operators = []
    for one in run.operators:
        if one.phase == "gradients":
            tensors = tuple(each._replace(slot=f"grad:{at}") for at, each in enumerate(one.tensors))
            one = one._replace(tensors=tensors, phase="backward", call=one.call.rpartition(".")[0])
        operators.append(one)
    return RankRun(replace(run, operators=tuple(operators)), rank, Values(ANYWHERE))


def held(folder, *tensors):
    """Tensors that one operator reads."""
    return rank_of(folder, [("Torch.add.0.forward", tensors, [])]).operators[0].inputs


def numbers(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
