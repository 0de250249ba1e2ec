"""Each call of the system fails once in a small comparison: its report is whole, absent, or has the reason.

A seeded sample of the calls; `.ci/nightly faults` takes all of them, in more formats and commands (__main__.py).
"""

from __future__ import annotations

import random

import pytest

from tests.faults.injection import IS_POSSIBLE, KINDS, Injector, Server, changes
from tests.faults.scenarios import sample_scenario, small_scenarios

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="needs a C compiler, Linux and glibc")
KINDS_OF = {  # one call of each
    "values": KINDS,
    "clean": ("read", "write", "allocate"),
    "workers": ("read", "write", "map", "fork"),
    "ranks": ("read", "name", "fork", "allocate"),
    "cann_clean": ("read", "read", "read", "read"),  # fused operators, whose alignment needs a graph and all headers
}
KILLS = 2  # of each scenario with several processes, and of "values"


@pytest.fixture(scope="module")
def injectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with Server(folder) as server:
        scenarios = [*small_scenarios(folder), sample_scenario("cann_clean")]
        yield {one.name: Injector(one, folder / one.name, server) for one in scenarios}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", KINDS_OF)
def test_a_call_that_fails_changes_no_verdict(injectors, name):
    injector, chance = injectors[name], random.Random(name)
    for kind in KINDS_OF[name]:
        calls = injector.count([kind])
        if calls:
            trial = injector.fail(chance.randint(1, calls), [kind], earlier=chance.random() < 0.5)
            assert trial.problems == (), trial


@pytest.mark.parametrize("name", ["values", "ranks"])
def test_a_read_or_write_of_less_than_asked_changes_nothing(injectors, name):
    injector, chance = injectors[name], random.Random(name)
    trial = injector.fail(chance.randint(1, injector.count(["read", "write"], "short")), ["read", "write"], "short")
    assert trial.problems == (), trial


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["values", "workers", "ranks"])
def test_a_kill_leaves_no_process_and_no_folder(injectors, name):
    injector, chance = injectors[name], random.Random(name)
    for number in range(KILLS):
        trial = injector.kill(chance.uniform(0, injector.seconds), bool(number % 2))
        assert trial.problems == (), trial


def test_an_order_that_cannot_be_sent_to_a_worker_hangs_nothing(injectors):
    """The first write to the pipe of a worker fails: a worker that waits for its order would wait for ever."""
    injector = injectors["workers"]
    for nth in range(1, injector.count(["write"]) + 1):
        trial = injector.fail(nth, ["write"], earlier=False)
        assert trial.problems == (), trial
        if "_send" in trial.site:
            break
    assert "executor.py" in trial.site and trial.status == 1


REPORT = {
    "summary.json": {"command": "compare", "notes": [], "roots": 1, "exit_status": 1, "files": ["tensors.csv"]},
    "tensors.csv": b"op,slot,verdict,because\na,output:0,diverged,\nb,output:0,match,\n",
}


@pytest.mark.parametrize(
    "changed, status, words",
    [
        ({}, 1, ""),
        ({"tensors.csv": b"op,slot,verdict,because\na,output:0,match,\nb,output:0,match,\n"}, 1, "without a reason"),
        ({"tensors.csv": b"op,slot,verdict,because\na,output:0,diverged,\nb,output:0,unreadable,bad\n"}, 1, ""),
        ({"tensors.csv": b"op,slot,verdict,because\na,output:0,match,\nb,output:0,unreadable,bad\n"}, 1, "a output:0"),
        ({"summary.json": {**REPORT["summary.json"], "roots": 0}}, 1, "another verdict"),
        ({"summary.json": {**REPORT["summary.json"], "exit_status": 0}}, 1, "summary.json says 0"),
        ({"summary.json": {**REPORT["summary.json"], "roots": 0, "notes": ["bad"], "exit_status": 0}}, 0, "status 0"),
        ({"summary.json": {**REPORT["summary.json"], "roots": 0, "notes": ["7 of 8 float32"]}}, 1, "another verdict"),
        ({"summary.json": {**REPORT["summary.json"], "files": ["gone.csv"]}}, 1, "gone.csv"),
    ],
)
def test_the_oracle_knows_a_wrong_report(changed, status, words):
    """A changed report needs a reason, and status 0 an unchanged one."""
    found = " ".join(changes({**REPORT, **changed}, REPORT, status))
    assert words in found and bool(found) == bool(words)


HEAD = "op,slot,verdict,because,target_tensor,match_reason\n"
LOST = "d,,unreadable,target: bad,F,\n"


@pytest.mark.parametrize(
    "before, after, words",
    [
        ("a,input:0,match,,F:input.0,near", f"a,input:0,match,,G:output.0,near\n{LOST}", ""),
        ("a,input:0,match,,F:input.0,near", f"a,input:0,unknown,,G:output.0,near\n{LOST}", ""),
        ("a,input:0,diverged,,F:input.0,near", f"a,input:0,match,,G:output.0,near\n{LOST}", "a input:0"),
        ("a,input:0,match,,H:input.0,near", f"a,input:0,match,,G:output.0,near\n{LOST}", "a input:0"),
        ("a,input:0,match,,H:input.0,near", f"a,input:0,match,,H:input.0,far\n{LOST}", ""),
        ("a,input:0,match,,H:input.0,near", "a,input:0,match,,H:input.0,far\n", "without a reason"),
        ("a,input:0,diverged,far,H:input.0,", f"a,input:0,diverged,near,H:input.0,\n{LOST}", ""),
        ("a,input:0,diverged,far,H:input.0,", f"a,input:0,match,near,H:input.0,\n{LOST}", "a input:0"),
    ],
)
def test_a_row_may_name_another_recording_only_of_a_tensor_that_was_not_read(before, after, words):
    summary = {"summary.json": REPORT["summary.json"]}
    left, whole = ({**summary, "tensors.csv": f"{HEAD}{rows}".encode()} for rows in (after, before))
    found = " ".join(changes(left, whole, 1))
    assert words in found and bool(found) == bool(words)
