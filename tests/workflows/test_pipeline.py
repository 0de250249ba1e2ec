"""Comparisons in shards say what comparisons in one process say, whoever works."""

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import npucmp
from npucmp import cli
from npucmp.cli import npucmp as command
from npucmp.errors import UsageError
from npucmp.measure import checkpoint
from npucmp.measure.executor import Processes, Serial
from npucmp.report import parquet as report_parquet
from npucmp.report.files import ConcatFile
from npucmp.workflows import rank_tasks, task_choice
from tests.localise.test_root_order import collective
from tests.localise.test_root_order import pipeline as two_stages
from tests.reports import screen
from tests.synthetic import write_run


def told(report):
    """All that is said of shards; NaN is NaN."""
    every = [(one.step, one.rank, [repr(finding) for finding in one.findings], [*map(repr, one.roots)], one.notes,
              one.matched, one.alone, one.incomplete) for one in report.comparisons]  # fmt: skip
    unpaired = [(side, run.path, run.step, run.rank) for side, run in report.unpaired]  # which nobody has to open
    return every, report.notes, report.rules, report.bytes_read, unpaired, report.broken, report.exit_status


def compared_apart(target, golden, executor=None, **options):
    """A comparison in which each step and rank is a task of its own."""
    return npucmp.compare(target, golden, executor=executor or Serial(), precheck=False, **options)


def written(folder, make, steps=2, **fault):
    for step in range(steps):
        for rank, operators in enumerate(make(**(fault if step else {}))):
            write_run(folder, operators, step, rank)
    return folder


SUM = "Distributed.all_reduce.0.forward"
MAKERS = {"pipeline": (two_stages, {"first": 1.01}), "sum": (lambda **more: collective(SUM, **more), {"wrong": 0.01})}


@pytest.fixture(params=MAKERS)
def dumps(request, tmp_path):
    make, fault = MAKERS[request.param]
    return written(tmp_path / "target", make, **fault), written(tmp_path / "golden", make)


SAMPLES = sorted(Path(__file__).parents[2].glob("sample_dumps/msprobe_*"))


@pytest.mark.parametrize("words", [("also", "x"), ("graph", "x"), ("replay", "all"), ("format", "cann")])
def test_what_is_of_all_runs_together_is_not_handed_out(dumps, words):
    dump = SAMPLES[0].parent / "cann_clean/target"
    paths = (dump, dump) if words[0] == "format" else dumps
    with pytest.raises(UsageError, match=r"^--scheduler: .* belongs to all steps and ranks"):
        npucmp.compare(*paths, executor=Serial(), **dict([words]))


def test_who_hands_out_says_where_shards_lie(dumps):
    got = CliRunner().invoke(command, ["compare", *map(str, dumps), "--scheduler", "tcp://127.0.0.1:1"])
    assert isinstance(got.exception, UsageError) and "--scheduler needs -o DIR" in str(got.exception)


def test_a_broken_run_and_one_without_partner_are_told(dumps):
    target, golden = dumps
    (target / "step0/rank1/dump.json").write_text("{")
    (golden / "step1/rank0").rename(golden / "step1/rank7")
    found, known = (compared_apart(*dumps), npucmp.compare(*dumps, precheck=False))
    assert [side for side, _ in found.broken] == [side for side, _ in known.broken] == ["target"]
    assert told(found)[0] == told(known)[0]


def test_a_rank_of_another_network_costs_itself(dumps):
    """Its reason is told, and all of the rest is compared; alone it is an error."""
    for side, name in zip(dumps, ("linear", "bmm")):
        record = {"output": [{"type": "mindspore.Tensor", "dtype": "float32", "shape": [len(name)]}]}
        data = {f"Torch.{name}.{number}.forward": record for number in range(3)}
        (side / "step0/rank1/dump.json").write_text(json.dumps({"task": "tensor", "data": data}))
    found, known = compared_apart(*dumps), npucmp.compare(*dumps, precheck=False)
    assert [bool(one.findings) for one in found.comparisons] == [True] * 4 and told(found)[0] == told(known)[0]
    for report in (found, known):
        assert [1 for note in report.notes if "step0/rank1" in note and "look like different networks" in note] == [1]
    for executor in (None, Serial()):
        with pytest.raises(UsageError, match="look like different networks"):
            npucmp.compare(*dumps, step=0, rank=1, executor=executor)


