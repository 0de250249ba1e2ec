"""All rows, in the order in which they are told; a row may see those before it."""

from __future__ import annotations

from npucmp.comparability import (
    arguments,
    code,
    curves,
    heads,
    health,
    inputs,
    network,
    precision,
    settings,
    training,
    weights,
)
from npucmp.comparability.row import Row

ROWS: tuple[Row, ...] = (
    *heads.ROWS,
    *network.ROWS,
    *arguments.ROWS,
    *inputs.ROWS,
    *weights.ROWS,
    *precision.ROWS,
    *training.ROWS,
    *code.ROWS,
    *health.ROWS,
    *settings.ROWS,
    *curves.ROWS,
)
NAMES = tuple(row.name for row in ROWS)
