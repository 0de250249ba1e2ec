"""The experts of the tokens: routing.csv, which a page shows too, and a line on the screen."""

from __future__ import annotations

from typing import Iterator, Sequence

from npucmp.report.answer import ReportTable, Row
from npucmp.report.phrases import count_of, percent
from npucmp.report.rank_summary import RankSummary
from npucmp.report.tables import table

FILE = "routing.csv"
COLUMNS = (
    *"step rank op slot layer tokens reordered changed beyond_ties overlap".split(),
    *"first_token target golden margin noise first_change".split(),
)
SHOWN = tuple("step rank op layer tokens reordered changed beyond_ties overlap first_change".split())


def routing_table(found: Sequence[RankSummary]) -> ReportTable:
    """Return the table of all layers."""
    every = table(FILE, COLUMNS, lambda: _rows(found))
    return every._replace(title="Experts of the tokens", words=routing_line(found), shown=SHOWN)


def _rows(found: Sequence[RankSummary]) -> Iterator[Row]:
    for part in found:
        for layer in part.routing:
            cells = (
                part.step, part.rank, layer.operator, layer.slot, layer.layer, layer.tokens, layer.reordered,
                layer.changed, layer.beyond, layer.overlap, layer.first, " ".join(map(str, layer.target)),
                " ".join(map(str, layer.golden)), layer.margin, layer.noise, layer.words or None,
            )  # fmt: skip
            yield dict(zip(COLUMNS, cells))


def routing_line(found: Sequence[RankSummary]) -> str:
    """Return how far the experts of both sides overlap, and the first layer in which they depart beyond ties."""
    layers = [layer for part in found for layer in part.routing]
    tokens = sum(layer.tokens for layer in layers)
    overlap = sum(layer.overlap * layer.tokens for layer in layers) / max(1, tokens)
    changed = sum(layer.changed for layer in layers)
    beyond = next((layer for layer in layers if layer.beyond), None)
    words = f"experts: {percent(overlap)} in common in {count_of(len(layers), 'layer')}"
    if not changed:
        return f"{words}, every token has the same set"
    words += f", {count_of(changed, 'choice')} of a token changed"
    if beyond is None:
        return f"{words}, all within ties of the logits"
    return f"{words}, the first beyond a tie: {beyond.words}"
