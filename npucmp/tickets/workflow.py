"""Make a ticket on one suspect of a report, with the files that belong to it."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from npucmp.dump.limits import Limits, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import UsageError
from npucmp.model.report_files import TENSORS
from npucmp.model.ticket import Cells, Files, Ticket
from npucmp.report.phrases import count_of
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.report_reader import CHUNK, PARQUET, TABLES, Folder

CASE = "case"  # the folder of a report that may contain a case
CALL = "call.json"
OF_CASE = re.compile(r"\w[\w.-]{0,100}\.(?:npy|json|py|txt)")
PAGES, OF_PAGES = "shards", re.compile(r"\d+-\d+\.html")
OF_REPORT = re.compile(
    r"[a-z]\w{0,40}(?:-[\w.-]{1,80})?\.csv|report\.html|summary\.json|next_dump\w{0,20}\.json|fusion_switch\.cfg"
)
ROWS = {"rerun.csv": "tensors.csv", "health.csv": "health.csv"}  # tables with further data on the findings of a table
EVENTS = {"overflow": "overflow.csv"}
MOST, OTHERS = 64, 20  # rows of an operator, further suspects


def ticket(
    report: StrPath, *, place: int = 1, case: Optional[StrPath] = None, redact: bool = False, limits: Limits = Limits()
) -> Ticket:
    """Return the data that a vendor's engineer needs on a suspect of a report, which a command wrote with -o.

    place   which suspect: its place in the report
    case    the folder that extract wrote for it; None: `case` below the report, if there is one
    redact  replace names of modules, parameters and paths by pseudonyms
    limits  how large a table that is read may be

    Raises UsageError if the report has no suspect, or none at that place, and with `redact` if the case holds values of
    the dump.

        npucmp.write_ticket(npucmp.ticket("report"), "ticket.zip")
    """
    bundle = Bundle(report, case, limits)
    found = bundle.ticket(place)
    if not redact:
        return found
    from npucmp.tickets.redacted_ticket import redacted

    return redacted(found, bundle.call())


class Bundle:
    """A report, and the case beside it, from which a ticket is made."""

    def __init__(self, report: StrPath, case: Optional[StrPath] = None, limits: Limits = Limits()) -> None:
        context = ReadContext(limits)
        self.folder = Folder(report, context)
        self._report = Path(report)
        self._case = Path(case) if case is not None else self._report / CASE
        if case is not None and not (self._case / CALL).is_file():
            raise UsageError(f"--case {case}: holds no {CALL}; give the folder that npucmp extract wrote")
        self._context = context.confine(self._case)

    def ticket(self, place: int = 1) -> Ticket:
        """Return the ticket of the suspect at a place. Raises UsageError if the report has no suspect, or none at that
        place."""
        accusing = TABLES[self.folder.command][0]
        rows = [*self._accusing_rows()]
        if not rows:
            raise UsageError(f"{self.folder.path}: the report has no suspect, so no ticket can be made")
        if not 1 <= place <= len(rows):
            raise UsageError(f"{self.folder.path}: has {count_of(len(rows), 'suspect')}, none at place {place}")
        row = rows[place - 1]
        case = (*self._of_case(row),)
        table = EVENTS.get(self.folder.command) or ROWS.get(accusing.file, self._table(accusing.file))
        ordered = accusing.file != "rerun.csv"  # its orders are those of the first run
        events = [one for one in self.folder.rows(table) if _same(one, row, ordered)]
        return Ticket(
            self.folder.command,
            self.folder.summary,
            place,
            accusing.file,
            row,
            tuple(one for one in rows if one is not row)[:OTHERS],
            table,
            tuple(events[:MOST]),
            self._ticket_facts(row),
            case,
            partial(self._files, case),
        )

    def _files(self, case: Sequence[str]) -> Files:
        """Yield the attachments of a ticket by name: the tables of the report, and the case."""
        for name in self.folder.names:
            if OF_REPORT.fullmatch(name) and os.path.isfile(self._report / name):
                yield name, self.folder.pieces(name)
            elif TENSORS.fullmatch(name) and (table := name.replace(PARQUET, ".csv")) not in self.folder.names:
                yield table, self.folder.text(name)
        for name in sorted(os.listdir(self._report / PAGES)) if (self._report / PAGES).is_dir() else ():
            if OF_PAGES.fullmatch(name):
                yield f"{PAGES}/{name}", self.folder.pieces(f"{PAGES}/{name}")
        for name in case:
            yield f"{CASE}/{name}", self._pieces(name)

    def _accusing_rows(self) -> Iterator[Cells]:
        """Yield the rows that accuse an operator or rule, in the order of the tables; rows that decide the exit status
        come first."""
        found: list[tuple[bool, Cells]] = []
        for table in TABLES[self.folder.command]:
            for row in self.folder.rows(table.file):
                place = table.place(row, self.folder.summary)
                if place is not None:
                    found.append((not place.counts, {**row, "cause": place.cause}))
        yield from (row for _, row in sorted(found, key=lambda one: one[0]))

    def _table(self, accusing: str) -> str:
        others = [one.file for one in TABLES[self.folder.command] if one.file != accusing]
        return others[0] if "tensors.csv" in others else accusing

    def _ticket_facts(self, row: Cells) -> Mapping[str, Any]:
        """Return the ticket data of summary.json for a row; empty if it has none."""
        accused = self.folder.summary.get("accused")
        for one in accused if isinstance(accused, list) else ():
            if isinstance(one, dict) and _text(one.get("place")) == row.get("place"):
                return one
        return {}

    def call(self) -> Optional[Mapping[str, Any]]:
        """Return the content of call.json, empty if it is not an object; None without a case."""
        if not (self._case / CALL).is_file():
            return None
        try:
            found = json.loads(b"".join(self._pieces(CALL)))
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {}

    def _of_case(self, row: Cells) -> Iterator[str]:
        """Yield the files of the case. Raises UsageError if it is of another operator."""
        call = self.call()
        if call is None:
            return
        name = call.get("operator")
        if name not in (row.get("target_op") or row.get("op"), row.get("op"), row.get("golden_op")):
            raise UsageError(f"{self._case}: the case is of {_text(name)[:80]!r}, the ticket of {row.get('op')!r}")
        yield from sorted(one for one in os.listdir(self._case) if OF_CASE.fullmatch(one))

    def _pieces(self, name: str) -> Iterator[bytes]:
        with open_regular(str(self._case / name), self._context) as file:
            for at in range(0, file.size, CHUNK):
                yield file.read(at, min(CHUNK, file.size - at))


def _same(one: Cells, row: Cells, ordered: bool) -> bool:
    """Return whether a row is of the operator that another row accuses."""
    by = ["step", "rank", "op", *(["order"] if ordered else [])]
    if not row.get("op"):
        by = ["rule", "row", "step", "rank", "parameter"]
    return all(one.get(name, "") == row.get(name, "") for name in by)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
