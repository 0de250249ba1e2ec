"""The columns and rows of tensors.csv and roots.csv, and the tables of every report. Tickets and scripts rely on them:
new columns are only ever appended. A table is one file for all steps and ranks, or one for each; CSV or Parquet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, Optional, Sequence

from npucmp.errors import UsageError
from npucmp.measure import metrics
from npucmp.model import (
    Pair,
    Root,
)
from npucmp.report.answer import Answer, Columns, Listing, Piece, ReportTable, Row, Section
from npucmp.report.phrases import line_of

SUMMARISED = 50  # root causes in summary.json
Rooted = tuple[Sequence[Root], Optional[int], Optional[int]]  # roots with their step and rank

_FIRST = tuple(
    (
        "step rank order op op_type phase slot verdict because matched_by match_confidence target_op golden_op "
        "target_tensor golden_tensor target_dtype golden_dtype target_shape golden_shape target_layout golden_layout "
        "elements cosine rel_l2 max_abs_err max_abs_index max_rel_err max_rel_index mean_abs_err mean_rel_err rmse "
        "err_1e3_ratio err_5e3_ratio allclose mismatch_ratio max_ulp exact_ratio nonfinite_mismatch "
        "target_nan target_inf golden_nan golden_inf target_min target_max target_mean target_l2 "
        "golden_min golden_max golden_mean golden_l2 stack cause limit rule explained_by explained_limit masked"
    ).split(" ")
)
PLACES = ("max_abs_at", "max_rel_at")  # coordinates of the flat indices; a page derives them
RELATIONS = ("golden_slot", "relation", "match_reason", "estimator")  # the last one is not known yet
TENSOR_COLUMNS = (
    *_FIRST,
    *PLACES,
    *RELATIONS,
    *(one.name for one in metrics.METRICS if one.always and one.name not in _FIRST),
)
OF_OPERATORS = ("op", "op_type", "phase", "target_op", "golden_op", "stack")
SIDES = ("target", "golden")
ROOT_COLUMNS = tuple(
    (
        "place step rank order op op_type phase cause slot metric value limit input_error output_error growth "
        "evidence stack target_op golden_op rule golden_slot relation ranks collective request position"
    ).split(" ")
)
_ROOT_FIELDS = [name for name in ROOT_COLUMNS if name in Root.__annotations__ or hasattr(Root, name)]


def optional_columns(names: str | Sequence[str]) -> list[str]:
    """Return the optional columns of tensors.csv that a user requests, as --metrics ("snr,gain") or as a sequence.

    Raises UsageError for an unknown metric, and for one of an installed package with the name of another column."""
    found = metrics.requested_columns(names.split(",") if isinstance(names, str) else names)
    clash = next((name for name in found if name in TENSOR_COLUMNS), "")
    if clash:
        raise UsageError(f"metric {clash} of an installed package: tensors.csv has another column of this name")
    return found


def roots(found: Iterable[Rooted]) -> ReportTable:
    """Return the table of operators that diverged, the first one to look at on top."""
    return ReportTable("roots.csv", ROOT_COLUMNS, lambda: root_columns(found))


def root_rows(found: Iterable[Rooted], most: Optional[int] = None) -> list[Row]:
    """Return the rows of roots.csv by place, at most `most` of them."""
    columns = root_columns(found, most)
    return [dict(zip(columns, cells)) for cells in zip(*columns.values())]


def root_columns(found: Iterable[Rooted], most: Optional[int] = None) -> Columns:
    """Return the columns of roots.csv by place, of at most `most` rows."""
    rooted = sorted(((root, step, rank) for roots, step, rank in found for root in roots), key=lambda one: one[0].place)
    rows = rooted[:most]
    roots = [root for root, _, _ in rows]
    pairs = [root.pair for root in roots]
    columns: dict[str, Sequence[Any]] = {name: [getattr(root, name) for root in roots] for name in _ROOT_FIELDS}
    columns.update(columns_of_rows(OF_OPERATORS, [*map(of_operator, pairs)]))
    columns["step"] = [step for _, step, _ in rows]
    columns["rank"] = [rank if root.rank is None else root.rank for root, _, rank in rows]
    columns["order"] = [pair.order for pair in pairs]
    columns["cause"] = [root.cause.value for root in roots]
    columns["evidence"] = [root.because for root in roots]
    columns["golden_slot"] = [*map(_golden_slot, roots)]
    columns["ranks"] = [ranks_of(root) or None for root in roots]
    for name in ("relation", "collective"):
        columns[name] = [cell or None for cell in columns[name]]
    return {name: columns[name] for name in dict.fromkeys((*ROOT_COLUMNS[:4], *OF_OPERATORS, *ROOT_COLUMNS))}


def table(file: str, names: tuple[str, ...], rows: Callable[[], Iterable[Row]]) -> ReportTable:
    """Return a table that is made row by row."""
    return ReportTable(file, names, lambda: by_column([*rows()], names))


def by_column(rows: Sequence[Row], names: Sequence[str] = ()) -> Columns:
    """Return rows as columns: the named ones, else all that occur in any row."""
    wanted = names or dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in wanted}


def _golden_slot(root: Root) -> Optional[str]:
    """Return the slot of the golden's tensor in its own dump, if it is another one."""
    golden = root.pair.golden if root.pair.slot == root.slot else None
    return golden.own_slot if golden is not None and golden.own_slot not in ("", root.slot) else None


