"""The golden tensors of which each rank has a share of its own, between two places where the ranks make the golden's.

A place is a golden tensor that the parts of all ranks make, by its values. Between two places a rank may hold partial
sums, masks, offsets and indices of its part, or lists of other lengths; layouts differ in them, and the places behind
them show whether they are right. A tensor that does not agree is such a share if all that is made of it does. If no
place follows, it is none, and the run diverges there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Hashable, Optional

from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.ranks.partial_sums import partial_axes
from npucmp.relations.ranks.placement import share_alike
from npucmp.relations.ranks.placement_choice import COARSE, LOCAL, Decision, Key
from npucmp.relations.ranks.placement_search import PlacementSearch

ROUNDING = 1e-5  # rel_l2: chosen: places of clean float32 runs have smaller errors
ROUNDING_FIGURES = 1e-4  # of statistics: chosen likewise
PARTLY = 0.75  # share of elements: chosen: of a table of which each rank has a part, one rank finds half at most
PARTLY_SPLIT = 0.25  # share of elements: chosen: parts that make no golden tensor side by side agree by chance
UPDATE = (False, True)  # the phase of an optimizer step
HIDES = 0.1  # of the error of what a place is made of: chosen: a place with a larger error does not disprove it


class RankShares:
    """The shares of one step. `covered`: by operator and slot of the golden; `open`: those that no place proves,
    because what is made of them differs."""

    def __init__(self, search: PlacementSearch) -> None:
        self._search, self._golden = search, search.golden
        self._readers: dict[Hashable, list[HeldTensor]] = defaultdict(list)
        for operator in self._golden.operators:
            for one in operator.inputs:
                self._readers[_identity(one)].append(one)
        self._rounding = COARSE if search.is_coarse else ROUNDING if search.values else ROUNDING_FIGURES
        self._alike: dict[Key, float] = {}
        self._agreeing = {self._class_of(one) for operator in self._golden.operators for one in operator.tensors
                          if one.is_float and self._search.state(operator, one) == "agrees"}  # fmt: skip
        self._broken: set[str] = set()  # operators of which gradients or other readers show that a tensor differs
        self.covered: set[Key] = set()
        self.open: set[Key] = set()
        while self._cover_all():
            pass

    def _cover_all(self) -> bool:
        """Cover shares; return whether gradients, or other readers, contradict some of them, which are none then."""
        self.covered.clear()
        self._proven: set[Key] = set()  # those of which something that identifies itself is made
        for _ in range(2):  # the gradient of a share is a share
            self._behind = self._wrong = False  # whether a place follows, or a tensor that differs
            self._update_agrees = False  # whether the optimizer step, as far as it was visited, agrees
            self._next: list[HeldTensor] = []  # the tensors of the next operator
            self._fed: set[tuple[bool, bool]] = set()  # phases in which a place follows that code without a record made
            for operator in reversed(self._golden.operators):
                self._visit(operator)
        before = len(self._broken)
        for operator in self._golden.operators:
            open_tensors = [one for one in operator.tensors if self._differs(one)]
            forward = self._search.forward_of(operator)
            is_born = not any(map(self._arrives_wrong, operator.inputs))  # else no saved tensor is wrong
            self._broken |= {forward.name} if forward is not None and open_tensors and is_born else set()
            same = [each for one in open_tensors if one.content is not None for each in self._readers[one.content]]
            self._broken |= {each.operator.name for each in same}  # one tensor, one verdict
        return len(self._broken) > before

    def _differs(self, one: HeldTensor) -> bool:
        is_open = self._key(one) not in self.covered
        return is_open and self._search.state(one.operator, one) in ("differs", "shape")

    def _arrives_wrong(self, one: HeldTensor) -> bool:
        source = self._golden.origin(one).tensor
        return self._differs(one) or (source is not None and self._differs(source))

    def _visit(self, operator: RankOperator) -> None:
        if operator.is_collective:
            self.covered |= {*map(self._key, operator.tensors)}
            return
        outputs = [one for one in operator.outputs if one.size]
        for one in outputs:
            if not self._is_place(one):
                self._cover(one)
        for one, other in self._search.forward_of_gradients(operator) if self._behind else ():
            if self._key(other) in self.covered and self._search.state(operator, one) not in ("agrees", "unknown"):
                self.covered.add(self._key(one))
        made = outputs or self._next  # what writes into an input is read by the next one
        for one in operator.inputs if made else ():
            if not self._is_place(one) and all(self._is_closed(one, each) for each in made):
                self._add(one, any(self._is_proof(each) or self._key(each) in self._proven for each in made))
        if not outputs and self._wrong:  # what it writes into, behind a mask of the rank
            self.open |= {self._key(one) for one in operator.inputs[:1] if self._is_own(one)}
        self._next = [one for one in operator.tensors if one.is_float and one.size > 1] or self._next
        self._behind = self._behind or any(map(self._is_proof, operator.tensors))
        self._wrong = self._wrong or any(map(self._differs, operator.tensors))
        data = (one for at, one in enumerate(operator.inputs) if at not in operator.parameter_places and one.is_float)
        if any(self._is_proof(one) and self._golden.origin(one).how == "none" for one in data):
            self._fed.add(self._phase(operator))
        if self._golden.is_update(operator):
            self._update_agrees = not self._wrong and UPDATE in self._fed

    def _cover(self, one: HeldTensor) -> None:
        """Cover an output if all that reads it is a place or covered. One that no recorded operator reads is, if it
        is a mask or an index and a place follows; if it does not differ, nothing behind it does, and a place follows
        that code without a record made; or if it is a loss whose gradient shows its factor."""
        readers = [each for each in self._readers[_identity(one)] if each.operator.order > one.operator.order]
        own = [each for each in readers if one.operator.is_backward or not each.operator.is_backward] or readers
        if own and all(self._is_closed(one, each) for each in own):
            self._add(one, any(self._is_proof(each) or self._key(each) in self._proven for each in own))
            return
        again = self._golden.origin(one).tensor  # a module returns what an operator in it wrote
        is_again = again is not None and self._is_proof(again)
        is_shown = self._behind or any(map(self._is_proof, one.operator.outputs)) or (is_again and one.operator.op.path)
        if not own and is_shown:
            is_fed = self._phase(one.operator) in self._fed  # or, of a gradient that adds up, the optimizer step
            is_fed = is_fed or (self._golden.is_within_backward(one.operator) and UPDATE in self._fed)
            is_read = is_fed and self._search.state(one.operator, one) != "differs"  # by code that is not recorded
            if one.operator.is_gradient_record and self._update_agrees and self._error(one) in (None, math.inf):
                self._add(one, True)  # parts of one micro batch that do not make the golden's; the update reads the sum
            elif not self._wrong and (is_read or is_again):
                self._add(one, True)
            elif not one.is_float or self._has_gradient(one.operator):
                self._add(one, False)

    def _phase(self, operator: RankOperator) -> tuple[bool, bool]:
        return operator.is_backward, self._golden.is_update(operator)

    def _has_gradient(self, operator: RankOperator) -> bool:
        """Whether the gradients of a forward operator are recorded, and none of them differs."""
        gradients = [] if operator.is_backward else self._golden.backward_of(operator)
        return bool(gradients) and not any(self._differs(one) for each in gradients for one in each.tensors)

    def _is_closed(self, one: HeldTensor, behind: HeldTensor) -> bool:
        """Whether a tensor made of another is a share too, or a place that would show an error of the other: a small
        addend hides in a large sum."""
        if self._key(behind) in self.covered:
            return True
        if not self._is_place(behind):
            return False
        apart, near = self._error(one), self._error(behind)
        if apart is None or near is None:
            return True
        if not behind.is_float:  # the place of a maximum does not show it
            return not one.is_float
        if behind.operator is one.operator and behind.operator.type.has("sums"):
            near *= (behind.norm or 0.0) / (one.norm or 1.0)
        return near <= min(self._rounding, HIDES * apart)

    def _error(self, one: HeldTensor) -> Optional[float]:
        """The error of a tensor that the ranks make; None of one that they do not make."""
        decision = self._search.found.get(self._key(one))
        return decision.fit.error if decision is not None and decision.fit is not None else None

    def _add(self, one: HeldTensor, proven: bool) -> None:
        """Cover a tensor. One that differs needs a place that proves its share, and none in other layers."""
        decision = self._search.found.get(self._key(one), LOCAL)
        if decision.state == "unknown" or decision.mates:
            return
        is_wrong = not (proven or self._is_constant(one)) or one.operator.name in self._broken or self._is_copied(one)
        is_wrong = is_wrong or (decision.state == "differs" and one.is_float and self._class_of(one) in self._agreeing)
        if decision.state in ("differs", "shape") and (is_wrong or self._is_partly_right(one, decision)):
            return
        self.covered.add(self._key(one))
        if proven:
            self._proven.add(self._key(one))

    def _class_of(self, one: HeldTensor) -> Hashable:
        """A key that the same tensor of other layers shares if the parts of their ranks have the same shapes."""
        mesh = self._search.partners.mesh(one.operator)
        cells = mesh.cells.values() if mesh is not None else ()
        parts = [self._search.part(one.operator.name, op, one.slot) for op in cells]
        shapes = tuple(part.shape for part in parts if part is not None)
        return self._search.class_of(one.operator, one), self._search.role_of(one.operator), shapes

    def _is_partly_right(self, one: HeldTensor, decision: Decision) -> bool:
        """Whether the parts of the ranks make a good part of the tensor, so that the rest is wrong, and no share."""
        mesh = self._search.partners.mesh(one.operator)
        if mesh is None or decision.fit is None or not one.is_float or not self._search.values:
            return False
        key = self._key(one)
        if key not in self._alike:
            self._alike[key] = share_alike(mesh, self._search.parts_of(one), one, decision.fit, self._rounding)
        split = [held.is_split for size, held in zip(mesh.sizes, decision.fit.placements) if size > 1]
        return self._alike[key] >= (PARTLY_SPLIT if split and all(split) else PARTLY)

    def _is_constant(self, one: HeldTensor) -> bool:
        """Whether the one number that fills the golden's list fills those of all ranks, of another length: flags."""
        mesh = self._search.partners.mesh(one.operator)
        cells = mesh.cells.values() if mesh is not None else ()
        parts = [self._search.part(one.operator.name, op, one.slot) for op in cells]
        numbers = {_number(part) for part in (one, *parts)}
        return bool(parts) and len(numbers) == 1 and None not in numbers

    def _is_copied(self, one: HeldTensor) -> bool:
        """Whether all ranks hold equal values in an update, which are the share of none: a norm of gradients that
        clipping takes out again."""
        if not self._golden.is_update(one.operator) or not self._is_on_all_ranks(one):
            return False
        contents = {*self._contents(one)}
        return len(contents) == 1 and None not in contents

    def _is_on_all_ranks(self, one: HeldTensor) -> bool:
        """Whether all ranks of its stages have the operator of a tensor."""
        mesh, stages = self._search.partners.mesh(one.operator), self._search.partners.stages
        own = {stages[rank] for rank in mesh.ranks} if mesh is not None and len(mesh.ranks) > 1 else set()
        return mesh is not None and {*mesh.ranks} == {rank for rank, stage in stages.items() if stage in own}

    def _is_own(self, one: HeldTensor) -> bool:
        """Whether each rank has another tensor, and no other layer shows how they make the golden's."""
        decision = self._search.found.get(self._key(one), LOCAL)
        contents = self._contents(one) if decision.state == "differs" and decision.by == "shape" else []
        return len(contents) > 1 and len({*contents}) == len(contents)

    def _contents(self, one: HeldTensor) -> list[Hashable]:
        """The contents of the parts of a tensor; none of a tensor on one rank."""
        mesh = self._search.partners.mesh(one.operator)
        cells = mesh.cells.values() if mesh is not None and len(mesh.ranks) > 1 else ()
        parts = [self._search.part(one.operator.name, op, one.slot) for op in cells]
        return [None if part is None else part.content for part in parts]

    def _is_place(self, one: HeldTensor) -> bool:
        return not one.size or self._search.state(one.operator, one) == "agrees"

    def _is_proof(self, one: HeldTensor) -> bool:
        """Whether a place identifies itself: not a constant, and by statistics no sum of tensors, of which the mean
        alone is known."""
        if not self._is_place(one) or one.content is None:
            return False
        if self._search.values or one.size == 1:
            return True
        return one.is_float and not partial_axes(self._search.placed(one.operator, one))

    @staticmethod
    def _key(one: HeldTensor) -> Key:
        return one.operator.name, one.slot


