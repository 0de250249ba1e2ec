"""An operator of the target with the golden tensors of its tensors, before both are a match.

A draft knows, by slot, the golden tensor of each tensor and how their contents were paired. A row is two tensors of a
match, or one without a partner.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from npucmp.model import Operator, TensorRef
from npucmp.model.relation import AxisOrder
from npucmp.relations.frameworks.contents.content import Recording
from npucmp.relations.frameworks.contents.content_pairs import ContentPair
from npucmp.relations.frameworks.contents.slices import CONFIDENCE as OF_SLICES
from npucmp.relations.frameworks.contents.slices import VIA as PARTS

PLACED = 0.8  # confidence: chosen: of operators without a paired output, as of pairs by structure


class TensorRow(NamedTuple):
    """Two tensors of a match, or one without a partner: fields of their Pair. `golden_op` is the operator that has the
    golden tensor, which need not be the partner of the target's operator."""

    slot: str
    golden_op: Operator
    target: Optional[TensorRef]
    golden: Optional[TensorRef]
    via: str = ""
    confidence: float = 0.0
    note: str = ""


class TensorPartner(NamedTuple):
    """The golden tensor of a target tensor, and how their contents were paired."""

    recording: Recording
    pair: ContentPair


class OperatorDraft:
    """An operator of the target whose golden operator is known.

    partners     by slot of the target; `open_inputs`: contents of inputs without a partner
    exact        tensors that are no contents, paired because they are equal or the only ones left
    """

    def __init__(self, place: int, operator: Operator, golden: int = -1, via: str = "") -> None:
        self.place, self.operator, self.golden = place, operator, golden
        self.partners: dict[str, TensorPartner] = {}
        self.open_inputs: list[int] = []
        self.exact: dict[str, tuple[TensorRef, str, AxisOrder]] = {}
        self.via, self.confidence = via, PLACED if via else 0.0

    @property
    def first_output(self) -> Optional[ContentPair]:
        """The pair of the first output that has one."""
        return next((one.pair for slot, one in self.partners.items() if not slot.startswith("input")), None)

    @property
    def via_of(self) -> str:
        """The stage by which the operator was paired."""
        return self.first_output.via if self.first_output is not None else self.via or PARTS

    @property
    def confidence_of(self) -> float:
        return self.first_output.confidence if self.first_output is not None else self.confidence or OF_SLICES
