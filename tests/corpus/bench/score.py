"""Scores what a tool says of the public set: `python score.py manifest.json results.csv…`. Standard library only.

results.csv has a row for each operator that a tool accuses:

    pair       of the manifest
    place      1 for the operator that is accused first; a row without an operator only states seconds and memory
    operator   the name of the operator in the golden, or in the target
    seconds    of the processor, for the comparison
    memory_mb  the largest resident memory
    step       optional: the step of the accusation; another step than the manifest's is wrong
    trouble    optional: why the tool refused the pair

A pair without a row was not compared, and does not count. A pair whose only row has no operator: the tool was silent.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional

COLUMNS = ("pair", "place", "operator", "seconds", "memory_mb", "step", "trouble")


FAULTY = ("right", "near", "elsewhere", "missed")  # grades of faulty pairs


class Score(NamedTuple):
    """The score of one pair. grade: right, near, elsewhere, missed; of a clean pair silent or alarm."""

    pair: str
    grade: str
    seconds: Optional[float]
    memory: Optional[float]
    refused: bool


def grade(entry: Mapping[str, Any], rows: Iterable[Mapping[str, str]]) -> Score:
    """The score of one pair from its rows."""
    rows = sorted(rows, key=lambda row: int(row.get("place") or 0))
    named = [row for row in rows if row.get("operator")]
    figures = {key: next((float(row[key]) for row in rows if row.get(key)), None) for key in ("seconds", "memory_mb")}
    hits = [k for k, row in enumerate(named) if _is_right(entry, row)]
    if entry["clean"]:
        found = "alarm" if named else "silent"
    elif hits and hits[0] < 3:
        found = "right" if hits[0] == 0 else "near"
    else:
        found = "elsewhere" if named else "missed"
    refused = any(row.get("trouble") for row in rows)
    return Score(entry["pair"], found, figures["seconds"], figures["memory_mb"], refused)


def _is_right(entry: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    step = row.get("step") or ""
    return row["operator"] in entry["operators"] and (not step or int(step) == entry["step"])


def read_rows(path: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of a CSV by pair."""
    found: dict[str, list[dict[str, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["pair"], []).append(row)
    return found


def score(manifest: Mapping[str, Any], rows: Mapping[str, list[dict[str, str]]]) -> list[Score]:
    """Scores of the pairs that have rows."""
    return [grade(entry, rows[entry["pair"]]) for entry in manifest["pairs"] if entry["pair"] in rows]


HEAD = ("", "faulty", "right at 1", "within 3", "elsewhere", "missed", "clean", "alarms", "refused", "seconds", "MB")


def line(name: str, scores: list[Score]) -> tuple[str, ...]:
    """A row of the table: counts, shares of the faulty pairs, medians."""
    count = {
        g: sum(one.grade == g for one in scores) for g in ("right", "near", "elsewhere", "missed", "silent", "alarm")
    }
    faulty, clean = sum(count[g] for g in ("right", "near", "elsewhere", "missed")), count["silent"] + count["alarm"]

    def share(n: int) -> str:
        return f"{100 * n / faulty:.1f} %" if faulty else "–"

    seconds = [one.seconds for one in scores if one.seconds is not None]
    memory = [one.memory for one in scores if one.memory is not None]
    return (
        name, str(faulty), share(count["right"]), share(count["right"] + count["near"]), share(count["elsewhere"]),
        share(count["missed"]), str(clean), str(count["alarm"]), str(sum(one.refused for one in scores)),
        f"{statistics.median(seconds):.2f}" if seconds else "–", f"{statistics.median(memory):.0f}" if memory else "–",
    )  # fmt: skip


def table(manifest: Mapping[str, Any], results: Mapping[str, Mapping[str, list[dict[str, str]]]], by: str = "") -> str:
    """A Markdown table: a row for each tool, or for each tool and value of a key of the manifest."""
    entries = {entry["pair"]: entry for entry in manifest["pairs"]}
    lines = [HEAD]
    for tool, rows in results.items():
        scores = score(manifest, rows)
        groups = sorted({str(entries[one.pair][by]) for one in scores}) if by else [""]
        for group in groups:
            chosen = [one for one in scores if not by or str(entries[one.pair][by]) == group]
            lines.append(line(f"{tool}, {group}" if by else tool, chosen))
    cells = ["| " + " | ".join(one) + " |" for one in lines]
    return "\n".join([cells[0], "|---|" + "---:|" * (len(HEAD) - 1), *cells[1:]])


def main() -> None:
    manifest = json.loads(Path(sys.argv[1]).read_text())
    results = {Path(path).stem: read_rows(Path(path)) for path in sys.argv[2:]}
    for by in ("", "data", "group"):
        print(table(manifest, results, by), end="\n\n")


if __name__ == "__main__":
    main()
