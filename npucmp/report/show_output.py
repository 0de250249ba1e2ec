"""Text for a terminal: one run (`npucmp show`), and the files that `npucmp extract` and `npucmp ticket` wrote."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.model import (
    REPLAYED,
    Histogram,
    Measurement,
    Number,
    Operator,
    ReplayedOutput,
    Run,
    TensorPreview,
    TensorRef,
    brief,
    position,
)
from npucmp.model.cause import first_of_names
from npucmp.model.check_finding import RuleDecision, RuleWords
from npucmp.model.stack import source_line
from npucmp.model.ticket import Ticket
from npucmp.report.phrases import count_of, describe, where_words
from npucmp.report.sanitise import visible

BAR = 30  # characters of the longest bar of a histogram
Seen = tuple[Measurement, Optional[TensorPreview]]  # a measured tensor, and its values if they are to be shown


Rows = Sequence[tuple[Operator, Sequence[Seen]]]


def listings(runs: Sequence[tuple[Run, Rows]], top: Optional[int]) -> Iterator[str]:
    """Yield the listing of each run; operators that an earlier run lists too, as steps and ranks do, appear once."""
    listed: dict[int, str] = {}
    for run, rows in runs:
        digest = hash(tuple((one.name, *((t.slot, t.dtype, t.shape) for t in one.tensors)) for one, _ in rows))
        is_known = digest in listed and rows and not any(measured for _, measured in rows)
        yield (
            listing(run, (), None) + f"  the same operators as {listed[digest]}\n"
            if is_known
            else listing(run, rows, top)
        )
        listed.setdefault(digest, " ".join(where_words(run)) or visible(run.path))


def listing(run: Run, rows: Rows, top: Optional[int]) -> str:
    """Return a heading and at most `top` operators (None: all); measured operators are listed tensor by tensor."""
    lines = [f"{visible(run.path)}  {visible(describe(run))}", *(f"note: {visible(note)}" for note in run.notes)]
    for operator, measured in rows[:top]:
        lines += _operator(operator, measured)
    if top is not None and len(rows) > top:
        lines.append(f"  … and {len(rows) - top:,} more; use a PATTERN, or --top {len(rows)}")
    return "\n".join(lines) + "\n"


def case(
    operator: Operator,
    rows: Sequence[ReplayedOutput],
    folder: Path,
    files: Sequence[str],
    cut: Optional[tuple[int, int]],
    redacted: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Describe an extracted case: its operator, the error of each output, and the command that runs it. `redacted` has
    the change of each tensor of a redacted case."""
    lines = [visible(operator.name)]
    for row in rows:
        words = row.explanation or row.status
        if row.status == REPLAYED and row.rms_ratio is not None:
            words = f"error {row.rms_ratio:,.2g} times the expected rounding"
            words += f"; rel_l2 {brief(row.rel_l2)}" if row.rel_l2 is not None else ""
        lines.append(visible(f"  {row.slot}  {row.verdict.value}  {words}"))
    lines += [f"  reduced to {cut[0]:,} of {cut[1]:,} rows"] if cut else []
    lines += [visible(f"  redacted {slot}: {words}") for slot, words in redacted.items()]
    return "\n".join([*lines, visible(f"  {', '.join(files)}"), visible(f"  python {folder / 'run.py'}")]) + "\n"


def rules(known: Sequence[RuleWords], decisions: Sequence[RuleDecision]) -> str:
    """List every rule: severity, limit, message and requirements; with decisions, whether the dump can decide it."""
    by_rule = {one.rule: one for one in decisions}
    lines = []
    for one in known:
        limit = "" if one.limit is None else f"  limit {one.limit:g}"
        lines.append(f"{one.name:26}  {one.severity:7}{limit}{'  off' if one.off else ''}".rstrip())
        lines.append(f"    {one.says}; needs {one.needs}")
        if one.name in by_rule:
            decision = by_rule[one.name]
            words = f"{decision.looked_at:,} examined" if decision.decided != "no" else decision.why_not
            lines.append(f"    decided: {decision.decided} ({visible(words)})")
    return "\n".join(lines) + "\n"