def ranks_of(root: Root) -> str:
    """Return the ranks that take part in a root, "0-1,4"; "" without any."""
    if not root.ranks:
        return ""
    from npucmp.model.relation import ranks_in_words

    return ranks_in_words(root.ranks)


def of_root(root: Root) -> Row:
    """Return the cells that a page shows for an operator that is a root cause."""
    return {"cause": root.cause.value, "place": root.place, "root_slot": root.slot, "evidence": root.sentences}


def columns_of_rows(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Columns:
    """Return rows by column; each row has one cell per name."""
    return dict(zip(names, map(list, zip(*rows)) if rows else ([] for _ in names)))


def of_operator(pair: Pair) -> tuple[Any, ...]:
    """Return the cells of OF_OPERATORS."""
    target, golden, operator = pair.target_op, pair.golden_op, pair.operator
    names = (target.own_name or target.name) if target else None, golden.name if golden else None
    return operator.name, operator.op_type, operator.phase, *names, line_of(pair)


PARQUET = ".parquet"


def with_table_files(answer: Answer, parts: bool = False, parquet: bool = False) -> Answer:
    """Return the answer with its tables in these files. Tables without parts, such as roots.csv, are unchanged."""
    tables: list[ReportTable] = []
    names: dict[str, str] = {}  # new names of files, for the words that refer to them
    for table in answer.tables:
        if table.parts is None:
            tables.append(table)
            continue
        stem, _, kind = table.file.rpartition(".")
        ending = PARQUET if parquet else f".{kind}"
        names[table.file] = f"{stem}-*{ending}" if parts else f"{stem}{ending}"
        if parts:
            tables += [
                ReportTable(f"{stem}-{key}{ending}", table.names, table.columns, rows) for key, rows in table.parts
            ]
        else:
            tables.append(table._replace(file=f"{stem}{ending}", parts=None))
    if not names:
        return answer
    sections = [_rename_columns(one, names) for one in answer.sections]
    return replace(answer, tables=tables, sections=sections, unreadable=_listing(answer.unreadable, names))


def _rename_columns(one: Section, names: dict[str, str]) -> Section:
    return one._replace(listings=[_listing(listing, names) for listing in one.listings])


def _listing(one: Listing, names: dict[str, str]) -> Listing:
    return one._replace(rest=names.get(one.rest, one.rest))


def rows_of(table: ReportTable) -> Sequence[Piece]:
    """Return the lines of a table without its header."""
    if table.rows is not None:
        return [*table.rows()]
    from npucmp.report.csv_text import csv_of, encode

    return [encode(csv_of(table.names, table.columns()).partition("\n")[2])]


def head_of(table: ReportTable) -> bytes:
    """Return the header line."""
    return (",".join(table.names) + "\n").encode("utf-8", "backslashreplace")
