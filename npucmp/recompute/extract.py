"""Write one operator of a dump as a folder that runs without npucmp."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.formats import calls_of
from npucmp.errors import DumpError, MissingExtra, UnsupportedError, UsageError
from npucmp.model import REPLAYED, Operator, ReplayedOutput
from npucmp.model.pseudonyms import Pseudonyms
from npucmp.recompute.engine import NEEDS_TORCH, CaseEngine, OperatorEngine, RecordedCaseEngine
from npucmp.recompute.option_fields import ExtractFields
from npucmp.recompute.redacted_case import RedactedCaseEngine
from npucmp.recompute.repro_case import CALL, NOT_KEPT
from npucmp.recompute.run import replay_tasks
from npucmp.recompute.task import ReplaySettings, Task, tasks_of
from npucmp.recompute.workflow import supported
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import of_three
from npucmp.workflows.select_runs import RunSelection, operator_of


class ExtractResult(NamedTuple):
    """An extracted case: its folder and files, its operator and the rows of its replay. `cut` is (rows of the
    case, rows in all), None if it has all rows."""

    folder: Path
    files: tuple[str, ...]
    operator: Operator
    rows: tuple[ReplayedOutput, ...]
    cut: Optional[tuple[int, int]] = None
    redacted: Mapping[str, str] = MappingProxyType({})
    pseudonyms: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ExtractOptions(ExtractFields, RunSelection):
    """The options of an extraction."""


@of_three(ExtractOptions)
def extract(dump: StrPath, op: str, folder: StrPath, options: ExtractOptions) -> ExtractResult:
    """Write the case of an operator into a new or empty folder, completely or not at all.

    Raises NpucmpError for a name that the dump does not have, and for a call that cannot be replayed.

        npucmp.extract("npu_dump", "Functional.softmax.1.forward", "case", smallest=True)
    """
    supported()
    place = Path(os.path.abspath(folder))
    if os.path.lexists(place) and not (place.is_dir() and not any(place.iterdir())):
        raise UsageError(f"{folder}: already exists; name a new or empty folder")
    context = options.context(dump)
    run, operator = operator_of(op, dump, [run for run in options.runs(dump, context) if not run.problem])
    task = next((one for one in tasks_of(run, calls_of(run, context)) if one.operator is operator), None)
    if task is None:
        raise UnsupportedError(f"{dump}: the dump has no call of {op}", "dump it with msprobe")
    settings = ReplaySettings()
    if options.limit_memory:
        settings = settings._replace(memory=options.limit_memory)
    partial = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".npucmp-", dir=place.parent))
        engine = _engine(task, partial, options)
        (rows,) = replay_tasks([task], engine, context, settings, 1)
        files = sorted(one.name for one in partial.iterdir())
        if CALL not in files:
            raise _refusal(dump, op, rows)
        names = Pseudonyms()
        call = _call(partial / CALL, names if options.redact else None)
        cut = call["rows"]
        os.chmod(partial, 0o755)
        os.rename(partial, place)
    except OSError as error:
        raise DumpError(folder, f"the case was not written: {error.strerror or error}") from None
    finally:
        _discard(partial)
    return ExtractResult(
        Path(folder), tuple(files), operator, tuple(rows), None if cut is None else (len(cut[0]), cut[1]),
        call.get("redacted", {}), names.by_pseudonym,
    )  # fmt: skip


def _engine(task: Task, folder: Path, options: ExtractOptions) -> OperatorEngine:
    """Return the engine that writes a case; of a call that only torch computes, where torch is missing, the case has
    the recorded tensors alone. Raises MissingExtra if torch has to redact it."""
    engine = CaseEngine(folder, smallest=options.smallest)
    status, because = engine.refuses(task)
    if status and because == NEEDS_TORCH and engine.missing():
        if options.redact:
            raise MissingExtra(engine.missing(), "computing the expected results")
        return RecordedCaseEngine(folder)
    return RedactedCaseEngine(folder, engine) if options.redact else engine


def _refusal(dump: StrPath, op: str, rows: Sequence[ReplayedOutput]) -> UnsupportedError:
    why = next((row for row in rows if row.status != REPLAYED), None)
    if why is not None and why.explanation.startswith(NOT_KEPT):
        return UnsupportedError(f"{dump}: {op}: {why.explanation}; nothing was written")
    words = "no output" if why is None else why.explanation or why.status
    return UnsupportedError(f"{dump}: {op} cannot be replayed, so there is nothing to extract: {words}")


def _call(path: Path, names: Optional[Pseudonyms]) -> dict[str, Any]:
    """Return the content of call.json; with `names`, replace the name of its operator."""
    call: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if names is not None:
        call["operator"] = names.of_operator(call["operator"])
        path.write_text(json.dumps(call, indent=1) + "\n", encoding="utf-8")
    return call


def _discard(folder: Optional[Path]) -> None:
    """Delete an incomplete case; a complete one is already renamed."""
    if folder is not None and folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
