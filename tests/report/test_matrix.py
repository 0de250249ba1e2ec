"""The overview of steps and ranks: its rows, its picture, its sentence, its pages."""

import csv
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.localise.rank_digest import ReplicaMismatch
from npucmp.model import Run
from npucmp.report import answer_of, html, overview, rank_summary, terminal
from npucmp.report.error_origin import begin_of, odd_words
from npucmp.report.matrix import COLUMNS, cells_of_runs, rows
from npucmp.report.overview import missing_pages, pages_to_write
from npucmp.report.phrases import numbers, ranges
from npucmp.report.rank_cell import ARRIVED, HERE, PASSED, UNKNOWN, Cell, FirstOperator, Matrix
from npucmp.report.rank_picture import STATES, fold_matrix, folded_words, matrix_data
from tests.browser import browser, opened, skip_reason
from tests.localise.test_multi_rank import collective, pipeline
from tests.localise.test_replica_check import parallel
from tests.synthetic import write_run


def cell(step, rank, verdict="AGREES", op="", cause="BORN", place=1, origin="", **more):
    first = FirstOperator(place, op, "output:0", 0, cause, 0.5) if op else None
    return Cell(step, rank, "t", "g", verdict, first=first, origin=origin, **more)


def born(step, rank, op="softmax.1", place=1, **more):
    return cell(step, rank, "DIVERGED", op, place=place, origin=HERE, **more)


def reached(step, rank, through="all_reduce.12", place=9, source=5):
    return cell(step, rank, "DIVERGED", through, "PROPAGATED", place, ARRIVED, through=through, source=source)


