"""Runs tools over the public set: each pair in a process of its own, whose seconds and memory are measured.

A process imports the tool once and forks for each pair, so that the seconds are those of the comparison alone: time
of the processor, of the fork and its children. The memory is the largest resident set of one of them, with the modules
of the tool.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Optional, Sequence

from tests.corpus.bench.adapters import Accusation
from tests.corpus.bench.score import COLUMNS, read_rows

SECONDS = 300  # after which a comparison is stopped, and the pair counts as refused


def run(out: Path, tool: str, jobs: int = 1, limit: Optional[int] = None) -> Path:
    """Compare the pairs that have no rows yet, at most `limit`; returns the CSV of the tool."""
    adapter: Any = importlib.import_module(f"tests.corpus.bench.adapters.{tool}")
    entries = json.loads(out.joinpath("manifest.json").read_text())["pairs"]
    results = out / "results" / f"{tool}.csv"
    results.parent.mkdir(exist_ok=True)
    if not results.exists():
        results.write_text(",".join(COLUMNS) + "\n")
    known = read_rows(results)
    groups = getattr(adapter, "GROUPS", {one["group"] for one in entries})
    fitting = [one["pair"] for one in entries if one["data"] in adapter.DATA and one["group"] in groups]
    todo = [pair for pair in fitting if pair not in known][:limit]
    workers = []
    sys.stdout.flush()
    for worker in range(jobs):
        pid = os.fork()
        if not pid:
            try:
                for pair in todo[worker::jobs]:
                    _append(results, pair, *_measured(adapter, out / pair))
            finally:
                os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)
    _sort(results)
    return results


def _measured(adapter: Any, pair: Path) -> tuple[list[Accusation], str, float, float]:
    """Accusations, trouble, seconds and MB of one pair."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        _child(adapter, pair, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, _, usage = os.wait4(pid, 0)
    seconds = usage.ru_utime + usage.ru_stime
    answer = json.loads(said) if said else {"accused": [], "trouble": "ended", "memory": 0}
    memory = max(usage.ru_maxrss, answer["memory"]) / 1024
    return [Accusation(*one) for one in answer["accused"]], answer["trouble"], seconds, memory


def _child(adapter: Any, pair: Path, write: int) -> None:
    signal.alarm(SECONDS)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    accused: Sequence[Accusation] = []
    trouble = ""
    try:
        accused = adapter.accuse(pair / "target", pair / "golden")
    except BaseException as error:  # a tool's own exit too
        trouble = "".join(traceback.format_exception_only(type(error), error)).strip()[:200] or "ended"
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    os.write(
        write,
        json.dumps({"accused": [list(one) for one in accused[:20]], "trouble": trouble, "memory": memory}).encode(),
    )
    os._exit(0)


def _append(
    results: Path, pair: str, accused: Sequence[Accusation], trouble: str, seconds: float, memory: float
) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    figures = (f"{seconds:.3f}", f"{memory:.0f}")
    for place, one in enumerate(accused, 1):
        rows.writerow((pair, place, one.operator, *figures, "" if one.step is None else one.step, ""))
    if not accused:
        rows.writerow((pair, 0, "", *figures, "", trouble.replace("\n", " ")))
    with results.open("a") as file:
        file.write(text.getvalue())


def _sort(results: Path) -> None:
    with results.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["pair"], int(row["place"])))
    with results.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
