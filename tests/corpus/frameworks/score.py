"""Compares the pairs and prints how often npucmp is right.

Columns:

    refused   npucmp raised NpucmpError
    found     the share of the golden's contents that the target has too, paired with the same content
    garbage   the same, of the cases with that fault, which are no part of `found`
    wrong     the share of the rows that pair contents of other values; of these the rows called match, and BORN roots
    first     place 1 is a right operator; of these BORN or GAP
    clean     no root, exit 0 or 2
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence

import npucmp
from npucmp.errors import NpucmpError
from tests.corpus.frameworks.truth import key


class Result(NamedTuple):
    """One case: fault "" is a clean one; common and found are contents, rows and wrong rows of the table."""

    network: str
    pair: str
    fault: str
    status: Optional[int]
    first: str
    cause: str
    right: bool
    common: int
    found: int
    rows: int
    wrong: int
    wrong_matches: int
    wrong_born: int
    seconds: float
    said: str
    wrong_rows: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def cases(place: Path, pair: str, clean: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the faults of a pair with their truth; "" is the clean one."""
    known = json.loads(place.joinpath("truth.json").read_text()).get(pair)
    if known is None:
        return
    yield "", known
    for fault in () if clean else known["cases"]:
        yield fault, known


def graded(place: Path, pair: str, fault: str, known: dict[str, Any], options: dict[str, Any]) -> Result:
    """Return the result of one case."""
    word, _, golden = pair.partition("/")
    target = place / word / (fault or "clean")
    network = place.name.partition("_")[2].rpartition("_")[0]
    common = {b for _, b in known["same"]}
    started = time.monotonic()
    try:
        report = npucmp.compare(target, place / golden / "clean", jobs=1, **options)
    except NpucmpError as error:
        said = str(error)[:200]
        return Result(network, pair, fault, None, "", "", False, len(common), 0, 0, 0, 0, 0, 0.0, said)
    seconds = time.monotonic() - started
    same, near, parts = ({(a, b) for a, b in known[word]} for word in ("same", "near", "parts"))
    found, rows, wrong, matches = set(), 0, 0, 0
    wrong_rows = []
    wrong_operators = set()
    for finding in report.findings:
        row = finding.measurement.pair
        if row.target is None or row.golden is None or row.golden_op is None:
            continue
        a = known["target"].get(key(row.target_op.name if row.target_op else row.operator.name, row.target.slot))
        b = known["golden"].get(key(row.golden_op.name, row.golden.slot))
        if a is None or b is None:
            continue
        rows += 1
        if (a, b) in same:
            found.add(b)
        elif (a, b) not in near and (a, b) not in parts:
            wrong += 1
            matches += finding.verdict.value == "match"
            wrong_operators.add(row.operator.name)
            wrong_rows.append(
                f"{finding.verdict.value} {row.operator.name} {row.target.slot} = "
                f"{row.golden_op.name} {row.golden.slot} ({row.via})"
            )
    roots = [root for root in report.roots if root.cause.value != "PROPAGATED"]
    first = roots[0] if roots else None
    right = not fault and not roots
    if fault and first is not None:
        accepted = {*known["cases"][fault]["right"]}
        names = {one.name for one in (first.pair.target_op, first.pair.golden_op) if one is not None}
        right = bool(accepted & {name.replace("/", "_") for name in names})
    named = {key(name, slot) for name, slot in _golden_names(report, common, found, known)}
    return Result(
        network, pair, fault, report.exit_status, first.pair.operator.name if first else "",
        first.cause.value if first else "", right, len(common), len(found), rows, wrong, matches,
        sum(root.cause.value == "BORN" and root.pair.operator.name in wrong_operators for root in roots), seconds,
        first.because[:200] if first else "", tuple(wrong_rows), tuple(sorted(named)),
    )  # fmt: skip


def _golden_names(report: Any, common: set[int], found: set[int], known: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield one golden tensor of every content that was not found."""
    lost = common - found
    for name, number in known["golden"].items():
        if number in lost:
            lost.discard(number)
            operator, _, slot = name.rpartition("|")
            yield operator, slot


def table(results: Sequence[Result]) -> str:
    """Return the figures of each kind of pair, and of all."""
    head = (
        "pair",
        "cases",
        "refused",
        "found",
        "garbage",
        "wrong",
        "match",
        "BORN",
        "first",
        "BORN|GAP",
        "clean",
        "s/case",
    )
    lines = [
        _row(pair, [one for one in results if one.pair == pair]) for pair in dict.fromkeys(one.pair for one in results)
    ]
    lines.append(_row("all", results))
    kinds = sorted({one.fault.partition("_")[2] for one in results if one.fault})
    by_kind = []
    for kind in kinds:
        struck = [one for one in results if one.fault.partition("_")[2] == kind]
        by_kind.append(f"{kind} {sum(one.right for one in struck)}/{len(struck)}")
    return "\n".join([_line(head), *map(_line, lines), "first right by fault: " + ", ".join(by_kind)])


def _row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    garbage = [one for one in results if one.fault.endswith("garbage")]
    rest = [one for one in results if not one.fault.endswith("garbage")]
    struck = [one for one in results if one.fault]
    clean = [one for one in results if not one.fault]
    right = [one for one in struck if one.right]
    silent = sum(one.right and one.status in (0, 2) for one in clean)
    return (
        name, str(len(results)), str(sum(one.status is None for one in results)), _share(rest, "found", "common"),
        _share(garbage, "found", "common"), _share(results, "wrong", "rows", 2),
        str(sum(one.wrong_matches for one in results)),
        str(sum(one.wrong_born for one in results)), f"{len(right)}/{len(struck)}",
        f"{sum(one.cause in ('BORN', 'GAP') for one in right)}/{len(struck)}", f"{silent}/{len(clean)}",
        f"{sum(one.seconds for one in results) / max(1, len(results)):.2f}",
    )  # fmt: skip


def _share(results: Iterable[Result], part: str, whole: str, digits: int = 1) -> str:
    sums = Counter[str]()
    for one in results:
        sums.update({"part": getattr(one, part), "whole": getattr(one, whole)})
    return f"{100 * sums['part'] / sums['whole']:.{digits}f}%" if sums["whole"] else "-"


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:16}" + "".join(f"{one:>9}" for one in cells[1:])


def described(one: Result) -> str:
    """Return a line of a case that is not right."""
    status = "refused" if one.status is None else f"exit {one.status}"
    shares = f"found {one.found}/{one.common} wrong {one.wrong}/{one.rows}"
    return (
        f"{one.network} {one.pair} {one.fault or 'clean'}: {status} {shares} first {one.cause} {one.first}: {one.said}"
    )
