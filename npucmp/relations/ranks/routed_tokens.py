"""Tokens that a router sends to experts, of which each rank has its own: the orders of rows, and running sums.

A golden operator of an expert has partners on the ranks that hold the expert. Its tokens may come from other ranks, and
stand there in another order. If each rank adds up what its own experts make, the running sum of the golden is on no
rank: it is local, and what reads the reduced sum is compared.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

from npucmp.relations.held_values import HeldTensor, RankOperator, tensor_in
from npucmp.relations.ranks.placement import Get, Placements
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.rank_partners import RankPartners
from npucmp.relations.ranks.rank_run import Origin
from npucmp.relations.ranks.row_order import RowOrder, find_order, lengths_of, order_of_indices, row_axes


class RoutedTokens:
    """The orders of rows by golden operator, and the operators whose sums run over the experts of one rank."""

    def __init__(self, partners: RankPartners) -> None:
        self._partners = partners
        self.orders: dict[str, RowOrder] = {}
        self.running: set[str] = set()
        self._recent: dict[object, RowOrder] = {}
        for rows in partners.flat_orders:
            self._recent[rows.lengths] = rows
        experts, golden = partners.experts, partners.golden.operators
        self._behind_experts = {one.name for before, one in zip(golden, golden[1:])
                                if experts.is_of_some_ranks(before) and not experts.is_of_some_ranks(one)}  # fmt: skip

    def add(self, golden: RankOperator, rows: RowOrder) -> None:
        self.orders[golden.name] = self._recent[rows.lengths] = rows

    def known(self, mesh: Mesh, get: Get, golden: HeldTensor, names: Iterable[str]) -> Optional[RowOrder]:
        """The order of the rows of one of these operators, or of the last one with as many rows on each rank."""
        lengths = lengths_of(mesh, get)
        rows = next((found for name in names for found in [self.orders.get(name)]
                     if found is not None and found.lengths == lengths), None)  # fmt: skip
        rows = rows or self._recent.get(lengths)
        return rows if rows is not None and len(rows.order) == golden.shape[0] else None

    def receives(self, golden: RankOperator, one: HeldTensor, origins: Mapping[Any, Origin], is_hidden: bool) -> bool:
        """Whether an input may be tokens of experts, which no operator wrote that the golden has: those that an expert
        gets, or those that come back. `is_hidden`: the golden does not record which operator wrote its own."""
        if golden.is_backward or one is not golden.inputs[0]:
            return False
        known, experts = self._partners.golden_of, self._partners.experts
        partners = [
            None if o.operator is None else known.get((o.operator.rank, o.operator.name)) for o in origins.values()
        ]
        if any(partners):
            return False
        if golden.type.has("contracts") and (experts.is_of_some_ranks(golden) or (is_hidden and bool(self.orders))):
            return True
        return is_hidden and golden.name in self._behind_experts

    def fresh(self, mesh: Mesh, get: Get, golden: HeldTensor) -> list[RowOrder]:
        """The orders that the values of a tensor show."""
        some = (find_order(mesh, get, golden, axes) for axes in row_axes(mesh, get, golden.shape[0]))
        return [one for one in some if one is not None and (len(mesh.cells) > 1 or not one.is_identity)]

    def picked(self, mesh: Mesh, golden: RankOperator, rows: int, source: Optional[HeldTensor],
               placements: Optional[Placements]) -> list[RowOrder]:  # fmt: skip
        """The orders in which so many rows of a tensor are picked by number."""
        numbers = next((one for one in golden.inputs if not one.is_float and one.shape == (rows,)), None)
        if numbers is None or source is None or placements is None or any(one.is_partial for one in placements):
            return []
        parts = {id(op): (tensor_in(op, numbers.slot), tensor_in(op, source.slot)) for op in mesh.cells.values()}
        if any(None in pair for pair in parts.values()) or any(one.is_split and one.dim for one in placements):
            return []

        def index(op: RankOperator) -> HeldTensor:
            return parts[id(op)][0]  # type: ignore[return-value]

        def table(op: RankOperator) -> HeldTensor:
            return parts[id(op)][1]  # type: ignore[return-value]

        some = (order_of_indices(mesh, index, numbers, table, placements, axes) for axes in row_axes(mesh, index, rows))
        return [one for one in some if one is not None]

    def is_running_sum(self, golden: RankOperator, origin: Origin, origins: Mapping[Any, Origin], mesh: Mesh) -> bool:
        """Whether an addend is the golden's sum over the experts before, of which the ranks of this expert have their
        own or none. `origin`: of the golden's addend."""
        producer, experts = origin.operator, self._partners.experts
        if producer is None or not golden.type.has("sums", "picks") or not experts.is_of_some_ranks(golden):
            return False
        if not experts.is_of_some_ranks(producer) or any(one.how == "collective" for one in origins.values()):
            return False
        elsewhere = experts.holders(producer)
        return producer.name in self.running or not elsewhere & {one.rank for one in mesh.cells.values()}
