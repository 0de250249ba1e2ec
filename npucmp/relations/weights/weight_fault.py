"""The verdict on a parameter of a checkpoint, and the description of a wrong one."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Union

from npucmp.model import Finding
from npucmp.relations.weights.checkpoint_pair import CheckpointPair

Fact = Union[str, int, float]


class WeightFault(NamedTuple):
    """A description of a wrong parameter: a label that is equal in all layers of a fault, the sentence, its facts, and
    the rank that alone holds the wrong elements, if one does."""

    label: str
    words: str
    facts: Mapping[str, Fact] = {}
    rank: Optional[int] = None


class JudgedWeight(NamedTuple):
    """A finding, the pair that it belongs to, and the share of its elements beyond the limit."""

    finding: Finding
    pair: CheckpointPair
    share: float
