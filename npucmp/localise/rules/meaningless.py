"""Uninitialised memory and a device's workspaces hold what nobody promised.

Source: the documentation of torch.empty; reserve_space of FusedBatchNormV3 in TensorFlow's raw_ops.
"""

from __future__ import annotations

from npucmp.localise.case import Rule
from npucmp.model.roles import is_meaningless

RULE = Rule(
    "fact",
    "meaningless",
    "uninitialised memory and workspaces differ between any two runs",
    applies=lambda case: is_meaningless(case.pair),
)
