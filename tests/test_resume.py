"""Interrupted comparisons: the checkpoint, and a killed run that is resumed as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from npucmp import cli, open_runs, write_reports
from npucmp.align import align, pairs
from npucmp.errors import DumpError
from npucmp.measure import checkpoint
from npucmp.measure.checkpoint import FILE, Checkpoint
from npucmp.measure.pairs import measure_pairs
from npucmp.model import Measurement, Moments, Side, Statistics
from npucmp.model.table import ROW
from npucmp.workflows import compare as recipe
from npucmp.workflows import rank_tasks
from tests.synthetic import chain, write_run

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
TRIALS = int(os.environ.get("NPUCMP_KILLS", "8"))
TABLES = ("tensors.csv", "roots.csv")  # matrix.csv names the dumps by their paths
LEAST = 12  # tensors of a dump whose run is worth killing


def command(folder, *more):
    return ["compare", str(folder / "target"), str(folder / "golden"), "-o", str(folder / "out"), "-q", *map(str, more)]


def begun(folder):
    """Whether a comparison left a checkpoint of any step and rank."""
    return any((folder / "out").glob(f"{FILE}*"))


def run(words, prepare="pass", **more):
    start = f"sys.argv[1:] = {words!r}; from npucmp.cli import main; main()"
    code = f"import sys, npucmp.measure.checkpoint as c; {prepare}; {start}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **more)


def content(folder):
    """What a folder holds that a user sees; summary.json without what differs from run to run."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.name == "summary.json":
            summary = json.loads(file.read_text())
            del summary["seconds"], summary["argv"], summary["next"]
            found[name] = json.dumps(summary)
        elif file.suffix == ".html":
            found[name] = "<" in file.read_text(encoding="utf-8")  # holds seconds and argv too
        elif file.is_file() and ".npucmp-" not in name:
            found[name] = file.read_bytes()
    return found


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Two runs of two ranks that differ, and what comparing them without interruption writes."""
    folder = tmp_path_factory.mktemp("dump")
    for rank in (0, 1):
        write_run(folder / "target", chain({2: 1.05}, steps=12), rank=rank)
        write_run(folder / "golden", chain(noise=1e-7, steps=12), rank=rank)
    assert run(command(folder)).returncode == 1
    (folder / "out").rename(folder / "expected")
    return folder


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)


@pytest.fixture
def place(dump, tmp_path):
    for name in ("target", "golden"):
        (tmp_path / name).symlink_to(dump / name)
    return tmp_path


def forked(work, delay=None):
    """Runs work() in a child; kills it after a while. Returns its status, negative for a signal."""
    child = os.fork()
    if not child:
        status = 70
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work()
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(words, every=0.0):
    checkpoint.EVERY = every
    sys.argv[1:] = [*words, "--jobs", "1"]
    cli.main()


def check_killed(place, expected, old):
    """What a killed run may leave: the old report, the new one, or none; each file whole."""
    left = content(place / "out")
    for name in left:
        assert left[name] in (expected[name], old.get(name)), name
    if "summary.json" in left:
        assert left in (expected, old)


@pytest.mark.skipif(not hasattr(os, "waitstatus_to_exitcode"), reason="Python 3.9")
def test_killed_at_any_time_and_resumed(dump, place):
    """kill -9 at random moments, then --resume: byte-equal to a run that was left alone."""
    expected = content(dump / "expected")
    started = time.monotonic()
    assert forked(lambda: main(command(place))) == 1
    whole = time.monotonic() - started
    old = content(place / "out")
    chance = random.Random(5)
    kept = 0
    for trial in range(TRIALS):
        before = content(place / "out")
        if trial % 2:
            forked(lambda: main(command(place, "--resume")), chance.uniform(0, whole))
        else:
            tensors = chance.randrange(1, 20)
            status = forked(lambda count=tensors: killed_after(count, command(place, "--resume")))
            assert status == 1 or begun(place)
        check_killed(place, old, before)
        kept += begun(place)
        if chance.random() < 0.3:
            assert forked(lambda: main(command(place, "--resume"))) == 1
            assert content(place / "out") == old
            assert not begun(place)
            shutil.rmtree(place / "out")
    assert kept > TRIALS // 8
    assert expected.keys() == old.keys()
    assert all(expected[name] == old[name] for name in TABLES)


def killed_after(tensors, words):
    """kill -9 once so many tensors are in the checkpoint."""
    add = Checkpoint.add
    left = iter(range(tensors))

    def counted(self, measurement):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, measurement)

    Checkpoint.add = counted  # in a child alone
    main(words)


CALLS = ("open", "write", "fsync", "replace", "ftruncate", "unlink", "mkdir", "chmod", "close")


def killing(nth):
    """From here on the nth call of the system ends the process."""
    count = 0

    def counted(function):
        def call(*args, **more):
            nonlocal count
            count += 1
            if count == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **more)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


@pytest.mark.large
@pytest.mark.skipif(not hasattr(os, "waitstatus_to_exitcode"), reason="Python 3.9")
def test_killed_at_each_step_of_writing_the_report(tmp_path):
    """The report of a short run has the files of a long one."""
    place = tmp_path
    write_run(place / "target", chain({1: 1.05}, steps=2))
    write_run(place / "golden", chain(steps=2))
    reports = {
        "old": recipe.compare(place / "golden", place / "golden", jobs=1),
        "new": recipe.compare(place / "target", place / "golden", jobs=1),
    }
    for name, report in reports.items():
        write_reports(report, place / name)
    old, new = content(place / "old"), content(place / "new")
    assert old != new
    for nth in range(1, 300):
        write_reports(reports["old"], place / "out")
        status = forked(lambda nth=nth: (killing(nth), write_reports(reports["new"], place / "out"), os._exit(0)))
        left = content(place / "out")
        assert all(left[name] in (old[name], new[name]) for name in left)
        assert "summary.json" not in left or left in (old, new)
        if status == 0:
            break
    assert status == 0 and left == new and nth > 15


def interrupted(place, after, monkeypatch, *more):
    """A comparison that Ctrl-C ends after so many tensors; its exit status."""
    return stopped(command(place, *more), after, monkeypatch)


def stopped(words, after, monkeypatch):
    """The same of any command line; it ends by itself if it measures less."""
    add = Checkpoint.add
    left = iter(range(after))

    def counted(self, measurement):
        add(self, measurement)
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "add", counted)
    monkeypatch.setattr(sys, "argv", ["npucmp", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    monkeypatch.setattr(Checkpoint, "add", add)
    return end.value.code


def finished(place, monkeypatch, *more):
    monkeypatch.setattr(sys, "argv", ["npucmp", *command(place, *more)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


@pytest.fixture
def measured(monkeypatch):
    """The pairs that are measured."""
    seen = []

    def noted(pairs, *more):
        for measurement in measure_pairs(pairs, *more):
            seen.append(measurement.pair)
            yield measurement

    monkeypatch.setattr(rank_tasks, "measure_pairs", noted)
    return seen


@pytest.mark.few(2)
@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_ctrl_c_keeps_what_is_finished(dump, place, monkeypatch, measured, after):
    assert interrupted(place, after, monkeypatch) == 130
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert summary["partial"] and summary["exit_status"] == 130
    assert sum(summary["verdicts"].values()) == after + 1
    assert any("with --resume continues" in note for note in summary["notes"])
    measured.clear()
    assert finished(place, monkeypatch, "--resume") == 1
    assert len(measured) == 72 - after - 1
    expected, found = content(dump / "expected"), content(place / "out")
    assert [name for name in TABLES if expected[name] != found[name]] == []
    assert json.loads(found["summary.json"])["partial"] is False
    assert not begun(place)


def test_a_real_ctrl_c(place):
    """SIGINT from outside, in the middle of the measuring."""
    slow = "m.measure = lambda *a: (time.sleep(0.05), real(*a))[1]"
    slow = f"import npucmp.measure.pairs as m, time; real = m.measure; {slow}"
    code = f"import sys; {slow}; sys.argv[1:] = {command(place)!r}; from npucmp.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    for _ in range(400):
        if begun(place):
            break
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert json.loads((place / "out" / "summary.json").read_text())["partial"]
    assert begun(place)


@pytest.mark.parametrize("change", ["rtol", "include", "touch", "value", "limit"])
def test_a_checkpoint_of_something_else_is_not_used(dump, tmp_path, monkeypatch, measured, change):
    for name in ("target", "golden"):
        write_run(tmp_path / name, chain())
    interrupted(tmp_path, 9, monkeypatch)
    words = {"rtol": ["--rtol", "0.1"], "include": ["--include", "*.1.*"], "limit": ["--limit", "ndim=63"]}
    file = next((tmp_path / "target").rglob("*linear.0*output.0.npy"))
    if change == "touch":
        os.utime(file, ns=(1, 1))
    elif change == "value":
        np.save(file, np.load(file) + 1)
    measured.clear()
    finished(tmp_path, monkeypatch, "--resume", *words.get(change, []))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [note for note in summary["notes"] if "have changed" in note]
    assert len(measured) == sum(summary["verdicts"].values())


def test_without_resume_a_checkpoint_is_not_used(place, monkeypatch, measured):
    interrupted(place, 9, monkeypatch)
    measured.clear()
    finished(place, monkeypatch)
    assert len(measured) == 72


def test_resume_without_a_checkpoint_is_a_run_like_any_other(dump, place, monkeypatch):
    assert finished(place, monkeypatch, "--resume") == 1
    assert json.loads((place / "out" / "summary.json").read_text())["notes"] == []


def test_resume_needs_a_folder():
    got = run(["compare", "a", "b", "--resume"])
    assert got.returncode == 2 and "--resume needs -o DIR" in got.stderr


# --- the checkpoint


def pairs_of(name):
    left, right = (open_runs(SAMPLES / name / side) for side in ("target", "golden"))
    return [pair for one in zip(left, right) for pair in pairs(*one, align(*one, {}))]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [p.name for p in sorted(SAMPLES.iterdir()) if (p / "golden").is_dir()])
def test_measurements_are_kept_exactly(tmp_path, name):
    pairs = pairs_of(name)
    measured = list(measure_pairs(pairs))
    with Checkpoint(tmp_path, pairs, "", False) as one:
        for measurement in measured:
            one.add(measurement)
    with Checkpoint(tmp_path, pairs, "", True) as two:
        assert [repr(one) for one in two.known] == [repr(one) for one in measured]
        assert not two.note


def extreme(pair):
    """A measurement of what JSON does not have, and of numpy's own numbers."""
    numbers = [np.float32(0.1), float("nan"), float("-inf"), -0.0, 5e-324, np.float64(1 / 3)]
    side = Side(np.int64(3), 1, 2, *numbers[:4])
    moments = Moments(2**62, side, max_abs=numbers[4], xx=numbers[5], max_abs_exact=2**70)
    statistics = (Statistics(1.5, float("inf"), None, -0.0), None)
    return Measurement(pair, moments, 0.1, True, "\udcff\n", "ü", True, statistics, 7)


