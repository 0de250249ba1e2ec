"""What should agree: operators that were lined up, and their tensors."""

from __future__ import annotations

from typing import NamedTuple, Optional

from npucmp.model.dump import Operator, TensorRef


class Match(NamedTuple):
    """Two operators that were lined up; `via` is the matcher, `confidence` from 0 to 1.

    For a fused operator `golden` is made up of the tensors of several operators of the golden run; `inside` are the
    orders of all that lie within it. Of a `settled` match tensors are partners by their slots and by nothing else.
    """

    target: Operator
    golden: Operator
    via: str
    confidence: float
    inside: tuple[int, ...] = ()
    settled: bool = False


class Pair(NamedTuple):
    """Two tensors that should agree, or one without a partner.

    `via` is empty where a side is missing; `note` then says why. `order` is the place in the merged
    graph order of both runs, the same for all pairs of an operator.
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
        """The operator as the target knows it, the golden's if the target has none."""
        operator = self.target_op or self.golden_op
        assert operator is not None
        return operator

    @property
    def is_inside(self) -> bool:
        """Whether the tensor, or the one of both that is there, is the compiler's own: the network has none like it."""
        tensor, operator = (self.target, self.target_op) if self.target else (self.golden, self.golden_op)
        if tensor is None or operator is None:
            return False
        return operator.inserted or (bool(operator.originals) and not tensor.origin)
