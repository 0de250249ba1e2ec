"""How far one run reaches into the other, on operators made by hand."""

import json
import shutil

import pytest

import npucmp
from npucmp.align import align, pairs
from npucmp.align.pairing_coverage import extent
from npucmp.model import Pair
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
    ends = f"the target ends at operator {cut} of the network's 48, after {WHOLE[cut - 1].name}"
    assert found(WHOLE[:cut]).incomplete[0] == ends
    assert found(WHOLE, WHOLE[:cut]).incomplete[0] == ends.replace("target", "golden")
    assert found(WHOLE[:cut], ordered=False).incomplete == found(WHOLE[:cut]).incomplete[1:]  # nothing is known of ends


def test_a_side_that_begins_late_is_told():
    begins = f"the target begins at operator 11 of the network's 48, with {WHOLE[10].name}"
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


def rows(text, phases=None, **fields):
    """Pairs of operators named by letters: "a" of both sides, "-a" of the target alone, "+a" of the golden alone."""
    made = []
    for order, word in enumerate(text.split()):
        name = word.lstrip("+-")
        one = own(name, order, phase=(phases or {}).get(name, "forward"))._replace(**fields.get(name, {}))
        for ref in one.tensors:
            sides = None if word[0] == "+" else one, None if word[0] == "-" else one
            refs = (ref if side else None for side in sides)
            made.append(Pair(order, ref.slot, *sides, *refs))
    return made


@pytest.mark.parametrize(
    "text, words",
    [
        ("a b c", []),
        ("a b +c +d", []),  # two may be missing at an end
        ("a b +c +d +e", ["the target ends at operator 2 of the network's 5, after b"]),
        ("a b -c -d -e", ["the golden ends at operator 2 of the network's 5, after b"]),
        ("+x +y a b", []),
        ("+x +y +z a b", ["the target begins at operator 4 of the network's 5, with a"]),
        ("-x -y -z a b", ["the golden begins at operator 4 of the network's 5, with a"]),
        ("a b +c +d +e -f", []),  # as many of the other side may be the same operators
        ("a b +c +d +e +f -g", ["the target ends at operator 2 of the network's 6, after b"]),
        ("a +x +y +z b +c +d +e", []),  # as many are missing in between
        ("a +x +y +z b +c +d +e +f", ["the target ends at operator 5 of the network's 9, after b"]),
        ("a -x -y -z b +c +d +e", ["the target ends at operator 2 of the network's 5, after b"]),
        ("+x +y +z a -c -d -e", ["the target begins at operator 4 of the network's 4, with a",
                                 "the golden ends at operator 1 of the network's 4, after a"]),
        ("+x +y +z -a -b -c", []),  # nothing in common
    ],
)  # fmt: skip
def test_the_ends_of_a_run(text, words):
    found = extent(rows(text))
    assert list(found.words) == list(found.incomplete) == words
    assert extent(rows(text), ordered=False).words == ()
    named = [word.replace("the target", "A").replace("the golden", "B") for word in words]
    assert list(extent(rows(text), called=("A", "B")).words) == named


@pytest.mark.parametrize(
    "text, phases, words",
    [
        ("a +b", {"b": "backward"}, ["the target has no backward operators"]),
        ("a -b", {"b": "backward"}, ["the golden has no backward operators"]),
        ("a b +c", {"b": "backward", "c": "backward"}, []),
        ("a +b", {"a": "", "b": "forward"}, []),  # one without a phase counts as forward
        ("a +b", {"b": ""}, []),
        ("a +b", {"a": "", "b": "backward"}, ["the target has no backward operators"]),
        ("a +b +c", {"b": "update", "c": "backward"}, ["the target has no backward operators",
                                                       "the target has no update operators"]),
        ("+b", {}, []),
    ],
)  # fmt: skip
def test_the_phases_that_a_run_lacks(text, phases, words):
    found = extent(rows(text, phases))
    assert list(found.words) == words and found.incomplete == ()


@pytest.mark.parametrize(
    "fields, is_said",
    [({}, True), ({"inserted": True}, False), ({"path": "Module.x"}, False)],
    ids=["operators", "inserted by a compiler", "modules beside operators"],
)
def test_operators_that_are_of_the_network(fields, is_said):
    assert bool(extent(rows("a b +c +d +e", c=fields)).words) is is_said


def test_modules_count_if_there_are_no_other_operators():
    paths = {name: {"path": f"Module.{name}"} for name in "abcde"}
    assert extent(rows("a b +c +d +e", **paths)).words == ("the target ends at operator 2 of the network's 5, after b",)


def test_earlier_executions_and_recomputed_operators_do_not_count():
    assert extent(rows("+a +a +a a b")).words == ()
    many = {"a": {"unique": False}}
    assert extent(rows("+a +a +a a b", **many)).words == ("the target begins at operator 4 of the network's 5, with a",)
    assert extent(rows("a b +c +d +e"), again=frozenset({4})).words == ()
