"""All rows in the order of the report. A row may use the answers of earlier rows."""

from __future__ import annotations

from npucmp.comparability import (
    arguments,
    code,
    curves,
    health,
    inputs,
    metadata,
    network,
    precision,
    settings,
    training,
    weights,
)
from npucmp.comparability.check_item import CheckItem

ROWS: tuple[CheckItem, ...] = (
    *metadata.ROWS,
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
