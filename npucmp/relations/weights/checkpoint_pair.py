"""A golden parameter, what the relations make of the target for it, the verdict, and the description of a wrong one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, NamedTuple, Optional, Union

from npucmp.model import Finding
from npucmp.relations.weights.limits import WeightLimit
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role


class CheckpointPair(NamedTuple):
    """A golden parameter and what the relations make of the target for it. A side is None if it has no such parameter;
    `note` then says why. `copy`: number of a copy that another rank holds, 0 for the parameter itself. `is_state`: it
    belongs to the state of a training, not to the network. `is_slot`: a side holds it in a slot beyond the experts;
    `is_known_copy`: other tensors of the slot are those of the expert."""

    role: Role
    target: Optional[Part]
    golden: Optional[Part]
    limit: WeightLimit = WeightLimit(0.0)
    words: str = ""
    note: str = ""
    copy: int = 0
    is_tied: bool = False
    is_state: bool = False
    is_slot: bool = False
    is_known_copy: bool = False

    @property
    def name(self) -> str:
        """The operator of the pair in the report: the golden's tensor, the target's if the golden has none."""
        one = self.target if self.is_tied and self.golden is not None else self.golden or self.target
        assert one is not None
        return one.name


@dataclass
class PairedWeights:
    """The pairs in the order of the network, and the relations in words with the number of their tensors."""

    pairs: list[CheckpointPair] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    only_target: list[str] = field(default_factory=list)


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