def test_extremes_are_kept(tmp_path):
    pairs = pairs_of("msprobe_clean")[:2]
    for pair in pairs:
        with Checkpoint(tmp_path, pairs, "", False) as one:
            one.add(extreme(pair))
        with Checkpoint(tmp_path, pairs, "", True) as two:
            (found,) = two.known
        left, right = (m._replace(pair=pair) for m in (found, extreme(pair)))
        plain = repr(right).replace("np.float32(0.1)", repr(float(np.float32(0.1))))
        plain = plain.replace("np.int64(3)", "3").replace(f"np.float64({1 / 3!r})", repr(1 / 3))
        assert repr(left) == plain


@pytest.fixture
def checkpoint_of_nine(tmp_path):
    pairs = pairs_of("msprobe_clean")[:9]
    with Checkpoint(tmp_path, pairs, "", False) as one:
        for measurement in measure_pairs(pairs):
            one.add(measurement)
    return pairs, tmp_path


@pytest.mark.large
def test_every_prefix_of_a_checkpoint_is_one(checkpoint_of_nine):
    pairs, folder = checkpoint_of_nine
    data = (folder / FILE).read_bytes()
    lengths = []
    for size in range(0, len(data) + 1, 11):
        (folder / FILE).write_bytes(data[:size])
        with Checkpoint(folder, pairs, "", True) as one:
            lengths.append(len(one.known))
            assert len(one.known) == max(0, sum(end <= size for end in ends(data)) - 1)
            for measurement in list(measure_pairs(pairs))[len(one.known) :] if size % 5 == 0 else ():
                one.add(measurement)
        if size % 5 == 0:
            assert (folder / FILE).read_bytes() == data  # the torn tail was cut off and written anew
    assert lengths == sorted(lengths)


