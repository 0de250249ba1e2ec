"""The overview of steps and ranks: its rows, its picture, its sentence, its pages."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.model import Run
from npucmp.report import answer_of, html, overview
from npucmp.report.matrix import COLUMNS, cells_of_runs, rows
from npucmp.report.overview import missing_pages, pages_to_write
from npucmp.report.phrases import numbers, ranges
from npucmp.report.rank_cell import HERE, Cell, FirstOperator, Matrix
from tests.browser import browser, opened, skip_reason
from tests.localise.test_replica_check import parallel
from tests.synthetic import write_run


def cell(step, rank, verdict="AGREES", op="", cause="BORN", place=1, origin="", **more):
    first = FirstOperator(place, op, "output:0", 0, cause, 0.5) if op else None
    return Cell(step, rank, "t", "g", verdict, first=first, origin=origin, **more)


def born(step, rank, op="softmax.1", place=1, **more):
    return cell(step, rank, "DIVERGED", op, place=place, origin=HERE, **more)


def test_rows_of_what_could_not_be_compared():
    torn, left, alone = Run("t/1", "x", (), 0, 1, problem="torn"), Run("g/1", "x", (), 0, 1), Run("g/2", "x", (), 0, 2)
    unpaired = ("golden", left), ("golden", alone)
    report = npucmp.Report(("t", "g"), broken=(("target", torn),), unpaired=unpaired)
    found = rows([cell(0, 0), *cells_of_runs(report)])
    assert [*found] == [*COLUMNS]
    names = "step", "rank", "target", "golden", "verdict", "because"
    assert [*zip(*(found[name] for name in names))] == [
        (0, 0, "t", "g", "AGREES", None),
        (0, 1, "t/1", "g/1", "UNREADABLE", "torn"),
        (0, 2, None, "g/2", "ALONE", "only in golden"),
    ]


def test_which_shards_have_a_page(monkeypatch):
    cells = [cell(0, rank) for rank in range(10)] + [born(1, rank, place=20 - rank) for rank in range(10)]
    assert pages_to_write(cells) == [*range(20)] and missing_pages(cells, pages_to_write(cells)) == ""
    monkeypatch.setattr(overview, "PAGES", 12)
    assert pages_to_write(cells) == [*range(19, 9, -1), 0, 1]
    assert missing_pages(cells, pages_to_write(cells)).startswith("of 20, 8 that agree have no page (")
    monkeypatch.setattr(overview, "MOST_PAGES", 3)
    monkeypatch.setattr(overview, "PAGES", 5)
    assert pages_to_write(cells) == [19, 18, 17]
    assert missing_pages(cells, pages_to_write(cells)).startswith(
        "of 20, 10 that agree and 7 after the first 3 that do not agree have no page"
    )


def test_words_of_numbers():
    assert ranges([0, 1, 2, 8]) == "0-2, 8" and ranges([]) == ""
    assert numbers("rank", [3]) == "rank 3" and numbers("rank", [0, 1]) == "ranks 0-1" and numbers("rank", []) == ""
    assert numbers("rank", [*range(0, 200, 2)]) == "ranks 0 to 198, 100 of them"


def written_runs(folder, make, steps=1, **fault):
    for side, more in (("target", fault), ("golden", {})):
        for step in range(steps):
            for rank, operators in enumerate(make(**(more if step == steps - 1 else {}))):
                write_run(folder / side, operators, step, rank)
    return folder / "target", folder / "golden"


def test_a_rank_with_another_weight_is_told(tmp_path):
    paths = written_runs(tmp_path, parallel, stale=6)
    got = CliRunner().invoke(group, ["compare", *map(str, paths), "-o", str(tmp_path / "out")])
    told = "rank 6 has a different weight than rank 4 since step 0: Functional.linear.1.forward input:1; in"
    assert told in got.output and told in (tmp_path / "out/report.html").read_text()
    (odd,) = json.loads((tmp_path / "out/summary.json").read_text())["peers"]
    assert (odd["ranks"], odd["others"], odd["what"], odd["proven"]) == ([6], [4], "weight", True)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    x = np.arange(12, dtype=np.float32)
    name = "Functional.</title><script>alert(1)\x1b[31m.0.forward"
    for side, factor in (("target", 2), ("golden", 1)):
        for rank in (0, 1):
            write_run(folder / side, {"Functional.linear.0.forward": {"in": [x], "out": [x * factor]}}, 0, rank)
        for file in (folder / side).rglob("dump.json"):
            file.write_text(file.read_text().replace('"Functional.linear.0.forward": {', f"{json.dumps(name)}: {{"))
    return answer_of(npucmp.compare(folder / "target", folder / "golden"))


@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason())
def test_a_page_of_1024_opens_in_a_second(hostile, tmp_path):
    """In a browser, links and all; it asks for nothing else."""
    cells = [cell(step, rank) for step in range(16) for rank in range(64)]
    names = [one.name for one in cells]
    page = html.page(replace(hostile, matrix=Matrix([*cells[:-1], born(15, 63)], "begins", (15, 63), pages=names)))
    assert len(page) < 300_000
    (tmp_path / "report.html").write_bytes(page)
    took = []
    with browser() as started:
        for _ in range(4):  # others may be at work: the quickest tells
            began = time.monotonic()
            with opened(tmp_path / "report.html", started=started):
                took.append(time.monotonic() - began)
        with opened(tmp_path / "report.html", started=started, color_scheme="dark") as found:
            assert found.locator("table.grid a").count() == 1024 and found.locator("td.m-first").inner_text() == "1"
            found.set_viewport_size({"width": 420, "height": 900})
            assert found.evaluate("document.documentElement.scrollWidth") <= 420  # the grid scrolls by itself
            assert not found.complaints
    assert min(took) < 1