def _operator(operator: Operator, measured: Sequence[Seen]) -> Iterator[str]:
    if not measured:
        shapes = ", ".join(f"{tensor.slot} {_kind(tensor)}" for tensor in operator.tensors)
        yield visible(f"  {operator.order:5}  {operator.name}  {shapes}")
        return
    yield visible(f"  {operator.order:5}  {operator.name}")
    line = source_line(operator)
    if line:
        yield f"         {visible(line)}"
    for slot, value in operator.arguments.items():
        yield visible(f"         {slot} = {value!r:.80}")
    for one, peek in measured:
        tensor = one.pair.target
        assert tensor is not None
        yield visible(f"         {tensor.slot or tensor.label} {_kind(tensor)}  {_figures(one)}")
        yield from (f"           {line}" for line in (_values(tensor, peek) if peek is not None else ()))


def _values(tensor: TensorRef, peek: TensorPreview) -> Iterator[str]:
    """Yield a histogram with linear bars, extremes, corners, and the requested elements."""
    if peek.largest:
        yield from _histogram(peek.values)
        for name, elements in (("largest", peek.largest), ("smallest", peek.smallest)):
            yield f"{name:8}  " + " · ".join(f"{_number(one)} at {position(at, tensor.shape)}" for at, one in elements)
        yield from [f"zeros     {peek.zeros:,}"] if peek.zeros else []
    for title, rows in peek.corners:
        cells = [["…" if one is None else _number(one) for one in row] for row in rows]
        wide = max(len(cell) for row in cells for cell in row)
        for at, row in enumerate(cells):
            yield f"{title if not at else '':{len(title)}}  " + " ".join(f"{cell:>{wide}}" for cell in row)
    yield from (f"{position(at, tensor.shape)} = {one!r}" for at, one in peek.elements)


def _histogram(one: Histogram) -> Iterator[str]:
    step, most = one.high / len(one.counts) - one.low / len(one.counts) if one.counts else 0.0, max(one.counts)
    yield f"histogram: from … to, number of values, linear bar ({'█' * 3} {3 * most / BAR:.3g} values)"
    lows = [f"{one.low + at * step:.5g}" for at in range(len(one.counts) + 1)]
    wide = max(map(len, lows))
    for low, high, count in zip(lows, lows[1:], one.counts):
        bar = "█" * round(BAR * count / most) or "▏" if count else ""
        yield f"{low:>{wide}} … {high:>{wide}} {count:>{len(f'{most:,}')},} {bar}".rstrip()


def _number(one: Number) -> str:
    return f"{one:.6g}" if not isinstance(one, int) else str(one)


def _kind(tensor: TensorRef) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}" + (f" {tensor.layout}" if tensor.layout not in ("", "ND") else "")


def _figures(one: Measurement) -> str:
    if one.problem:
        return f"unreadable: {one.problem.partition(': ')[2]}"
    if one.moments is not None:
        side = one.moments.target
        finite = one.moments.elements - side.nan - side.inf
        words = (
            f"min {side.minimum:.6g}  max {side.maximum:.6g}  l2 {math.sqrt(side.squares):.6g}" if finite else "empty"
        )
        words += f"  mean {side.total / finite:.6g}" if finite else ""
        return words + (f"  {side.nan} NaN" if side.nan else "") + (f"  {side.inf} Inf" if side.inf else "")
    recorded = one.statistics[0]
    tensor = one.pair.target
    known = [] if recorded is None else [f"{k} {v:.6g}" for k, v in recorded._asdict().items() if v is not None]
    known += [f"checksum {tensor.checksum}"] if tensor is not None and tensor.checksum else []
    return "  ".join(known) or "nothing recorded"


def ticket(found: Ticket, file: str, names: Sequence[str], originals: Optional[str] = None) -> str:
    """Return the output of `ticket`: the accused operator, and the files that were written. `originals` is the file
    with the originals of pseudonyms."""
    row = found.row
    name = row.get("op") or row.get("parameter") or row.get("row") or row.get("rule") or ""
    lines = [f"{visible(row.get('cause', ''))}  {visible(name)}  {visible(row.get('slot', ''))}".rstrip()]
    more = len(names) - 1
    lines.append(
        f"{visible(file)}"
        + (f"  with {count_of(more, 'file')}: {visible(first_of_names([*names[1:]], 12))}" if more else "")
    )
    replaced = len(found.names())
    if replaced:
        where = visible(originals) if originals else "no file: --names FILE writes them"
        lines.append(f"  {count_of(replaced, 'pseudonym')}; originals in {where}")
    return "\n".join(lines) + "\n"
