"""The description of a wrong parameter of a checkpoint."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Union

Fact = Union[str, int, float]


class WeightFault(NamedTuple):
    """A description of a wrong parameter: a label that is equal in all layers of a fault, the sentence, its facts."""

    label: str
    words: str
    facts: Mapping[str, Fact] = {}
