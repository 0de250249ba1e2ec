"""The score sheet: results counted by kind, precision, phase and so on, with Wilson's intervals.

A fault counts as *clear* if it is at least CLEAR times what rounding and noise make of the tensor where it first
shows; the tables count those. What is less is shown apart: it may drown, and finding it all the same is no duty.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from tests.corpus.score import Result

CLEAR = 8.0
FAULT_GRADES = ("right", "other cause", "other operator", "clean alarm", "undecided", "missed")
CLEAN_GRADES = ("silent", "undecided", "false agreement", "alarm")
Counts = "dict[str, int]"


class Table(NamedTuple):
    """Rows of counts; clean says which grades they hold."""

    title: str
    clean: bool
    rows: dict[str, dict[str, int]]


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    z, p = 1.959964, hits / of
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)
    return max(0.0, low), min(1.0, high)


def is_clear(one: Result) -> bool:
    return one.beyond >= CLEAR


HOLES: dict[str, tuple[bool, Callable[[Result], bool]]] = {  # known ones of 0.1: clean?, which results
    "clear faults in values around -1e4": (False, lambda one: is_clear(one) and one.facts.get("fault") == "low_values"),
    "clear faults beside a bfloat16 cast on a side branch": (
        False,
        lambda one: (
            is_clear(one)
            and one.facts["variation"] == "a bfloat16 cast on a side branch"
            and one.facts["precision"] == "float32"
        ),
    ),
    "clear wrong gradients of ReLU, pools and masks, under noise": (
        False,
        lambda one: is_clear(one) and one.facts.get("fault") == "non_smooth_gradient" and one.facts["noise"] != "none",
    ),
    "clear faults where only inputs were recorded": (
        False,
        lambda one: is_clear(one) and one.facts["part"] == "inputs",
    ),
    "clear faults that were recorded in a coarser type": (
        False,
        lambda one: is_clear(one) and one.facts.get("fault") == "coarser",
    ),
    "faults 20 times noise and more, in statistics alone": (
        False,
        lambda one: one.beyond >= 20 and one.facts["task"] == "statistics",
    ),
    "clear faults on two ranks": (False, lambda one: is_clear(one) and one.facts["ranks"] == "2"),
    "clear faults in one of several steps": (False, lambda one: is_clear(one) and one.facts["steps"] != "1"),
    "truncation, equal bits in, 16 bits on both sides": (
        False,
        lambda one: (
            one.facts.get("fault") == "truncation"
            and one.facts["noise"] == "none"
            and one.facts["precision"] in ("bfloat16 / bfloat16", "bfloat16 autocast / the same", "float16 / float16")
        ),
    ),
    "clean runs of several steps": (True, lambda one: one.facts["steps"] != "1"),
    "clean long sums that cancel": (True, lambda one: "sums that cancel" in one.facts["variation"]),
    "clean, queries, keys and values in one product": (True, lambda one: one.kind == "one product for q, k, v"),
    "clean, memory that was not cleared": (True, lambda one: one.kind == "memory that was not cleared"),
}


SPLITS = {  # title → fact
    "phase": "phase", "precision": "precision", "noise": "noise", "size": "size", "network": "network",
    "number of steps": "steps", "number of ranks": "ranks", "what was recorded": "part", "task": "task",
    "level": "level", "format": "format",
}  # fmt: skip

SHOWN = ("All pairs with a fault", "All clean pairs", "Clear faults by task")  # tables that docs/benchmark.md has


def tables(results: Sequence[Result]) -> list[Table]:
    """All tables of a sheet."""
    again = [one for one in results if one.grade in ("same", "another answer")]
    pairs = [one for one in results if one.grade not in ("same", "another answer")]
    faults, clean = [one for one in pairs if not one.clean], [one for one in pairs if one.clean]
    clear = [one for one in faults if is_clear(one)]
    in_one = [one for one in faults if one.beyond_rounding is not None]
    found = [
        Table("All pairs with a fault", False, counted(faults, _band, FAULT_GRADES)),
        Table("Faults in an operator, by its own rounding", False, counted(in_one, _local, FAULT_GRADES)),
        Table("All clean pairs", True, counted(clean, lambda one: "all", CLEAN_GRADES)),
        Table("Known holes", False, _holes(faults, False)),
        Table("Known holes, clean", True, _holes(clean, True)),
        Table("Clear faults by kind", False, counted(clear, lambda one: one.kind, FAULT_GRADES)),
    ]
    told = {title: fact for title, fact in SPLITS.items() if any(one.facts.get(fact) for one in pairs)}
    for title, fact in told.items():
        found.append(Table(f"Clear faults by {title}", False, counted(clear, _fact(fact), FAULT_GRADES)))
    found.append(Table("Clean pairs by kind", True, counted(clean, lambda one: one.kind, CLEAN_GRADES)))
    for title, fact in told.items():
        if fact != "phase":
            found.append(Table(f"Clean pairs by {title}", True, counted(clean, _fact(fact), CLEAN_GRADES)))
    found.append(
        Table("The same case in another format", True, counted(again, _fact("format"), ("same", "another answer")))
    )
    return [table for table in found if table.rows]


def _holes(results: Sequence[Result], clean: bool) -> dict[str, dict[str, int]]:
    grades = CLEAN_GRADES if clean else FAULT_GRADES
    chosen = {name: which for name, (of_clean, which) in HOLES.items() if of_clean == clean}
    return {name: _counts(filter(which, results), grades) for name, which in chosen.items() if any(map(which, results))}


def _fact(name: str) -> Callable[[Result], str]:
    return lambda one: one.facts.get(name, "")


def _band(one: Result) -> str:
    if one.beyond >= CLEAR:
        return "clear: 20 times noise and more" if one.beyond >= 20 else f"clear: {CLEAR:g} to 20 times noise"
    return "2 to 8 times noise" if one.beyond >= 2 else "less than twice noise"


def _local(one: Result) -> str:
    """What a float64 replay of the planted operator alone could see."""
    assert one.beyond_rounding is not None
    if one.beyond_rounding >= CLEAR:
        return f"{CLEAR:g} times its rounding and more"
    return "2 to 8 times its rounding" if one.beyond_rounding >= 2 else "less than twice its rounding"


def counted(results: Iterable[Result], of: Callable[[Result], str], grades: Sequence[str]) -> dict[str, dict[str, int]]:
    """Counts by what `of` says, rows in order of their names."""
    rows: dict[str, list[Result]] = {}
    for one in results:
        rows.setdefault(of(one), []).append(one)
    return {name: _counts(rows[name], grades) for name in sorted(rows)}


def _counts(results: Iterable[Result], grades: Sequence[str]) -> dict[str, int]:
    found = Counter(one.grade for one in results)
    return {grade: found.get(grade, 0) for grade in grades}


def share(row: Mapping[str, int]) -> str:
    """The share of the first grade, with its interval, as text; - of nothing."""
    of = sum(row.values())
    hits = next(iter(row.values())) if row else 0
    if not of:
        return "-"
    low, high = interval(hits, of)
    return f"{100 * hits / of:5.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def text(found: Sequence[Table]) -> str:
    """A sheet for the terminal."""
    lines = []
    for table in found:
        grades = list(next(iter(table.rows.values())))
        wide = max(len(name) for name in (*table.rows, table.title)) + 2
        head = "".join(f"{grade:>16}" for grade in grades[1:])
        lines.append(f"{table.title:<{wide}}{'pairs':>7}   {grades[0]:<18}{head}")
        for name, row in table.rows.items():
            rest = "".join(f"{row[grade] or '·':>16}" for grade in grades[1:])
            lines.append(f"{name:<{wide}}{sum(row.values()):>7}   {share(row):<18}{rest}")
        lines.append("")
    return "\n".join(lines)


def markdown(sheets: Mapping[str, Sequence[Mapping[str, Any]]], shown: Sequence[str] = ()) -> str:
    """Tables of several sheets side by side: those titled `shown`, or all. sheets: name → as_data()."""
    lines = []
    for title in dict.fromkeys(table["title"] for one in sheets.values() for table in one):
        if shown and title not in shown:
            continue
        found = [next((t["rows"] for t in one if t["title"] == title), {}) for one in sheets.values()]
        names = list(dict.fromkeys(name for rows in found for name in rows))
        good, *_, bad = next(iter(next(rows for rows in found if rows).values()))
        lines.append(f"| {title} |" + "".join(f" {name}: pairs | {good} | {bad} |" for name in sheets))
        lines.append("|---|" + "---|" * (3 * len(sheets)))
        for name in names if title.startswith("Known") else sorted(names):
            cells = ""
            for rows in found:
                row = rows.get(name) or {}
                count = sum(row.values())
                cells += f" {count} | {share(row).strip()} | {row[bad]} |" if count else " | | |"
            lines.append(f"| {name} |{cells}")
        lines.append("")
    return "\n".join(lines)


def as_data(found: Sequence[Table]) -> list[dict[str, Any]]:
    """A sheet as JSON can hold it."""
    return [table._asdict() for table in found]


def worse(now: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> list[str]:
    """What fell behind a kept sheet, in any row of its tables: fewer right or silent, more missed or alarms, another
    number of pairs."""
    found = []
    for old in kept:
        new = next((table for table in now if table["title"] == old["title"]), None)
        for name, row in old["rows"].items():
            mine = (new["rows"] if new else {}).get(name)
            if mine is None or sum(mine.values()) != sum(row.values()):
                found.append(f"{old['title']}, {name}: another number of pairs ({row} → {mine})")
                continue
            first, last = next(iter(row)), list(row)[-1]
            if mine[first] < row[first]:
                found.append(f"{old['title']}, {name}: {first} {row[first]} → {mine[first]}")
            if mine[last] > row[last]:
                found.append(f"{old['title']}, {name}: {last} {row[last]} → {mine[last]}")
    return found
