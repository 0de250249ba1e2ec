"""How far one run reaches into the other, on operators made by hand."""

import json
import shutil

import npucmp
from tests.test_samples import SAMPLES


def cut_dump(source, place, count):
    shutil.copytree(source, place)
    (path,) = place.rglob("dump.json")
    dump = json.loads(path.read_text())
    dump["data"] = dict(list(dump["data"].items())[:count])
    path.write_text(json.dumps(dump))
    return place


def test_a_dump_of_a_run_that_crashed_does_not_agree(tmp_path):
    golden = SAMPLES / "msprobe_clean" / "golden"
    short = cut_dump(golden, tmp_path / "short", 20)
    report = npucmp.compare(short, golden)
    words = report.comparisons[0].notes[0]
    assert report.exit_status == 2 and words.startswith("the target ends at operator 20 of the network's 54, after ")
    whole = npucmp.compare(golden, short)  # the target has more than the golden
    note = whole.comparisons[0].notes[0]
    assert whole.exit_status == 0 and note.startswith("the golden ends at operator 20 of the network's 54")
    only = [operator.name for operator in npucmp.open_runs(short)[0].operators]
    assert npucmp.compare(short, golden, include=only).exit_status == 0  # that much was asked for
    again = npucmp.rerun_diff([golden, short])
    assert again.exit_status == 2 and "run 2 ends at operator 20 of " in again.comparisons[0].notes[0]
    faulty = cut_dump(SAMPLES / "msprobe_softmax" / "target", tmp_path / "faulty", 40)
    report = npucmp.compare(faulty, SAMPLES / "msprobe_softmax" / "golden")
    assert report.exit_status == 1 and "the target ends at operator 40 of " in report.comparisons[0].notes[0]
