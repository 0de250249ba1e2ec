"""Runs that are still going: a thread writes a dump, step by step, while check or compare follows it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.errors import DumpError, UsageError
from tests.health.craft import Training
from tests.synthetic import chain, write_run

TIMES = {"settle": 0.1, "idle": 0.7, "timeout": 0.8}  # of a dump that a thread writes
STILL = {"settle": 0.05, "idle": 0.1, "timeout": 0.0}  # of a dump that nothing writes
WORDS = [word for name, value in STILL.items() for word in (f"--{name}", str(value))]
PAUSE = 0.05


def copy_slowly(source: Path, goal: Path, pause: float = 0.0, order=sorted, stop=lambda file: False) -> None:
    """Copy a finished dump file by file, steps in order and records last, as msprobe writes them, in two pieces."""
    files = order(source.rglob("*"), key=lambda one: (one.relative_to(source).parts[0], one.suffix == ".json", one))
    for file in files:
        if file.is_dir():
            continue
        to = goal / file.relative_to(source)
        if stop(to):
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        cut = len(data) // 2 if file.suffix == ".json" else len(data)
        with to.open("wb") as out:
            out.write(data[:cut])
            out.flush()
            time.sleep(pause)
            out.write(data[cut:])


class Run:
    """A thread that executes the parts of a training one after the other, with pauses between them."""

    def __init__(self, *parts, pause=PAUSE):
        self.thread = threading.Thread(target=self._run, args=(parts, pause))

    def _run(self, parts, pause):
        for part in parts:
            part()
            time.sleep(pause)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()


def training(folder: Path, steps=3, ranks=(0,), **more) -> Path:
    for rank in ranks:
        Training(steps=steps, layers=1, **more).write(folder, rank=rank)
    return folder


def broken_training(folder: Path, at: int, steps=4) -> Path:
    """A training whose weight is not finite from step `at` on."""
    run = Training(steps=steps, layers=2)
    for step in range(at, steps):
        run.weights["layers.1.weight"][step] = np.full_like(run.weights["layers.1.weight"][step], np.nan)
    return run.write(folder)


def rows(symptoms):
    return sorted((one.rule, one.severity, one.step, one.rank, one.where, one.because) for one in symptoms)


def test_the_result_is_that_of_a_check_of_the_whole_dump(tmp_path):
    source, dump, seen = broken_training(tmp_path / "source", 2), tmp_path / "dump", []
    with Run(lambda: time.sleep(0.1), lambda: copy_slowly(source, dump, 0.001)):
        found = npucmp.follow_check(dump, found=seen.append, **TIMES)
    whole = npucmp.check(dump)
    assert rows(found.symptoms) == rows(whole.symptoms) and found.decisions == whole.decisions
    assert found.parameters == whole.parameters and found.exit_status == whole.exit_status == 1
    assert [one.step for one in seen] == [0, 1, 2, 3]
    assert not seen[0].symptoms and not seen[1].symptoms
    assert ("weight.nonfinite", 2) in {(one.rule, one.step) for one in seen[2].symptoms}


def test_values_of_earlier_steps_are_not_read_again(tmp_path, monkeypatch):
    """Only parameters and gradients of the step before a new one are, since rules of updates compare values."""
    from npucmp.health import gather

    dump, read = training(tmp_path / "dump", steps=4), []
    plain = gather.work_through

    def noted(works, *more):
        read.append(sorted({Path(one.payload.path if one.payload else one.file).parts[-4] for work in works
                            for one in work.tensors if one.payload or one.file}))  # fmt: skip
        return plain(works, *more)

    monkeypatch.setattr(gather, "work_through", noted)
    npucmp.follow_check(dump, **STILL)
    assert read == [["step0"], ["step0", "step1"], ["step1", "step2"], ["step2", "step3"]]


@pytest.mark.large
def test_findings_of_dropped_steps_stay(tmp_path, monkeypatch):
    from npucmp.follow import check as follow_check

    monkeypatch.setattr(follow_check, "FIRST", 1)
    monkeypatch.setattr(follow_check, "KEPT", 3)
    run = Training(steps=7, layers=2)
    run.gradients["layers.0.weight"][2] = np.full_like(run.gradients["layers.0.weight"][2], np.nan)
    run.weights["layers.0.weight"] = [np.nan_to_num(one) for one in run.weights["layers.0.weight"]]
    found = npucmp.follow_check(run.write(tmp_path / "dump"), **STILL)
    assert ("grad.nonfinite", 2) in {(one.rule, one.step) for one in found.symptoms}
    assert {one.step for one in found.runs} == {0, 5, 6} and any("4 others" in note for note in found.notes)


def test_until_ends_at_once_with_the_status(tmp_path):
    source, dump = broken_training(tmp_path / "source", 1, steps=3), tmp_path / "dump"
    copy_slowly(source, dump)
    started = time.monotonic()
    words = [
        "check",
        "--follow",
        str(dump),
        "--until",
        "weight.*",
        "-o",
        str(tmp_path / "out"),
        *WORDS,
        "--timeout",
        "9",
    ]
    got = CliRunner().invoke(group, words)
    assert got.exit_code == 1 and time.monotonic() - started < 5
    lines = got.output.splitlines()
    assert lines[0].startswith("step 1  ERROR    weight.nonfinite  rank 0  layers.1.weight")
    assert lines[-2].startswith("UNHEALTHY: ") and "--until weight.* was met" in got.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["exit_status"] == 1 and summary["seconds"] < 5


def test_until_a_hint_is_status_1(tmp_path):
    """A rule that the user names ends with 1 although its severity alone would not."""
    run = Training(steps=2, layers=2)
    run.frozen.add("layers.0.weight")
    dump = run.write(tmp_path / "dump")
    assert npucmp.check(dump).exit_status == 0
    assert npucmp.follow_check(dump, until="weight.frozen", **STILL).exit_status == 1
    assert npucmp.follow_check(dump, until="error", **STILL).exit_status == 0


@pytest.mark.parametrize(("command", "word"), [("check", "weihgt.*"), ("compare", "DIVERGE")])
def test_a_word_that_nothing_meets_is_refused_at_once(tmp_path, command, word):
    dumps = [str(tmp_path / name) for name in ("a", "b")][: 1 if command == "check" else 2]
    got = CliRunner().invoke(group, [command, "--follow", *dumps, "--until", word])
    assert isinstance(got.exception, UsageError) and word in str(got.exception)
    got = CliRunner().invoke(group, [command, *dumps, "--until", "error"])
    assert isinstance(got.exception, UsageError) and "--until needs --follow" in str(got.exception)


def test_json_lines(tmp_path):
    dump = broken_training(tmp_path / "dump", 1, steps=2)
    got = CliRunner().invoke(group, ["check", "--follow", "--json", str(dump), *WORDS])
    events = [json.loads(line) for line in got.output.splitlines()]
    assert [one["event"] for one in events if one["event"] != "finding"] == ["step", "step", "end"]
    first = next(one for one in events if one["event"] == "finding")
    assert (first["found_in"], first["rule"], first["severity"]) == (1, "weight.nonfinite", "error")
    assert events[-1]["exit_status"] == got.exit_code == 1 and events[-1]["command"] == "check"


def test_a_dump_that_does_not_exist(tmp_path):
    with pytest.raises(DumpError, match=r"does not exist after 0\.1 seconds"):
        npucmp.follow_check(tmp_path / "none", settle=0.1, timeout=0.1)
    with pytest.raises(DumpError, match="none: does not exist"):
        npucmp.follow_compare(training(tmp_path / "dump"), tmp_path / "none", settle=0.1, timeout=0.1)


def test_a_record_that_is_not_whole_is_never_read(tmp_path):
    """The writer is killed in the middle of the last dump.json: the other steps count, but not as healthy."""
    source, dump, seen = training(tmp_path / "source"), tmp_path / "dump", []
    copy_slowly(source, dump)
    record = dump / "step2" / "rank0" / "dump.json"
    record.write_bytes(record.read_bytes()[:-40])
    found = npucmp.follow_check(dump, found=seen.append, **STILL)
    assert [one.step for one in seen] == [0, 1] and found.exit_status == 2
    assert "step 2 was not complete" in found.broken[0][1].problem and "not complete JSON" in found.broken[0][1].problem


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["tensors without a record", "no stack.json", "half of the operators"])
def test_a_writer_that_is_killed_within_the_last_step(tmp_path, what):
    dump, seen = training(tmp_path / "dump"), []
    place = dump / "step2" / "rank0"
    for step in range(3):
        (dump / f"step{step}" / "rank0" / "stack.json").write_text("{}")
    if what == "tensors without a record":
        (place / "dump.json").unlink()
    elif what == "no stack.json":
        (place / "stack.json").unlink()
    else:
        record = json.loads((place / "dump.json").read_text())
        record["data"] = dict([*record["data"].items()][: len(record["data"]) // 2])
        (place / "dump.json").write_text(json.dumps(record))
    found = npucmp.follow_check(dump, found=seen.append, **STILL)
    assert [one.step for one in seen] == [0, 1] and found.exit_status == 2


def test_a_rank_that_lags(tmp_path):
    source, dump, seen = training(tmp_path / "source", ranks=(0, 1)), tmp_path / "dump", []
    late = source / "step1" / "rank1"
    late.rename(tmp_path / "late")
    copy_slowly(source, dump)
    parts = [lambda: time.sleep(0.4), lambda: copy_slowly(tmp_path / "late", dump / "step1" / "rank1")]
    with Run(*parts):
        found = npucmp.follow_check(dump, found=seen.append, **TIMES)
    assert {(one.step, one.rank) for one in found.runs} == {(step, rank) for step in range(3) for rank in (0, 1)}
    assert sorted(one.step for one in seen) == [0, 1, 2] and not any(one.again for one in seen)


def test_a_rank_that_never_comes(tmp_path):
    dump = training(tmp_path / "dump", ranks=(0, 1))
    shutil.rmtree(dump / "step2" / "rank1")
    found = npucmp.follow_check(dump, **STILL)
    assert not found.is_decided and "rank 1 has no files of it" in found.broken[0][1].problem


def test_ranks_that_are_steps_ahead(tmp_path):
    """Rank 1 still writes step 0; no later step of rank 0 is complete."""
    dump, seen = training(tmp_path / "dump", steps=4, ranks=(0, 1)), []
    for step in (1, 2, 3):
        shutil.rmtree(dump / f"step{step}" / "rank1")
    found = npucmp.follow_check(dump, found=seen.append, **STILL)
    assert [one.step for one in seen] == [0] and not found.is_decided
    assert {run.step for _, run in found.broken} == {1, 2, 3}


def test_a_step_that_changes_after_it_was_read_is_read_again(tmp_path):
    source, dump, seen = broken_training(tmp_path / "source", 0, steps=2), tmp_path / "dump", []
    training(dump, steps=2)

    def change(found):
        seen.append(found)
        if len(seen) == 2:
            shutil.copytree(source, dump, dirs_exist_ok=True)

    found = npucmp.follow_check(dump, found=change, **STILL)
    assert [(one.step, one.again) for one in seen] == [(0, False), (1, False), (0, True), (1, True)]
    assert rows(found.symptoms) == rows(npucmp.check(dump).symptoms) and found.exit_status == 1


@pytest.mark.large
def test_steps_that_are_removed_after_they_were_read(tmp_path):
    """A training with a full disk removes old steps; their facts stay."""
    dump, seen = training(tmp_path / "dump"), []

    def remove(found):
        seen.append(found.step)
        if found.step == 1:
            shutil.rmtree(dump / "step0")

    found = npucmp.follow_check(dump, found=remove, **STILL)
    assert seen == [0, 1, 2] and found.exit_status == 0 and len(found.runs) == 3


def npy_steps(folder: Path, steps=3, factor=lambda step: 1.0, seed=0) -> Path:
    for step in range(steps):
        values = np.random.default_rng(step).normal(size=(4, 8)).astype("float32")
        (folder / f"step{step}").mkdir(parents=True)
        for name in ("a", "b", "c"):
            values = np.tanh(values) * np.float32(factor(step) if name == "b" else 1.0)
            np.save(folder / f"step{step}" / f"{name}.npy", values)
    return folder


def test_npy_folders_are_compared_step_by_step(tmp_path):
    golden = npy_steps(tmp_path / "golden")
    source = npy_steps(tmp_path / "source", factor=lambda step: 1.1 if step == 2 else 1.0)
    target, seen = tmp_path / "target", []
    with Run(lambda: copy_slowly(source, target, 0.02)):
        found = npucmp.follow_compare(target, golden, found=seen.append, **TIMES)
    assert [(one.step, one.report.verdict) for one in seen] == [(0, "AGREES"), (1, "AGREES"), (2, "DIVERGED")]
    plain = npucmp.compare(target, golden)
    assert found.exit_status == plain.exit_status == 1 and found.tally.verdicts == plain.tally.verdicts
    assert [str(one) for one in found.roots] == [str(one) for one in plain.roots]


def test_compare_until_diverged(tmp_path):
    for step in range(3):
        write_run(tmp_path / "golden", chain(steps=3), step=step)
        write_run(tmp_path / "target", chain({1: 1.05} if step else {}, steps=3), step=step)
    words = ["compare", "--follow", str(tmp_path / "target"), str(tmp_path / "golden"), "--until", "diverged", *WORDS]
    got = CliRunner().invoke(group, [*words, "-o", str(tmp_path / "out")])
    lines = got.output.splitlines()
    assert got.exit_code == 1 and lines[0].startswith("step 0  AGREES: ")
    assert lines[1].startswith("step 1  DIVERGED: ") and lines[2].startswith("step 1  BORN       Functional.linear.1")
    assert "step 2" not in got.output and "--until diverged was met" in got.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["exit_status"] == 1 and not [*(tmp_path / "out").glob(".npucmp-*")]


def test_the_only_step_of_a_target(tmp_path):
    """It is complete once it rests and has all tensors of the golden; a part of it is not read before --timeout."""
    golden, target, seen = npy_steps(tmp_path / "golden", steps=1), tmp_path / "target", []
    late = golden / "step0" / "c.npy"
    copy_slowly(golden, target, stop=lambda file: file.name == late.name)
    with Run(lambda: time.sleep(0.5), lambda: shutil.copy(late, target / "step0")):
        times = {"settle": 0.05, "idle": 0.2, "timeout": 1.0}
        found = npucmp.follow_compare(target, golden, found=seen.append, **times)
    assert found.exit_status == 0 and [one.again for one in seen] == [False]


@pytest.mark.large
def test_golden_steps_that_the_target_never_writes_are_not_covered(tmp_path):
    golden, target = npy_steps(tmp_path / "golden"), npy_steps(tmp_path / "target", steps=2)
    found = npucmp.follow_compare(target, golden, **STILL)
    assert found.exit_status == 2 and [run.step for _, run in found.unpaired] == [2]
    found = npucmp.follow_compare(target, golden, step="0-1", **STILL)
    assert found.exit_status == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("both", [False, True])
def test_a_step_that_differs_and_is_removed_later(tmp_path, both):
    golden = npy_steps(tmp_path / "golden")
    target = npy_steps(tmp_path / "target", factor=lambda step: 1.1 if step == 0 else 1.0)

    def remove(found):
        if found.step == 1:
            for side in (target, golden)[: 1 + both]:
                shutil.rmtree(side / "step0")

    found = npucmp.follow_compare(target, golden, found=remove, **STILL)
    assert found.exit_status == 1 and found.broken[0][1].step == 0 and found.roots[0].pair.operator.name == "b"


@pytest.mark.large
def test_both_sides_are_measured_once(tmp_path, monkeypatch):
    from npucmp.workflows import rank_tasks

    golden, target, measured = npy_steps(tmp_path / "golden"), npy_steps(tmp_path / "target"), []
    plain = rank_tasks.measure_pairs

    def noted(pairs, *more):
        measured.extend(Path(pair.target.file).parts[-2:] for pair in pairs)
        return plain(pairs, *more)

    monkeypatch.setattr(rank_tasks, "measure_pairs", noted)
    assert npucmp.follow_compare(target, golden, **STILL).exit_status == 0
    assert sorted(measured) == [(f"step{step}", f"{name}.npy") for step in range(3) for name in "abc"]


def test_an_interrupt_keeps_what_was_found(tmp_path):
    """Ctrl-C while it waits for the next step: the report is written, with status 130."""
    dump, out = broken_training(tmp_path / "dump", 0, steps=3), tmp_path / "out"
    words = ["check", "--follow", str(dump), "-o", str(out), "--settle", "0.1", "--idle", "60"]
    command = [sys.executable, "-c", "from npucmp.cli import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("step 0  ERROR    weight.nonfinite")  # arrives before the end
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "PARTIAL: interrupted; " in rest
    summary = json.loads((out / "summary.json").read_text())
    assert summary["partial"] and summary["exit_status"] == 130 and summary["first"]


def test_an_interrupt_of_a_comparison(tmp_path):
    golden, target = npy_steps(tmp_path / "golden"), npy_steps(tmp_path / "target")

    def interrupt(found):
        if found.step == 1:
            raise KeyboardInterrupt

    found = npucmp.follow_compare(target, golden, found=interrupt, **STILL)
    assert found.exit_status == 130 and len(found.comparisons) == 2


@pytest.mark.large
@pytest.mark.parametrize("seed", [0, 1])
def test_no_step_is_read_half(tmp_path, seed):
    assert_whole(tmp_path, seed)


def assert_whole(folder: Path, seed: int) -> None:
    """A training of one or two ranks writes with random pauses; each step is read once, whole, as a check of the
    finished dump reads it."""
    draw = random.Random(seed)
    ranks = (0, 1)[: draw.choice([1, 2])]
    source, dump, read = training(folder / "source", steps=draw.choice([3, 4]), ranks=ranks), folder / "dump", []

    def written(rank):
        for step in sorted(source.iterdir()):
            time.sleep(draw.random() * 0.1)
            copy_slowly(step / f"rank{rank}", dump / step.name / f"rank{rank}", draw.random() * 0.004)

    threads = [threading.Thread(target=written, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    found = npucmp.follow_check(dump, found=read.append, **TIMES)
    for thread in threads:
        thread.join()
    whole = npucmp.check(source)
    assert [one.again for one in read] == [False] * len(read) and len(read) == len({one.step for one in read})
    assert rows(found.symptoms) == rows(whole.symptoms) and found.tensors == whole.tensors
