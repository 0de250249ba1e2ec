"""A run of one rank: its operators, its micro batches, and who wrote a tensor."""

from __future__ import annotations

from collections import defaultdict
from typing import Hashable, NamedTuple, Optional

from npucmp.model import Run
from npucmp.relations.held_values import HeldTensor, RankOperator, Values
from npucmp.relations.ranks.micro_batches import micro_batches_of


class Origin(NamedTuple):
    """The producer of a tensor: `how` is "collective", "operator" or "none"."""

    how: str
    tensor: Optional[HeldTensor] = None

    @property
    def operator(self) -> Optional[RankOperator]:
        return self.tensor.operator if self.tensor is not None else None


NOWHERE = Origin("none")


class RankRun:
    """The operators of one rank of one step, with micro batches and what runs behind the last backward."""

    def __init__(self, run: Run, rank: int, values: Values) -> None:
        self.run, self.rank = run, rank
        self.operators = [RankOperator(op, rank, values) for op in run.operators]
        self.by_name = {one.name: one for one in self.operators}
        self.forward_batches, self.backward_batches, self.update = micro_batches_of(self.operators)
        self.micro_batches = [a + b for a, b in zip(self.forward_batches, self.backward_batches)]
        self._calls: dict[str, list[RankOperator]] = defaultdict(list)
        for one in self.operators:
            if one.op.call:
                self._calls[one.op.call].append(one)
        self._update = {one.name for one in self.update}
        self._within = {one.name for batch in self.backward_batches for one in batch}
        self._writers: Optional[dict[Hashable, list[HeldTensor]]] = None
        self._readers: Optional[dict[Hashable, list[HeldTensor]]] = None

    def is_within_backward(self, operator: RankOperator) -> bool:
        """Whether a forward operator runs within a backward pass: a function of the user, an accumulated gradient."""
        return operator.name in self._within

    def is_update(self, operator: RankOperator) -> bool:
        """Whether an operator runs behind the last backward pass."""
        return operator.name in self._update

    def backward_of(self, operator: RankOperator) -> list[RankOperator]:
        """The backward records of a forward operator."""
        return [one for one in self._calls.get(operator.op.call, ()) if one.is_backward] if operator.op.call else []

    def of_call(self, call: str) -> list[RankOperator]:
        """The records of one call."""
        return self._calls.get(call, [])

    def origin(self, tensor: HeldTensor) -> Origin:
        """The latest operator before that wrote what a tensor holds."""
        if self._writers is None:
            self._writers = defaultdict(list)
            for operator in self.operators:
                for one in operator.outputs:
                    if one.content is not None:
                        self._writers[one.content].append(one)
        if not tensor.size:  # tokens of an expert that gets none
            empty = (each for one in reversed(self.operators) if one.order < tensor.operator.order
                     for each in one.outputs if each.shape == tensor.shape)  # fmt: skip
            found = next(empty, None)
            return NOWHERE if found is None else Origin("operator", found)
        before = [one for one in self._writers.get(tensor.content, ()) if one.operator.order < tensor.operator.order]
        if not before:
            return NOWHERE
        return Origin("collective" if before[-1].operator.is_collective else "operator", before[-1])

    def feeds_collective(self, tensor: HeldTensor) -> bool:
        """Whether a later collective reads what a tensor holds."""
        if self._readers is None:
            self._readers = defaultdict(list)
            for operator in self.operators:
                for one in operator.inputs if operator.is_collective else ():
                    if one.content is not None:
                        self._readers[one.content].append(one)
        some = self._readers.get(tensor.content, ()) if tensor.content is not None else ()
        return any(one.operator.order > tensor.operator.order for one in some)
