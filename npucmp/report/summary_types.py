"""The types of summary.json, of JSON Lines and of errors, from which docs/schema/ is made.

    python -m npucmp.report.summary_types docs/schema

A number that is NaN or infinite is a string ("nan", "inf", "-inf"), because JSON has no such numbers. Keys are only
ever added; SCHEMA_VERSION (version.py) is raised when a key changes its meaning. tests/report/test_schema.py compares
the output of every command with the files, in both directions.
"""

from __future__ import annotations

import json
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any, Optional, TypedDict, Union

Number = Union[int, float, str, None]  # a string for NaN and infinities
Cell = Union[str, int, float, bool, None]


class RunEntry(TypedDict):
    """A run of a dump: one step and rank; None for a number that the dump lacks."""

    path: str
    step: Optional[int]
    rank: Optional[int]
    notes: list[str]


class DumpEntry(TypedDict, total=False):
    """A dump, and the sums over its selected runs. `format`, `detail`, `step` and `rank` are those of the first run."""

    path: str
    operators: int
    tensors: int
    bytes: int
    runs: list[RunEntry]
    format: Optional[str]
    detail: Optional[str]
    step: Optional[int]
    rank: Optional[int]


class BrokenRun(TypedDict):
    """A run that cannot be read, and the reason."""

    side: str
    path: str
    because: str


class NextEntry(TypedDict):
    """A command to run next, and the reason."""

    command: str
    because: str


class RootEntry(TypedDict):
    """A row of roots.csv (`npucmp columns roots.csv`); None for a cell that does not apply."""

    place: int
    step: Optional[int]
    rank: Optional[int]
    order: Optional[int]
    op: str
    op_type: Optional[str]
    phase: Optional[str]
    cause: str
    slot: Optional[str]
    metric: Optional[str]
    value: Number
    limit: Number
    input_error: Number
    output_error: Number
    growth: Number
    evidence: str
    stack: Optional[str]
    target_op: Optional[str]
    golden_op: Optional[str]
    rule: Optional[str]
    golden_slot: Optional[str]
    relation: Optional[str]
    ranks: Optional[str]
    collective: Optional[str]
    request: Optional[int]
    position: Optional[int]


class ToleranceEntry(TypedDict):
    """A limit that applied, and its reason; "" for any type or kind of operator."""

    metric: str
    limit: Number
    dtype: str
    op_type: str
    why: str


class OpenEntry(TypedDict):
    """A golden tensor that is not covered, and the reason. `verdict` is that of its row, "" without a row."""

    op: str
    slot: str
    elements: Optional[int]
    verdict: str
    because: str


class CoverageEntry(TypedDict):
    """The coverage of the golden. `share` is the share of its elements that is covered, None if a size is unknown."""

    share: Number
    least: float
    open_tensors: int
    open_runs: int
    open_elements: Optional[int]
    accounted_tensors: int
    excluded_tensors: int
    excluded_runs: str
    open: list[OpenEntry]


class UnpairedRun(TypedDict):
    """A run without a partner."""

    side: str
    path: str
    step: Optional[int]
    rank: Optional[int]


class SummaryBase(TypedDict):
    """The keys of every command.

    outcome      the first word of the last line of the screen: AGREES, DIVERGED, UNDECIDED …
    exit_status  0 nothing found and decided, 1 found, 2 not decided, 130 interrupted
    settings     options that decide a verdict and are not at their default
    next         commands that go on from here
    """

    schema_version: int
    npucmp: str
    command: str
    outcome: str
    sentence: str
    argv: list[str]
    settings: dict[str, Any]
    notes: list[str]
    roots: list[RootEntry]
    next: list[NextEntry]
    broken: list[BrokenRun]
    seconds: float
    bytes_read: int
    partial: bool
    exit_status: int


class SummaryOptional(SummaryBase, total=False):
    """Keys that depend on the call: `files` with -o, `baseline` with --baseline, `sources` of options from settings."""

    files: list[str]
    baseline: dict[str, Any]
    sources: dict[str, str]


