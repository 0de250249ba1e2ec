"""Comparisons in shards say what comparisons in one process say, whoever works."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import npucmp
from npucmp.errors import UsageError
from npucmp.measure.executor import Processes, Serial
from npucmp.model import Apart
from npucmp.workflows import shard, shards
from npucmp.workflows.options import Options
from npucmp.workflows.shards import compared_in_shards
from tests.localise.test_ranks import collective, pipeline
from tests.reports import screen
from tests.synthetic import with_statistics, write_run


def told(report):
    """All that is said of shards; NaN is NaN."""
    every = [(one.step, one.rank, [repr(finding) for finding in one.findings], [*map(repr, one.roots)], one.notes,
              one.matched, one.alone, one.incomplete) for one in report.comparisons]  # fmt: skip
    unpaired = [(side, run.path, run.step, run.rank) for side, run in report.unpaired]  # which nobody has to open
    return every, report.notes, report.rules, report.bytes_read, unpaired, report.broken, report.exit_status


def written(folder, make, steps=2, **fault):
    for step in range(steps):
        for rank, operators in enumerate(make(**(fault if step else {}))):
            write_run(folder, operators, step, rank)
    return folder


SUM = "Distributed.all_reduce.0.forward"
MAKERS = {"pipeline": (pipeline, {"first": 1.01}), "sum": (lambda **more: collective(SUM, **more), {"wrong": 0.01})}
CREWS = {"this process": Serial, "two workers": lambda: Processes(2), "apart": lambda: Processes(1, apart=True)}


@pytest.fixture(params=MAKERS)
def dumps(request, tmp_path):
    make, fault = MAKERS[request.param]
    return written(tmp_path / "target", make, **fault), written(tmp_path / "golden", make)


@pytest.mark.parametrize("crew", CREWS)
def test_the_same_as_in_one_process(dumps, crew):
    assert told(compared_in_shards(*dumps, Options(executor=CREWS[crew]()))) == told(
        npucmp.compare(*dumps, precheck=False)
    )


SAMPLES = sorted(Path(__file__).parents[2].glob("sample_dumps/msprobe_*"))


@pytest.mark.parametrize("sample", SAMPLES, ids=[one.name for one in SAMPLES])
def test_the_same_of_samples(sample):
    paths = sample / "target", sample / "golden"
    assert told(compared_in_shards(*paths, Options(executor=Serial()))) == told(npucmp.compare(*paths, precheck=False))


@pytest.mark.parametrize("held", [0, 1000])
def test_the_same_of_statistics(dumps, monkeypatch, held):
    monkeypatch.setattr(shards, "HELD", held)
    paths = [with_statistics(path, alone=True) for path in dumps]
    assert told(compared_in_shards(*paths, Options())) == told(npucmp.compare(*paths, precheck=False))


@pytest.mark.parametrize(
    "options",
    [
        {"include": ("*linear*",)},
        {"include": ("*nothing*", "*linear*"), "skip_rules": ("growth",)},
        {"step": "1", "rank": "0-1"},
        {"pair": ("step1=step0",)},
        {"rtol": 1e-3},
    ],
)
def test_the_same_with_options(dumps, options):
    found = compared_in_shards(*dumps, Options(executor=Serial(), **options))
    assert told(found) == told(npucmp.compare(*dumps, precheck=False, **options))


def test_what_is_in_no_shard_is_an_error(dumps):
    with pytest.raises(UsageError, match="no operator fits"):
        compared_in_shards(*dumps, Options(include=("*nothing*",), executor=Serial()))


def test_a_broken_run_and_one_without_partner_are_told(dumps):
    target, golden = dumps
    (target / "step0/rank1/dump.json").write_text("{")
    (golden / "step1/rank0").rename(golden / "step1/rank7")
    found, known = (compared_in_shards(*dumps, Options(executor=Serial())), npucmp.compare(*dumps, precheck=False))
    assert [side for side, _ in found.broken] == [side for side, _ in known.broken] == ["target"]
    assert told(found)[0] == told(known)[0]


def test_a_worker_that_dies_costs_its_shard(dumps, monkeypatch):
    opened = shard.open_head

    def deadly(head, context):
        return os._exit(9) if (head.step, head.rank) == (0, 1) else opened(head, context)

    monkeypatch.setattr(shard, "open_head", deadly)
    found = compared_in_shards(*dumps, Options(executor=Processes(2, apart=True)))
    assert ["reading it ended the process: status 9" in run.problem for _, run in found.broken] == [True]
    assert [(one.step, one.rank) for one in found.comparisons] == [(0, 0), (1, 0), (1, 1)]


def files_of(folder):
    """What a report holds, but for what tells the time or the command."""
    found = {one.name: one.read_bytes() for one in folder.iterdir() if not one.name.startswith(".")}
    found.pop("report.html")
    summary = json.loads(found.pop("summary.json"))
    return found, {key: value for key, value in summary.items() if key not in ("seconds", "argv")}


@pytest.mark.parametrize("crew", CREWS)
def test_reports_are_those_of_one_process(dumps, tmp_path, crew):
    apart = npucmp.compare(*dumps, executor=CREWS[crew]())
    at_once = npucmp.compare(*dumps)
    assert isinstance(apart.comparisons, Apart) and not isinstance(at_once.comparisons, Apart)
    for report, folder in ((apart, "apart"), (at_once, "at once")):
        npucmp.write_reports(report, tmp_path / folder)
    assert files_of(tmp_path / "apart") == files_of(tmp_path / "at once")
    without_time = [screen(replace(one, seconds=0.0)) for one in (apart, at_once)]
    assert without_time[0] == without_time[1]


def test_nothing_is_left_behind(dumps):
    found = compared_in_shards(*dumps, Options(executor=Serial()))
    folder = found.comparisons.folder
    names = sorted(os.listdir(folder))
    assert names and names == [name for name in names if name.endswith((".judged", ".updates", ".walked"))]
    del found
    assert not os.path.exists(folder)


def test_no_run_is_read_by_the_parent(dumps, monkeypatch):
    parent, opened = os.getpid(), shard.open_head
    monkeypatch.setattr(
        shard, "open_head", lambda *given: pytest.fail("read") if os.getpid() == parent else opened(*given)
    )
    assert len(compared_in_shards(*dumps, Options(executor=Processes(2, apart=True))).comparisons) == 4
