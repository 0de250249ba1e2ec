"""npucmp overflow as a user meets it: exit status, files, screen; dumps of values, of statistics, of device records."""

import csv
import json
import struct

import numpy as np
import pytest

from npucmp import overflow
from tests.command import npucmp
from tests.dump.readers.craft_cann import Tensor, tensor, v2
from tests.reports import screen
from tests.reports import table as rows_of
from tests.synthetic import write_run

INF, NAN = float("inf"), float("nan")
X = np.linspace(-2, 2, 16).reshape(4, 4).astype(np.float16)
HOT = X.copy()
HOT[2, 1] = INF
LOST = X.copy()
LOST[0, 3] = NAN
TIME = 1_700_000_000_000_000

COLUMNS = (
    "step,rank,order,op,op_type,phase,slot,event,origin,count,ratio,first_index,dtype,shape,min,max,headroom_bits,"
    "device_status,device_bits,golden_event,because,stack,first_at,limit"
)

CHAIN = {  # an Inf of exp, a NaN of Inf-Inf, and a choice that throws it away
    "Torch.linear.0.forward": {"in": [X], "out": [X * 8]},
    "Torch.exp.0.forward": {"in": [X * 8], "out": [HOT]},
    "Torch.sub.0.forward": {"in": [HOT, HOT], "out": [LOST]},
    "Torch.where.0.forward": {"in": [X > 0, LOST, 0.0], "out": [X]},
}
CLEAN = {"Torch.add.0.forward": {"in": [X, X], "out": [X * 2]}}


def command(*words):
    return npucmp("overflow", *words)