def _identity(one: HeldTensor) -> Hashable:
    """The key that the golden's recordings of one tensor share; of a tensor of equal elements, their value."""
    return one.content if one.content is not None else (one.size, one.norm)


def _number(one: Optional[HeldTensor]) -> Optional[float]:
    """The number that fills a tensor; None if there are several, or if they are not known."""
    figures = one.figures if one is not None else None
    values = one.array if one is not None else None
    low, high = (values.min(), values.max()) if values is not None and values.size else (figures or (None, 0.0))[:2]
    return low if low == high else None


def hold_shares(search: PlacementSearch) -> None:
    """Take tensors that do not agree for shares of the ranks, where all that is made of them agrees."""
    shares = RankShares(search)
    search.covered = shares.covered
    for key in shares.covered | shares.open:
        if key in search.found:
            search.found[key] = LOCAL
    _take_from_readers(search)


def _take_from_readers(search: PlacementSearch) -> None:
    """Compare an output of which each rank has a share of its own, or none of whose placements fits, as what is read in
    its place: the ranks have made it by then, behind a mask and a reduction that the golden does not need, or behind a
    bias that is added once."""
    readers: dict[Hashable, HeldTensor] = {}
    for operator in reversed(search.golden.operators):
        mesh = None if operator.is_backward or operator.is_collective else search.partners.mesh(operator)
        if mesh is None:
            continue
        for one in operator.outputs:
            reader = readers.get(one.content) if one.content is not None else None
            is_own = one.is_float and search.state(operator, one) in ("local", "differs", "shape")
            if is_own and reader is not None and reader.shape == one.shape:
                search.take(one, mesh, reader)
        for one in operator.inputs:
            readers[one.content] = one