OTHERS = [reached(3, rank, place=10 + rank) for rank in (0, 1, 2, 3)]
SENTENCES = {
    "nothing": ([cell(0, 0), cell(0, 1)], None),
    "the example": (
        [cell(2, rank) for rank in range(6)] + [*OTHERS, reached(3, 4), born(3, 5, stage=1, tensor_rank=1)],
        "begins at step 3, rank 5 (pipeline stage 1, tensor rank 1), operator softmax.1; "
        "reaches the other ranks through all_reduce.12",
    ),
    "some of them": (
        [*OTHERS, cell(3, 4), born(3, 5)],
        "begins at step 3, rank 5, operator softmax.1; reaches ranks 0-3 through all_reduce.12",
    ),
    "two ways": (
        [reached(3, 0), reached(3, 1, "recv.0", 4), born(3, 5)],
        "begins at step 3, rank 5, operator softmax.1; reaches rank 1 through recv.0, rank 0 through all_reduce.12",
    ),
    "one other": (
        [reached(0, 1), born(0, 0)],
        "begins at step 0, rank 0, operator softmax.1; reaches the other rank through all_reduce.12",
    ),
    "nobody else": (
        [born(0, 0), cell(0, 1)],
        "begins at step 0, rank 0, operator softmax.1; no other rank of the step differs",
    ),
    "everywhere": (
        [born(0, rank, place=1 + rank, stage=2) for rank in range(4)],
        "begins at step 0 on all 4 ranks (pipeline stage 2), operator softmax.1",
    ),
    "on some": (
        [born(0, 0), born(0, 2, place=2), cell(0, 1)],
        "begins at step 0 on ranks 0, 2, operator softmax.1; no other rank of the step differs",
    ),
    "errors of their own": (
        [born(0, 0), born(0, 1, "exp.0", 2), born(0, 2, "exp.0", 3)],
        "begins at step 0, rank 0, operator softmax.1; ranks 1-2 have errors of their own",
    ),
    "nothing tells how": (
        [born(0, 0), cell(0, 1, "DIVERGED", "exp.0", "UNKNOWN", origin=UNKNOWN), cell(0, 2, "DIVERGED"), reached(0, 3)],
        "begins at step 0, rank 0, operator softmax.1; reaches rank 3 through all_reduce.12; ranks 1-2 differ too",
    ),
    "not all are decided": (
        [born(0, 0), cell(0, 1, "UNDECIDED"), cell(0, 2)],
        "begins at step 0, rank 0, operator softmax.1; no other rank of the step is known to differ",
    ),
    "not all before is known": (
        [cell(0, 0, "UNREADABLE"), cell(0, 1, "UNDECIDED"), cell(1, 0), born(1, 1)],
        "begins at step 1, rank 1, operator softmax.1; no other rank of the step differs; "
        "step 0 rank 0 and 1 more of earlier steps could not be evaluated",
    ),
    "no ranks": ([cell(0, None), born(1, None)], "begins at step 1, operator softmax.1"),
    "a gap": (
        [cell(0, 0, "DIVERGED", "linear.1", "GAP", origin=HERE), cell(0, 1)],
        "begins at step 0, rank 0, before operator linear.1, whose inputs already differ; "
        "no other rank of the step differs",
    ),
    "suspected": (
        [cell(0, 0, "SUSPECTED", "linear.1", "SUSPECT", origin=HERE), cell(1, 0)],
        "seems to begin at step 0, rank 0, operator linear.1 (statistics only; not proven)",
    ),
    "unknown": (
        [cell(0, 0, "DIVERGED", "linear.1", "UNKNOWN", origin=UNKNOWN), cell(1, 0)],
        "is first seen at step 0, rank 0, operator linear.1; its origin is not known",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_where_it_begins(name):
    cells, sentence = SENTENCES[name]
    found = begin_of(cells)
    assert (found and found.sentence) == sentence
    assert found is None or found.facts()["sentence"] == sentence


def test_who_differs_from_its_peers():
    odd = ReplicaMismatch(2, (3,), (0, 1, 2), "weight", ("linear.0", "input:1"), 8, True)
    assert odd_words(odd) == (
        "rank 3 has a different weight than ranks 0-2 since step 2: linear.0 input:1 and 7 more tensors; "
        "in the golden, these ranks are identical"
    )
    assert "ranks 0-1 each have a different weight" in odd_words(odd._replace(ranks=(0, 1), others=(0, 1)))
    assert "rounding" in odd_words(odd._replace(wrong=False))


def drawn(picture):
    return [(label, "".join(spot.state.sign for spot in spots)) for label, spots in picture.lines]


MIXED = [cell(0, 0), reached(0, 1), born(0, 2), cell(0, 3, "UNDECIDED"), cell(1, 0, "UNREADABLE"), cell(1, 1, "ALONE"),
         cell(1, 2, "SUSPECTED", "x", "SUSPECT", origin=HERE), cell(1, 4, "DIVERGED", "x", "PROPAGATED", origin=PASSED),
         cell(2, 0, "DIVERGED", "x", "UNKNOWN", origin=UNKNOWN), born(2, 1)]  # fmt: skip


def test_a_sign_for_each_shard():
    picture = fold_matrix(MIXED, (0, 2), 80)
    assert drawn(picture) == [("step 0", "·o1? "), ("step 1", "!/S o"), ("step 2", "uX   ")]
    assert [one.sign for one in picture.legend()] == ["1", "X", "S", "u", "o", "!", "/", "?", "·"]
    assert folded_words(picture) == "" and len({one.sign for one in STATES}) == len(STATES)


@pytest.mark.parametrize("ranks, width", [(64, 80), (64, 20), (8192, 72), (8192, 1)])
def test_folded_it_shows_the_worst(ranks, width):
    """By plain code: which shards a sign stands for, and whether any of them is as bad as it says."""
    bad = {ranks // 3, ranks - 1}
    cells = [
        born(1, rank) if rank in bad else reached(1, rank) if rank % 7 == 0 else cell(1, rank) for rank in range(ranks)
    ]
    (line,) = fold_matrix([*cells, *(cell(0, rank) for rank in range(ranks))], (1, ranks // 3), width).lines[1:]
    label, spots = line
    assert label == "step 1" and len(spots) <= width and sum(spot.step_ranks for spot in spots) == ranks
    across, at = -(-ranks // width), 0
    for spot in spots:
        some = range(at, at + spot.step_ranks)
        worst = (
            "1" if ranks // 3 in some else "X" if ranks - 1 in some else "o" if any(n % 7 == 0 for n in some) else "·"
        )
        assert spot.state.sign == worst and spot.step_ranks <= across
        at += spot.step_ranks


def test_many_steps_are_folded_too_and_those_of_one_rank_lie():
    picture = fold_matrix([cell(step, rank) for step in range(100) for rank in (0, 1)], None, 80, 40)
    assert len(picture.lines) == 34 and picture.lines[0][0] == "steps 0-2" and picture.lines[-1][0] == "step 99"
    assert folded_words(picture) == "each sign covers up to 3 steps and shows the worst"
    lying = fold_matrix([cell(step, None) for step in range(9)] + [born(9, None)], (9, 0), 80)
    assert drawn(lying) == [("rank 0", "·········1")] and lying.name == "step"


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


def matrix_of(folder):
    with open(folder / "matrix.csv", newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


SUM = "Distributed.all_reduce.0.forward"
RUNS = {
    "a pipeline": (pipeline, {"first": 1.01}, "rank 0 (pipeline stage 0), operator Functional.linear.0.forward; "
                   "reaches the other rank through Distributed.recv.0.forward", ["", "another rank"]),
    "a sum": (lambda **more: collective(SUM, **more), {"wrong": 0.01}, "rank 1, operator Functional.linear.0.forward; "
              f"reaches the other rank through {SUM}", ["another rank", ""]),
    "two stages of two parts, twice": (parallel, {"wrong": 6}, "rank 6 (pipeline stage 1, tensor rank 0), operator "
                                       "Functional.linear.0.forward; reaches rank 7 through "
                                       f"{SUM}, rank 4 through Distributed.all_reduce.1.forward",
                                       [*[""] * 4, "another rank", "", "", "another rank"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_crafted_runs(tmp_path, name):
    make, fault, sentence, origins = RUNS[name]
    paths = written_runs(tmp_path, make, 2, **fault)
    got = CliRunner().invoke(group, ["compare", *map(str, paths), "-o", str(tmp_path / "out")])
    assert got.exit_code == 1 and f"The error begins at step 1, {sentence}\n" in got.output
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["begins"]["sentence"] == f"begins at step 1, {sentence}" and summary["peers"] == []
    found = [row for row in matrix_of(tmp_path / "out") if row["step"] == "1"]
    assert [row["origin"].replace("here", "") for row in found] == origins
    assert {row["verdict"] for row in matrix_of(tmp_path / "out") if row["step"] == "0"} == {"AGREES"}
    page = (tmp_path / "out/report.html").read_text()
    assert sentence in page and 'id="series"' in page and 'id="data"' not in page
    links = re.findall(r'href="(shards/[^"#]*)', page)
    assert len({*links}) == 2 * len(origins) and all((tmp_path / "out" / link).is_file() for link in links)
    one = (tmp_path / "out/shards/1-0.html").read_text()
    assert 'href="../report.html"' in one and 'href="0-0.html"' in one and 'id="data"' in one


def test_what_only_passes_on_is_no_suspect_that_only_the_table_has(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_summary, "MOST", 1)
    found = answer_of(npucmp.compare(*written_runs(tmp_path, parallel, wrong=6)))
    (section,) = found.sections
    passed = sum(root.cause.value == "PROPAGATED" for root in found.result.roots)
    assert passed > 3 and len(section.suspects.first) == 1
    assert section.unlisted == (0, passed - 3) and "more in roots.csv" not in terminal.render(found)  # 3 ranks have one
    piped = answer_of(npucmp.compare(*written_runs(tmp_path / "piped", pipeline, first=1.01)))
    assert piped.unlisted == 0 and piped.sections[0].unlisted[1] > 3  # most of which are of a rank that has no suspect


def test_a_rank_with_another_weight_is_told(tmp_path):
    paths = written_runs(tmp_path, parallel, stale=6)
    got = CliRunner().invoke(group, ["compare", *map(str, paths), "-o", str(tmp_path / "out")])
    told = "rank 6 has a different weight than rank 4 since step 0: Functional.linear.1.forward input:1; in"
    assert told in got.output and told in (tmp_path / "out/report.html").read_text()
    (odd,) = json.loads((tmp_path / "out/summary.json").read_text())["peers"]
    assert (odd["ranks"], odd["others"], odd["what"], odd["proven"]) == ([6], [4], "weight", True)


def test_pages_of_an_earlier_report_do_not_stay(tmp_path):
    paths, out = written_runs(tmp_path, pipeline, first=1.01), tmp_path / "out"
    npucmp.write_reports(npucmp.compare(*paths), out)
    (out / "shards/notes.txt").write_text("mine")
    assert (out / "matrix.csv").exists() and (out / "shards/0-1.html").exists()
    npucmp.write_reports(npucmp.compare(*paths, rank="0"), out)
    assert not (out / "matrix.csv").exists() and [file.name for file in (out / "shards").iterdir()] == ["notes.txt"]


def test_names_of_dumps_stay_names():
    bad = '</a><script>alert("\u202e")</script>'
    cells = [born(0, 0, bad), reached(0, 1, bad), cell(0, 2, "UNREADABLE", because=bad)]
    begin = begin_of(cells)
    words = matrix_data(Matrix(cells, begin.sentence, (0, 0), [bad], ["0-0"]))
    assert bad in words["sentence"] and [one["link"] for one in words["lines"][0][1]] == ["shards/0-0.html", "", ""]


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


def test_a_hostile_name_runs_nowhere(hostile):
    assert hostile.matrix.sentence.count("<script>") == 1
    pages = html.render(hostile)
    assert [*pages] == ["report.html", "shards/0-0.html", "shards/0-1.html"]
    assert not [name for name, page in pages.items() if b"<script>alert" in page or b"\x1b" in page]
    shown = terminal.render(hostile)
    assert "\x1b" not in shown and "\\x1b[31m" in shown


def test_colour_only_where_it_is_on(hostile):
    plain, coloured = terminal.render(hostile), terminal.render(hostile, paint=terminal.colours(True))
    assert "step 0  1X\n" in plain and "step 0  \x1b[1;31m1\x1b[0m\x1b[1;31mX\x1b[0m\n" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


def test_as_wide_as_the_terminal(hostile):
    cells = [cell(0, rank) for rank in range(8192)]
    wide = replace(hostile, matrix=Matrix(cells))
    lines = terminal.render(wide, width=60).splitlines()
    (line,) = (line for line in lines if line.startswith("step 0  "))
    assert 50 < len(line) <= 60 and any("up to 161 ranks" in line for line in lines)


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
