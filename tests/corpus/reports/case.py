"""Whether the answer of npucmp to a case is right: case.json names commands, and what each must and must not say."""

from __future__ import annotations

import csv
import json
import re
import tarfile
import tempfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.command import npucmp

REPORTS = {"compare", "parity", "overflow", "fusion-diff", "rerun-diff", "check", "precheck", "replay"}
CASES = Path(__file__).parent / "cases"
GIVEN = Path(__file__).parents[4] / "shared" / "data" / "reports" / "given"


def paths(folder: Path = CASES) -> dict[str, Path]:
    """Return the cases below a folder by name: folders with a case.json, or archives of such folders."""
    found = {path.name: path for path in folder.iterdir() if (path / "case.json").exists()}
    found.update({path.name.partition(".")[0]: path for path in folder.glob("*.tar.xz")})
    return dict(sorted(found.items()))


def wrong_answers(path: Path) -> list[str]:
    """Return a line for each wrong command of a case; none if the case is right."""
    if path.is_dir():
        return _wrong_answers(path)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        return _wrong_answers(Path(folder))


def kind(path: Path) -> str:
    """Return the kind of a case, without what stands behind its colon."""
    if path.is_dir():
        text = (path / "case.json").read_text("utf-8")
    else:
        with tarfile.open(path) as archive:
            member = archive.extractfile("case.json")
            assert member
            text = member.read().decode()
    return str(json.loads(text)["kind"].partition(":")[0])


def words_of(run: dict[str, Any], report: Path) -> list[str]:
    """Return the words of the command of a run, which writes into a folder of its own."""
    words: list[str] = run["do"]
    is_writing = words[0] in REPORTS and "-o" not in words
    return [*words, "-o", str(report), "--no-progress"] if is_writing else words


def _wrong_answers(folder: Path) -> list[str]:
    case = json.loads((folder / "case.json").read_text("utf-8"))
    found = []
    for run in case["runs"]:
        with tempfile.TemporaryDirectory() as report:
            reasons = wrong_parts(run, npucmp(*words_of(run, Path(report)), cwd=folder), Path(report))
        if reasons:
            found.append(f"{' '.join(run['do'])}: {'; '.join(reasons)}")
    return found


def wrong_parts(run: dict[str, Any], answer: CompletedProcess[str], report: Path) -> list[str]:
    """Return what is wrong in the answer to a run: in its exit status, what it prints, and the roots that it writes."""
    rows = _rows(report / "roots.csv")
    text = re.sub(r"\s+", " ", f"{answer.stdout} {answer.stderr}")
    wrong = ["traceback"] if "Traceback" in text else []
    if answer.returncode not in run["exit"]:
        wrong.append(f"exit status {answer.returncode}, not {run['exit']}")
    if run.get("first") == "":
        roots = [row for row in rows if row["cause"] != "PROPAGATED"]
        wrong += [f"accuses {_names(row)} ({row['cause']})" for row in roots[:1]]
    elif "first" in run:
        top = rows[: run.get("places", 1)]
        if not any(re.search(run["first"], name) for row in top for name in _names(row)):
            wrong.append(f"names {[_names(row)[0] for row in rows[:2]]}, not {run['first']}")
    wrong += [f"does not say /{words}/" for words in run.get("says", ()) if not re.search(words, text, re.I)]
    wrong += [f"says /{words}/" for words in run.get("never", ()) if re.search(words, text, re.I)]
    return wrong


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def _names(row: dict[str, str]) -> list[str]:
    return [name for column in ("op", "target_op", "golden_op") for name in [row.get(column)] if name]