def table(folder, name="overflow.csv"):
    with open(folder / name, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def roots(report):
    return [(root.cause.value, root.pair.operator.name, root.slot) for root in report.roots]


def events(report):
    return [(event.operator and event.operator.name, event.kind, event.origin) for event in report.events]


# --- the command ---


def test_the_birth_comes_first_and_the_way_below_it(tmp_path):
    got = command(write_run(tmp_path / "dump", CHAIN))
    assert (got.returncode, got.stderr) == (1, "")
    lines = [line for line in got.stdout.splitlines() if "Torch." in line]
    assert lines[0].split() == ["1", "BORN", "Torch.exp.0.forward", "output:0"]
    assert [(len(line) - len(line.lstrip()), line.split()[0]) for line in lines[1:]] == [
        (7, "PROPAGATED"),
        (9, "KILLED"),
    ]
    assert "output:0: 1 of 16 Inf, the first at [2, 1]" in got.stdout
    assert "OVERFLOW: produced by 1 operator, propagated by 1 operator." in got.stdout


def test_files_are_those_of_the_contract(tmp_path):
    got = command(write_run(tmp_path / "dump", CHAIN), "-o", tmp_path / "out", "--headroom", 12)
    written = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert written == ["overflow.csv", "report.html", "roots.csv", "summary.json"]
    assert (tmp_path / "out" / "overflow.csv").read_text().splitlines()[0] == COLUMNS
    rows = table(tmp_path / "out")
    assert [(row["order"], row["op"], row["slot"], row["event"], row["origin"]) for row in rows[:3]] == [
        ("1", "Torch.exp.0.forward", "output:0", "inf", "born"),
        ("2", "Torch.sub.0.forward", "output:0", "nan", "propagated"),
        ("3", "Torch.where.0.forward", "input:1", "nan", "killed"),
    ]
    names = ("step", "rank", "op_type", "phase", "count", "ratio", "first_index")
    assert [rows[0][name] for name in names] == ["0", "", "exp", "forward", "1", "0.0625", "9"]
    assert (rows[0]["dtype"], rows[0]["shape"], rows[0]["max"]) == ("float16", "[4, 4]", "2.0")
    assert float(rows[0]["headroom_bits"]) == pytest.approx(np.log2(65504 / 2))
    assert {row["event"] for row in rows[3:]} == {""}  # close to the edge: 12 bits is a factor of 4096
    assert rows[3]["op"] == "Torch.linear.0.forward"
    found = table(tmp_path / "out", "roots.csv")
    assert [(row["place"], row["op"], row["cause"], row["metric"], row["value"]) for row in found] == [
        ("1", "Torch.exp.0.forward", "BORN", "inf", "1.0"),
        ("2", "Torch.sub.0.forward", "PROPAGATED", "nan", "1.0"),
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert (summary["command"], summary["exit_status"], summary["partial"]) == ("overflow", got.returncode, False)
    assert summary["events"] == {"inf": 1, "nan": 2}
    assert summary["origins"] == {"born": 1, "propagated": 1, "killed": 1}
    assert [root["op"] for root in summary["roots"]] == ["Torch.exp.0.forward", "Torch.sub.0.forward"]


def test_a_clean_dump(tmp_path):
    got = command(write_run(tmp_path, CLEAN))
    assert (got.returncode, got.stderr) == (0, "")
    assert "CLEAN: 3 tensors scanned, no NaN, no Inf, nothing saturated." in got.stdout
    assert command(tmp_path, "-q").stdout == ""


def test_bad_usage(tmp_path):
    write_run(tmp_path, CLEAN)
    for words in ([tmp_path, "--include", "nothing*"], [tmp_path / "absent"], [tmp_path, "--headroom", "-1"]):
        got = command(*words)
        assert got.returncode == 2
        assert "Traceback" not in got.stderr


# --- what is scanned ---


def test_a_nan_that_another_rank_put_in(tmp_path):
    reduce = "Distributed.all_reduce.0.forward"
    write_run(tmp_path, {reduce: {"in": [X], "out": [LOST]}}, rank=0)
    write_run(
        tmp_path, {"Torch.div.0.forward": {"in": [X], "out": [LOST]}, reduce: {"in": [LOST], "out": [LOST]}}, rank=1
    )
    report = overflow(tmp_path)
    assert roots(report)[0] == ("BORN", "Torch.div.0.forward", "output:0")
    assert {cause for cause, *_ in roots(report)[1:]} == {"PROPAGATED"}
    assert "rank 1 had read it before" in report.scans[0].events[0].because


def test_an_unreadable_tensor_is_a_row_and_undecided(tmp_path):
    write_run(tmp_path, CLEAN)
    (tmp_path / "step0" / "proc1" / "dump_tensor_data" / "Torch.add.0.forward.input.1.npy").write_bytes(b"no")
    report = overflow(tmp_path)
    assert report.exit_status == 2
    assert [event.because[:11] for event in report.events] == ["unreadable:"]
    assert "UNDECIDED" in screen(report)


# --- a golden run ---


def test_the_golden_run_may_have_other_names(tmp_path):
    target = write_run(tmp_path / "t", {"Torch.exp.0.forward": {"in": [X], "out": [HOT]}})
    other = write_run(tmp_path / "g", {"Mint.power.0.forward": {"in": [X], "out": [HOT]}})
    (event,) = overflow(target, golden=other, mapping={"Torch.exp.0.forward": "Mint.power.0.forward"}).events
    assert event.golden == "inf"


# --- records of the device ---


def device(root, operators, stream=3):
    """Raw CANN files of (type, name, task, input, output), and the folder that they lie in."""
    place = root / "20240101000000" / "0" / "ge_default_1" / "1" / "0"
    place.mkdir(parents=True)
    for number, (kind, name, task, read, written) in enumerate(operators):
        file = f"{kind}.{name.replace('/', '_')}.{task}.{stream}.{TIME + 10 * number}"
        (place / file).write_bytes(v2([tensor(read)], [tensor(written)], name))
    return root


def old_layout(task, status, stream=3, unit="core"):
    ids, at = {"dha": (0, 512), "l2": (128, 768), "core": (256, 1040)}[unit]
    record = bytearray(2048)
    struct.pack_into("<3Q", record, ids, 514, stream, task)
    struct.pack_into("<Q", record, at, status)
    return bytes(record)


def new_layout(task, status, stream=3, context=65535, thread=65535):
    """One entry of an AI Core."""
    numbers = 514, stream, task, 0, context, thread, 0, 0, 0, 0, status
    return struct.pack("<6I", 0x5A5A5A5A, 0, 1, 0, 0, 88) + struct.pack("<11Q", *numbers)


def note(root, record, at=15, ids="77.9"):
    """An Opdebug file; the ids of its name are those of the task that looked, and mean nothing."""
    place = next((file.parent for file in root.rglob("*.*") if file.is_file()), root)
    place.mkdir(parents=True, exist_ok=True)
    whole = v2([], [Tensor(record, (len(record),), 4)], "Node_OpDebug")
    (place / f"Opdebug.Node_OpDebug.{ids}.{TIME + at}").write_bytes(whole)


OPERATORS = [("Add", "net/add", 1, X, X), ("Exp", "net/exp", 2, X, HOT), ("Mul", "net/mul", 3, X, X)]


def test_a_record_that_blames_no_dumped_operator_is_a_row(tmp_path):
    device(tmp_path, OPERATORS[:1])
    note(tmp_path, old_layout(55, 0x400))
    report = overflow(tmp_path)
    assert (report.exit_status, events(report), report.roots) == (1, [(None, "device", "unknown")], ())
    assert "it names task 55 of stream 3, but the dump has no operator of this task" in report.events[0].because
    assert "0x400" in [row["device_status"] for row in rows_of(report, "overflow.csv")]


def test_of_slices_the_one_that_the_record_names(tmp_path):
    for context, name in enumerate(("net_add", "net_exp")):
        for thread in range(2):
            file = f"Add.{name}.5.3.{TIME + 10 * context + thread}.4.{context}.{thread}.0"
            (tmp_path / file).write_bytes(v2([tensor(X)], [tensor(X)], name))
    note(tmp_path, new_layout(5, 0x20, context=1, thread=1))
    assert [name for name, kind, _ in events(overflow(tmp_path)) if kind == "device"] == ["net_exp"]


def test_a_damaged_record_is_a_row(tmp_path):
    note(tmp_path / "d", old_layout(7, 0x20)[:900])
    report = overflow(tmp_path)
    assert report.exit_status == 2
    assert "unreadable: Opdebug.Node_OpDebug.77.9" in rows_of(report, "overflow.csv")[0]["because"]


def test_a_damaged_record_does_not_hide_what_is_readable(tmp_path):
    device(tmp_path, OPERATORS)
    note(tmp_path, b"damaged")
    report = overflow(tmp_path)
    assert (report.exit_status, roots(report)) == (1, [("BORN", "net/exp", "output:0")])
    assert len(report.scans[0].unreadable) == 1


def test_records_as_json(tmp_path):
    device(tmp_path, OPERATORS[:1])
    place = next(file.parent for file in tmp_path.rglob("Add*"))
    told = {"stream_id": 3, "task_id": 1, "status": 32, "kernel_code": "0x1008005ae000"}
    (place / f"Opdebug.Node_OpDebug.9.9.{TIME}.output.0.json").write_text(json.dumps({"AI Core": told}))
    assert events(overflow(tmp_path)) == [("net/add", "device", "born")]


def test_what_a_choice_throws_away_is_a_note_and_no_overflow(tmp_path):
    low = X.copy()
    low[0, 0] = -INF
    run = {
        "Torch.log.0.forward": {"in": [abs(X)], "out": [low]},
        "Torch.where.0.forward": {"in": [X > 0, low, X], "out": [X]},
    }
    report = overflow(write_run(tmp_path / "dump", run))
    assert report.exit_status == 0
    shown = screen(report)
    assert "Torch.log.0.forward: an Inf that a selection discards at once" in shown
    assert "memory that nobody" not in shown