def ends(data):
    """Where each block ends: a line with the CRC and the length, and as many bytes."""
    at = 0
    while at < len(data):
        line = data[at : data.index(b"\n", at) + 1]
        at += len(line) + int(line.split()[1])
        yield at


def test_no_flipped_bit_gets_through(checkpoint_of_nine):
    pairs, folder = checkpoint_of_nine
    data = (folder / FILE).read_bytes()
    measured = [repr(one) for one in measure_pairs(pairs)]
    chance = random.Random(1)
    for _ in range(300):
        spoilt = bytearray(data)
        spoilt[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / FILE).write_bytes(spoilt)
        with Checkpoint(folder, pairs, "", True) as one:
            assert [repr(found) for found in one.known] == measured[: len(one.known)]


def odd_blocks():
    """Blocks with a right CRC that hold anything else than rows."""
    row = np.zeros(1, ROW)
    row["moments"] = -1
    for name, value in (("problem", 7), ("unlike", -1), ("moments", 0), ("moments", -2)):
        odd = row.copy()
        odd[name] = value
        yield b"1 0 4\n" + odd.tobytes() + b'[""]'
    rows = np.repeat(row, 10).tobytes()  # more than there are pairs
    yield from (b"", b"1 0 4\n", b"x y z\n", b"-1 0 0\n", b"1 0\n" + row.tobytes(), b"10 0 4\n" + rows + b'[""]')
    yield from (b"1 0 %d\n" % len(text) + row.tobytes() + text for text in (b"[7]", b"{}", b"[", b"[" * 100_000))


