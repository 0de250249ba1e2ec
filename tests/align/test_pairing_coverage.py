"""How far one run reaches into the other, on operators made by hand."""

import json
import shutil

import pytest

import npucmp
from npucmp.align import align, pairs
from npucmp.align.pairing_coverage import extent
from tests.align.craft import a_run, network, own, run_of
from tests.test_samples import SAMPLES

WHOLE = run_of(network(4))[0].operators  # 24 forward, 24 backward operators


def found(target, golden=WHOLE, ordered=True):
    runs = a_run(target, "target"), a_run(golden, "golden")
    return extent(list(pairs(*runs, align(*runs))), ordered)


def renamed(operators):
    return [own(f"other_{i}", one.order) for i, one in enumerate(operators)]


@pytest.mark.parametrize("cut", [8, 20, 30, 45])
def test_a_side_that_ends_early_is_told_and_decides_nothing(cut):
    ends = f"the target ends at operator {cut} of 48, after {WHOLE[cut - 1].name}"
    assert found(WHOLE[:cut]).incomplete[0] == ends
    assert found(WHOLE, WHOLE[:cut]).incomplete[0] == ends.replace("target", "golden")
    assert found(WHOLE[:cut], ordered=False).incomplete == found(WHOLE[:cut]).incomplete[1:]  # nothing is known of ends


def test_a_side_that_begins_late_is_told():
    begins = f"the target begins at operator 11 of 48, with {WHOLE[10].name}"
    assert found(WHOLE[10:]).incomplete == (begins,)


def test_a_few_operators_at_the_end_may_be_missing_or_have_other_names():
    assert found(WHOLE) == found(WHOLE[:-2]) == found(WHOLE[2:]) == ((), ())
    assert found([*WHOLE[:40], *renamed(WHOLE[40:])]).incomplete == ()
    assert found([*WHOLE[:20], *WHOLE[26:-5]]).incomplete == ()  # as many are missing in the middle
    assert found([*WHOLE[:20], *WHOLE[26:-7]]).incomplete != ()


def test_a_recording_of_one_phase_lacks_the_other_and_is_whole_in_its_own():
    assert found(WHOLE[:24]) == (("the target has no backward operators",), ())
    assert found(WHOLE[24:]) == (("the target has no forward operators",), ())
    assert found(WHOLE, WHOLE[:24]) == (("the golden has no backward operators",), ())


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
    assert report.exit_status == 2 and words.startswith("the target ends at operator 20 of 54, after ")
    whole = npucmp.compare(golden, short)  # the target has more than the golden
    assert whole.exit_status == 0 and whole.comparisons[0].notes[0].startswith("the golden ends at operator 20 of 54")
    only = [operator.name for operator in npucmp.open_runs(short)[0].operators]
    assert npucmp.compare(short, golden, include=only).exit_status == 0  # that much was asked for
    again = npucmp.rerun_diff([golden, short])
    assert again.exit_status == 2 and "run 2 ends at operator 20 of " in again.comparisons[0].notes[0]
    faulty = cut_dump(SAMPLES / "msprobe_softmax" / "target", tmp_path / "faulty", 40)
    report = npucmp.compare(faulty, SAMPLES / "msprobe_softmax" / "golden")
    assert report.exit_status == 1 and "the target ends at operator 40 of " in report.comparisons[0].notes[0]