class TruthEntry(TypedDict):
    """The errors of target and golden against the truth.

    verdict   "worse", "better", "no worse" or "undecided", by the last line
    cleared   whether each tensor that differs from the golden is no further from the truth
    ratio     median of the ratios of errors; `end`: the last output's, with its interval of 95 %
    kinds     medians by kind of operator
    worse     rows of three_runs.csv; golden_worse: names of operators in which the golden adds more error
    """

    path: str
    what: str
    verdict: str
    because: str
    cleared: bool
    outputs: int
    verdicts: dict[str, int]
    ratio: Number
    end: Optional[list[Number]]
    kinds: list[dict[str, Cell]]
    worse: list[dict[str, Cell]]
    golden_worse: list[str]
    notes: list[str]


class CompareSummary(SummaryOptional, total=False):
    """`npucmp compare`, `npucmp fusion-diff` and `npucmp rerun-diff`.

    aligned   operators by matcher ("name", "order" …), and the shares that were compared
    verdicts  number of tensors by verdict; `causes`: number of operators by cause
    accused   details of the first roots: arguments, frames, the vendor's verdicts
    unlike    why the runs are not comparable, "" if they are
    shards, begins, peers   of several steps and ranks
    layout    how ranks were put together; `tokens`: how tokens correspond; `weights`: relations of checkpoints
    truth     errors of both runs against a third one, with --truth
    runs      the dumps of rerun-diff
    """

    target: DumpEntry
    golden: DumpEntry
    also: list[str]
    aligned: dict[str, Union[int, float, str]]
    coverage: CoverageEntry
    verdicts: dict[str, int]
    causes: dict[str, int]
    rules: list[ToleranceEntry]
    unlike: str
    accused: list[dict[str, Any]]
    passes: list[dict[str, Any]]
    unpaired: list[UnpairedRun]
    next_dump: Optional[dict[str, Any]]
    shards: dict[str, int]
    begins: Optional[dict[str, Any]]
    peers: list[dict[str, Any]]
    layout: dict[str, Any]
    tokens: dict[str, Any]
    weights: dict[str, Any]
    truth: TruthEntry
    runs: list[str]


class CheckSummary(SummaryOptional):
    """`npucmp check`. `first` has the first findings as rows of health.csv, `not_decided` the reason by rule."""

    target: DumpEntry
    training: bool
    starts: str
    fail_on: str
    findings: dict[str, dict[str, int]]
    decided: list[str]
    not_decided: dict[str, str]
    first: list[dict[str, Cell]]
    unreadable: list[str]


class OverflowSummary(SummaryOptional):
    """`npucmp overflow`. `events` and `origins` count the rows of overflow.csv, `scanned` the tensors."""

    target: DumpEntry
    golden: Optional[dict[str, str]]
    scanned: int
    events: dict[str, int]
    origins: dict[str, int]
    unreadable: list[str]


class _ReplayGolden(TypedDict, total=False):
    golden: DumpEntry


class ReplaySummary(SummaryOptional, _ReplayGolden):
    """`npucmp replay`. `guilty` and `broken_edges` have rows of replay.csv and edges.csv."""

    target: DumpEntry
    verdicts: dict[str, int]
    statuses: dict[str, int]
    guilty: list[dict[str, Cell]]
    levels: dict[str, int]
    explained: list[str]
    device_settings: list[str]
    edges: dict[str, int]
    broken_edges: list[dict[str, Cell]]
    differing: list[str]


class PrecheckSummary(SummaryOptional):
    """`npucmp precheck`. `differs` and `inputs` have rows of precheck.csv and inputs.csv, `unknown` reasons by row."""

    target: DumpEntry
    golden: DumpEntry
    verdict: str
    statuses: dict[str, int]
    differs: list[dict[str, Cell]]
    unknown: dict[str, str]
    inputs: list[dict[str, Cell]]


class ParitySummary(SummaryOptional, total=False):
    """`npucmp parity`. `step`, `request` and `position` are those of the first bad token, "" if there is none; the key
    `class` is the class of the first finding."""

    step: Union[int, str]
    request: Union[int, str]
    position: Union[int, str]
    margin: Number
    because: list[str]
    rollout: dict[str, Any]
    trainer: dict[str, Any]
    floor: Number
    figures: dict[str, Number]
    steps: list[dict[str, Any]]
    trend: str
    open: list[str]