@pytest.mark.parametrize("block", [*odd_blocks()], ids=lambda block: str(len(block)))
def test_odd_blocks_end_the_checkpoint(checkpoint_of_nine, block):
    pairs, folder = checkpoint_of_nine
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[: next(ends(data))] + b"%08x %d\n" % (zlib.crc32(block), len(block)) + block)
    with Checkpoint(folder, pairs, "", True) as one:
        assert one.known == []


def test_a_checkpoint_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(DumpError):
        Checkpoint(tmp_path, [], "", False)
    assert (tmp_path / "precious").read_text() == "x"


def test_a_short_run_writes_no_checkpoint(place, monkeypatch):
    """What takes less than EVERY seconds is not worth the time of keeping it."""
    monkeypatch.setattr(checkpoint, "EVERY", 1000.0)
    monkeypatch.setattr(Checkpoint, "_append", lambda *_: pytest.fail("written"))
    assert finished(place, monkeypatch) == 1
    assert not begun(place)


def test_fusion_diff_goes_on_too(tmp_path, monkeypatch, measured):
    sides = [str(SAMPLES / "cann_fusion_pass" / side) for side in ("target", "golden")]
    words = ["fusion-diff", *sides, "-q", "--jobs", "1", "-o"]
    assert stopped([*words, str(tmp_path / "whole")], 10**6, monkeypatch) == 1
    pairs_measured = len(measured)
    assert stopped([*words, str(tmp_path / "out")], 5, monkeypatch) == 130
    assert begun(tmp_path)
    measured.clear()
    assert stopped([*words, str(tmp_path / "out"), "--resume"], 10**6, monkeypatch) == 1
    assert 0 < len(measured) <= pairs_measured - 5 and not begun(tmp_path)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


