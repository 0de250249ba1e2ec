"""All pairs of a comparison, operator by operator: with who reads whom, and what a page can draw of them."""

from __future__ import annotations

from itertools import accumulate, chain, groupby
from typing import NamedTuple, Optional, Sequence

from npucmp.localise.producers import Link, links
from npucmp.model import Comparison, Finding, Moments, Operator, Root, Tolerance
from npucmp.model.arguments import by_name, differing_arguments
from npucmp.model.roles import is_argument, is_output
from npucmp.model.stack import frames
from npucmp.report import tables
from npucmp.report.answer import Columns, Detail, Row
from npucmp.report.words import where_words

OF_OPERATORS = ("step", "rank", "order", "op", "op_type", "phase", "target_op", "golden_op", "stack")
NO_ROWS = (*OF_OPERATORS, *tables.PLACES)  # columns that a page has with its operators, or makes of others


Linked = Sequence[Optional[Link]]


def linked_in(one: Comparison) -> Linked:
    """Who wrote what the findings of a comparison read, in graph order."""
    return [*links(sorted(one.findings, key=lambda finding: finding.pair.order))]


def detail(
    parts: Sequence[Paired],
    metrics: Sequence[str],
    figures: Sequence[str],
    rules: Sequence[Tolerance],
) -> Detail:
    """The rows of tensors.csv of some comparisons, and what belongs to them; `figures` are shown at first."""
    columns = [name for name in (*tables.TENSOR_COLUMNS, *metrics) if name not in NO_ROWS]
    more = {"rules": [{"dtype": rule.dtype, "limit": rule.limit} for rule in rules], "readers": True}
    offsets = [*accumulate((len(one.operators) for one in parts), initial=0)]
    rows: Columns = (
        {name: [*chain.from_iterable(one.rows[name] for one in parts)] for name in parts[0].rows} if parts else {}
    )
    if rows:
        rows["producer"] = [None if cell is None else cell + offset for one, offset in zip(parts, offsets)
                            for cell in one.rows["producer"]]  # fmt: skip
    return Detail(
        kind="pairs",
        title="All tensor pairs",
        chart="The error along the network",
        runs=[one.run for one in parts],
        operators=tables.by_column([{"run": run, **row} for run, one in enumerate(parts) for row in one.operators]),
        rows=rows,
        columns=["run", "order", "op", "op_type", "phase", "cause", *columns, "stack"],
        shown=["run", "order", "op", "op_type", "slot", "verdict", "cause", *figures,
               "target_dtype", "golden_dtype", "target_shape"],
        facets=["run", "verdict", "cause", "rule", "op_type", "phase"],
        more=more,
    )  # fmt: skip


class Paired(NamedTuple):
    """What a page shows of one comparison: its operators and their rows."""

    run: str
    operators: list[Row]
    rows: Columns


def paired_of(metrics: Sequence[str], number: int, one: Comparison) -> Paired:
    """Of a comparison wherever it lies; a plain function."""
    return paired(one, tables.columns_of(one, metrics), linked_in(one))


def paired(comparison: Comparison, cells: Columns, linked: Linked) -> Paired:
    """The rows of one comparison, operator by operator. `cells` are those of tensors.csv."""
    sequence = sorted(range(len(comparison.findings)), key=lambda row: comparison.findings[row].pair.order)
    ordered = [comparison.findings[row] for row in sequence]
    roots = {root.pair.order: root for root in comparison.roots}
    operators: list[Row] = []
    numbers: dict[int, int] = {}  # order of an operator → its number
    for order, group in groupby(sequence, key=lambda row: comparison.findings[row].pair.order):
        some = [*group]
        numbers[order] = len(operators)
        first = {name: cells[name][some[0]] for name in OF_OPERATORS if name not in ("step", "rank", "target_op")}
        own = _operator(comparison.findings[some[0]], roots.get(order))
        operators.append({"rows": len(some), **first, **own})
    rows = {name: column for name, column in cells.items() if name not in NO_ROWS}
    if sequence != [*range(len(sequence))]:
        rows = {name: [column[row] for row in sequence] for name, column in rows.items()}
    more: Columns = {
        "error": [None if one.error == cell else one.error for one, cell in zip(ordered, rows["rel_l2"])],
        "limit": [one.limit or None for one in ordered],
        "metric": [one.metric for one in ordered],
        "output": [is_output(one.pair) for one in ordered],
        "argument": [is_argument(one.pair) or None for one in ordered],
        "histogram": [_histogram(one.measurement.moments) for one in ordered],
        "producer": [None if link is None else numbers[link.order] for link in linked],
        "linked": [None if link is None else link.how for link in linked],
    }
    return Paired(" · ".join(where_words(comparison.target)), operators, {**rows, **more})


def _histogram(moments: Optional[Moments]) -> str:
    """ "first:count,count,…" from the first bin that holds something to the last, counts to three digits."""
    if moments is None or not moments.max_abs or not any(moments.histogram):
        return ""
    counts = moments.histogram
    text = ",".join(["" if not one else str(one if one < 1000 else int(float(f"{one:.3g}"))) for one in counts])
    return f"{len(text) - len(text.lstrip(','))}:{text.strip(',')}"


def _operator(finding: Finding, root: Optional[Root]) -> Row:
    pair = finding.pair
    operator = pair.operator
    row = {
        "alone": "" if pair.target_op and pair.golden_op else "target" if pair.target_op else "golden",
        "golden_op": pair.golden_op.name if pair.golden_op and pair.golden_op.name != operator.name else None,
        "frames": frames(operator) or (frames(pair.golden_op) if pair.golden_op else ()),
        "originals": operator.originals if operator.originals != (operator.name,) else (),
        "passes": operator.passes,
        "inserted": operator.inserted or None,
        "path": operator.path,
        "arguments": _arguments(pair.target_op, pair.golden_op),
    }
    if root is None:
        return row
    errors = {"input_error": root.input_error, "output_error": root.output_error}
    return {**row, **tables.of_root(root), **errors}


def _arguments(target: Optional[Operator], golden: Optional[Operator]) -> tuple[str, ...]:
    if target is None or golden is None:
        return ()
    return tuple(f"{by_name(target, slot)}: {a!r:.60} in the target, {b!r:.60} in the golden"
                 for slot, a, b in differing_arguments(target, golden))  # fmt: skip
