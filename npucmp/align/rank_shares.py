"""The golden tensors of which each rank has a share of its own, between two places where the ranks make the golden's.

A place is a golden tensor that the parts of all ranks make, by its values. Between two places a rank may hold partial
sums, masks, offsets and indices of its part, or lists of other lengths; layouts differ in them, and the places behind
them show whether they are right. A tensor that does not agree is such a share if all that is made of it does. If no
place follows, it is none, and the run diverges there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Hashable

from npucmp.align.partial_sums import partial_axes
from npucmp.align.placement_choice import LOCAL, Key
from npucmp.align.placement_search import PlacementSearch
from npucmp.align.rank_run import HeldTensor, RankOperator


class RankShares:
    """The shares of one step. `covered`: by operator and slot of the golden."""

    def __init__(self, search: PlacementSearch) -> None:
        self._search, self._golden = search, search.golden
        self._readers: dict[Hashable, list[HeldTensor]] = defaultdict(list)
        for operator in self._golden.operators:
            for one in operator.inputs:
                self._readers[_identity(one)].append(one)
        self.covered: set[Key] = set()
        self._proven: set[Key] = set()  # those of which something that identifies itself is made
        self._behind = False  # whether a place follows
        for _ in range(2):  # the gradient of a share is a share
            self._behind = False
            for operator in reversed(self._golden.operators):
                self._visit(operator)

    def _visit(self, operator: RankOperator) -> None:
        if operator.is_collective:
            self.covered |= {*map(self._key, operator.tensors)}
            return
        outputs = [one for one in operator.outputs if one.size]
        for one in outputs:
            if not self._is_place(one):
                self._cover(one)
        for one, other in self._search.forward_of_gradients(operator) if self._behind else ():
            if self._key(other) in self.covered and not self._is_place(one):
                self.covered.add(self._key(one))
        whole = bool(outputs) and all(self._is_place(one) or self._key(one) in self.covered for one in outputs)
        proven = any(self._is_proof(one) or self._key(one) in self._proven for one in outputs)
        for one in operator.inputs if whole else ():
            if not self._is_place(one):
                self._add(one, proven)
        self._behind = self._behind or any(map(self._is_proof, operator.tensors))

    def _cover(self, one: HeldTensor) -> None:
        """Cover an output if all that reads it is a place or covered. A mask or index that no recorded operator reads
        is, if a place follows."""
        readers = [each for each in self._readers[_identity(one)] if each.operator.order > one.operator.order]
        own = [each for each in readers if one.operator.is_backward or not each.operator.is_backward] or readers
        if own and all(self._is_place(each) or self._key(each) in self.covered for each in own):
            self._add(one, any(self._is_proof(each) or self._key(each) in self._proven for each in own))
        elif not one.is_float and self._behind:
            self._add(one, False)

    def _add(self, one: HeldTensor, proven: bool) -> None:
        """Cover a tensor. One that differs needs a place that proves its share."""
        state = self._search.state(one.operator, one)
        if state == "unknown" or (state in ("differs", "shape") and not proven):
            return
        self.covered.add(self._key(one))
        if proven:
            self._proven.add(self._key(one))

    def _is_place(self, one: HeldTensor) -> bool:
        return not one.size or self._search.state(one.operator, one) == "agrees"

    def _is_proof(self, one: HeldTensor) -> bool:
        """Whether a place identifies itself: not a constant, and by statistics no sum, of which the mean alone is
        known."""
        if not self._is_place(one) or one.content is None:
            return False
        return self._search.values or not partial_axes(self._search.placed(one.operator, one))

    @staticmethod
    def _key(one: HeldTensor) -> Key:
        return one.operator.name, one.slot


def _identity(one: HeldTensor) -> Hashable:
    """What the golden's recordings of one tensor share; of a tensor of equal elements, their value."""
    return one.content if one.content is not None else (one.size, one.norm)


def hold_shares(search: PlacementSearch) -> None:
    """Take tensors that do not agree for shares of the ranks, where all that is made of them agrees."""
    search.covered = RankShares(search).covered
    for key in search.covered:
        if key in search.found:
            search.found[key] = LOCAL