# --- signals


def left_by(signalled, place, jobs, apart, number=signal.SIGTERM):
    """Status and words of a comparison that a signal ended in the middle of the measuring, and its processes."""
    slow = "import time, npucmp.measure.pairs as m, npucmp.workflows.task_choice as s; real = m.measure; "
    slow += "c.EVERY = 0.0; m.measure = lambda *a: (time.sleep(0.02), real(*a))[1]; s.SMALL = " + (
        "0" if apart else "1 << 60"
    )
    words = command(place, "--jobs", jobs)
    code = f"import sys, npucmp.measure.checkpoint as c; {slow}; sys.argv[1:] = {words!r}"
    code = [sys.executable, "-c", f"{code}; from npucmp.cli import main; main()"]
    process = subprocess.Popen(code, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 60
    while time.monotonic() < until and sum(file.stat().st_size for file in place.glob(f"out/{FILE}*")) < 2000:
        time.sleep(0.01)
    signalled(process.pid, number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors, living(process.pid)


def living(group):
    """The processes of a group, but for those that nobody has asked how they ended."""
    stats = [text(file).rpartition(")")[2].split() for file in Path("/proc").glob("[0-9]*/stat")]
    return [one for one in stats if one and one[2] == str(group) and one[0] != "Z"]


def text(file):
    try:
        return file.read_text()
    except OSError:  # it has ended meanwhile
        return ""


@pytest.mark.few(1)
@pytest.mark.parametrize(("apart", "jobs", "whom"), [(True, 2, os.kill), (True, 1, os.killpg), (False, 2, os.killpg)])
def test_sigterm_ends_it_in_order(dump, place, monkeypatch, measured, apart, jobs, whom):
    """Of the process, as `kill` sends it, or of all, as `timeout` and SLURM do."""
    status, errors, workers = left_by(whom, place, jobs, apart)
    assert (status, workers) == (143, [])
    assert errors == "npucmp: ended by SIGTERM; to continue, repeat the command with --resume\n"
    left = [file.name for file in (place / "out").iterdir()]
    assert left and all(name.startswith(FILE) for name in left)
    if apart:
        monkeypatch.setattr("npucmp.workflows.task_choice.SMALL", 0)
    assert finished(place, monkeypatch, "--resume", "--jobs", "1") == 1
    found, expected = content(place / "out"), content(dump / "expected")
    assert all(found[name] == expected[name] for name in TABLES) and not [*(place / "out").glob(".npucmp*")]


def test_a_killed_one_leaves_nothing_after_the_next(place, monkeypatch):
    assert left_by(os.kill, place, 1, True, signal.SIGKILL)[0] == -signal.SIGKILL
    assert [*(place / "out").glob(".npucmp-work-*")]
    monkeypatch.setattr("npucmp.workflows.task_choice.SMALL", 0)
    assert finished(place, monkeypatch, "--jobs", "1") == 1
    assert not [*(place / "out").glob(".npucmp*")]


def test_a_signal_that_is_ignored_stays_so(place):
    prepare = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.raise_signal(signal.SIGHUP)"
    hung = "import npucmp.commands.compare as c; c.carry_out = lambda *a: signal.raise_signal(signal.SIGHUP)"
    assert run(command(place), f"{prepare}; {hung}").returncode == 0
    got = run(command(place), f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); {hung}")
    assert (got.returncode, got.stderr) == (129, "npucmp: ended by SIGHUP\n")


def test_a_fault_of_our_own_is_not_the_status_of_dumps_that_differ(place):
    got = run(command(place), "import npucmp.commands.compare as c; c.carry_out = lambda *a: 1 / 0")
    assert got.returncode == 2 and got.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
