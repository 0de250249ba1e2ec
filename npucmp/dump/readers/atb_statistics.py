"""Read statistic.csv of an ATB dump: a row per tensor of one execution, beside the tensor files or instead of them.

    Device and PID, Execution Count, Op Name, Op Type, Op Id, Input/Output, Index, Dtype, Format, Shape, Max, Min, Mean,
    Norm, Tensor Path     columns by name
Names are "Prefill_layer/Attention" with ids "2_0", an index "0" or "2_value", a shape "36x128"; "N/A" if absent.
Figures are rounded to the decimals that they show.
Source: public sources of msprobe.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.limits import is_countable
from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.cann_statistics import statistics
from npucmp.dump.readers.tables import has_columns, rows_of
from npucmp.model import TensorRef
from npucmp.model.dtypes import canonical

STATISTIC = "statistic.csv"
_IDS = re.compile(r"[0-9]{1,9}(?:_[0-9]{1,9})*")
_INDEX = re.compile(r"([0-9]{1,9})(?:_.*)?")
_SHAPE = re.compile(r"(?:[0-9]{1,18}(?:x[0-9]{1,18})*)?")
_DECIMALS = re.compile(r"-?[0-9]+\.([0-9]{1,17})")
_FIGURES = {"max": "max value", "min": "min value", "mean": "mean value", "norm": "l2norm"}


class AtbRow(NamedTuple):
    """One tensor, and the (id, name) of its operator and of each enclosing operator, outermost first."""

    chain: tuple[tuple[int, str], ...]
    tensor: TensorRef


def is_table(file: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether the first line of a file names these columns; never raises."""
    return has_columns(file, ("device and pid", "op name", "op id", "index", "shape"), context)


def rows(file: Path, notes: list[str], context: ReadContext = ANYWHERE) -> list[AtbRow]:
    """Read the rows of a table; an unreadable table adds a note, and so do rows that name no tensor."""
    return rows_of(file, _row, notes, context)


def _row(cells: Mapping[str, str]) -> Optional[AtbRow]:
    names, ids = cells.get("op name", "").split("/"), cells.get("op id", "")
    role = next((one for one in ("input", "output") if cells.get("input/output", "").lower()[:2] == one[:2]), None)
    index = _INDEX.fullmatch(cells.get("index", ""))
    numbers = [int(one) for one in ids.split("_")] if _IDS.fullmatch(ids) else []
    if role is None or index is None or not all(names) or len(names) != len(numbers):
        return None
    text = cells.get("shape", "").replace("N/A", "")
    shape = tuple(map(int, filter(None, text.split("x")))) if _SHAPE.fullmatch(text) else None
    usable = shape is not None and len(shape) <= 64 and is_countable(shape)
    return AtbRow(
        tuple(zip(numbers, names)),
        TensorRef(
            slot=f"{role}:{int(index[1])}",
            dtype=canonical(from_name(cells.get("dtype", ""))),
            shape=shape if usable and shape is not None else (),
            statistics=statistics({_FIGURES[key]: cells.get(key, "") for key in _FIGURES}),
            problem="" if usable else f"{STATISTIC} gives it the shape {cells.get('shape', '')!r:.60}",
            label=f"{cells.get('op name', '')}.{role}.{cells.get('index', '')}",
            rounding=_rounding(cells),
        ),
    )


def _rounding(cells: Mapping[str, str]) -> float:
    """Return half a unit of the last decimal of the figures; 0 if a figure is written with an exponent."""
    shown = [cells.get(key, "") for key in _FIGURES]
    places = [len(match[1]) for match in map(_DECIMALS.fullmatch, shown) if match]
    return 0.5 * 10.0 ** -max(places) if places and not any("e" in one.lower() for one in shown) else 0.0
