"""Compare two reports of one command: findings that are new, gone, the same, better and worse."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Iterator, Optional, Union

from npucmp.dump.limits import Limits, ReadContext
from npucmp.errors import UsageError
from npucmp.model.result import Result
from npucmp.model.saved_report import NO_PARTNER, SOUND, Change, Difference, Key, SavedReport
from npucmp.workflows.decisive_options import other_settings, refusal
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.report_reader import of_files, read

# share of the smaller report's operators that the other must have, for both to be of the same network
COMMON_SHARE = 0.5


def diff(before: Union[StrPath, Result], after: Union[StrPath, Result], *, limits: Limits = Limits()) -> Difference:
    """Return the findings that are `new`, `gone`, `same`, `open`, `worse` and `better` in the later of two reports of
    one command. Reports are folders that -o or write_reports wrote, or results in memory. Raises NpucmpError if the
    reports cannot be compared.

    limits  the maximum sizes of the tables that are read

        found = npucmp.diff("report_monday", npucmp.compare("npu_dump", "gpu_dump"))
        assert found.exit_status == 0, found       # as compare --baseline report_monday
    """
    started = time.monotonic()
    strict = bool(getattr(after, "strict", False))
    found = compare_reports(_read_report(before, limits), _read_report(after, limits), strict)
    return replace(found, seconds=time.monotonic() - started)


def _read_report(report: Union[StrPath, Result], limits: Limits) -> SavedReport:
    return of_files(report.files()) if isinstance(report, Result) else read(report, ReadContext(limits))


def baseline(folder: StrPath, command: str, limits: Optional[Limits] = None) -> SavedReport:
    """Return the earlier report that a run of a command is compared with. Raises NpucmpError if it is of another
    command."""
    found = read(folder, ReadContext() if limits is None else ReadContext(limits))
    if found.command != command:
        raise UsageError(f"--baseline {folder}: a report of {found.command}; {command} needs a report of {command}")
    return found


def compare_reports(before: SavedReport, after: SavedReport, strict: bool = False) -> Difference:
    """Return the differences between two reports; strict: a tensor that has lost its partner is new."""
    _require_alike(before, after)
    both = [key for key in after.seen if key in before.seen]
    places = {key: place for key, place in after.places.items() if place.counts}
    # A differing tensor is new unless its step and rank has an accused operator, which then explains the error.
    owned = {(key.step, key.rank) for key in after.places}
    new = [
        Change(key, before.places.get(key) or before.seen.get(key), place)
        for key, place in places.items()
        if not _was_known(key, before)
    ]
    new += [Change(key, before.seen.get(key), one) for key, one in after.seen.items()
            if one.differs and (key.step, key.rank) not in owned and not _was_different(key, before)]  # fmt: skip
    if strict:
        new += [Change(key, before.seen.get(key), one) for key, one in after.seen.items()
                if one.verdict == NO_PARTNER and not _alone(key, before)]  # fmt: skip
    gone: list[Change] = []
    still_open: list[Change] = []
    for key, place in before.places.items():
        if place.counts and key not in after.places:
            (gone if _is_sound(key, after) else still_open).append(Change(key, place, None))
    accused = {change.key for change in new}
    return Difference(
        paths=(before.path, after.path),
        before=before,
        after=after,
        new=tuple(new),
        gone=tuple(gone),
        open=tuple(still_open),
        same=tuple(Change(key, before.places[key], place) for key, place in places.items() if _was_known(key, before)),
        worse=tuple(
            Change(key, before.seen[key], after.seen[key])
            for key in both
            if key not in accused and after.seen[key].beyond(before.seen[key])
        ),
        better=tuple(
            Change(key, before.seen[key], after.seen[key]) for key in both if before.seen[key].beyond(after.seen[key])
        ),
        notes=tuple(_notes(before, after)),
    )


def is_in_baseline(result: Result, found: Difference) -> bool:
    """Return whether the baseline contains all findings that make the exit status of a result 1."""
    return result.differs and not found.differs and (bool(found.same) or _differing(found.after))


def _differing(after: Optional[SavedReport]) -> bool:
    return after is not None and any(one.differs or one.verdict == NO_PARTNER for one in after.seen.values())


def _require_alike(before: SavedReport, after: SavedReport) -> None:
    if before.command != after.command:
        raise UsageError(
            f"{before.path} is a report of {before.command}, {after.path} of {after.command}; give two of one command"
        )
    if words := other_settings(before, after):
        raise UsageError(refusal(words))
    fewer = min(len(before.operators), len(after.operators))
    common = len(before.operators & after.operators)
    if fewer and common < COMMON_SHARE * fewer:
        raise UsageError(
            f"{before.path} and {after.path} are of different networks: {common} of "
            f"{len(before.operators)} and {len(after.operators)} operators have the same name"
        )


def _was_known(key: Key, before: SavedReport) -> bool:
    return key in before.places and before.places[key].counts


def _was_different(key: Key, before: SavedReport) -> bool:
    return key in before.seen and before.seen[key].differs


def _alone(key: Key, before: SavedReport) -> bool:
    return key in before.seen and before.seen[key].verdict == NO_PARTNER


def _is_sound(key: Key, after: SavedReport) -> bool:
    """Return whether the later report evaluated the key and found no fault. An operator that propagates an error may
    also add one."""
    if after.command == "check":
        rule = after.seen.get(Key("", "", key.rule, ""))
        return rule is not None and rule.verdict == SOUND
    if after.command == "overflow":  # its tables contain only events
        return after.is_decided
    found = after.seen.get(key)
    return found is not None and found.verdict == SOUND


def _notes(before: SavedReport, after: SavedReport) -> Iterator[str]:
    for one in (before, after):
        if one.lacking:
            yield f"{one.path} lacks {one.lacking:,} rows that its summary.json counts; is it complete?"
        elif not one.is_decided:
            yield f"{one.path} is incomplete: the report leaves tensors undecided, or was interrupted"
    versions = [one.summary.get("npucmp") for one in (before, after)]
    if versions[0] != versions[1]:
        yield f"the reports are of npucmp {versions[0]!s:.40} and {versions[1]!s:.40}, whose rules may differ"
