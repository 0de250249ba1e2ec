"""Matches of operators, and pairs of tensors that should agree."""

from __future__ import annotations

from typing import NamedTuple, Optional

from npucmp.model.dump import Operator, TensorRef


class Match(NamedTuple):
    """Two operators that were aligned. `via` is the matcher, `confidence` from 0 to 1.

    For a fused operator, `golden` is synthetic, with tensors of several operators of the golden run; `inside` are the
    orders of all operators inside it. In a `settled` match, tensors are paired only by slot.
    """

    target: Operator
    golden: Operator
    via: str
    confidence: float
    inside: tuple[int, ...] = ()
    settled: bool = False


class Pair(NamedTuple):
    """Two tensors that should agree, or one without a partner.

    If a side is missing, `via` is empty and `note` has the reason. `order` is the position in the merged graph order of
    both runs, the same for all pairs of an operator.
    """

    order: int
    slot: str
    target_op: Optional[Operator]
    golden_op: Optional[Operator]
    target: Optional[TensorRef]
    golden: Optional[TensorRef]
    via: str = ""
    confidence: float = 0.0
    note: str = ""

    @property
    def operator(self) -> Operator:
        """The target's operator, or the golden's if the target has none."""
        operator = self.target_op or self.golden_op
        assert operator is not None
        return operator

    @property
    def is_inside(self) -> bool:
        """Whether the tensor is internal to the compiler's result and has no counterpart in the network. The target's
        tensor decides if it exists, else the golden's."""
        tensor, operator = (self.target, self.target_op) if self.target else (self.golden, self.golden_op)
        if tensor is None or operator is None:
            return False
        return operator.inserted or (bool(operator.originals) and not tensor.origin)