def test_a_worker_that_dies_costs_its_shard(dumps, monkeypatch):
    opened = rank_tasks.open_head

    def deadly(head, context):
        return os._exit(9) if (head.step, head.rank) == (0, 1) else opened(head, context)

    monkeypatch.setattr(rank_tasks, "open_head", deadly)
    found = compared_apart(*dumps, Processes(2, isolated=True))
    assert ["reading it ended the process: status 9" in run.problem for _, run in found.broken] == [True]
    assert [(one.step, one.rank) for one in found.comparisons] == [(0, 0), (1, 0), (1, 1)]


def files_of(folder):
    """What a report holds, pages of shards too, but for the time that each took."""
    found = {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    with open(folder / "matrix.csv") as file:
        found["matrix.csv"] = [{**row, "seconds": ""} for row in csv.DictReader(file)]
    return found


def compared_by_command(monkeypatch, dumps, out, *more):
    """What `npucmp compare` in shards of two workers exits with."""
    monkeypatch.setattr(task_choice, "SMALL", 0)
    monkeypatch.setattr(sys, "argv", ["npucmp", "compare", *map(str, dumps), "-o", str(out), "--jobs", "2", *more])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.fixture
def pipelined(tmp_path):
    return written(tmp_path / "target", two_stages, first=1.01), written(tmp_path / "golden", two_stages)


@pytest.mark.large
def test_parts_are_the_rows_of_each_step_and_rank(pipelined, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert compared_by_command(monkeypatch, pipelined, out) == 1
    head, *rows = (out / "tensors.csv").read_text().splitlines()
    assert compared_by_command(monkeypatch, pipelined, out, "--parts") == 1
    found = sorted(file.name for file in out.glob("tensors*"))
    assert found == [f"tensors-{step}-{rank}.csv" for step in (0, 1) for rank in (0, 1)]
    parts = [(out / name).read_text().splitlines() for name in found]
    assert all(part[0] == head for part in parts)
    assert [row for part in parts for row in part[1:]] == rows
    assert compared_by_command(monkeypatch, pipelined, out) == 1
    assert [file.name for file in out.glob("tensors*")] == ["tensors.csv"]
    capsys.readouterr()


def test_parquet_holds_what_csv_does(pipelined, tmp_path, monkeypatch, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    compared_by_command(monkeypatch, pipelined, tmp_path / "csv")
    compared_by_command(monkeypatch, pipelined, tmp_path / "out", "--parquet", "--parts")
    with open(tmp_path / "csv/tensors.csv") as file:
        rows = [*csv.DictReader(file)]
    files = sorted((tmp_path / "out").glob("tensors*"))
    assert [file.name for file in files] == [f"tensors-{step}-{rank}.parquet" for step in (0, 1) for rank in (0, 1)]
    found = [row for file in files for row in parquet.read_table(file).to_pylist()]
    assert len(found) == len(rows)
    for row, cells in zip(rows, found):
        for name, cell in cells.items():
            said = float(row[name]) if isinstance(cell, float) else row[name]
            assert str(said) == ("" if cell is None else str(cell)), name
    capsys.readouterr()


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_blocks_are_whole_lines_wherever_pieces_end(monkeypatch, size):
    monkeypatch.setattr(report_parquet, "BLOCK", 10)
    lines = [b"a,b\n", b"1,2\n", b"3,4\n", b"5,long one\n", b"6,\n", b"7,8\n"]
    data = b"".join(lines)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [*report_parquet._blocks(pieces)] == [b"1,2\n3,4\n", b"5,long one\n", b"6,\n7,8\n"]
    assert [*report_parquet._blocks([lines[0]])] == []


def test_a_row_of_any_length_becomes_parquet(tmp_path):
    """The name of an operator is the dump's."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [["0", "a" * (3 * report_parquet.BLOCK), "nan"], ["1", "", ""], ["2", "b", "1e-3"]]
    lines = ConcatFile([b"step,op,rel_l2\n", *(",".join(row).encode() + b"\n" for row in rows)])
    with open(tmp_path / "out", "wb") as file:
        report_parquet.ParquetFile(("step", "op", "rel_l2"), lines).write_to(file)
    found = parquet.read_table(tmp_path / "out").to_pydict()
    assert found["step"] == [0, 1, 2] and found["op"] == [rows[0][1], None, "b"]
    assert repr(found["rel_l2"]) == "[nan, None, 0.001]"


@pytest.mark.parametrize("option", ["--parts", "--parquet"])
def test_files_need_a_folder(monkeypatch, capsys, option):
    monkeypatch.setattr(sys, "argv", ["npucmp", "compare", "a", "b", option])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and f"{option} needs -o DIR" in capsys.readouterr().err


class Stopping(Serial):
    """Ctrl-C after so many shards are measured."""

    def __init__(self, after):
        self.after = after

    def map(self, function, items, lost, weight=None):
        for number, one in enumerate(super().map(function, items, lost)):
            if items[0].function is rank_tasks.measure and number == self.after:
                raise KeyboardInterrupt
            yield one


@pytest.mark.parametrize("after", [0, 3])
def test_ctrl_c_keeps_what_was_measured_and_resume_does_not_read_it_again(pipelined, tmp_path, monkeypatch, after):
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    out, whole = tmp_path / "out", npucmp.compare(*pipelined, executor=Serial())
    stopped = npucmp.compare(*pipelined, executor=Stopping(after), journal=out)
    assert stopped.partial and stopped.exit_status == 130 and len(stopped.comparisons) == after
    words = f"interrupted: {after} of 4 steps and ranks were measured; the same command with --resume continues"
    assert words in screen(stopped) and screen(stopped).splitlines()[-1].startswith("PARTIAL: interrupted")
    npucmp.write_reports(stopped, out)
    monkeypatch.setattr(rank_tasks, "measure_pairs", noted := Noted(rank_tasks.measure_pairs))
    resumed = npucmp.compare(*pipelined, executor=Serial(), journal=out, resume=True)
    begun = after + 1  # one more was finished, nobody heard of it
    assert len(noted.pairs) == sum(len(one.findings) for one in [*whole.comparisons][begun:])
    for report, folder in ((resumed, "resumed"), (whole, "whole")):
        npucmp.write_reports(replace(report, seconds=0.0), tmp_path / folder)
    assert files_of(tmp_path / "resumed") == files_of(tmp_path / "whole")
    checkpoint.remove(out)
    assert not [*out.glob(f"{checkpoint.FILE}*")]


class Noted:
    """Measures, and keeps which pairs it was asked for."""

    def __init__(self, measure):
        self.measure, self.pairs = measure, []

    def __call__(self, pairs, *more):
        self.pairs += pairs
        return self.measure(pairs, *more)


@pytest.mark.parametrize("times", [1, 9])
def test_a_worker_that_is_lost_after_measuring_costs_time_or_its_shard(pipelined, tmp_path, monkeypatch, times):
    """Once: another one does it. Always: a row with its reason, the others are told."""
    search, deaths = rank_tasks.search, tmp_path / "deaths"

    def deadly(work, one, some, before):
        if (1, 1) in [(one.step, one.rank) for one in some] and (
            len(deaths.read_text()) if deaths.exists() else 0
        ) < times:
            with open(deaths, "a") as file:
                file.write("x")
            os._exit(9)
        return search(work, one, some, before)

    monkeypatch.setattr(rank_tasks, "search", deadly)
    found = npucmp.compare(*pipelined, executor=Processes(2, isolated=True), precheck=False)
    if times == 1:
        assert told(found) == told(npucmp.compare(*pipelined, precheck=False))
    else:
        assert [(one.step, one.rank) for one in found.comparisons] == [(0, 0), (0, 1), (1, 0)]
        assert ["judging it ended the process: status 9" in run.problem for _, run in found.broken] == [True]
        assert found.exit_status != 0


def test_a_shard_that_cannot_be_told_is_undecided(pipelined, tmp_path):
    class Dying(Serial):
        def map(self, function, items, lost, weight=None):
            for one in items:
                dead = one.function.__name__ == "part" and one.arguments[0].one.number == 2
                yield lost(one, "status 9") if dead else function(one)

    report = npucmp.compare(pipelined[1], pipelined[1], executor=Dying(), precheck=False)
    text = screen(report)
    assert not text.splitlines()[-1].startswith("AGREES")
    assert "step 1 rank 0: the process ended while it summarised the result: status 9" in text
    npucmp.write_reports(report, tmp_path)
    with open(tmp_path / "tensors.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    (row,) = [one for one in rows if one["verdict"] == "unreadable"]
    assert (row["step"], row["rank"]) == ("1", "0")
    assert "the process ended while it summarised the result: status 9" in row["because"]
    assert {("0", "0"), ("0", "1"), ("1", "1")} <= {(one["step"], one["rank"]) for one in rows}


def test_progress_ends_at_all_bytes(pipelined):
    seen = []
    npucmp.compare(*pipelined, executor=Serial(), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) == 4 and seen[-1][0] == seen[-1][1] > 0
