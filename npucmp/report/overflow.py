"""overflow.csv, roots.csv and summary.json of `npucmp overflow`. Columns and keys are only ever appended."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Iterator, Sequence

from npucmp import __version__
from npucmp.localise.overflow import headroom
from npucmp.model import Event, Overflow, Root, Scan
from npucmp.model.stack import source_line
from npucmp.report import coverage
from npucmp.report.json import ROOTS, strict
from npucmp.report.status import overflow_status
from npucmp.report.tables import ROOT_COLUMNS, csv_text, root_row

NAME = "overflow"
COLUMNS = tuple(
    (
        "step rank order op op_type phase slot event origin count ratio first_index dtype shape min max headroom_bits "
        "device_status device_bits golden_event because stack"
    ).split(" ")
)


def render(report: Overflow, extra: Sequence[str] = ()) -> "dict[str, str]":
    """The three files."""
    roots = sorted(((root, scan) for scan in report.scans for root in scan.roots), key=lambda one: one[0].place)
    return {
        "overflow.csv": csv_text(COLUMNS, event_rows(report)),
        "roots.csv": csv_text(ROOT_COLUMNS, iter([_root(scan, root) for root, scan in roots])),
        "summary.json": json.dumps(strict(summary(report)), indent=1, ensure_ascii=True) + "\n",
    }


def event_rows(report: Overflow) -> "Iterator[dict[str, Any]]":
    """The rows of overflow.csv."""
    for scan in report.scans:
        for event in scan.events:
            yield _row(scan, event)


def _row(scan: Scan, event: Event) -> "dict[str, Any]":
    operator, tensor, x = event.operator, event.tensor, event.extremes
    row: dict[str, Any] = {
        "step": scan.run.step,
        "rank": scan.run.rank,
        "order": event.order if operator else None,
        "event": event.kind,
        "origin": event.origin,
        "device_status": event.device_status,
        "device_bits": event.device_bits,
        "golden_event": event.golden,
        "because": event.because,
        "slot": event.slot,
    }
    if operator is not None:
        row.update(op=operator.name, op_type=operator.op_type, phase=operator.phase, stack=source_line(operator))
    if tensor is not None and x is not None:
        row.update(dtype=tensor.dtype, shape=str(list(tensor.shape)), headroom_bits=headroom(tensor, x))
        if x.minimum == x.minimum:
            row.update(min=x.minimum, max=x.maximum)
        if event.counted and event.kind:
            count, first = x.of(event.kind)
            row.update(count=count, ratio=count / x.elements if x.elements else None, first_index=first)
    return row


def _root(scan: Scan, root: Root) -> "dict[str, Any]":
    return {"place": root.place, "step": scan.run.step, "rank": scan.run.rank, **root_row(root)}


def summary(report: Overflow) -> "dict[str, Any]":
    """What summary.json holds, as Python values."""
    runs = [scan.run for scan in report.scans]
    roots = sorted(((root, scan) for scan in report.scans for root in scan.roots), key=lambda one: one[0].place)
    return {
        "npucmp": __version__,
        "command": report.command,
        "argv": list(report.argv),
        "target": {
            "path": report.path,
            "format": runs[0].format if runs else None,
            "step": runs[0].step if runs else None,
            "rank": runs[0].rank if runs else None,
            "operators": sum(len(run.operators) for run in runs),
            "tensors": sum(run.tensors for run in runs),
            "bytes": coverage.bytes_of(runs),
            "runs": [{"path": run.path, "step": run.step, "rank": run.rank, "notes": list(run.notes)} for run in runs],
        },
        "golden": {"path": report.golden_path} if report.golden_path else None,
        "scanned": sum(scan.tensors for scan in report.scans),
        "unreadable": [words for scan in report.scans for words in scan.unreadable],
        "events": dict(Counter(event.kind for event in report.events if event.kind)),
        "origins": dict(Counter(event.origin for event in report.events if event.origin)),
        "roots": [_root(scan, root) for root, scan in roots[:ROOTS]],
        "notes": [*dict.fromkeys([*report.notes, *(note for scan in report.scans for note in scan.notes)])],
        "broken": [{"path": run.path, "because": run.problem} for run in report.broken],
        "seconds": round(report.seconds, 3),
        "bytes_read": report.bytes_read,
        "partial": report.partial,
        "exit_status": overflow_status(report),
    }
