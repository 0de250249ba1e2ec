"""All rows in the order of the report. A row may use the answers of earlier rows."""

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
