"""The runs of both sides by token: the rows of each tensor in the order of the golden's requests and positions.

Tensors that depend on the layout of their run (masks, positions that differ, lengths, caches, scores of attention) are
not in the target's run. In the golden's they are marked as its own if all that is made of them is compared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure, if_unreadable
from npucmp.model import Operator, Run, TensorRef
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import Relation, TokenRelation
from npucmp.model.roles import is_activation, is_read_parameter
from npucmp.relations.held_values import HeldTensor, RankOperator
from npucmp.relations.token_records import MASK, record_of, records_layout
from npucmp.relations.tokens.token_axes import is_float, token_axes
from npucmp.relations.tokens.token_evidence import PLACED, TokenEvidence
from npucmp.relations.tokens.token_index import TokenIndex
from npucmp.relations.tokens.token_rows import RowRun, StepTensor, row_values, selected, step_tensor
from npucmp.relations.tokens.token_tensors import Key, TensorPair, TokenSide, tensors_of


class _Side:
    """One side: its tensors by step, and the rows of the tokens."""

    def __init__(self, side: TokenSide, runs: Sequence[RowRun], is_golden: bool = False) -> None:
        self.side, self.rows, self.is_golden = side, runs, is_golden
        used = sorted({run.step for run in runs})
        self.tensors = {step: {key: one for _, key, one in tensors_of(side.runs[step])} for step in used}
        self.first = side.runs[used[0]] if used else side.runs[0]

    def steps_of(self, key: Key) -> Optional[dict[int, StepTensor]]:
        found = {}
        for step, tensors in self.tensors.items():
            one = step_tensor(tensors[key], self.side.shapes[step], self.side.values) if key in tensors else None
            if one is None:
                return None
            found[step] = one
        return found

    def problem(self, key: Key) -> str:
        """The reason why a tensor cannot be read in a step; "" if it can."""
        found = (self.side.values.problem(tensors[key]) for tensors in self.tensors.values() if key in tensors)
        return next(filter(None, found), "")


class TokenRuns:
    """The runs of both sides by token. A tensor that cannot be read has its reason. Raises SystemFailure."""

    def __init__(
        self, index: TokenIndex, pairs: Sequence[TensorPair], evidence: TokenEvidence, context: ReadContext
    ) -> None:
        self.index, self.context = index, context
        self.keeps_rows = False
        self.target = _Side(index.target, index.runs(True))
        self.golden = _Side(index.golden, index.runs(False), True)
        count, requests = len(index.rows), len({*map(int, index.requests)})
        self.relation = TokenRelation(count, requests, len(index.target.runs))
        self.partner: dict[Key, list[TensorPair]] = {}
        for one in pairs:
            self.partner.setdefault(one.golden, []).append(one)
            self.partner.setdefault(one.target, []).append(one)
        self._pairs, self._first = pairs, evidence.first
        self.of_ranks = False  # whether ranks look up ids of a part of a vocabulary, which relations/ranks/ compares

    @cached_property
    def own(self) -> set[Key]:
        """The tensors that depend on the layout of their run, as masks of ranks do."""
        return {*self._layout_tensors()}

    def _layout_tensors(self) -> Iterator[Key]:
        every = tensors_of(self.golden.first) if self.of_ranks else []
        looked_up = {key for op, key, _ in every if op_type_of(op).has("looks up")}
        masks = {key for op, key, one in every if (record := record_of(op, one)) is not None and record.role == MASK}
        for one in self._pairs:
            if one is self._first or one.golden in looked_up:
                continue
            if one.golden in masks or self._is_own(one):
                yield from (one.target, one.golden)

    def rank_run(self) -> Run:
        """The run of a rank of the target, of the golden's step. Its rows stay in their order; if all are tokens, so do
        those of parts of them, as ranks hold them between a scatter and a gather."""
        order = self.index.rows.argsort(kind="stable")
        index = self.index._replace(rows=self.index.rows[order], places=self.index.places[order])
        self.keeps_rows = len(index.rows) == index.target.size
        self.target = _Side(index.target, index.runs(True))
        return self.target_run()

    def target_run(self) -> Run:
        """The run of the target with the rows of the tokens that have an index, of the golden's step."""
        operators = tuple(self._operator(*one, self.target) for one in _by_operator(self.target.first))
        return replace(self.target.first, operators=operators, step=self.golden.first.step)

    def golden_run(self, side: TokenSide, places: Any) -> Run:
        """The run of a rank of the golden with the rows at these places."""
        side = replace(side, shapes=self.index.golden.shapes)  # in the order of axes that the index found
        golden = _Side(side, self.index._replace(places=places).runs(False), True)
        operators = [self._operator(*one, golden) for one in _by_operator(golden.first)]
        return replace(golden.first, operators=tuple(self._marked(operators, golden)))

    @if_unreadable(False)
    def _is_own(self, pair: TensorPair) -> bool:
        """Whether integers of most tokens differ: positions and indices of a layout, which no operator made of
        activations. Numbers of few tokens are wrong."""
        if pair.is_float:
            return False
        if pair.is_output and any(other.is_float and not other.is_output and other.golden[:2] == pair.golden[:2]
                                  for others in self.partner.values() for other in others):  # fmt: skip
            return False
        steps, others = self.target.steps_of(pair.target), self.golden.steps_of(pair.golden)
        if steps is None or others is None:
            return not (self.target.problem(pair.target) or self.golden.problem(pair.golden))
        left = row_values(selected(steps, self.target.rows, (pair.width,)), self.context)
        right = row_values(selected(others, self.golden.rows, (pair.width,)), self.context)
        return len(left) > 0 and float((left == right).all(1).mean()) <= PLACED

    def _operator(self, operator: Operator, keys: Sequence[Key], side: _Side) -> Operator:
        tensors = []
        for key, one in zip(keys, operator.tensors):
            found = self._tensor(operator, key, one, side)
            if found is None and side.is_golden:
                found = one._replace(relation=self.relation._replace(is_own=True))
            if found is not None:
                tensors.append(found)
        return operator._replace(tensors=tuple(tensors), scope=operator.scope)

    def _tensor(self, operator: Operator, key: Key, one: TensorRef, side: _Side) -> Optional[TensorRef]:
        """The tensor by token; unchanged if tokens have no part in it; None if it depends on the layout."""
        if is_read_parameter(operator, one) and is_float(one):  # although it may have as many rows as there are tokens
            return one
        if not one.slot or one.problem or not is_activation(one) or key in self.own:
            return None if key in self.own else one
        steps = side.steps_of(key)
        others = self.partner.get(key, [])
        if steps is None:
            if problem := side.problem(key):
                return one._replace(problem=problem)
            if isinstance(one.relation, Relation):  # stated
                is_by_token = token_axes(one.shape, (), side.side.shapes[0]) is not None
                return (
                    one._replace(problem="no rows of tokens can be picked from a computed view") if is_by_token else one
                )
            is_kept = self.keeps_rows and not side.is_golden and len(side.side.runs) == 1 and self._has_parts(one)
            return one if is_kept or (not one.shape and len(side.side.runs) == 1) else None
        is_layout = not is_float(one) and (not one.is_output or records_layout(operator, one))
        if not others and (is_layout or (not self.of_ranks and self._is_elsewhere(key, side))):
            return None
        return self._selected(one, steps, side, key if others else None)

    def _has_parts(self, tensor: TensorRef) -> bool:
        """Whether a tensor of a rank has the rows of all ranks, or a part of its own rows."""
        rows, own = next((size for size in tensor.shape if size != 1), 0), self.index.target.size
        return rows > 1 and (rows % own == 0 or own % rows == 0)

    def _is_elsewhere(self, key: Key, side: _Side) -> bool:
        """Whether the other side has a tensor of this name, and not by token."""
        other = self.target if side.is_golden else self.golden
        return any(key in tensors for tensors in other.tensors.values()) and other.steps_of(key) is None

    def _selected(
        self, one: TensorRef, steps: Mapping[int, StepTensor], side: _Side, key: Optional[Key]
    ) -> Optional[TensorRef]:
        axes = next(iter(steps.values())).axes
        rest = axes.rest if key is not None and self._rests(key) == {axes.rest} else (axes.width,)
        try:
            payload = selected(steps, side.rows, rest)
        except SystemFailure:
            raise
        except NpucmpError as error:
            return one._replace(problem=getattr(error, "because", str(error)))
        relation: Optional[Relation | TokenRelation] = None if side.is_golden else self.relation
        if isinstance(one.relation, Relation):  # stated
            relation = one.relation._replace(of_rank=f"{one.relation.of_rank} · {self.relation.words}")
        return one._replace(shape=payload.shape, payload=payload, statistics=None, checksum="", source="", layout="",
                            relation=relation)  # fmt: skip

    def _rests(self, key: Key) -> set[tuple[int, ...]]:
        """The shapes in which both sides have the values of a token."""
        found = set()
        for pair in self.partner[key]:
            for side, own in ((self.target, pair.target), (self.golden, pair.golden)):
                steps = side.steps_of(own)
                found |= {one.axes.rest for one in steps.values()} if steps is not None else set()
        return found

    def _marked(self, operators: Sequence[Operator], golden: _Side) -> Iterable[Operator]:
        """The golden's operators. A tensor of its own is marked if it is an input, or if a later operator reads its
        content and writes tensors that are compared or marked; else it stays open."""
        read: list[HeldTensor] = []
        found = []
        for operator, recorded in zip(reversed(operators), reversed(golden.first.operators)):
            held = RankOperator(recorded, 0, golden.side.values)
            contents = {one.slot: one for one in held.outputs}
            own = [one.slot for one in operator.tensors if one.relation is not None and one.relation.is_local]
            is_open = {slot for slot in own if slot in contents and not _is_among(contents[slot], read)}
            is_open -= {one.slot for one in recorded.tensors if records_layout(recorded, one)}
            if any(one.is_output and one.slot not in is_open for one in operator.tensors):
                read += held.inputs
            tensors = [one._replace(relation=None, payload=None) if one.slot in is_open else one
                       for one in operator.tensors]  # fmt: skip
            found.append(operator._replace(tensors=tuple(tensors)))
        return found[::-1]


def _is_among(tensor: HeldTensor, others: Sequence[HeldTensor]) -> bool:
    """Whether one of the others has the content of a tensor."""
    same = [one for one in others if one.size == tensor.size]
    return bool(same) and tensor.content is not None and any(one.content == tensor.content for one in same)


def _by_operator(run: Run) -> list[tuple[Operator, list[Key]]]:
    found: dict[int, tuple[Operator, list[Key]]] = {}
    for operator, key, _ in tensors_of(run):
        found.setdefault(operator.order, (operator, []))[1].append(key)
    return [found.get(operator.order, (operator, [])) for operator in run.operators]