class DiffSummary(SummaryOptional):
    """`npucmp diff`. `of` is the command of both reports; `changes` has the first rows of diff.csv by kind."""

    before: str
    after: str
    of: str
    counts: dict[str, int]
    changes: dict[str, list[dict[str, Cell]]]


class MergeSummary(SummaryOptional, total=False):
    """`npucmp merge`. `target` and `golden` are lists, one entry per report."""

    reports: list[dict[str, Any]]
    target: list[Any]
    golden: list[Any]
    aligned: dict[str, Number]
    verdicts: dict[str, int]
    causes: dict[str, int]
    rules: list[ToleranceEntry]
    unpaired: list[UnpairedRun]
    lost: list[dict[str, Any]]
    shards: dict[str, int]
    begins: Optional[dict[str, Any]]


class ErrorEntry(TypedDict, total=False):
    """An error: its type in words, its message, and the facts that are known."""

    type: str
    message: str
    path: str
    offset: Optional[int]
    near: list[str]


class ErrorObject(TypedDict):
    """The object that --json prints instead of a result. `hint` is what to do, "" if npucmp does not know."""

    schema_version: int
    npucmp: str
    command: str
    error: ErrorEntry
    hint: str
    exit_status: int


class ErrorLine(ErrorObject):
    """The only line of JSON Lines if the command fails; the other keys are those of an error."""

    kind: str


class DumpLine(TypedDict):
    """A line of JSON Lines: a side of the comparison."""

    kind: str
    side: str
    path: str
    what: str


class NoteLine(TypedDict):
    """A line of JSON Lines: a note."""

    kind: str
    title: str
    text: str


class SuspectLine(TypedDict):
    """A line of JSON Lines: a finding. `source` is the line of the user's code, `path` its recorded file; `at` has
    the known ones of its step, rank, ranks, relation, request and position, counted from 0."""

    kind: str
    place: int
    cause: str
    op: str
    op_type: str
    slot: str
    where: str
    rule: str
    golden: str
    evidence: list[str]
    source: str
    path: str
    at: dict[str, Union[int, str]]
    known: bool
    excused: bool


class NextLine(TypedDict):
    """A line of JSON Lines: a command to run next."""

    kind: str
    command: str
    because: str


class VerdictLine(TypedDict):
    """The last line of JSON Lines."""

    kind: str
    schema_version: int
    command: str
    outcome: str
    sentence: str
    exit_status: int


Line = Union[DumpLine, NoteLine, SuspectLine, NextLine, VerdictLine, ErrorLine]
TYPES: dict[str, tuple[Any, ...]] = {  # name of the schema → its type, or the types of its lines by their kind
    "compare": (CompareSummary,),
    "fusion-diff": (CompareSummary,),
    "rerun-diff": (CompareSummary,),
    "check": (CheckSummary,),
    "overflow": (OverflowSummary,),
    "replay": (ReplaySummary,),
    "precheck": (PrecheckSummary,),
    "parity": (ParitySummary,),
    "diff": (DiffSummary,),
    "merge": (MergeSummary,),
    "error": (ErrorObject,),
    "json_lines": (DumpLine, NoteLine, SuspectLine, NextLine, VerdictLine, ErrorLine),
}
KEYWORDS = {"parity": {"class": {"type": "string"}}}  # keys that Python has no field for


def schemas() -> dict[str, bytes]:
    """Return the JSON Schemas (draft 2020-12) by file name."""
    return {f"{name}.schema.json": _schema(name, types) for name, types in TYPES.items()}


def _schema(name: str, types: tuple[Any, ...]) -> bytes:
    import msgspec

    found, below = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    head: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"npucmp {name}",
    }
    if len(found) == 1:
        own = below.pop(types[0].__name__)
        own["properties"].update(KEYWORDS.get(name, {}))
        own.pop("title")
        head.update(own)
    else:
        head["oneOf"] = [*found]
        for one in types:
            kind = one.__name__.replace("Line", "").lower()
            below[one.__name__]["properties"]["kind"] = {"const": kind}
    for one in (head, *below.values()):
        if "description" in one:
            one["description"] = cleandoc(one["description"])  # as newer versions of msgspec do
    return (json.dumps({**head, "$defs": below}, indent=1) + "\n").encode()


def main(folder: str) -> None:
    """Write the schemas into a folder."""
    for name, data in schemas().items():
        (Path(folder) / name).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
