"""The tokens of the roots of ranks that were put together: both sides have one layout of tokens, a batch with padding.

No run changes. A root gets the request and the position of the first token that differs, if the golden's tensors have
axes of tokens. Padding is left out where a mask shows it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.model import Comparison, Pair, Report, Root
from npucmp.relations.held_values import Values
from npucmp.relations.tokens.row_errors import RowErrors
from npucmp.relations.tokens.token_axes import TokenShape, token_axes, token_shape
from npucmp.relations.tokens.token_lengths import recorded_lengths
from npucmp.relations.tokens.token_origin import ALL, TokenErrors, TokenPlaces, with_place
from npucmp.relations.tokens.token_tensors import TokenSide
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides


class BatchTokens:
    """The tokens of a batch that both sides hold alike. `real` marks those that are no padding, lane by lane. If all of
    them differ, nothing is said."""

    def __init__(self, shape: TokenShape, real: Any, context: ReadContext) -> None:
        self._errors = _BatchErrors(shape, real, context)
        lanes, places = (one.reshape(-1) for one in np.indices((shape.lanes, shape.places)))
        first = real.reshape(shape.lanes, shape.places).argmax(1)
        rows = [(0, str([lane, place])) for lane, place in zip(lanes[real].tolist(), places[real].tolist())]
        self._places = TokenPlaces(lanes[real], (places - first[lanes])[real], rows, 1)

    def plan(self) -> Sequence[str]:
        """Return nothing: both sides are as they were recorded."""
        return ()

    def apply(self, sides: Sides) -> Sides:
        """Return the sides."""
        return sides

    def explain(self, report: Report) -> Report:
        """Return the report with the tokens of its roots."""
        comparisons = [
            replace(one, roots=tuple(self._root(root, one) for root in one.roots)) for one in report.comparisons
        ]
        return replace(report, comparisons=comparisons)

    def _root(self, root: Root, one: Comparison) -> Root:
        found = with_place(root, one, self._places, self._errors) if root.request is None else root
        added = found.evidence[len(root.evidence) :]
        if any(reason.words == ALL for reason in added):
            return root
        kept = (reason for reason in added if reason.kind == "tokens")
        return replace(found, relation=root.relation, evidence=(*root.evidence, *kept))


class _BatchErrors(TokenErrors):
    """The errors of the tokens of pairs with axes of batch and sequence."""

    def __init__(self, shape: TokenShape, real: Any, context: ReadContext) -> None:
        super().__init__(context)
        self._shape, self._real, self._values = shape, real, Values(context)
        self._rows: dict[tuple[int, str], Optional[RowErrors]] = {}

    def of(self, pair: Pair) -> Optional[RowErrors]:
        key = pair.order, pair.slot
        if key not in self._rows:
            sides = [self._by_token(tensor and self._values.array(tensor)) for tensor in (pair.target, pair.golden)]
            self._rows[key] = None if sides[0] is None or sides[1] is None else _row_errors(sides[0], sides[1])
        return self._rows[key]

    def columns(self, pair: Pair, bad: Any) -> Optional[Any]:
        return None

    def _by_token(self, values: Optional[Any]) -> Optional[Any]:
        """The values of each token that is no padding."""
        axes = token_axes(values.shape, (), self._shape) if values is not None else None
        if values is None or axes is None:
            return None
        values = np.ascontiguousarray(values)
        shape = axes.lanes, axes.places, *axes.rest
        strides = (step * values.itemsize for step in (axes.lane_stride, axes.place_stride, *axes.rest_strides))
        by_token = np.lib.stride_tricks.as_strided(values, shape, tuple(strides))
        return by_token.reshape(axes.lanes * axes.places, -1).astype(np.float64)[self._real]


def _row_errors(x: Any, y: Any) -> Optional[RowErrors]:
    if x.shape != y.shape:
        return None
    with np.errstate(all="ignore"):
        difference = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
        norm = np.sqrt((np.where(np.isfinite(y), y, 0.0) ** 2).sum(1))
        return RowErrors(np.sqrt((difference**2).sum(1)), norm, (difference == 0.0).all(1))


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[BatchTokens]:
    """Return the tokens of a batch; None if the golden has none, or several steps, or trains."""
    goldens = sides.readable[1]
    shape = token_shape(goldens[0])
    if (
        shape is None
        or not shape.has_batch
        or len(goldens) > 1
        or any(op.phase == "backward" for op in goldens[0].operators)
    ):
        return None
    named = recorded_lengths(TokenSide((goldens[0],), (shape,), Values(context))).named
    real = np.ones(shape.size, bool) if named is None else named.astype(bool)
    return BatchTokens(shape, real, context)
